"""How much a running bookie holds. Read-only, for metrics."""

from __future__ import annotations

from typing import NamedTuple

from geminga.bookie.running.bookie import Bookie


class StoredCounts(NamedTuple):
    ledgers: int
    entries: int
    """In entry logs and in write caches; entries of deleted ledgers until their rows are gone."""


def stored_counts(bookie: Bookie) -> StoredCounts:
    """On the loop; a pass over the sums that the indexes keep in memory."""
    entries = 0
    for directory in bookie.directories:
        for cache in (directory.caches.active, directory.caches.flushing):
            entries += cache.entries if cache is not None else 0
        usage = directory.storage.index.usage
        entries += sum(of.entries for ledgers in list(usage.values()) for of in ledgers.values())
    return StoredCounts(len(bookie.ledgers()), entries)
