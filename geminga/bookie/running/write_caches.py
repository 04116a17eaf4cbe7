"""The two write caches of a ledger directory: one fills while the other is flushed."""

from __future__ import annotations

from collections.abc import Sequence

from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.records import Segment
from geminga.bookie.records.segment_map import SegmentMap


class WriteCaches:
    """Every durable entry of one ledger directory that its index does not have yet. `bytes_max` is the limit
    of both caches together. The segments of one journal group share its buffer, which lives as long as one
    of them does. So a cache is charged with whole buffers: `*_bytes` are the memory that it keeps from other
    uses.
    """

    def __init__(self, bytes_max: int, positions: list[JournalPosition]) -> None:
        """`positions` has, for each journal, the end of the last group that was added to the caches. The
        bookie advances it, for all directories together.
        """
        self.active = SegmentMap()
        self.flushing: SegmentMap | None = None
        self.positions = positions
        # A copy, taken at the swap: groups that come during the flush are in the active cache and move
        # `positions` on.
        self.flushing_positions = tuple(positions)
        """Once the flushing cache is in the index, this directory does not need the journals before these
        positions.
        """
        self._half_bytes = bytes_max // 2
        self._foreign_bytes = self._flushing_foreign_bytes = 0
        """Bytes of the buffers that belong to none of the segments."""

    @property
    def active_bytes(self) -> int:
        return self.active.bytes + self._foreign_bytes

    @property
    def flushing_bytes(self) -> int:
        return 0 if self.flushing is None else self.flushing.bytes + self._flushing_foreign_bytes

    def add(self, segments: Sequence[Segment]) -> None:
        """Add all entries of one group for this directory. The caller advances the positions without an
        await in between.
        """
        add = self.active.add
        record_bytes = 0
        for segment in segments:
            add(segment)
            record_bytes += segment.ends[-1]
        if segments:
            # Headers and other ledgers' deleted entries are alive with the buffer; uncounted they would break
            # the budget.
            self._foreign_bytes += len(segments[0].buffer) - record_bytes

    def add_part(self, segments: Sequence[Segment]) -> None:
        """As `add`, for a group that also has entries for other directories: a small part of its buffer is
        copied out.
        """
        # With seven eighths of the buffer or more in use, keeping it whole wastes an eighth at most and saves
        # the copy.
        if sum(segment.ends[-1] for segment in segments) * 8 >= len(segments[0].buffer) * 7:
            self.add(segments)
        else:
            for segment in segments:
                self.active.add(segment.detached())

    def discard(self, ledger_id: int) -> None:
        """Remove a ledger from the active cache. Its memory is freed when the caches have nothing else of
        its groups, at the latest after the next flush.
        """
        before = self.active.bytes
        self.active.discard(ledger_id)
        self._foreign_bytes += before - self.active.bytes
        if not self.active.entries:
            self._foreign_bytes = 0

    def is_full(self) -> bool:
        """Whether the active cache should be flushed."""
        return self.active.bytes + self._foreign_bytes >= self._half_bytes

    def is_over(self) -> bool:
        """Whether the active cache is larger than both caches may be: a full disk keeps it from being
        flushed.
        """
        return self.active_bytes >= 2 * self._half_bytes

    def has_room(self, queued_bytes: int) -> bool:
        """Whether the queued entries, and a little more, fit before the current flush is done."""
        # What is queued counts too: it will be durable and has to go into this cache whether or not it fits.
        return self.flushing is None or self.active_bytes + queued_bytes < self._half_bytes

    def swap(self) -> SegmentMap:
        """Make the active cache the flushing one. Only while no cache is being flushed."""
        assert self.flushing is None
        self.flushing = self.active
        self.flushing_positions = tuple(self.positions)
        self.active = SegmentMap()
        self._flushing_foreign_bytes, self._foreign_bytes = self._foreign_bytes, 0
        return self.flushing

    def flushed(self) -> None:
        """The index has all entries of the flushing cache: free its memory."""
        self.flushing = None
        self._flushing_foreign_bytes = 0

    def find(self, ledger_id: int, entry_id: int) -> Segment | None:
        segment = self.active.find(ledger_id, entry_id)
        if segment is None and self.flushing is not None:
            segment = self.flushing.find(ledger_id, entry_id)
        return segment

    def last_entry_id(self, ledger_id: int) -> int:
        """The last entry id of the ledger; -1 if neither cache has the ledger."""
        last = self.active.last_entry_id(ledger_id)
        if last < 0 and self.flushing is not None:
            last = self.flushing.last_entry_id(ledger_id)
        return last

    def segments_of(self, ledger_id: int) -> list[Segment]:
        caches = (self.active,) if self.flushing is None else (self.flushing, self.active)
        return [segment for cache in caches for segment in cache.segments_of(ledger_id)]

    def ledgers(self) -> set[int]:
        found = set(self.active.ledgers())
        return found if self.flushing is None else found.union(self.flushing.ledgers())
