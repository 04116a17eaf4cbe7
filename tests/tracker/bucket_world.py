"""A delayed index with its buckets on a simulated disk that loses power, and what may never come of it.

What was published is in `truth`; what was delivered counts as acknowledged, durably. The rest, after a crash,
is either in a sealed bucket or found in the backlog; `check` holds the stores to it.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio
from pyroaring import BitMap

from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.running.bookie import Bookie
from geminga.errors import StorageError
from geminga.managed_ledger.chain.tail_cache import TailCache
from geminga.managed_ledger.cursor.cursor import Cursor
from geminga.managed_ledger.cursor.cursor_ledger import Storage
from geminga.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerSettings
from geminga.managed_ledger.orphans import sweep_orphan_ledgers
from geminga.metadata import records
from geminga.metadata.ledger_ids import LedgerIds
from geminga.metadata.store import MetadataStore
from geminga.tracker.buckets.bucket_settings import BucketSettings
from geminga.tracker.buckets.bucket_store import BucketStore, BucketWriter, CursorOwner, TopicOwner
from geminga.tracker.buckets.buckets import Buckets
from geminga.tracker.buckets.merge_task import merged_above
from geminga.tracker.buckets.recovery import Recovery
from geminga.tracker.buckets.tasks import run_buckets
from geminga.tracker.format.bucket_format import Directory
from geminga.tracker.format.rows import position_of
from geminga.tracker.format.stored_bucket import KeyRange, StoredBucket, range_of_key
from geminga.tracker.index.index import IndexSettings
from geminga.tracker.index.part import Frozen
from geminga.tracker.index.view import View
from simulation.campaign.deterministic import run_deterministically
from simulation.disk.sim_disk import CrashMode, PowerCut, SimDisk
from simulation.disk.sim_key_value import SimKeyValue
from tests.tracker.taking import take

PATH = "/managed-ledgers/public/default/persistent/orders"
NOW_MS = 1_700_000_000_000
SMALL = BookieSettings(
    journal_file_bytes=64 * 1024,
    journal_allocate_bytes=16 * 1024,
    write_cache_bytes=8 * 1024,
    read_cache_bytes=4096,
)
FIRST_DATA_LEDGER = 10_000
"""The messages are in ledgers that are not there: only their positions matter here."""

Place = tuple[int, int]


class HandClock:
    def __init__(self) -> None:
        self.ms = NOW_MS

    def worker(self, name: str) -> None:
        return None

    def now_ms(self) -> int:
        return self.ms

    async def sleep_until_ms(self, due_ms: int) -> None:
        raise NotImplementedError

    def monotonic_s(self) -> float:
        return trio.current_time()


async def at_once(function: Callable[..., Any], *args: Any) -> Any:
    """Instead of a thread: nothing that is encoded changes meanwhile, and the order is always the same."""
    await trio.lowlevel.checkpoint()
    return function(*args)


class FlakyStore(BucketStore):
    """Fails as often as it is told to, as a disk does for a while."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.failures = {"write": 0, "read": 0, "delete": 0, "open": 0}
        self.calls = dict.fromkeys(self.failures, 0)

    def _step(self, doing: str) -> None:
        self.calls[doing] += 1
        if self.failures[doing]:
            self.failures[doing] -= 1
            raise StorageError(f"simulated failure to {doing}")

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[BucketWriter]:
        async with super().writing() as writer:
            self._step("write")
            yield writer

    async def read_segment(self, bucket: StoredBucket, number: int) -> bytes:
        await trio.lowlevel.checkpoint()
        self._step("read")
        return await super().read_segment(bucket, number)

    async def delete(self, ledger_id: int) -> None:
        self._step("delete")
        await super().delete(ledger_id)

    async def open(self, ledger_id: int, covered: KeyRange | None = None) -> tuple[StoredBucket, Directory]:
        self._step("open")
        return await super().open(ledger_id, covered)


class World:
    """The stores, one life after the other, and the truth about the messages."""

    def __init__(
        self, seed: int = 0, settings: BucketSettings | None = None, *, is_shared: bool = False
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.settings = settings or BucketSettings(
            indexes_min=1000, segment_span_ms=40, segment_indexes_max=4, buckets_max=2
        )
        self.is_shared = is_shared
        self.disk = SimDisk(seed)
        self.index_rows = self._hooked(SimKeyValue(seed), "index")
        self.tree = self._hooked(SimKeyValue(seed + 1), "tree")
        self.clock = HandClock()
        self.truth: dict[Place, int] = {}
        self.taken: set[Place] = set()
        self.durable: set[Place] = set()
        """Those that the index has been told are sealed."""
        self.next_ledger = FIRST_DATA_LEDGER
        self.rereads: list[tuple[int, int]] = []

    def _hooked(self, rows: SimKeyValue, name: str) -> SimKeyValue:
        rows.before_write = lambda: self.disk.step("put", name)
        rows.before_sync = lambda: self.disk.step("sync", name)
        return rows

    # -- lives ------------------------------------------------------------------------------------

    def run(self, script: Callable[[World], Awaitable[None]], *, recover: bool = True) -> bool:
        """Live until the script's end, or the power's or a disk's: then False."""

        async def live() -> None:
            with trio.fail_after(100_000):
                async with trio.open_nursery() as nursery:
                    await self.open(nursery)
                    if recover:
                        await self.recover()
                    await script(self)
                    nursery.cancel_scope.cancel()

        try:
            run_deterministically(self.seed, live)
        except BaseExceptionGroup as errors:
            harmed = self.is_off or self.disk.inject is not None
            if not harmed or errors.split((PowerCut, StorageError))[1] is not None:
                raise
            return False
        return True

    @property
    def is_off(self) -> bool:
        return self.disk.crash_at is not None and self.disk.operations >= self.disk.crash_at

    def tracked(self) -> set[Place]:
        bitmaps = self.index.members.bitmaps
        return {(ledger_id, entry_id) for ledger_id, ids in bitmaps.items() for entry_id in ids}

    def crash(self, mode: CrashMode) -> None:
        # What was due has left the index, and its bucket may be gone: it is in the backlog until it is
        # acknowledged.
        if self.durable:
            self.durable &= self.tracked()
        self.disk.inject = None
        self.disk.crash(mode)
        keep = {"drop": 0, "keep": None, "torn": None}[mode]
        self.index_rows = self._hooked(self.index_rows.crash(keep), "index")
        self.tree = self._hooked(self.tree.crash(keep), "tree")

    async def open(self, nursery: trio.Nursery) -> None:
        self.metadata = MetadataStore(self.tree, threaded=False)
        await nursery.start(self.metadata.run)
        self.bookie = await Bookie.open(self.disk, self.index_rows, "bookie", SMALL, threaded=False)
        await nursery.start(self.bookie.run)
        await sweep_orphan_ledgers(self.bookie, self.metadata)
        self.topic = await ManagedLedger.open(
            PATH,
            self.bookie,
            self.metadata,
            LedgerIds(self.metadata),
            self.clock,
            ManagedLedgerSettings(cursor_persist_interval_ms=10),
            tail_cache=TailCache(),
        )
        self.topic.life.run_in(nursery)
        self.cursor: Cursor = await self.topic.open_cursor("sub", initial="earliest")
        self.owner = TopicOwner(self.topic) if self.is_shared else CursorOwner(self.cursor)
        self.store = FlakyStore(self.topic.storage)
        self._watch_names()
        self._build()
        await nursery.start(run_buckets, self.buckets)

    def _watch_names(self) -> None:
        swap = self.owner.swap
        store = BucketStore(self.topic.storage)

        async def swapping(add: Mapping[str, int], remove: Mapping[str, int]) -> None:
            for key, ledger_id in add.items():
                if store.is_ours(ledger_id):
                    assert self.bookie.last_entry_id(ledger_id) >= 0, f"{key} is named before it is durable"
                    if covered := range_of_key(key):
                        await store.open(ledger_id, covered)
            await swap(add, remove)

        self.owner.swap = swapping  # type: ignore[method-assign]

    def _build(self) -> None:
        self.buckets = Buckets(
            self.store,
            self.owner,
            self.clock,
            IndexSettings(strict=True, exact=True, indexes_min=self.settings.indexes_min),
            self.settings,
            off_loop=at_once,
            are_closed_ledgers=lambda first, last: True,
        )
        self.index = self.buckets.index
        self.view = View(self.index, reread=lambda first, last: self.rereads.append((first, last)))
        told = self.index.sealed

        def sealed(frozen: Frozen, bucket: StoredBucket) -> None:
            self.durable |= {position_of(code) for code in frozen.rows.codes.tolist()}
            told(frozen, bucket)

        self.index.sealed = sealed  # type: ignore[method-assign]
        self.recovery = Recovery(
            self.buckets,
            wanted=self._wanted,
            on_known=lambda first, last: self.rereads.append((first, last)),
        )

    def _wanted(self, members: Mapping[int, BitMap]) -> dict[int, BitMap]:
        return {
            ledger_id: BitMap([e for e in ids if (ledger_id, e) not in self.taken])
            for ledger_id, ids in members.items()
        }

    async def recover(self) -> None:
        await self.recovery.run()
        await self.recovery.run_late()

    # -- what scripts do --------------------------------------------------------------------------

    def publish(
        self, count: int, *, ledgers: int = 2, after_ms: int = 0, within_ms: int = 1000
    ) -> list[Place]:
        """Delayed messages at the end of the topic, seen by the index."""
        places = []
        for _ in range(ledgers):
            for entry_id in range(count):
                place = self.next_ledger, entry_id
                self.truth[place] = self.clock.ms + after_ms + self.random.randrange(1, within_ms)
                assert self.view.add(place, self.truth[place])  # type: ignore[arg-type]
                places.append(place)
            self.next_ledger += 1
        return places

    async def seal(self, count: int = 6, **options: int) -> list[Place]:
        """Publish, and wait until it is a bucket, and merged as far as it has to be."""
        places = self.publish(count, **options)
        self.index.feed.freeze_all()
        await self.settled()
        return places

    async def settled(self) -> None:
        """Nothing is left to do for the tasks of the buckets but what is due later."""
        buckets = self.buckets
        while True:
            await trio.testing.wait_all_tasks_blocked()
            if not (
                buckets.frozen
                or buckets.dying
                or len(buckets.stored) > merged_above(self.settings)
                or any(self.index.wanted(self.clock.ms))
            ):
                return
            await trio.sleep(0.05)  # virtual: something is tried again then

    async def deliver(self, until_ms: int, count_max: int = 10_000) -> list[Place]:
        """Move the time, take what is due, one by one to see the order, acknowledge it. Exact, once."""
        self.clock.ms = max(self.clock.ms, until_ms)
        self.buckets.poke()
        taken: list[Place] = []
        while len(taken) < count_max:
            some = take(self.view, 1)
            if not some:
                if not any(self.index.wanted(self.clock.ms)):
                    break
                await trio.sleep(0.05)
            taken += some
        for place in taken:
            assert self.truth[place] <= self.clock.ms, f"{place} is early"
            assert place not in self.taken, f"{place} came twice"
            self.taken.add(place)
        return taken

    async def clear(self) -> None:
        """From here on nothing that was published before may be needed; after it, nothing may be there."""
        self.truth = {}
        self.durable.clear()
        self.index.clear()
        await self.buckets.clear()

    # -- what must hold ---------------------------------------------------------------------------

    def bucket_ledgers(self) -> set[int]:
        """Those with a metadata record."""
        found = set()
        for name in self.metadata.children(records.LEDGERS):
            ledger_id = records.ledger_id_of(name)
            stored = self.metadata.get(records.ledger_path(ledger_id))
            if stored and records.decode(records.LedgerRecord, stored.value, "").purpose == "bucket":
                found.add(ledger_id)
        return found

    def check(self, *, gone: set[Place] | None = None) -> None:
        """Open what a crash has left; all that waits is there, where it should be, and comes when it is due.

        `gone`: what was cleared and must not come back.
        """
        assert self.run(lambda _: self._check(gone or set()), recover=False), "there is power"

    async def _check(self, gone: set[Place]) -> None:
        named = set(self.buckets.named().values())
        assert self.bucket_ledgers() == named, "a ledger that nothing names, or a name without a ledger"
        for ledger_id in named:
            await self.store.open(ledger_id)
        await self.recover()
        await self.settled()
        waiting = {place for place in self.truth if place not in self.taken}
        found = self.tracked()
        assert not found & gone, "what was cleared has come back"
        assert found <= waiting, "what is acknowledged, or was never there"
        assert self.durable - self.taken <= found, "sealed and lost"
        assert len(self.index) == len(found)
        await self.check_buckets(found)
        for place in sorted(waiting - found):
            assert self.view.add(place, self.truth[place]) == (self.truth[place] > self.clock.ms)  # type: ignore[arg-type]
            if self.truth[place] <= self.clock.ms:
                self.taken.add(place)
        await self.deliver(max(self.truth.values(), default=self.clock.ms))
        assert set(self.truth) <= self.taken, "some were never delivered"
        assert len(self.view) == 0
        await self.settled()
        assert not self.owner.properties()
        assert not self.bucket_ledgers()

    async def check_buckets(self, found: set[Place]) -> None:
        """Each position that is tracked is in one bucket, once, with its exact time."""
        seen: list[Place] = []
        for bucket in self.buckets.stored:
            assert self.owner.properties()[bucket.key] == bucket.ledger_id
            assert bucket.bytes == await self.length_of(bucket)
            for number in range(bucket.directory.segments):
                rows = bucket.directory.decode_segment(number, await self.store.read_segment(bucket, number))
                for time_ms, code in zip(rows.times_ms.tolist(), rows.codes.tolist(), strict=True):
                    place = code >> 32, code & 0xFFFFFFFF
                    if place in found:
                        assert self.truth[place] == time_ms
                        seen.append(place)
        assert sorted(seen) == sorted(found)

    async def length_of(self, bucket: StoredBucket) -> int:
        last = self.bookie.last_entry_id(bucket.ledger_id)
        length = 0
        for entry_id in range(last + 1):
            (entry,) = await self.bookie.read(bucket.ledger_id, entry_id, entry_id, bytes_max=1)
            length += len(entry)
        return length
