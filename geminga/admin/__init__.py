"""The room `admin`; its packages are in ARCHITECTURE.md."""
