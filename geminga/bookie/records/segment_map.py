"""Entries in memory, found by (ledger, entry). Both write caches and the read cache consist of this map."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, KeysView, Sequence

from geminga.bookie.records.records import Segment

SEGMENT_OVERHEAD_BYTES = 320
"""The memory of a segment beside its records: the objects of the segment, its ends and its buffer, and its
items in the lists. Measured with segments of one entry. Longer segments cost four bytes more for each entry,
or nothing more if all records are equally long.
"""


def segment_bytes(segment: Segment) -> int:
    """The memory with which a segment is charged."""
    ends = segment.ends
    return ends[-1] + SEGMENT_OVERHEAD_BYTES + (0 if isinstance(ends, range) else 4 * len(ends))


class SegmentMap:
    """Segments of many ledgers; those of one ledger do not overlap. Lookup is O(log n)."""

    __slots__ = ("_firsts", "_segments", "bytes", "entries")

    def __init__(self) -> None:
        # Parallel lists: `bisect` on a list of integers runs in C, with a key function it would not.
        self._firsts: dict[int, list[int]] = {}
        self._segments: dict[int, list[Segment]] = {}
        self.bytes = 0
        self.entries = 0

    def add(self, segment: Segment) -> None:
        """Add a segment; the map must not have any entry of its range."""
        ledger_id = segment.ledger_id
        firsts = self._firsts.get(ledger_id)
        if firsts is None:
            self._firsts[ledger_id] = [segment.first]
            self._segments[ledger_id] = [segment]
        # Nearly always: a ledger's entries become durable in order. Only reads, healing and recovery insert.
        elif segment.first > firsts[-1]:
            firsts.append(segment.first)
            self._segments[ledger_id].append(segment)
        else:
            at = bisect_left(firsts, segment.first)
            firsts.insert(at, segment.first)
            self._segments[ledger_id].insert(at, segment)
        self.bytes += segment_bytes(segment)
        self.entries += len(segment.ends)

    def find(self, ledger_id: int, entry_id: int) -> Segment | None:
        """The segment that holds the entry."""
        firsts = self._firsts.get(ledger_id)
        if firsts is None:
            return None
        # The last segment that begins at or before the entry; segments of a ledger do not overlap, so no
        # other can hold it.
        at = bisect_right(firsts, entry_id) - 1
        if at < 0:
            return None
        segment = self._segments[ledger_id][at]
        # A segment may end before the entry: the read cache has only what was read, and replay leaves out
        # entries that were damaged in the journal.
        return segment if entry_id - segment.first < len(segment.ends) else None

    def first_after(self, ledger_id: int, entry_id: int) -> int | None:
        """The least entry id above `entry_id` at which a segment begins."""
        firsts = self._firsts.get(ledger_id)
        if firsts is None:
            return None
        at = bisect_right(firsts, entry_id)
        return firsts[at] if at < len(firsts) else None

    def remove(self, segment: Segment) -> None:
        firsts = self._firsts[segment.ledger_id]
        at = bisect_left(firsts, segment.first)
        segments = self._segments[segment.ledger_id]
        # Identity: the memory that is given back is that of this very segment.
        assert segments[at] is segment
        # An empty ledger's lists would stay for ever: a broker opens a ledger for each topic at each start.
        if len(firsts) == 1:
            del self._firsts[segment.ledger_id], self._segments[segment.ledger_id]
        else:
            del firsts[at], segments[at]
        self.bytes -= segment_bytes(segment)
        self.entries -= len(segment.ends)

    def discard(self, ledger_id: int) -> None:
        """Remove all segments of a ledger."""
        for segment in self._segments.pop(ledger_id, ()):
            self.bytes -= segment_bytes(segment)
            self.entries -= len(segment.ends)
        self._firsts.pop(ledger_id, None)

    def last_entry_id(self, ledger_id: int) -> int:
        segments = self._segments.get(ledger_id)
        # The last segment ends last, since they do not overlap.
        return segments[-1].last if segments else -1

    def segments_of(self, ledger_id: int) -> Sequence[Segment]:
        return self._segments.get(ledger_id, ())

    def sorted_segments(self) -> Iterator[tuple[int, list[Segment]]]:
        """Every ledger with its segments, both in ascending order."""
        # This is the order of the entry log: a flush writes each ledger in one stretch, so that reading ahead
        # finds its next entries.
        for ledger_id in sorted(self._segments):
            yield ledger_id, self._segments[ledger_id]

    def ledgers(self) -> KeysView[int]:
        return self._segments.keys()

    def __contains__(self, ledger_id: int) -> bool:
        return ledger_id in self._segments
