"""A subscription on real parts: managed ledger, bookie and metadata on a simulated disk, the real tracker,
the real wire. Without threads, so that trio's mock clock may own all of time. Consumers' outboxes are decoded
by the real decoder.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing
from fastcrc.crc32 import iscsi

from geminga.bookie.running.bookie import Bookie
from geminga.broker.delays.open_index import new_buckets
from geminga.broker.delays.settings import DelayPolicy, DelaySettings
from geminga.broker.delays.subscription_delays import OpenedIndex, SubscriptionDelays
from geminga.broker.delays.topic_delays import NONE_HELD, TopicDelays
from geminga.broker.dispatch.consumer import EXCLUSIVE, SUBSCRIPTION_TYPES, Consumer
from geminga.broker.flow.read_memory import ReadMemory
from geminga.broker.subscription.subscription import Subscription, SubscriptionSettings
from geminga.clock import TrioClock, VirtualClock
from geminga.events.recording import unrecorded
from geminga.limits import MIB
from geminga.managed_ledger.chain.tail_cache import TailCache
from geminga.managed_ledger.cursor.cursor import Cursor
from geminga.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerSettings
from geminga.metadata.ledger_ids import LedgerIds
from geminga.metadata.store import MetadataStore
from geminga.names import TopicName
from geminga.position import EARLIEST, LATEST, Position
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.decoder import Decoder, Delivery
from geminga.wire.message_metadata import peek, stamp
from geminga.wire.stored_entry import may_be_delayed
from simulation.disk.sim_disk import SimDisk
from simulation.disk.sim_key_value import SimKeyValue
from tests.tracker.in_memory import in_memory_tracker

assert new_buckets is not None, "imported here, as its first import would take a thread"
TOPIC = TopicName.parse("persistent://public/default/orders")


def message(
    payload: bytes = b"",
    *,
    key: str | None = None,
    deliver_at_ms: int = 0,
    batch: int = 0,
    sequence_id: int = 0,
    producer: str = "p",
    chunk: tuple[int, int] | None = None,
    marker: int | None = None,
) -> bytes:
    """One entry as a client sends it: magic, checksum, metadata, payload."""
    metadata = pb.MessageMetadata(producer_name=producer, sequence_id=sequence_id, publish_time=1)
    if key is not None:
        metadata.partition_key = key
    if deliver_at_ms:
        metadata.deliver_at_time = deliver_at_ms
    if batch:
        metadata.num_messages_in_batch = batch
    if chunk is not None:
        metadata.uuid = f"{producer}-{sequence_id}"
        metadata.chunk_id, metadata.num_chunks_from_msg = chunk
        metadata.total_chunk_msg_size = 1
    if marker is not None:
        metadata.marker_type = marker
    head = metadata.SerializeToString()
    checked = struct.pack(">I", len(head)) + head + payload
    return struct.pack(">HI", 0x0E01, iscsi(checked)) + checked


async def on_loop(function: Callable[..., Any], *arguments: Any) -> Any:
    """What would run in a thread, here: so that a mock clock owns all of time."""
    await trio.lowlevel.checkpoint()
    return function(*arguments)


class FakeOutbox:
    """Keeps what is written; `writable` is the test's to set. `log` is told of each command too."""

    def __init__(self, log: Callable[[Any], None] | None = None) -> None:
        self.decoder = Decoder()
        self.commands: list[Any] = []
        self.log = log
        self.writes = 0
        self.writable = True
        self.room = 8 * MIB
        self.closed = False
        self.on_writable: set[Callable[[], None]] = set()

    def write(self, data: Any) -> None:
        if self.closed:
            return
        self.writes += 1
        for part in [data] if isinstance(data, bytes) else data:
            commands = self.decoder.feed(bytes(part))
            self.commands += commands
            if self.log is not None:
                for command in commands:
                    self.log(command)

    def refuse(self) -> None:
        self.closed = True

    def is_writable(self) -> bool:
        return self.writable and not self.closed

    def room_bytes(self) -> int:
        return self.room

    def has_room_again(self) -> None:
        self.writable = True
        for tell in tuple(self.on_writable):
            tell()


class Client:
    """One consumer as its client sees it."""

    def __init__(self, subscription: Subscription, consumer: Consumer, outbox: FakeOutbox) -> None:
        self.subscription = subscription
        self.consumer = consumer
        self.outbox = outbox
        self._seen = 0

    @property
    def deliveries(self) -> list[Delivery]:
        ours = self.consumer.consumer_id
        return [c for c in self.outbox.commands if type(c) is Delivery and c.message.consumer_id == ours]

    @property
    def payloads(self) -> list[bytes]:
        return [payload_of(d.headers_and_payload) for d in self.deliveries]

    @property
    def positions(self) -> list[Position]:
        return [position_of(d) for d in self.deliveries]

    def new(self) -> list[bytes]:
        """Payloads that came since the last call."""
        payloads = self.payloads[self._seen :]
        self._seen += len(payloads)
        return payloads

    def new_positions(self) -> list[Position]:
        positions = self.positions[self._seen :]
        self._seen += len(positions)
        return positions

    def told(self, kind: type) -> list[Any]:
        return [c for c in self.outbox.commands if type(c) is kind]

    def flow(self, permits: int) -> None:
        self.subscription.consumers.flow(self.consumer, permits)

    def ack(self, *positions: tuple[int, int]) -> None:
        self.subscription.acks.acknowledge(self.consumer, list(positions))

    def ack_all(self) -> None:
        self.ack(*self.positions)

    def nack(self, *positions: Position) -> None:
        self.subscription.consumers.redeliver(self.consumer, list(positions), None)

    def leave(self) -> None:
        self.subscription.remove_consumer(self.consumer)


def payload_of(headers_and_payload: bytes) -> bytes:
    magic, checksum, size = struct.unpack_from(">HII", headers_and_payload)
    assert magic == 0x0E01
    assert iscsi(headers_and_payload[6:]) == checksum
    return headers_and_payload[10 + size :]


def position_of(delivery: Delivery) -> Position:
    return Position(delivery.message.message_id.ledgerId, delivery.message.message_id.entryId)


class InMemory:
    """The door to an index of each subscription's own, in memory alone, opened by the dispatcher's task."""

    shared: Any = None
    fed_from = LATEST
    held = NONE_HELD

    def __init__(self, rig: Rig) -> None:
        self.policy = DelayPolicy()
        self.record = unrecorded
        self.strict = True
        self.tick_ms = 16
        self._rig = rig

    def has_index(self, cursor: Cursor) -> bool:
        return False

    def start_soon(self, work: Callable[[], Awaitable[None]]) -> bool:
        return False

    async def open(self, delays: SubscriptionDelays) -> OpenedIndex:
        return OpenedIndex(in_memory_tracker(self._rig.clock, tick_ms=self.tick_ms, strict=self.strict), None)


class Rig:
    """A topic with one managed ledger, and any number of subscriptions on it."""

    def __init__(
        self,
        ledger: ManagedLedger,
        bookie: Bookie,
        nursery: trio.Nursery,
        clock: TrioClock | JumpingClock,
        partition: int,
    ) -> None:
        self.ledger = ledger
        self.bookie = bookie
        self.nursery = nursery
        self.clock = clock
        self.topic: Any = SimpleNamespace(
            name=TOPIC if partition < 0 else TOPIC.partition(partition),
            partition_index=partition,
            ledger=ledger,
            subscriptions={},
        )
        self.delays: TopicDelays | None = None
        """Opens the trackers, if `index` was called; else `in_memory` does."""
        self.in_memory = InMemory(self)
        self.reads = ReadMemory(16 * MIB)
        self._consumer_id = 0
        self._confirmed = 0
        self._published = trio.Event()
        ledger.attach(self)

    def on_confirmed(self, ledger_id: int, first_entry_id: int, contexts: list[Any]) -> None:
        self._confirmed += len(contexts)
        self._published.set()
        if self.delays is not None:
            self.delays.appended(ledger_id, first_entry_id, contexts)
        for subscription in self.topic.subscriptions.values():
            subscription.entries_available()

    def on_add_failed(self, error: Exception, contexts: list[Any]) -> None:
        raise error

    async def publish(self, *entries: bytes) -> list[Position]:
        """Durable on return. The dispatchers have been told, but may not have run yet."""
        wanted = self._confirmed + len(entries)
        before = self.ledger.last_confirmed
        prefix = stamp(self.clock.now_ms())
        for entry in entries:
            stored = prefix + entry
            self.ledger.append([stored], peek(stored).deliver_at_ms if may_be_delayed(stored) else 0)
        while self._confirmed < wanted:
            self._published = trio.Event()
            await self._published.wait()
        found, place = [], before
        while len(found) < len(entries):
            place = self.ledger.next_position(place)
            found.append(place)
        return found

    async def numbered(self, count: int, *, start: int = 0, **fields: Any) -> list[Position]:
        return await self.publish(
            *(message(b"%d" % n, sequence_id=n, **fields) for n in range(start, start + count))
        )

    async def subscription(
        self, name: str = "s", *, durable: bool = True, start: Position = EARLIEST, **settings: Any
    ) -> Subscription:
        if durable:
            cursor = await self.ledger.open_cursor(name, initial=start)
        else:
            cursor = self.ledger.open_non_durable_cursor(name, start)
        subscription = Subscription(
            self.topic,
            name,
            cursor,
            settings=SubscriptionSettings(**settings),
            clock=self.clock,
            index_door=self.delays or self.in_memory,
            reads=self.reads,
        )
        if self.delays is not None:
            self.delays.attach(subscription.delayed)
        self.topic.subscriptions[name] = subscription
        if subscription.needs_task():
            await self.nursery.start(subscription.run)
        return subscription

    async def index(self, **settings: Any) -> TopicDelays:
        """Have the index of each subscription, or of all, as this says; before the first subscription."""
        self.delays = TopicDelays(self.ledger, self.clock, DelaySettings(**settings), off_loop=on_loop)
        await self.delays.start(self.nursery)
        return self.delays

    def consumer(
        self, sub_type: str = EXCLUSIVE, name: str = "c", **fields: Any
    ) -> tuple[Consumer, FakeOutbox]:
        self._consumer_id += 1
        outbox = fields.pop("outbox", None) or FakeOutbox()
        protocol_version = fields.pop("protocol_version", 20)
        command = pb.CommandSubscribe(
            topic=str(self.topic.name),
            subscription="s",
            subType=SUBSCRIPTION_TYPES.index(sub_type),
            consumer_id=self._consumer_id,
            request_id=1,
            consumer_name=name,
            **fields,
        )
        consumer = Consumer(command, outbox, protocol_version=protocol_version, address="127.0.0.1:1")
        return consumer, outbox

    def join(
        self,
        subscription: Subscription,
        sub_type: str = EXCLUSIVE,
        name: str = "c",
        *,
        permits: int = 1000,
        **fields: Any,
    ) -> Client:
        """Subscribe and, unless 0, send permits."""
        consumer, outbox = self.consumer(sub_type, name, **fields)
        subscription.add_consumer(consumer)
        if subscription.needs_task():
            self.nursery.start_soon(subscription.run)
        subscription.consumers.announce(consumer)
        client = Client(subscription, consumer, outbox)
        if permits:
            client.flow(permits)
        return client

    async def settle(self) -> None:
        """Let everything run that can run without time passing."""
        await trio.testing.wait_all_tasks_blocked()

    def now_ms(self) -> int:
        return self.clock.now_ms()

    async def pass_ms(self, length_ms: int) -> None:
        """Let time go on: by a jump from alarm to alarm, if the clock has them."""
        clock = self.clock
        if not isinstance(clock, JumpingClock):
            await trio.sleep(length_ms / 1000)
            return
        with clock.held():
            to_ms = clock.now_ms() + length_ms
            await clock.quiet()
            while (now_ms := clock.now_ms()) < to_ms:
                next_ms = clock.next_alarm_ms()
                clock.move_to(to_ms if next_ms is None else min(max(next_ms, now_ms + 1), to_ms))
                await clock.quiet()


class JumpingClock(VirtualClock):
    """The broker's virtual clock; the time of its machine is trio's."""

    def __init__(self) -> None:
        super().__init__(wall_ms=TrioClock().now_ms)

    def monotonic_s(self) -> float:
        return trio.current_time()


@asynccontextmanager
async def open_rig(*, partition: int = -1, jumps: bool = False, **ledger_settings: Any) -> AsyncIterator[Rig]:
    """With `jumps` its clock is a virtual one, on a machine whose time is trio's."""
    clock = JumpingClock() if jumps else TrioClock()
    disk = SimDisk()
    async with trio.open_nursery() as nursery:
        metadata = MetadataStore(SimKeyValue(), threaded=False)
        await nursery.start(metadata.run)
        bookie = await Bookie.open(disk, SimKeyValue(), "/bookie", threaded=False)
        await nursery.start(bookie.run)
        async with trio.open_nursery() as above:
            ledger = await ManagedLedger.open(
                f"/managed-ledgers/{TOPIC.path}",
                bookie,
                metadata,
                LedgerIds(metadata),
                clock,
                ManagedLedgerSettings(**ledger_settings),
                tail_cache=TailCache(),
            )
            rig = Rig(ledger, bookie, above, clock, partition)
            ledger.life.run_in(above)
            yield rig
            above.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


OpenRig = Callable[..., AbstractAsyncContextManager[Rig]]


@pytest.fixture
def dispatch_rig() -> OpenRig:
    """`async with dispatch_rig() as rig:`; a test in which time passes asks for `autojump_clock` too."""
    return open_rig


def batches(positions: Sequence[Position], size: int) -> list[list[Position]]:
    return [list(positions[i : i + size]) for i in range(0, len(positions), size)]
