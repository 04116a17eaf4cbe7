"""Schema versions, and which may follow which."""
