"""Maps the configuration with Pulsar's names to the settings of each room."""

from __future__ import annotations

import math
import socket
from typing import NamedTuple

from geminga import limits
from geminga.bookie.records.settings import BookieSettings
from geminga.broker.delays.settings import DelaySettings
from geminga.broker.dispatch.settings import SubscriptionSettings
from geminga.broker.policies.policies import EffectivePolicies
from geminga.broker.policies.settings import BrokerSettings
from geminga.broker.policies.values import (
    AutoSubscriptionCreation,
    AutoTopicCreation,
    BacklogQuota,
    DelayedDelivery,
    DispatchRate,
    InactiveTopic,
    PublishRate,
    Retention,
    SubscribeRate,
)
from geminga.config.config import BUCKET_TRACKER, ClockKind, Config
from geminga.config.memory_budget import memory_parts
from geminga.managed_ledger.chain.rollover import MINUTE_MS, ManagedLedgerSettings
from geminga.names import TopicName

BROKER_TIMESTAMPS = "org.apache.pulsar.common.intercept.AppendBrokerTimestampMetadataInterceptor"


def bookie_settings(config: Config) -> BookieSettings:
    parts = memory_parts(config)
    return BookieSettings(
        journal_file_bytes=config.journal_max_size_mb * limits.MIB,
        write_cache_bytes=parts.write_cache,
        read_cache_bytes=parts.read_cache,
        # Nearly all of the queue is publishers' entries; the journal's own memory is the group made of them.
        queue_bytes_max=max(parts.publish, parts.journal),
        journal_group_bytes_max=_group_bytes_max(config, parts.journal),
        journal_group_entries_max=_group_entries_max(config),
        journal_group_wait_s=config.journal_max_group_wait_msec / 1000,
        journal_free_files_max=config.journal_max_backups,
        journal_allocate_bytes=config.journal_pre_alloc_size_mb * limits.MIB,
        journal_drops_page_cache=config.journal_remove_from_page_cache,
        flush_interval_s=config.flush_interval / 1000,
        entry_log_bytes=config.log_size_limit,
        read_ahead_bytes=config.db_storage_read_ahead_cache_batch_bytes_size,
        gc_wait_s=config.gc_wait_time / 1000,
        minor_compaction_threshold=config.minor_compaction_threshold,
        minor_compaction_interval_s=float(config.minor_compaction_interval),
        minor_compaction_max_s=_limit_s(config.minor_compaction_max_time_millis),
        major_compaction_threshold=config.major_compaction_threshold,
        major_compaction_interval_s=float(config.major_compaction_interval),
        major_compaction_max_s=_limit_s(config.major_compaction_max_time_millis),
        compaction_rate_bytes_per_s=config.compaction_rate_by_bytes,
        scrub_rate_bytes_per_s=config.geminga_scrub_rate_by_bytes,
        disk_usage_threshold=config.disk_usage_threshold,
        disk_usage_lwm_threshold=_low_water_mark(config),
        disk_free_bytes_min=_free_bytes_min(config, parts.write_cache),
        disk_free_bytes_enough=config.disk_free_bytes_enough,
        disk_check_interval_s=config.disk_check_interval / 1000,
    )


def _group_bytes_max(config: Config, bytes_max: int) -> int:
    """The limit for all journals together, as every limit on memory."""
    each = config.journal_buffered_writes_threshold
    return min(each * max(1, len(config.journal_directories)), bytes_max) if each else bytes_max


def _group_entries_max(config: Config) -> int:
    most = BookieSettings().journal_group_entries_max
    return min(config.journal_buffered_entries_threshold or most, most)


def _free_bytes_min(config: Config, write_cache_bytes: int) -> int:
    """Free space for the content of the write cache, which the next start must be able to flush. 0 stays 0;
    only the share of the disk counts then.
    """
    return config.disk_free_bytes_min and max(config.disk_free_bytes_min, 2 * write_cache_bytes)


def _low_water_mark(config: Config) -> float:
    if config.disk_usage_lwm_threshold >= 0:
        return config.disk_usage_lwm_threshold
    return min(BookieSettings().disk_usage_lwm_threshold, config.disk_usage_threshold)


def _limit_s(limit_ms: int) -> float:
    return limit_ms / 1000 if limit_ms >= 0 else math.inf


def ledger_settings(config: Config) -> ManagedLedgerSettings:
    return ManagedLedgerSettings(
        ledger_entries_max=config.managed_ledger_max_entries_per_ledger,
        ledger_bytes_max=config.managed_ledger_max_size_per_ledger_mbytes * limits.MIB,
        rollover_min_ms=config.managed_ledger_min_ledger_rollover_time_minutes * MINUTE_MS,
        rollover_max_ms=config.managed_ledger_max_ledger_rollover_time_minutes * MINUTE_MS,
        cursor_ledger_entries_max=config.managed_ledger_cursor_max_entries_per_ledger,
    )


def broker_settings(config: Config) -> BrokerSettings:
    return BrokerSettings(
        cluster=config.cluster_name,
        message_bytes_max=config.max_message_size,
        keep_alive_s=float(config.keep_alive_interval_seconds),
        applies_patterns=config.enable_broker_side_subscription_pattern_evaluation,
        pattern_characters_max=config.subscription_pattern_max_length,
        trim_interval_s=float(config.retention_check_interval_in_seconds),
        expiry_interval_s=config.message_expiry_check_interval_in_minutes * 60.0,
        expires_by_broker_time=BROKER_TIMESTAMPS in config.broker_entry_metadata_interceptors.split(","),
        quota_interval_s=float(config.backlog_quota_check_interval_in_seconds),
        checks_quotas=config.backlog_quota_check_enabled,
        publish_rate=PublishRate(
            config.broker_publisher_throttling_max_message_rate,
            config.broker_publisher_throttling_max_byte_rate,
        ),
        inactive_topics_interval_s=float(config.broker_delete_inactive_topics_frequency_seconds),
        subscription_expiry_interval_s=config.subscription_expiry_check_interval_in_minutes * 60.0,
        dedup_producers_max=config.broker_deduplication_max_number_of_producers,
        dedup_snapshot_entries=config.broker_deduplication_entries_interval,
        dedup_upkeep_s=float(config.broker_deduplication_snapshot_frequency_in_seconds),
        dedup_inactivity_ms=config.broker_deduplication_producer_inactivity_timeout_minutes * MINUTE_MS,
        write_timeout_s=float(config.managed_ledger_add_entry_timeout_seconds),
        rates_interval_s=float(config.stats_update_frequency_in_secs),
        backlog_scan_entries_max=config.subscription_backlog_scan_max_entries,
        backlog_scan_max_s=config.subscription_backlog_scan_max_time_ms / 1000,
        exposes_broker_metadata=config.exposing_broker_entry_metadata_to_client_enabled,
    )


def default_policies(config: Config) -> EffectivePolicies:
    """The policies that apply if neither the topic nor its namespace sets them."""
    action = config.backlog_quota_default_retention_policy
    relative = config.dispatch_throttling_rate_relative_to_publish_rate
    inactive_s = config.broker_delete_inactive_topics_max_inactive_duration_seconds
    return EffectivePolicies(
        retention=Retention(config.default_retention_time_in_minutes, config.default_retention_size_in_mb),
        message_ttl_s=config.ttl_duration_default_in_seconds,
        quota_size=BacklogQuota(config.backlog_quota_default_limit_bytes, -1, action),
        quota_age=BacklogQuota(-1, config.backlog_quota_default_limit_second, action),
        delayed_delivery=DelayedDelivery(
            config.delayed_delivery_tick_time_millis,
            config.delayed_delivery_enabled,
            config.delayed_delivery_max_delay_in_millis,
        ),
        ttl_from_due_time=config.delayed_delivery_ttl_from_due_time_enabled,
        quota_from_due_time=config.delayed_delivery_backlog_quota_from_due_time_enabled,
        dispatch_rate=DispatchRate(
            config.dispatch_throttling_rate_per_topic_in_msg,
            config.dispatch_throttling_rate_per_topic_in_byte,
            relative,
            1,
        ),
        subscription_dispatch_rate=DispatchRate(
            config.dispatch_throttling_rate_per_subscription_in_msg,
            config.dispatch_throttling_rate_per_subscription_in_byte,
            relative,
            1,
        ),
        subscribe_rate=SubscribeRate(
            config.subscribe_throttling_rate_per_consumer, config.subscribe_rate_period_per_consumer_in_second
        ),
        inactive_topic=InactiveTopic(
            config.broker_delete_inactive_topics_mode,
            inactive_s if inactive_s >= 0 else config.broker_delete_inactive_topics_frequency_seconds,
            config.broker_delete_inactive_topics_enabled,
        ),
        subscription_expiration_minutes=config.subscription_expiration_time_minutes,
        schema_compatibility=config.schema_compatibility_strategy,
        schema_validation_enforced=config.is_schema_validation_enforced,
        schema_auto_update=config.is_allow_auto_update_schema_enabled,
        compaction_threshold_bytes=config.broker_service_compaction_threshold_in_bytes,
        deduplication=config.broker_deduplication_enabled,
        deduplication_snapshot_interval_s=config.broker_deduplication_snapshot_interval_seconds,
        consumers_max_per_subscription=config.max_consumers_per_subscription,
        unacked_max_per_consumer=config.max_unacked_messages_per_consumer,
        unacked_max_per_subscription=config.max_unacked_messages_per_subscription,
        subscription_types=sorted(config.subscription_types_enabled),
        auto_subscription_creation=AutoSubscriptionCreation(config.allow_auto_subscription_creation),
        topics_max=config.max_topics_per_namespace,
        auto_topic_creation=AutoTopicCreation(
            config.allow_auto_topic_creation,
            config.allow_auto_topic_creation_type,
            config.default_num_partitions,
        ),
        broker_publish_rate=PublishRate(
            config.max_publish_rate_per_topic_in_messages, config.max_publish_rate_per_topic_in_bytes
        ),
    )


def subscription_settings(config: Config) -> SubscriptionSettings:
    return SubscriptionSettings(
        read_entries_max=config.dispatcher_max_read_batch_size,
        read_bytes_max=config.dispatcher_max_read_size_bytes,
        unacked_max_per_consumer=config.max_unacked_messages_per_consumer,
        unacked_max_per_subscription=config.max_unacked_messages_per_subscription,
        batch_index_acks=config.acknowledgment_at_batch_index_level_enabled,
        delayed_delivery=config.delayed_delivery_enabled,
        round_robin_entries_max=config.dispatcher_max_round_robin_batch_size,
        consumers_max=config.max_consumers_per_subscription,
        failover_delay_ms=config.active_consumer_failover_delay_time_millis,
        failover_by_hash=config.active_consumer_failover_consistent_hashing,
        key_shared_ring=config.subscription_key_shared_use_consistent_hashing,
        key_shared_ring_points=config.subscription_key_shared_consistent_hashing_replica_points,
    )


def delay_settings(config: Config) -> DelaySettings:
    span_s = config.delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds
    return DelaySettings(
        tick_ms=config.delayed_delivery_tick_time_millis,
        strict=config.is_delayed_delivery_deliver_at_time_strict,
        fixed_delay_lookahead=config.delayed_delivery_fixed_delay_detection_lookahead,
        keeps_buckets=config.delayed_delivery_tracker_factory_class_name == BUCKET_TRACKER,
        is_shared=config.delayed_delivery_shared_index_enabled,
        bucket_indexes_min=config.delayed_delivery_min_index_count_per_bucket,
        segment_span_ms=span_s * 1000,
        segment_indexes_max=config.delayed_delivery_max_indexes_per_bucket_snapshot_segment or -1,
        buckets_max=config.delayed_delivery_max_num_buckets,
    )


class ListenSettings(NamedTuple):
    """Where the broker listens; port 0 takes any free one."""

    host: str
    binary_port: int
    web_port: int


def listen_settings(config: Config) -> ListenSettings:
    return ListenSettings(config.bind_address, config.broker_service_port, config.web_service_port)


class HostNames(NamedTuple):
    """The names by which requests may call the broker in `Host`."""

    own: tuple[str, ...]
    listed: tuple[str, ...]
    """Names that the user has configured, in addition to the broker's own."""


def clock_kind(config: Config) -> ClockKind:
    """Which clock the data directory is to have; "auto": the one that it was made with."""
    return config.geminga_clock


def host_names(config: Config) -> HostNames:
    own = (config.bind_address, config.advertised_address, socket.gethostname())
    return HostNames(tuple(filter(None, own)), config.geminga_web_service_host_names)


def service_url(config: Config, local_host: str, port: int) -> str:
    """The URL for a client that has reached the broker at `local_host`."""
    host = config.advertised_address or local_host
    return f"pulsar://{f'[{host}]' if ':' in host else host}:{port}"


class TailCacheSettings(NamedTuple):
    bytes_max: int
    age_max_ms: int
    backlogged_entries: int


def tail_cache_settings(config: Config) -> TailCacheSettings:
    return TailCacheSettings(
        bytes_max=memory_parts(config).tail_cache,
        age_max_ms=config.managed_ledger_cache_eviction_time_threshold_millis,
        backlogged_entries=config.managed_ledger_cursor_backlogged_threshold,
    )


class DeliveryLogSettings(NamedTuple):
    directory: str
    interval_s: float
    file_bytes_max: int
    total_bytes_max: int
    topic: str
    """The full name of the topic to which the log is shipped; "" for none."""


def delivery_log_settings(config: Config) -> DeliveryLogSettings | None:
    """None if the delivery log is off."""
    if not config.geminga_delivery_log_directory:
        return None
    topic = config.geminga_delivery_log_topic
    return DeliveryLogSettings(
        directory=config.geminga_delivery_log_directory,
        interval_s=config.geminga_delivery_log_interval_ms / 1000,
        file_bytes_max=config.geminga_delivery_log_file_size_mb * limits.MIB,
        total_bytes_max=config.geminga_delivery_log_total_size_mb * limits.MIB,
        topic=str(TopicName.parse(topic)) if topic else "",
    )
