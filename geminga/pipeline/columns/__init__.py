"""Entries and messages as Arrow columns."""
