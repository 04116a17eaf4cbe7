"""Rows and buckets as bytes: pure."""
