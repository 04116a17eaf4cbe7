"""Where rows come from when they are due: sorted runs in memory and sealed buckets; and how they are brought
out of many of them at once, in the order of (time, ledger, entry).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from geminga.errors import CorruptData
from geminga.tracker.format.rows import EMPTY, FAR_MS, Integers, Rows, concatenate, rows_up_to

# As much as the loop may stand still for: the rest is brought out with the next look.
GATHERED_ROWS_MAX: Final = 100_000
"""About how many rows are brought out at once: a few milliseconds of work."""
# Less would be many small columns to sort together, for the same number of rows.
SHARE_ROWS_MIN: Final = 512
PEEKED_SOURCES_MAX: Final = 64
"""At so many sources `peek` looks: the rest are due later, or nearly."""
# Taking one out of the middle of a heap is O(n); left there, it is dropped when its time comes.
STALE_MIN: Final = 64
"""So many sources from which nothing is taken any more may wait in the queue for their time."""
STORED_BYTES: Final = 2000
SEGMENT_BYTES: Final = 37
"""Weighed: what a bucket on the bookie takes while nothing of it is loaded, and more for each segment."""
CODE_MAX: Final = (1 << 63) - 1

Column = Sequence[int] | Integers

Bound = tuple[int, int]
"""(time, code): rows up to here."""


class Source(Protocol):
    """Rows in the order of (time, code), taken from the front."""

    is_stale: bool
    """Nothing may be taken from it any more."""
    is_queued: bool

    def head_ms(self) -> int:
        """The time of the first row. Only while there is one."""
        ...

    def prepare(self) -> bool:
        """Whether its first row is at hand."""
        ...

    def bound(self, rows: int, limit_ms: int) -> Bound | None:
        """The `rows`-th row from the front, if there are so many at hand or could be up to that time."""
        ...

    def rows_up_to(self, bound: Bound) -> int:
        """How many rows at hand are not beyond the bound."""
        ...

    def take(self, count: int) -> Rows:
        """Forget and return so many rows from the front, which must be at hand."""
        ...

    def has_more(self) -> bool:
        """Whether it has rows left, at hand or not."""
        ...

    def peek(self, count_max: int) -> Rows:
        """The first rows of those at hand, if they are sorted already."""
        ...

    def let_go(self) -> None:
        """Hold no rows any more."""
        ...


class Run:
    """Rows in memory. They may come unsorted and are sorted when the first of them is due."""

    __slots__ = ("_at", "_end", "_head_ms", "_rows", "_sorted", "is_queued", "is_stale")

    def __init__(self, rows: Rows, *, earliest_ms: int | None = None) -> None:
        """At least one row: sorted, or with the earliest of their times."""
        self._rows = rows
        self._at = 0
        self._end = len(rows.codes)
        self._sorted = earliest_ms is None
        # Kept as a number: the heap asks for it each time the source is pushed, and numpy takes longer to
        # answer.
        self._head_ms = rows.times_ms.item(0) if earliest_ms is None else earliest_ms
        self.is_stale = False
        self.is_queued = False

    def __len__(self) -> int:
        return self._end - self._at

    def rest(self) -> Rows:
        return self._rows.part(self._at, self._end)

    def head_ms(self) -> int:
        return self._head_ms

    def prepare(self) -> bool:
        if not self._sorted:
            # Not before something in it is due: what is cut off a growing part mostly goes to disk before.
            self._rows, self._sorted = self._rows.sorted(), True
        return self._at < self._end

    def bound(self, rows: int, limit_ms: int) -> Bound | None:
        at = self._at + rows - 1
        if at >= self._end:
            return None
        return self._rows.times_ms.item(at), self._rows.codes.item(at)

    def rows_up_to(self, bound: Bound) -> int:
        return rows_up_to(self.rest(), *bound)

    def take(self, count: int) -> Rows:
        taken = self._rows.part(self._at, self._at + count)
        self._at += count
        if self._at < self._end:
            self._head_ms = self._rows.times_ms.item(self._at)
            # Half of it is gone: a part of a column keeps the whole of it in memory.
            if 2 * self._at > self._end > SHARE_ROWS_MIN:
                self._rows = Rows(*(column[self._at :].copy() for column in self._rows))
                self._at, self._end = 0, self._end - self._at
        return taken

    def has_more(self) -> bool:
        return self._at < self._end

    def peek(self, count_max: int) -> Rows:
        # To sort what grows, only to look at it, would cost more than the look is worth.
        return self._rows.part(self._at, min(self._at + count_max, self._end)) if self._sorted else EMPTY

    def let_go(self) -> None:
        self._rows, self._at, self._end = EMPTY, 0, 0

    def memory_bytes(self) -> int:
        return self._rows.times_ms.nbytes + self._rows.codes.nbytes


class Bucket:
    """Pulsar's ImmutableBucket: sealed rows of the ledgers from `start_ledger` to `end_ledger`, cut into
    encoded segments.

    Only the columns that describe the segments are held, what has been loaded of them, and the rows of the
    one (sometimes more) that is being taken from. `ledger_id` names the bucket's own ledger; None: the
    bucket lives in memory alone, with all its segments loaded.
    """

    __slots__ = (
        "_decode",
        "_run",
        "counts",
        "end_ledger",
        "is_queued",
        "is_stale",
        "is_suspect",
        "ledger_id",
        "loaded",
        "loaded_bytes",
        "max_ms",
        "min_ms",
        "next_segment",
        "on_progress",
        "sizes_bytes",
        "start_ledger",
    )

    def __init__(
        self,
        start_ledger: int,
        end_ledger: int,
        segments: tuple[Column, Column, Column, Column],
        decode: Callable[[int, bytes], Rows],
        ledger_id: int | None,
    ) -> None:
        """`segments`: first and last time, rows and bytes of each. `decode` takes a segment's number and
        bytes that have been checked; CorruptData if they make no sense all the same.
        """
        self.start_ledger = start_ledger
        self.end_ledger = end_ledger
        self.min_ms, self.max_ms, self.counts, self.sizes_bytes = segments
        self._decode = decode
        self.ledger_id = ledger_id
        self.loaded: dict[int, bytes] = {}
        self.loaded_bytes = 0
        # Decoded segments are counted, not loaded ones: a load that is lost by damage is asked for again.
        self.next_segment = 0
        """The first one whose rows have not been brought out of their bytes."""
        self._run: Run | None = None
        self.is_suspect = False
        """The next segment could not be decoded: the next load of it finds out whether it is damaged."""
        self.on_progress: Callable[[], None] | None = None
        """Called when a segment's bytes are not needed any more, or a row of the next would be."""
        self.is_stale = False
        self.is_queued = False

    @property
    def segments(self) -> int:
        return len(self.counts)

    @property
    def rows_at_hand(self) -> int:
        return 0 if self._run is None else len(self._run)

    def head_ms(self) -> int:
        if self._run is not None and self._run.has_more():
            return self._run.head_ms()
        return int(self.min_ms[self.next_segment])

    def has_more(self) -> bool:
        return self.next_segment < self.segments or self.rows_at_hand > 0

    def watch(self, on_progress: Callable[[], None]) -> None:
        """Have this called whenever some of its rows or segments are done with."""
        self.on_progress = on_progress

    def trust(self) -> None:
        """A segment was as it should be."""
        self.is_suspect = False

    def is_ready(self) -> bool:
        """Whether its first row is at hand, or its bytes."""
        return self.rows_at_hand > 0 or self.next_segment in self.loaded

    def load(self, number: int, encoded: bytes) -> None:
        """Bytes of a segment from `next_segment` on, which have been checked."""
        if number >= self.next_segment and number not in self.loaded:
            self.loaded[number] = encoded
            self.loaded_bytes += len(encoded)

    def hold(self, rows: Rows, segments: int) -> None:
        """Rows that are at hand already: all of the first `segments` segments."""
        assert self._run is None
        assert self.next_segment == 0
        # As if they had been loaded and decoded: these rows were in memory when they were sealed.
        self.next_segment = segments
        if rows.length:
            self._run = Run(rows)

    def load_rows(self, rows: Rows) -> None:
        """The next segment, decoded. Only while nothing is at hand."""
        assert self.rows_at_hand == 0
        self._run = Run(rows)
        self.next_segment += 1

    def cut_short(self) -> None:
        """Serve what is at hand and nothing more: another bucket has the rest."""
        self.next_segment = self.segments
        self.loaded.clear()
        self.loaded_bytes = 0
        # A bucket that is replaced has nothing to report any more.
        self.on_progress = None

    def let_go(self) -> None:
        self.cut_short()
        self._run = None

    def prepare(self) -> bool:
        if self._fill(1, FAR_MS):
            return True
        self._progressed()
        return False

    def _progressed(self) -> None:
        if self.on_progress is not None:
            self.on_progress()

    def _fill(self, rows: int, limit_ms: int) -> bool:
        """Whether that many rows are at hand, after the next segments have been decoded as far as needed; but
        none that begins later than the limit: decoded, a row takes 16 bytes.
        """
        have = self.rows_at_hand
        parts = []
        while have < rows and self.next_segment in self.loaded:
            # As many segments as were asked for would be 16 bytes a row in memory for what may be due in an
            # hour.
            if self.min_ms[self.next_segment] > limit_ms:
                break
            # Taken out: a segment that was loaded ahead was decoded twice before.
            encoded = self.loaded.pop(self.next_segment)
            self.loaded_bytes -= len(encoded)
            try:
                part = self._decode(self.next_segment, encoded)
            # Not raised here: this is a dispatcher's call, and which bucket is damaged is the loader's
            # business.
            except CorruptData:
                self.is_suspect = True
                # All of them: the next load finds out whether it was these bytes or the disk's.
                self.loaded.clear()
                self.loaded_bytes = 0
                break
            parts.append(part)
            have += part.length
            self.next_segment += 1
        if parts:
            self._progressed()
            # Rows of one segment are before those of the next, so joining needs no sort.
            before = [self._run.rest()] if self._run is not None and self._run.has_more() else []
            self._run = Run(concatenate(before + parts))
        return have >= rows

    def bound(self, rows: int, limit_ms: int) -> Bound | None:
        has_rows = self._fill(rows, limit_ms)
        return self._run.bound(rows, limit_ms) if has_rows and self._run is not None else None

    def rows_up_to(self, bound: Bound) -> int:
        return 0 if self._run is None else self._run.rows_up_to(bound)

    def take(self, count: int) -> Rows:
        if self._run is None:
            return EMPTY
        taken = self._run.take(count)
        if not self._run.has_more():
            self._run = None
            self._progressed()
        return taken

    def peek(self, count_max: int) -> Rows:
        return EMPTY if self._run is None else self._run.peek(count_max)

    def rows_brought_out(self) -> list[Rows]:
        """Those at hand that are decoded."""
        return [] if self._run is None else [self._run.rest()]

    def rows_of(self, number: int) -> Rows:
        """Of a segment whose bytes are in memory, for looking. CorruptData."""
        return self._decode(number, self.loaded[number])

    def rows_in_memory(self) -> Iterator[Rows]:
        """All rows that are not taken and can be had without a load. Decodes them one segment after the
        other: for looking, not for serving.
        """
        yield from self.rows_brought_out()
        for number, encoded in sorted(self.loaded.items()):
            yield self._decode(number, encoded)

    def memory_bytes(self) -> int:
        # Weighed once and not asked of each object: statistics of 2,000 buckets come with each scrape.
        described = STORED_BYTES + SEGMENT_BYTES * self.segments if self.ledger_id is not None else 400
        run_bytes = 0 if self._run is None else self._run.memory_bytes()
        return described + self.loaded_bytes + 60 * len(self.loaded) + run_bytes


class Queue:
    """Pulsar's SharedBucketPriorityQueue: sources by the time of their first row. It holds one entry for each
    source, and brings out a block of rows at a time, where Pulsar's holds an entry for each message.
    """

    __slots__ = ("_active_before", "_heap", "_pushed", "_stale")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Source]] = []
        self._pushed = 0
        self._stale = 0
        """How many in the heap, about."""
        self._active_before = 4

    def push(self, source: Source) -> None:
        if not source.is_queued:
            source.is_queued = True
            self._pushed += 1
            # With a number in the middle: sources themselves cannot be compared.
            heappush(self._heap, (source.head_ms(), self._pushed, source))

    def retire(self, source: Source) -> None:
        """Take nothing from it any more; it lets go of its rows."""
        source.is_stale = True
        source.let_go()
        self._stale += source.is_queued
        # Only when most of it is stale: a heap that is made again for each source costs O(n) each time.
        if self._stale > STALE_MIN and 2 * self._stale > len(self._heap):
            self._heap = [entry for entry in self._heap if not entry[2].is_stale]
            heapify(self._heap)
            self._stale = 0

    def head_ms(self) -> int | None:
        """The earliest time of all sources that are at hand."""
        heap = self._heap
        while heap and heap[0][2].is_stale:
            heappop(heap)
        return heap[0][0] if heap else None

    def clear(self) -> None:
        self._heap.clear()
        self._stale = 0

    def peek(self, count_max: int) -> Rows:
        """About the first rows of all that are at hand and sorted, which stay where they are."""
        # So many from the front of a heap have about that many of its first ones.
        front = self._heap[: min(2 * count_max + 1, PEEKED_SOURCES_MAX)]
        heads = (source for _, _, source in front if not source.is_stale)
        rows = concatenate([part for source in heads if (part := source.peek(count_max)).length])
        return rows.sorted().part(0, count_max)

    def gather(self, limit_ms: int) -> list[Rows]:
        """Bring out rows that are due at `limit_ms`: at most about `GATHERED_ROWS_MAX`, and of all sources
        those up to one place in the order, so that what comes later sorts after them.

        Empty: nothing is due. A source whose next rows are not at hand leaves the queue, and holds back no
        other.
        """
        active: list[Source] = []
        bound = self._activate(active, (limit_ms, CODE_MAX))
        # Up to one row for all sources: rows that come out later then sort behind these, and batches need no
        # merging.
        counts = [source.rows_up_to(bound) for source in active]
        if 0 < 2 * sum(counts) < GATHERED_ROWS_MAX and bound[0] < limit_ms and len(active) > 1:
            # Equal shares are few rows where some sources have many more for each millisecond than others.
            # Once, by what each has: an exact bound would take a search over all sources.
            bound = self._widen(active, counts, (limit_ms, CODE_MAX))
            counts = [source.rows_up_to(bound) for source in active]
        self._active_before = max(len(active), 1)
        parts = []
        for source, count in zip(active, counts, strict=True):
            if count:
                parts.append(source.take(count))
            if source.has_more():
                self.push(source)
        return parts

    def _activate(self, active: list[Source], bound: Bound) -> Bound:
        """Have those sources join that have rows up to the bound, which becomes narrower with each."""
        heap = self._heap
        while heap and heap[0][0] <= bound[0]:
            source = heappop(heap)[2]
            source.is_queued = False
            # Out of the queue while its segment is not loaded: in Pulsar nothing is returned of any bucket as
            # long as one load is under way.
            if source.is_stale or not source.prepare():
                continue
            active.append(source)
            # By how many there were the last time: how many join is known only at the end.
            share = GATHERED_ROWS_MAX // max(self._active_before, len(active))
            own = source.bound(max(share, SHARE_ROWS_MIN), bound[0])
            if own is not None and own < bound:
                bound = own
        return bound

    def _widen(self, active: list[Source], counts: list[int], bound: Bound) -> Bound:
        """A bound up to which the active sources have about as many rows together as may be brought out."""
        times = GATHERED_ROWS_MAX / sum(counts)
        for source, count in zip(active, counts, strict=True):
            own = source.bound(max(int(times * count), SHARE_ROWS_MIN), bound[0])
            if own is not None and own < bound:
                bound = own
        return self._activate(active, bound)
