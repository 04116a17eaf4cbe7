"""Which metrics there are for topics, subscriptions, clients and cursors: Pulsar's names, and where each
value comes from.

One name that dashboards query has no meaning here and a constant value; its text says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from geminga.broker.flow.statistics import ENTRY_SIZE_BOUNDS, WRITE_LATENCY_BOUNDS_MS

ALL: Final = -1


class Family(NamedTuple):
    """One metric: its name, what it means, and where it is in a statistics struct."""

    name: str
    help: str
    attribute: str
    """With a dot for one in another struct."""
    place: int = ALL
    """Of a tuple: which element. ALL: it is no tuple."""
    is_sum: bool = False
    """Of a tuple: all elements together."""

    def read(self, source: object) -> float:
        """From one struct."""
        return self.column([attrgetter(self.attribute)(source)])[0]

    def column(self, values: Sequence[Any]) -> list[float]:
        """From what the attribute is in each row."""
        # Tuples of classes are empty as long as nothing was counted.
        if self.is_sum:
            return [sum(value) for value in values]
        if self.place != ALL:
            place = self.place
            return [value[place] if value else 0 for value in values]
        return list(values)


def _classes(prefix: str, attribute: str, labels: Sequence[str], text: str, total: str) -> list[Family]:
    """Pulsar's histograms: a gauge for each class, which starts from zero in each interval."""
    families = [Family(f"{prefix}_{label}", text, attribute, place) for place, label in enumerate(labels)]
    families.append(Family(f"{prefix}_count", text, attribute, is_sum=True))
    families.append(Family(f"{prefix}_sum", text, total))
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
    Family("pulsar_subscriptions_count", "Subscriptions", "subscriptions_count"),
    Family("pulsar_producers_count", "Connected producers", "producers_count"),
    Family(
        "pulsar_consumers_count",
        "Connected consumers",
        "of_subscriptions.consumers",
    ),
    Family("pulsar_rate_in", "Messages published per second", "msg_rate_in"),
    Family("pulsar_rate_out", "Messages delivered per second", "of_subscriptions.msg_rate_out"),
    Family("pulsar_throughput_in", "Bytes published per second", "msg_throughput_in"),
    Family("pulsar_throughput_out", "Bytes delivered per second", "of_subscriptions.msg_throughput_out"),
    Family("pulsar_average_msg_size", "Average size of a message in bytes", "average_msg_size"),
    Family("pulsar_in_messages_total", "Messages published", "msg_in_counter"),
    Family("pulsar_in_bytes_total", "Bytes published", "bytes_in_counter"),
    Family(
        "pulsar_msg_backlog",
        "Entries not acknowledged, over all subscriptions; a batch is one",
        "of_subscriptions.msg_backlog",
    ),
    Family("pulsar_storage_size", "Bytes stored", "storage_size"),
    Family("pulsar_storage_logical_size", "Bytes stored, one replica", "storage_size"),
    Family("pulsar_storage_backlog_size", "Bytes kept for the slowest subscription", "backlog_size"),
    Family("pulsar_storage_offloaded_size", "Shim: nothing is offloaded, 0", "offloaded_bytes"),
    Family("pulsar_storage_write_rate", "Entries written per second; a batch is one", "write_rate"),
    Family("pulsar_storage_read_rate", "Entries read from the bookie per second", "read_rate"),
    Family(
        "pulsar_storage_read_cache_misses_rate",
        "Entries per second that were not in the tail cache",
        "read_rate",
    ),
    Family(
        "pulsar_storage_read_latency_count",
        "Entries read from the bookie in the last interval",
        "entries_read",
    ),
    Family(
        "pulsar_storage_backlog_quota_limit",
        "Backlog quota in bytes, -1: none",
        "backlog_quota_limit_size",
    ),
    Family(
        "pulsar_storage_backlog_quota_limit_time",
        "Backlog quota in seconds, -1: none",
        "backlog_quota_limit_time",
    ),
    Family(
        "pulsar_storage_backlog_age_seconds",
        "Age of the oldest backlog entry at the last check of a quota of age, -1: unknown",
        "backlog_age_s",
    ),
    Family(
        "pulsar_publish_rate_limit_times",
        "How often publishing was throttled",
        "publish_rate_limit_times",
    ),
    Family(
        "pulsar_delayed_message_index_size_bytes",
        "Memory of the delayed-message index",
        "of_subscriptions.delayed_index_bytes",
    ),
    *_classes("pulsar_entry_size", "entry_sizes.counts", _SIZES, "Entries by size", "entry_sizes.sum"),
    # The name that the dashboards ask for; the broker's own is ..._le_overflow.
    *_classes(
        "pulsar_entry_size",
        "entry_sizes.counts",
        [*_SIZES[:-1], "overflow"],
        "Entries by size",
        "entry_sizes.sum",
    )[-3:-2],
    # Classes by milliseconds, their sum in microseconds, as in Pulsar.
    *_classes(
        "pulsar_storage_write_latency",
        "write_latencies.counts",
        _LATENCIES,
        "Entries by write latency",
        "write_latencies_us",
    ),
    *_classes(
        "pulsar_storage_ledger_write_latency",
        "write_latencies.counts",
        _LATENCIES,
        "Entries by write latency",
        "write_latencies_us",
    ),
)

SUBSCRIPTION_FAMILIES = (
    Family("pulsar_subscription_back_log", "Entries not acknowledged; a batch is one", "msg_backlog"),
    Family(
        "pulsar_subscription_back_log_no_delayed",
        "Entries neither acknowledged nor counted as delayed; a batch is one",
        "msg_backlog_no_delayed",
    ),
    Family(
        "pulsar_subscription_delayed",
        "Entries in the delayed index: not due yet, or due and not sent yet, as in Pulsar",
        "msg_delayed",
    ),
    Family(
        "geminga_subscription_overdue",
        "About so many of the delayed entries are due and not sent yet",
        "msg_overdue",
    ),
    Family(
        "geminga_subscription_unread",
        "Entries that no consumer has read since the start: at most so many more may wait for their time",
        "unread_entries",
    ),
    Family(
        "pulsar_subscription_in_replay", "Entries that will be sent again; a batch is one", "msg_in_replay"
    ),
    Family("pulsar_subscription_msg_rate_out", "Messages delivered per second", "msg_rate_out"),
    Family("pulsar_subscription_msg_throughput_out", "Bytes delivered per second", "msg_throughput_out"),
    Family(
        "pulsar_subscription_msg_rate_redeliver",
        "Messages sent again per second",
        "msg_rate_redeliver",
    ),
    Family("pulsar_subscription_msg_ack_rate", "Acknowledgements per second", "message_ack_rate"),
    Family(
        "pulsar_subscription_unacked_messages", "Messages delivered, not acknowledged", "unacked_messages"
    ),
    Family(
        "pulsar_subscription_blocked_on_unacked_messages",
        "1 if too many messages are unacknowledged",
        "blocked_subscription_on_unacked_msgs",
    ),
    Family("pulsar_subscription_consumers_count", "Connected consumers", "consumers_count"),
    Family("pulsar_out_messages_total", "Messages delivered", "msg_out_counter"),
    Family("pulsar_out_bytes_total", "Bytes delivered", "bytes_out_counter"),
    Family("pulsar_subscription_msg_rate_expired", "Entries expired per second", "msg_rate_expired"),
    Family("pulsar_subscription_total_msg_expired", "Entries expired; a batch is one", "total_msg_expired"),
    Family("pulsar_subscription_last_expire_timestamp", "ms since 1970", "last_expire_timestamp"),
    Family("pulsar_subscription_last_acked_timestamp", "ms since 1970", "last_acked_timestamp"),
    Family("pulsar_subscription_last_consumed_timestamp", "ms since 1970", "last_consumed_timestamp"),
    Family(
        "pulsar_subscription_last_consumed_flow_timestamp",
        "ms since 1970",
        "last_consumed_flow_timestamp",
    ),
    Family(
        "pulsar_subscription_last_mark_delete_advanced_timestamp",
        "ms since 1970",
        "last_mark_delete_advanced_timestamp",
    ),
    Family(
        "pulsar_subscription_delayed_message_index_size_bytes",
        "Memory of the delayed-message index",
        "delayed_message_index_size_in_bytes",
    ),
)

UNLOADED_TOPIC_FAMILIES = tuple(
    family
    for family in TOPIC_FAMILIES
    if family.name
    in {
        "pulsar_subscriptions_count",
        "pulsar_producers_count",
        "pulsar_consumers_count",
        "pulsar_msg_backlog",
        "pulsar_storage_size",
        "pulsar_storage_logical_size",
        "pulsar_storage_backlog_size",
    }
)
"""What a page has of a topic that no client has used since the start."""
UNLOADED_SUBSCRIPTION_FAMILIES = tuple(
    family
    for family in SUBSCRIPTION_FAMILIES
    if family.name
    in {
        "pulsar_subscription_back_log",
        "pulsar_subscription_back_log_no_delayed",
        "pulsar_subscription_delayed",
        "geminga_subscription_unread",
        "pulsar_subscription_consumers_count",
    }
)

PRODUCER_FAMILIES = (
    Family("pulsar_producer_msg_rate_in", "Messages published per second", "msg_rate_in"),
    Family("pulsar_producer_msg_throughput_in", "Bytes published per second", "msg_throughput_in"),
    Family(
        "pulsar_producer_msg_average_Size",
        "Average size of a message in bytes",
        "average_msg_size",
    ),
)

CONSUMER_FAMILIES = (
    Family("pulsar_consumer_msg_rate_redeliver", "Messages sent again per second", "msg_rate_redeliver"),
    Family("pulsar_consumer_unacked_messages", "Messages delivered, not acknowledged", "unacked_messages"),
    Family(
        "pulsar_consumer_blocked_on_unacked_messages",
        "1 if too many messages are unacknowledged",
        "blocked_consumer_on_unacked_msgs",
    ),
    Family("pulsar_consumer_msg_rate_out", "Messages delivered per second", "msg_rate_out"),
    Family("pulsar_consumer_msg_ack_rate", "Acknowledgements per second", "message_ack_rate"),
    Family("pulsar_consumer_msg_throughput_out", "Bytes delivered per second", "msg_throughput_out"),
    Family("pulsar_consumer_available_permits", "Messages that it is ready to take", "available_permits"),
    Family("pulsar_out_messages_total", "Messages delivered", "msg_out_counter"),
    Family("pulsar_out_bytes_total", "Bytes delivered", "bytes_out_counter"),
)
"""The last two stand beside those of subscriptions, with more labels."""

CURSOR_FAMILIES = (
    Family("pulsar_ml_cursor_persistLedgerSucceed", "States written to a ledger", "states_saved"),
    Family("pulsar_ml_cursor_persistLedgerErrors", "States that could not be", "states_failed"),
    Family("pulsar_ml_cursor_persistZookeeperSucceed", "Records written to the metadata", "records_saved"),
    Family("pulsar_ml_cursor_persistZookeeperErrors", "Records that could not be", "records_failed"),
    Family(
        "pulsar_ml_cursor_nonContiguousDeletedMessagesRange",
        "Runs of acknowledged entries behind one that is not",
        "acknowledged_ranges",
    ),
    Family("pulsar_ml_cursor_writeLedgerSize", "Bytes of states written", "written_bytes"),
    Family("pulsar_ml_cursor_writeLedgerLogicalSize", "Bytes of states written", "written_bytes"),
    Family("pulsar_ml_cursor_readLedgerSize", "Bytes of states read", "read_bytes"),
)

EVICTIONS = Family(
    "pulsar_storage_backlog_quota_exceeded_evictions_total",
    "How often the backlog quota took entries from the backlog, since the load",
    "quota_evictions",
)

KEPT = Family(
    "geminga_compaction_kept_bytes",
    "Bytes of a topic that keeps all messages in place of compacting them, by its reason: request, threshold",
    "kept_bytes",
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
