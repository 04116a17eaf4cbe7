"""The power goes at every disk operation: receipts stay, cursors never run ahead, nothing is left over.

Bookie, index and metadata stand on simulated stores that crash together. After each crash the topic is opened
as a broker would, compared with what was promised before, used, and opened once more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.running.bookie import Bookie
from geminga.clock import TrioClock
from geminga.errors import ServiceNotReady, StorageError, TopicNotFound
from geminga.managed_ledger.chain.state import State
from geminga.managed_ledger.chain.tail_cache import TailCache
from geminga.managed_ledger.cursor.acknowledgments import Acknowledgments
from geminga.managed_ledger.cursor.cursor_ledger import CursorLedger
from geminga.managed_ledger.cursor.cursor_state_format import CursorState, EncodedState
from geminga.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerSettings
from geminga.managed_ledger.orphans import sweep_orphan_ledgers
from geminga.metadata import records
from geminga.metadata.ledger_ids import LedgerIds
from geminga.metadata.store import MetadataStore
from geminga.position import EARLIEST, Position
from simulation.disk.sim_disk import CrashMode, PowerCut, SimDisk
from simulation.disk.sim_key_value import SimKeyValue
from tests.budget import budget

MODES: tuple[CrashMode, ...] = ("drop", "keep", "torn")
STRIDE = budget(day=3, night=1)
"""By day each crash point is tried in one of the modes, by night in all."""
PATH = "/managed-ledgers/public/default/persistent/orders"
SETTINGS = ManagedLedgerSettings(
    ledger_entries_max=4, rollover_min_ms=0, cursor_ledger_entries_max=3, cursor_persist_interval_ms=10
)
SMALL = BookieSettings(
    journal_file_bytes=64 * 1024,
    journal_allocate_bytes=16 * 1024,
    write_cache_bytes=8 * 1024,
    read_cache_bytes=4096,
)

Acked = tuple[frozenset[Position], tuple[tuple[tuple[int, int], int], ...]]


class World:
    """The stores, and what was promised to those above them."""

    def __init__(self, seed: int) -> None:
        self.disk = SimDisk(seed)
        self.index = self._hooked(SimKeyValue(seed), "index")
        self.tree = self._hooked(SimKeyValue(seed + 1), "tree")
        self.sent: list[bytes] = []
        self.receipts: dict[Position, bytes] = {}
        self.failed: list[bytes] = []
        self._progress = trio.Event()
        self.cursors: dict[str, list[CursorState]] = {}
        """What may be found of each cursor: its last durable state, then those that were on their way."""
        self.wanted: set[str] = set()
        """Cursors whose opening returned, and whose deletion was not begun."""
        self.unwanted: set[str] = set()
        """Cursors whose deletion returned."""
        self.droppable: set[int] = set()
        """Ledgers that `trim` was free to drop when it was called."""
        self.terminating = self.terminated = False
        self.deleting = self.deleted = False
        self.ids_seen: set[int] = set()

    def _hooked(self, key_value: SimKeyValue, name: str) -> SimKeyValue:
        key_value.before_write = lambda: self.disk.step("put", name)
        key_value.before_sync = lambda: self.disk.step("sync", name)
        return key_value

    def run(self, script: Callable[[World, ManagedLedger], Awaitable[None]]) -> bool:
        """Live until the script's end or the power's; False if the power went."""

        async def live() -> None:
            async with trio.open_nursery() as nursery:
                ledger = await self.open(nursery)
                await script(self, ledger)
                nursery.cancel_scope.cancel()

        return self._trio(live)

    def _trio(self, live: Callable[[], Awaitable[None]]) -> bool:
        try:
            trio.run(live, clock=MockClock(autojump_threshold=0))
        except BaseExceptionGroup as errors:
            # What a cut power makes of the stores above it may come along, nothing else.
            harmed = self._is_off or self.disk.inject is not None
            if not harmed or errors.split((PowerCut, StorageError))[1] is not None:
                raise
        return not self._is_off

    @property
    def _is_off(self) -> bool:
        return self.disk.crash_at is not None and self.disk.operations >= self.disk.crash_at

    async def open(self, nursery: trio.Nursery) -> ManagedLedger:
        self.metadata = MetadataStore(self.tree, threaded=False)
        await nursery.start(self.metadata.run)
        self.bookie = await Bookie.open(self.disk, self.index, "bookie", SMALL, threaded=False)
        await nursery.start(self.bookie.run)
        await sweep_orphan_ledgers(self.bookie, self.metadata)
        self.swept = {records.ledger_id_of(c) for c in self.metadata.children(records.LEDGERS)}
        ledger = await ManagedLedger.open(
            PATH,
            self.bookie,
            self.metadata,
            LedgerIds(self.metadata),
            TrioClock(),
            SETTINGS,
            tail_cache=TailCache(),
            create=not self.deleting,
        )
        ledger.attach(self)
        for cursor in ledger.cursors.values():
            self._watch(cursor.name, cursor.cursor_ledger)
        ledger.life.run_in(nursery)
        return ledger

    def crash(self, mode: CrashMode) -> None:
        self.disk.crash(mode)
        self.failed.clear()
        keep = {"drop": 0, "keep": None, "torn": None}[mode]
        self.index = self._hooked(self.index.crash(keep), "index")
        self.tree = self._hooked(self.tree.crash(keep), "tree")

    # -- what scripts do --------------------------------------------------------------------------

    def on_confirmed(self, ledger_id: int, first_entry_id: int, contexts: list[Any]) -> None:
        for entry_id, body in enumerate(contexts, first_entry_id):
            self.receipts[Position(ledger_id, entry_id)] = body
        self._progress.set()

    def on_add_failed(self, error: Exception, contexts: list[Any]) -> None:
        assert self._is_off or self.disk.inject, f"nothing fails here: {error}"
        self.failed += contexts
        self._progress.set()

    async def publish(self, ledger: ManagedLedger, count: int) -> list[Position]:
        before = len(self.receipts)
        for _ in range(count):
            self.sent.append(b"message %d" % len(self.sent))
            ledger.append([self.sent[-1]], self.sent[-1])
        while len(self.receipts) < before + count:
            if self.failed:
                raise StorageError("told so")
            await self._progress.wait()
            self._progress = trio.Event()
        return list(self.receipts)[-count:]

    async def open_cursor(self, ledger: ManagedLedger, name: str) -> Any:
        start = CursorState(ledger.first_position()._replace(entry_id=-1), {}, {})
        self.cursors.setdefault(name, [start])
        cursor = await ledger.open_cursor(name, initial="earliest")
        self.wanted.add(name)
        self._watch(name, cursor.cursor_ledger)
        return cursor

    def _watch(self, name: str, ledger: CursorLedger) -> None:
        encode, write, added = ledger.encode, ledger.write, ledger.added
        states = self.cursors[name]
        is_alone = False
        """Written by the cursor itself: in a new ledger the state counts only once the record names it."""

        def watched_encode(state: CursorState) -> EncodedState:
            copied = CursorState(
                state.mark_delete,
                {ledger_id: bitmap.copy() for ledger_id, bitmap in state.acknowledged.items()},
                dict(state.batches),
            )
            states.append(copied)
            return encode(state)

        async def watched_write(state: CursorState) -> int:
            nonlocal is_alone
            is_alone = True
            try:
                left_out = await write(state)
            finally:
                is_alone = False
            del states[:-1]
            return left_out

        async def watched_added(data: bytes) -> None:
            await added(data)
            if not is_alone:
                del states[:-1]

        ledger.encode = watched_encode  # type: ignore[method-assign]
        ledger.write = watched_write  # type: ignore[method-assign]
        ledger.added = watched_added  # type: ignore[method-assign]

    async def seek(self, cursor: Any, position: Position) -> None:
        await cursor.reset(position)
        first = self.cursors[cursor.name][0]
        assert (first.mark_delete, first.acknowledged) == (cursor.mark_delete, {}), "a seek is durable"

    async def trim(self, ledger: ManagedLedger) -> int:
        slowest = min((c.mark_delete for c in ledger.cursors.values()), default=Position(2**62, 0))
        self.droppable |= {
            i.ledger_id for i in ledger.ledgers[:-1] if (i.ledger_id, i.entries - 1) <= slowest
        }
        dropped = await ledger.life.trim()
        if ledger.state is State.FENCED:
            assert isinstance(ledger.error, StorageError)
            raise StorageError("trimming fenced the ledger")
        return dropped

    # -- what must hold ---------------------------------------------------------------------------

    def check(self) -> None:
        """Open, compare, use, and leave in order."""

        async def live() -> None:
            with trio.fail_after(10_000):
                async with trio.open_nursery() as nursery:
                    await self._check(nursery)
                    nursery.cancel_scope.cancel()

        assert self._trio(live), "there is power"

    async def _check(self, nursery: trio.Nursery) -> None:
        try:
            ledger = await self.open(nursery)
        except TopicNotFound:
            assert self.deleting
            assert not self.swept, "ledgers of a deleted topic were left"
            return
        assert not self.deleted, "a deleted topic came back"
        first = ledger.ledgers[0].ledger_id
        gone = {p.ledger_id for p in self.receipts if p.ledger_id < first}
        assert gone <= self.droppable, f"ledgers {gone} are gone, droppable were {self.droppable}"
        found = await self._read_all(ledger)
        for position, body in self.receipts.items():
            if position.ledger_id >= first:
                assert found.get(position) == body, (
                    f"{position} has a receipt and holds {found.get(position)}"
                )
        order = [self.sent.index(body) for body in found.values()]
        assert order == sorted(set(order)), "out of order, or twice"
        self._check_cursors(ledger)
        self._check_ledgers(ledger)
        if self.terminated:
            assert ledger.terminated
        if ledger.terminated:
            assert self.terminating
            return
        positions = await self.publish(ledger, 3)
        assert positions[0].ledger_id not in self.ids_seen, "a ledger id was used twice"
        await ledger.life.close()

    async def _read_all(self, ledger: ManagedLedger) -> dict[Position, bytes]:
        found: dict[Position, bytes] = {}
        place = EARLIEST
        while entries := await ledger.read(place, 3, 1 << 20):
            found |= {entry.position: entry.body for entry in entries}
            place = ledger.next_position(entries[-1].position)
        assert len(found) == ledger.number_of_entries
        return found

    def _check_cursors(self, ledger: ManagedLedger) -> None:
        assert self.wanted <= set(ledger.cursors), "a cursor is lost"
        assert not self.unwanted & set(ledger.cursors), "a deleted cursor came back"
        for name, cursor in ledger.cursors.items():
            allowed = []
            for state in self.cursors[name]:
                model = Acknowledgments(ledger._chain, EARLIEST)
                model.restore(state)
                allowed.append(facts(model))
            assert facts(cursor) in allowed, f"{name} is {facts(cursor)}, it could be {allowed}"
            del self.cursors[name][: allowed.index(facts(cursor))]

    def _check_ledgers(self, ledger: ManagedLedger) -> None:
        """What is there after the sweep is what is named, and one empty ledger at most from the last life."""
        named = {info.ledger_id for info in ledger.ledgers}
        named |= {cursor.cursor_ledger.record.cursor_ledger_id for cursor in ledger.cursors.values()}
        assert len(self.swept - named) <= 1, f"swept to {self.swept}, named are {named}"
        for ledger_id in self.swept - named:
            assert self.bookie.last_entry_id(ledger_id) == -1
        self.ids_seen |= named | self.swept
        self.ids_seen -= {info.ledger_id for info in ledger.ledgers[-1:]}


def facts(cursor: Acknowledgments) -> tuple[Any, ...]:
    """All that is observable of acknowledgments, but not the form of the mark-delete position."""
    batches = sorted(cursor.state().batches.items())
    return (
        cursor.next_unacknowledged(EARLIEST),
        cursor.acknowledged_ranges(),
        batches,
        cursor.backlog_entries(),
    )


# -- scripts ---------------------------------------------------------------------------------------


async def publishing(world: World, ledger: ManagedLedger) -> None:
    """Over several ledgers, in groups and alone."""
    for count in (1, 3, 6, 2):
        await world.publish(ledger, count)
    await ledger.life.close()


async def consuming(world: World, ledger: ManagedLedger) -> None:
    """Acknowledgments of all kinds, cursor ledgers left for new ones, the background task, trims."""
    cursor = await world.open_cursor(ledger, "a")
    other = await world.open_cursor(ledger, "b")
    positions = await world.publish(ledger, 10)
    cursor.acknowledge([positions[2], positions[5]])
    await cursor.persist()
    cursor.acknowledge_batch_index(positions[7], [0b101], 3)
    other.acknowledge_cumulative(positions[8])
    await trio.sleep(1)
    cursor.acknowledge(positions[:2])
    await trio.sleep(1)
    for position in positions[3:9]:
        cursor.acknowledge([position])
        await cursor.persist()
    assert await world.trim(ledger) == 2
    await world.publish(ledger, 2)
    cursor.acknowledge(positions[9:])


async def seeking(world: World, ledger: ManagedLedger) -> None:
    """Forward and back, with acknowledgments in between."""
    positions = await world.publish(ledger, 6)
    cursor = await world.open_cursor(ledger, "a")
    cursor.acknowledge(positions[:5])
    await world.seek(cursor, positions[2])
    cursor.acknowledge([positions[4]])
    await world.seek(cursor, EARLIEST)
    await world.seek(cursor, positions[5])
    cursor.acknowledge([positions[5]])
    await ledger.life.close()


async def deleting_cursors(world: World, ledger: ManagedLedger) -> None:
    positions = await world.publish(ledger, 5)
    for name in ("a", "b"):
        cursor = await world.open_cursor(ledger, name)
        cursor.acknowledge(positions[:2])
        await cursor.persist()
    world.wanted.discard("a")
    await ledger.delete_cursor("a")
    world.unwanted.add("a")
    await ledger.cursors["b"].swap_properties({"x": 1}, {})


async def terminating(world: World, ledger: ManagedLedger) -> None:
    await world.publish(ledger, 6)
    world.terminating = True
    await ledger.life.terminate()
    world.terminated = True


async def deleting(world: World, ledger: ManagedLedger) -> None:
    positions = await world.publish(ledger, 6)
    cursor = await world.open_cursor(ledger, "a")
    cursor.acknowledge(positions[:2])
    await cursor.persist()
    world.wanted.clear()
    world.deleting = True
    await ledger.life.delete()
    world.deleted = True
    with pytest.raises(ServiceNotReady):
        ledger.append([b"late"], None)


SCRIPTS = [publishing, consuming, seeking, deleting_cursors, terminating, deleting]


def crash_everywhere(script: Any, *, stride: int = STRIDE) -> int:
    """Crash the script before each operation; returns how many there were."""
    case, ended = 0, False
    while not ended:
        at, mode = case // 3, MODES[(case + case // 3) % 3]
        world = World(case)
        world.disk.crash_at = at
        ended = world.run(script)
        try:
            world.crash(mode)
            world.check()
            world.crash("drop")
            world.check()
        except (AssertionError, BaseExceptionGroup) as error:
            raise AssertionError(f"{script.__name__}, operation {at}, {mode}: {error!r}") from error
        case += stride
    return case // 3


@pytest.mark.parametrize("script", SCRIPTS)
def test_promises_hold_at_every_crash_point(script: Any) -> None:
    assert crash_everywhere(script) > 20


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_nth_operation_fails_and_nobody_gets_a_false_receipt(script: Any) -> None:
    """It and every later one of its kind; then the power goes, and all that was promised is there."""
    at = 0
    while fail_at(script, at):
        at += STRIDE
    assert at > 15


def fail_at(script: Any, at: int) -> bool:
    """False if the script has not that many operations."""
    world = World(at)
    calls = 0
    broken: str | None = None

    def inject(kind: str, path: str) -> None:
        nonlocal calls, broken
        if calls == at:
            broken = kind
        calls += 1
        if kind == broken:
            raise StorageError(f"{path}: injected: cannot {kind}")

    world.disk.inject = inject
    world.run(script)
    world.disk.inject = None
    try:
        world.crash("drop")
        world.check()
    except (AssertionError, BaseExceptionGroup) as error:
        raise AssertionError(f"{script.__name__}, operation {at}: {error!r}") from error
    return broken is not None


# -- cancelling ------------------------------------------------------------------------------------


async def persist(world: World, ledger: ManagedLedger) -> None:
    await ledger.cursors["a"].persist()
    assert not ledger.cursors["a"].is_dirty


async def seek(world: World, ledger: ManagedLedger) -> None:
    await ledger.cursors["a"].reset(EARLIEST)


async def swap_properties(world: World, ledger: ManagedLedger) -> None:
    await ledger.cursors["a"].swap_properties({"x": 1}, {})


async def open_cursor(world: World, ledger: ManagedLedger) -> None:
    await world.open_cursor(ledger, "b")


async def delete_cursor(world: World, ledger: ManagedLedger) -> None:
    world.wanted.discard("a")
    if "a" in ledger.cursors:
        await ledger.delete_cursor("a")
    world.unwanted.add("a")


async def trim(world: World, ledger: ManagedLedger) -> None:
    await world.trim(ledger)
    assert ledger.number_of_entries == 5


async def set_properties(world: World, ledger: ManagedLedger) -> None:
    await ledger.life.set_properties({"x": "1"})


async def terminate(world: World, ledger: ManagedLedger) -> None:
    world.terminating = True
    await ledger.life.terminate()
    world.terminated = True


async def close(world: World, ledger: ManagedLedger) -> None:
    await ledger.life.close()


async def delete(world: World, ledger: ManagedLedger) -> None:
    world.deleting = True
    world.wanted.clear()
    await ledger.life.delete()
    world.deleted = True


async def find(world: World, ledger: ManagedLedger) -> None:
    found = await ledger.reads.find_first(lambda entry: entry.body >= b"message 5")
    assert found is not None
    assert (await ledger.read_positions([found]))[0].body == b"message 5"


CALLS = [
    persist,
    seek,
    swap_properties,
    open_cursor,
    delete_cursor,
    trim,
    set_properties,
    terminate,
    close,
    delete,
    find,
]


@pytest.mark.parametrize("call", CALLS)
def test_cancelled_anywhere_a_call_can_be_made_again(call: Any) -> None:
    """Cancelled after each number of steps, made again, and then the power goes."""
    cancelled = steps = 0
    while True:
        world = World(steps)
        ended: list[bool] = []

        async def script(
            world: World, ledger: ManagedLedger, steps: int = steps, ended: list[bool] = ended
        ) -> None:
            positions = await world.publish(ledger, 9)
            cursor = await world.open_cursor(ledger, "a")
            cursor.acknowledge(positions[:6])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(call, world, ledger)
                for _ in range(steps):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
            ended.append(not nursery.cancel_scope.cancelled_caught)
            await call(world, ledger)

        assert world.run(script)
        world.crash("drop")
        world.check()
        if ended == [True]:
            break
        cancelled += 1
        steps += 1
    assert cancelled > 0
