"""Outboxes, rates, the memory of what publishers send."""
