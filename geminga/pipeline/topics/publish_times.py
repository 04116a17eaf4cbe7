"""Finds the part of a topic that has the messages of a period of publishing."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from geminga.client.session import Build
from geminga.pipeline.client.entry_stream import subscribe_reader
from geminga.pipeline.client.owning_brokers import (
    OwningBrokers,
    Subscribing,
    last_message_id,
    persistently,
    retryable,
)
from geminga.pipeline.client.shared_connection import Answer, OfConsumer
from geminga.pipeline.client.topics import Last
from geminga.pipeline.columns.message_id import EARLIEST, LATEST, MessageId, of_message_id
from geminga.pipeline.errors import BadOption, PipelineError
from geminga.pipeline.topics.offset_options import LATEST_TIME, Times, of_topic
from geminga.pipeline.topics.options import Options
from geminga.wire import client_commands

CLOCKS_APART_MS = 60_000
"""Producers set publish times by their own clocks. If these differ by less than this, a range has every
message of its period and, once filtered, no other.
"""
_BEFORE_ALL_MS = 1


@dataclass(frozen=True)
class Published:
    """Bounds of publish times for one topic, in milliseconds since 1970; None: none."""

    from_ms: int | None
    before_ms: int | None
    at_latest: bool = False
    """Whether to begin at the end, which the JVM connector calls time -2."""
    says_nothing: bool = False
    """Whether the options do not say where to begin."""
    seek_from_ms: int | None = None
    seek_before_ms: int | None = None
    """Publish times that bound the positions of those messages, as far as publish times are in order."""
    must_have_message: bool = False
    """Whether it is an error if no message was published at `from_ms` or later."""

    @classmethod
    def of(cls, options: Options, topic: str) -> Published:
        first, last = (_of(times, topic) for times in (options.starting_time_ms, options.ending_time_ms))
        apart_ms = options.publish_times_apart_ms
        return cls(
            None,
            None,
            at_latest=first == LATEST_TIME,
            says_nothing=first is None,
            must_have_message=options.no_later_message_fails and first is not None and first >= 0,
        ).narrowed(
            first if first is not None and first >= 0 else None,
            last if last is not None and last >= 0 else None,
            apart_ms=CLOCKS_APART_MS if apart_ms is None else apart_ms,
        )

    def narrowed(self, from_ms: int | None, before_ms: int | None, *, apart_ms: int) -> Published:
        """Also restricted to these bounds, where publish times may be out of order by `apart_ms`."""
        found = self
        if from_ms is not None:
            found = replace(
                found,
                from_ms=max(from_ms, found.from_ms or 0),
                seek_from_ms=max(from_ms - apart_ms, found.seek_from_ms or 0),
            )
        if before_ms is not None:
            seek_before_ms = before_ms + apart_ms
            if found.before_ms is not None and found.seek_before_ms is not None:
                before_ms = min(before_ms, found.before_ms)
                seek_before_ms = min(seek_before_ms, found.seek_before_ms)
            found = replace(found, before_ms=before_ms, seek_before_ms=seek_before_ms)
        return found

    @property
    def is_empty(self) -> bool:
        """Whether no time is between the bounds."""
        return self.before_ms is not None and self.before_ms <= (self.from_ms or 0)

    def times(self) -> set[int]:
        """The times for which `begin` and `end` need the message id."""
        found = {time for time in (self.seek_from_ms, self.seek_before_ms) if time}
        if self.must_have_message:
            found.add(self.from_ms or 0)
        return set() if self.at_latest else found

    def begin(self, message_ids: MessageIdsByTime, topic: str, last: Last) -> MessageId:
        """A position with no message of the period before it. Raises `PipelineError`."""
        if self.at_latest:
            return LATEST
        if self.must_have_message and (
            last.message_id is None or message_ids.at(topic, self.from_ms or 0) >= last.end
        ):
            raise BadOption(
                f"startingTime: {topic} has no message that was published at {self.from_ms} ms or later; "
                "give an earlier time, or set startingOffsetsByTimestampStrategy=latest to begin at the end"
            )
        return message_ids.at(topic, self.seek_from_ms) if self.seek_from_ms else EARLIEST

    def end(self, message_ids: MessageIdsByTime, topic: str, end: MessageId) -> MessageId:
        """A position with no message of the period at it or after it. Raises `PipelineError`."""
        if self.seek_before_ms is None:
            return end
        message_id = message_ids.at(topic, max(self.seek_before_ms, 0))
        if message_id.entry_id == 0 and message_id <= message_ids.at(topic, _BEFORE_ALL_MS):
            return EARLIEST  # the first entry that there is: nothing has to be read to know it
        return message_id


def _of(times: int | Times | None, topic: str) -> int | None:
    return times if times is None or isinstance(times, int) else of_topic(times, topic)


class MessageIdsByTime:
    """The position of the first message that was published at a time or later, as brokers find it: by binary
    search, so unordered publish times may mislead them. Each topic and time is requested once.
    """

    def __init__(self, brokers: OwningBrokers) -> None:
        self._brokers = brokers
        self._found: dict[tuple[str, int], MessageId] = {}

    def ask(self, asked: Iterable[tuple[str, int]]) -> None:
        """Request many positions at once. Raises `PipelineError`."""
        new = [each for each in asked if each not in self._found]
        for key, answer in persistently(self._brokers.access, new, self._attempt).items():
            if isinstance(answer, PipelineError):
                raise answer
            message_id = EARLIEST
            if answer.HasField("consumer_mark_delete_position"):
                found = of_message_id(answer.consumer_mark_delete_position)
                message_id = (
                    EARLIEST if found.ledger_id < 0 else MessageId(found.ledger_id, found.entry_id + 1, 0)
                )
            self._found[key] = message_id

    def at(self, topic: str, publish_time_ms: int) -> MessageId:
        """Raises `PipelineError`."""
        self.ask([(topic, publish_time_ms)])
        return self._found[topic, publish_time_ms]

    def _attempt(self, waiting: list[tuple[str, int]]) -> dict[tuple[str, int], Answer]:
        prefix = self._brokers.access.reader_name
        readers = {
            key: Subscribing(key[0], _reading(key[0], f"{prefix}-{uuid.uuid4().hex[:16]}")) for key in waiting
        }
        consumers, found = self._brokers.subscribe(readers)
        sought = self._brokers.ask(
            {key: (each.connection, _seeking(each.consumer_id, key[1])) for key, each in consumers.items()}
        )
        found |= {
            key: retryable(key[0], answer)
            for key, answer in sought.items()
            if isinstance(answer, PipelineError)
        }
        for consumer in consumers.values():
            self._brokers.has(consumer)  # no longer: a broker closes the consumer that seeks
        # It keeps the reader's cursor for a while, for the reader to come back.
        again, lost = self._brokers.subscribe({key: readers[key] for key in consumers if key not in found})
        found |= lost
        answers = self._brokers.ask(
            {
                key: (each.connection, OfConsumer(last_message_id, each.consumer_id))
                for key, each in again.items()
            }
        )
        found |= {key: retryable(key[0], answer) for key, answer in answers.items()}
        for consumer in again.values():
            self._brokers.close_consumer(consumer)
        return found


def _reading(topic: str, name: str) -> Callable[[int, int], bytes]:
    return lambda number, consumer_id: subscribe_reader(
        topic, EARLIEST, number, subscription=name, consumer_id=consumer_id
    )


def _seeking(consumer_id: int, publish_time_ms: int) -> Build:
    """The seek is not a request of the consumer, which is closed before the answer comes."""
    return lambda number: client_commands.seek(number, consumer_id, publish_time_ms=publish_time_ms)
