"""Every policy that is kept: its name here, its keys in a namespace's record, its paths in the admin API.

The rows are Pulsar 4.0.7's endpoints as it answered them, with its verbs, texts and oddities.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from geminga.broker.policies.values import (
    AutoSubscriptionCreation,
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

Empty = Literal["unset", "keep", "zero", "refuse"]
ENSEMBLE_MAX = 5
UNSET_SHOWN = None


class Endpoint(NamedTuple):
    """How one level of the admin API serves a policy."""

    path: str
    """Appended to the path of the namespace or topic."""
    method: str = "POST"
    empty: Empty = "unset"
    """The effect of a body of `null`; "zero" and "refuse" accept no empty body either."""
    negative: str = ""
    """The error for a number below 0; empty: such a number is accepted."""
    unset: object = UNSET_SHOWN
    """What GET answers while nothing is set; None: no body."""
    unset_status: int = 200
    removable: bool = True


class Policy(NamedTuple):
    """One policy. `name` is the attribute of `EffectivePolicies` and the key in a topic's record."""

    name: str
    kind: Any
    keys: tuple[str, ...] = ()
    """In a namespace's record; of a rate each holds a value for every cluster."""
    is_rate: bool = False
    namespace: Endpoint | None = None
    topic: Endpoint | None = None
    acted_upon: bool = True
    """False: the broker stores and shows it, and it has no effect."""
    is_own: bool = False
    """Not Pulsar's: it is served below `/geminga/policies`, not below `/admin/v2`."""


def _count(path: str, text: str = "", *, unset: object = UNSET_SHOWN, empty: Empty = "zero") -> Endpoint:
    return Endpoint(path, empty=empty, negative=text or f"{path} must be 0 or more", unset=unset)


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
        namespace=_count("messageTTL", "Invalid value for message TTL, message TTL must >= 0"),
        topic=_count("messageTTL", "Invalid value for message TTL", empty="unset"),
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
        namespace=_count("maxProducersPerTopic"),
        topic=_count("maxProducers"),
    ),
    Policy(
        "consumers_max",
        Int32,
        ("max_consumers_per_topic",),
        namespace=_count("maxConsumersPerTopic"),
        topic=_count("maxConsumers"),
    ),
    Policy(
        "consumers_max_per_subscription",
        Int32,
        ("max_consumers_per_subscription",),
        namespace=_count("maxConsumersPerSubscription"),
        topic=_count("maxConsumersPerSubscription", "Invalid value for maxConsumersPerSubscription")._replace(
            unset_status=204
        ),
    ),
    Policy(
        "subscriptions_max",
        Int32,
        ("max_subscriptions_per_topic",),
        namespace=_count("maxSubscriptionsPerTopic"),
        topic=_count("maxSubscriptionsPerTopic")._replace(unset_status=204),
    ),
    Policy(
        "unacked_max_per_consumer",
        Int32,
        ("max_unacked_messages_per_consumer",),
        namespace=_count("maxUnackedMessagesPerConsumer"),
        topic=_count("maxUnackedMessagesOnConsumer", "maxUnackedNum must be 0 or more", empty="unset"),
    ),
    Policy(
        "unacked_max_per_subscription",
        Int32,
        ("max_unacked_messages_per_subscription",),
        namespace=_count("maxUnackedMessagesPerSubscription"),
        topic=_count("maxUnackedMessagesOnSubscription", "maxUnackedNum must be 0 or more", empty="unset"),
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
        namespace=_count("compactionThreshold")._replace(method="PUT"),
        topic=_count("compactionThreshold", "Invalid value for compactionThreshold"),
        acted_upon=False,
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
        namespace=_count("subscriptionExpirationTime", "Invalid value for subscription expiration time"),
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
)
BY_NAME = {policy.name: policy for policy in POLICIES}


def check(value: object) -> None:
    """Raise `PolicyRefused` for a value that is impossible by itself; counts are `check_count`'s."""
    if isinstance(value, Retention):
        _check_retention(value)
    elif isinstance(value, Persistence):
        _check_persistence(value)
    elif isinstance(value, list) and not all(isinstance(item, str) for item in value):
        raise PolicyRefused("A subscription type that does not exist")


def check_count(endpoint: Endpoint, value: object) -> None:
    """Raise `PolicyInvalid` for a negative number where the endpoint takes none."""
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
