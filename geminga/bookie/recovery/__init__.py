"""From what a crash left to a consistent index."""
