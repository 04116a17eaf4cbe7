"""Entry logs: written, read, scanned, compacted."""
