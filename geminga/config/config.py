"""The settings: one frozen struct, its fields named after the keys of Pulsar's `broker.conf`.

`loading.py` fills it from a file, the environment and flags.
"""

# No `from __future__ import annotations` here: the annotations below are read at run time, and as objects
# they are free.

from collections.abc import Sequence
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from geminga import limits
from geminga.config.memory_budget import BUDGET_MB_MAX, BUDGET_MB_MIN, SETTINGS
from geminga.errors import GemingaError

_INT32_MAX = 2**31 - 1
_INT64_MAX = 2**63 - 1

Port = Annotated[int, Meta(ge=0, le=65535)]
Count = Annotated[int, Meta(ge=0, le=_INT32_MAX)]
Positive = Annotated[int, Meta(ge=1, le=_INT32_MAX)]
Limit = Annotated[int, Meta(ge=-1, le=_INT32_MAX)]
LongLimit = Annotated[int, Meta(ge=-1, le=_INT64_MAX)]
Long = Annotated[int, Meta(ge=0, le=_INT64_MAX)]
MillisOrNever = Annotated[int, Meta(ge=-1, le=_INT64_MAX)]
"""-1: no limit."""
Share = Annotated[float, Meta(ge=0, le=1)]
MessageBytes = Annotated[int, Meta(ge=1, le=limits.MESSAGE_BYTES_MAX)]
ClockKind = Literal["auto", "real", "virtual"]
TopicKind = Literal["non-partitioned", "partitioned"]
TrackerFactory = Literal[
    "org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTrackerFactory",
    "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory",
]
IN_MEMORY_TRACKER: TrackerFactory = "org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTrackerFactory"
BUCKET_TRACKER: TrackerFactory = "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
QuotaPolicy = Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]
SchemaStrategy = Literal[
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
]
SubscriptionKind = Literal["Exclusive", "Shared", "Failover", "Key_Shared"]
InactiveTopicMode = Literal["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"]


class ConfigError(GemingaError):
    """The configuration cannot be used; `problems` has one line for each error."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = list(problems)


class Config(Struct, frozen=True, kw_only=True, rename="camel"):
    """Every served setting, with Pulsar's default unless a comment gives the reason for another.

    The encoded name of a field is Pulsar's key. Constructing a `Config` checks nothing: `load` checks
    bounds.
    """

    # Where it listens, and as what it is known.
    broker_service_port: Port = 6650
    web_service_port: Port = 8080
    bind_address: str = (
        "127.0.0.1"  # Pulsar: 0.0.0.0. Without authentication the machine itself is the border.
    )
    advertised_address: str = (
        ""  # empty: what clients were bound to, or this host's name when bound to all addresses
    )
    # Not Pulsar's: further host names of the broker, for requests that a browser may have sent.
    geminga_web_service_host_names: tuple[str, ...] = ()
    cluster_name: str = "standalone"
    keep_alive_interval_seconds: Positive = 30
    max_message_size: MessageBytes = limits.MESSAGE_BYTES_MAX

    # Topics
    allow_auto_topic_creation: bool = True
    allow_auto_topic_creation_type: TopicKind = "non-partitioned"
    default_num_partitions: Positive = 1
    max_topics_per_namespace: Count = 0  # 0: no limit
    max_num_partitions_per_partitioned_topic: Count = 0  # 0: no limit
    allow_auto_subscription_creation: bool = True
    enable_broker_side_subscription_pattern_evaluation: bool = True
    subscription_pattern_max_length: Count = 50
    exposing_broker_entry_metadata_to_client_enabled: bool = False
    retention_check_interval_in_seconds: Positive = 120
    default_retention_time_in_minutes: Limit = 0  # -1: for ever
    default_retention_size_in_mb: Limit = msgspec.field(default=0, name="defaultRetentionSizeInMB")  # -1: any
    ttl_duration_default_in_seconds: Count = 0  # 0: nothing expires
    message_expiry_check_interval_in_minutes: Positive = 5
    broker_entry_metadata_interceptors: str = ""  # of these only AppendBrokerTimestamp... counts
    backlog_quota_check_enabled: bool = True
    backlog_quota_check_interval_in_seconds: Positive = 60
    backlog_quota_default_limit_bytes: LongLimit = -1  # -1: no limit
    backlog_quota_default_limit_second: Limit = -1  # -1: no limit
    backlog_quota_default_retention_policy: QuotaPolicy = "producer_request_hold"
    # Not Pulsar's: what is not due yet does not count (docs/delayed-delivery.md).
    delayed_delivery_ttl_from_due_time_enabled: bool = False
    delayed_delivery_backlog_quota_from_due_time_enabled: bool = False
    broker_delete_inactive_topics_enabled: bool = True
    broker_delete_inactive_topics_frequency_seconds: Positive = 60
    broker_delete_inactive_topics_mode: InactiveTopicMode = "delete_when_no_subscriptions"
    broker_delete_inactive_topics_max_inactive_duration_seconds: Limit = -1  # not set: as the frequency
    subscription_expiration_time_minutes: Count = 0  # 0: never
    subscription_expiry_check_interval_in_minutes: Positive = 5
    subscription_backlog_scan_max_entries: Positive = 10_000
    subscription_backlog_scan_max_time_ms: Positive = 120_000
    stats_update_frequency_in_secs: Positive = 60
    schema_compatibility_strategy: SchemaStrategy = "FULL"
    is_schema_validation_enforced: bool = False
    is_allow_auto_update_schema_enabled: bool = True
    broker_deduplication_enabled: bool = False
    broker_deduplication_max_number_of_producers: Positive = 10_000
    broker_deduplication_entries_interval: Positive = 1000
    broker_deduplication_snapshot_interval_seconds: Count = 120  # 0: only after so many entries
    broker_deduplication_snapshot_frequency_in_seconds: Positive = 120
    broker_deduplication_producer_inactivity_timeout_minutes: Positive = 360
    broker_service_compaction_threshold_in_bytes: Long = 0  # 0: none

    # Subscriptions and dispatch
    subscription_types_enabled: frozenset[SubscriptionKind] = frozenset(
        {"Exclusive", "Shared", "Failover", "Key_Shared"}
    )
    max_unacked_messages_per_consumer: Count = 50_000  # 0: no limit
    max_unacked_messages_per_subscription: Count = 200_000  # 0: no limit
    acknowledgment_at_batch_index_level_enabled: bool = False
    active_consumer_failover_delay_time_millis: Count = 1000
    active_consumer_failover_consistent_hashing: bool = False
    max_consumers_per_subscription: Count = 0  # 0: no limit
    subscription_key_shared_use_consistent_hashing: bool = True
    subscription_key_shared_consistent_hashing_replica_points: Positive = 100
    dispatcher_max_read_batch_size: Positive = 100
    dispatcher_max_round_robin_batch_size: Positive = 20
    dispatcher_max_read_size_bytes: Positive = 5 * limits.MIB
    dispatch_throttling_rate_per_topic_in_msg: Limit = 0  # of all four: 0 (or -1) is no limit
    dispatch_throttling_rate_per_topic_in_byte: LongLimit = 0
    dispatch_throttling_rate_per_subscription_in_msg: Limit = 0
    dispatch_throttling_rate_per_subscription_in_byte: LongLimit = 0
    dispatch_throttling_rate_relative_to_publish_rate: bool = False
    subscribe_throttling_rate_per_consumer: Count = 0  # 0: no limit
    subscribe_rate_period_per_consumer_in_second: Positive = 30

    # Delayed delivery
    delayed_delivery_enabled: bool = True
    # Not Pulsar's default: a start need not read all that waits (docs/delayed-delivery.md).
    delayed_delivery_tracker_factory_class_name: TrackerFactory = BUCKET_TRACKER
    delayed_delivery_tick_time_millis: Annotated[int, Meta(ge=1, le=_INT64_MAX)] = 1000
    is_delayed_delivery_deliver_at_time_strict: bool = True  # Pulsar's default is false
    delayed_delivery_fixed_delay_detection_lookahead: Long = 50_000  # 0: off
    delayed_delivery_max_delay_in_millis: Long = 0  # 0: no limit
    # Buckets: of the second tracker factory, and of the shared index.
    delayed_delivery_min_index_count_per_bucket: Annotated[int, Meta(ge=1, le=_INT64_MAX)] = 50_000
    delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds: Positive = 300
    delayed_delivery_max_indexes_per_bucket_snapshot_segment: Limit = 5_000  # -1 (or 0): no limit
    delayed_delivery_max_num_buckets: Limit = -1  # -1 (or 0): merged above 2,000
    # Not Pulsar's: one index for all subscriptions of a topic (docs/delayed-delivery.md).
    delayed_delivery_shared_index_enabled: bool = True

    # Managed ledgers and cursors
    managed_ledger_max_entries_per_ledger: Positive = 50_000
    managed_ledger_min_ledger_rollover_time_minutes: Count = 10
    managed_ledger_max_ledger_rollover_time_minutes: Positive = 240
    managed_ledger_max_size_per_ledger_mbytes: Positive = 2048
    managed_ledger_cursor_max_entries_per_ledger: Positive = 50_000
    managed_ledger_cache_eviction_time_threshold_millis: Positive = 1000
    managed_ledger_cursor_backlogged_threshold: Count = 1000
    max_publish_rate_per_topic_in_messages: Count = 0  # 0: no limit
    max_publish_rate_per_topic_in_bytes: Long = 0  # 0: no limit
    broker_publisher_throttling_max_message_rate: Count = 0  # 0: no limit
    broker_publisher_throttling_max_byte_rate: Long = 0  # 0: no limit
    managed_ledger_add_entry_timeout_seconds: Count = 30  # 0: never. Pulsar: 0

    # Bookie. Directories, separated by commas: empty: inside the data directory; fixed with the first start.
    journal_directories: tuple[str, ...] = ()
    ledger_directories: tuple[str, ...] = ()
    # Pulsar: 2048. A small journal is replayed quickly after a crash.
    journal_max_size_mb: Positive = msgspec.field(default=32, name="journalMaxSizeMB")

    journal_pre_alloc_size_mb: Annotated[int, Meta(ge=1, le=1024)] = msgspec.field(
        default=8, name="journalPreAllocSizeMB"
    )  # BookKeeper: 16
    journal_remove_from_page_cache: bool = True
    journal_max_backups: Annotated[int, Meta(ge=0, le=10_000)] = 2  # BookKeeper: 5, which are not reused
    # A group: BookKeeper waits 2 ms for it to fill, Pulsar's bookie 1.
    journal_max_group_wait_msec: Annotated[int, Meta(ge=0, le=60_000)] = msgspec.field(
        default=0, name="journalMaxGroupWaitMSec"
    )
    journal_buffered_writes_threshold: Long = 0  # 0: the memory's share
    journal_buffered_entries_threshold: Count = 0  # 0: the bookie's own bound
    flush_interval: Positive = 60_000  # ms
    log_size_limit: Annotated[int, Meta(ge=limits.MIB, le=2048 * limits.MIB)] = (
        256 * limits.MIB
    )  # BookKeeper: 1 GiB
    db_storage_read_ahead_cache_batch_bytes_size: Annotated[int, Meta(ge=0, le=64 * limits.MIB)] = (
        msgspec.field(default=limits.MIB, name="dbStorage_readAheadCacheBatchBytesSize")
    )
    gc_wait_time: Annotated[int, Meta(ge=100, le=_INT64_MAX)] = 900_000  # ms
    minor_compaction_threshold: Share = 0.2  # 0, or an interval of 0: never
    minor_compaction_interval: Count = 3600  # seconds
    minor_compaction_max_time_millis: MillisOrNever = 600_000  # BookKeeper: -1
    major_compaction_threshold: Share = 0.5
    major_compaction_interval: Count = 86_400  # seconds
    major_compaction_max_time_millis: MillisOrNever = 3_600_000  # BookKeeper: -1
    compaction_rate_by_bytes: Count = 8 * limits.MIB  # a second; 0: no limit. BookKeeper: 1,000,000
    # Not BookKeeper's: how fast closed entry logs are read to find damage.
    geminga_scrub_rate_by_bytes: Long = 10_000_000  # a second; 0: not at all
    disk_usage_threshold: Share = 0.95
    disk_usage_lwm_threshold: Share = -1  # not set: 0.90, or the threshold if that is lower
    disk_check_interval: Annotated[int, Meta(ge=100, le=_INT32_MAX)] = 10_000  # ms
    # Not BookKeeper's: with less than the first free a disk is full, with more than the second it is not,
    # whatever their share.
    disk_free_bytes_min: Long = 128 * limits.MIB
    disk_free_bytes_enough: Long = 4096 * limits.MIB

    # Memory: one budget for the process, and its parts where they are set by themselves; -1: their share.
    # docs/memory.md has the table.
    memory_mb: Annotated[int, Meta(ge=BUDGET_MB_MIN, le=BUDGET_MB_MAX)] = 192
    db_storage_write_cache_max_size_mb: Annotated[int, Meta(ge=8, le=BUDGET_MB_MAX)] = msgspec.field(
        default=-1, name=SETTINGS["write_cache"]
    )
    db_storage_read_ahead_cache_max_size_mb: Annotated[int, Meta(ge=1, le=BUDGET_MB_MAX)] = msgspec.field(
        default=-1, name=SETTINGS["read_cache"]
    )
    db_storage_rocks_db_block_cache_size: Annotated[int, Meta(ge=limits.MIB, le=_INT64_MAX)] = msgspec.field(
        default=-1, name=SETTINGS["block_cache"]
    )  # bytes, as in BookKeeper
    journal_max_memory_size_mb: Annotated[int, Meta(ge=3, le=BUDGET_MB_MAX)] = msgspec.field(
        default=-1, name=SETTINGS["journal"]
    )
    # Pulsar: -1 is no limit. Here it is the share.
    max_message_publish_buffer_size_in_mb: Annotated[int, Meta(ge=-1, le=BUDGET_MB_MAX)] = msgspec.field(
        default=-1, name=SETTINGS["publish"]
    )
    managed_ledger_cache_size_mb: Annotated[int, Meta(ge=0, le=BUDGET_MB_MAX)] = msgspec.field(
        default=-1, name=SETTINGS["tail_cache"]
    )

    # Not Pulsar's: virtual is a clock that a test moves; auto is the one that the data directory has.
    geminga_clock: ClockKind = "auto"

    # Not Pulsar's: lets a test break the delayed index over HTTP.
    chaos_enabled: bool = False

    # Not Pulsar's: a log of what was published, dispatched and acknowledged; empty: none is written.
    geminga_delivery_log_directory: str = ""
    geminga_delivery_log_interval_ms: Count = 100  # 0: at once
    geminga_delivery_log_file_size_mb: Positive = msgspec.field(
        default=256, name="gemingaDeliveryLogFileSizeMB"
    )
    geminga_delivery_log_total_size_mb: Count = msgspec.field(
        default=4096, name="gemingaDeliveryLogTotalSizeMB"
    )  # 0: no limit
    geminga_delivery_log_topic: str = ""  # empty: it is not shipped

    # Metrics
    expose_topic_level_metrics_in_prometheus: bool = True
    expose_consumer_level_metrics_in_prometheus: bool = False
    expose_producer_level_metrics_in_prometheus: bool = False
    expose_managed_ledger_metrics_in_prometheus: bool = True
    expose_managed_cursor_metrics_in_prometheus: bool = False
    geminga_metrics_series_max: Count = 1_000_000  # of topics and below on one page
    split_topic_and_partition_label_in_prometheus: bool = False
