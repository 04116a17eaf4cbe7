"""Entries as bytes, file names, settings: what all of the bookie shares."""
