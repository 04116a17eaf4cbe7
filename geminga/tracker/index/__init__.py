"""The delayed index in memory: pure."""
