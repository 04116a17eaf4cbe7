"""The value of each policy: one struct for each, with its JSON as Pulsar 4.0's admin API reads and writes
it.

Pulsar's reader (Jackson) is lenient, and tools rely on that: a number may be text, an unknown key is
ignored, an absent one has its default. `read` does the same, and refuses what Pulsar refuses. Geminga
accepts what Pulsar accepts, including meaningless values such as a negative rate; the code that uses a value
bounds it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, UnsetType

from geminga.errors import PeerError

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
QuotaAction = Literal["producer_request_hold", "producer_exception", "consumer_backlog_eviction"]
DeleteMode = Literal["delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"]
SubscriptionKind = Literal["Exclusive", "Shared", "Failover", "Key_Shared"]
SchemaCompatibility = Literal[
    "UNDEFINED",
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
]
MINUTE_MS = 60_000
MIB = 1024 * 1024


class Retention(msgspec.Struct, frozen=True):
    """How long, and up to what size, consumed messages are kept: -1 for ever, 0 not at all."""

    time_minutes: Int32 = msgspec.field(default=0, name="retentionTimeInMinutes")
    size_mb: Int64 = msgspec.field(default=0, name="retentionSizeInMB")

    @property
    def time_ms(self) -> int:
        return self.time_minutes * MINUTE_MS if self.time_minutes > 0 else self.time_minutes

    @property
    def size_bytes(self) -> int:
        return self.size_mb * MIB if self.size_mb > 0 else self.size_mb


class DelayedDelivery(msgspec.Struct, frozen=True):
    """Whether due times count, how exact they are, and how far in the future they may be (0 or less: any
    time).
    """

    tick_time: Int64 = msgspec.field(default=0, name="tickTime")
    active: bool = False
    max_delay_in_millis: Int64 = msgspec.field(default=0, name="maxDeliveryDelayInMillis")

    @property
    def tick_ms(self) -> int:
        """At least 1, because Pulsar accepts and stores any number."""
        return max(1, self.tick_time)

    @property
    def delay_max_ms(self) -> int:
        """0: no limit."""
        return max(0, self.max_delay_in_millis)


class BacklogQuota(msgspec.Struct, frozen=True):
    """A bound on the backlog, in bytes or in seconds, and the action at the bound. Below 0: no bound."""

    limit_size: Int64 = msgspec.field(default=0, name="limitSize")
    limit_time: Int32 = msgspec.field(default=0, name="limitTime")
    policy: QuotaAction | UnsetType = UNSET


class PublishRate(msgspec.Struct, frozen=True):
    """Per second; 0 and less: no limit."""

    messages: Int32 = msgspec.field(default=-1, name="publishThrottlingRateInMsg")
    bytes: Int64 = msgspec.field(default=-1, name="publishThrottlingRateInByte")


class DispatchRate(msgspec.Struct, frozen=True):
    """Per period; 0 and less: no limit."""

    messages: Int32 = msgspec.field(default=0, name="dispatchThrottlingRateInMsg")
    bytes: Int64 = msgspec.field(default=0, name="dispatchThrottlingRateInByte")
    relative_to_publish_rate: bool = msgspec.field(default=False, name="relativeToPublishRate")
    period_s: Int32 = msgspec.field(default=0, name="ratePeriodInSecond")


class SubscribeRate(msgspec.Struct, frozen=True):
    """How often one consumer may subscribe in a period; 0 or less: no limit."""

    per_consumer: Int32 = msgspec.field(default=-1, name="subscribeThrottlingRatePerConsumer")
    period_s: Int32 = msgspec.field(default=30, name="ratePeriodInSecond")


class Persistence(msgspec.Struct, frozen=True):
    """Copies of a ledger, of which one bookie keeps one, and mark-delete writes per second."""

    ensemble: Int32 = msgspec.field(default=2, name="bookkeeperEnsemble")
    write_quorum: Int32 = msgspec.field(default=2, name="bookkeeperWriteQuorum")
    ack_quorum: Int32 = msgspec.field(default=2, name="bookkeeperAckQuorum")
    mark_delete_rate_max: float = msgspec.field(default=0.0, name="managedLedgerMaxMarkDeleteRate")
    storage_class: str | UnsetType = msgspec.field(default=UNSET, name="managedLedgerStorageClassName")


class InactiveTopic(msgspec.Struct, frozen=True):
    """When an unused topic is deleted."""

    delete_mode: DeleteMode | UnsetType = msgspec.field(default=UNSET, name="inactiveTopicDeleteMode")
    inactive_s_max: Int32 = msgspec.field(default=0, name="maxInactiveDurationSeconds")
    deletes: bool = msgspec.field(default=False, name="deleteWhileInactive")


class AutoSubscriptionCreation(msgspec.Struct, frozen=True):
    allowed: bool = msgspec.field(default=False, name="allowAutoSubscriptionCreation")


class AutoTopicCreation(msgspec.Struct, frozen=True):
    """Whether a client's first use creates a topic, and with how many partitions."""

    allowed: bool = msgspec.field(default=False, name="allowAutoTopicCreation")
    kind: str | UnsetType = msgspec.field(default=UNSET, name="topicType")
    partitions: Int32 | UnsetType = msgspec.field(default=UNSET, name="defaultNumPartitions")

    @property
    def partition_count(self) -> int:
        """0: a topic without partitions."""
        return self.partitions if self.kind == "partitioned" and self.partitions is not UNSET else 0


class PolicyRefused(PeerError):
    """The value is not valid for the policy. Nothing was changed."""

    http_status = 400


class PolicyInvalid(PolicyRefused):
    """The value is invalid by itself, or together with another policy. Nothing was changed."""

    http_status = 412


T = TypeVar("T")
_TOKENS: tuple[tuple[type, str, str], ...] = (
    (bool, "Boolean", "VALUE_TRUE"),
    (dict, "Object", "START_OBJECT"),
    (list, "Array", "START_ARRAY"),
)
_EMPTY: dict[type, Any] = {int: 0, bool: False, float: 0.0, str: ""}


def read(kind: Any, value: object) -> Any:
    """A policy's value from decoded JSON. Raises `PolicyRefused` with Pulsar's text if the JSON has another
    shape.

    `kind` is a struct above, `Int32`, `Int64`, `bool`, a `Literal`, or `list` or `dict` of one. As in
    Pulsar's reader, null means the type's zero, and an unknown word means UNSET.
    """
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _read_struct(kind, value)
    origin = get_origin(kind)
    if origin is Annotated:
        return _read_int(value, get_args(kind)[1])
    if origin is Literal:
        return _read_choice(get_args(kind), value)
    if origin is list:
        if not isinstance(value, list):
            raise _wrong("java.util.Set", value)
        return _read_list(get_args(kind)[0], value)
    if origin is dict:
        if value is not None and not isinstance(value, dict):
            raise _wrong("java.util.LinkedHashMap", value)
        return {str(key): read(get_args(kind)[1], item) for key, item in (value or {}).items()}
    if kind is bool:
        return _read_bool(value)
    if kind is float:
        return _read_float(value)
    assert kind is str, kind
    return "" if value is None else str(value)


def _read_list(kind: Any, value: list[Any]) -> list[Any]:
    if kind is str:  # of thousands, asking what the kind is each time would take longer than the rest
        return ["" if item is None else str(item) for item in value]
    return [read(kind, item) for item in value]


def shown(value: object) -> object:
    """A policy's value, ready for JSON."""
    if isinstance(value, BacklogQuota):
        return {"limit": value.limit_size, **msgspec.to_builtins(value)}
    return msgspec.to_builtins(value)


def _read_struct(kind: type[msgspec.Struct], value: object) -> msgspec.Struct:
    if not isinstance(value, dict):
        raise _wrong(kind.__name__, value)
    hints = get_type_hints(kind, include_extras=True)
    given: dict[str, Any] = {}
    for field in msgspec.structs.fields(kind):
        name = field.encode_name
        if kind is BacklogQuota and name == "limitSize" and name not in value:
            name = "limit"  # as versions before 2.8 called it
        if name in value:
            given[field.name] = _read_field(hints[field.name], value[name])
    return kind(**{name: item for name, item in given.items() if item is not UNSET})


def _read_field(hint: Any, value: object) -> Any:
    choices = [part for part in get_args(hint) if part is not UnsetType]
    if UnsetType in get_args(hint):
        return UNSET if value is None else read(choices[0], value)
    return read(hint, value)


def _read_int(value: object, bounds: Meta) -> int:
    low, high = bounds.ge, bounds.le
    assert isinstance(low, int)
    assert isinstance(high, int)
    java = "int" if high < 2**32 else "long"
    if value is None:
        return 0
    if isinstance(value, str):
        text = value.strip()
        digits = text.removeprefix("-")
        if text and not (digits.isascii() and digits.isdigit() and len(digits) <= 19):
            raise _wrong_text(java, value, f"not a valid `{java}` value")
        value = int(text or "0")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong(java, value)
    number = int(value)
    if not low <= number <= high:
        raise PolicyRefused(f"Numeric value ({number}) out of range of {java} ({low} - {high})")
    return number


def _read_float(value: object) -> float:
    if value is None:
        return 0.0
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        number = float(value)
        if not math.isfinite(number):
            raise ValueError
        return number
    except (ValueError, OverflowError):
        raise _wrong("double", value) from None


def _read_bool(value: object) -> bool:
    if value is None or isinstance(value, bool | int):
        return bool(value)
    if isinstance(value, str) and value in ("true", "True", "TRUE", "false", "False", "FALSE", ""):
        return value.lower() == "true"
    if isinstance(value, str):
        words = '"true"/"True"/"TRUE" or "false"/"False"/"FALSE"'
        raise _wrong_text("boolean", value, f"only {words} recognized")
    raise _wrong("boolean", value)


def _read_choice(choices: Sequence[str], value: object) -> str | UnsetType:
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < len(choices):
        return choices[value]
    if isinstance(value, dict | list):
        raise _wrong("enum", value)
    return value if isinstance(value, str) and value in choices else UNSET


def _wrong_text(java: str, value: str, why: str) -> PolicyRefused:
    return PolicyRefused(f'Cannot deserialize value of type `{java}` from String "{value[:100]}": {why}')


def _wrong(java: str, value: object) -> PolicyRefused:
    for kind, name, token in _TOKENS:
        if isinstance(value, kind):
            return PolicyRefused(
                f"Cannot deserialize value of type `{java}` from {name} value (token `JsonToken.{token}`)"
            )
    if value is None:
        return PolicyRefused("The request entity cannot be empty.")
    return PolicyRefused(f"Cannot construct instance of `{java}` from {type(value).__name__} value")
