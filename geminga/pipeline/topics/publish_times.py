"""Messages of a time: which part of a topic holds those that were published in it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

from geminga.pipeline.client.connection import Connection
from geminga.pipeline.client.entry_stream import subscribe_reader
from geminga.pipeline.client.lookup import owner_of
from geminga.pipeline.client.topics import last_of
from geminga.pipeline.columns.places import EARLIEST, LATEST, Place, of_message_id
from geminga.pipeline.errors import Access, BadOption
from geminga.pipeline.topics.offset_options import LATEST_TIME, Times, of_topic
from geminga.pipeline.topics.options import Options
from geminga.wire import client_commands

CLOCKS_APART_MS = 60_000
"""Producers set publish times by their own clocks. As long as they differ by less, a range holds every
message that was published in its time and, once filtered, no other.
"""
_CONSUMER_ID = 1
_BEFORE_ALL_MS = 1


@dataclass(frozen=True)
class Published:
    """Bounds of publish times for one topic, in milliseconds since 1970; None: none."""

    from_ms: int | None
    before_ms: int | None
    at_latest: bool = False
    """Begin at the end: what the JVM connector calls time -2."""
    says_nothing: bool = False
    """Nothing was said of where to begin."""
    seek_from_ms: int | None = None
    seek_before_ms: int | None = None
    """Times of places that bound where those messages are, as far as publish times are in order."""
    must_have_message: bool = False
    """Fail if no message was published at `from_ms` or later."""

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
        """To these bounds too, where publish times may be out of order by `apart_ms`."""
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
        """No time is between the bounds."""
        return self.before_ms is not None and self.before_ms <= (self.from_ms or 0)

    def begin(self, access: Access, topic: str) -> Place:
        """No message that was published in the time is before it. Raises `PipelineError`."""
        if self.at_latest:
            return LATEST
        if self.must_have_message:
            self._check_message(access, topic)
        if not self.seek_from_ms:
            return EARLIEST
        return place_at(access, topic, self.seek_from_ms)

    def _check_message(self, access: Access, topic: str) -> None:
        last = last_of(access, topic)
        if last.place is None or place_at(access, topic, self.from_ms or 0) >= last.end:
            raise BadOption(
                f"startingTime: {topic} has no message that was published at {self.from_ms} ms or later; "
                "give an earlier time, or set startingOffsetsByTimestampStrategy=latest to begin at the end"
            )

    def end(self, access: Access, topic: str, end: Place) -> Place:
        """No message that was published in the time is at it or after it. Raises `PipelineError`."""
        if self.seek_before_ms is None:
            return end
        place = place_at(access, topic, max(self.seek_before_ms, 0))
        if place.entry_id == 0 and place <= place_at(access, topic, _BEFORE_ALL_MS):
            return EARLIEST  # the first entry that there is: nothing has to be read to know it
        return place


def _of(times: int | Times | None, topic: str) -> int | None:
    return times if times is None or isinstance(times, int) else of_topic(times, topic)


def place_at(access: Access, topic: str, publish_time_ms: int) -> Place:
    """Where messages published at that time or later begin, as the broker finds it (by halving: publish times
    that are not in order may mislead it). Raises `PipelineError`.
    """
    name = f"{access.reader_name}-{uuid.uuid4().hex[:16]}"
    with owner_of(access, topic) as connection:
        _subscribe(connection, topic, name)
        connection.request(
            lambda number: client_commands.seek(number, _CONSUMER_ID, publish_time_ms=publish_time_ms)
        )
    # the broker has closed the consumer, and keeps the reader's cursor for it to come back
    with owner_of(access, topic) as connection:
        _subscribe(connection, topic, name)
        answer = connection.request(lambda number: client_commands.last_message_id(number, _CONSUMER_ID))
    if not answer.HasField("consumer_mark_delete_position"):
        return EARLIEST
    found = of_message_id(answer.consumer_mark_delete_position)
    return EARLIEST if found.ledger_id < 0 else Place(found.ledger_id, found.entry_id + 1, 0)


def _subscribe(connection: Connection, topic: str, name: str) -> None:
    connection.request(lambda number: subscribe_reader(topic, EARLIEST, number, subscription=name))
