"""One life of a topic in its world: what scripts do with it, noted before it is begun and once it is done."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Literal

import trio

from geminga.clock import VirtualClock
from geminga.errors import GemingaError, StorageError
from geminga.managed_ledger.chain.entry import Entry
from geminga.managed_ledger.chain.state import State
from geminga.managed_ledger.chain.tail_cache import TailCache
from geminga.managed_ledger.cursor.cursor import Cursor
from geminga.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerSettings
from geminga.metadata.ledger_ids import LedgerIds
from geminga.position import EARLIEST, Position
from simulation.bookie.sim_ledger import promise
from simulation.topic.delays import TopicDelay
from simulation.topic.truth import CursorTruth, published_ms
from simulation.topic.world import PATH, SMALL_TOPIC, Stores, TopicWorld, sweep


class TopicLife:
    """The stores and, between `load` and `unload` (or `delete`), the topic."""

    def __init__(self, world: TopicWorld, stores: Stores, nursery: trio.Nursery) -> None:
        self.world = world
        self.truth = world.truth
        self.bookie, self.metadata = stores
        self.delays: dict[str, TopicDelay] = {}
        self._nursery = nursery
        self._ledger_ids = LedgerIds(self.metadata)
        self._ledger: ManagedLedger | None = None
        self._failed: GemingaError | None = None
        self._progress = trio.Event()
        self._letting_go: Callable[[], None] | None = None
        self._seen_ms: dict[int, int] = {}
        """When each ledger was there first: time passes between two steps of a script only."""

    @property
    def ledger(self) -> ManagedLedger:
        assert self._ledger is not None, "the topic is not loaded"
        return self._ledger

    # -- the topic ----------------------------------------------------------------------------------------

    async def load(
        self, *, create: bool = True, settings: ManagedLedgerSettings = SMALL_TOPIC
    ) -> ManagedLedger:
        """Open or make the topic, and hold what it has against what was promised. TopicNotFound."""
        truth = self.truth
        if truth.exists != "yes" and self.metadata.get(PATH) is None:
            truth.deleted()
        if truth.exists == "no":
            truth.exists = "maybe"
        ledger = await ManagedLedger.open(
            PATH,
            self.bookie,
            self.metadata,
            self._ledger_ids,
            self.world.clock,
            settings,
            tail_cache=TailCache(),
            create=create,
        )
        self._ledger = ledger
        truth.exists = "yes"
        ledger.attach(self)
        await verify(self)
        self._note_ledgers()
        ledger.life.run_in(self._nursery)
        return ledger

    async def unload(self) -> None:
        self.world.forget_due()
        for delay in self.delays.values():
            await delay.stop()
        self.delays.clear()
        ledger, self._ledger = self.ledger, None
        cursors = dict(ledger.cursors)
        await ledger.life.close()
        if not ledger.fenced:  # else it was closed as it was
            # What a full disk has refused is still dirty; a close tells that, and delivers it again.
            kept = {name for name, cursor in cursors.items() if cursor.is_dirty}
            for name, known in self.truth.cursors.items():
                if not (name in kept and self.world.was_full()):
                    known.durable |= known.consumed

    async def delete(self) -> None:
        for delay in self.delays.values():
            await delay.stop()
        self.delays.clear()
        self.world.tracked = None
        self.truth.exists = "maybe"
        ledger, self._ledger = self.ledger, None
        await ledger.life.delete()
        self.truth.deleted()

    async def terminate(self) -> None:
        self.truth.terminated = "maybe"
        await self.ledger.life.terminate()
        self.truth.terminated = "yes"

    async def pass_ms(self, length_ms: int) -> None:
        """Let time go on."""
        await self.world.pass_ms(self.metadata, length_ms)
        clock = self.world.clock
        if isinstance(clock, VirtualClock) and not self.world.disk.faults.log:
            for name, delay in self.delays.items():
                given = await delay.gives_what_is_due(clock)
                promise(given, f"{name}: a jump has ended, and nothing of what is due came")

    # -- publishing ---------------------------------------------------------------------------------------

    def on_confirmed(self, ledger_id: int, first_entry_id: int, contexts: list[Any]) -> None:
        self.truth.confirmed(ledger_id, first_entry_id, contexts)
        self._wake()

    def on_add_failed(self, error: GemingaError, contexts: list[Any]) -> None:
        self._failed = error
        self._wake()

    def _wake(self) -> None:
        self._progress.set()
        self._progress = trio.Event()

    async def publish(self, count: int = 1, *, size: int = 60, due_ms: int = 0) -> list[Position]:
        """Back when all have their receipts."""
        before = len(self.truth.receipts)
        for _ in range(count):
            await self.bookie.wait_room()
            body = self.truth.new_body(self.world.clock.ms, due_ms, size)
            self.ledger.append([body], body)
        while self.ledger.oldest_pending() is not None and self._failed is None:
            await self._progress.wait()
        if self._failed is not None:
            raise self._failed
        self._note_ledgers()
        return list(self.truth.receipts)[before:]

    # -- consuming ----------------------------------------------------------------------------------------

    async def subscribe(self, name: str, initial: Literal["earliest", "latest"] = "earliest") -> Cursor:
        known = self.truth.cursors.setdefault(name, CursorTruth())
        skipped = set(self.truth.receipts) if initial == "latest" and known.exists != "yes" else set()
        known.consumed |= skipped
        cursor = await self.ledger.open_cursor(name, initial=initial)
        known.exists = "yes"
        known.durable |= skipped
        return cursor

    async def unsubscribe(self, name: str) -> None:
        delay = self.delays.pop(name, None)
        if delay is not None:
            await delay.stop()
            self.world.tracked = None
            self.truth.sealed.clear()
        self.truth.cursors[name].exists = "maybe"
        await self.ledger.delete_cursor(name)
        del self.truth.cursors[name]

    def acknowledge(self, name: str, positions: Sequence[Position]) -> None:
        self.truth.consume(name, list(positions))
        if self._letting_go is not None:
            self._letting_go()
        self.ledger.cursors[name].acknowledge(positions)

    def acknowledge_up_to(self, name: str, position: Position) -> None:
        self.truth.consume(name, self.truth.up_to(position))
        self.ledger.cursors[name].acknowledge_cumulative(position)

    async def persist(self, name: str) -> None:
        """What was acknowledged so far is acknowledged for good on return."""
        consumed = set(self.truth.cursors[name].consumed)
        await self.ledger.cursors[name].persist()
        self.truth.cursors[name].durable |= consumed

    async def expire(self, name: str, ttl_ms: int) -> None:
        """What a TTL does: find the first young enough entry by bisection, acknowledge all before it."""
        ledger, before_ms = self.ledger, self.world.clock.ms - ttl_ms
        old = [place for place, body in self.truth.receipts.items() if published_ms(body) < before_ms]
        self.truth.consume(name, old)

        def is_young(entry: Entry) -> bool:
            return published_ms(entry.body) >= before_ms

        cursor = ledger.cursors[name]
        young = await ledger.reads.find_first(is_young, after=cursor.mark_delete)
        up_to = ledger.last_position() if young is None else ledger.previous_position(young)
        if up_to is not None:
            cursor.acknowledge_cumulative(up_to)

    async def delay(self, name: str, *, is_shared: bool = False) -> TopicDelay:
        """Have an index of delayed entries for this subscription, with what an earlier life has left."""
        delay = TopicDelay(self.world, self.ledger, self.ledger.cursors[name], is_shared=is_shared)
        self.delays[name] = delay
        await self._nursery.start(delay.run)
        await delay.recover()
        return delay

    # -- letting go ---------------------------------------------------------------------------------------

    def _note_what_may_go(self, *, retains: bool = True) -> None:
        """By the rules of retention, of what no subscription needs: from the oldest on."""
        settings, now_ms = self.ledger.settings, self.world.clock.ms
        self._note_ledgers()
        left_bytes = self.ledger.total_size_bytes
        for info in self.ledger.ledgers:
            left_bytes -= info.size_bytes
            age_ms = now_ms - info.closed_ms if info.closed_ms else 0
            time_ms, size_bytes = settings.retention_time_ms, settings.retention_size_bytes
            is_held = time_ms < 0 or age_ms <= time_ms if time_ms else False
            fits = size_bytes < 0 or left_bytes < size_bytes
            is_old = now_ms - self._seen_ms[info.ledger_id] >= settings.rollover_max_ms
            is_full = self.ledger.entries_in(info.ledger_id) >= settings.ledger_entries_max
            if not (info.closed_ms or is_full or is_old):
                return  # still written, and not about to be left
            if not self.truth.is_consumed(info.ledger_id) or (retains and is_held and fits):
                return
            self.truth.may_go.add(info.ledger_id)

    def _note_ledgers(self) -> None:
        for info in self.ledger.ledgers:
            self._seen_ms.setdefault(info.ledger_id, self.world.clock.ms)

    async def trim(self) -> int:
        self._note_what_may_go()
        self._letting_go = self._note_what_may_go
        dropped = await self.ledger.life.trim()
        self._letting_go = None
        self._note_ledgers()
        self._check_not_fenced()
        return dropped

    async def truncate(self) -> None:
        """As a broker does it: every subscription moves to the end, and retention holds nothing back."""
        for name in list(self.ledger.cursors):
            self.acknowledge_up_to(name, self.ledger.last_confirmed)
            if name in self.delays:
                await self.delays[name].clear()
            await self.persist(name)
        self._note_what_may_go(retains=False)
        await self.ledger.life.trim(retains=False)
        self._note_ledgers()
        self._check_not_fenced()

    def _check_not_fenced(self) -> None:
        if self.ledger.state is State.FENCED:
            raise StorageError(f"what went wrong fenced the topic: {self.ledger.error}")

    async def flush(self) -> None:
        """The bookie's caches into entry logs, so that space is really taken and freed."""
        await self.bookie.flush()


async def verify(life: TopicLife) -> None:
    """A topic that was just opened has what was promised of it; from here on what it has is the promise."""
    truth, ledger = life.truth, life.ledger
    found: dict[Position, bytes] = {}
    place = EARLIEST
    while entries := await ledger.read(place, 3, 1 << 20):
        found |= {entry.position: entry.body for entry in entries}
        place = ledger.next_position(entries[-1].position)
    promise(len(found) == ledger.number_of_entries, "not as many entries as are counted")
    for position, body in truth.live().items():
        promise(position in found, f"{position} has a receipt and is gone")
        promise(found[position] == body, f"{position} holds other bytes than were sent")
    for position, body in found.items():
        promise(truth.receipts.get(position, body) == body, f"{position} holds other bytes than were sent")
    truth.receipts = dict(sorted((truth.receipts | found).items()))
    promise(truth.terminated != "yes" or ledger.terminated, "a terminated topic is open again")
    promise(truth.terminated != "no" or not ledger.terminated, "nobody has terminated it")
    _verify_cursors(life, found)


def _verify_cursors(life: TopicLife, found: dict[Position, bytes]) -> None:
    truth, ledger = life.truth, life.ledger
    ledgers = {info.ledger_id for info in ledger.ledgers}
    for name, cursor in ledger.cursors.items():
        promise(name in truth.cursors, f"subscription {name} was deleted and is back")
        known = truth.cursors[name]
        acknowledged = {position for position in found if cursor.is_acknowledged(position)}
        ahead = acknowledged - known.consumed
        promise(not ahead, f"{name}: {sorted(ahead)[:3]} were never acknowledged")
        # A newest state that cannot be read is given up for the one before it: delivered twice, not lost.
        back = set() if life.world.read_failed() else known.durable & found.keys() - acknowledged
        promise(not back, f"{name}: {sorted(back)[:3]} were acknowledged for good")
        promise(
            cursor.mark_delete.ledger_id in ledgers, f"{name} stands at {cursor.mark_delete}, which is gone"
        )
        known.exists = "yes"
        gone = {position for position in known.consumed if position not in found}
        known.consumed, known.durable = gone | acknowledged, acknowledged
    for name, known in list(truth.cursors.items()):
        if name not in ledger.cursors:
            promise(known.exists != "yes", f"subscription {name} is lost")
            del truth.cursors[name]


@asynccontextmanager
async def living(
    world: TopicWorld, *, close: bool = True, settings: ManagedLedgerSettings = SMALL_TOPIC
) -> AsyncIterator[TopicLife]:
    """Stores and topic; with `close` all is closed in order at the end, else just cancelled."""
    async with world.stores(close=close) as stores, trio.open_nursery() as nursery:
        promise(not stores.bookie.recovery.damages, f"a crash looks like damage: {stores.bookie.recovery}")
        await sweep(stores)
        life = TopicLife(world, stores, nursery)
        await life.load(settings=settings)
        yield life
        if close and life._ledger is not None:
            await life.unload()
        nursery.cancel_scope.cancel()
