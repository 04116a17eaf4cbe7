"""The settings of the broker's rooms, in Pulsar's terms."""

from __future__ import annotations

import msgspec

from geminga import limits
from geminga.broker.policies.values import PublishRate


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of topics, producers and connections; the names in brackets are `broker.conf`'s."""

    cluster: str = "standalone"
    """[clusterName]"""
    message_bytes_max: int = limits.MESSAGE_BYTES_MAX
    """[maxMessageSize]"""
    keep_alive_s: float = 30.0
    """[keepAliveIntervalSeconds] A peer that is silent for two of these is gone."""
    applies_patterns: bool = True
    """Whether pattern consumers get filtered lists and are notified of new topics
    [enableBrokerSideSubscriptionPatternEvaluation]
    """
    pattern_characters_max: int = 50
    """The limit of a pattern; a longer one is left to its client [subscriptionPatternMaxLength]"""
    trim_interval_s: float = 120.0
    """[retentionCheckIntervalInSeconds]"""
    expiry_interval_s: float = 300.0
    """Interval of the search for messages older than their TTL [messageExpiryCheckIntervalInMinutes]"""
    expires_by_broker_time: bool = False
    """Whether ages count from the broker's stamp instead of the producer's clock
    [brokerEntryMetadataInterceptors]
    """
    quota_interval_s: float = 60.0
    """[backlogQuotaCheckIntervalInSeconds]"""
    checks_quotas: bool = True
    """[backlogQuotaCheckEnabled]"""
    inactive_topics_interval_s: float = 60.0
    """Time between two checks for unused topics [brokerDeleteInactiveTopicsFrequencySeconds]"""
    subscription_expiry_interval_s: float = 300.0
    """Time between two checks for unused subscriptions [subscriptionExpiryCheckIntervalInMinutes]"""
    publish_rate: PublishRate = PublishRate()
    """The limit for all topics together [brokerPublisherThrottlingMaxMessageRate,
    brokerPublisherThrottlingMaxByteRate]
    """
    dedup_producers_max: int = 10_000
    """The limit of producer names whose sequence ids are stored [brokerDeduplicationMaxNumberOfProducers]"""
    dedup_snapshot_entries: int = 1000
    """A snapshot is written after this many entries [brokerDeduplicationEntriesInterval]"""
    dedup_upkeep_s: float = 120.0
    """Time between two checks for old snapshots and absent producers
    [brokerDeduplicationSnapshotFrequencyInSeconds]
    """
    dedup_inactivity_ms: int = 360 * 60_000
    """[brokerDeduplicationProducerInactivityTimeoutMinutes]"""
    backlog_scan_entries_max: int = 10_000
    """The limit of backlog entries that one request analyzes [subscriptionBacklogScanMaxEntries]"""
    backlog_scan_max_s: float = 120.0
    """[subscriptionBacklogScanMaxTimeMs]"""
    write_timeout_s: float = 30.0
    """A write that is not durable after this time fails its producer; 0: no limit
    [managedLedgerAddEntryTimeoutSeconds]
    """
    rates_interval_s: float = 60.0
    """[statsUpdateFrequencyInSecs]"""
    exposes_broker_metadata: bool = False
    """Whether clients that request it get the broker's stamp, too
    [exposingBrokerEntryMetadataToClientEnabled]
    """
