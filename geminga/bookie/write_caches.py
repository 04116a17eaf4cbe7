"""The two write caches: one fills while the other is flushed."""

from __future__ import annotations

from collections.abc import Sequence

from geminga.bookie.journal_files import JournalPosition
from geminga.bookie.records import Segment
from geminga.bookie.segment_map import SegmentMap


class WriteCaches:
    """Every durable entry that the index does not have yet. `bytes_max` is for both caches together."""

    def __init__(self, bytes_max: int, position: JournalPosition) -> None:
        self.active = SegmentMap()
        self.flushing: SegmentMap | None = None
        self.position = position
        """The journal's end as of the last entry added."""
        self.flushing_position = position
        """Once the flushing cache is in the index, the journal before this is not needed."""
        self._half_bytes = bytes_max // 2

    def add(self, segments: Sequence[Segment], position: JournalPosition) -> None:
        add = self.active.add
        for segment in segments:
            add(segment)
        self.position = position

    def is_full(self) -> bool:
        """The active cache should be flushed."""
        return self.active.bytes >= self._half_bytes

    def has_room(self, queued_bytes: int) -> bool:
        """Whether what is queued, and a little more, fits before the flush under way is done."""
        return self.flushing is None or self.active.bytes + queued_bytes < self._half_bytes

    def swap(self) -> SegmentMap:
        """Make the active cache the flushing one. Only when none is."""
        assert self.flushing is None
        self.flushing = self.active
        self.flushing_position = self.position
        self.active = SegmentMap()
        return self.flushing

    def flushed(self) -> None:
        """The index has everything of the flushing cache: let go of its memory."""
        self.flushing = None

    def find(self, ledger_id: int, entry_id: int) -> Segment | None:
        segment = self.active.find(ledger_id, entry_id)
        if segment is None and self.flushing is not None:
            segment = self.flushing.find(ledger_id, entry_id)
        return segment

    def last_entry_id(self, ledger_id: int) -> int:
        """-1 if neither cache has the ledger."""
        last = self.active.last_entry_id(ledger_id)
        if last < 0 and self.flushing is not None:
            last = self.flushing.last_entry_id(ledger_id)
        return last

    def ledgers(self) -> set[int]:
        found = set(self.active.ledgers())
        return found if self.flushing is None else found.union(self.flushing.ledgers())
