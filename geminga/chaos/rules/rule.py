"""A rule as a user writes it, and the check of one. The JSON names are in camel case: `latencyMs`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from geminga.chaos.rules.can_hit import REQUESTS, directions_of, operations_of
from geminga.chaos.rules.places import OPERATIONS, PLACES, POINTS
from geminga.errors import InvalidName, PeerError
from geminga.limits import MIB
from geminga.names import TopicName

DURATION_MS_MAX: Final = 24 * 3_600_000
COUNT_MAX: Final = 10**9
STEP_MS_MAX: Final = 3650 * 86_400_000
PPM_MAX: Final = 1_000_000
TEXT_CHARACTERS_MAX: Final = 500
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class InvalidRule(PeerError):
    """A rule with a field that is missing, unknown or out of range. The text says what to write instead."""

    http_status = 400


class Rule(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True, omit_defaults=True):
    """One fault: where, what, on which operations, and how often. Text fields that are empty select all."""

    place: str
    kind: str
    id: str = ""
    """Empty in a request: the broker gives one."""
    client: str = ""
    """Address of a client: `10.0.0.7`, or `10.0.0.7:51000` for one connection."""
    version: str = ""
    """Beginning of the version that a client names in CONNECT: `Pulsar-CPP`."""
    command: str = ""
    """Name of a command of the protocol: `SEND`."""
    direction: str = ""
    """`in` (from clients) or `out` (to clients)."""
    operation: str = ""
    path: str = ""
    """A part of a file's name, or the beginning of a path of the metadata or of the admin port."""
    topic: str = ""
    """Full name of a topic, of a partitioned one for all its partitions, or its beginning followed by `*`."""
    subscription: str = ""
    ledger_id: int = -1
    """-1: any."""
    which: str = ""
    """Which buckets: `first`, `last` (by due time) or `all`."""
    quietly: bool = False
    """Whether the broker has to find out by itself that a bucket is damaged."""
    name: str = ""
    """Of a cursor's property, or of a named point of the process."""
    probability: float = 1.0
    after: int = 0
    """How many matching operations pass before the first that can be hit."""
    count: int = 0
    """The rule ends after so many hits. 0: no limit."""
    duration_ms: int = 0
    """The rule ends after this time. 0: no limit."""
    latency_ms: int = 0
    bytes_per_s: int = 0
    seed: int = 0
    jitter_ms: int = 0
    """Each delay is drawn between `latency_ms` less this and `latency_ms` and this, and is at least 0."""
    slice_bytes: int = 0
    error: str = ""
    """Name of an error of the protocol: `ServiceNotReady`."""
    message: str = ""
    """Of an error."""
    method: str = ""
    """Of an HTTP request."""
    status: int = 0
    """Of an HTTP answer."""
    step_ms: int = 0
    """By how much a clock is set forward; negative: back."""
    ppm: int = 0
    """By how many millionths a clock runs faster; negative: slower."""
    keep: bool = False
    """Whether the next starts with `--chaos` put the rule in force again, until it has ended."""


_FIELDS: Final = {field.name: field.encode_name for field in msgspec.structs.fields(Rule)}
_RANGES: Final[dict[str, tuple[float, float, str]]] = {
    "probability": (0.0, 1.0, "a number above 0 and at most 1"),
    "after": (0, COUNT_MAX, "a number of operations"),
    "count": (0, COUNT_MAX, "a number of hits; leave it out for no limit"),
    "duration_ms": (0, DURATION_MS_MAX, "a time in ms, at most a day; leave it out for no limit"),
    "latency_ms": (0, 3_600_000, "a time in ms, at most an hour"),
    "bytes_per_s": (0, 10**12, "a rate in bytes per second"),
    "seed": (0, 2**63 - 1, "a whole number"),
    "jitter_ms": (0, 3_600_000, "a time in ms, at most an hour"),
    "slice_bytes": (0, MIB, "a number of bytes, at most 1 MiB"),
    "status": (400, 599, "a status from 400 to 599"),
    "ledger_id": (-1, 2**63 - 1, "the id of a ledger"),
    "step_ms": (-STEP_MS_MAX, STEP_MS_MAX, "a time in ms, at most ten years, negative to set back, not 0"),
    "ppm": (-PPM_MAX, PPM_MAX, f"millionths from -{PPM_MAX} to {PPM_MAX}, not 0"),
}
_CHOICES: Final = {
    "direction": ("in", "out"),
    "which": ("first", "last", "all"),
    "method": ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"),
}
AT_START: Final = {("journal", "read"): "a journal is read", ("index", "open"): "the index is opened"}
FAULT_ROUTES: Final = "/geminga/faults"
"""Requests to these paths of the admin port are never hit, so that a rule can be taken back."""


def json_names(fields: Iterable[str]) -> list[str]:
    """The names of these fields in JSON, sorted."""
    return sorted(_FIELDS[name] for name in fields)


def parse_rule(body: object, *, at_start: bool = False) -> Rule:
    """The rule in a JSON object. `at_start`: it is in force while the broker starts. Raises InvalidRule."""
    if not isinstance(body, dict):
        raise InvalidRule(
            'expected a JSON object such as {"place": "wire", "kind": "latency", "latencyMs": 50}'
        )
    known = set(_FIELDS.values())
    for key in body:
        if key not in known:
            raise InvalidRule(
                f"{str(key)[:100]}: a rule has no such field; it has {', '.join(sorted(known))}"
            )
    for key, choices in (("place", PLACES), ("kind", PLACES.get(str(body.get("place")), {}))):
        if body.get(key) not in tuple(choices):
            given = f", not {str(body[key])[:100]!r}" if key in body else ""
            raise InvalidRule(f"{key}: expected one of {', '.join(choices)}{given}")
    try:
        rule = msgspec.convert(body, Rule)
    except msgspec.ValidationError as error:
        raise InvalidRule(_readable(str(error))) from None
    rule = msgspec.structs.replace(rule, topic=_full_name(rule.topic))
    for name in ("count", "duration_ms"):
        # A rule that says so might be meant to do nothing, and would never end.
        if body.get(_FIELDS[name]) == 0:
            raise InvalidRule(f"{_FIELDS[name]}: expected {_RANGES[name][2]}, not 0")
    check_rule(rule, at_start=at_start)
    return rule


def _full_name(topic: str) -> str:
    """Operations know their topics by full names only. A beginning with a scheme may end within any part."""
    head = topic.removesuffix("*")
    is_beginning = head != topic
    if not head or (is_beginning and "://" in head):
        return topic
    try:
        # A beginning may end with a slash, and a name may not.
        return f"{str(TopicName.parse(f'{head}x'))[:-1]}*" if is_beginning else str(TopicName.parse(head))
    except InvalidName as error:
        raise InvalidRule(f"topic: {error}") from None


def _readable(text: str) -> str:
    reason, _, where = text.partition(" - at `$.")
    return f"{where.rstrip('`')}: {reason[:1].lower()}{reason[1:]}" if where else reason


def check_rule(rule: Rule, *, at_start: bool = False) -> None:
    """Raises InvalidRule for the first field that is wrong, or with which the rule can never hit."""
    kind = PLACES[rule.place][rule.kind]
    allowed = {"place", "kind", "id"} | kind.needs | kind.takes | kind.when
    for field in msgspec.structs.fields(Rule):
        value, name = getattr(rule, field.name), field.encode_name
        is_given = field.default is msgspec.NODEFAULT or value != field.default
        if is_given and field.name not in allowed:
            usable = ", ".join(json_names(allowed))
            raise InvalidRule(f"{name}: {rule.place}/{rule.kind} does not take it; it takes {usable}")
        if not is_given and field.name in kind.needs:
            raise InvalidRule(f"{name}: {rule.place}/{rule.kind} needs it: {_wanted(rule, field.name)}")
        if isinstance(value, str) and len(value) > TEXT_CHARACTERS_MAX:
            raise InvalidRule(f"{name}: expected at most {TEXT_CHARACTERS_MAX} characters")
        if is_given and field.name in _RANGES:
            low, high, wanted = _RANGES[field.name]
            if not low <= value <= high or (field.name == "probability" and value == 0):
                raise InvalidRule(f"{name}: expected {wanted}, not {value}")
        if value and field.name in _CHOICES and value not in _CHOICES[field.name]:
            raise InvalidRule(f"{name}: expected {' or '.join(_CHOICES[field.name])}, not {value[:100]!r}")
    if rule.id and _ID.fullmatch(rule.id) is None:
        raise InvalidRule("id: expected letters, digits, '.', '_' and '-', at most 64; or leave it out")
    operations = OPERATIONS.get(rule.place, ())
    if rule.operation and rule.operation not in operations:
        raise InvalidRule(f"operation: expected one of {', '.join(operations)}, not {rule.operation[:100]!r}")
    if rule.place == "process" and rule.kind == "kill" and rule.name not in POINTS:
        raise InvalidRule(f"name: expected a point, one of {', '.join(POINTS)}, not {rule.name[:100]!r}")
    if rule.command:
        _check_command(rule)
    _check_operation(rule, at_start)
    _check_path(rule)


def _wanted(rule: Rule, name: str) -> str:
    if name in _RANGES:
        low, _, wanted = _RANGES[name]
        return wanted if low else f"{wanted}, above 0"
    if name == "command":
        return f"one of {', '.join(REQUESTS)}"
    return f"one of {', '.join(_error_names())}" if name == "error" else "a text"


def _error_names() -> Sequence[str]:
    from geminga.wire import pulsar_pb2 as pb

    return pb.ServerError.keys()


def _check_command(rule: Rule) -> None:
    # Here, since only a rule with a command needs the generated code.
    from geminga.wire import pulsar_pb2 as pb

    command = rule.command
    names = pb.BaseCommand.Type.keys()
    if command not in names:
        raise InvalidRule(f"command: expected a command of the protocol such as SEND, not {command[:100]!r}")
    directions = directions_of(command)
    if rule.kind == "error":
        if command not in REQUESTS:
            raise InvalidRule(f"command: wire/error can answer {', '.join(REQUESTS)}, not {command}")
        if rule.error not in _error_names():
            raise InvalidRule(f"error: expected {_wanted(rule, 'error')}, not {rule.error[:100]!r}")
        directions = ("in",)  # CLOSE_PRODUCER and CLOSE_CONSUMER are no requests when the broker sends them
    if rule.direction and rule.direction not in directions:
        text = "comes from clients: in" if directions == ("in",) else "goes to clients: out"
        raise InvalidRule(f"direction: {command} {text}, so {rule.direction!r} can never hit")


def _check_operation(rule: Rule, at_start: bool) -> None:
    if not rule.operation:
        return
    usable = operations_of(rule.place, rule.kind)
    if rule.operation not in usable:
        raise InvalidRule(
            f"operation: {rule.place}/{rule.kind} can hit {', '.join(usable)}, never {rule.operation}"
        )
    if (rule.place, rule.operation) in AT_START and not (at_start or rule.keep):
        raise InvalidRule(
            f"operation: {AT_START[rule.place, rule.operation]} only at a start: give the rule by --fault, "
            "or keep it for the next one"
        )
    if (rule.place, rule.operation) == ("bucket", "create") and rule.ledger_id >= 0:
        raise InvalidRule("ledgerId: a bucket that is created has no ledger yet; leave it out")


def _check_path(rule: Rule) -> None:
    if not rule.path or rule.place not in ("metadata", "admin"):
        return
    example = "/managed-ledgers/public" if rule.place == "metadata" else "/admin/v2/persistent"
    if not rule.path.startswith("/"):
        raise InvalidRule(
            f"path: expected the beginning of a path such as {example}, not {rule.path[:100]!r}"
        )
    if rule.place == "admin" and f"{rule.path}/".startswith(f"{FAULT_ROUTES}/"):
        raise InvalidRule(f"path: requests to {FAULT_ROUTES} are never hit, so that rules can be cleared")
