"""A bookie on a simulated disk that crashes at a chosen operation, and what must be true afterwards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio

from geminga.bookie.bookie import Bookie
from geminga.bookie.ledger_writer import LedgerWriter
from geminga.bookie.settings import BookieSettings
from geminga.chaos.sim_disk import CrashMode, PowerCut, SimDisk
from geminga.chaos.sim_key_value import SimKeyValue
from geminga.errors import LedgerNotFound, StorageError

TINY = BookieSettings(
    journal_file_bytes=4096,
    journal_allocate_bytes=2048,
    journal_alignment_bytes=512,
    journal_free_files_max=1,
    journal_group_bytes_max=1500,
    journal_group_entries_max=8,
    queue_bytes_max=3000,
    write_cache_bytes=9000,
    read_cache_bytes=2000,
    read_ahead_bytes=700,
    row_entries_max=5,
    entry_log_bytes=3000,
    entry_log_sync_bytes=1000,
    compaction_slice_bytes=700,
    compaction_rate_bytes_per_s=0,
)


class SimLedger:
    """What one ledger was given and what was said about it."""

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.bodies: list[bytes] = []
        self.durable = -1
        self.failure: StorageError | None = None
        self.deleting = self.deleted = False
        self.fenced_at: int | None = None
        self.writer: LedgerWriter | None = None

    def on_durable(self, last_entry_id: int) -> None:
        assert self.durable < last_entry_id < len(self.bodies)
        assert self.failure is None
        self.durable = last_entry_id

    def on_failed(self, error: StorageError) -> None:
        assert self.failure is None
        self.failure = error

    def body(self, size: int) -> bytes:
        body = f"{self.ledger_id}:{len(self.bodies)}:".encode()
        return (body * (size // len(body) + 1))[:size]


class World:
    """One disk, one index, and the ledgers' owners, across crashes."""

    def __init__(self, seed: int = 0, settings: BookieSettings = TINY) -> None:
        self._seed = seed
        self.disk = SimDisk(seed)
        self.settings = settings
        self.ledgers: dict[int, SimLedger] = {}
        self.index_lost = False
        self.logs_compacted = 0
        self.index_copies: list[dict[bytes, bytes]] = []
        self.index = self._with_power_from_disk(SimKeyValue(seed))

    def _with_power_from_disk(self, index: SimKeyValue) -> SimKeyValue:
        index.before_write = lambda: self.disk.step("index write", "index")
        index.before_sync = lambda: self._before_index_sync(index)
        return index

    def _before_index_sync(self, index: SimKeyValue) -> None:
        self.disk.step("index sync", "index")
        self.index_copies.append(dict(index._durable))

    def crash(self, mode: CrashMode) -> None:
        self.disk.crash(mode)
        keep = {"drop": 0, "keep": self.index.unsynced, "torn": None}[mode]
        self.index = self._with_power_from_disk(self.index.crash(keep))

    def lose_index(self, age: int | None = None) -> None:
        """With it go the only knowledge of deletions and fences. With an age in syncs, an old copy is put in
        place.
        """
        copy = self.index_copies[-age] if age is not None and age <= len(self.index_copies) else {}
        self.index = self._with_power_from_disk(SimKeyValue(0, copy))
        self.index_lost = True

    @asynccontextmanager
    async def running(self, *, close: bool = True) -> AsyncIterator[Bookie]:
        bookie = await Bookie.open(
            self.disk,
            self.index,
            "data",
            self.settings,
            existing_ledgers=self._existing_ledgers,
            threaded=False,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(bookie.run)
            yield bookie
            if close:
                await bookie.close()
            nursery.cancel_scope.cancel()

    def create(self, bookie: Bookie, ledger_id: int) -> SimLedger:
        ledger = self.ledgers[ledger_id] = SimLedger(ledger_id)
        ledger.writer = bookie.create_ledger(
            ledger_id, on_durable=ledger.on_durable, on_failed=ledger.on_failed, topic=f"topic-{ledger_id}"
        )
        return ledger

    async def add(self, bookie: Bookie, *ledger_ids: int, count: int = 1, size: int = 90) -> None:
        """Entries for each of the ledgers in turn; back when all are durable."""
        for _ in range(count):
            for ledger_id in ledger_ids:
                if not bookie.has_room():
                    await bookie.wait_room()
                ledger = self.ledgers[ledger_id]
                assert ledger.writer is not None
                body = ledger.body(size)
                ledger.writer.append(body)
                ledger.bodies.append(body)
        while any(self.ledgers[id_].durable < len(self.ledgers[id_].bodies) - 1 for id_ in ledger_ids):
            if any(self.ledgers[id_].failure for id_ in ledger_ids):
                raise StorageError("told of a failure")
            await trio.lowlevel.checkpoint()

    async def delete(self, bookie: Bookie, ledger_id: int) -> None:
        self.ledgers[ledger_id].deleting = True
        await bookie.delete_ledger(ledger_id)
        self.ledgers[ledger_id].deleted = True

    async def drop(self, bookie: Bookie, *ledger_ids: int) -> None:
        """Only the records go; the bookie finds out."""
        for ledger_id in ledger_ids:
            self.ledgers[ledger_id].deleting = True
        await bookie.collect_garbage()
        for ledger_id in ledger_ids:
            self.ledgers[ledger_id].deleted = True

    async def _existing_ledgers(self, ledger_ids: Sequence[int]) -> set[int]:
        await trio.lowlevel.checkpoint()
        return {id_ for id_ in ledger_ids if not self.ledgers[id_].deleting}

    async def fence(self, bookie: Bookie, ledger_id: int) -> None:
        self.ledgers[ledger_id].fenced_at = await bookie.fence(ledger_id)

    def _trio_run(self, work: Callable[..., Awaitable[Any]], *args: object) -> Any:
        # Trio shuffles runnable tasks; the same seed shall mean the same order.
        trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[attr-defined]
        trio._core._run._r.seed(self._seed)  # type: ignore[attr-defined]
        try:
            return trio.run(work, *args)
        finally:
            trio._core._run._ALLOW_DETERMINISTIC_SCHEDULING = False  # type: ignore[attr-defined]

    def run(self, script: Script) -> bool:
        """False if the power went or the disk failed on the way."""
        return self._survives(lambda: self._trio_run(script, self))

    def _survives(self, work: Callable[[], object]) -> bool:
        try:
            work()
        except BaseException as error:  # the power cut is none of Exception's
            if _consists_of(error, (PowerCut, StorageError)):
                return False
            raise
        return True

    def recover(self) -> bool:
        """Open and close without a check; False if that crashed."""

        async def open_and_leave() -> None:
            async with self.running(close=False):
                pass

        return self._survives(lambda: self._trio_run(open_and_leave))

    def check(self) -> None:
        """Open it, and hold everything against what the owners were told. Then crash and look again."""
        first: dict[int, int] = self._trio_run(self._check_once)
        self.crash("drop")
        second: dict[int, int] = self._trio_run(self._check_once)
        assert {**second, **first} == second, "what was served has changed after another crash"

    async def _check_once(self) -> dict[int, int]:
        lasts = {}
        async with self.running(close=False) as bookie:
            assert bookie.recovery.damages == (), "a crash looks like damage"
            for ledger_id, ledger in self.ledgers.items():
                lasts[ledger_id] = await _check_ledger(bookie, ledger, index_lost=self.index_lost)
            usage = bookie._storage.index.usage
            counted = sum(row.entries for ledgers in usage.values() for row in ledgers.values())
            dead = sum(len(led.bodies) for led in self.ledgers.values() if led.deleting)
            assert 0 <= counted - sum(last + 1 for last in lasts.values()) <= dead, "entries counted wrong"
            new = max([1000, *self.ledgers]) + 1
            self.create(bookie, new)
            await self.add(bookie, new, count=3)
            lasts[new] = 2
        return lasts


async def _check_ledger(bookie: Bookie, ledger: SimLedger, *, index_lost: bool) -> int:
    ledger_id, last = ledger.ledger_id, bookie.last_entry_id(ledger.ledger_id)
    if index_lost and ledger.deleting:
        await bookie.delete_ledger(ledger_id)  # as whoever keeps the metadata does
        return -1
    if ledger.deleted or (ledger.deleting and last == -1):
        assert last == -1, f"ledger {ledger_id} was deleted and is back"
        with pytest.raises(LedgerNotFound):
            await bookie.read(ledger_id, 0, 0, bytes_max=1000)
        return -1
    assert last >= ledger.durable, f"ledger {ledger_id} lost durable entries"
    assert last < len(ledger.bodies), f"ledger {ledger_id} has entries that nobody added"
    found: list[bytes] = []
    while len(found) <= last:
        found += await bookie.read(ledger_id, len(found), last, bytes_max=400)
    assert found == ledger.bodies[: last + 1], f"ledger {ledger_id} has other entries than were added"
    if ledger.fenced_at is not None:
        assert last == ledger.fenced_at
        fenced = ledger_id in bookie._storage.index.states
        assert fenced or index_lost, f"the fence of {ledger_id} is forgotten"
    return last


def _consists_of(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(_consists_of(inner, kinds) for inner in error.exceptions)
    return isinstance(error, (*kinds, trio.Cancelled))


Script = Callable[[World], Awaitable[None]]


async def trickle(world: World) -> None:
    """One entry at a time, a flush in the middle, a restart, more."""
    async with world.running() as bookie:
        world.create(bookie, 1)
        for _ in range(6):
            await world.add(bookie, 1)
        await bookie.flush()
        await world.add(bookie, 1, count=3)
    async with world.running(close=False) as bookie:
        world.create(bookie, 2)
        await world.add(bookie, 2, count=3)


async def bursts(world: World) -> None:
    """Several ledgers at once through rolling journals, both caches and several entry logs."""
    async with world.running(close=False) as bookie:
        for ledger_id in (3, 1, 2):
            world.create(bookie, ledger_id)
        for size in (40, 200, 600, 10, 150):
            await world.add(bookie, 1, 2, 3, count=4, size=size)


async def deletions(world: World) -> None:
    """Ledgers go away before, while and after they are flushed."""
    async with world.running(close=False) as bookie:
        for ledger_id in (1, 2, 3):
            world.create(bookie, ledger_id)
        await world.add(bookie, 1, 2, count=6, size=300)
        await bookie.flush()
        await world.add(bookie, 1, 2, 3, count=2)
        await world.delete(bookie, 1)
        await world.add(bookie, 2, count=3, size=300)
        await bookie.flush()
        await world.delete(bookie, 2)
        await world.add(bookie, 3, count=2)
        await bookie.flush()
        await bookie.flush()


async def fences(world: World) -> None:
    """Fenced and closed ledgers, and restarts of both kinds between them."""
    async with world.running(close=False) as bookie:
        world.create(bookie, 1)
        await world.add(bookie, 1, count=4)
        await world.fence(bookie, 1)
        world.create(bookie, 2)
        await world.add(bookie, 2, count=2)
    async with world.running() as bookie:
        await world.fence(bookie, 2)
        world.create(bookie, 4)
        await world.add(bookie, 4, count=2)
    async with world.running(close=False) as bookie:
        world.create(bookie, 5)
        await world.add(bookie, 5, count=2, size=700)


async def large(world: World) -> None:
    """Entries larger than a journal group, a cache half and an entry log."""
    async with world.running(close=False) as bookie:
        world.create(bookie, 1)
        world.create(bookie, 2)
        await world.add(bookie, 1, size=5000)
        await world.add(bookie, 1, 2, count=2, size=1700)
        await world.add(bookie, 2, count=3, size=0)
        await world.add(bookie, 1, size=6000)


async def overlaps(world: World) -> None:
    """Deletions and additions at every moment of a flush that is under way."""
    async with world.running(close=False) as bookie:
        world.create(bookie, 1)
        for delay in range(7):
            ledger_id = 10 + delay
            world.create(bookie, ledger_id)
            await world.add(bookie, 1, ledger_id, count=2, size=50)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(bookie.flush)
                for _ in range(delay):
                    await trio.lowlevel.checkpoint()
                await world.add(bookie, ledger_id, 1, size=50)
                await world.delete(bookie, ledger_id)


async def compactions(world: World) -> None:
    """Logs are compacted, also while ledgers grow and go away, and after a restart."""
    async with world.running(close=False) as bookie:
        for ledger_id in range(1, 7):
            world.create(bookie, ledger_id)
        await world.add(bookie, *range(1, 7), count=4, size=150)
        await bookie.flush()
        await world.add(bookie, *range(1, 7), count=3, size=210)
        await bookie.flush()
        await world.drop(bookie, 2, 4, 6)
        await bookie.compact(0.9)
        world.logs_compacted += bookie.statistics().logs_compacted
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.delete, bookie, 1)
            nursery.start_soon(bookie.compact, 1.0)
            nursery.start_soon(bookie.flush)
            await world.add(bookie, 3, 5, count=2, size=300)
        await world.add(bookie, 5, size=3500)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bookie.flush)
            for _ in range(4):
                await bookie.collect_garbage()
        world.logs_compacted += bookie.statistics().logs_compacted
    async with world.running() as bookie:
        await world.drop(bookie, 5)
        await bookie.compact(0.9)
        world.create(bookie, 7)
        await world.add(bookie, 7, count=2)


SCRIPTS: dict[str, Script] = {
    script.__name__: script for script in (trickle, bursts, deletions, fences, large, overlaps, compactions)
}


@pytest.fixture(scope="session")
def new_world() -> Callable[..., World]:
    return World


@pytest.fixture(scope="session")
def scripts() -> dict[str, Script]:
    return SCRIPTS
