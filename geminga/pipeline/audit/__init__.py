"""Logs of deliveries into a report of what was lost, doubled, early or late."""
