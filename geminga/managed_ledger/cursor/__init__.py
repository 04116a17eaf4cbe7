"""Acknowledgements, and how they become durable."""
