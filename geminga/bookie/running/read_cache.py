"""Checked segments that reads of entry logs have loaded. The least recently used are evicted first."""

from __future__ import annotations

from collections import OrderedDict

from geminga.bookie.records.records import Segment
from geminga.bookie.records.segment_map import SegmentMap


class ReadCache:
    """Takes at most `bytes_max` of memory, except that one segment always fits."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._map = SegmentMap()
        self._used: OrderedDict[Segment, None] = OrderedDict()

    @property
    def bytes(self) -> int:
        return self._map.bytes

    def add(self, segment: Segment) -> None:
        """Add the new parts of a segment. Two readers may have loaded overlapping segments."""
        first = segment.first
        while first <= segment.last:
            known = self._map.find(segment.ledger_id, first)
            if known is not None:
                first = known.last + 1
                continue
            following = self._map.first_after(segment.ledger_id, first)
            last = segment.last if following is None else min(segment.last, following - 1)
            # Overlapping pieces would be counted twice, and a lookup could find a short one before the long
            # one.
            piece = segment.part(first, last).detached()
            self._map.add(piece)
            self._used[piece] = None
            first = last + 1
        # One always stays: an entry larger than the cache would otherwise be read from disk by each
        # subscription.
        while self._map.bytes > self._bytes_max and len(self._used) > 1:
            self._map.remove(self._used.popitem(last=False)[0])

    def find(self, ledger_id: int, entry_id: int) -> Segment | None:
        segment = self._map.find(ledger_id, entry_id)
        if segment is not None:
            self._used.move_to_end(segment)
        return segment

    def clear(self) -> None:
        """Forget all of it."""
        self._map = SegmentMap()
        self._used.clear()

    def discard(self, ledger_id: int) -> None:
        if ledger_id in self._map:
            self._map.discard(ledger_id)
            self._used = OrderedDict((s, None) for s in self._used if s.ledger_id != ledger_id)
