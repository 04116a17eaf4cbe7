"""A versioned key tree with typed records."""
