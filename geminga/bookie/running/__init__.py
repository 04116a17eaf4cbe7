"""A running bookie: write caches, reads, flushes, garbage collection."""
