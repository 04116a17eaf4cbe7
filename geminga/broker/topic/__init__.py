"""Topics, producers, deduplication, quotas, inactivity."""
