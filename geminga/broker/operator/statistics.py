"""Statistics of topics, connections and the bookie: `admin.view.statistics.StatisticsView`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from geminga.bookie.running.ledger_inventory import StoredCounts
from geminga.broker.delays.statistics import bucket_statistics, index_bytes, named_beyond
from geminga.broker.flow.slices import in_slices
from geminga.broker.flow.statistics import BrokerStatistics, PublisherStatistics, TopicStatistics
from geminga.broker.operator.topics import loaded_topic
from geminga.broker.subscription.publish_times import published_ms
from geminga.broker.subscription.statistics import statistics_in_slices
from geminga.broker.topic.producers import AccessMode

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from geminga.bookie.records.settings import BookieStatistics
    from geminga.bookie.recovery.recovery import RecoveryReport
    from geminga.bookie.running.bookie import Bookie
    from geminga.broker.connection.connection import Connections
    from geminga.broker.topic.producer import Producer
    from geminga.broker.topic.topic import Topic
    from geminga.broker.topic.topics import Topics
    from geminga.managed_ledger.statistics import ManagedLedgerStatistics
    from geminga.names import TopicName
    from geminga.position import Position

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


class StatisticsOperator:
    """Gathers figures when asked; keeps none."""

    def __init__(self, topics: Topics, bookie: Bookie, connections: Connections) -> None:
        self._topics = topics
        self._bookie = bookie
        self._connections = connections

    async def of_topic(self, topic: TopicName) -> TopicStatistics:
        return await in_slices(_statistics_in_slices(await loaded_topic(self._topics, topic)))

    async def earliest_in_backlogs(self, topic: TopicName) -> dict[str, int]:
        loaded = await loaded_topic(self._topics, topic)
        found: dict[str, int] = {}
        times_ms: dict[Position, int] = {}
        for name, subscription in list(loaded.subscriptions.items()):
            if not subscription.cursor.durable:
                continue
            first = subscription.cursor.nth_unacknowledged(1)
            if first is not None and first not in times_ms:
                entries = await loaded.ledger.read_positions((first,))
                times_ms[first] = published_ms(entries[0], False) if entries else 0
            found[name] = -1 if first is None else times_ms[first]
        return found

    async def of_ledgers(self, topic: TopicName) -> ManagedLedgerStatistics:
        loaded = await loaded_topic(self._topics, topic)
        return _with_shared_buckets(loaded.ledger.internal_stats(), loaded)

    async def readers(self, topic: TopicName) -> dict[str, bool]:
        return {
            name: any(consumer.permits > 0 for consumer in subscription.consumers)
            for name, subscription in (await loaded_topic(self._topics, topic)).subscriptions.items()
            if subscription.consumers
        }

    def of_loaded_topics(self) -> Iterator[TopicStatistics | None]:
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

    def of_bookie(self) -> BookieStatistics:
        return self._bookie.statistics()

    def recovery_report(self) -> RecoveryReport:
        return self._bookie.recovery

    def stored_counts(self) -> StoredCounts:
        return self._bookie.inventory.counts()

    def of_connections(self) -> BrokerStatistics:
        created, active = self._connections.created, self._connections.active
        return BrokerStatistics(
            active_connections=active, connections_opened=created, connections_closed=created - active
        )


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
