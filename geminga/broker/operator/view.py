"""The broker as the admin API sees it: `admin.view.broker.BrokerView` on topics and connections."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import trio

from geminga.bookie.running.stored_counts import StoredCounts, stored_counts
from geminga.broker.delays.statistics import bucket_statistics, index_bytes, named_beyond
from geminga.broker.flow.slices import in_slices, sorted_names
from geminga.broker.flow.statistics import (
    BackupReport,
    BrokerStatistics,
    MemoryStatistics,
    PublisherStatistics,
    TopicStatistics,
)
from geminga.broker.operator.delayed_verify import DelayedVerifier
from geminga.broker.operator.delayed_view import DelayedOperator
from geminga.broker.subscription.publish_times import first_published_at
from geminga.broker.subscription.statistics import statistics_in_slices
from geminga.broker.topic.producers import AccessMode
from geminga.broker.topic.topic import check_properties
from geminga.errors import Conflict, ConsumerBusy, TopicNotFound
from geminga.metadata import records
from geminga.metadata.records import PartitionedTopicRecord
from geminga.position import EARLIEST, LATEST, Position

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterator

    from geminga.bookie.records.settings import BookieStatistics
    from geminga.bookie.recovery.recovery import RecoveryReport
    from geminga.broker.connection.connection import Connections
    from geminga.broker.operator.health import HealthReport
    from geminga.broker.topic.producer import Producer
    from geminga.broker.topic.rooms import Rooms
    from geminga.broker.topic.topic import Topic
    from geminga.broker.topic.topics import Topics
    from geminga.config.config import Config
    from geminga.managed_ledger.statistics import ManagedLedgerStatistics
    from geminga.names import NamespaceName, TopicName

SKIPPED_PER_TURN = 1000
ROWS_MAX = 20
"""Topics, subscriptions, producers and consumers whose statistics are gathered between two checkpoints: one
or two milliseconds.
"""
ACCESS_MODES = {
    AccessMode.SHARED: "Shared",
    AccessMode.EXCLUSIVE: "Exclusive",
    AccessMode.WAIT_FOR_EXCLUSIVE: "WaitForExclusive",
    AccessMode.EXCLUSIVE_WITH_FENCING: "ExclusiveWithFencing",
}


class Process(NamedTuple):
    """What only the process as a whole can answer, or do."""

    memory: Callable[[], MemoryStatistics]
    backup: Callable[[str], Awaitable[BackupReport]]
    health: Callable[[], Awaitable[HealthReport]]
    dropped_log_lines: Callable[[], int]


class View:
    """Reads of the broker's state, and what an operator may ask of it."""

    def __init__(
        self,
        rooms: Rooms,
        topics: Topics,
        connections: Connections,
        config: Config,
        binary_port: int,
        web_port: int,
        process: Process,
    ) -> None:
        self.config = config
        self.namespaces = rooms.namespaces
        self.policies = rooms.policies
        self.binary_port = binary_port
        self.web_port = web_port
        self.memory_statistics = process.memory
        self.dropped_log_lines = process.dropped_log_lines
        self._process = process
        self.delayed = DelayedOperator(
            topics, allows_damage=config.chaos_enabled, verifier=DelayedVerifier(topics, rooms)
        )
        self._rooms = rooms
        self._topics = topics
        self.schemas = topics.schemas
        self._connections = connections

    async def backup(self, directory: str) -> BackupReport:
        return await self._process.backup(directory)

    async def health(self) -> HealthReport:
        return await self._process.health()

    # -- topics ----------------------------------------------------------------------------------------------

    def exists(self, topic: TopicName) -> bool:
        return self._topics.exists(topic)

    def partitions(self, topic: TopicName) -> int:
        return self._topics.partitions(topic)

    def partition_properties(self, topic: TopicName) -> dict[str, str]:
        path = records.partitioned_topic_path(topic)
        stored = self._rooms.metadata.get(path)
        if stored is None:
            raise TopicNotFound(f"Partitioned topic {topic} does not exist")
        return records.decode(PartitionedTopicRecord, stored.value, path).properties

    async def topics_in(self, namespace: NamespaceName) -> list[str]:
        return await sorted_names(self._topics.each_name_in(namespace))

    def partitioned_topics_in(self, namespace: NamespaceName) -> list[str]:
        return self._topics.partitioned_names_in(namespace)

    def may_be_created(self, topic: TopicName) -> bool:
        return self._topics.may_be_created(topic)

    async def create_topic(self, topic: TopicName, properties: dict[str, str]) -> None:
        if self._topics.exists(topic) or self._topics.partitions(topic):
            raise Conflict("This topic already exists")
        check_properties(properties)
        loaded = await self._topics.get(topic, create=True)
        if properties:
            await loaded.ledger.set_properties({**loaded.ledger.properties, **properties})

    async def create_partitioned_topic(
        self, topic: TopicName, partitions: int, properties: dict[str, str]
    ) -> None:
        await self._topics.create_partitioned(topic, partitions, properties)

    async def grow_partitioned_topic(self, topic: TopicName, partitions: int) -> None:
        await self._topics.grow_partitioned(topic, partitions)

    async def delete_topic(self, topic: TopicName, *, force: bool) -> None:
        await self._topics.delete(topic, force=force)

    async def delete_partitioned_topic(self, topic: TopicName, *, force: bool) -> None:
        await self._topics.delete_partitioned(topic, force=force)

    async def unload_topic(self, topic: TopicName) -> None:
        await self._topics.unload(topic)

    async def terminate_topic(self, topic: TopicName) -> Position:
        loaded = await self._load(topic)
        last = await loaded.ledger.terminate()
        loaded.disconnect_producers()
        for subscription in loaded.subscriptions.values():
            subscription.consumers.end_of_topic()
        return last

    async def truncate_topic(self, topic: TopicName) -> None:
        await (await self._load(topic)).truncate()

    async def topic_properties(self, topic: TopicName) -> dict[str, str]:
        properties = (await self._load(topic)).ledger.properties
        return {key: value for key, value in properties.items() if not key.startswith("geminga.")}

    async def last_message_id(self, topic: TopicName) -> Position:
        return (await self._load(topic)).ledger.last_confirmed

    # -- subscriptions ---------------------------------------------------------------------------------------

    async def subscription_names(self, topic: TopicName) -> list[str]:
        return sorted((await self._load(topic)).subscriptions)

    async def create_subscription(
        self, topic: TopicName, name: str, *, start: Position, properties: dict[str, str], replicated: bool
    ) -> None:
        loaded = await self._topics.get(topic, create=self._topics.may_be_created(topic))
        if name in loaded.subscriptions:
            raise Conflict("Subscription already exists for topic")
        if 0 < loaded.policies.subscriptions_max <= len(loaded.subscriptions):
            raise Conflict(f"Exceed the maximum number of subscriptions of the topic: {topic}")
        ends = {EARLIEST: "earliest", LATEST: "latest"}
        await loaded.create_subscription(
            name,
            initial=ends.get(start, "latest"),
            start=None if start in ends else start,
            subscription_properties=properties,
        )

    async def delete_subscription(self, topic: TopicName, name: str, *, force: bool) -> None:
        loaded = await self._load(topic)
        subscription = loaded.subscription(name)
        if subscription.consumers and not force:
            raise ConsumerBusy("Subscription has active connected consumers")
        await loaded.delete_subscription(name)

    async def skip(self, topic: TopicName, name: str, count: int | None) -> None:
        subscription = (await self._load(topic)).subscription(name)
        if count is None:
            await subscription.clear_backlog()
            await subscription.cursor.persist()
            return
        position = subscription.cursor.mark_delete
        ledger = subscription.topic.ledger
        for number in range(min(count, subscription.backlog())):
            if number % SKIPPED_PER_TURN == 0:
                await trio.lowlevel.checkpoint()
            position = subscription.cursor.next_unacknowledged(ledger.next_position(position))
        subscription.acks.skip_to(position)
        await subscription.cursor.persist()

    async def expire(self, topic: TopicName, name: str, older_than_s: int) -> bool:
        loaded = await self._load(topic)
        subscription = loaded.subscription(name)
        is_done = await loaded.expire_older(subscription, older_than_s)
        await subscription.cursor.persist()
        return is_done

    async def expire_up_to(self, topic: TopicName, name: str, position: Position) -> bool:
        subscription = (await self._load(topic)).subscription(name)
        is_done = subscription.expiry.expire_up_to(position)
        await subscription.cursor.persist()
        return is_done

    async def reset(self, topic: TopicName, name: str, position: Position) -> None:
        await (await self._load(topic)).subscription(name).seek(position)

    async def reset_to_time(self, topic: TopicName, name: str, publish_time_ms: int) -> None:
        loaded = await self._load(topic)
        subscription = loaded.subscription(name)
        await subscription.seek(await first_published_at(loaded.ledger, publish_time_ms))

    async def load(self, topic: TopicName) -> None:
        await self._load(topic)

    # -- statistics ------------------------------------------------------------------------------------------

    async def topic_statistics(self, topic: TopicName) -> TopicStatistics:
        return await in_slices(_statistics_in_slices(await self._load(topic)))

    async def ledger_statistics(self, topic: TopicName) -> ManagedLedgerStatistics:
        loaded = await self._load(topic)
        return _with_shared_buckets(loaded.ledger.internal_stats(), loaded)

    def loaded_statistics(self) -> Iterator[TopicStatistics | None]:
        looked = 0
        for topic in list(self._topics.loaded.values()):
            slices = _statistics_in_slices(topic)
            while True:
                try:
                    looked += next(slices)
                except StopIteration as end:
                    yield end.value
                    break
                if looked >= ROWS_MAX:
                    yield None
                    looked = 0

    def bookie_statistics(self) -> BookieStatistics:
        return self._rooms.bookie.statistics()

    def recovery_report(self) -> RecoveryReport:
        return self._rooms.bookie.recovery

    def stored_counts(self) -> StoredCounts:
        return stored_counts(self._rooms.bookie)

    def broker_statistics(self) -> BrokerStatistics:
        created, active = self._connections.created, self._connections.active
        return BrokerStatistics(
            active_connections=active, connections_opened=created, connections_closed=created - active
        )

    async def _load(self, topic: TopicName) -> Topic:
        """With a checkpoint even where it is loaded: some ask for many, one after the other."""
        await trio.lowlevel.checkpoint()
        return await self._topics.get(topic, create=False)


def _with_shared_buckets(found: ManagedLedgerStatistics, topic: Topic) -> ManagedLedgerStatistics:
    """The properties of an index that all subscriptions share are the topic's: show them at the cursors that
    they serve, where those of an index of a subscription's own stand.
    """
    shared = topic.delays.shared
    if shared is None:
        return found
    cursors = dict(found.cursors)
    for name, cursor in found.cursors.items():
        subscription = topic.subscriptions.get(name)
        if (
            subscription is not None
            and subscription.delayed.tracker is not None
            and not subscription.consumers.ignores_delays
        ):
            named = named_beyond(shared, cursor.mark_delete)
            cursors[name] = msgspec.structs.replace(cursor, properties={**cursor.properties, **named})
    return msgspec.structs.replace(found, cursors=cursors)


def _statistics_in_slices(topic: Topic) -> Generator[int, None, TopicStatistics]:
    """Yields after some rows (the topic, its producers, subscriptions and their consumers) how many."""
    ledger, shared, published = topic.ledger, topic.delays.shared, topic.publishing
    subscriptions = {}
    for name, subscription in list(topic.subscriptions.items()):
        subscriptions[name] = yield from statistics_in_slices(subscription)
    publishers = []
    for producer in list(topic.producers):
        publishers.append(_publisher(producer))
        if len(publishers) % ROWS_MAX == 0:
            yield ROWS_MAX
    yield 1
    return TopicStatistics(
        name=str(topic.name),
        msg_rate_in=published.message_rate.per_s,
        msg_throughput_in=published.byte_rate.per_s,
        msg_in_counter=published.messages_in,
        bytes_in_counter=published.bytes_in,
        average_msg_size=_ratio(published.byte_rate.per_s, published.message_rate.per_s),
        msg_chunk_published=published.chunks_in > 0,
        storage_size=ledger.total_size_bytes,
        backlog_quota_limit_size=topic.policies.quota_size.limit_size,
        backlog_quota_limit_time=topic.policies.quota_age.limit_time,
        backlog_size=max((s.backlog_size for s in subscriptions.values() if s.is_durable), default=0),
        publishers=publishers,
        waiting_publishers=topic.producers.waiting_count,
        subscriptions=subscriptions,
        delayed_index_bytes=None if shared is None else index_bytes(shared),
        delayed_buckets=None if shared is None else bucket_statistics(shared),
        entry_sizes=published.entry_sizes.classes(),
        write_latencies=published.write_latencies.classes(),
        topic_epoch=topic.producers.epoch,
        topic_creation_time_stamp=ledger.created_ms,
        last_publish_time_stamp=published.last_publish_ms,
        is_deduplicated=topic.dedup.ids is not None,
    )


def _publisher(producer: Producer) -> PublisherStatistics:
    return PublisherStatistics(
        producer_id=producer.producer_id,
        producer_name=producer.name,
        access_mode=ACCESS_MODES[AccessMode(producer.access_mode)],
        address=producer.address,
        client_version=producer.client_version,
        connected_since=producer.connected_since_ms,
        metadata=producer.metadata,
        msg_rate_in=producer.message_rate.per_s,
        msg_throughput_in=producer.byte_rate.per_s,
        average_msg_size=_ratio(producer.byte_rate.per_s, producer.message_rate.per_s),
    )


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0
