"""Prunes the plan of a query: drops topics, publish times and messages that its conditions exclude. Pure.

Pruning by topic and partition is exact, since a whole range has the same ones. Rows outside the bounds of
publish time are dropped when the range is read. A message id names one position, where the read may still
find another message. The bytes of message ids do not sort as messages do, so only equality prunes.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from google.protobuf.message import DecodeError

from geminga.pipeline.client.topics import full_name
from geminga.pipeline.columns.columns import MESSAGE_ID, PARTITION, PUBLISH_TIME, TOPIC
from geminga.pipeline.columns.message_id import MessageId, of_message_id
from geminga.pipeline.topics.publish_times import Published
from geminga.pipeline.topics.ranges import Range
from geminga.wire import pulsar_pb2 as pb

FILTERS_APART_MS: Final = 3_600_000
"""How far publish times may be out of order before a filter misses messages, unless publishTimesApartMs says
otherwise. Wider than for startingTime: a query with WHERE must return every matching message, including one
that arrived late from another cluster.
"""
MESSAGE_IDS_MAX: Final = 1000
"""Above this number, message ids are not looked up one by one."""
_US_PER_MS: Final = 1000

_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "starts": str.startswith,
    "ends": str.endswith,
    "contains": operator.contains,
}
_OF_TEXT: Final = ("starts", "ends", "contains")


@dataclass(frozen=True)
class Condition:
    """A condition on one column. Values: the text of a topic, a partition's number, a time in microseconds
    since 1970, the bytes of a message id; never null.
    """

    column: str
    comparison: str
    """= < <= > >= starts ends contains: with the first value; `in`: equal to any; `null`: no value."""
    values: tuple[Any, ...] = ()
    negated: bool = False

    @property
    def prunes(self) -> bool:
        """Whether the condition can exclude anything from the plan."""
        if self.column in (TOPIC, PARTITION):
            kind = str if self.column == TOPIC else int
            right = all(type(value) is kind for value in self.values)
            return right and (kind is str or self.comparison not in _OF_TEXT)
        if self.negated or self.comparison in ("null", *_OF_TEXT):
            return False
        if self.column == PUBLISH_TIME:
            return all(type(value) is int for value in self.values)
        return (
            self.column == MESSAGE_ID
            and self.comparison in ("=", "in")
            and len(self.values) <= MESSAGE_IDS_MAX
            and None not in map(_message_id, self.values)
        )

    @property
    def is_exact(self) -> bool:
        """Whether every row that is read fulfils the condition."""
        return self.prunes and (
            self.column in (TOPIC, PARTITION) or (self.column == PUBLISH_TIME and self.comparison != "in")
        )


@dataclass(frozen=True)
class Pruning:
    """The conditions that all wanted rows fulfil."""

    conditions: tuple[Condition, ...] = ()
    apart_ms: int = FILTERS_APART_MS

    @classmethod
    def of(cls, conditions: Sequence[Condition], apart_ms: int | None) -> Pruning:
        return cls(
            tuple(each for each in conditions if each.prunes),
            FILTERS_APART_MS if apart_ms is None else apart_ms,
        )

    def topics(self, topics: Sequence[str]) -> list[str]:
        """The topics or partitions that can have wanted rows."""
        return [topic for topic in topics if all(_keeps(each, topic) for each in self.conditions)]

    def published(self, given: Published) -> Published:
        """The times of the options, restricted to those of the conditions."""
        for each in self.conditions:
            if each.column == PUBLISH_TIME:
                given = given.narrowed(*_times_ms(each), apart_ms=self.apart_ms)
        return given

    @property
    def names_messages(self) -> bool:
        return any(each.column == MESSAGE_ID for each in self.conditions)

    def parts(self, wanted: Range) -> list[Range]:
        """The remaining parts of a range, in order: all of it, or a range for each named message."""
        found = [wanted]
        for each in self.conditions:
            if each.column == MESSAGE_ID:
                found = [part for known in found for part in _parts(known, _message_ids(each, wanted.topic))]
        return found


EVERYTHING: Final = Pruning()


def _keeps(condition: Condition, topic: str) -> bool:
    if condition.column == TOPIC:
        return _holds(condition, topic)
    if condition.column == PARTITION:
        index = full_name(topic).partition_index
        return _holds(condition, index if index >= 0 else None)
    return True


def _holds(condition: Condition, value: Any) -> bool:
    """As in SQL: neither a comparison with null nor its negation holds, except `is null`."""
    if condition.comparison == "null":
        return (value is None) is not condition.negated
    if value is None:
        return False
    if condition.comparison == "in":
        found = value in condition.values
    else:
        found = _COMPARISONS[condition.comparison](value, condition.values[0])
    return found is not condition.negated


def _times_ms(condition: Condition) -> tuple[int | None, int | None]:
    """From the first on, before the second; the whole milliseconds that fulfil the condition."""
    if not condition.values:
        return 0, 0
    low_us, high_us = min(condition.values), max(condition.values)
    at_or_after, after = -(-low_us // _US_PER_MS), low_us // _US_PER_MS + 1
    match condition.comparison:
        case ">":
            return after, None
        case ">=":
            return at_or_after, None
        case "<":
            return None, at_or_after
        case "<=":
            return None, after
        case _:
            return at_or_after, high_us // _US_PER_MS + 1


def _message_id(value: Any) -> pb.MessageIdData | None:
    try:
        return pb.MessageIdData.FromString(value) if isinstance(value, bytes) else None
    except DecodeError:
        return None


def _message_ids(condition: Condition, topic: str) -> list[MessageId]:
    """The messages that a condition names and that may be in this topic."""
    found = set()
    for message_id in map(_message_id, condition.values):
        if message_id is not None and message_id.partition in (-1, full_name(topic).partition_index):
            found.add(of_message_id(message_id))
    return sorted(found)


def _parts(wanted: Range, message_ids: Sequence[MessageId]) -> list[Range]:
    """A named message need not exist, so its absence is no loss."""
    return [
        replace(
            wanted,
            start=message_id,
            end=message_id.after(),
            strict=False,
            check_previous=False,
            ends_with_message=False,
        )
        for message_id in message_ids
        if wanted.start <= message_id < wanted.end
    ]
