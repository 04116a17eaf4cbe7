"""What the broker's rooms may be told from outside, in Pulsar's terms."""

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
    """Consumers by pattern get filtered lists and are told of new topics
    [enableBrokerSideSubscriptionPatternEvaluation]
    """
    pattern_characters_max: int = 50
    """A longer pattern is left to its client [subscriptionPatternMaxLength]"""
    trim_interval_s: float = 120.0
    """[retentionCheckIntervalInSeconds]"""
    expiry_interval_s: float = 300.0
    """How often messages older than their TTL are looked for [messageExpiryCheckIntervalInMinutes]"""
    expires_by_broker_time: bool = False
    """Ages are counted from the broker's stamp and not from the producer's clock
    [brokerEntryMetadataInterceptors]"""
    quota_interval_s: float = 60.0
    """[backlogQuotaCheckIntervalInSeconds]"""
    checks_quotas: bool = True
    """[backlogQuotaCheckEnabled]"""
    inactive_topics_interval_s: float = 60.0
    """Time between two checks for unused topics [brokerDeleteInactiveTopicsFrequencySeconds]"""
    subscription_expiry_interval_s: float = 300.0
    """Time between two checks for unused subscriptions [subscriptionExpiryCheckIntervalInMinutes]"""
    publish_rate: PublishRate = PublishRate()
    """Of all topics together [brokerPublisherThrottlingMaxMessageRate, brokerPublisherThrottlingMaxByteRate]
    """
    dedup_producers_max: int = 10_000
    """Producer names whose sequence ids are kept and stored [brokerDeduplicationMaxNumberOfProducers]"""
    dedup_snapshot_entries: int = 1000
    """A snapshot is taken after so many entries [brokerDeduplicationEntriesInterval]"""
    dedup_upkeep_s: float = 120.0
    """Time between two checks for old snapshots and absent producers
    [brokerDeduplicationSnapshotFrequencyInSeconds]
    """
    dedup_inactivity_ms: int = 360 * 60_000
    """[brokerDeduplicationProducerInactivityTimeoutMinutes]"""
    backlog_scan_entries_max: int = 10_000
    """How much of a backlog one request analyzes [subscriptionBacklogScanMaxEntries]"""
    backlog_scan_max_s: float = 120.0
    """[subscriptionBacklogScanMaxTimeMs]"""
    write_timeout_s: float = 30.0
    """A write that is not durable after so long fails its producer; 0: no limit
    [managedLedgerAddEntryTimeoutSeconds]
    """
    rates_interval_s: float = 60.0
    """[statsUpdateFrequencyInSecs]"""
    exposes_broker_metadata: bool = False
    """[exposingBrokerEntryMetadataToClientEnabled] Clients that ask for it get the broker's stamp too."""
