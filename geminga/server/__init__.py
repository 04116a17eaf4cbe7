"""Composition root: opens the rooms from the disk upward, owns the nurseries, closes in reverse."""
