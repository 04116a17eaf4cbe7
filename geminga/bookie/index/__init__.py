"""Where each entry lies."""
