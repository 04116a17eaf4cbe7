"""Buckets of the delayed index in bulk; rescue of a bookie's files; capacity."""
