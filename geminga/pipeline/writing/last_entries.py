"""The entries of a topic from its end back, a window at a time: what an earlier attempt at a task has stored.

Readers only go forward, and without the admin API the broker does not list its ledgers. So each window is a
range of its own, and the end of the ledger before is found by halving (`end_before`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from geminga.limits import MIB
from geminga.pipeline.client.entry_stream import EntryStream
from geminga.pipeline.client.last_message import last_of
from geminga.pipeline.columns.entries import Entries
from geminga.pipeline.columns.message_id import EARLIEST, MessageId
from geminga.pipeline.columns.protobuf_columns import Spans
from geminga.pipeline.errors import Access, PipelineError
from geminga.pipeline.topics.ranges import Range
from geminga.pipeline.topics.reading import EntryReader
from geminga.pipeline.topics.unreadable import entries_of

_FIRST_WINDOW_ENTRIES, _WINDOW_GROWS = 16, 4
_METADATA_BYTES = 256
_WINDOW_BYTES = 16 * MIB
"""About how large a window may get; only of its entries' names is anything kept."""
First = Callable[[int, int], tuple[int, int] | None]
"""The first entry that is there at (ledger, entry) or later; None: none."""


@dataclass(frozen=True)
class StoredEntry:
    """What producer stored it, and the text it has left in the entry's `uuid` ("" if none)."""

    producer: str
    uuid: str


@dataclass(frozen=True)
class Window:
    """Entries that follow each other, the newest first."""

    entries: list[StoredEntry]
    read_bytes: int
    """Of payloads, and about as much as metadata takes."""
    newest_publish_time_ms: int


def newest_first(access: Access, topic: str, *, poll_timeout_s: float) -> Iterator[Window]:
    """All entries of a topic (a single partition) that there are now. Raises `PipelineError`."""
    last = last_of(access, topic).message_id
    end = None if last is None else (last.ledger_id, last.entry_id + 1)
    count = _FIRST_WINDOW_ENTRIES
    while end is not None:
        ledger_id, past = end
        begin = max(past - count, 0)
        wanted = Range(
            topic, MessageId(ledger_id, begin, 0), MessageId(ledger_id, past, 0), loss_allowed=True
        )
        window = _window(EntryReader(access, wanted, poll_timeout_s=poll_timeout_s).buffers())
        yield window
        entry_bytes = window.read_bytes // max(len(window.entries), 1)
        count = max(
            min(count * _WINDOW_GROWS, _WINDOW_BYTES // max(entry_bytes, _METADATA_BYTES)),
            _FIRST_WINDOW_ENTRIES,
        )
        end = (ledger_id, begin)
        if begin == 0:
            end = end_before(ledger_id, lambda *entry: _first_entry(access, topic, entry, poll_timeout_s))


def end_before(ledger_id: int, first: First) -> tuple[int, int] | None:
    """Behind the last entry before this ledger, as (ledger, entry); None: there is none."""
    found = first(EARLIEST.ledger_id, EARLIEST.entry_id)
    if found is None or found[0] >= ledger_id:
        return None
    low, high = found[0], ledger_id  # the ledger is in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        found = first(middle, 0)
        if found is None or found[0] >= ledger_id:
            high = middle
        else:
            low = found[0]
    return low, _entries_of_ledger(low, first)


def _entries_of_ledger(ledger_id: int, first: First) -> int:
    def is_there(entry_id: int) -> bool:
        found = first(ledger_id, entry_id)
        return found is not None and found[0] == ledger_id

    low, step = 0, 1  # entry `low` is there
    while is_there(low + step):
        low += step
        step *= 2
    high = low + step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_there(middle) else (low, middle)
    return high


def _window(buffers: Iterator[Entries]) -> Window:
    found: list[StoredEntry] = []
    read_bytes, newest_ms = 0, 0
    for entries in buffers:
        found += map(StoredEntry, _texts(entries, entries.producer), _texts(entries, entries.uuid))
        read_bytes += int((entries.payload_end - entries.payload_at).sum()) + _METADATA_BYTES * len(entries)
        newest_ms = max(newest_ms, int(entries.publish_time_ms.max(initial=0)))
    return Window(found[::-1], read_bytes, newest_ms)


def _texts(entries: Entries, spans: Spans) -> list[str]:
    bounds = zip(spans.at.tolist(), spans.size.tolist(), strict=True)
    return [
        entries.data[at : at + size].tobytes().decode(errors="replace") if at >= 0 else ""
        for at, size in bounds
    ]


def _first_entry(
    access: Access, topic: str, entry: tuple[int, int], poll_timeout_s: float
) -> tuple[int, int] | None:
    stream = EntryStream(access, topic, MessageId(*entry, 0), permits=1)
    try:
        if stream.last.entry_id < 0 or stream.last.entry < entry:
            return None
        while not stream.buffer.frames:
            if not stream.receive(poll_timeout_s):
                raise PipelineError(
                    f"{topic}: no entry came within {poll_timeout_s:.0f} s (pollTimeoutMs) in the search for "
                    "what an earlier attempt has written"
                )
        entries = entries_of(topic, stream.buffer.take())
        return int(entries.ledger_id[0]), int(entries.entry_id[0])
    finally:
        stream.close()
