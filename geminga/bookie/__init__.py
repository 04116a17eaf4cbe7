"""The room `bookie`; its packages are in ARCHITECTURE.md."""
