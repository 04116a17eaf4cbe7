"""Every stored policy: its name here, its keys in a namespace's record, its paths in the admin API.

The rows are Pulsar 4.0.7's endpoints as recorded from it, with its verbs, texts and oddities.
"""

from __future__ import annotations

from typing import Final

from msgspec import UNSET

from geminga.broker.policies.endpoint import Endpoint, Policy, count_endpoint
from geminga.broker.policies.inert import INERT
from geminga.broker.policies.values import (
    AutoSubscriptionCreation,
    AutoTopicCreation,
    DelayedDelivery,
    DispatchRate,
    InactiveTopic,
    Int32,
    Int64,
    Persistence,
    PolicyInvalid,
    PolicyRefused,
    PublishRate,
    Retention,
    SchemaCompatibility,
    SubscribeRate,
    SubscriptionKind,
)

ENSEMBLE_MAX = 5
COMPACTION_WARNING: Final = (
    "this broker does not compact topics: it keeps all messages of each topic with a compaction threshold, "
    "however many there are, until the threshold is removed"
)

POLICIES: tuple[Policy, ...] = (
    Policy(
        "retention",
        Retention,
        ("retention_policies",),
        namespace=Endpoint("retention"),
        topic=Endpoint("retention", empty="keep"),
    ),
    Policy(
        "message_ttl_s",
        Int32,
        ("message_ttl_in_seconds",),
        # The value for a topic comes in the query: see `admin/routes/policies.py`.
        namespace=count_endpoint("messageTTL", "Invalid value for message TTL, message TTL must >= 0"),
        topic=count_endpoint("messageTTL", "Invalid value for message TTL", empty="unset"),
    ),
    Policy(
        "delayed_delivery",
        DelayedDelivery,
        ("delayed_delivery_policies",),
        namespace=Endpoint("delayedDelivery"),
        topic=Endpoint("delayedDelivery"),
    ),
    Policy(
        "publish_rate",
        PublishRate,
        ("publishMaxMessageRate",),
        is_rate=True,
        namespace=Endpoint("publishRate"),
        topic=Endpoint("publishRate", empty="keep", unset_status=204),
    ),
    Policy(
        "dispatch_rate",
        DispatchRate,
        ("topicDispatchRate", "clusterDispatchRate"),
        is_rate=True,
        namespace=Endpoint("dispatchRate"),
        topic=Endpoint("dispatchRate", empty="keep"),
    ),
    Policy(
        "subscription_dispatch_rate",
        DispatchRate,
        ("subscriptionDispatchRate",),
        is_rate=True,
        namespace=Endpoint("subscriptionDispatchRate"),
        topic=Endpoint("subscriptionDispatchRate", empty="keep"),
    ),
    Policy(
        "subscribe_rate",
        SubscribeRate,
        ("clusterSubscribeRate",),
        is_rate=True,
        namespace=Endpoint("subscribeRate"),
        topic=Endpoint("subscribeRate", empty="keep"),
    ),
    Policy(
        "deduplication",
        bool,
        ("deduplicationEnabled",),
        namespace=Endpoint("deduplication", empty="zero"),
        topic=Endpoint("deduplicationEnabled"),
    ),
    Policy(
        "deduplication_snapshot_interval_s",
        Int32,
        ("deduplicationSnapshotIntervalSeconds",),
        namespace=Endpoint(
            "deduplicationSnapshotInterval",
            negative="interval must be greater than or equal to 0",
            removable=False,
        ),
        topic=Endpoint("deduplicationSnapshotInterval", negative="interval must be 0 or more"),
    ),
    Policy(
        "producers_max",
        Int32,
        ("max_producers_per_topic",),
        namespace=count_endpoint("maxProducersPerTopic"),
        topic=count_endpoint("maxProducers"),
    ),
    Policy(
        "consumers_max",
        Int32,
        ("max_consumers_per_topic",),
        namespace=count_endpoint("maxConsumersPerTopic"),
        topic=count_endpoint("maxConsumers"),
    ),
    Policy(
        "consumers_max_per_subscription",
        Int32,
        ("max_consumers_per_subscription",),
        namespace=count_endpoint("maxConsumersPerSubscription"),
        topic=count_endpoint(
            "maxConsumersPerSubscription", "Invalid value for maxConsumersPerSubscription"
        )._replace(unset_status=204),
    ),
    Policy(
        "subscriptions_max",
        Int32,
        ("max_subscriptions_per_topic",),
        namespace=count_endpoint("maxSubscriptionsPerTopic"),
        topic=count_endpoint("maxSubscriptionsPerTopic")._replace(unset_status=204),
    ),
    Policy(
        "unacked_max_per_consumer",
        Int32,
        ("max_unacked_messages_per_consumer",),
        namespace=count_endpoint("maxUnackedMessagesPerConsumer"),
        topic=count_endpoint(
            "maxUnackedMessagesOnConsumer", "maxUnackedNum must be 0 or more", empty="unset"
        ),
    ),
    Policy(
        "unacked_max_per_subscription",
        Int32,
        ("max_unacked_messages_per_subscription",),
        namespace=count_endpoint("maxUnackedMessagesPerSubscription"),
        topic=count_endpoint(
            "maxUnackedMessagesOnSubscription", "maxUnackedNum must be 0 or more", empty="unset"
        ),
    ),
    Policy(
        "subscription_types",
        list[SubscriptionKind],
        ("subscription_types_enabled",),
        namespace=Endpoint("subscriptionTypesEnabled", empty="refuse", unset=[]),
        topic=Endpoint("subscriptionTypesEnabled", empty="refuse", unset=[]),
    ),
    Policy(
        "auto_subscription_creation",
        AutoSubscriptionCreation,
        ("autoSubscriptionCreationOverride",),
        namespace=Endpoint("autoSubscriptionCreation"),
        topic=Endpoint("autoSubscriptionCreation"),
    ),
    Policy(
        "persistence",
        Persistence,
        ("persistence",),
        namespace=Endpoint("persistence", empty="refuse"),
        topic=Endpoint("persistence", empty="refuse"),
        acted_upon=False,
    ),
    Policy(
        "compaction_threshold_bytes",
        Int64,
        ("compaction_threshold",),
        namespace=count_endpoint("compactionThreshold")._replace(method="PUT"),
        topic=count_endpoint("compactionThreshold", "Invalid value for compactionThreshold"),
        warning=COMPACTION_WARNING,
    ),
    Policy(
        "inactive_topic",
        InactiveTopic,
        ("inactive_topic_policies",),
        namespace=Endpoint("inactiveTopicPolicies"),
        topic=Endpoint("inactiveTopicPolicies"),
    ),
    Policy(
        "schema_compatibility",
        SchemaCompatibility,
        ("schema_compatibility_strategy",),
        namespace=Endpoint("schemaCompatibilityStrategy", "PUT", unset="UNDEFINED", removable=False),
        topic=Endpoint("schemaCompatibilityStrategy", "PUT"),
    ),
    Policy(
        "schema_validation_enforced",
        bool,
        ("schema_validation_enforced",),
        namespace=Endpoint("schemaValidationEnforced", empty="zero", unset=False, removable=False),
        topic=Endpoint("schemaValidationEnforced", empty="zero", unset=False, removable=False),
    ),
    Policy(
        "schema_auto_update",
        bool,
        ("is_allow_auto_update_schema",),
        namespace=Endpoint("isAllowAutoUpdateSchema", empty="zero", unset=True, removable=False),
    ),
    Policy(
        "subscription_expiration_minutes",
        Int32,
        ("subscription_expiration_time_minutes",),
        namespace=count_endpoint(
            "subscriptionExpirationTime", "Invalid value for subscription expiration time"
        ),
    ),
    Policy(
        "ttl_from_due_time",
        bool,
        ("geminga_ttl_from_due_time",),
        namespace=Endpoint("ttlFromDueTime"),
        topic=Endpoint("ttlFromDueTime"),
        is_own=True,
    ),
    Policy(
        "quota_from_due_time",
        bool,
        ("geminga_backlog_quota_from_due_time",),
        namespace=Endpoint("backlogQuotaFromDueTime"),
        topic=Endpoint("backlogQuotaFromDueTime"),
        is_own=True,
    ),
    Policy(
        "auto_topic_creation",
        AutoTopicCreation,
        ("autoTopicCreationOverride",),
        namespace=Endpoint("autoTopicCreation"),
    ),
    Policy(
        "topics_max",
        Int32,
        ("max_topics_per_namespace",),
        namespace=count_endpoint("maxTopicsPerNamespace", unset=0),
    ),
    # Set for one subscription each: `admin/routes/topic/subscription_fields.py`.
    Policy("subscription_rates", dict[str, DispatchRate]),
    *INERT,
)
BY_NAME = {policy.name: policy for policy in POLICIES}


def check(value: object) -> None:
    """Raise `PolicyRefused` for a value that is invalid by itself; `check_count` checks counts."""
    if isinstance(value, Retention):
        _check_retention(value)
    elif isinstance(value, Persistence):
        _check_persistence(value)
    elif isinstance(value, AutoTopicCreation):
        _check_auto_topic_creation(value)
    elif isinstance(value, list) and not all(isinstance(item, str) for item in value):
        raise PolicyRefused("A subscription type that does not exist")


def _check_auto_topic_creation(given: AutoTopicCreation) -> None:
    if not given.allowed:
        return
    text = "Invalid configuration for autoTopicCreationOverride. the detail is "
    if given.kind not in ("partitioned", "non-partitioned"):
        raise PolicyInvalid(f"{text}Unknown topic type [{'null' if given.kind is UNSET else given.kind}]")
    if given.kind == "partitioned" and given.partitions is UNSET:
        raise PolicyInvalid(f"{text}[defaultNumPartitions] cannot be null when the type is partitioned.")
    if given.kind == "partitioned" and given.partition_count <= 0:
        raise PolicyInvalid(f"{text}[defaultNumPartitions] cannot be less than 1 for partition type.")
    if given.kind == "non-partitioned" and given.partitions is not UNSET:
        raise PolicyInvalid(
            f"{text}[defaultNumPartitions] is not allowed to be set when the type is non-partition."
        )


def check_count(endpoint: Endpoint, value: object) -> None:
    """Raise `PolicyInvalid` for a negative number if the endpoint accepts none."""
    if endpoint.negative and isinstance(value, int) and value < 0:
        raise PolicyInvalid(endpoint.negative)


def _check_retention(retention: Retention) -> None:
    time, size = retention.time_minutes, retention.size_mb
    if size < -1:
        raise PolicyRefused("Invalid retention policy: size limit must be >= -1")
    if time < -1:
        raise PolicyRefused("Invalid retention policy: time limit must be >= -1")
    if (time == 0) is not (size == 0):
        raise PolicyRefused(
            "Invalid retention policy: Setting a single time or size limit to 0 is invalid when one of the "
            "limits has a non-zero value. Use the value of -1 instead of 0 to ignore a specific limit. To "
            "disable retention both limits must be set to 0."
        )


def _check_persistence(given: Persistence) -> None:
    for count, name in (
        (given.ensemble, "Bookkeeper-Ensemble"),
        (given.write_quorum, "Bookkeeper-WriteQuorum"),
        (given.ack_quorum, "Bookkeeper-AckQuorum"),
    ):
        if not 0 < count <= ENSEMBLE_MAX:
            raise PolicyRefused(f"{name} must be <= {ENSEMBLE_MAX} and > 0.")
    if not given.ensemble >= given.write_quorum >= given.ack_quorum:
        raise PolicyRefused(
            f"Bookkeeper Ensemble ({given.ensemble}) >= WriteQuorum ({given.write_quorum}) >= "
            f"AckQuorum ({given.ack_quorum})"
        )
