"""Recent entries of all topics, in memory, so that consumers at the tail never use the bookie.

The bodies are the appended objects themselves, without copies. Entries of a run are invisible until
`TailCache.confirm` reports them as durable. The cache evicts entries in strides: when they are old, when all
active cursors have read them and the cache is half full, or, the oldest of the process first, when there are
too many.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from itertools import accumulate, islice
from operator import attrgetter
from typing import Final

import msgspec
import trio

from geminga.limits import KIB, MIB
from geminga.managed_ledger.chain.append_room import AppendRoom
from geminga.managed_ledger.chain.entry import Entry, Parsed, entries_from

# Without it a topic of ten-byte messages would hold forty times the memory that the budget grants.
ENTRY_OVERHEAD_BYTES: Final = 400
"""What a cached entry costs beside its body: slot, stride, `Entry`, position, parsed metadata."""
# Eviction entry by entry would need a record for each; strides make its cost vanish beside the append's.
STRIDE_BYTES: Final = 64 * KIB
"""Entries are evicted in strides of about this size (or one appended run, if that is larger)."""
TURNS_OF_AGE: Final = 4
"""How often the cache checks for evictable strides while an entry ages."""
LOOK_SHARE: Final = 2
"""Below this share of the cache's memory (one half) entries leave by their age only."""

_BODIES = {bytes}
_ENTRIES = {Entry}
_UNGROWN = {0: 0}
_first_of = attrgetter("first")


class _Stride:
    """Consecutive entries of one run that became visible in one turn of the cache: evicted as a whole."""

    __slots__ = ("_borders", "_sums", "begun", "first", "run", "size_bytes", "slots")

    def __init__(
        self, run: TailRun, first: int, slots: list[bytes | Parsed | Entry], size_bytes: int, begun: int
    ) -> None:
        self.run = run
        self.first = first
        """The id of the first entry."""
        self.slots = slots
        """Bodies, or their parsed metadata from publishing; the first reader turns them into entries."""
        self.size_bytes = size_bytes
        """With the overhead of each entry."""
        self.begun = begun
        """The turn of the cache in which the stride began."""
        # A read at the tail begins and ends where a confirmation did. These give its bytes, so that neither
        # publishing nor the usual read adds up sizes entry by entry.
        self._borders = _UNGROWN
        """For each slot with which a confirmation began: the bytes before it."""
        self._sums: list[int] | None = None
        """Bytes before each slot and before the end, once a read needs more than `_borders`."""

    def extend(self, slots: list[bytes | Parsed | Entry], size_bytes: int) -> None:
        """Add what became visible next."""
        if self._borders is _UNGROWN:
            self._borders = _UNGROWN.copy()
        self._borders[len(self.slots)] = self.size_bytes
        self.slots += slots
        self.size_bytes += size_bytes

    def read(self, first: int, stop: int, bytes_max: int) -> tuple[list[Entry], int]:
        """Entries from `first` up to before `stop`, within the bytes but at least one, and what they count;
        none if the stride ends before `first`.
        """
        i, end = first - self.first, len(self.slots)
        j = min(stop - self.first, end)
        if i >= j:
            return [], 0
        before = self._borders.get(i)
        upto = self.size_bytes if j == end else self._borders.get(j)
        if before is None or upto is None or upto - before > bytes_max:
            sums = self._summed()
            before = sums[i]
            j = max(i + 1, bisect_right(sums, before + bytes_max, i + 1, j + 1) - 1)
            upto = sums[j]
        # Bodies become entries with the first reader and stay so: every further subscription gets the same
        # objects.
        chunk = self.slots[i:j]
        kinds = set(map(type, chunk))
        if kinds != _ENTRIES:
            self.slots[i:j] = chunk = self._made(first, chunk, kinds)  # type: ignore[assignment]
        return chunk, upto - before  # type: ignore[return-value]

    def _summed(self) -> list[int]:
        sums = self._sums
        if sums is None:
            sums = self._sums = [0]
        # Only what has come since the last time: a stride grows while readers follow it in small steps.
        if len(sums) <= len(self.slots):
            new = self.slots[len(sums) - 1 :]
            sizes = [
                ENTRY_OVERHEAD_BYTES + len(slot if type(slot) is bytes else slot.body)  # type: ignore[union-attr]
                for slot in new
            ]
            sums += islice(accumulate(sizes, initial=sums[-1]), 1, None)
        return sums

    def _made(self, first: int, slots: list[bytes | Parsed | Entry], kinds: set[type]) -> list[Entry]:
        """Entries of these slots, which begin at entry `first`."""
        ledger_id = self.run.ledger_id
        if kinds == _BODIES:
            return entries_from(ledger_id, first, slots)  # type: ignore[arg-type]
        bodies = [slot if type(slot) is bytes else slot.body for slot in slots]  # type: ignore[union-attr]
        parsed = [None if type(slot) is bytes else slot for slot in slots]
        fresh = entries_from(ledger_id, first, bodies, parsed)  # type: ignore[arg-type]
        return [slot if type(slot) is Entry else entry for slot, entry in zip(slots, fresh, strict=True)]


class TailRun:
    """The newest entries of one ledger, contiguous."""

    __slots__ = ("closed", "first_needed", "ledger_id", "strides", "waiting")

    def __init__(self, ledger_id: int, first_needed: Callable[[int], int]) -> None:
        self.ledger_id = ledger_id
        self.first_needed = first_needed
        """Called with the ledger's id; returns the first entry that an active cursor has to read."""
        # Plain tuples in a plain list: one `waiting.append` is all that an append costs here, however many
        # entries it has.
        self.waiting: list[tuple[int, list[bytes | Parsed | Entry], int]] = []
        """Appended runs that are not visible yet, each confirmed as a whole: the entry id after it, its
        slots, in a list that is the cache's own, and the bytes of its bodies.
        """
        self.strides: list[_Stride] = []
        """What is visible, the oldest first."""
        self.closed = False
        """Whether no more entries come."""

    def read(self, first: int, stop: int, bytes_max: int) -> tuple[list[Entry], int]:
        """As `TailCache.read`, and the bytes that the entries count."""
        strides = self.strides
        i = bisect_right(strides, first, key=_first_of)
        if not i:
            return [], 0
        found, size_bytes = strides[i - 1].read(first, stop, bytes_max)
        while i < len(strides) and strides[i].first == first + len(found) < stop:
            more, more_bytes = strides[i].read(strides[i].first, stop, bytes_max - size_bytes)
            if size_bytes + more_bytes > bytes_max:
                break
            found += more
            size_bytes += more_bytes
            i += 1
        return found, size_bytes


def _all_needed(ledger_id: int) -> int:
    return 0


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
        # In order, and cheap to leave from the middle: evictions go by age, by run and by what was read.
        self._strides: OrderedDict[_Stride, None] = OrderedDict()
        """Those of all runs, the oldest first."""
        self._filled = trio.Event()
        """Set when there is a first stride."""

    async def run_forever(self) -> None:
        """Evict what is old or read by all, until cancelled."""
        while True:
            if not self._strides:  # an idle broker need not wake up four times a second
                self._filled = trio.Event()
                await self._filled.wait()
            await trio.sleep(self.age_max_ms / TURNS_OF_AGE / 1000)
            self.turn()

    def turn(self) -> None:
        """Evict strides that are `TURNS_OF_AGE` turns old. When the cache is half full, also evict earlier
        strides that no active cursor has to read. Entries that were read in this turn may be read again, if
        the consumer had no permits.
        """
        turn = self._turn
        # By turns of a quarter of the age, so that nothing reads a clock for each entry.
        for stride in tuple(self._strides):
            if stride.begun > turn - TURNS_OF_AGE:
                break
            self._evict(stride)
        # Memory must be worth the look: over a thousand topics that get a message a second each, the looks
        # were a tenth of what a message cost, and from an eighth of the memory on still a twentieth.
        if self._bytes >= self.bytes_max // LOOK_SHARE:
            needed: dict[TailRun, int] = {}
            for stride in tuple(self._strides):
                if stride.begun == turn:
                    break
                run = stride.run
                if run not in needed:
                    needed[run] = run.first_needed(run.ledger_id)
                if stride.first + len(stride.slots) <= needed[run]:
                    self._evict(stride)
        self._turn = turn + 1

    def open_run(self, ledger_id: int, first_needed: Callable[[int], int] = _all_needed) -> TailRun:
        """Begin to keep a ledger's entries. From the first one on that the appender adds to
        `TailRun.waiting`, it must add every later one. `first_needed(ledger_id)` returns the first entry that
        an active cursor still has to read.
        """
        # A run holds consecutive entries only: one that is left of the same ledger would lack those in
        # between.
        self.discard(ledger_id)
        run = self._runs[ledger_id] = TailRun(ledger_id, first_needed)
        return run

    def read(self, ledger_id: int, first: int, stop: int, bytes_max: int) -> list[Entry]:
        """Entries of a ledger from `first` up to before `stop`: as many as are here, confirmed, and within
        the bytes. At least one if `first` itself is here, however large; [] if it is not.
        """
        # One call for look-up, read and counts: every read of a consumer at the tail comes through here.
        run = self._runs.get(ledger_id)
        if run is None:
            return []
        strides = run.strides
        if strides and first >= strides[-1].first:
            entries, size_bytes = strides[-1].read(first, stop, bytes_max)
        else:
            entries, size_bytes = run.read(first, stop, bytes_max)
        self._entries_served += len(entries)
        self._bytes_served += size_bytes - len(entries) * ENTRY_OVERHEAD_BYTES
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
            self._forget_if_over(run)

    def failed(self, run: TailRun) -> None:
        """What waits in this run was not stored. A ledger that continues does so with the same ids."""
        run.waiting.clear()
        if self._runs.get(run.ledger_id) is run:
            self._forget_if_over(run)

    def confirm(self, run: TailRun, last_entry_id: int) -> None:
        """Entries of `run` up to `last_entry_id` are durable: show them, and keep within the bound."""
        if self._runs.get(run.ledger_id) is not run:
            return
        runs = size_bytes = 0
        slots: list[bytes | Parsed | Entry] = []
        for stop, more, body_bytes in run.waiting:
            # The cache may have been switched on behind entries that are confirmed only now.
            if stop > last_entry_id + 1:
                break
            more_bytes = body_bytes + len(more) * ENTRY_OVERHEAD_BYTES
            if not runs:
                slots = more
            elif size_bytes < STRIDE_BYTES:
                slots += more
            else:
                self._show(run, stop - len(more), slots, size_bytes)
                slots, size_bytes = more, 0
            size_bytes += more_bytes
            runs += 1
        if runs:
            self._show(run, last_entry_id + 1, slots, size_bytes)
            del run.waiting[:runs]
        # The oldest of all topics first, whatever its topic: one busy topic must not keep what was read
        # long ago while another one's consumers go to the disk.
        while self._bytes > self.bytes_max:
            self._evictions += 1
            self._evict(next(iter(self._strides)))

    def _show(self, run: TailRun, stop: int, slots: list[bytes | Parsed | Entry], size_bytes: int) -> None:
        """Make the next entries of a run, up to before `stop`, visible."""
        newest = run.strides[-1] if run.strides else None
        if (
            newest is not None
            and newest.begun == self._turn
            and newest.size_bytes + size_bytes <= STRIDE_BYTES
        ):
            newest.extend(slots, size_bytes)
        else:
            newest = _Stride(run, stop - len(slots), slots, size_bytes, self._turn)
            run.strides.append(newest)
            if not self._strides:
                self._filled.set()
            self._strides[newest] = None
        self._bytes += size_bytes
        self._entries_inserted += len(slots)

    def _evict(self, stride: _Stride) -> None:
        """Evict the oldest stride of its run."""
        run = stride.run
        assert run.strides[0] is stride
        del self._strides[stride], run.strides[0]
        self._bytes -= stride.size_bytes
        self._entries_evicted += len(stride.slots)
        self._forget_if_over(run)

    def _forget_if_over(self, run: TailRun) -> None:
        # What waits is confirmed or fails later, and only then there may be nothing more to evict.
        if run.closed and not run.strides and not run.waiting:
            del self._runs[run.ledger_id]

    def discard(self, ledger_id: int) -> None:
        """Forget a ledger's entries."""
        run = self._runs.get(ledger_id)
        if run is None:
            return
        run.waiting.clear()
        for stride in tuple(run.strides):
            self._evict(stride)
        self._runs.pop(ledger_id, None)

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
