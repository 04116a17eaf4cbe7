"""The wires of topics, subscriptions, policies and ledgers. See rows.py."""

from __future__ import annotations

from geminga.config.config import IN_MEMORY_TRACKER
from geminga.limits import MIB
from geminga.server.room_settings import BROKER_TIMESTAMPS
from tests.server.settings.rows import Row

TOPIC_ROWS = [
    Row("clusterName", "pulsar-1", {"broker.cluster": "pulsar-1"}),
    Row("maxMessageSize", "1048576", {"broker.message_bytes_max": MIB}),
    Row("keepAliveIntervalSeconds", "17", {"broker.keep_alive_s": 17.0}),
    Row("enableBrokerSideSubscriptionPatternEvaluation", "false", {"broker.applies_patterns": False}),
    Row("subscriptionPatternMaxLength", "20", {"broker.pattern_characters_max": 20}),
    Row("allowAutoTopicCreation", "false", {"policies.auto_topic_creation.allowed": False}),
    Row("allowAutoTopicCreationType", "partitioned", {"policies.auto_topic_creation.kind": "partitioned"}),
    Row("maxTopicsPerNamespace", "5", {"policies.topics_max": 5}),
    Row("defaultNumPartitions", "4", {"policies.auto_topic_creation.partitions": 4}),
    Row("retentionCheckIntervalInSeconds", "11", {"broker.trim_interval_s": 11.0}),
    Row("messageExpiryCheckIntervalInMinutes", "3", {"broker.expiry_interval_s": 180.0}),
    Row("brokerEntryMetadataInterceptors", BROKER_TIMESTAMPS, {"broker.expires_by_broker_time": True}),
    Row("backlogQuotaCheckIntervalInSeconds", "13", {"broker.quota_interval_s": 13.0}),
    Row("backlogQuotaCheckEnabled", "false", {"broker.checks_quotas": False}),
    Row("maxPublishRatePerTopicInMessages", "71", {"policies.broker_publish_rate.messages": 71}),
    Row("maxPublishRatePerTopicInBytes", "7100", {"policies.broker_publish_rate.bytes": 7100}),
    Row("brokerPublisherThrottlingMaxMessageRate", "73", {"broker.publish_rate.messages": 73}),
    Row("brokerPublisherThrottlingMaxByteRate", "7300", {"broker.publish_rate.bytes": 7300}),
    Row(
        "brokerDeleteInactiveTopicsFrequencySeconds",
        "19",
        {"broker.inactive_topics_interval_s": 19.0, "policies.inactive_topic.inactive_s_max": 19},
    ),
    Row("subscriptionExpiryCheckIntervalInMinutes", "7", {"broker.subscription_expiry_interval_s": 420.0}),
    Row("brokerDeduplicationMaxNumberOfProducers", "200", {"broker.dedup_producers_max": 200}),
    Row("brokerDeduplicationEntriesInterval", "201", {"broker.dedup_snapshot_entries": 201}),
    Row("brokerDeduplicationSnapshotFrequencyInSeconds", "23", {"broker.dedup_upkeep_s": 23.0}),
    Row("brokerDeduplicationProducerInactivityTimeoutMinutes", "2", {"broker.dedup_inactivity_ms": 120_000}),
    Row("managedLedgerAddEntryTimeoutSeconds", "0", {"broker.write_timeout_s": 0.0}),
    Row("statsUpdateFrequencyInSecs", "29", {"broker.rates_interval_s": 29.0}),
    Row("subscriptionBacklogScanMaxEntries", "31", {"broker.backlog_scan_entries_max": 31}),
    Row("subscriptionBacklogScanMaxTimeMs", "1700", {"broker.backlog_scan_max_s": 1.7}),
    Row("exposingBrokerEntryMetadataToClientEnabled", "true", {"broker.exposes_broker_metadata": True}),
]

POLICY_ROWS = [
    Row("defaultRetentionTimeInMinutes", "31", {"policies.retention.time_minutes": 31}),
    Row("defaultRetentionSizeInMB", "-1", {"policies.retention.size_mb": -1}),
    Row("ttlDurationDefaultInSeconds", "37", {"policies.message_ttl_s": 37}),
    Row("backlogQuotaDefaultLimitBytes", "4100", {"policies.quota_size.limit_size": 4100}),
    Row("backlogQuotaDefaultLimitSecond", "41", {"policies.quota_age.limit_time": 41}),
    Row(
        "backlogQuotaDefaultRetentionPolicy",
        "consumer_backlog_eviction",
        {
            "policies.quota_size.policy": "consumer_backlog_eviction",
            "policies.quota_age.policy": "consumer_backlog_eviction",
        },
    ),
    Row("brokerServiceCompactionThresholdInBytes", "4300", {"policies.compaction_threshold_bytes": 4300}),
    Row("delayedDeliveryTtlFromDueTimeEnabled", "true", {"policies.ttl_from_due_time": True}),
    Row("delayedDeliveryBacklogQuotaFromDueTimeEnabled", "true", {"policies.quota_from_due_time": True}),
    Row("dispatchThrottlingRatePerTopicInMsg", "43", {"policies.dispatch_rate.messages": 43}),
    Row("dispatchThrottlingRatePerTopicInByte", "4300", {"policies.dispatch_rate.bytes": 4300}),
    Row(
        "dispatchThrottlingRatePerSubscriptionInMsg",
        "47",
        {"policies.subscription_dispatch_rate.messages": 47},
    ),
    Row(
        "dispatchThrottlingRatePerSubscriptionInByte",
        "4700",
        {"policies.subscription_dispatch_rate.bytes": 4700},
    ),
    Row(
        "dispatchThrottlingRateRelativeToPublishRate",
        "true",
        {
            "policies.dispatch_rate.relative_to_publish_rate": True,
            "policies.subscription_dispatch_rate.relative_to_publish_rate": True,
        },
    ),
    Row("subscribeThrottlingRatePerConsumer", "53", {"policies.subscribe_rate.per_consumer": 53}),
    Row("subscribeRatePeriodPerConsumerInSecond", "59", {"policies.subscribe_rate.period_s": 59}),
    Row(
        "brokerDeleteInactiveTopicsMode",
        "delete_when_subscriptions_caught_up",
        {"policies.inactive_topic.delete_mode": "delete_when_subscriptions_caught_up"},
    ),
    Row(
        "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds",
        "61",
        {"policies.inactive_topic.inactive_s_max": 61},
    ),
    Row("brokerDeleteInactiveTopicsEnabled", "false", {"policies.inactive_topic.deletes": False}),
    Row("subscriptionExpirationTimeMinutes", "67", {"policies.subscription_expiration_minutes": 67}),
    Row("schemaCompatibilityStrategy", "BACKWARD", {"policies.schema_compatibility": "BACKWARD"}),
    Row("isSchemaValidationEnforced", "true", {"policies.schema_validation_enforced": True}),
    Row("isAllowAutoUpdateSchemaEnabled", "false", {"policies.schema_auto_update": False}),
    Row("brokerDeduplicationEnabled", "true", {"policies.deduplication": True}),
    Row(
        "brokerDeduplicationSnapshotIntervalSeconds",
        "79",
        {"policies.deduplication_snapshot_interval_s": 79},
    ),
    Row(
        "subscriptionTypesEnabled",
        "Shared,Exclusive",
        {"policies.subscription_types": ["Exclusive", "Shared"]},
    ),
    Row("allowAutoSubscriptionCreation", "false", {"policies.auto_subscription_creation.allowed": False}),
]

SUBSCRIPTION_ROWS = [
    Row("dispatcherMaxReadBatchSize", "83", {"subscription.read_entries_max": 83}),
    Row("dispatcherMaxReadSizeBytes", "8300", {"subscription.read_bytes_max": 8300}),
    Row("dispatcherMaxRoundRobinBatchSize", "89", {"subscription.round_robin_entries_max": 89}),
    Row(
        "maxConsumersPerSubscription",
        "97",
        {"subscription.consumers_max": 97, "policies.consumers_max_per_subscription": 97},
    ),
    Row(
        "maxUnackedMessagesPerConsumer",
        "101",
        {"subscription.unacked_max_per_consumer": 101, "policies.unacked_max_per_consumer": 101},
    ),
    Row(
        "maxUnackedMessagesPerSubscription",
        "103",
        {"subscription.unacked_max_per_subscription": 103, "policies.unacked_max_per_subscription": 103},
    ),
    Row("acknowledgmentAtBatchIndexLevelEnabled", "true", {"subscription.batch_index_acks": True}),
    Row("activeConsumerFailoverDelayTimeMillis", "107", {"subscription.failover_delay_ms": 107}),
    Row("activeConsumerFailoverConsistentHashing", "true", {"subscription.failover_by_hash": True}),
    Row("subscriptionKeySharedUseConsistentHashing", "false", {"subscription.key_shared_ring": False}),
    Row(
        "subscriptionKeySharedConsistentHashingReplicaPoints",
        "109",
        {"subscription.key_shared_ring_points": 109},
    ),
]

DELAY_ROWS = [
    Row(
        "delayedDeliveryEnabled",
        "false",
        {"policies.delayed_delivery.active": False, "subscription.delayed_delivery": False},
    ),
    Row(
        "delayedDeliveryTickTimeMillis",
        "113",
        {"policies.delayed_delivery.tick_time": 113, "delay.tick_ms": 113},
    ),
    Row("delayedDeliveryMaxDelayInMillis", "11300", {"policies.delayed_delivery.max_delay_in_millis": 11300}),
    Row("isDelayedDeliveryDeliverAtTimeStrict", "false", {"delay.strict": False}),
    Row("delayedDeliveryFixedDelayDetectionLookahead", "127", {"delay.fixed_delay_lookahead": 127}),
    Row("delayedDeliveryTrackerFactoryClassName", IN_MEMORY_TRACKER, {"delay.keeps_buckets": False}),
    Row("delayedDeliverySharedIndexEnabled", "false", {"delay.is_shared": False}),
    Row("delayedDeliveryMinIndexCountPerBucket", "131", {"delay.bucket_indexes_min": 131}),
    Row(
        "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds",
        "137",
        {"delay.segment_span_ms": 137_000},
    ),
    Row("delayedDeliveryMaxIndexesPerBucketSnapshotSegment", "139", {"delay.segment_indexes_max": 139}),
    Row("delayedDeliveryMaxNumBuckets", "149", {"delay.buckets_max": 149}),
]

LEDGER_ROWS = [
    Row("managedLedgerMaxEntriesPerLedger", "151", {"ledger.ledger_entries_max": 151}),
    Row("managedLedgerMaxSizePerLedgerMbytes", "157", {"ledger.ledger_bytes_max": 157 * MIB}),
    Row("managedLedgerMinLedgerRolloverTimeMinutes", "5", {"ledger.rollover_min_ms": 300_000}),
    Row("managedLedgerMaxLedgerRolloverTimeMinutes", "20", {"ledger.rollover_max_ms": 1_200_000}),
    Row("managedLedgerCursorMaxEntriesPerLedger", "163", {"ledger.cursor_ledger_entries_max": 163}),
    Row("managedLedgerCacheEvictionTimeThresholdMillis", "167", {"tail_cache.age_max_ms": 167}),
    Row("managedLedgerCursorBackloggedThreshold", "173", {"tail_cache.backlogged_entries": 173}),
]
