"""How `pulsar-admin` names the policies, their flags and their values, for namespaces and for topics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from geminga.cli.admin.admin_http import Raw, RequestFailed
from geminga.cli.arguments.options import duration_ms
from geminga.cli.verbs.rows.offload import OFFLOAD_FLAGS, offload_body
from geminga.cli.verbs.rows.values import many, mebibytes, minutes, names, seconds, size_bytes
from geminga.cli.verbs.rows.verb import Flag, flag, switch


class PolicyVerb(NamedTuple):
    """One policy on the command line: `set-NAME`, `get-NAME`, `remove-NAME`."""

    name: str
    path: str
    flags: tuple[Flag, ...]
    body: Callable[[Any], Any]
    method: str = "POST"
    in_query: str = ""
    """The query parameter that the value goes into, instead of the body."""
    removable: bool = True
    is_own: bool = False
    """Not Pulsar's: below `/geminga/policies`."""
    remove: tuple[str, str] = ("remove", "")
    """What the verb that unsets it is called, and its path if that is another."""


def _number(*names: str, text: str, kind: Callable[[str], Any] = int) -> tuple[Flag, ...]:
    return (flag(*names, dest="value", type=kind, required=True, help=text),)


def _switch() -> tuple[Flag, ...]:
    return (
        flag("--enable", "-e", dest="value", action="store_true", default=None, help="switch it on"),
        flag("--disable", "-d", dest="value", action="store_false", help="switch it off"),
    )


def _value(flags: Any) -> Any:
    return flags.value


def _switched(flags: Any) -> bool:
    if flags.value is None:
        raise RequestFailed("give either --enable or --disable")
    return bool(flags.value)


def _dispatch_rate(name: str, path: str) -> PolicyVerb:
    return PolicyVerb(
        name,
        path,
        (
            flag(
                "--msg-dispatch-rate", "-md", type=int, default=-1, help="messages in a period; -1: no limit"
            ),
            flag("--byte-dispatch-rate", "-bd", type=int, default=-1, help="bytes in a period; -1: no limit"),
            flag("--dispatch-rate-period", "-dt", type=int, default=1, help="the period in seconds"),
            flag(
                "--relative-to-publish-rate", "-rp", action="store_true", help="on top of what is published"
            ),
        ),
        lambda flags: {
            "dispatchThrottlingRateInMsg": flags.msg_dispatch_rate,
            "dispatchThrottlingRateInByte": flags.byte_dispatch_rate,
            "relativeToPublishRate": flags.relative_to_publish_rate,
            "ratePeriodInSecond": flags.dispatch_rate_period,
        },
    )


def _text(name: str, path: str, *flags: str, text: str, **kept: Any) -> PolicyVerb:
    return PolicyVerb(name, path, _number(*flags, text=text, kind=str), _value, **kept)


def _limit(name: str, path: str, *names: str, method: str = "POST", text: str = "0: no limit") -> PolicyVerb:
    return PolicyVerb(name, path, _number(*names, text=text), _value, method)


RETENTION = PolicyVerb(
    "retention",
    "retention",
    (
        flag("--time", "-t", type=minutes, required=True, help="10m, 3h, 2d, 1w; 0: none, -1: for ever"),
        flag("--size", "-s", type=mebibytes, required=True, help="10M, 16G; 0: none, -1: any size"),
    ),
    lambda flags: {"retentionTimeInMinutes": flags.time, "retentionSizeInMB": flags.size},
)
TTL = PolicyVerb(
    "message-ttl",
    "messageTTL",
    (
        flag(
            "--messageTTL",
            "-ttl",
            "--messageTTLInSeconds",
            "--ttl",
            "-t",
            dest="value",
            type=seconds,
            required=True,
            help="seconds, or 30s, 10m, 3h; 0: nothing expires",
        ),
    ),
    _value,
)
COMPACTION_FLAGS = _number("--threshold", "-t", kind=size_bytes, text="bytes, or 10M, 16G; 0: never")
DELAYED = PolicyVerb(
    "delayed-delivery",
    "delayedDelivery",
    (
        *_switch(),
        flag("--time", "-t", type=duration_ms, default=1000, help="the tick: 1s (the default), 16ms"),
        flag("--maxDelay", "-md", type=duration_ms, default=0, help="the longest delay: 30m, 7d; 0: any"),
    ),
    lambda flags: {
        "active": _switched(flags),
        "tickTime": flags.time,
        "maxDeliveryDelayInMillis": flags.maxDelay,
    },
)
PERSISTENCE = PolicyVerb(
    "persistence",
    "persistence",
    (
        flag("--bookkeeper-ensemble", "-e", type=int, default=2, help="bookies of a ledger"),
        flag("--bookkeeper-write-quorum", "-w", type=int, default=2, help="copies of an entry"),
        flag("--bookkeeper-ack-quorum", "-a", type=int, default=2, help="copies that are waited for"),
        flag("--ml-mark-delete-max-rate", "-r", type=float, default=0, help="mark-delete writes a second"),
    ),
    lambda flags: {
        "bookkeeperEnsemble": flags.bookkeeper_ensemble,
        "bookkeeperWriteQuorum": flags.bookkeeper_write_quorum,
        "bookkeeperAckQuorum": flags.bookkeeper_ack_quorum,
        "managedLedgerMaxMarkDeleteRate": flags.ml_mark_delete_max_rate,
    },
)
PUBLISH_RATE = PolicyVerb(
    "publish-rate",
    "publishRate",
    (
        flag("--msg-publish-rate", "-m", type=int, default=-1, help="messages a second; -1: no limit"),
        flag("--byte-publish-rate", "-b", type=int, default=-1, help="bytes a second; -1: no limit"),
    ),
    lambda flags: {
        "publishThrottlingRateInMsg": flags.msg_publish_rate,
        "publishThrottlingRateInByte": flags.byte_publish_rate,
    },
)
SUBSCRIBE_RATE = PolicyVerb(
    "subscribe-rate",
    "subscribeRate",
    (
        flag(
            "--subscribe-rate", "-sr", type=int, default=-1, help="of one consumer in a period; -1: no limit"
        ),
        flag("--subscribe-rate-period", "-st", type=int, default=30, help="the period in seconds"),
    ),
    lambda flags: {
        "subscribeThrottlingRatePerConsumer": flags.subscribe_rate,
        "ratePeriodInSecond": flags.subscribe_rate_period,
    },
)
INACTIVE = PolicyVerb(
    "inactive-topic-policies",
    "inactiveTopicPolicies",
    (
        flag(
            "--enable-delete-while-inactive",
            "-e",
            dest="value",
            action="store_true",
            default=None,
            help="delete it",
        ),
        flag("--disable-delete-while-inactive", "-d", dest="value", action="store_false", help="keep it"),
        flag("--max-inactive-duration", "-t", type=seconds, required=True, help="after how long"),
        flag(
            "--delete-mode",
            "-m",
            required=True,
            choices=["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"],
        ),
    ),
    lambda flags: {
        "inactiveTopicDeleteMode": flags.delete_mode,
        "maxInactiveDurationSeconds": flags.max_inactive_duration,
        "deleteWhileInactive": _switched(flags),
    },
)
SUBSCRIPTION_TYPES = PolicyVerb(
    "subscription-types-enabled",
    "subscriptionTypesEnabled",
    (
        flag(
            "--types",
            "-t",
            required=True,
            **many(names),
            help="Exclusive,Shared,Failover,Key_Shared: those that may be used",
        ),
    ),
    lambda flags: flags.types,
)
SCHEMA_COMPATIBILITY = PolicyVerb(
    "schema-compatibility-strategy",
    "schemaCompatibilityStrategy",
    (
        flag(
            "--compatibility",
            "-c",
            "--strategy",
            "-s",
            dest="value",
            required=True,
            help="FULL, BACKWARD, ...",
        ),
    ),
    _value,
    "PUT",
)
OWN_VERBS = (
    PolicyVerb("ttl-from-due-time", "ttlFromDueTime", _switch(), _switched, is_own=True),
    PolicyVerb("backlog-quota-from-due-time", "backlogQuotaFromDueTime", _switch(), _switched, is_own=True),
)
"""Not Pulsar's: what is not due yet does not count."""
DEDUPLICATION = PolicyVerb("deduplication", "deduplication", _switch(), _switched)
SNAPSHOT_INTERVAL = _limit(
    "deduplication-snapshot-interval",
    "deduplicationSnapshotInterval",
    "--interval",
    "-i",
    text="entries between two snapshots",
)
OFFLOAD = PolicyVerb("offload-policies", "offloadPolicies", OFFLOAD_FLAGS, offload_body)
ENTRY_FILTERS = PolicyVerb(
    "entry-filters",
    "entryFilters",
    _number("--entry-filters-name", "-efn", text="class names: a,b,c", kind=str),
    lambda flags: {"entryFilterNames": flags.value},
)
AUTO_SUBSCRIPTION = PolicyVerb(
    "auto-subscription-creation",
    "autoSubscriptionCreation",
    (switch("--enable", "-e", dest="value", help="consumers may create subscriptions (default: no)"),),
    lambda flags: {"allowAutoSubscriptionCreation": flags.value},
)
VALIDATION = PolicyVerb(
    "schema-validation-enforce", "schemaValidationEnforced", _switch(), _switched, removable=False
)
REPLICATION = PolicyVerb(
    "replication-clusters",
    "replication",
    (flag("--clusters", "-c", dest="value", required=True, **many(names), help="clusters: a,b,c"),),
    _value,
)
SHARED_VERBS = (
    *OWN_VERBS,
    RETENTION,
    DELAYED,
    PERSISTENCE,
    PUBLISH_RATE,
    _dispatch_rate("dispatch-rate", "dispatchRate"),
    _dispatch_rate("subscription-dispatch-rate", "subscriptionDispatchRate"),
    _dispatch_rate("replicator-dispatch-rate", "replicatorDispatchRate"),
    SUBSCRIBE_RATE,
    INACTIVE,
    SUBSCRIPTION_TYPES,
    AUTO_SUBSCRIPTION,
    PolicyVerb(
        "dispatcher-pause-on-ack-state-persistent",
        "dispatcherPauseOnAckStatePersistent",
        (),
        lambda flags: Raw(b""),
    ),
    _limit(
        "max-consumers-per-subscription",
        "maxConsumersPerSubscription",
        "--max-consumers-per-subscription",
        "-c",
    ),
)
NAMESPACE_VERBS = (
    *SHARED_VERBS,
    OFFLOAD._replace(remove=("remove", "removeOffloadPolicies")),
    TTL,
    DEDUPLICATION,
    SNAPSHOT_INTERVAL._replace(removable=False),
    ENTRY_FILTERS,
    _limit("max-subscriptions-per-topic", "maxSubscriptionsPerTopic", "--max-subscriptions-per-topic", "-m"),
    _limit("max-producers-per-topic", "maxProducersPerTopic", "--max-producers-per-topic", "-p"),
    _limit("max-consumers-per-topic", "maxConsumersPerTopic", "--max-consumers-per-topic", "-c"),
    _limit(
        "max-unacked-messages-per-consumer",
        "maxUnackedMessagesPerConsumer",
        "--max-unacked-messages-per-topic",
        "--max-unacked-messages-per-consumer",
        "-c",
    ),
    _limit(
        "max-unacked-messages-per-subscription",
        "maxUnackedMessagesPerSubscription",
        "--max-unacked-messages-per-subscription",
        "-c",
    ),
    _limit("max-topics-per-namespace", "maxTopicsPerNamespace", "--max-topics-per-namespace", "-t"),
    PolicyVerb("compaction-threshold", "compactionThreshold", COMPACTION_FLAGS, _value, "PUT"),
    _limit(
        "subscription-expiration-time", "subscriptionExpirationTime", "--time", "-t", text="minutes; 0: never"
    ),
    SCHEMA_COMPATIBILITY._replace(removable=False),
    VALIDATION,
    PolicyVerb(
        "is-allow-auto-update-schema", "isAllowAutoUpdateSchema", _switch(), _switched, removable=False
    ),
    PolicyVerb("encryption-required", "encryptionRequired", _switch(), _switched, removable=False),
    _text(
        "subscription-auth-mode",
        "subscriptionAuthMode",
        "--subscription-auth-mode",
        "-m",
        text="None or Prefix",
        removable=False,
    ),
    REPLICATION._replace(name="clusters", removable=False),
    REPLICATION._replace(name="allowed-clusters", path="allowedClusters", removable=False),
    PolicyVerb(
        "anti-affinity-group",
        "antiAffinity",
        _number("--group", "-g", text="its name", kind=str),
        lambda flags: Raw(flags.value.encode()),
        remove=("delete", ""),
    ),
    PolicyVerb(
        "bookie-affinity-group",
        "persistence/bookieAffinity",
        (
            flag("--primary-group", "-pg", required=True, help="groups of bookies: a,b,c"),
            flag("--secondary-group", "-sg", help="those that take over: a,b,c"),
        ),
        lambda flags: {
            "bookkeeperAffinityGroupPrimary": flags.primary_group,
            "bookkeeperAffinityGroupSecondary": flags.secondary_group,
        },
        remove=("delete", ""),
    ),
)
TOPIC_VERBS = (
    *SHARED_VERBS,
    OFFLOAD,
    TTL._replace(in_query="messageTTL"),
    DEDUPLICATION._replace(path="deduplicationEnabled"),
    SNAPSHOT_INTERVAL,
    ENTRY_FILTERS._replace(name="entry-filters-per-topic"),
    REPLICATION,
    _limit(
        "max-subscriptions-per-topic",
        "maxSubscriptionsPerTopic",
        "--max-subscriptions-per-topic",
        "-s",
        "-m",
    ),
    _limit("max-producers", "maxProducers", "--max-producers", "-p"),
    _limit("max-consumers", "maxConsumers", "--max-consumers", "-c"),
    _limit("max-message-size", "maxMessageSize", "--max-message-size", "-m", text="bytes"),
    _limit(
        "max-unacked-messages-per-consumer", "maxUnackedMessagesOnConsumer", "--maxNum", "--max-num", "-m"
    ),
    _limit(
        "max-unacked-messages-per-subscription",
        "maxUnackedMessagesOnSubscription",
        "--maxNum",
        "--max-num",
        "-m",
    ),
    PolicyVerb("compaction-threshold", "compactionThreshold", COMPACTION_FLAGS, _value),
    SCHEMA_COMPATIBILITY,
)
