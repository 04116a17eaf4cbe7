"""How much a running bookie holds. Read-only, for metrics."""

from __future__ import annotations

from typing import NamedTuple

from geminga.bookie.bookie import Bookie


class StoredCounts(NamedTuple):
    ledgers: int
    entries: int
    """In entry logs and in write caches; entries of deleted ledgers until their rows are gone."""


def stored_counts(bookie: Bookie) -> StoredCounts:
    """On the loop; a pass over the sums that the index keeps in memory."""
    caches = bookie._caches
    flushing = caches.flushing
    in_memory = caches.active.entries + (flushing.entries if flushing is not None else 0)
    usage = bookie._storage.index.usage
    in_logs = sum(of.entries for ledgers in list(usage.values()) for of in ledgers.values())
    return StoredCounts(len(bookie.ledgers()), in_logs + in_memory)
