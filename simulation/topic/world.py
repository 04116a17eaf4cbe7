"""A topic on a simulated disk: bookie, index and metadata lose power together, and what the topic has
promised is held against what is left.

`running` is one life of a broker's rooms below the broker: stores opened and swept as a broker does it, then
the topic. `life.py` has what scripts do, `check.py` what must hold.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import ClassVar, Final, NamedTuple

import trio
from msgspec.structs import replace

from geminga.bookie.offline.held_ledgers import StoppedLedgerFiles, held_ledgers
from geminga.bookie.running.bookie import Bookie
from geminga.clock import VirtualClock
from geminga.errors import CorruptData, LedgerNotFound, StorageError
from geminga.managed_ledger.managed_ledger import ManagedLedgerSettings
from geminga.managed_ledger.orphans import existing_ledgers, sweep_orphan_ledgers
from geminga.managed_ledger.unrecorded import compare, set_aside_unrecorded
from geminga.metadata.store import MetadataStore
from geminga.metadata.virtual_clock_state import restored_clock, save_clock, save_jump
from simulation.bookie.sim_ledger import Broken, promise
from simulation.bookie.world import HANG_S, TINY
from simulation.campaign.breaking import lives
from simulation.disk.sim_disk import CrashMode, PowerCut, SimDisk
from simulation.disk.sim_key_value import SimKeyValue
from simulation.topic.truth import TopicTruth

DIRECTORY: Final = "bookie"
PATH: Final = "/managed-ledgers/public/default/persistent/orders"
SMALL_BOOKIE: Final = replace(
    TINY, journal_file_bytes=8192, queue_bytes_max=50_000, write_cache_bytes=4000, entry_log_bytes=1500
)
SMALL_TOPIC: Final = ManagedLedgerSettings(
    ledger_entries_max=4, rollover_min_ms=0, cursor_ledger_entries_max=3, cursor_persist_interval_ms=10
)
"""A few entries are enough for topic, cursors and entry logs to go on in new ledgers and files."""


BEGAN_MS: Final = 1_700_000_000_000


class WorldClock:
    """Message time, moved by scripts; it goes on from life to life."""

    is_virtual: ClassVar = False

    def __init__(self) -> None:
        self.ms = BEGAN_MS

    def now_ms(self) -> int:
        return self.ms

    async def sleep_until_ms(self, due_ms: int) -> None:
        raise NotImplementedError

    def monotonic_s(self) -> float:
        return trio.current_time()

    def step_ms(self) -> int:
        return 0

    def worker(self, name: str) -> None:
        return None

    def pass_ms(self, length_ms: int) -> None:
        """Time goes on by itself."""
        self.ms += length_ms


class JumpingClock(VirtualClock):
    """The broker's virtual clock, on a machine whose time stands still but for `pass_ms`."""

    def __init__(self, machine: Machine, offset_ms: int = 0, reached_ms: int = 0) -> None:
        super().__init__(offset_ms, reached_ms, machine.now_ms)
        self._machine = machine

    @property
    def ms(self) -> int:
        return self.now_ms()

    def monotonic_s(self) -> float:
        return trio.current_time()

    def pass_ms(self, length_ms: int) -> None:
        """Time goes on by itself; nothing is woken by that."""
        self._machine.ms += length_ms


class Machine:
    """The clock of the machine, which goes on while it is off."""

    def __init__(self) -> None:
        self.ms = BEGAN_MS

    def now_ms(self) -> int:
        return self.ms


class Stores(NamedTuple):
    """What a topic stands on, open."""

    bookie: Bookie
    metadata: MetadataStore


class TopicWorld:
    """One disk, the bookie's index, the metadata tree, and the truth about the topic on them."""

    def __init__(self, seed: int = 0, *, jumps: bool = False) -> None:
        """With `jumps` its clock is the broker's virtual one, restored at each start."""
        self.seed = seed
        self.disk = SimDisk(seed)
        self._machine = Machine()
        self.clock: WorldClock | JumpingClock = JumpingClock(self._machine) if jumps else WorldClock()
        self.jumped_to_ms = 0
        """Where the last jump that was durable has led."""
        self._jumping_to_ms = 0
        """Where a jump leads whose record is not durable yet: a power cut may keep it."""
        self._jumps = jumps
        self.truth = TopicTruth()
        self._index = self._hooked(SimKeyValue(seed), "index")
        self._tree = self._hooked(SimKeyValue(seed + 1), "tree")
        self.fault_lasts = False
        """Whether the disk stays full, or an operation fails whenever it is tried."""
        self.tracked: Callable[[], set[tuple[int, int]]] | None = None
        """What the delayed index of this life holds, if it has one."""

    def _hooked(self, rows: SimKeyValue, name: str) -> SimKeyValue:
        rows.before_write = lambda: self.disk.step(f"{name} write", name)
        rows.before_sync = lambda: self.disk.step(f"{name} sync", name)
        rows.before_read = lambda: self.disk.step(f"{name} read", name)
        return rows

    def crash(self, mode: CrashMode) -> None:
        self.forget_due()
        self.disk.faults.clear()
        self.disk.inject = None
        self.disk.space_bytes = None
        self.fault_lasts = False
        self.disk.crash(mode)
        for name in ("_index", "_tree"):
            rows: SimKeyValue = getattr(self, name)
            keep = {"drop": 0, "keep": rows.unsynced, "torn": None}[mode]
            setattr(self, name, self._hooked(rows.crash(keep), name[1:]))

    def forget_due(self) -> None:
        """The index goes. What was due has left it, and its bucket may be gone: it is in the backlog."""
        if self.tracked is not None:
            self.truth.sealed &= self.tracked()
            self.tracked = None

    # -- lives ------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def stores(self, *, close: bool) -> AsyncIterator[Stores]:
        """Metadata and bookie, recovered and not swept yet. With `close` the bookie ends in order."""
        async with trio.open_nursery() as nursery:
            metadata = MetadataStore(self._tree, threaded=False)
            await nursery.start(metadata.run)
            place = StoppedLedgerFiles(DIRECTORY, self._index)
            found = compare(held_ledgers(self.disk, [DIRECTORY], [place]), metadata)
            promise(not found.is_behind, f"a crash makes the metadata look as if it were behind: {found}")
            bookie = await Bookie.open(
                self.disk,
                self._index,
                DIRECTORY,
                SMALL_BOOKIE,
                existing_ledgers=functools.partial(existing_ledgers, metadata),
                threaded=False,
            )
            await nursery.start(bookie.run)
            if self._jumps:
                await self._restore_clock(metadata)
            yield Stores(bookie, metadata)
            if close:
                await bookie.close()
            nursery.cancel_scope.cancel()

    async def _restore_clock(self, metadata: MetadataStore) -> None:
        """As a start does it; it shows what it has shown, as the machine's stood still meanwhile, or where a
        jump has led. If the power went while a jump was recorded, it may have led there.
        """
        expected_ms = max(self.clock.now_ms(), self.jumped_to_ms)
        restored = await restored_clock(metadata, functools.partial(JumpingClock, self._machine))
        assert isinstance(restored, JumpingClock)
        self.clock = restored
        now_ms = restored.now_ms()
        if self._jumping_to_ms == now_ms:
            self.jumped_to_ms = now_ms
        else:
            promise(now_ms == expected_ms, f"the clock shows {now_ms}, and was at {expected_ms}")
        self._jumping_to_ms = 0

    async def pass_ms(self, metadata: MetadataStore, length_ms: int) -> None:
        """Let time go on: by a jump, if the clock has them; durable on return then."""
        if isinstance(self.clock, JumpingClock):
            await self._jump(metadata, self.clock, length_ms)
        else:
            self.clock.pass_ms(length_ms)

    async def _jump(self, metadata: MetadataStore, clock: JumpingClock, length_ms: int) -> None:
        """From alarm to alarm, durably first, as `geminga/broker/jumps` does it."""
        to_ms = clock.now_ms() + length_ms
        with clock.held():
            self._jumping_to_ms = to_ms
            await save_jump(metadata, clock, to_ms)
            self.jumped_to_ms, self._jumping_to_ms = to_ms, 0
            await clock.quiet()
            while (now_ms := clock.now_ms()) < to_ms:
                next_ms = clock.next_alarm_ms()
                clock.move_to(to_ms if next_ms is None else min(max(next_ms, now_ms + 1), to_ms))
                await clock.quiet()
            clock.let_go(await save_clock(metadata, clock))

    def run(self, script: Callable[[TopicWorld], Awaitable[None]]) -> bool:
        """False if the power went or a fault ended it. Anything else that comes out is a bug."""
        return lives(self.disk, self.seed, lambda: script(self), self._may_end, HANG_S)

    def _may_end(self, error: BaseException) -> bool:
        if isinstance(error, BaseExceptionGroup):
            return all(map(self._may_end, error.exceptions))
        if isinstance(error, Broken):
            return False
        if self.disk.is_off or isinstance(error, PowerCut | trio.Cancelled):
            return True  # whatever a task makes of another one's end, the machine was off
        if isinstance(error, trio.TooSlowError):
            return self.fault_lasts  # who waits for space, or tries again, is as good as who gives up
        harmed = self.disk.faults.active or self.disk.inject is not None
        return (
            harmed and isinstance(error, StorageError) and not isinstance(error, CorruptData | LedgerNotFound)
        )

    def recover(self) -> bool:
        """Open, sweep, collect, and leave without a check; False if the power went."""
        return self.run(_open_and_leave)

    def read_failed(self) -> bool:
        """Whether a fault was injected into a read, ever."""
        return any("read" in text for text in self.disk.faults.log)

    def was_full(self) -> bool:
        """Whether a write has found no space, ever."""
        return any("No space left" in text for text in self.disk.faults.log)

    def used_bytes(self) -> int:
        """Of all entry logs."""
        directory = f"{DIRECTORY}/entry-logs"
        return sum(self.disk.open(f"{directory}/{name}").size() for name in self.disk.list(directory))


async def sweep(stores: Stores) -> None:
    """As at a broker's start, before any topic is open."""
    promise(await set_aside_unrecorded(*stores) == [], "a crash leaves ledgers to be set aside")
    await sweep_orphan_ledgers(*stores)


async def _open_and_leave(world: TopicWorld) -> None:
    async with world.stores(close=False) as stores:
        promise(not stores.bookie.recovery.damages, f"a crash looks like damage: {stores.bookie.recovery}")
        await sweep(stores)
        await stores.bookie.collect_garbage()
