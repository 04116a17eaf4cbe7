"""Whether two brokers gave the same answer: the same status and fields, and of a policy the same values."""

from __future__ import annotations

import re
from typing import Any, Final

from tests.e2e.differential.play import NO_ANSWER, Asked

SHAPE_ONLY: Final = re.compile(
    r"/(stats|internalStats|partitioned-stats|partitioned-internalStats|internal-info|lastMessageId|topics"
    r"|load-report|configuration|internal-configuration|values|version|ownedNamespaces|leaderBroker|bookies/all"
    r"|lookup/.*|namespaces/\{tenant\}|tenants|clusters|resourcegroups|schema|schemas|schema/\{version\}|metadata"
    r"|persistent/\{tenant\}/\{namespace\}|terminate|terminate/partitions|brokers(/.*)?|ledger/.*|examinemessage"
    r"|backlog|messageid/.*|position/.*|analyzeBacklog|broker-resource-availability.*|bundle)(\?.*)?$"
)
"""Paths whose answers hold numbers, times and names of a run: only their fields are compared."""


def difference(theirs: Asked, ours: Asked) -> str | None:
    """What differs, in a few words; None if nothing does."""
    if theirs.status == NO_ANSWER or theirs.status >= 500:  # what the real broker stumbles over
        return None if ours.status < 500 else f"status {theirs.status} there, {ours.status} here"
    if theirs.status != ours.status:
        return f"status {theirs.status} there, {ours.status} here"
    if theirs.status >= 400:
        return None if _is_reason(theirs.answer) <= _is_reason(ours.answer) else "no reason in the answer"
    if theirs.allow != ours.allow:
        return f"Allow {theirs.allow} there, {ours.allow} here"
    if SHAPE_ONLY.search(theirs.path):
        return _shape_difference(theirs.answer, ours.answer, "")
    return _value_difference(_plain(theirs.answer), _plain(ours.answer))


def _value_difference(theirs: Any, ours: Any) -> str | None:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        absent = "nothing"
        keys = sorted(theirs.keys() | ours.keys())
        found = [key for key in keys if theirs.get(key, absent) != ours.get(key, absent)]
        parts = [f"{key} {_short(theirs.get(key))} there, {_short(ours.get(key))} here" for key in found]
        return "; ".join(parts) or None
    return None if theirs == ours else f"{_short(theirs)} there, {_short(ours)} here"


def _is_reason(answer: Any) -> bool:
    return isinstance(answer, dict) and "reason" in answer


def _plain(answer: Any) -> Any:
    """Lists of names are sets in Pulsar."""
    if isinstance(answer, dict):
        return {key: _plain(value) for key, value in answer.items()}
    if isinstance(answer, list) and all(isinstance(item, str) for item in answer):
        return sorted(answer)
    return answer


def _shape_difference(theirs: Any, ours: Any, place: str) -> str | None:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        if missing := sorted(theirs.keys() - ours.keys()):
            return f"{place} lacks {', '.join(missing[:8])}"
        for key in theirs:
            if found := _shape_difference(theirs[key], ours[key], f"{place}.{key}"):
                return found
        return None
    if isinstance(theirs, list) and isinstance(ours, list):
        return _shape_difference(theirs[0], ours[0], f"{place}[]") if theirs and ours else None
    if theirs is None or ours is None or _kind(theirs) == _kind(ours):
        return None
    return f"{place} is {_short(theirs)} there, {_short(ours)} here"


def _kind(value: Any) -> str:
    return (
        "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__
    )


def _short(value: Any) -> str:
    return repr(value)[:160]
