"""Statistics in the shape, order and spelling of Pulsar's admin API.

The fields are those that a real 4.0 broker prints, the ones that never differ from their default here
included: clients in typed languages want them all. A field that Pulsar leaves out when it has no value is
UNSET.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from datetime import UTC, datetime
from itertools import islice
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from geminga.broker.flow.statistics import PublisherStatistics, TopicStatistics

ROWS_MAX: Final = 25
"""Between two yields: half a millisecond."""

NOTHING: Final[Mapping[str, int]] = MappingProxyType({})
S = TypeVar("S", bound=msgspec.Struct)


class Publisher(msgspec.Struct, rename="camel", kw_only=True):
    access_mode: str | UnsetType = UNSET
    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    average_msg_size: float = 0.0
    chunked_message_rate: float = 0.0
    producer_id: int = 0
    supports_partial_producer: bool = False
    producer_name: str | UnsetType = UNSET
    address: str | UnsetType = UNSET
    connected_since: str | UnsetType = UNSET
    client_version: str | UnsetType = UNSET
    metadata: dict[str, str] | UnsetType = UNSET


class DrainingHash(msgspec.Struct, rename="camel", kw_only=True):
    hash: int = 0
    unack_msgs: int = 0
    blocked_attempts: int = 0


class Consumer(msgspec.Struct, rename="camel", kw_only=True):
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    bytes_out_counter: int = 0
    msg_out_counter: int = 0
    msg_rate_redeliver: float = 0.0
    message_ack_rate: float = 0.0
    chunked_message_rate: float = 0.0
    consumer_name: str = ""
    available_permits: int = 0
    unacked_messages: int = 0
    avg_messages_per_entry: int = 0
    blocked_consumer_on_unacked_msgs: bool = False
    read_position_when_joining: str | UnsetType = UNSET
    draining_hashes_count: int = 0
    draining_hashes_cleared_total: int = 0
    draining_hashes_unacked_messages: int = 0
    draining_hashes: list[DrainingHash] | UnsetType = UNSET
    address: str | UnsetType = UNSET
    connected_since: str | UnsetType = UNSET
    client_version: str | UnsetType = UNSET
    last_acked_timestamp: int = 0
    last_consumed_timestamp: int = 0
    last_consumed_flow_timestamp: int = 0
    key_hash_ranges: list[str] | UnsetType = UNSET
    key_hash_range_arrays: list[tuple[int, int]] | UnsetType = UNSET
    metadata: dict[str, str] | UnsetType = UNSET
    last_acked_time: str | UnsetType = UNSET
    last_consumed_time: str | UnsetType = UNSET


class Subscription(msgspec.Struct, rename="camel", kw_only=True):
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    bytes_out_counter: int = 0
    msg_out_counter: int = 0
    msg_rate_redeliver: float = 0.0
    message_ack_rate: float = 0.0
    chunked_message_rate: float = 0.0
    msg_backlog: int = 0
    backlog_size: int = 0
    earliest_msg_publish_time_in_backlog: int = 0
    msg_backlog_no_delayed: int = 0
    blocked_subscription_on_unacked_msgs: bool = False
    msg_delayed: int = 0
    msg_in_replay: int = 0
    unacked_messages: int = 0
    type: str = "None"
    active_consumer_name: str | UnsetType = UNSET
    msg_rate_expired: float = 0.0
    total_msg_expired: int = 0
    last_expire_timestamp: int = 0
    last_consumed_flow_timestamp: int = 0
    last_consumed_timestamp: int = 0
    last_acked_timestamp: int = 0
    last_mark_delete_advanced_timestamp: int = 0
    consumers: list[Consumer] = []
    is_durable: bool = True
    is_replicated: bool = False
    allow_out_of_order_delivery: bool = False
    key_shared_mode: str | UnsetType = UNSET
    consumers_after_mark_delete_position: dict[str, str] = {}
    draining_hashes_count: int = 0
    draining_hashes_cleared_total: int = 0
    draining_hashes_unacked_messages: int = 0
    non_contiguous_deleted_messages_ranges: int = 0
    non_contiguous_deleted_messages_ranges_serialized_size: int = 0
    delayed_message_index_size_in_bytes: int = 0
    subscription_properties: dict[str, str] = {}
    filter_processed_msg_count: int = 0
    filter_accepted_msg_count: int = 0
    filter_rejected_msg_count: int = 0
    filter_rescheduled_msg_count: int = 0
    dispatch_throttled_msg_events_by_subscription_limit: int = 0
    dispatch_throttled_bytes_events_by_subscription_limit: int = 0
    dispatch_throttled_msg_events_by_topic_limit: int = 0
    dispatch_throttled_bytes_events_by_topic_limit: int = 0
    dispatch_throttled_msg_events_by_broker_limit: int = 0
    dispatch_throttled_bytes_events_by_broker_limit: int = 0
    durable: bool = True
    replicated: bool = False


class Compaction(msgspec.Struct, rename="camel", frozen=True):
    last_compaction_removed_event_count: int = 0
    last_compaction_succeed_timestamp: int = 0
    last_compaction_failed_timestamp: int = 0
    last_compaction_duration_time_in_mills: int = 0
    geminga_kept_by: str | UnsetType = UNSET
    """Not Pulsar's: `request` or `threshold` if all messages are kept in place of compacting them..."""
    geminga_kept_bytes: int | UnsetType = UNSET
    """...and how much that is."""


class PartitionedMetadata(msgspec.Struct, rename="camel", kw_only=True):
    partitions: int
    deleted: bool = False
    properties: dict[str, str] | UnsetType = UNSET


class Topic(msgspec.Struct, rename="camel", kw_only=True):
    """Also what partitioned-stats prints: then `metadata` and `partitions` are set."""

    msg_rate_in: float = 0.0
    msg_throughput_in: float = 0.0
    msg_rate_out: float = 0.0
    msg_throughput_out: float = 0.0
    bytes_in_counter: int = 0
    msg_in_counter: int = 0
    system_topic_bytes_in_counter: int = 0
    bytes_out_counter: int = 0
    msg_out_counter: int = 0
    bytes_out_internal_counter: int = 0
    average_msg_size: float = 0.0
    msg_chunk_published: bool = False
    storage_size: int = 0
    backlog_size: int = 0
    backlog_quota_limit_size: int = -1
    backlog_quota_limit_time: int = -1
    oldest_backlog_message_age_seconds: int = -1
    publish_rate_limited_times: int = 0
    earliest_msg_publish_time_in_backlogs: int = 0
    offloaded_storage_size: int = 0
    last_offload_ledger_id: int = 0
    last_offload_success_time_stamp: int = 0
    last_offload_failure_time_stamp: int = 0
    ongoing_txn_count: int = 0
    aborted_txn_count: int = 0
    committed_txn_count: int = 0
    publishers: list[Publisher] = []
    waiting_publishers: int = 0
    subscriptions: dict[str, Subscription] = {}
    replication: dict[str, object] = {}
    deduplication_status: str | UnsetType = UNSET
    topic_epoch: int | UnsetType = UNSET
    non_contiguous_deleted_messages_ranges: int = 0
    non_contiguous_deleted_messages_ranges_serialized_size: int = 0
    delayed_message_index_size_in_bytes: int = 0
    compaction: Compaction = Compaction()
    owner_broker: str | UnsetType = UNSET
    topic_creation_time_stamp: int | UnsetType = UNSET
    last_publish_time_stamp: int | UnsetType = UNSET
    metadata: PartitionedMetadata | UnsetType = UNSET
    partitions: dict[str, Topic] | UnsetType = UNSET


class StatsAsked(NamedTuple):
    """What a request for statistics wants of what Pulsar shows on demand."""

    publishers: bool = True
    consumers: bool = True
    backlog_sizes: bool = True
    earliest_times: bool = False


USUAL: Final = StatsAsked()


def topic_json(
    source: TopicStatistics,
    *,
    owner: str,
    asked: StatsAsked = USUAL,
    earliest_ms: Mapping[str, int] = NOTHING,
) -> Generator[int, None, Topic]:
    """One topic, returned; yields after every `ROWS_MAX` subscriptions, consumers and producers how many.

    Its out-counters are the sums over its subscriptions; an index that these share counts whole.
    `earliest_ms` has by subscription when the first message of its backlog was published.
    """
    topic: Topic = _fill(Topic, source, publishers=[], subscriptions={})
    if source.kept_by:
        topic.compaction = Compaction(geminga_kept_by=source.kept_by, geminga_kept_bytes=source.kept_bytes)
    topic.deduplication_status = "Enabled" if source.is_deduplicated else "Disabled"
    topic.owner_broker = owner
    rows = 0
    for publisher in source.publishers if asked.publishers else ():
        topic.publishers.append(_publisher(publisher))
        if (rows := rows + 1) % ROWS_MAX == 0:
            yield ROWS_MAX
    for name, value in source.subscriptions.items():
        shown = topic.subscriptions[name] = _subscription(value)
        shown.earliest_msg_publish_time_in_backlog = earliest_ms.get(name, 0)
        if not asked.backlog_sizes:
            shown.backlog_size = -1
        _add(topic, shown, _FROM_SUBSCRIPTION)
        if (rows := rows + 1) % ROWS_MAX == 0:
            yield ROWS_MAX
        for consumer in value.consumers if asked.consumers else ():
            shown.consumers.append(_consumer(consumer, is_keyed=value.type == "Key_Shared"))
            if (rows := rows + 1) % ROWS_MAX == 0:
                yield ROWS_MAX
    topic.earliest_msg_publish_time_in_backlogs = _first(earliest_ms.values())
    if source.delayed_index_bytes is not None:
        topic.delayed_message_index_size_in_bytes = source.delayed_index_bytes
    return topic


def encoded(topic: Topic) -> Generator[int, None, bytes]:
    """The topic as JSON; yields after every `ROWS_MAX` publishers and subscriptions how many.

    It loses its subscriptions meanwhile: freed all at once, thousands of them would hold up the loop.
    """
    publishers, subscriptions = [], []
    for start in range(0, len(topic.publishers), ROWS_MAX):
        publishers.append(msgspec.json.encode(topic.publishers[start : start + ROWS_MAX])[1:-1])
        yield ROWS_MAX
    names = iter(tuple(topic.subscriptions))
    while some := {name: topic.subscriptions.pop(name) for name in islice(names, ROWS_MAX)}:
        subscriptions.append(msgspec.json.encode(some)[1:-1])
        yield ROWS_MAX
    parts: dict[str, Any] = {
        "publishers": msgspec.Raw(b"[" + b",".join(publishers) + b"]"),
        "subscriptions": msgspec.Raw(b"{" + b",".join(subscriptions) + b"}"),
    }
    return msgspec.json.encode(msgspec.structs.replace(topic, **parts))


class PartitionedTotal:
    """A partitioned topic: everything added up, subscriptions by name, producers and consumers by place."""

    def __init__(self) -> None:
        self._total = Topic(oldest_backlog_message_age_seconds=0)

    def add(self, topic: Topic) -> Generator[int, None, None]:
        """Yields after every `ROWS_MAX` publishers and subscriptions how many."""
        total = self._total
        _add(total, topic, _ADDED)
        times_ms = (total.earliest_msg_publish_time_in_backlogs, topic.earliest_msg_publish_time_in_backlogs)
        total.earliest_msg_publish_time_in_backlogs = _first(times_ms)
        total.compaction = _both_kept(total.compaction, topic.compaction)
        for place, publisher in enumerate(topic.publishers):
            if place == len(total.publishers):
                total.publishers.append(Publisher())
            _add(total.publishers[place], publisher, _RATES_IN)
            if place % ROWS_MAX == ROWS_MAX - 1:
                yield ROWS_MAX
        for added, (name, subscription) in enumerate(topic.subscriptions.items(), 1):
            _add_subscription(total.subscriptions, name, subscription)
            if added % ROWS_MAX == 0:
                yield ROWS_MAX

    def json(self, metadata: PartitionedMetadata) -> Topic:
        """Without its partitions: that field, the last one, is empty."""
        self._total.metadata = metadata
        self._total.partitions = {}
        return self._total


_RATES_IN = ("msg_rate_in", "msg_throughput_in", "average_msg_size", "chunked_message_rate")
_RATES_OUT = ("msg_rate_out", "msg_throughput_out", "bytes_out_counter", "msg_out_counter")
_FROM_SUBSCRIPTION = (
    *_RATES_OUT,
    "non_contiguous_deleted_messages_ranges",
    "non_contiguous_deleted_messages_ranges_serialized_size",
    "delayed_message_index_size_in_bytes",
)
_ADDED = (
    *_FROM_SUBSCRIPTION,
    "msg_rate_in",
    "msg_throughput_in",
    "bytes_in_counter",
    "msg_in_counter",
    "storage_size",
    "backlog_size",
    "waiting_publishers",
)
_SUBSCRIPTION_ADDED = (
    *_FROM_SUBSCRIPTION,
    "msg_rate_redeliver",
    "message_ack_rate",
    "chunked_message_rate",
    "msg_backlog",
    "backlog_size",
    "msg_backlog_no_delayed",
    "msg_delayed",
    "msg_in_replay",
    "unacked_messages",
    "msg_rate_expired",
    "total_msg_expired",
)
_CONSUMER_ADDED = (
    *_RATES_OUT,
    "msg_rate_redeliver",
    "message_ack_rate",
    "chunked_message_rate",
    "available_permits",
    "unacked_messages",
)


def _add_subscription(into: dict[str, Subscription], name: str, source: Subscription) -> None:
    total = into.get(name)
    if total is None:
        total = into[name] = Subscription(
            type=source.type,
            is_durable=source.is_durable,
            durable=source.durable,
            is_replicated=source.is_replicated,
            replicated=source.replicated,
            key_shared_mode=source.key_shared_mode,
            subscription_properties=source.subscription_properties,
        )
    _add(total, source, _SUBSCRIPTION_ADDED)
    times_ms = (total.earliest_msg_publish_time_in_backlog, source.earliest_msg_publish_time_in_backlog)
    total.earliest_msg_publish_time_in_backlog = _first(times_ms)
    total.blocked_subscription_on_unacked_msgs |= source.blocked_subscription_on_unacked_msgs
    for place, consumer in enumerate(source.consumers):
        if place == len(total.consumers):
            # Pulsar adds up no times, and prints those of a new object.
            total.consumers.append(
                Consumer(
                    consumer_name=consumer.consumer_name,
                    last_acked_time=instant_text(0),
                    last_consumed_time=instant_text(0),
                    draining_hashes=consumer.draining_hashes,
                    key_hash_range_arrays=consumer.key_hash_range_arrays,
                )
            )
        _add(total.consumers[place], consumer, _CONSUMER_ADDED)


def _publisher(source: PublisherStatistics) -> Publisher:
    return _fill(
        Publisher,
        source,
        connected_since=instant_text(source.connected_since),
        address=_address(source.address),
        metadata=dict(source.metadata),
    )


def _subscription(source: Any) -> Subscription:
    """Without its consumers."""
    made = _fill(Subscription, source, consumers=[])
    # Pulsar prints both spellings, and its clients read either.
    made.durable = made.is_durable
    made.replicated = made.is_replicated
    return made


def _consumer(source: Any, *, is_keyed: bool) -> Consumer:
    ranges = [(first, last) for first, last in source.key_hash_range_arrays]
    return _fill(
        Consumer,
        source,
        connected_since=instant_text(source.connected_since),
        address=_address(source.address),
        metadata=dict(source.metadata),
        last_acked_time=instant_text(source.last_acked_timestamp),
        last_consumed_time=instant_text(source.last_consumed_timestamp),
        key_hash_range_arrays=ranges or UNSET,
        key_hash_ranges=[f"[{first}, {last}]" for first, last in ranges] or UNSET,
        # Those of a Key_Shared subscription have the list, be it empty.
        draining_hashes=[_fill(DrainingHash, one) for one in source.draining_hashes] if is_keyed else UNSET,
    )


def _first(times_ms: Iterable[int]) -> int:
    """The earliest of those that are times; 0 if none is."""
    return min((time_ms for time_ms in times_ms if time_ms > 0), default=0)


def instant_text(time_ms: int) -> str:
    """ISO 8601 with milliseconds, as Java prints an instant: without the part that is zero."""
    text = datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f"{time_ms % 1000:03d}".rstrip("0")
    return f"{text}.{fraction}Z" if fraction else f"{text}Z"


def _address(address: str) -> str:
    """Java prints a socket's address with a slash before it."""
    return address if address.startswith("/") or not address else f"/{address}"


def _fill(kind: type[S], source: object, **given: object) -> S:
    """A `kind` with what `source` has under the same names; None stays unset."""
    values = {
        name: value
        for name in kind.__struct_fields__
        if name not in given and (value := getattr(source, name, None)) is not None
    }
    return kind(**values, **given)


def _add(total: object, part: object, names: tuple[str, ...]) -> None:
    for name in names:
        setattr(total, name, getattr(total, name) + getattr(part, name))


def _both_kept(one: Compaction, other: Compaction) -> Compaction:
    """Of two partitions: what is kept together, and why; a request outlasts a threshold."""
    keepers = {one.geminga_kept_by, other.geminga_kept_by} - {UNSET}
    if not keepers:
        return one
    sizes = (one.geminga_kept_bytes, other.geminga_kept_bytes)
    return Compaction(
        geminga_kept_by="request" if "request" in keepers else "threshold",
        geminga_kept_bytes=sum(size for size in sizes if size is not UNSET),
    )
