"""How `pulsar-admin` names the policies, their flags and their values, for namespaces and for topics."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from geminga.cli.admin.admin_http import Flag, RequestFailed, flag
from geminga.cli.arguments.options import duration_ms

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_UNITS_BYTES = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
MIB = 2**20


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


def seconds(text: str) -> int:
    """`10s`, `5m`, `3h`, `2d`, `1w`, `1y`; a bare number is seconds, -1 stays -1."""
    number, unit = (text[:-1], text[-1:].lower()) if text[-1:].isalpha() else (text, "s")
    digits = number.removeprefix("-")
    if unit not in _UNITS_S or not (digits.isascii() and digits.isdigit() and len(digits) < 13):
        raise argparse.ArgumentTypeError(f"expected a time such as 30s, 10m, 3h, 2d or 1w, not {text!r}")
    value = int(number)
    return value if value < 0 else value * _UNITS_S[unit]


def milliseconds(text: str) -> int:
    """As `seconds`, and `250ms`, `0.25s`; never negative."""
    if text[-1:].lower() not in ("w", "y"):
        return duration_ms(text.lower())
    if (value := seconds(text)) < 0:
        raise argparse.ArgumentTypeError(f"expected a time such as 250ms, 10m, 3h, 2d or 1w, not {text!r}")
    return value * 1000


def size_bytes(text: str) -> int:
    """`4096`, `10M`, `16G`, `1T`; a bare number is bytes, -1 stays -1."""
    number, unit = (text[:-1], text[-1:].lower()) if text[-1:].isalpha() else (text, "")
    digits = number.removeprefix("-")
    if unit not in _UNITS_BYTES or not (digits.isascii() and digits.isdigit() and len(digits) < 19):
        raise argparse.ArgumentTypeError(f"expected a size such as 4096, 10M or 16G, not {text!r}")
    value = int(number)
    return value if value < 0 else value * _UNITS_BYTES[unit]


def _minutes(text: str) -> int:
    """As `seconds`, in whole minutes. What is less counts as 0, as in pulsar-admin; only a bare number is
    taken for minutes then. Either is said.
    """
    return _in_units(text, seconds, 60, "minutes")


def _mebibytes(text: str) -> int:
    """As `size_bytes`, in whole MiB, and as `_minutes`."""
    return _in_units(text, size_bytes, MIB, "MiB")


def _in_units(text: str, parse: Callable[[str], int], unit: int, name: str) -> int:
    value = parse(text)
    if value <= 0 or value >= unit:
        return value if value <= 0 else value // unit
    if not text.isdigit():
        print(f"{text} is less than what is counted in, whole {name}: it counts as 0", file=sys.stderr)
        return 0
    print(f"{text} without a unit is taken for {text} {name}", file=sys.stderr)
    return value


def _number(*names: str, text: str, kind: Callable[[str], int] = int) -> tuple[Flag, ...]:
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


def _limit(name: str, path: str, *names: str, method: str = "POST", text: str = "0: no limit") -> PolicyVerb:
    return PolicyVerb(name, path, _number(*names, text=text), _value, method)


RETENTION = PolicyVerb(
    "retention",
    "retention",
    (
        flag("--time", "-t", type=_minutes, required=True, help="10m, 3h, 2d, 1w; 0: none, -1: for ever"),
        flag("--size", "-s", type=_mebibytes, required=True, help="10M, 16G; 0: none, -1: any size"),
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
        flag("--time", "-t", type=milliseconds, default=1000, help="the tick: 1s (the default), 16ms"),
        flag("--maxDelay", "-md", type=milliseconds, default=0, help="the longest delay: 30m, 7d; 0: any"),
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
        flag("--bookkeeper-ensemble", "-e", type=int, default=1, help="bookies of a ledger"),
        flag("--bookkeeper-write-quorum", "-w", type=int, default=1, help="copies of an entry"),
        flag("--bookkeeper-ack-quorum", "-a", type=int, default=1, help="copies that are waited for"),
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
            help="Exclusive,Shared,Failover,Key_Shared: those that may be used",
        ),
    ),
    lambda flags: [name.strip() for name in flags.types.split(",") if name.strip()],
)
SCHEMA_COMPATIBILITY = PolicyVerb(
    "schema-compatibility-strategy",
    "schemaCompatibilityStrategy",
    (flag("--compatibility", "-c", "--strategy", dest="value", required=True, help="FULL, BACKWARD, ..."),),
    _value,
    "PUT",
)
OWN_VERBS = (
    PolicyVerb("ttl-from-due-time", "ttlFromDueTime", _switch(), _switched, is_own=True),
    PolicyVerb("backlog-quota-from-due-time", "backlogQuotaFromDueTime", _switch(), _switched, is_own=True),
)
"""Not Pulsar's: what is not due yet does not count."""
SHARED_VERBS = (
    *OWN_VERBS,
    RETENTION,
    DELAYED,
    PERSISTENCE,
    PUBLISH_RATE,
    _dispatch_rate("dispatch-rate", "dispatchRate"),
    _dispatch_rate("subscription-dispatch-rate", "subscriptionDispatchRate"),
    SUBSCRIBE_RATE,
    INACTIVE,
    SUBSCRIPTION_TYPES,
    _limit(
        "max-consumers-per-subscription",
        "maxConsumersPerSubscription",
        "--max-consumers-per-subscription",
        "-c",
    ),
    _limit("max-subscriptions-per-topic", "maxSubscriptionsPerTopic", "--max-subscriptions-per-topic", "-m"),
)
NAMESPACE_VERBS = (
    *SHARED_VERBS,
    TTL,
    PolicyVerb("deduplication", "deduplication", _switch(), _switched),
    _limit("max-producers-per-topic", "maxProducersPerTopic", "--max-producers-per-topic", "-p"),
    _limit("max-consumers-per-topic", "maxConsumersPerTopic", "--max-consumers-per-topic", "-c"),
    _limit(
        "max-unacked-messages-per-consumer",
        "maxUnackedMessagesPerConsumer",
        "--max-unacked-messages-per-consumer",
        "--max-unacked-messages-per-topic",
        "-c",
    ),
    _limit(
        "max-unacked-messages-per-subscription",
        "maxUnackedMessagesPerSubscription",
        "--max-unacked-messages-per-subscription",
        "-c",
    ),
    PolicyVerb("compaction-threshold", "compactionThreshold", COMPACTION_FLAGS, _value, "PUT"),
    _limit(
        "subscription-expiration-time", "subscriptionExpirationTime", "--time", "-t", text="minutes; 0: never"
    ),
    SCHEMA_COMPATIBILITY._replace(removable=False),
    PolicyVerb(
        "schema-validation-enforce", "schemaValidationEnforced", _switch(), _switched, removable=False
    ),
    PolicyVerb(
        "is-allow-auto-update-schema", "isAllowAutoUpdateSchema", _switch(), _switched, removable=False
    ),
)
TOPIC_VERBS = (
    *SHARED_VERBS,
    TTL._replace(in_query="messageTTL"),
    PolicyVerb("deduplication", "deduplicationEnabled", _switch(), _switched),
    _limit("max-producers", "maxProducers", "--max-producers", "-p"),
    _limit("max-consumers", "maxConsumers", "--max-consumers", "-c"),
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
