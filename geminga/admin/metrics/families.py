"""Which metrics there are for topics, subscriptions, clients and cursors: Pulsar's names, and where each
value comes from.

One name that dashboards query has no meaning here and a constant value; its text says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from geminga.broker.flow.statistics import ENTRY_SIZE_BOUNDS, WRITE_LATENCY_BOUNDS_MS, TopicStatistics


class Family(NamedTuple):
    """One metric: its name, what it means, and how it is read off a statistics struct."""

    name: str
    help: str
    read: Callable[[Any], float]


def _subscriptions(topic: TopicStatistics) -> Iterable[Any]:
    return topic.subscriptions.values()


def _total(attribute: str) -> Callable[[TopicStatistics], float]:
    return lambda topic: sum(getattr(s, attribute) for s in _subscriptions(topic))


def _delayed_index_bytes(topic: TopicStatistics) -> float:
    """A shared index counts once, however many subscriptions look at it."""
    if topic.delayed_index_bytes is not None:
        return topic.delayed_index_bytes
    return float(sum(s.delayed_message_index_size_in_bytes for s in _subscriptions(topic)))


def _field(attribute: str) -> Callable[[Any], float]:
    return lambda source: float(getattr(source, attribute, 0))


def _zero(_: object) -> float:
    return 0.0


def _classes(
    prefix: str, attribute: str, labels: Sequence[str], text: str, sum_unit: float = 1.0
) -> list[Family]:
    """Pulsar's histograms: a gauge for each class, which starts from zero in each interval."""

    def count(index: int) -> Callable[[TopicStatistics], float]:
        def read(topic: TopicStatistics) -> float:
            counts = getattr(topic, attribute).counts
            return counts[index] if counts else 0.0

        return read

    families = [Family(f"{prefix}_{label}", text, count(index)) for index, label in enumerate(labels)]
    families.append(Family(f"{prefix}_count", text, lambda topic: sum(getattr(topic, attribute).counts)))
    families.append(Family(f"{prefix}_sum", text, lambda topic: getattr(topic, attribute).sum * sum_unit))
    return families


_SIZES = [
    f"le_{size}" for size in ("128", "512", "1_kb", "2_kb", "4_kb", "16_kb", "100_kb", "1_mb", "overflow")
]
_LATENCIES = [f"le_{text}" for text in ("0_5", "1", "5", "10", "20", "50", "100", "200", "1000")] + [
    "overflow"
]
assert len(_SIZES) == len(ENTRY_SIZE_BOUNDS) + 1
assert len(_LATENCIES) == len(WRITE_LATENCY_BOUNDS_MS) + 1

TOPIC_FAMILIES = (
    Family("pulsar_subscriptions_count", "Subscriptions", lambda t: len(t.subscriptions)),
    Family("pulsar_producers_count", "Connected producers", lambda t: len(t.publishers)),
    Family(
        "pulsar_consumers_count",
        "Connected consumers",
        lambda t: sum(len(s.consumers) for s in _subscriptions(t)),
    ),
    Family("pulsar_rate_in", "Messages published per second", _field("msg_rate_in")),
    Family("pulsar_rate_out", "Messages delivered per second", _total("msg_rate_out")),
    Family("pulsar_throughput_in", "Bytes published per second", _field("msg_throughput_in")),
    Family("pulsar_throughput_out", "Bytes delivered per second", _total("msg_throughput_out")),
    Family("pulsar_average_msg_size", "Average size of a message in bytes", _field("average_msg_size")),
    Family("pulsar_in_messages_total", "Messages published", _field("msg_in_counter")),
    Family("pulsar_in_bytes_total", "Bytes published", _field("bytes_in_counter")),
    Family("pulsar_msg_backlog", "Messages not acknowledged, over all subscriptions", _total("msg_backlog")),
    Family("pulsar_storage_size", "Bytes stored", _field("storage_size")),
    Family("pulsar_storage_logical_size", "Bytes stored, one replica", _field("storage_size")),
    Family("pulsar_storage_backlog_size", "Bytes kept for the slowest subscription", _field("backlog_size")),
    Family("pulsar_storage_offloaded_size", "Shim: nothing is offloaded, 0", _zero),
    Family("pulsar_storage_write_rate", "Entries written per second; a batch is one", _field("write_rate")),
    Family("pulsar_storage_read_rate", "Entries read from the bookie per second", _field("read_rate")),
    Family(
        "pulsar_storage_read_cache_misses_rate",
        "Entries per second that were not in the tail cache",
        _field("read_rate"),
    ),
    Family(
        "pulsar_storage_read_latency_count",
        "Entries read from the bookie in the last interval",
        lambda topic: topic.read_rate * topic.interval_s,
    ),
    Family(
        "pulsar_storage_backlog_quota_limit",
        "Backlog quota in bytes, -1: none",
        _field("backlog_quota_limit_size"),
    ),
    Family(
        "pulsar_storage_backlog_quota_limit_time",
        "Backlog quota in seconds, -1: none",
        _field("backlog_quota_limit_time"),
    ),
    Family(
        "pulsar_storage_backlog_age_seconds",
        "Age of the oldest backlog message at the last check of a quota of age, -1: unknown",
        _field("backlog_age_s"),
    ),
    Family(
        "pulsar_publish_rate_limit_times",
        "How often publishing was throttled",
        _field("publish_rate_limit_times"),
    ),
    Family(
        "pulsar_delayed_message_index_size_bytes",
        "Memory of the delayed-message index",
        _delayed_index_bytes,
    ),
    *_classes("pulsar_entry_size", "entry_sizes", _SIZES, "Entries by size"),
    # The name that the dashboards ask for; the broker's own is ..._le_overflow.
    *_classes("pulsar_entry_size", "entry_sizes", [*_SIZES[:-1], "overflow"], "Entries by size")[-3:-2],
    # Classes by milliseconds, their sum in microseconds, as in Pulsar.
    *_classes(
        "pulsar_storage_write_latency", "write_latencies", _LATENCIES, "Entries by write latency", 1000
    ),
    *_classes(
        "pulsar_storage_ledger_write_latency",
        "write_latencies",
        _LATENCIES,
        "Entries by write latency",
        1000,
    ),
)

SUBSCRIPTION_FAMILIES = (
    Family("pulsar_subscription_back_log", "Messages not acknowledged", _field("msg_backlog")),
    Family(
        "pulsar_subscription_back_log_no_delayed",
        "Messages not acknowledged and not delayed",
        _field("msg_backlog_no_delayed"),
    ),
    Family("pulsar_subscription_delayed", "Messages that wait for their time", _field("msg_delayed")),
    Family("pulsar_subscription_in_replay", "Messages that will be sent again", _field("msg_in_replay")),
    Family("pulsar_subscription_msg_rate_out", "Messages delivered per second", _field("msg_rate_out")),
    Family(
        "pulsar_subscription_msg_throughput_out", "Bytes delivered per second", _field("msg_throughput_out")
    ),
    Family(
        "pulsar_subscription_msg_rate_redeliver",
        "Messages sent again per second",
        _field("msg_rate_redeliver"),
    ),
    Family("pulsar_subscription_msg_ack_rate", "Acknowledgements per second", _field("message_ack_rate")),
    Family("pulsar_subscription_unacked_messages", "Delivered, not acknowledged", _field("unacked_messages")),
    Family(
        "pulsar_subscription_blocked_on_unacked_messages",
        "1 if too many messages are unacknowledged",
        _field("blocked_subscription_on_unacked_msgs"),
    ),
    Family("pulsar_subscription_consumers_count", "Connected consumers", lambda s: len(s.consumers)),
    Family("pulsar_out_messages_total", "Messages delivered", _field("msg_out_counter")),
    Family("pulsar_out_bytes_total", "Bytes delivered", _field("bytes_out_counter")),
    Family("pulsar_subscription_msg_rate_expired", "Messages expired per second", _field("msg_rate_expired")),
    Family("pulsar_subscription_total_msg_expired", "Messages expired", _field("total_msg_expired")),
    Family("pulsar_subscription_last_expire_timestamp", "ms since 1970", _field("last_expire_timestamp")),
    Family("pulsar_subscription_last_acked_timestamp", "ms since 1970", _field("last_acked_timestamp")),
    Family("pulsar_subscription_last_consumed_timestamp", "ms since 1970", _field("last_consumed_timestamp")),
    Family(
        "pulsar_subscription_last_consumed_flow_timestamp",
        "ms since 1970",
        _field("last_consumed_flow_timestamp"),
    ),
    Family(
        "pulsar_subscription_last_mark_delete_advanced_timestamp",
        "ms since 1970",
        _field("last_mark_delete_advanced_timestamp"),
    ),
    Family(
        "pulsar_subscription_delayed_message_index_size_bytes",
        "Memory of the delayed-message index",
        _field("delayed_message_index_size_in_bytes"),
    ),
)

PRODUCER_FAMILIES = (
    Family("pulsar_producer_msg_rate_in", "Messages published per second", _field("msg_rate_in")),
    Family("pulsar_producer_msg_throughput_in", "Bytes published per second", _field("msg_throughput_in")),
    Family(
        "pulsar_producer_msg_average_Size",
        "Average size of a message in bytes",
        _field("average_msg_size"),
    ),
)

CONSUMER_FAMILIES = (
    Family(
        "pulsar_consumer_msg_rate_redeliver", "Messages sent again per second", _field("msg_rate_redeliver")
    ),
    Family("pulsar_consumer_unacked_messages", "Delivered, not acknowledged", _field("unacked_messages")),
    Family(
        "pulsar_consumer_blocked_on_unacked_messages",
        "1 if too many messages are unacknowledged",
        _field("blocked_consumer_on_unacked_msgs"),
    ),
    Family("pulsar_consumer_msg_rate_out", "Messages delivered per second", _field("msg_rate_out")),
    Family("pulsar_consumer_msg_ack_rate", "Acknowledgements per second", _field("message_ack_rate")),
    Family("pulsar_consumer_msg_throughput_out", "Bytes delivered per second", _field("msg_throughput_out")),
    Family(
        "pulsar_consumer_available_permits", "Messages that it is ready to take", _field("available_permits")
    ),
    Family("pulsar_out_messages_total", "Messages delivered", _field("msg_out_counter")),
    Family("pulsar_out_bytes_total", "Bytes delivered", _field("bytes_out_counter")),
)
"""The last two stand beside those of subscriptions, with more labels."""

CURSOR_FAMILIES = (
    Family("pulsar_ml_cursor_persistLedgerSucceed", "States written to a ledger", _field("states_saved")),
    Family("pulsar_ml_cursor_persistLedgerErrors", "States that could not be", _field("states_failed")),
    Family(
        "pulsar_ml_cursor_persistZookeeperSucceed", "Records written to the metadata", _field("records_saved")
    ),
    Family("pulsar_ml_cursor_persistZookeeperErrors", "Records that could not be", _field("records_failed")),
    Family(
        "pulsar_ml_cursor_nonContiguousDeletedMessagesRange",
        "Runs of acknowledged messages behind one that is not",
        _field("acknowledged_ranges"),
    ),
    Family("pulsar_ml_cursor_writeLedgerSize", "Bytes of states written", _field("written_bytes")),
    Family("pulsar_ml_cursor_writeLedgerLogicalSize", "Bytes of states written", _field("written_bytes")),
    Family("pulsar_ml_cursor_readLedgerSize", "Bytes of states read", _field("read_bytes")),
)

EVICTIONS = Family(
    "pulsar_storage_backlog_quota_exceeded_evictions_total",
    "How often the backlog quota took messages from the backlog, since the load",
    lambda topic: sum(topic.quota_evictions),
)

SUMMED_OVER_BROKER = frozenset(
    f"pulsar_{name}"
    for name in (
        "subscriptions_count",
        "producers_count",
        "consumers_count",
        "rate_in",
        "rate_out",
        "throughput_in",
        "throughput_out",
        "storage_size",
        "storage_logical_size",
        "storage_write_rate",
        "storage_read_rate",
        "storage_read_cache_misses_rate",
        "msg_backlog",
    )
)
"""Topic families that exist as `pulsar_broker_...` too, and with a 0 for the cluster when there is no
topic.
"""
