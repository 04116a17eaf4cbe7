"""Reads a managed ledger: from the tail cache, else from the bookie, across ledgers, never past the last
confirmed entry.
"""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from geminga.bookie.records.records import Run
from geminga.errors import LedgerNotFound, StorageError
from geminga.limits import MIB
from geminga.managed_ledger.chain.entry import Entry, entries_from
from geminga.managed_ledger.chain.ledger_chain import LedgerChain
from geminga.managed_ledger.chain.tail_cache import TailCache
from geminga.position import Position

if TYPE_CHECKING:
    from geminga.bookie.running.bookie import Bookie

# A read has a fixed cost (a thread, a seek); a few unwanted entries cost less than a second read.
READ_GAP_MAX = 8
"""Wanted entries at most this far apart are read together, with the entries between them."""
READ_IN_ORDER_MIN = 16
"""If the first and the last entry of a run are at least this far apart, the following entries are probably
wanted, too.
"""
READ_RUN_BYTES_MAX = 4 * MIB
"""The limit of one read for scattered positions."""


class LedgerReads:
    """All reads of one managed ledger. Counts served and failed reads, for the statistics."""

    __slots__ = (
        "_bookie",
        "_chain",
        "_tail_cache",
        "bytes_read",
        "entries_from_bookie",
        "entries_from_cache",
        "failures",
    )

    def __init__(self, chain: LedgerChain, tail_cache: TailCache, bookie: Bookie) -> None:
        self._chain = chain
        self._tail_cache = tail_cache
        self._bookie = bookie
        self.entries_from_cache = 0
        self.entries_from_bookie = 0
        """Includes entries that the bookie's caches had."""
        self.bytes_read = 0
        """Bytes of these entries."""
        self.failures = 0

    def read_cached(
        self, start: tuple[int, int], count_max: int, bytes_max: int, *, goes_on: bool = True
    ) -> list[Entry]:
        """Entries from `start` on that are in memory: one ledger's run, [] if there is none at that position.

        At least one entry even if it alone is larger than `bytes_max`. `goes_on`: what follows is probably
        read next.
        """
        ledger_id, entry_id = start
        entries = self._chain.counts.get(ledger_id, 0)
        # The hot case has skipped this: a cursor at the tail stands exactly on the next entry.
        if entry_id < 0 or entry_id >= entries:
            ledger_id, entry_id = self._chain.ceiling(start)
            entries = self._chain.counts[ledger_id]
            if entry_id >= entries:
                return []
        stop = entry_id + count_max if entry_id + count_max < entries else entries
        if cached := self._tail_cache.read(ledger_id, entry_id, stop, bytes_max):
            self.entries_from_cache += len(cached)
            return cached
        # The bookie's caches hold what the tail cache has evicted, without a thread and an await.
        bodies = self._bookie.read_cached(ledger_id, entry_id, stop - 1, bytes_max=bytes_max, goes_on=goes_on)
        if not bodies:
            return []
        self._missed(bodies)
        return entries_from(ledger_id, entry_id, bodies)

    async def read(self, start: tuple[int, int], count_max: int, bytes_max: int) -> list[Entry]:
        """Entries from `start` on, of one ledger; [] only at the tail.

        Skips ledgers that are empty or were trimmed. At least one entry otherwise, however large.
        StorageError.
        """
        chain = self._chain
        while True:
            if cached := self.read_cached(start, count_max, bytes_max):
                await trio.lowlevel.checkpoint()
                return cached
            ledger_id, entry_id = chain.ceiling(start)
            entries = chain.counts[ledger_id]
            if entry_id >= entries:
                await trio.lowlevel.checkpoint()
                return []
            # Never past what is confirmed: an entry in the bookie without its receipt may still be failed by
            # a fence.
            stop = min(entry_id + count_max, entries)
            bodies = await self._read_bookie(ledger_id, entry_id, stop - 1, bytes_max)
            if bodies is not None:
                return entries_from(ledger_id, entry_id, bodies)

    async def _read_bookie(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes] | None:
        """As `read`, from the bookie; None if the ledger was trimmed meanwhile."""
        try:
            bodies = await self._bookie.read(ledger_id, first, last, bytes_max=bytes_max)
        except LedgerNotFound:
            # Trimming deletes the ledger after it has left the chain. Still in the chain, a missing ledger is
            # damage and must not be passed over in silence.
            if ledger_id in self._chain.counts:
                raise
            return None
        except StorageError:
            self.failures += 1
            raise
        assert bodies, f"the bookie returned nothing for {ledger_id}:{first}"
        self._missed(bodies)
        return bodies

    def _missed(self, bodies: list[bytes]) -> None:
        size_bytes = sum(map(len, bodies))
        self.entries_from_bookie += len(bodies)
        self.bytes_read += size_bytes
        self._tail_cache.missed(len(bodies), size_bytes)

    async def read_positions(
        self,
        positions: Sequence[tuple[int, int]],
        bytes_max: int = sys.maxsize,
        *,
        at_once: bool = False,
        read_along: Callable[[], Sequence[Position]] | None = None,
    ) -> list[Entry]:
        """The entries at these ascending positions. Those that do not exist, or no longer, are left out.

        Ends behind the entry with which `bytes_max` is reached: see `reached`. Lets other tasks run once; if
        `at_once`, only while it waits for a disk: for a caller that sees to their turns itself. `read_along`
        is asked once, and only if scattered entries are needed from the disk, for positions that are wanted
        soon: the bookie keeps their entries in memory, as far as its bounds allow.
        """
        if not at_once:
            await trio.lowlevel.checkpoint()
        # Runs bring unwanted neighbours along; the set filters them in one look-up each.
        wanted = set(positions)
        found: list[Entry] = []
        left_bytes = bytes_max
        # First all that is in memory: what is due on a delayed subscription is often both old and new, and
        # one trip to the disk then serves the rest.
        parts = self._in_memory(positions, bytes_max)
        while parts and left_bytes > 0:
            part = parts[0]
            if isinstance(part, Run):
                ahead: Sequence[Position] = ()
                # What follows a long run is read ahead by the bookie.
                if read_along is not None and not _is_in_order(part):
                    ahead, read_along = read_along(), None
                parts = await self._bring(parts, positions, min(left_bytes, READ_RUN_BYTES_MAX), ahead)
                continue
            parts.popleft()
            for entry in part:
                if left_bytes > 0 and entry.position in wanted:
                    left_bytes -= len(entry.body)
                    found.append(entry)
        return found

    def _in_memory(self, positions: Sequence[tuple[int, int]], bytes_max: int) -> deque[list[Entry] | Run]:
        """The runs, with runs of entries in memory replaced by these entries, up to the limit of bytes."""
        parts: deque[list[Entry] | Run] = deque()
        for run in runs_of(positions, self._chain.counts):
            rest: Run | None = run
            while rest is not None:
                ledger_id, first, last = rest
                entries = None
                if bytes_max > 0:
                    run_bytes_max = min(bytes_max, READ_RUN_BYTES_MAX)
                    # With read-ahead for each, a million random delays had all that lies between them loaded
                    # and checked, over and over: a third of a broker's CPU.
                    entries = self.read_cached(
                        (ledger_id, first), last + 1 - first, run_bytes_max, goes_on=_is_in_order(rest)
                    )
                if not entries:
                    parts.append(rest)
                    break
                bytes_max -= sum(len(entry.body) for entry in entries)
                parts.append(entries)
                rest = _behind(rest, entries, positions)
        return parts

    async def _bring(
        self,
        parts: deque[list[Entry] | Run],
        positions: Sequence[tuple[int, int]],
        bytes_max: int,
        ahead: Sequence[Position],
    ) -> deque[list[Entry] | Run]:
        """The parts, with the entries of some runs, of the first run at least."""
        runs = [part for part in parts if isinstance(part, Run)]
        brought = await self._read_runs(runs, bytes_max, ahead)
        filled: deque[list[Entry] | Run] = deque()
        for part in parts:
            if not isinstance(part, Run) or part not in brought:
                filled.append(part)
                continue
            filled.append(brought[part])
            if (rest := _behind(part, brought[part], positions)) is not None:
                filled.append(rest)
        return filled

    async def _read_runs(
        self, runs: Sequence[Run], bytes_max: int, ahead: Sequence[Position]
    ) -> dict[Run, list[Entry]]:
        """Entries of at least the first run, at least its first entry; none if its ledger was trimmed."""
        first = runs[0]
        # A long run is read as a stream, with read-ahead: a catch-up reads what comes after it next.
        if _is_in_order(first):
            bodies = await self._read_bookie(*first, bytes_max)
            return {first: entries_from(first.ledger_id, first.first, bodies or [])}
        # Messages with random delays lie anywhere: what stands beside one is not due with it.
        try:
            brought = await self._bookie.read_runs(
                [run for run in runs if not _is_in_order(run)],
                bytes_max=bytes_max,
                ahead=list(runs_of(ahead, self._chain.counts)),
            )
        except LedgerNotFound:
            if first.ledger_id in self._chain.counts:
                raise
            return {first: []}
        except StorageError:
            self.failures += 1
            raise
        for bodies in brought.values():
            self._missed(bodies)
        return {run: entries_from(run.ledger_id, run.first, bodies) for run, bodies in brought.items()}

    async def find_first(
        self, predicate: Callable[[Entry], bool], *, after: tuple[int, int] | None = None
    ) -> Position | None:
        """The first entry (behind `after`) for which `predicate` is true, if it is false before and true from
        there on.

        Reads O(log entries) single entries. None: it is true for none.
        """
        chain = self._chain
        low = chain.ordinal((chain.ids[0], -1) if after is None else after)  # the answer is above `low`...
        high = chain.ordinal(chain.tail) + 1  # ...and at most `high`; above the tail means none
        end = high
        # By ordinals, since the entries of one ledger are not enough: the answer may be in any ledger of the
        # chain.
        while low + 1 < high:
            middle = (low + high) // 2
            entry = await self._read_one(chain.at_ordinal(middle))
            # An entry that was trimmed meanwhile counts as before the answer: it is older than all that is
            # left.
            if entry is not None and predicate(entry):
                high = middle
            else:
                low = middle
            # Trimming meanwhile takes entries away at the front only.
            low = min(high - 1, max(low, chain.ordinal((chain.ids[0], -1))))
        if high == end:
            return None
        first = chain.ordinal((chain.ids[0], -1))
        return chain.at_ordinal(max(high, first + 1)) if chain.entries else None

    async def _read_one(self, position: Position) -> Entry | None:
        entries = await self.read_positions((position,))
        return entries[0] if entries else None


def runs_of(positions: Sequence[tuple[int, int]], counts: Mapping[int, int]) -> Iterator[Run]:
    """The runs to read for ascending positions: with what lies between those that are near to each other.
    Without those that no ledger has, by how many entries each has.
    """
    ledger_id = first = last = -1
    for next_ledger, entry_id in positions:
        if not 0 <= entry_id < counts.get(next_ledger, 0):
            continue
        if next_ledger != ledger_id or entry_id - last > READ_GAP_MAX:
            if ledger_id >= 0:
                yield Run(ledger_id, first, last)
            ledger_id, first = next_ledger, entry_id
        last = entry_id
    if ledger_id >= 0:
        yield Run(ledger_id, first, last)


def _is_in_order(run: Run) -> bool:
    return run.last - run.first >= READ_IN_ORDER_MIN


def _behind(run: Run, entries: Sequence[Entry], positions: Sequence[tuple[int, int]]) -> Run | None:
    """The rest of a run after its first entries, from the next of `positions` on. Entries before that
    position are not wanted and may be unreadable. None if no wanted entry is left.
    """
    if not entries or entries[-1].position.entry_id >= run.last:
        return None
    return run._replace(first=positions[bisect_right(positions, entries[-1].position)][1])


def reached(positions: Sequence[tuple[int, int]], found: Sequence[Entry], bytes_max: int) -> int:
    """How many of `positions` were covered by a `read_positions` that found these entries."""
    if not found or sum(len(entry.body) for entry in found) < bytes_max:
        return len(positions)
    return bisect_right(positions, found[-1].position)
