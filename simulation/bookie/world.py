"""A bookie on a simulated disk and index that lose power together, and what its clients were promised.

The promises are kept outside the bookie and across crashes. `check` opens what a crash has left and holds it
against them: nothing reported durable is lost or altered, nothing is served that was never added, deleted
ledgers stay away, fences hold, an entry served once is served after the next crash.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

import trio

from geminga.bookie.offline.ledger_names import LedgerName, ledger_names
from geminga.bookie.records.file_names import entry_log_directory, journal_directory
from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.running.bookie import Bookie, LedgerFiles
from geminga.errors import CorruptData, LedgerNotFound, StorageError
from simulation.bookie.sim_ledger import Broken, SimLedger, promise
from simulation.campaign.breaking import lives
from simulation.campaign.deterministic import run_deterministically
from simulation.disk.sim_disk import CrashMode, PowerCut, SimDisk
from simulation.disk.sim_key_value import SimKeyValue

TINY: Final = BookieSettings(
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
    entry_log_sync_bytes=2500,
    compaction_slice_bytes=700,
    compaction_rate_bytes_per_s=0,
    disk_free_bytes_min=500,
)
"""So small that a few entries are enough for every file to roll and every cache to swap."""

HANG_S = 20_000.0
"""Virtual seconds after which a wait counts as one without end."""
CHECKED_IDS: Final = 1000
"""Ledgers that `check` writes have ids above this."""


class Layout(NamedTuple):
    """How many directories of each kind a bookie has; they share one disk, and lose power together."""

    journals: int = 1
    ledgers: int = 1

    def journal_directories(self) -> list[str]:
        return ["data", *(f"journal-{number}" for number in range(1, self.journals))]

    def ledger_directories(self) -> list[str]:
        return ["data", *(f"ledgers-{number}" for number in range(1, self.ledgers))]


ONE_OF_EACH: Final = Layout()


class BookieWorld:
    """One disk, an index for each ledger directory, and the ledgers' owners."""

    def __init__(self, seed: int = 0, settings: BookieSettings = TINY, layout: Layout = ONE_OF_EACH) -> None:
        self.seed = seed
        self.settings = settings
        self.layout = layout
        self.disk = SimDisk(seed)
        self.ledgers: dict[int, SimLedger] = {}
        self.index_lost = False
        self._index_copies: list[list[dict[bytes, bytes]]] = [[] for _ in range(layout.ledgers)]
        """What each index was before each of its syncs."""
        self._indexes = [self._index(number) for number in range(layout.ledgers)]

    def _index(self, number: int, content: dict[bytes, bytes] | None = None) -> SimKeyValue:
        return self._hooked(number, SimKeyValue(self.seed + number, content))

    def _hooked(self, number: int, index: SimKeyValue) -> SimKeyValue:
        index.before_write = lambda: self.disk.step("index write", "index")
        index.before_sync = lambda: self._before_index_sync(number, index)
        index.before_read = lambda: self.disk.step("index read", "index")
        return index

    def _before_index_sync(self, number: int, index: SimKeyValue) -> None:
        self.disk.step("index sync", "index")
        self._index_copies[number].append(index.durable())

    def crash(self, mode: CrashMode) -> None:
        self.forget_writers()
        self.disk.faults.clear()
        self.disk.space_bytes = None
        self.disk.crash(mode)
        for number, index in enumerate(self._indexes):
            keep = {"drop": 0, "keep": index.unsynced, "torn": None}[mode]
            self._indexes[number] = self._hooked(number, index.crash(keep))

    def lose_index(self, age: int | None = None, *, number: int | None = None) -> None:
        """All of them, or that of one ledger directory. With them go the only knowledge of deletions and
        fences; entries must all come back. With an age in syncs an old copy is put in its place, if there
        were as many.
        """
        for lost in range(self.layout.ledgers) if number is None else (number,):
            copies = self._index_copies[lost]
            copy = copies[-age] if age is not None and age <= len(copies) else None
            self._indexes[lost] = self._index(lost, copy)
        self.index_lost = True

    @asynccontextmanager
    async def running(self, *, close: bool = True) -> AsyncIterator[Bookie]:
        """A bookie that runs; with `close` it is closed in order at the end, else just cancelled."""
        bookie = await Bookie.open_directories(
            self.disk,
            self.layout.journal_directories(),
            list(map(LedgerFiles, self.layout.ledger_directories(), self._indexes)),
            self.settings,
            threaded=False,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(bookie.run)
            yield bookie
            if close:
                await bookie.close()
            nursery.cancel_scope.cancel()

    # ---- what scripts do

    def create(self, bookie: Bookie, ledger_id: int) -> SimLedger:
        ledger, name = SimLedger(ledger_id), _name_of(ledger_id)
        self.ledgers[ledger_id] = ledger
        ledger.writer = bookie.create_ledger(
            ledger_id,
            on_durable=ledger.on_durable,
            on_failed=ledger.on_failed,
            topic=name.topic,
            purpose=name.purpose,
        )
        return ledger

    async def add(self, bookie: Bookie, *ledger_ids: int, count: int = 1, size: int = 90) -> None:
        """Entries for each of the ledgers in turn; back when all are durable."""
        ledgers = [self.ledgers[ledger_id] for ledger_id in ledger_ids]
        for _ in range(count):
            for ledger in ledgers:
                if not bookie.has_room():
                    await bookie.wait_room()
                assert ledger.writer is not None
                body = ledger.body(size)
                ledger.writer.append(body)
                ledger.bodies.append(body)
        for ledger in ledgers:
            while ledger.is_pending():
                await ledger.progress.wait()
            if ledger.failure is not None:
                raise ledger.failure

    async def delete(self, bookie: Bookie, ledger_id: int) -> None:
        self.ledgers[ledger_id].deleting = True
        await bookie.delete_ledger(ledger_id)
        self.ledgers[ledger_id].deleted = True

    async def drop(self, bookie: Bookie, *ledger_ids: int) -> None:
        """Delete several, and let the space come back at once."""
        for ledger_id in ledger_ids:
            await self.delete(bookie, ledger_id)
        await bookie.collect_garbage()

    async def fence(self, bookie: Bookie, ledger_id: int) -> None:
        self.ledgers[ledger_id].fenced_at = await bookie.fence(ledger_id)

    async def read_back(self, bookie: Bookie, ledger_id: int) -> int:
        """Everything of a ledger, held against what was added; its last entry id."""
        ledger, last = self.ledgers[ledger_id], bookie.last_entry_id(ledger_id)
        promise(last >= ledger.durable, f"ledger {ledger_id}: {ledger.durable} was durable, {last} is left")
        promise(last < len(ledger.bodies), f"ledger {ledger_id}: entries that nobody added")
        found: list[bytes] = []
        while len(found) <= last:
            found += await bookie.read(ledger_id, len(found), last, bytes_max=400)
        promise(found == ledger.bodies[: last + 1], f"ledger {ledger_id}: other bytes than were added")
        return last

    # ---- lives

    def run(self, script: Script) -> bool:
        """False if the power went or a fault ended it. Anything else that comes out is a bug."""
        return self._lives(script)

    def recover(self) -> bool:
        """Open and leave without a check; False if the power went."""
        return self._lives(_open_and_leave)

    def _lives(self, script: Script) -> bool:
        return lives(self.disk, self.seed, lambda: script(self), self._may_end, HANG_S)

    def _may_end(self, error: BaseException) -> bool:
        if isinstance(error, BaseExceptionGroup):
            return all(map(self._may_end, error.exceptions))
        if isinstance(error, PowerCut | trio.Cancelled):
            return True
        harmed = self.disk.is_off or self.disk.faults.active or self.disk.inject is not None
        return (
            harmed and isinstance(error, StorageError) and not isinstance(error, CorruptData | LedgerNotFound)
        )

    def check(self) -> None:
        """Raises `Broken`, or whatever comes out of a bookie that should have opened. Crashes twice more."""
        first = self._check_once()
        self.crash("drop")
        second = self._check_once()
        promise({**second, **first} == second, "what was served has changed after another crash")

    def check_told_unless_off(self) -> None:
        """After a failure nobody was left waiting; after a power cut there is nobody to tell."""
        if self.disk.is_off:
            return
        for ledger_id, ledger in self.ledgers.items():
            promise(not ledger.is_pending() or ledger.writer is None, f"ledger {ledger_id} was left waiting")

    def forget_writers(self) -> None:
        """The process is gone; what was pending will never be reported."""
        for ledger in self.ledgers.values():
            ledger.writer = None

    def _check_once(self) -> dict[int, int]:
        self.forget_writers()
        lasts: dict[int, int] = {}
        # A name may be torn off an entry that nobody was told of.
        promised = {ledger_id for ledger_id, ledger in self.ledgers.items() if ledger.durable >= 0}
        unnamed = promised - self._names()

        async def look() -> None:
            with trio.fail_after(HANG_S):
                async with self.running(close=False) as bookie:
                    promise(not bookie.recovery.damages, f"a crash looks like damage: {bookie.recovery}")
                    found = bookie.recovery
                    missing = found.logs_missing or found.logs_cut or found.entries_moved
                    promise(self.index_lost or not missing, "the index names logs that are gone")
                    for ledger in self.ledgers.values():
                        lasts[ledger.ledger_id] = await self._check_ledger(bookie, ledger)
                    # A read heals a damaged record from a journal. No record is damaged here, so one that
                    # was healed is one that the index named without having it.
                    damaged = bookie.statistics().damaged_entries_found
                    promise(not damaged, f"{damaged} entries are damaged after a crash")
                    surplus = _entries_counted(bookie) - sum(last + 1 for last in lasts.values())
                    dead = sum(len(ledger.bodies) for ledger in self.ledgers.values() if ledger.deleting)
                    promise(0 <= surplus <= dead, f"{surplus} entries too many are counted")
                    new = max([CHECKED_IDS, *self.ledgers]) + 1
                    self.create(bookie, new)
                    await self.add(bookie, new, count=3)
                    lasts[new] = 2

        run_deterministically(self.seed, look)
        unnamed |= promised - self._names()
        unnamed &= {ledger_id for ledger_id, last in lasts.items() if last >= 0}
        promise(not unnamed, f"ledgers {unnamed} have no name")
        return lasts

    def _names(self) -> set[int]:
        """The ledgers that the files name without an index, and rightly."""
        journals = [journal_directory(each) for each in self.layout.journal_directories()]
        entry_logs = [entry_log_directory(each) for each in self.layout.ledger_directories()]
        names = ledger_names(self.disk, journals, entry_logs)
        for ledger_id, name in names.items():
            promise(name == _name_of(ledger_id), f"ledger {ledger_id} is called {name}")
        return set(names)

    async def _check_ledger(self, bookie: Bookie, ledger: SimLedger) -> int:
        ledger_id, last = ledger.ledger_id, bookie.last_entry_id(ledger.ledger_id)
        if self.index_lost and ledger.deleting:
            await bookie.delete_ledger(ledger_id)  # as whoever keeps the metadata does
            return -1
        if ledger.deleted or (ledger.deleting and last == -1):
            promise(last == -1, f"ledger {ledger_id} was deleted and is back")
            promise(
                ledger_id not in bookie.inventory.ledgers(), f"ledger {ledger_id} was deleted and is listed"
            )
            try:
                await bookie.read(ledger_id, 0, 0, bytes_max=1000)
            except LedgerNotFound:
                return -1
            raise Broken(f"ledger {ledger_id} was deleted and is read")
        last = await self.read_back(bookie, ledger_id)
        if ledger.fenced_at is not None:
            promise(last == ledger.fenced_at, f"ledger {ledger_id}: fenced at {ledger.fenced_at}, has {last}")
            forgotten = _can_be_created(bookie, ledger_id) and not self.index_lost
            promise(not forgotten, f"the fence of {ledger_id} is forgotten")
        return last


def _name_of(ledger_id: int) -> LedgerName:
    return LedgerName(("data", "cursor", "bucket")[ledger_id % 3], f"topic-{ledger_id}")


def _entries_counted(bookie: Bookie) -> int:
    """What garbage collection will go by."""
    usages = [directory.storage.index.usage for directory in bookie.directories]
    return sum(row.entries for usage in usages for ledgers in usage.values() for row in ledgers.values())


def _can_be_created(bookie: Bookie, ledger_id: int) -> bool:
    # The mark itself: a ledger with entries cannot be created again whether it is fenced or not.
    return not any(ledger_id in directory.storage.index.states for directory in bookie.directories)


async def _open_and_leave(world: BookieWorld) -> None:
    async with world.running(close=False):
        pass


Script = Callable[[BookieWorld], Awaitable[None]]
