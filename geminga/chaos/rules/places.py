"""The places where faults are injected, the kinds of faults of each, and the fields that a kind takes."""

from __future__ import annotations

from typing import Final, NamedTuple


class Kind(NamedTuple):
    """One kind of fault at a place."""

    text: str
    """What it does, in one line."""
    needs: frozenset[str] = frozenset()
    """Fields that a rule of this kind must have."""
    takes: frozenset[str] = frozenset()
    """Other fields that it may have."""
    at_once: bool = False
    """It acts once, when the rule is set, not at an operation of the broker."""


def _fields(*names: str) -> frozenset[str]:
    return frozenset(names)


WHEN: Final = _fields("probability", "after", "count", "duration_ms", "seed")
"""Fields that say when a rule takes effect: kinds that act at operations take all of them."""
_WIRE = _fields("client", "version", "command", "direction")
_FILE = _fields("operation", "path")
_METADATA = _fields("path")
_TOPIC = _fields("topic")
_INDEX = _fields("operation")

PLACES: Final[dict[str, dict[str, Kind]]] = {
    "wire": {
        "latency": Kind("delays frames", _fields("latency_ms"), _WIRE),
        "throttle": Kind("limits the rate of bytes", _fields("bytes_per_s"), _WIRE),
        "flip": Kind("flips one bit of a frame", takes=_WIRE),
        "cut": Kind("closes the connection with a reset, before the frame", takes=_WIRE),
        "half-close": Kind("ends one direction, before the frame; the other stays open", takes=_WIRE),
    },
}
"""Kinds by place. `docs/faults.md` describes each."""

OPERATIONS: Final[dict[str, tuple[str, ...]]] = {}
"""The values of `operation` at each place that has it."""


def place_of(place: str, kind: str) -> Kind | None:
    return PLACES.get(place, {}).get(kind)
