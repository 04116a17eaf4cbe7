"""Parses the options for begin and end: words, message ids, times, for all topics or for each. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.message import DecodeError

from geminga.pipeline.client.topics import full_name
from geminga.pipeline.columns.message_id import EARLIEST, LATEST, MessageId, parse
from geminga.pipeline.errors import BadOption
from geminga.units import MS_MAX, TIME_FORMS, time_ms
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import signed

EARLIEST_TEXT, LATEST_TEXT = "earliest", "latest"
EARLIEST_TIME, LATEST_TIME = -1, -2
"""The JVM connector's words for them among times."""

_SECONDS, _MICROSECONDS = range(10**8, 10**11), range(253_402_300_800_000, 10**17)
"""Of the years 1973 and 1978 to 5138. As milliseconds they are before 1973, or after the year 9999, whose end
is a usual word for never.
"""

MessageIds = Mapping[str, MessageId]
"""By the full name of topics, or of their partitions."""
Times = Mapping[str, int]


def starting(name: str, given: str | None) -> str | MessageIds | None:
    """`earliest`, `latest`, or the first message to read for each topic. Raises `BadOption`."""
    return _offsets(name, given, (EARLIEST_TEXT, LATEST_TEXT), _first)


def ending(name: str, given: str | None) -> str | MessageIds | None:
    """`latest`, or for each topic the id after the last message to read. Raises `BadOption`."""
    return _offsets(name, given, (LATEST_TEXT,), _behind)


def times(name: str, given: str | None) -> int | Times | None:
    """Milliseconds since 1970, for all topics or for each, of such numbers or of texts that `units.time_ms`
    reads. Raises `BadOption`.
    """
    if given is None:
        return None
    try:
        found = json.loads(given)
    except ValueError:
        found = given
    try:
        if isinstance(found, dict):
            return {str(full_name(topic)): _time(name, value) for topic, value in found.items()}
        return _time(name, found)
    except ValueError:
        raise BadOption(
            f"option {name} is {given!r}; expected a time such as {TIME_FORMS}, or JSON such as "
            '{"my-topic": 1700000000000}'
        ) from None


def _time(name: str, value: object) -> int:
    """Raises ValueError, `BadOption`."""
    if isinstance(value, str):
        return time_ms(value)
    # Taken as they are, such times read everything or nothing, without a word.
    if isinstance(value, int) and any(value in each for each in (_SECONDS, _MICROSECONDS)):
        unit, ms = ("seconds", value * 1000) if value in _SECONDS else ("microseconds", value // 1000)
        raise BadOption(
            f"option {name} is {value}, which looks like {unit}; it is in milliseconds since 1970: give {ms}"
        )
    if not isinstance(value, int) or isinstance(value, bool) or not LATEST_TIME <= value <= MS_MAX:
        raise ValueError(value)
    return value


def _offsets(name: str, given: str | None, words: tuple[str, ...], parse_one: Any) -> str | MessageIds | None:
    if given is None:
        return None
    if given.strip().lower() in words:
        return given.strip().lower()
    try:
        found = json.loads(given)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise BadOption(
            f"option {name} is {given!r}; expected {' or '.join(words)} or JSON such as "
            '{"my-topic": "12:0:0"}'
        )
    return {str(full_name(topic)): parse_one(name, value) for topic, value in found.items()}


def _first(name: str, value: Any) -> MessageId:
    ledger_id, entry_id, batch_index = _numbers(name, value)
    if ledger_id == LATEST.ledger_id:
        return LATEST
    return MessageId(ledger_id, entry_id, max(batch_index, 0)) if ledger_id >= 0 else EARLIEST


def _behind(name: str, value: Any) -> MessageId:
    ledger_id, entry_id, batch_index = _numbers(name, value)
    if ledger_id == LATEST.ledger_id:
        return LATEST
    if ledger_id < 0:
        raise BadOption(f"option {name}: nothing comes before the earliest message")
    return (
        MessageId(ledger_id, entry_id + 1, 0)
        if batch_index < 0
        else MessageId(ledger_id, entry_id, batch_index + 1)
    )


def _numbers(name: str, value: Any) -> tuple[int, int, int]:
    """Ledger, entry, index in the batch (-1: the whole entry) of a word, a text, or a message id's bytes in
    the JVM connector's notation, a list of signed numbers.
    """
    if value in (EARLIEST_TEXT, LATEST_TEXT):
        found = EARLIEST if value == EARLIEST_TEXT else LATEST
        return found.ledger_id, found.entry_id, -1
    if isinstance(value, str):
        found = parse(value)
        return found.ledger_id, found.entry_id, found.batch_index if value.count(":") == 2 else -1
    if isinstance(value, list) and all(isinstance(byte, int) and -128 <= byte < 256 for byte in value):
        try:
            message_id = pb.MessageIdData.FromString(bytes(byte & 0xFF for byte in value))
        except DecodeError:
            raise BadOption(f"option {name}: {value} is not a message id") from None
        return signed(message_id.ledgerId), signed(message_id.entryId), message_id.batch_index
    raise BadOption(f"option {name}: {value!r} is neither LEDGER:ENTRY:BATCH_INDEX nor a message id's bytes")


def of_topic(values: Mapping[str, Any], topic: str) -> Any | None:
    """The value for a partition, or for its partitioned topic."""
    found = values.get(topic)
    return values.get(str(full_name(topic).partitioned_name)) if found is None else found


def check_named(option: str, values: Any, topics: Sequence[str]) -> None:
    """Raises `BadOption` if a value is for a topic that is not read."""
    if not isinstance(values, Mapping):
        return
    read = {*topics, *(str(full_name(topic).partitioned_name) for topic in topics)}
    others = sorted(values.keys() - read)
    if others:
        raise BadOption(f"option {option} names {', '.join(others)}, which is not read")
