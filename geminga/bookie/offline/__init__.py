"""A stopped bookie's files: inspected, verified."""
