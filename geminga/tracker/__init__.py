"""The room `tracker`; its packages are in ARCHITECTURE.md."""
