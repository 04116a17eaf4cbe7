"""All topics of a broker without connections: real parts on a simulated disk, no threads, so that trio's mock
clock may own all of time.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio
from fastcrc.crc32 import iscsi

from geminga.bookie.running.bookie import Bookie
from geminga.broker.delays.open_index import new_buckets
from geminga.broker.delays.settings import DelaySettings
from geminga.broker.dispatch.consumer import SHARED, SUBSCRIPTION_TYPES, Consumer
from geminga.broker.dispatch.settings import SubscriptionSettings
from geminga.broker.flow.client_metadata import ClientMetadata
from geminga.broker.flow.outbox import Outgoing
from geminga.broker.flow.publish_memory import PublishMemory
from geminga.broker.flow.read_memory import ReadMemory
from geminga.broker.flow.send_memory import SendMemory
from geminga.broker.policies.namespaces import Namespaces
from geminga.broker.policies.policies import EffectivePolicies, Policies
from geminga.broker.policies.settings import BrokerSettings
from geminga.broker.subscription.subscription import Subscription
from geminga.broker.topic.producer import Producer
from geminga.broker.topic.rooms import Rooms
from geminga.broker.topic.topic import Topic
from geminga.broker.topic.topics import Topics
from geminga.clock import TrioClock
from geminga.limits import MIB
from geminga.managed_ledger.chain.tail_cache import TailCache
from geminga.managed_ledger.managed_ledger import ManagedLedgerSettings
from geminga.metadata.ledger_ids import LedgerIds
from geminga.metadata.store import MetadataStore
from geminga.names import TopicName
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import Send, Sends
from geminga.wire.decoder import Delivery
from geminga.wire.message_metadata import stamp
from simulation.disk.sim_disk import SimDisk
from simulation.disk.sim_key_value import SimKeyValue
from tests.broker.dispatch_rig import FakeOutbox

assert new_buckets is not None, "imported here, as its first import would take a thread"
TOPIC = TopicName.parse("persistent://public/default/t")
STAMP = stamp(1_785_500_000_000)


class TopicsRig(NamedTuple):
    topics: Topics
    rooms: Rooms
    bookie: Bookie
    nursery: trio.Nursery

    async def restart(self) -> TopicsRig:
        """Other topics on the same rooms, as a process has them that comes after an orderly stop."""
        await self.topics.close()
        topics = Topics(self.rooms)
        await self.nursery.start(topics.run)
        return self._replace(topics=topics)


@asynccontextmanager
async def open_topics(
    settings: BrokerSettings | None = None,
    ledger_settings: ManagedLedgerSettings | None = None,
    defaults: EffectivePolicies | None = None,
    delay_settings: DelaySettings | None = None,
    *,
    bookie_runs: bool = True,
) -> AsyncIterator[TopicsRig]:
    """If the bookie does not run, what is appended waits."""
    clock = TrioClock()
    async with trio.open_nursery() as nursery:
        metadata = MetadataStore(SimKeyValue(), threaded=False)
        await nursery.start(metadata.run)
        bookie = await Bookie.open(SimDisk(), SimKeyValue(), "/bookie", threaded=False)
        if bookie_runs:
            await nursery.start(bookie.run)
        namespaces = Namespaces(metadata, clock, cluster="standalone")
        await namespaces.bootstrap()
        tail_cache = TailCache()
        rooms = Rooms(
            bookie=bookie,
            metadata=metadata,
            ledger_ids=LedgerIds(metadata),
            namespaces=namespaces,
            policies=Policies(metadata, namespaces, defaults or EffectivePolicies()),
            clock=clock,
            tail_cache=tail_cache,
            publish_memory=PublishMemory(8 * MIB, bookie, tail_cache.append_room),
            send_memory=SendMemory(4 * MIB),
            outgoing=Outgoing(),
            read_memory=ReadMemory(4 * MIB),
            client_metadata=ClientMetadata(MIB),
            settings=settings or BrokerSettings(),
            ledger_settings=ledger_settings or ManagedLedgerSettings(),
            subscription_settings=SubscriptionSettings(),
            delay_settings=delay_settings or DelaySettings(),
        )
        topics = Topics(rooms)
        await nursery.start(topics.run)
        yield TopicsRig(topics, rooms, bookie, nursery)
        nursery.cancel_scope.cancel()


def send(
    sequence_id: int = 0, payload: bytes = b"x", *, publish_time_ms: int = 1, deliver_at_ms: int = 0
) -> Send:
    """One message of one producer as a connection hands it to its session."""
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=publish_time_ms)
    if deliver_at_ms:
        metadata.deliver_at_time = deliver_at_ms
    head = metadata.SerializeToString()
    checked = struct.pack(">I", len(head)) + head + payload
    return Send(1, sequence_id, 1, 0, struct.pack(">HI", 0x0E01, iscsi(checked)) + checked, True)


def run_of(*sends: Send) -> Sends:
    """As the decoder makes it of SENDs that came in one read."""
    return Sends(
        1,
        [send.sequence_id for send in sends],
        [send.num_messages for send in sends],
        [send.highest_sequence_id for send in sends],
        [STAMP + send.headers_and_payload for send in sends],
        len(STAMP),
    )


async def topic_of(rig: TopicsRig, name: TopicName = TOPIC) -> Topic:
    """The topic, loaded; made if need be."""
    return await rig.topics.get(name, create=True)


async def subscription_of(rig: TopicsRig, name: TopicName = TOPIC) -> Subscription:
    return await (await topic_of(rig, name)).create_subscription("s", initial="earliest")


async def publish(
    rig: TopicsRig, count: int, name: TopicName = TOPIC, *, delay_s: float = 0, size: int = 100
) -> None:
    """By a producer that comes and goes; durable on return."""
    topic = await topic_of(rig, name)
    producer = Producer(1, "p", FakeOutbox(), message_bytes_max=2**22)  # type: ignore[arg-type]
    await topic.add_producer(producer, None)
    now_ms = rig.rooms.clock.now_ms()
    due_ms = int(now_ms + delay_s * 1000) if delay_s else 0
    for number in range(count):
        topic.publishing.publish(
            producer, send(number, b"x" * size, publish_time_ms=now_ms, deliver_at_ms=due_ms)
        )
    durable = trio.Event()
    producer.when_idle(durable.set)
    await durable.wait()
    topic.producers.remove(producer)


async def join(rig: TopicsRig, sub_type: str = SHARED, permits: int = 1000) -> tuple[Consumer, FakeOutbox]:
    """A consumer of the subscription `s`."""
    outbox = FakeOutbox()
    command = pb.CommandSubscribe(
        topic=str(TOPIC),
        subscription="s",
        subType=SUBSCRIPTION_TYPES.index(sub_type),  # type: ignore[arg-type]
        consumer_id=1,
        request_id=1,
    )
    consumer = Consumer(command, outbox, protocol_version=20, address="127.0.0.1:1")  # type: ignore[arg-type]
    subscription = await (await topic_of(rig)).subscribe(
        "s", consumer, durable=True, initial="earliest", start=None, subscription_properties={}
    )
    subscription.consumers.flow(consumer, permits)
    return consumer, outbox


def received(outbox: FakeOutbox) -> int:
    """How many messages."""
    return sum(type(command) is Delivery for command in outbox.commands)
