"""Reads entries from write caches, then read cache, then index and entry log, with read-ahead.

A consumer that reads a ledger in order finds most entries in the read cache: a read from a log also loads
the following entries, and before the consumer reaches their end, the next piece is loading.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

import trio

from geminga.bookie.entry_logs.reader import DamagedRecord
from geminga.bookie.records.read_counts import Found, ReadStatistics
from geminga.bookie.records.records import RECORD_PREFIX_BYTES, Run, Segment
from geminga.bookie.running.read_cache import ReadCache
from geminga.bookie.running.storage import LedgerStorage
from geminga.bookie.running.write_caches import WriteCaches
from geminga.clock import RealClock
from geminga.durations import Durations
from geminga.errors import LedgerNotFound, StorageError

# One task reads ahead for all: more requests than this would be stale before their turn comes.
PREFETCHES_MAX = 16
"""The limit of pieces that load or wait to be loaded; further readers wait for their own reads."""

# A cache full of single entries must not make each read walk through all of it.
SEGMENTS_AHEAD_MAX = 32
"""How many segments in memory may be skipped to find where read-ahead should continue."""
_monotonic_s = RealClock().monotonic_s


class LedgerReader:
    """The reads of one bookie. On the loop."""

    def __init__(
        self,
        caches: WriteCaches,
        storage: LedgerStorage,
        *,
        heal: Callable[[Sequence[Run]], Awaitable[bool]],
        on_cached: Callable[[], None],
        cache_bytes: int,
        read_ahead_bytes: int,
    ) -> None:
        """`heal` is called when an entry turns out to be damaged; the read continues if it returns True.
        `on_cached` is called when something has come into the read cache.
        """
        self.failures = 0
        self.log_bytes = self.log_loads = 0
        """Bytes read from entry logs, and the number of reads, including read-ahead."""
        self._in_write_caches, self._in_read_cache, self._in_logs = Found(), Found(), Found()
        self._found = self._in_read_cache
        """The layer in which `_find` found the last segment."""
        self.waits = Durations()
        """Per entry that came from an entry log."""
        self._caches = caches
        self._storage = storage
        self._heal = heal
        self._on_cached = on_cached
        self._cache = ReadCache(cache_bytes)
        # Reading further ahead would drive out what was read ahead before, unread.
        self._ahead_bytes_max = min(read_ahead_bytes, cache_bytes // 2)
        self._deletions = 0
        self._wanted: deque[tuple[int, int]] = deque(maxlen=PREFETCHES_MAX)
        self._wanted_last: dict[int, int] = {}
        self._wake = trio.Event()
        self._loading: dict[tuple[int, int], trio.Event] = {}

    @property
    def is_loading(self) -> bool:
        """Whether a read waits for an entry log."""
        return bool(self._loading)

    @property
    def waiting(self) -> int:
        """Places that are being read from entry logs now, read-ahead included."""
        return len(self._loading)

    @property
    def from_memory(self) -> int:
        """Entries that were found in a cache."""
        return self._in_write_caches.entries + self._in_read_cache.entries

    @property
    def from_log(self) -> int:
        """Entries for which a read had to wait."""
        return self._in_logs.entries

    def statistics(self) -> ReadStatistics:
        written, cached, logs = self._in_write_caches, self._in_read_cache, self._in_logs
        return ReadStatistics(
            written.entries,
            written.bytes,
            cached.entries,
            cached.bytes,
            logs.entries,
            logs.bytes,
            self.log_loads,
        )

    @property
    def cache_bytes(self) -> int:
        return self._cache.bytes

    @property
    def cache_uses(self) -> int:
        """Grows with each read that finds something in the read cache, or brings something into it."""
        return self._in_read_cache.entries + self.log_loads

    def empty_cache(self) -> None:
        """Give the memory of the read cache back."""
        self._cache.clear()
        self._wanted_last.clear()

    def last_entry_id(self, ledger_id: int) -> int:
        last = -1 if self._storage.is_deleted(ledger_id) else self._caches.last_entry_id(ledger_id)
        return last if last >= 0 else self._storage.last_entry_id(ledger_id)

    def size_bytes(self, ledger_id: int, entries: int) -> int:
        """See `Bookie.size_bytes`."""
        logged, cached = self._storage.index.usage_of(ledger_id), self._caches.segments_of(ledger_id)
        known = logged.entries + sum(len(segment.ends) for segment in cached)
        record_bytes = logged.bytes + sum(segment.record_bytes for segment in cached)
        return (record_bytes - known * RECORD_PREFIX_BYTES) * entries // known if known else 0

    def ledgers(self) -> set[int]:
        found = self._storage.index.ledgers() | self._caches.ledgers()
        return {ledger_id for ledger_id in found if self._storage.is_served(ledger_id)}

    def forget(self, ledger_id: int) -> None:
        """Forget a deleted ledger."""
        self._deletions += 1
        self._cache.discard(ledger_id)
        self._wanted_last.pop(ledger_id, None)

    async def read(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes]:
        assert first <= last
        bodies = self.read_memory(ledger_id, first, last, bytes_max)
        # Several subscriptions reach one position together: the second waits for the first one's read, not
        # for its own.
        if not bodies and (loading := self._loading.get((ledger_id, first))) is not None:
            await loading.wait()
            bodies = self.read_memory(ledger_id, first, last, bytes_max)
        elif bodies:
            await trio.lowlevel.checkpoint()
        if bodies:
            return bodies
        began_s = _monotonic_s()
        try:
            # Its own segment and not the cache's: between the load and this line other reads may have pushed
            # it out.
            segment = (await self._load(ledger_id, first, last, bytes_max))[0]
        except StorageError as error:
            self.failures += not isinstance(error, LedgerNotFound)
            raise
        end = _last_within(segment, first, min(last, segment.last), bytes_max, at_least_one=True)
        self._found = self._in_logs
        self.waits.add((_monotonic_s() - began_s) * 1000, end - first + 1)
        self._found.add(end - first + 1, segment.body_bytes(first, end))
        self._read_ahead(segment, first, end)
        return segment.bodies(first, end)

    async def read_runs(
        self, runs: Sequence[Run], bytes_max: int, ahead: Sequence[Run]
    ) -> dict[Run, list[bytes]]:
        brought: dict[Run, list[bytes]] = {}
        missing: list[Run] = []
        for run in runs:
            if missing:
                # What is in memory behind one that is not would use up the bytes before that is read.
                if self._find_quietly(run.ledger_id, run.first) is None:
                    missing.append(run)
            elif bodies := self.read_memory(*run, bytes_max):
                brought[run] = bodies
                bytes_max -= sum(map(len, bodies))
                if bytes_max <= 0:
                    break
            else:
                missing.append(run)
        if not missing:
            await trio.lowlevel.checkpoint()
            return brought
        began_s = _monotonic_s()
        try:
            segments = await self._load_runs(missing, bytes_max, ahead)
        except StorageError as error:
            if brought:
                return brought
            self.failures += not isinstance(error, LedgerNotFound)
            raise
        took_ms = (_monotonic_s() - began_s) * 1000
        # Fewer segments than runs: the disk stops at the bytes asked for, and the caller comes back for the
        # rest.
        for run, segment in zip(missing, segments, strict=False):
            end = _last_within(segment, run.first, segment.last, bytes_max, at_least_one=True)
            brought[run] = segment.bodies(run.first, end)
            self._in_logs.add(end - run.first + 1, segment.body_bytes(run.first, end))
            self.waits.add(took_ms, end - run.first + 1)
            self.log_loads += 1
            self.log_bytes += segment.record_bytes
        return brought

    async def run(self) -> None:
        """Read ahead of readers, for ever. Ignores failures: the read that needs the entry reports them."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._wanted:
                position = self._wanted.popleft()
                if position not in self._loading and self._find_quietly(*position) is None:
                    # Reading ahead may meet damage that no consumer ever asks for; the read that does is
                    # told.
                    with contextlib.suppress(StorageError):
                        await self._load(*position, position[1], 0)

    def read_memory(
        self, ledger_id: int, first: int, last: int, bytes_max: int, *, goes_on: bool = True
    ) -> list[bytes]:
        bodies: list[bytes] = []
        while first <= last and (segment := self._find(ledger_id, first)) is not None:
            end = _last_within(segment, first, min(last, segment.last), bytes_max, at_least_one=not bodies)
            if end < first:
                break
            bodies += segment.bodies(first, end)
            size_bytes = segment.body_bytes(first, end)
            self._found.add(end - first + 1, size_bytes)
            if goes_on:
                self._read_ahead(segment, first, end)
            bytes_max -= size_bytes
            first = end + 1
        return bodies

    async def _load_runs(self, runs: Sequence[Run], bytes_max: int, ahead: Sequence[Run]) -> list[Segment]:
        deletions = self._deletions
        wanted = [run for run in ahead if self._find_quietly(run.ledger_id, run.first) is None]
        try:
            segments, more = await self._storage.load_runs(runs, bytes_max, wanted, self._ahead_bytes_max)
        except DamagedRecord:
            if not await self._heal(runs[:1]):
                raise
            segments, more = await self._storage.load_runs(runs, bytes_max, (), 0)
        if deletions == self._deletions:
            for segment in more:
                self._cache.add(segment)
                self.log_loads += 1
                self.log_bytes += segment.record_bytes
            if more:
                self._on_cached()
        return segments

    async def _load_rows(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[Segment]:
        try:
            return await self._storage.load(ledger_id, first, last, bytes_max)
        except DamagedRecord:
            if not await self._heal([Run(ledger_id, first, last)]):
                raise
        return await self._storage.load(ledger_id, first, last, bytes_max)

    async def _load(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[Segment]:
        deletions = self._deletions
        position = ledger_id, first
        loaded = self._loading[position] = trio.Event()
        try:
            segments = await self._load_rows(ledger_id, first, last, bytes_max)
        finally:
            if self._loading.get(position) is loaded:
                del self._loading[position]
            loaded.set()
        self.log_loads += 1
        for segment in segments:
            self.log_bytes += segment.record_bytes
            # A ledger deleted while this read was on its thread must not come back through the cache.
            if deletions == self._deletions:
                self._cache.add(segment)
        self._on_cached()
        return segments

    def _find(self, ledger_id: int, entry_id: int) -> Segment | None:
        segment = self._caches.find(ledger_id, entry_id)
        self._found = self._in_write_caches
        if segment is None:
            segment = self._cache.find(ledger_id, entry_id)
            self._found = self._in_read_cache
        # The flushing cache cannot be changed while a thread writes it, so it still has the deleted ledger's
        # entries.
        elif self._storage.is_deleted(ledger_id):
            return None
        return segment

    def _read_ahead(self, segment: Segment, first: int, end: int) -> None:
        """Entries of a segment were read; read ahead if what follows is wanted. Past the middle of the
        segment, the following entries are wanted if a read begins there, or if a read of several entries ends
        there, because the next read may reach the segment's end. A single entry that came from a log may be
        one of many far apart.
        """
        # What follows is newer, and so in the write caches too.
        if self._found is self._in_write_caches:
            return
        middle = segment.first + len(segment.ends) / 2
        if end >= middle if end > first else first >= middle and self._found is self._in_read_cache:
            self._want(segment.ledger_id, segment.last + 1)

    def _find_quietly(self, ledger_id: int, entry_id: int) -> Segment | None:
        return self._caches.find(ledger_id, entry_id) or self._cache.find(ledger_id, entry_id)

    def _want(self, ledger_id: int, entry_id: int) -> None:
        """Expect reads of this entry and of those behind it soon. Queues loads for the parts of the next
        `read_ahead_bytes` that are not in memory.
        """
        # Every read behind the middle asks again for the same piece.
        if self._wanted_last.get(ledger_id) == entry_id:
            return
        # Bounded, and cheap to forget: the worst is a piece that is looked for once more.
        if len(self._wanted_last) >= 100 * PREFETCHES_MAX:
            self._wanted_last.clear()
        self._wanted_last[ledger_id] = entry_id
        ahead_bytes = 0
        for _ in range(SEGMENTS_AHEAD_MAX):
            segment = self._find_quietly(ledger_id, entry_id)
            if segment is None:
                self._wanted.append((ledger_id, entry_id))
                self._wake.set()
                return
            ahead_bytes += segment.record_bytes
            if ahead_bytes >= self._ahead_bytes_max:
                return
            entry_id = segment.last + 1


def _last_within(segment: Segment, first: int, last: int, bytes_max: int, *, at_least_one: bool) -> int:
    """The last entry up to which the bodies from `first` on are at most `bytes_max` long in total."""
    # The usual read is bounded by its entries; the search below is for large ones.
    if segment.body_bytes(first, last) <= bytes_max:
        return last
    low, high = (first if at_least_one else first - 1), last - 1
    while low < high:
        middle = (low + high + 1) // 2
        if segment.body_bytes(first, middle) <= bytes_max:
            low = middle
        else:
            high = middle - 1
    return low
