"""How far a trigger may read: entries are counted by their metadata alone, nothing is inflated or taken
apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from geminga.pipeline.columns.entries import Entries
from geminga.pipeline.columns.places import Place
from geminga.pipeline.columns.protobuf_columns import Ints
from geminga.pipeline.errors import Access
from geminga.pipeline.topics.reading import EntryReader, Range

_TAKE_BYTES = 256 * 1024
_PERMITS_MAX = 20_000


@dataclass
class Budget:
    """What may still be read. None: no bound."""

    rows: int | None = None
    size_bytes: int | None = None

    @property
    def is_spent(self) -> bool:
        return (self.rows is not None and self.rows <= 0) or (
            self.size_bytes is not None and self.size_bytes <= 0
        )

    def share(self, parts: int) -> Budget:
        """An equal part of what is left, at least one row and byte."""
        rows = None if self.rows is None else max(self.rows // parts, 1)
        size_bytes = None if self.size_bytes is None else max(self.size_bytes // parts, 1)
        return Budget(rows, size_bytes)

    def spend(self, rows: int, size_bytes: int) -> None:
        if self.rows is not None:
            self.rows -= rows
        if self.size_bytes is not None:
            self.size_bytes -= size_bytes


def messages_of(entries: Entries) -> Ints:
    """How many rows each entry gives: none for a marker, and for a chunk unless it is the last."""
    counts = entries.messages.copy()
    counts[entries.marker | ((entries.chunk_id >= 0) & (entries.chunk_id < entries.chunks - 1))] = 0
    return counts


def admit(entries: Entries, start: Place, budget: Budget) -> Place | None:
    """How far the budget goes in these entries, which begin at `start`; None: beyond them. Spends it.

    Rows are exact to the message. Bytes are those of whole entries, and may be exceeded by one entry.
    """
    counts = messages_of(entries)
    first = int(entries.ledger_id[0]), int(entries.entry_id[0])
    skipped = start.batch_index if first == start.entry else 0
    counts[0] = max(counts[0] - skipped, 0)
    rows = np.cumsum(counts)
    sizes = np.cumsum(entries.payload_end - entries.payload_at)
    stop = len(entries)
    if budget.rows is not None:
        stop = min(stop, int(np.searchsorted(rows, budget.rows, side="right")))
    by_rows = stop
    if budget.size_bytes is not None:
        stop = min(stop, int(np.searchsorted(sizes, budget.size_bytes, side="left")) + 1)
    if stop == len(entries):
        budget.spend(int(rows[-1]), int(sizes[-1]))
        if not budget.is_spent:
            return None
        return Place(int(entries.ledger_id[-1]), int(entries.entry_id[-1]) + 1, 0)
    inside = 0
    if stop == by_rows and budget.rows is not None:
        inside = budget.rows - (int(rows[stop - 1]) if stop else 0)
        if stop == 0:
            inside += skipped
    budget.rows = 0 if budget.rows is not None else None
    budget.size_bytes = 0 if budget.size_bytes is not None else None
    return Place(int(entries.ledger_id[stop]), int(entries.entry_id[stop]), inside)


def advance(access: Access, wanted: Range, budget: Budget, *, poll_timeout_s: float) -> Place:
    """Where a trigger that begins at `wanted.start` has to stop; at most `wanted.end`. Spends the budget."""
    if budget.rows is None and budget.size_bytes is None:
        return wanted.end
    if budget.is_spent or wanted.start >= wanted.end:
        return wanted.start
    permits = (
        _PERMITS_MAX if budget.rows is None else min(budget.rows + wanted.start.batch_index + 1, _PERMITS_MAX)
    )
    reader = EntryReader(
        access, wanted, poll_timeout_s=poll_timeout_s, take_bytes=_TAKE_BYTES, permits=permits
    )
    start = wanted.start
    for entries in reader.buffers():
        place = admit(entries, start, budget)
        if place is not None:
            return min(place, wanted.end)
    return wanted.end
