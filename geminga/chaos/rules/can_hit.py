"""What each kind of fault can hit. The doors ask this table, and a rule that selects nothing of it is
refused, so that no rule waits for an operation that never comes.
"""

from __future__ import annotations

import functools
from typing import Final

from geminga.chaos.rules.places import OPERATIONS, PLACES

_ANY: Final = ("read", "write", "reserve", "sync")
HITS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "wire": {"error": ("in",)},
    "journal": {
        "slow": _ANY,
        "eio": _ANY,
        # A journal's space is reserved before it is written, so only the reservation finds the disk full.
        "enospc": ("reserve", "space"),
        "torn": ("write",),
    },
    "entry-log": {
        "slow": _ANY,
        "eio": _ANY,
        "enospc": ("write", "reserve", "space"),
        "torn": ("write",),
    },
    "index": {
        "slow": ("open", "read", "write", "sync"),
        "eio": ("open", "read", "write", "sync"),
        "enospc": ("write",),
        "torn": ("write",),
    },
}
"""Operations, or directions of the wire, by place and kind; a kind that is not here can hit all."""
_SELECTED_BY: Final = {"reserve": "write"}
"""The `operation` of a rule that selects this one, if it is not its own name."""

REQUESTS: Final = (
    "PARTITIONED_METADATA",
    "LOOKUP",
    "PRODUCER",
    "SEND",
    "CLOSE_PRODUCER",
    "SUBSCRIBE",
    "ACK",
    "SEEK",
    "GET_LAST_MESSAGE_ID",
    "CONSUMER_STATS",
    "UNSUBSCRIBE",
    "CLOSE_CONSUMER",
    "GET_TOPICS_OF_NAMESPACE",
    "WATCH_TOPIC_LIST",
    "GET_SCHEMA",
    "GET_OR_CREATE_SCHEMA",
)
"""Commands that `wire/error` can answer: those that have an answer with an error, and that are served."""
_TO_CLIENTS: Final = frozenset(
    {
        "CONNECTED",
        "SEND_RECEIPT",
        "SEND_ERROR",
        "MESSAGE",
        "SUCCESS",
        "ERROR",
        "PRODUCER_SUCCESS",
        "REACHED_END_OF_TOPIC",
        "ACTIVE_CONSUMER_CHANGE",
        "AUTH_CHALLENGE",
        "WATCH_TOPIC_LIST_SUCCESS",
        "WATCH_TOPIC_UPDATE",
        "TOPIC_MIGRATED",
    }
)
_BOTH_WAYS: Final = frozenset({"PING", "PONG", "CLOSE_PRODUCER", "CLOSE_CONSUMER"})


@functools.cache
def kinds_at(place: str, operation: str) -> frozenset[str]:
    """The kinds that this operation, or a frame in this direction, can suffer."""
    hits = HITS.get(place, {})
    return frozenset(kind for kind in PLACES[place] if operation in hits.get(kind, (operation,)))


def operations_of(place: str, kind: str) -> tuple[str, ...]:
    """The values of `operation` with which a rule of this kind can hit."""
    found = {_SELECTED_BY.get(one, one) for one in HITS.get(place, {}).get(kind, OPERATIONS.get(place, ()))}
    return tuple(one for one in OPERATIONS.get(place, ()) if one in found)


def directions_of(command: str) -> tuple[str, ...]:
    """Where a command of the protocol can be seen."""
    if command in _BOTH_WAYS:
        return ("in", "out")
    is_answer = command in _TO_CLIENTS or (command.endswith("_RESPONSE") and command != "AUTH_RESPONSE")
    return ("out",) if is_answer else ("in",)
