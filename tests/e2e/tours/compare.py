"""Whether a call of an admin client ended alike on two brokers: the same outcome, the same answers."""

from __future__ import annotations

import json
import re
from typing import Any, Final

from tests.e2e.tours.proxy import Exchange

OF_A_RUN: Final = re.compile(
    r"timestamp|.*Timestamp|ledgerId|entryId|brokerServiceUrl|backlogSize|storageSize|currentLedgerSize|totalSize|size"
    r"|creationDate|modificationDate|bookieId|usage|limit|lastUpdate|usedDirectMemory|.*(Url|URL|Servers)|metadata"
    r"|usedHeapMemory|num.*Arenas|numThreadLocalCaches|maxResourceUsage|cpu|pid|underReplicated|boundaries|numBundles",
)
"""Fields whose values belong to one run or machine: only their kinds are compared."""
SHAPE_ONLY: Final = re.compile(
    r"^(topics\.get(Partitioned)?Internal(Stats|Info)|brokers\.get(Runtime|Internal)|brokerStats\.|BrokerStats\."
    r"|Topics\.GetInternal|Brokers\.Get(Runtime|Internal))"
)
"""Calls whose results are about the process or the layout of the data."""
SHOWN_BESIDES: Final = {"lastPublishTimeStamp", "lastPublishTimestamp", "topicCreationTimeStamp"}
"""Fields that only Geminga's statistics have, as its answers and as the Go client spell them."""
UNREADABLE: Final = "\ufffd"
"""In a property that the Go client could not read: the real broker writes headers in Latin-1."""
MESSAGE_ID: Final = re.compile(r"^\d+(:-?\d+(:-?\d+)?(:-?\d+)?)$")
ADDRESS: Final = re.compile(r"(pulsar|http)://(localhost|127\.0\.0\.1):\d+")
CLIENT_TEXT: Final = re.compile(r"HTTP \d+|\d{3} [A-Z]|$|null$")
"""How a reason begins that the client made up, since it could not read the broker's."""


def outcome_difference(name: str, theirs: dict[str, Any], ours: dict[str, Any]) -> str | None:
    """What differs, in a few words; None if nothing does. Any answer will do where the real broker failed."""
    if theirs == ours:
        return None
    if theirs.get("status", 0) >= 500:
        return None if ours.get("status", 0) < 500 else f"{theirs} there, {ours} here"
    if "result" in theirs and "result" in ours:
        if SHAPE_ONLY.search(name):
            return _lacking(theirs["result"], ours["result"], "")
        return _unlike(theirs["result"], ours["result"], "")
    for key in ("exception", "status"):
        if theirs.get(key) != ours.get(key):
            return f"{_short(theirs)} there, {_short(ours)} here"
    text = str(theirs.get("reason", ""))
    if not CLIENT_TEXT.match(text) and text != ours.get("reason"):
        return f"reason {_short(text)} there, {_short(ours.get('reason'))} here"
    return None


def exchange_difference(name: str, theirs: Exchange, ours: Exchange) -> str | None:
    """The same for one request of a call, as it was answered over HTTP."""
    if theirs.status >= 500:
        return None if ours.status < 500 else f"status {theirs.status} there, {ours.status} here"
    if theirs.status != ours.status:
        return f"status {theirs.status} there, {ours.status} here: {_short(ours.answer)}"
    for header, value in theirs.answer_headers.items():
        shown = ours.answer_headers.get(header, "")
        if header.startswith("x-pulsar-") and _header(shown) != _header(value):
            return f"{header}: {value} there, {shown} here"
    if theirs.status >= 400:
        is_reason = isinstance(theirs.answer, dict) and "reason" in theirs.answer
        has_reason = isinstance(ours.answer, dict) and bool(ours.answer.get("reason"))
        return "no reason" if is_reason and not has_reason else None
    if SHAPE_ONLY.search(name):
        return _lacking(theirs.answer, ours.answer, "")
    return _unlike(theirs.answer, ours.answer, "")


def _unlike(theirs: Any, ours: Any, place: str) -> str | None:
    """The same fields on both sides, with the same values."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key, value in theirs.items():
            if UNREADABLE in key:
                continue
            if key not in ours:
                return f"{place} lacks {key}"
            same = _lacking if OF_A_RUN.fullmatch(key) else _unlike
            if found := same(value, ours[key], f"{place}.{key}"):
                return found
        if any(UNREADABLE in key for key in theirs):
            return None
        extra = sorted(key for key in ours.keys() - theirs.keys() - SHOWN_BESIDES)
        return f"{place} has {', '.join(extra)} besides" if extra else None
    if isinstance(theirs, list) and isinstance(ours, list):
        if all(isinstance(item, str) for item in theirs + ours):  # Pulsar's sets have no order
            theirs, ours = sorted(map(_plain, theirs)), sorted(map(_plain, ours))
        if len(theirs) != len(ours):
            return f"{place}: {len(theirs)} there, {len(ours)} here: {_short(theirs)} {_short(ours)}"
        pairs = enumerate(zip(theirs, ours, strict=True))
        return next((one for i, pair in pairs if (one := _unlike(*pair, f"{place}[{i}]"))), None)
    return None if _plain(theirs) == _plain(ours) else f"{place}: {_short(theirs)} there, {_short(ours)} here"


def _lacking(theirs: Any, ours: Any, place: str) -> str | None:
    """Every field of theirs is here, of the same kind."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        if missing := sorted(theirs.keys() - ours.keys()):
            return f"{place} lacks {', '.join(missing[:8])}"
        return next((one for k in theirs if (one := _lacking(theirs[k], ours[k], f"{place}.{k}"))), None)
    if isinstance(theirs, list) and isinstance(ours, list):
        return _lacking(theirs[0], ours[0], f"{place}[]") if theirs and ours else None
    if theirs is None or _kind(theirs) == _kind(ours):
        return None
    return f"{place}: {_short(theirs)} there, {_short(ours)} here"


def _kind(value: Any) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return "number" if is_number else type(value).__name__


def _header(value: str) -> Any:
    """JSON has more than one way to write a letter."""
    return json.loads(value) if value.startswith('{"') else value


def _plain(value: Any) -> Any:
    return MESSAGE_ID.sub(r"LEDGER\1", ADDRESS.sub("ADDRESS", value)) if isinstance(value, str) else value


def _short(value: Any) -> str:
    return repr(value)[:160]
