"""The room `broker`; its packages are in ARCHITECTURE.md."""
