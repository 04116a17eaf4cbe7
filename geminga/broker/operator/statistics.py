"""Statistics of topics, connections and the bookie: `admin.view.statistics.StatisticsView`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from geminga.bookie.running.ledger_inventory import StoredCounts
from geminga.broker.delays.statistics import bucket_statistics, index_bytes, named_beyond
from geminga.broker.flow.slices import Pace, in_slices
from geminga.broker.flow.statistics import (
    BrokerStatistics,
    CursorSavings,
    PublisherStatistics,
    TopicStatistics,
)
from geminga.broker.operator.topics import loaded_topic
from geminga.broker.subscription.publish_times import published_ms
from geminga.broker.subscription.statistics import SubscriptionStatistics, statistics_in_slices
from geminga.broker.topic.compaction_cursor import kept_by_cursor
from geminga.broker.topic.producers import AccessMode
from geminga.managed_ledger.cursor.statistics import RangesAsked
from geminga.managed_ledger.cursor.system_cursors import COMPACTION_CURSOR
from geminga.position import EARLIEST, Position

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from geminga.bookie.records.settings import BookieStatistics
    from geminga.bookie.recovery.recovery import RecoveryReport
    from geminga.broker.connection.connection import Connections
    from geminga.broker.topic.producer import Producer
    from geminga.broker.topic.rooms import Rooms
    from geminga.broker.topic.topic import Topic
    from geminga.broker.topic.topics import Topics
    from geminga.managed_ledger.cursor.cursor import Cursor
    from geminga.managed_ledger.statistics import ManagedLedgerStatistics
    from geminga.managed_ledger.unopened import UnopenedLedger
    from geminga.names import TopicName

ROWS_MAX = 40
"""Topics, subscriptions, producers and consumers whose statistics are gathered between two checkpoints: about
a millisecond.
"""
ACCESS_MODES = {
    AccessMode.SHARED: "Shared",
    AccessMode.EXCLUSIVE: "Exclusive",
    AccessMode.WAIT_FOR_EXCLUSIVE: "WaitForExclusive",
    AccessMode.EXCLUSIVE_WITH_FENCING: "ExclusiveWithFencing",
}


class StatisticsOperator:
    """Gathers figures at each request; stores none."""

    def __init__(self, topics: Topics, rooms: Rooms, connections: Connections) -> None:
        self._topics = topics
        self._rooms = rooms
        self._bookie = rooms.bookie
        self._connections = connections

    async def of_topic(self, topic: TopicName) -> TopicStatistics:
        return await in_slices(_statistics_in_slices(await loaded_topic(self._topics, topic)))

    async def earliest_in_backlogs(self, topic: TopicName) -> dict[str, int]:
        loaded = await loaded_topic(self._topics, topic)
        found: dict[str, int] = {}
        times_ms: dict[Position, int] = {}
        pace = Pace()
        for name, subscription in list(loaded.subscriptions.items()):
            await pace.row()
            if not subscription.cursor.durable:
                continue
            first = subscription.cursor.nth_unacknowledged(1)
            if first is not None and first not in times_ms:
                entries = await loaded.ledger.read_positions((first,))
                times_ms[first] = published_ms(entries[0], False) if entries else 0
            found[name] = -1 if first is None else times_ms[first]
        return found

    async def of_ledgers(
        self, topic: TopicName, *, ranges_of: str | None = None, ranges_after: Position = EARLIEST
    ) -> ManagedLedgerStatistics:
        loaded = await loaded_topic(self._topics, topic)
        asked = RangesAsked(of=ranges_of, after=ranges_after)
        found = await in_slices(loaded.ledger.internal_stats(asked))
        return await in_slices(_with_shared_buckets(found, loaded))

    async def readers(self, topic: TopicName) -> dict[str, bool]:
        found: dict[str, bool] = {}
        pace = Pace()
        loaded = await loaded_topic(self._topics, topic)
        for looked, (name, subscription) in enumerate(tuple(loaded.subscriptions.items()), 1):
            if subscription.consumers:
                found[name] = any(consumer.permits > 0 for consumer in subscription.consumers)
            if looked % ROWS_MAX == 0:
                await pace.turn()
        return found

    def of_topics(self, *, with_cursors: bool = False) -> Iterator[TopicStatistics | None]:
        looked = 0
        # A caller that takes no more than some of them wants those where something waits. Put in order once:
        # asked again for each, a backlog that changes meanwhile would tell a topic twice, or never.
        waiting: list[Topic | tuple[str, UnopenedLedger]] = []
        others: list[Topic | tuple[str, UnopenedLedger]] = []
        figures = self._topics.unloaded_topics.figures()
        found: list[Topic | tuple[str, UnopenedLedger]] = [*self._topics.loaded.values(), *figures]
        for one in found:
            place = others
            for backlog in _backlogs(one):
                looked += 1
                if looked >= ROWS_MAX:
                    yield None
                    looked = 0
                if backlog:
                    place = waiting
                    break
            place.append(one)
        for one in (*waiting, *others):
            looked += 1
            # It may have been loaded since the list was made.
            topic = self._topics.loaded.get(one[0]) if isinstance(one, tuple) else one
            if topic is None:
                assert isinstance(one, tuple)
                yield unloaded_statistics(*one)
            else:
                slices = _statistics_in_slices(topic, with_cursors=with_cursors)
                while True:
                    try:
                        looked += next(slices)
                    except StopIteration as end:
                        yield end.value
                        break
                    if looked >= ROWS_MAX:
                        yield None
                        looked = 0
            if looked >= ROWS_MAX:
                yield None
                looked = 0

    def of_unloaded_topic(self, name: str) -> TopicStatistics | None:
        found = self._topics.unloaded_topics.get(name)
        return None if found is None else unloaded_statistics(name, found)

    def of_bookie(self) -> BookieStatistics:
        return self._bookie.statistics()

    def recovery_report(self) -> RecoveryReport:
        return self._bookie.recovery

    def stored_counts(self) -> StoredCounts:
        return self._bookie.inventory.counts()

    def of_broker(self) -> BrokerStatistics:
        created, active = self._connections.created, self._connections.active
        figures = self._rooms.figures
        return BrokerStatistics(
            active_connections=active,
            connections_opened=created,
            connections_closed=created - active,
            publishes=figures.publishes.summary(),
            lookups=figures.lookups.summary(),
            lookup_failures=figures.lookup_failures,
            topic_loads=figures.topic_loads.summary(),
            topic_load_failures=figures.topic_load_failures,
            topic_loads_pending=self._topics.loading_count,
            topics_loaded=len(self._topics.loaded),
            topics_unloaded=len(self._topics.unloaded_topics),
            topics_unread=self._topics.unloaded_topics.unread,
            cache=figures.cache.statistics(self._rooms.tail_cache),
            turns=figures.turns.statistics(),
        )


def _backlogs(one: Topic | tuple[str, UnopenedLedger]) -> Iterator[int]:
    """Of its subscriptions, after a 0: a topic without any is looked at, too."""
    yield 0
    if isinstance(one, tuple):
        yield from (cursor.backlog_entries for cursor in one[1].cursors if not cursor.is_system)
    else:
        for subscription in tuple(one.subscriptions.values()):
            yield subscription.cursor.backlog_entries()


def unloaded_statistics(name: str, ledger: UnopenedLedger) -> TopicStatistics:
    """Of a topic that no client has used since the start, from its records."""
    entry_bytes = ledger.size_bytes / ledger.entries if ledger.entries else 0.0
    subscriptions = {
        cursor.name: SubscriptionStatistics(
            name=cursor.name,
            msg_backlog=cursor.backlog_entries,
            msg_backlog_no_delayed=cursor.backlog_entries,
            backlog_size=int(entry_bytes * cursor.backlog_entries),
            unread_entries=cursor.backlog_entries,
        )
        for cursor in ledger.cursors
        if not cursor.is_system
    }
    kept_by = kept_by_cursor(
        next((c.properties for c in ledger.cursors if c.name == COMPACTION_CURSOR), None)
    )
    return TopicStatistics(
        name=name,
        is_loaded=False,
        storage_size=ledger.size_bytes,
        backlog_size=max((s.backlog_size for s in subscriptions.values()), default=0),
        subscriptions=subscriptions,
        topic_creation_time_stamp=ledger.created_ms,
        kept_by=kept_by,
        kept_bytes=ledger.size_bytes if kept_by else 0,
    )


def _with_shared_buckets(
    found: ManagedLedgerStatistics, topic: Topic
) -> Generator[None, None, ManagedLedgerStatistics]:
    """Show the properties of a shared index, which are the topic's, at the cursors that they serve, where
    those of a subscription's own index are shown. Yields after each cursor.
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
        yield
    return msgspec.structs.replace(found, cursors=cursors)


def _statistics_in_slices(
    topic: Topic, *, with_cursors: bool = False
) -> Generator[int, None, TopicStatistics]:
    """Yields, after some rows (topic, producers, subscriptions, their consumers), the number of rows."""
    cursors = []
    for cursor in list(topic.ledger.cursors.values()) if with_cursors else ():
        if (of_cursor := _cursor_savings(cursor)) is not None:
            cursors.append(of_cursor)
            yield 1
    rates = topic.rates
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
        interval_s=published.interval_s,
        add_errors=published.add_errors,
        publish_rate_limit_times=published.throttled,
        read_rate=rates.reads.per_s,
        read_throughput=rates.read_bytes.per_s,
        read_errors=ledger.reads.failures,
        mark_delete_rate=rates.mark_deletes.per_s,
        backlog_age_s=topic.quotas.age_s,
        quota_evictions=topic.quotas.evictions_by_kind(),
        kept_by=topic.compaction.kept_by,
        kept_bytes=topic.compaction.kept_bytes,
        cursors=cursors,
    )


def _cursor_savings(cursor: Cursor) -> CursorSavings | None:
    written = cursor.cursor_ledger
    if written is None:
        return None
    return CursorSavings(
        name=cursor.name,
        states_saved=written.states_saved,
        states_failed=written.states_failed,
        records_saved=written.records_saved,
        records_failed=written.records_failed,
        acknowledged_ranges=cursor.acknowledged_ranges_count(),
        written_bytes=written.written_bytes,
        read_bytes=written.read_bytes,
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
