"""A rule as a user writes it, and the check of one. The JSON names are in camel case: `latencyMs`."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from geminga.chaos.rules.places import OPERATIONS, PLACES, POINTS, WHEN
from geminga.errors import PeerError

DURATION_MS_MAX: Final = 24 * 3_600_000
COUNT_MAX: Final = 10**9
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
    """A part of a file's name, or the beginning of a metadata path."""
    topic: str = ""
    """Full name of a topic, or its beginning followed by `*`."""
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


_FIELDS: Final = {field.name: field.encode_name for field in msgspec.structs.fields(Rule)}
_RANGES: Final[dict[str, tuple[float, float, str]]] = {
    "probability": (0.0, 1.0, "a number above 0 and at most 1"),
    "after": (0, COUNT_MAX, "a number of operations"),
    "count": (0, COUNT_MAX, "a number of hits; leave it out for no limit"),
    "duration_ms": (0, DURATION_MS_MAX, "a time in ms, at most a day; leave it out for no limit"),
    "latency_ms": (0, 3_600_000, "a time in ms, at most an hour"),
    "bytes_per_s": (0, 10**12, "a rate in bytes per second"),
    "seed": (0, 2**63 - 1, "a whole number"),
    "ledger_id": (-1, 2**63 - 1, "the id of a ledger"),
}
_CHOICES: Final = {"direction": ("in", "out"), "which": ("first", "last", "all")}


def parse_rule(body: object) -> Rule:
    """The rule in a JSON object. Raises InvalidRule."""
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
    for name in ("count", "duration_ms"):
        # A rule that says so might be meant to do nothing, and would never end.
        if body.get(_FIELDS[name]) == 0:
            raise InvalidRule(f"{_FIELDS[name]}: expected {_RANGES[name][2]}, not 0")
    check_rule(rule)
    return rule


def _readable(text: str) -> str:
    reason, _, where = text.partition(" - at `$.")
    return f"{where.rstrip('`')}: {reason[:1].lower()}{reason[1:]}" if where else reason


def check_rule(rule: Rule) -> None:
    """Raises InvalidRule for the first field that is wrong."""
    kind = PLACES[rule.place][rule.kind]
    allowed = {"place", "kind", "id"} | kind.needs | kind.takes | (frozenset() if kind.at_once else WHEN)
    for field in msgspec.structs.fields(Rule):
        value, name = getattr(rule, field.name), field.encode_name
        is_given = field.default is msgspec.NODEFAULT or value != field.default
        if is_given and field.name not in allowed:
            usable = sorted(_FIELDS[one] for one in allowed)
            raise InvalidRule(
                f"{name}: {rule.place}/{rule.kind} does not take it; it takes {', '.join(usable)}"
            )
        if not is_given and field.name in kind.needs:
            wanted = f"{_RANGES[field.name][2]}, above 0" if field.name in _RANGES else "a text"
            raise InvalidRule(f"{name}: {rule.place}/{rule.kind} needs it: {wanted}")
        if isinstance(value, str) and len(value) > TEXT_CHARACTERS_MAX:
            raise InvalidRule(f"{name}: expected at most {TEXT_CHARACTERS_MAX} characters")
        if field.name in _RANGES:
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
        _check_command(rule.command)


def _check_command(command: str) -> None:
    # Here, since only a rule with a command needs the generated code.
    from geminga.wire import pulsar_pb2 as pb

    names = pb.BaseCommand.Type.keys()
    if command not in names:
        raise InvalidRule(f"command: expected a command of the protocol such as SEND, not {command[:100]!r}")
