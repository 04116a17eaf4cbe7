"""Buckets on the bookie: sealed, loaded, merged, recovered, deleted."""
