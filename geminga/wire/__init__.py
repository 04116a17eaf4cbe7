"""The binary protocol as pure code: bytes to commands and back. Imports neither trio nor os."""
