"""Ranges and streams of topics, read and written."""
