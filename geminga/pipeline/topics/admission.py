"""How far a trigger may read, exact to the message: reads the entries, and counts messages from metadata
alone.

`triggers/` estimates this without reading.
"""

from __future__ import annotations

import numpy as np

from geminga.pipeline.columns.entries import Entries
from geminga.pipeline.columns.message_id import MessageId
from geminga.pipeline.columns.protobuf_columns import Ints
from geminga.pipeline.errors import Access
from geminga.pipeline.topics.ranges import Range
from geminga.pipeline.topics.reading import EntryReader
from geminga.pipeline.triggers.samples import Limit

_TAKE_BYTES = 256 * 1024
_PERMITS_MAX = 20_000


def messages_of(entries: Entries) -> Ints:
    """The number of rows in each entry: none for a marker, and for a chunk unless it is the last."""
    counts = entries.messages.copy()
    counts[entries.marker | ((entries.chunk_id >= 0) & (entries.chunk_id < entries.chunks - 1))] = 0
    return counts


def admit(entries: Entries, start: MessageId, limit: Limit) -> MessageId | None:
    """How far the limit reaches in these entries, which begin at `start`; None: beyond them. Uses up the
    limit.

    Rows are exact to the message. Bytes are those of whole entries, and may exceed the limit by one entry.
    """
    counts = messages_of(entries)
    first = int(entries.ledger_id[0]), int(entries.entry_id[0])
    skipped = start.batch_index if first == start.entry else 0
    counts[0] = max(counts[0] - skipped, 0)
    rows = np.cumsum(counts)
    sizes = np.cumsum(entries.payload_end - entries.payload_at)
    stop = len(entries)
    if limit.rows is not None:
        stop = min(stop, int(np.searchsorted(rows, limit.rows, side="right")))
    by_rows = stop
    if limit.size_bytes is not None:
        stop = min(stop, int(np.searchsorted(sizes, limit.size_bytes, side="left")) + 1)
    if stop == len(entries):
        limit.spend(int(rows[-1]), int(sizes[-1]))
        if not limit.is_spent:
            return None
        return MessageId(int(entries.ledger_id[-1]), int(entries.entry_id[-1]) + 1, 0)
    inside = 0
    if stop == by_rows and limit.rows is not None:
        inside = int(limit.rows) - (int(rows[stop - 1]) if stop else 0)
        if stop == 0:
            inside += skipped
    limit.exhaust()
    return MessageId(int(entries.ledger_id[stop]), int(entries.entry_id[stop]), inside)


def advance(access: Access, wanted: Range, limit: Limit, *, poll_timeout_s: float) -> MessageId:
    """Where a trigger that begins at `wanted.start` has to stop; at most `wanted.end`. Uses up the limit."""
    if limit.rows is None and limit.size_bytes is None:
        return wanted.end
    if limit.is_spent or wanted.start >= wanted.end:
        return wanted.start
    permits = (
        _PERMITS_MAX
        if limit.rows is None
        else min(int(limit.rows) + wanted.start.batch_index + 1, _PERMITS_MAX)
    )
    reader = EntryReader(
        access, wanted, poll_timeout_s=poll_timeout_s, take_bytes=_TAKE_BYTES, permits=permits
    )
    start = wanted.start
    for entries in reader.buffers():
        message_id = admit(entries, start, limit)
        if message_id is not None:
            return min(message_id, wanted.end)
    return wanted.end
