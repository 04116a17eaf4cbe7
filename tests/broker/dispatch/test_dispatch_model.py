"""Random programs against a model of what consumers may see, for each subscription type.

Whatever clients do in whatever order: nobody gets an entry that is acknowledged or pending at someone;
permits fall below zero by at most the last entry; a key's entries go to one consumer at a time and in order;
and in the end, once everybody has permits and acknowledges, everything has been delivered.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from geminga.broker.delays import subscription_delays
from geminga.broker.dispatch import delaying as dispatch_delayed
from geminga.broker.dispatch.consumer import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED
from geminga.broker.subscription.statistics import statistics_of
from geminga.errors import CorruptData, StorageError
from geminga.position import Position
from geminga.tracker.buckets.bucket_store import BucketStore
from geminga.tracker.index import bucket_map
from geminga.wire.decoder import Delivery
from tests.broker.dispatch_rig import Client, FakeOutbox, Rig, message, open_rig, position_of
from tests.budget import budget

PROGRAMS = budget(day=40, night=20_000)
"""How many programs for each type; the nightly number is 20,000."""
KEYS = 3
UNACKED_MAX = 12
UNACKED_MAX_ALL = 30

SMALL_BUCKETS = {
    "keeps_buckets": True,
    "bucket_indexes_min": 3,
    "segment_indexes_max": 2,
    "segment_span_ms": 500,
    "buckets_max": 3,
}
INDEXES: list[dict[str, Any] | None] = [
    None,
    SMALL_BUCKETS,
    {"is_shared": True},
    {"is_shared": True, **SMALL_BUCKETS},
]
"""What holds the delayed entries; None: a tracker in memory."""

pick = st.integers(0, 11)
publish = st.tuples(st.just("publish"), st.lists(st.tuples(pick, st.integers(1, 4)), min_size=1, max_size=12))
flow = st.tuples(st.just("flow"), pick, st.integers(1, 15))
ack = st.tuples(st.just("ack"), pick, st.integers(1, 10))
nack = st.tuples(st.just("nack"), pick, st.integers(0, 5), st.integers(1, 4))
join = st.tuples(st.just("join"), st.integers(0, 2), st.sampled_from("abcd"))
operation = st.one_of(
    publish,
    publish,
    flow,
    flow,
    ack,
    ack,
    nack,
    nack,
    join,
    st.tuples(st.just("leave"), pick),
    st.tuples(st.just("delay"), pick, st.integers(1, 3000)),
    st.tuples(st.just("delays"), st.lists(st.integers(1, 3000), min_size=2, max_size=20)),
    st.tuples(st.just("lose"), pick),
    st.tuples(st.just("jam"), st.booleans()),
    st.tuples(st.just("restart")),
    st.tuples(st.just("ack_elsewhere"), pick, st.integers(1, 3)),
    st.tuples(st.just("redeliver"), pick),
    st.tuples(st.just("block"), pick),
    st.tuples(st.just("unblock"), pick),
    st.tuples(st.just("wait"), st.integers(1, 50)),
    st.tuples(st.just("wait"), st.integers(50, 1500)),
)
beginning = st.tuples(join, flow, publish, join, flow, publish).map(list)
programs = st.builds(list.__add__, beginning, st.lists(operation, min_size=12, max_size=60))


class Model:
    """What each entry is to clients: acknowledged, pending at someone, or neither."""

    def __init__(self, rig: Rig, sub_type: str, index: dict[str, Any] | None) -> None:
        self.rig = rig
        self.sub_type = sub_type
        self.index = index
        self.log: list[tuple[int, Delivery]] = []
        """What was sent since the last check, and when."""
        self.clients: list[Client] = []
        self.sizes: dict[Position, int] = {}
        self.keys: dict[Position, int] = {}
        self.due_ms: dict[Position, int] = {}
        self.pending: dict[Position, int] = {}
        self.acked: set[Position] = set()
        self.subscription: Any = None
        self.is_jammed = False
        """Whether buckets cannot be written."""

    async def step(self, name: str, *arguments: Any) -> None:
        await getattr(self, name)(*arguments)
        await self.rig.settle()
        self.check()

    def client(self, number: int) -> Client | None:
        return self.clients[number % len(self.clients)] if self.clients else None

    # -- operations ------------------------------------------------------------------------------------------

    async def publish(self, entries: list[tuple[int, int]], *, deliver_at_ms: int = 0) -> None:
        bodies = [
            message(key=str(key % KEYS), batch=size if size > 1 else 0, deliver_at_ms=deliver_at_ms)
            for key, size in entries
        ]
        for position, (key, size) in zip(await self.rig.publish(*bodies), entries, strict=True):
            self.sizes[position] = size
            self.keys[position] = key % KEYS
            if deliver_at_ms:
                self.due_ms[position] = deliver_at_ms

    async def delay(self, key: int, delay_ms: int) -> None:
        await self.publish([(key, 1)], deliver_at_ms=self.rig.now_ms() + delay_ms)

    async def delays(self, delays_ms: list[int]) -> None:
        """With an ordinary entry behind them."""
        for number, delay_ms in enumerate(delays_ms):
            await self.delay(number, delay_ms)
        await self.publish([(0, 1)])

    async def lose(self, number: int) -> None:
        """A part of the index is lost: nobody may notice."""
        delayed = self.subscription.delayed
        buckets = delayed.buckets
        if buckets is not None and (stored := buckets.stored):
            buckets.lose(stored[number % len(stored)], CorruptData("as if"), "load")
            return
        if buckets is not None:
            return
        held = [p for p in self.due_ms if delayed.holds(p)]
        if held:
            ledger_id = held[number % len(held)].ledger_id
            delayed.tracker.pass_positions([p for p in held if p.ledger_id == ledger_id])
            delayed.read_again(ledger_id, ledger_id)

    async def jam(self, is_jammed: bool) -> None:
        self.is_jammed = is_jammed

    async def restart(self) -> None:
        """All consumers lose their connections, and the subscription begins anew with what is durable."""
        for client in self.clients:
            self._gives_back(self.held_by(client))
        self.clients.clear()
        await self.rig.settle()
        await self.subscription.close()
        if self.rig.delays is not None:
            self.rig.delays.detach(self.subscription.delayed)
            await self.rig.delays.close()
        self.rig.topic.subscriptions.clear()
        await self.begin()

    async def begin(self) -> None:
        if self.index is not None:
            await self.rig.index(strict=True, tick_ms=16, **self.index)
        self.subscription = await self.rig.subscription(
            unacked_max_per_consumer=UNACKED_MAX,
            unacked_max_per_subscription=UNACKED_MAX_ALL,
            round_robin_entries_max=3,
            read_entries_max=8,
            look_ahead_max_per_consumer=20,
            look_ahead_max_per_subscription=60,
        )

    async def join(self, priority: int, name: str) -> None:
        if self.sub_type == EXCLUSIVE and self.clients:
            return
        client = self.rig.join(
            self.subscription,
            self.sub_type,
            name,
            permits=0,
            priority_level=priority,
            outbox=FakeOutbox(self._sent),
        )
        self.clients.append(client)

    async def leave(self, number: int) -> None:
        client = self.client(number)
        if client is not None:
            self.clients.remove(client)
            client.leave()
            self._gives_back(self.held_by(client))

    async def flow(self, number: int, permits: int) -> None:
        if client := self.client(number):
            client.flow(permits)

    async def ack(self, number: int, count: int) -> None:
        if client := self.client(number):
            self._acknowledge(client, self.held_by(client)[::-1][:count])

    async def ack_elsewhere(self, number: int, count: int) -> None:
        """Through another consumer than the one that got it, and once more than needed."""
        if client := self.client(number):
            held = [p for p in self.pending if self.pending[p] != client.consumer.consumer_id][:count]
            self._acknowledge(client, held)
            client.ack(*held)

    async def nack(self, number: int, first: int, count: int) -> None:
        client = self.client(number)
        if client is None:
            return
        held = self.held_by(client)[first : first + count]
        client.nack(*held)
        self._gives_back(held if self._is_individual else self.held_by(client))

    async def redeliver(self, number: int) -> None:
        if client := self.client(number):
            self.rig.topic.subscriptions["s"].consumers.redeliver(client.consumer, None, None)
            self._gives_back(self.held_by(client))

    async def block(self, number: int) -> None:
        if client := self.client(number):
            client.outbox.writable = False

    async def unblock(self, number: int) -> None:
        if client := self.client(number):
            client.outbox.has_room_again()

    async def wait(self, wait_ms: int) -> None:
        await self.rig.pass_ms(wait_ms)
        if self.rig.clock.is_virtual and self.sub_type == SHARED:
            self._check_handed_out()

    # -- what is true ----------------------------------------------------------------------------------------

    @property
    def _is_individual(self) -> bool:
        return self.sub_type in (SHARED, KEY_SHARED)

    def held_by(self, client: Client) -> list[Position]:
        return sorted(p for p, held_by in self.pending.items() if held_by == client.consumer.consumer_id)

    def _gives_back(self, positions: Iterable[Position]) -> None:
        for position in positions:
            self.pending.pop(position, None)

    def _acknowledge(self, client: Client, positions: list[Position]) -> None:
        if positions:
            client.ack(*positions)
            self.acked.update(positions)
            self._gives_back(positions)

    def check(self) -> None:
        """Judge what was sent since the last check, in the order in which it was sent."""
        for sent_ms, delivery in self.log:
            self._received(sent_ms, delivery)
        self.log.clear()
        for client in self.clients:
            consumer = client.consumer
            assert consumer.permits > -4, "permits fall below zero only by the last entry"
            if self._is_individual:
                held = sum(self.sizes[p] for p in self.held_by(client))
                assert consumer.unacked == held
                assert held < UNACKED_MAX + 4
        if self._is_individual:
            held = sum(self.sizes[p] for p in self.pending)
            assert statistics_of(self.subscription).unacked_messages == held
        assert self.subscription.backlog() == len(self.sizes) - len(self.acked)

    def _check_handed_out(self) -> None:
        """A jump has ended: what is due is with a consumer, or none has room for it."""
        self.check()
        has_room = any(
            client.consumer.permits > 0 and client.outbox.writable and client.consumer.unacked < UNACKED_MAX
            for client in self.clients
        )
        now_ms = self.rig.now_ms()
        left = [
            position
            for position, due_ms in self.due_ms.items()
            if due_ms <= now_ms and position not in self.acked and position not in self.pending
        ]
        assert not (left and has_room), f"{left} are due, and a jump has ended"

    def _sent(self, command: Any) -> None:
        if type(command) is Delivery:
            self.log.append((self.rig.now_ms(), command))

    def _received(self, sent_ms: int, delivery: Delivery) -> None:
        position, consumer_id = position_of(delivery), delivery.message.consumer_id
        assert position not in self.acked, f"{position} is acknowledged"
        if self._is_individual:
            assert position not in self.pending, f"{position} is pending already"
            assert sent_ms >= self.due_ms.get(position, 0), f"{position} is early"
        if self.sub_type == KEY_SHARED and position not in self.due_ms:
            for earlier, key in self.keys.items():
                if key == self.keys[position] and earlier < position and earlier not in self.due_ms:
                    assert earlier in self.acked or self.pending.get(earlier) == consumer_id, (
                        f"{position} overtakes {earlier} of its key"
                    )
        self.pending[position] = consumer_id

    async def finish(self) -> None:
        """Everybody gets permits and acknowledges: in the end nothing is left."""
        self.is_jammed = False
        if not self.clients:
            await self.join(0, "last")
        for client in self.clients:
            client.outbox.has_room_again()
        for _ in range(400):
            for client in self.clients:
                client.flow(50)
            await trio.sleep(0.1)
            await self.rig.settle()
            self.check()
            for client in self.clients:
                self._acknowledge(client, self.held_by(client))
            if len(self.acked) == len(self.sizes):
                break
        assert not self.sizes.keys() - self.acked, "everything is delivered in the end"
        assert self.subscription.backlog() == 0


def slow_down(rig: Rig, read_ms: int) -> None:
    """Reads come from a disk that takes its time, so that anything may happen meanwhile."""
    ledger: Any = rig.ledger
    read, read_positions = ledger.read, ledger.read_positions

    async def slow_read(*arguments: Any, **named: Any) -> Any:
        await trio.sleep(read_ms / 1000)
        return await read(*arguments, **named)

    async def slow_read_positions(*arguments: Any, **named: Any) -> Any:
        await trio.sleep(read_ms / 1000)
        return await read_positions(*arguments, **named)

    ledger.read_cached = lambda *_: []
    ledger.read, ledger.read_positions = slow_read, slow_read_positions


async def execute(
    sub_type: str,
    program: list[tuple[Any, ...]],
    ledger_entries_max: int,
    read_ms: int,
    index: dict[str, Any] | None,
    is_tight: bool,
    jumps: bool,
) -> None:
    async with open_rig(
        partition=0, jumps=jumps, ledger_entries_max=ledger_entries_max, rollover_min_ms=0
    ) as rig:
        model = Model(rig, sub_type, index)
        if read_ms:
            slow_down(rig, read_ms)
        with bounds(model, is_tight=is_tight):
            await model.begin()
            for name, *arguments in program:
                await model.step(name, *arguments)
            await model.finish()


@contextmanager
def bounds(model: Model, *, is_tight: bool) -> Iterator[None]:
    """What is rare with the sizes of a broker happens often; and buckets may be impossible to write."""
    writing = BucketStore.writing

    @asynccontextmanager
    async def may_fail(store: BucketStore) -> AsyncIterator[Any]:
        if model.is_jammed:
            raise StorageError("no room for buckets")
        async with writing(store) as writer:
            yield writer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BucketStore, "writing", may_fail)
        if is_tight:
            patch.setattr(bucket_map, "FROZEN_ROWS_MAX", 1)
            patch.setattr(subscription_delays, "EARLY_MAX", 2)
            patch.setattr(dispatch_delayed, "LEAP_ENTRIES_MIN", 2)
            patch.setattr(dispatch_delayed, "LEAP_SHORT_ENTRIES", 1)
            patch.setattr(dispatch_delayed, "WINDOWS_PER_READ", 1)
        yield


@pytest.mark.parametrize("sub_type", [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED])
def test_random_programs(sub_type: str) -> None:
    @settings(max_examples=PROGRAMS, deadline=None, database=None)
    @given(
        programs,
        st.sampled_from([5, 1000]),
        st.sampled_from([0, 20]),
        st.sampled_from(INDEXES),
        st.booleans(),
        st.booleans(),
    )
    def run(
        program: list[tuple[Any, ...]],
        ledger_entries_max: int,
        read_ms: int,
        index: dict[str, Any] | None,
        is_tight: bool,
        jumps: bool,
    ) -> None:
        clock = trio.testing.MockClock(autojump_threshold=0)
        trio.run(execute, sub_type, program, ledger_entries_max, read_ms, index, is_tight, jumps, clock=clock)

    run()
