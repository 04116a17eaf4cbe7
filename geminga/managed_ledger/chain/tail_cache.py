"""Recent entries of all topics, in memory, so that consumers at the tail never use the bookie.

The bodies are the appended objects themselves, without copies. Entries of a run are invisible until
`TailCache.confirm` reports them as durable. The cache evicts entries in strides: when all active cursors
have read them, when they are old, or, the oldest of the process first, when there are too many.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from itertools import accumulate
from typing import Final

import msgspec
import trio

from geminga.limits import KIB, MIB
from geminga.managed_ledger.chain.append_room import AppendRoom
from geminga.managed_ledger.chain.entry import Entry, Parsed, entries_from

# Without it a topic of ten-byte messages would hold forty times the memory that the budget grants.
ENTRY_OVERHEAD_BYTES: Final = 400
"""What a cached entry costs beside its body: slot, running size, `Entry`, position, parsed metadata."""
# Eviction entry by entry would need a record for each; strides make its cost vanish beside the append's.
STRIDE_BYTES: Final = 64 * KIB
"""Entries are evicted in strides of about this size (or one entry, if that is larger)."""
TURNS_OF_AGE: Final = 4
"""How often the cache checks for evictable strides while an entry ages."""
LOOK_SHARE: Final = 8
"""Below this share of the cache's memory (one eighth) entries leave by their age only."""

_BODIES = {bytes}
_ENTRIES = {Entry}


class TailRun:
    """The newest entries of one ledger, contiguous. Adding one is `slots.append`, the cheapest operation
    there is.
    """

    __slots__ = (
        "_before_bytes",
        "base",
        "closed",
        "first_needed",
        "head",
        "ledger_id",
        "slots",
        "strides",
        "sums",
    )

    def __init__(self, ledger_id: int, first_entry_id: int, first_needed: Callable[[int], int]) -> None:
        self.ledger_id = ledger_id
        self.first_needed = first_needed
        """Called with the ledger's id; returns the first entry that an active cursor has to read."""
        self.base = first_entry_id
        """Entry id of slot 0."""
        # Removing slots from the front at each eviction would move all that follow; half at once costs O(1)
        # each.
        self.head = 0
        """Slots below this one have been evicted; they are removed when they are half of all."""
        self.slots: list[bytes | Parsed | Entry | None] = []
        """Bodies, or their parsed metadata from publishing; the first reader turns them into entries."""
        self.sums: list[int] = []
        """Running sum of bytes (with overhead) of the visible slots: one number per confirmed entry."""
        self.closed = False
        """Whether no more entries come."""
        self.strides = 0
        """How many of the cache's strides are this run's."""
        self._before_bytes = 0

    @property
    def is_empty(self) -> bool:
        return self.head == len(self.sums)

    def confirm(self, last_entry_id: int) -> int:
        """Make entries up to this one visible; returns the bytes that became visible."""
        slots = self.slots
        sums = self.sums
        visible = len(sums)
        confirmed = min(last_entry_id + 1 - self.base, len(slots))
        # The cache may have been switched on in the middle of a ledger, behind entries that are confirmed
        # only now.
        if confirmed <= visible:
            return 0
        seen = sums[-1] if sums else self._before_bytes
        # Running sums, so that a read finds by bisection how far its bytes go, and an eviction knows what it
        # frees.
        overhead = ENTRY_OVERHEAD_BYTES
        shown = slots if confirmed - visible == len(slots) else slots[visible:confirmed]
        try:
            sizes = list(map(len, shown))  # type: ignore[arg-type]
        except TypeError:  # not only bodies
            sizes = [len(slot if type(slot) is bytes else slot.body) for slot in shown]  # type: ignore[union-attr]
        each = overhead + sizes[0]
        # Entries of one size are usual, and this is done for each entry that is published.
        if sizes.count(sizes[0]) == len(sizes):
            sums.extend(range(seen + each, seen + each * len(sizes) + 1, each))
        else:
            sums.extend(accumulate(map(overhead.__add__, sizes), initial=seen))
            del sums[visible]  # `accumulate` begins with the initial value itself
        return sums[-1] - seen

    def read(self, first: int, stop: int, bytes_max: int) -> list[Entry]:
        """Entries from `first` up to before `stop`: as many as are here, visible, and within the bytes.

        At least one if `first` itself is here; [] if it is not.
        """
        sums = self.sums
        i = first - self.base
        if i < self.head or i >= len(sums):
            return []
        j = min(stop - self.base, len(sums))
        limit = (sums[i - 1] if i else self._before_bytes) + bytes_max
        if sums[j - 1] > limit:
            j = max(i + 1, bisect_right(sums, limit, i, j))
        # Bodies become entries with the first reader and stay so: every further subscription gets the same
        # objects.
        chunk = self.slots[i:j]
        kinds = set(map(type, chunk))
        if kinds == _BODIES:
            self.slots[i:j] = chunk = entries_from(self.ledger_id, first, chunk)  # type: ignore[arg-type,assignment]
        elif kinds != _ENTRIES:
            bodies = [slot if type(slot) is bytes else slot.body for slot in chunk]  # type: ignore[union-attr]
            parsed = [None if type(slot) is bytes else slot for slot in chunk]
            fresh = entries_from(self.ledger_id, first, bodies, parsed)  # type: ignore[arg-type]
            self.slots[i:j] = chunk = [
                slot if type(slot) is Entry else entry for slot, entry in zip(chunk, fresh, strict=True)
            ]
        return chunk  # type: ignore[return-value]

    def bytes_of(self, first: int, count: int) -> int:
        """The total length of the bodies of this many visible entries from `first` on."""
        i = first - self.base
        seen = self.sums[i - 1] if i else self._before_bytes
        return self.sums[i + count - 1] - seen - count * ENTRY_OVERHEAD_BYTES

    def evict_before(self, entry_id: int) -> int:
        """Evict entries below this one; returns the bytes freed."""
        end = min(entry_id - self.base, len(self.sums))
        head = self.head
        if end <= head:
            return 0
        freed = self.sums[end - 1] - (self.sums[head - 1] if head else self._before_bytes)
        # The bodies go at once, even though the slots stay: memory is what eviction is for.
        self.slots[head:end] = [None] * (end - head)
        self.head = end
        if end * 2 >= len(self.slots):
            self._before_bytes = self.sums[end - 1]
            del self.slots[:end], self.sums[:end]
            self.base += end
            self.head = 0
        return freed


def _all_needed(ledger_id: int) -> int:
    return 0


class _Stride:
    """A part of one run that is evicted as a whole."""

    __slots__ = ("begun", "run", "size_bytes", "stop")

    def __init__(self, run: TailRun, stop: int, size_bytes: int, begun: int) -> None:
        self.begun = begun
        """The turn of the cache in which the stride began."""
        self.run = run
        self.stop = stop
        """The entry id after the stride."""
        self.size_bytes = size_bytes


class TailCache:
    """One per process, shared by all managed ledgers; holds at most about `bytes_max` of visible entries."""

    def __init__(
        self, bytes_max: int = 32 * MIB, *, age_max_ms: int = 1000, backlogged_entries: int = 1000
    ) -> None:
        """Entries older than `age_max_ms` are evicted, give or take a turn. A cursor with more than
        `backlogged_entries` unread entries is not active: the cache keeps nothing for it.
        """
        self.bytes_max = bytes_max
        self.age_max_ms = age_max_ms
        self.backlogged_entries = backlogged_entries
        self._entries_served = self._bytes_served = 0
        """Entries that were read from this cache."""
        self._entries_missed = self._bytes_missed = 0
        """Entries that were read from the bookie, including its caches."""
        self._entries_inserted = self._entries_evicted = self._evictions = 0
        self._turn = 0
        self.append_room = AppendRoom()
        """The memory of entries that wait for a ledger, which all managed ledgers also share."""
        self._bytes = 0
        self._runs: dict[int, TailRun] = {}
        self._strides: deque[_Stride] = deque()
        self._filled = trio.Event()
        """Set when there is a first stride."""
        self._strides_dead = 0
        """Strides of runs that were discarded; swept when they are most of all."""

    async def run_forever(self) -> None:
        """Evict what is old or read by all, until cancelled."""
        while True:
            if not self._strides:  # an idle broker need not wake up four times a second
                self._filled = trio.Event()
                await self._filled.wait()
            await trio.sleep(self.age_max_ms / TURNS_OF_AGE / 1000)
            self.turn()

    def turn(self) -> None:
        """Evict strides that are `TURNS_OF_AGE` turns old. Unless the cache is nearly empty, also evict
        earlier strides that no active cursor has to read. Entries that were read in this turn may be read
        again, if the consumer had no permits.
        """
        strides, turn = self._strides, self._turn
        # By turns of a quarter of the age, so that nothing reads a clock for each entry.
        while strides and strides[0].begun <= turn - TURNS_OF_AGE:
            self._evict(strides.popleft())
        # Memory must be worth the look: over a thousand topics that get a message a second each, the looks
        # were a tenth of what a message cost.
        if self._bytes < self.bytes_max // LOOK_SHARE:
            self._turn = turn + 1
            return
        needed: dict[TailRun, int] = {}
        for stride in strides:
            if stride.begun == turn:
                break
            run = stride.run
            if run not in needed:
                needed[run] = run.first_needed(run.ledger_id)
            if self._runs.get(run.ledger_id) is run:
                self._let_go(run, min(stride.stop, needed[run]))
        self._turn = turn + 1

    def open_run(
        self, ledger_id: int, first_entry_id: int, first_needed: Callable[[int], int] = _all_needed
    ) -> TailRun:
        """Begin to keep a ledger's entries, from this one on. The appender must add every later one.
        `first_needed(ledger_id)` returns the first entry that an active cursor still has to read.
        """
        # A run holds consecutive entries only: one that is left of the same ledger would lack those in
        # between.
        self.discard(ledger_id)
        run = self._runs[ledger_id] = TailRun(ledger_id, first_entry_id, first_needed)
        return run

    def read(self, ledger_id: int, first: int, stop: int, bytes_max: int) -> list[Entry]:
        """Entries of a ledger from `first` up to before `stop`: as many as are here, confirmed, and within
        the bytes. At least one if `first` itself is here, however large; [] if it is not.
        """
        # One call for look-up, read and counts: every read of a consumer at the tail comes through here.
        run = self._runs.get(ledger_id)
        if run is None:
            return []
        entries = run.read(first, stop, bytes_max)
        if entries:
            self._entries_served += len(entries)
            self._bytes_served += run.bytes_of(first, len(entries))
        return entries

    def missed(self, entries: int, size_bytes: int) -> None:
        """Count entries of managed ledgers, and their bytes, that had to be read from the bookie instead."""
        self._entries_missed += entries
        self._bytes_missed += size_bytes

    def close_run(self, ledger_id: int) -> None:
        """No more entries will be added to this ledger; its entries stay until they are evicted."""
        run = self._runs.get(ledger_id)
        if run is not None:
            run.closed = True
            # Nothing is left in an empty run to be evicted, so no eviction would forget it later.
            if run.is_empty:
                self._forget(run)

    def confirm(self, run: TailRun, last_entry_id: int) -> None:
        """Entries of `run` up to `last_entry_id` are durable: show them, and keep within the bound."""
        visible = len(run.sums)
        added = run.confirm(last_entry_id)
        if not added or self._runs.get(run.ledger_id) is not run:
            return
        self._bytes += added
        self._entries_inserted += len(run.sums) - visible
        strides = self._strides
        newest = strides[-1] if strides else None
        if (
            # One stride for a burst: neighbours in the same run and turn are evicted together.
            newest is not None
            and newest.run is run
            and newest.size_bytes + added <= STRIDE_BYTES
            and newest.begun == self._turn
        ):
            newest.stop = last_entry_id + 1
            newest.size_bytes += added
        else:
            if newest is None:
                self._filled.set()
            strides.append(_Stride(run, last_entry_id + 1, added, self._turn))
            run.strides += 1
        # The oldest of all topics first, whatever its topic: one busy topic must not keep what was read
        # long ago while another one's consumers go to the disk.
        while self._bytes > self.bytes_max:
            self._evictions += 1
            self._evict(strides.popleft())

    def _evict(self, stride: _Stride) -> None:
        run = stride.run
        if self._runs.get(run.ledger_id) is not run:
            self._strides_dead -= 1
            assert self._strides_dead >= 0
            return
        run.strides -= 1
        self._let_go(run, stride.stop)

    def _let_go(self, run: TailRun, stop: int) -> None:
        self._take_out(run, stop)
        if run.closed and run.is_empty:
            self._forget(run)

    def _take_out(self, run: TailRun, stop: int) -> None:
        first = run.base + run.head
        self._bytes -= run.evict_before(stop)
        self._entries_evicted += run.base + run.head - first

    def _forget(self, run: TailRun) -> None:
        del self._runs[run.ledger_id]
        self._strides_dead += run.strides

    def discard(self, ledger_id: int) -> None:
        """Forget a ledger's entries."""
        run = self._runs.pop(ledger_id, None)
        if run is None:
            return
        self._take_out(run, run.base + len(run.sums))
        run.slots.clear()
        self._strides_dead += run.strides
        # Closing thousands of topics would otherwise leave a queue of strides without runs, each sweep
        # O(all).
        if self._strides_dead * 2 > len(self._strides):
            runs = self._runs
            self._strides = deque(s for s in self._strides if runs.get(s.run.ledger_id) is s.run)
            self._strides_dead = 0

    def statistics(self) -> TailCacheStatistics:
        return TailCacheStatistics(
            entries_served=self._entries_served,
            bytes_served=self._bytes_served,
            entries_missed=self._entries_missed,
            bytes_missed=self._bytes_missed,
            entries_inserted=self._entries_inserted,
            entries_evicted=self._entries_evicted,
            evictions=self._evictions,
            waiting_bytes=self.append_room.waiting_bytes,
            bytes_used=self._bytes,
            bytes_max=self.bytes_max,
            ledgers=len(self._runs),
            strides=len(self._strides),
        )


class TailCacheStatistics(msgspec.Struct, frozen=True):
    entries_served: int
    bytes_served: int
    entries_missed: int
    """Entries that were read from the bookie, including its caches."""
    bytes_missed: int
    """The bytes of `entries_missed`."""
    entries_inserted: int
    entries_evicted: int
    """For any reason."""
    evictions: int
    """Strides that had to leave early, because the cache was full."""
    waiting_bytes: int
    """Entries that wait for a ledger; not in the cache yet."""
    bytes_used: int
    bytes_max: int
    ledgers: int
    strides: int
