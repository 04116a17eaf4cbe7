"""The sealed buckets of an index: what they span, what of them has to be loaded, which are done."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Final

from geminga.limits import MIB
from geminga.tracker.format.stored_bucket import StoredBucket
from geminga.tracker.index.membership import Membership
from geminga.tracker.index.part import NO_CODE, Frozen
from geminga.tracker.index.sources import Bucket, Queue, Run

LOAD_AHEAD_MS: Final = 60_000
"""A segment is loaded so long before its first row is due."""
# Thousands of buckets may each have a segment that is due within a minute.
LOADED_BYTES_MAX: Final = 32 * MIB
"""Of segments that are loaded ahead; a bucket whose next row is due loads one segment all the same."""
LOADED_SEGMENTS_MAX: Final = 2
"""Loaded ahead, of one bucket."""
OVERDUE_SEGMENTS_MAX: Final = 16
OVERDUE_BYTES_MAX: Final = 4 * MIB
"""The same of what is due already, as long as all that is loaded is no more than this: then those with many
rows for each second do not come to their next ones by ones and twos.
"""
# Loaded one after the other; by the time that so many are there, others may be more urgent.
WANTED_MAX: Final = 64
# While buckets could not be written memory had no bound; beyond this the messages stay in the backlog.
FROZEN_ROWS_MAX: Final = 500_000
"""Rows that wait to be written, of 16 bytes each; with more the index is full. At least four buckets."""


class BucketMap:
    """Ranges of positions, of buckets and of what is being sealed. They overlap where positions came out of
    order; a range says where the rows of a bucket may be, and the membership whether they count.
    """

    def __init__(
        self, queue: Queue, members: Membership, indexes_min: int, poke: Callable[[], None] | None
    ) -> None:
        self._frozen_rows_max = max(FROZEN_ROWS_MAX, 4 * indexes_min)
        # Remembered, for a gap between full and not full: else it would change with each bucket that is
        # written.
        self._is_full = False
        self.awaits_writes = False
        """Whether it may be full: something is frozen, or was when that was asked last."""
        self._queue = queue
        self._members = members
        self._poke = poke
        self._buckets: dict[StoredBucket, Bucket] = {}
        self._frozen: dict[Frozen, int] = {}
        """How many rows each was cut off with."""
        self._done: list[StoredBucket] = []
        # A flag, as looking through 2,000 buckets after each segment held up the loop for 10 ms.
        self._ran_out = False
        """Whether some bucket may have no rows any more."""
        self._closed_before = 0
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._reserved: list[tuple[int, int]] = []

    def __bool__(self) -> bool:
        return bool(self._buckets)

    def items(self) -> list[tuple[StoredBucket, Bucket]]:
        # Sorted when asked: only operators and merges ask, and positions may come in any order.
        return sorted(self._buckets.items(), key=lambda pair: pair[0].first_code)

    def frozen(self) -> list[Frozen]:
        return list(self._frozen)

    def covers(self, first_code: int, last_code: int) -> bool:
        """Whether some range has one of these positions."""
        # A bisection: asked with each change of stream, of thousands of buckets.
        place = bisect_right(self._starts, last_code) - 1
        return place >= 0 and self._ends[place] >= first_code

    def is_reserved(self, code: int) -> bool:
        place = bisect_right(self._reserved, (code, NO_CODE)) - 1
        return place >= 0 and code <= self._reserved[place][1]

    def border_after(self, code: int) -> int:
        """The next position that is reserved and this one is not, or the other way round; `NO_CODE`: none."""
        place = bisect_right(self._reserved, (code, NO_CODE))
        if place and code <= self._reserved[place - 1][1]:
            return self._reserved[place - 1][1] + 1
        return self._reserved[place][0] if place < len(self._reserved) else NO_CODE

    def _ranges_changed(self) -> None:
        ranges = [(frozen.first_code, frozen.last_code) for frozen in self._frozen]
        ranges += [(stored.first_code, stored.last_code) for stored in self._buckets]
        ranges.sort()
        self._starts = [start for start, _ in ranges]
        # The furthest end so far, as ranges may overlap: a long one may reach beyond those that begin later.
        self._ends = list(accumulate((end for _, end in ranges), max))

    def reserve(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Buckets of these positions (first and last, as codes) are about to come: nothing of them is to be
        sealed until `unreserve`. No two overlap.
        """
        self._reserved = sorted([*self._reserved, *ranges])

    def unreserve(self, ranges: Sequence[tuple[int, int]]) -> None:
        for one in ranges:
            self._reserved.remove(one)

    def progressed(self) -> None:
        if self._poke is not None:
            self._poke()

    # -- in --------------------------------------------------------------------------------------------------

    def froze(self, frozen: Frozen) -> None:
        self._frozen[frozen] = frozen.count
        self.awaits_writes = True
        self._ranges_changed()

    def is_full(self) -> bool:
        """Whether too much waits to be written; from then on, until half of it is."""
        if self._frozen or self._is_full:
            rows_max = self._frozen_rows_max // 2 if self._is_full else self._frozen_rows_max
            self._is_full = sum(self._frozen.values()) > rows_max
        self.awaits_writes = bool(self._frozen) or self._is_full
        return self._is_full

    def thaw(self, frozen: Frozen) -> None:
        """None of its rows is wanted any more."""
        self._frozen.pop(frozen, None)
        for source in frozen.sources:
            self._queue.retire(source)
        self._ranges_changed()

    def sealed(self, frozen: Frozen, stored: StoredBucket, now_ms: int) -> None:
        """The bucket serves for the frozen rows; the segments that are due soon are taken from them."""
        self._frozen.pop(frozen, None)
        bucket = self._bucket(stored)
        # What would be loaded at once is in memory still: reading it back would be for nothing.
        segments = bisect_right(bucket.min_ms, now_ms + LOAD_AHEAD_MS)
        rows = frozen.rows.part(0, int(sum(bucket.counts[:segments])))
        # Copies: a part of the columns would keep all of the frozen rows in memory.
        bucket.hold(type(rows)(*(column.copy() for column in rows)), segments)
        for source in frozen.sources:
            self._queue.retire(source)
        self._serve(stored, bucket)

    def add(self, stored: StoredBucket) -> None:
        self._serve(stored, self._bucket(stored))

    def swap(self, old: Sequence[StoredBucket], new: StoredBucket) -> None:
        """What is at hand of the old ones goes on serving; of two rows for a position one is dead."""
        for stored in old:
            bucket = self._buckets.pop(stored, None)
            if bucket is not None:
                # Not retired: of rows that it has brought out already the new bucket's segments may not be
                # loaded yet.
                bucket.cut_short()
        self.add(new)

    def _bucket(self, stored: StoredBucket) -> Bucket:
        directory = stored.directory
        columns = directory.min_ms, directory.max_ms, directory.counts, directory.sizes_bytes
        decode = directory.decode_segment
        bucket = Bucket(stored.start_ledger, stored.end_ledger, columns, decode, stored.ledger_id)

        def progressed() -> None:
            # Noted here, as most segments that are done with are not the last of their bucket.
            self._ran_out = self._ran_out or not bucket.has_more()
            self.progressed()

        bucket.watch(progressed)
        return bucket

    def _serve(self, stored: StoredBucket, bucket: Bucket) -> None:
        self._buckets[stored] = bucket
        self._ran_out = True
        self._ranges_changed()
        if bucket.is_ready():
            self._queue.push(bucket)
        self.progressed()

    # -- loading ---------------------------------------------------------------------------------------------

    def wanted(self, now_ms: int) -> Sequence[tuple[StoredBucket, int]]:
        """Segments to be loaded now, the most urgent first."""
        loaded_bytes = sum(bucket.loaded_bytes for bucket in self._buckets.values())
        room_bytes = LOADED_BYTES_MAX - loaded_bytes
        # Overdue, as after a pause: with two segments of each bucket, the one with most rows for each second
        # would hold up all, as rows come out in the order of times.
        ahead_max = OVERDUE_SEGMENTS_MAX if loaded_bytes < OVERDUE_BYTES_MAX else 0
        found = [
            (int(bucket.min_ms[number]), stored, number)
            for stored, bucket in self._buckets.items()
            for number in self._to_load(bucket, now_ms, ahead_max)
        ]
        # By their times: after a pause the earliest rows stop all that come after them.
        found.sort(key=lambda item: item[0])
        chosen = []
        for _, stored, number in found[:WANTED_MAX]:
            bucket = self._buckets[stored]
            room_bytes -= int(bucket.sizes_bytes[number])
            # Never nothing for a bucket that stands still for want of its next segment, however little room
            # there is.
            if room_bytes >= 0 or (number == bucket.next_segment and not bucket.is_ready()):
                chosen.append((stored, number))
        return chosen

    def _to_load(self, bucket: Bucket, now_ms: int, overdue_max: int) -> range:
        """Numbers of segments: the next one, and those behind it that are due as well."""
        # Behind those that are loaded: segments are loaded in order, so that there are no gaps.
        first = bucket.next_segment + len(bucket.loaded)
        overdue_end = min(bucket.segments, bucket.next_segment + overdue_max)
        end = bisect_right(bucket.min_ms, now_ms, first, overdue_end) if first < overdue_end else first
        if end == first and self._next_to_load(bucket) is not None:
            end += bool(bucket.min_ms[first] <= now_ms + LOAD_AHEAD_MS)
        return range(first, end)

    def next_wanted_ms(self) -> int | None:
        """When the next segment comes within `LOAD_AHEAD_MS`. Those that wait for room are not counted."""
        numbers = ((bucket, self._next_to_load(bucket)) for bucket in self._buckets.values())
        times_ms = (int(bucket.min_ms[number]) for bucket, number in numbers if number is not None)
        earliest_ms = min(times_ms, default=None)
        return None if earliest_ms is None else earliest_ms - LOAD_AHEAD_MS

    @staticmethod
    def _next_to_load(bucket: Bucket) -> int | None:
        number = bucket.next_segment + len(bucket.loaded)
        if number >= bucket.segments or len(bucket.loaded) >= LOADED_SEGMENTS_MAX:
            return None
        return number

    def segment_loaded(self, stored: StoredBucket, number: int, entry: bytes, now_ms: int) -> None:
        """CorruptData: it is not what it should be, nothing has changed."""
        bucket = self._buckets.get(stored)
        # Merged or lost while its segment was read.
        if bucket is None:
            return
        # Its bytes were sound by their checksum and could not be decoded all the same: this time all of it is
        # looked at.
        if bucket.is_suspect:
            stored.directory.decode_segment(number, entry)
            bucket.trust()
        # Due already: decoded at once, which checks it too. Kept as bytes, it would be decoded a moment
        # later.
        if number == bucket.next_segment and not bucket.is_ready() and bucket.min_ms[number] <= now_ms:
            bucket.load_rows(stored.directory.decode_segment(number, entry))
        elif number == bucket.next_segment + len(bucket.loaded):
            # The head only; 5,000 rows are decoded when the first of them is due.
            stored.directory.check_segment(number, entry)
            bucket.load(number, entry)
        if bucket.is_ready():
            self._queue.push(bucket)

    # -- out -------------------------------------------------------------------------------------------------

    def drop(self, stored: StoredBucket) -> None:
        """It serves no more."""
        bucket = self._buckets.pop(stored, None)
        if bucket is not None:
            self._queue.retire(bucket)
            self._ranges_changed()

    def released(self) -> Sequence[StoredBucket]:
        """Buckets whose rows have all been taken or are dead; each is returned once. O(1) unless one has run
        out of rows, or a ledger of members, since the last call.
        """
        # A bucket is done when its rows are taken, or when none of its positions is a member:
        # acknowledgements and skips take no rows.
        if self._ran_out or self._closed_before != self._members.closed:
            self._ran_out, self._closed_before = False, self._members.closed
            self._drop_done()
        done, self._done = self._done, []
        return done

    def _drop_done(self) -> None:
        for stored, bucket in list(self._buckets.items()):
            # Pulsar 4.0 does not look for such buckets; later versions delete them (pull 25984).
            is_dead = not self._members.count_between(stored.first_code, stored.last_code)
            if is_dead or not bucket.has_more():
                self.drop(stored)
                self._done.append(stored)

    def clear(self) -> None:
        for frozen in self._frozen:
            for source in frozen.sources:
                self._queue.retire(source)
        self._frozen.clear()
        for stored in list(self._buckets):
            self.drop(stored)
            self._done.append(stored)
        self._ranges_changed()
        self.progressed()

    def memory_bytes(self) -> int:
        in_frozen = sum(
            source.memory_bytes()
            for f in self._frozen
            for source in f.sources
            if isinstance(source, Run | Bucket)
        )
        return in_frozen + sum(bucket.memory_bytes() for bucket in self._buckets.values())
