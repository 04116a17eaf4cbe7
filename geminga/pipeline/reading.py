"""Reading a range of one topic: whole entries as the broker sends them, into Arrow batches."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from geminga.clock import RealClock
from geminga.errors import ProtocolError
from geminga.limits import FRAME_PADDING_BYTES, MESSAGE_BYTES_MAX, MIB
from geminga.pipeline.connection import (
    Access,
    BrokerUnreachable,
    PipelineError,
    owner_of,
)
from geminga.pipeline.entries import Entries
from geminga.pipeline.frames import CorruptEntry, FrameBuffer
from geminga.pipeline.places import EARLIEST, Place, of_message_id
from geminga.pipeline.unreadable import entries_of
from geminga.wire import client_commands, encoder
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import unsigned
from geminga.wire.encoder import frame
from geminga.wire.parse import parse_command

PERMITS = 100_000
"""How many messages may be on their way to us."""
TAKE_BYTES = 4 * MIB
"""A buffer of this size is decoded at once."""
RETRY_SECONDS = 20.0
"""How long a broker may be away before reading is given up."""
_CONSUMER_ID = 1
_PAUSE_SECONDS = 0.5
_QUIET_SECONDS = 0.02
"""When nothing comes for so long, what is there is decoded: perhaps the broker waits for permits."""
_CLOCK = RealClock()


class DataLost(PipelineError):
    """Messages that were asked for are no longer there."""


class ConsumerClosed(BrokerUnreachable):
    """The broker closed our consumer: the topic moves or is unloaded. Look it up again."""


def subscribe_reader(topic: str, start: Place, request_id: int, *, subscription: str | None = None) -> bytes:
    """A non-durable subscription that begins with the very entry `start` is in. The topic is not created."""
    command = pb.CommandSubscribe(
        topic=topic,
        subscription=subscription or f"geminga-reader-{uuid.uuid4().hex[:16]}",
        subType=pb.CommandSubscribe.Exclusive,
        consumer_id=_CONSUMER_ID,
        request_id=request_id,
        durable=False,
        start_message_id=pb.MessageIdData(
            ledgerId=unsigned(start.ledger_id), entryId=unsigned(start.entry_id)
        ),
        initialPosition=pb.CommandSubscribe.Earliest,
        force_topic_creation=False,
    )
    return frame(pb.BaseCommand(type=pb.BaseCommand.Type.SUBSCRIBE, subscribe=command))


class EntryStream:
    """The entries of a topic from one place on, as long as somebody takes them. Close it."""

    def __init__(self, access: Access, topic: str, start: Place, *, permits: int = PERMITS) -> None:
        """Raises `PipelineError`."""
        self.topic = topic
        self._connection = owner_of(access, topic)
        message_bytes_max = max(MESSAGE_BYTES_MAX, self._connection.message_bytes_max)
        self.buffer = FrameBuffer(frame_bytes_max=message_bytes_max + FRAME_PADDING_BYTES)
        try:
            name = f"{access.reader_name}-{uuid.uuid4().hex[:16]}"
            self._connection.request(lambda number: subscribe_reader(topic, start, number, subscription=name))
            while not self._connection.at_frame_boundary():
                self._connection.arrived.clear()
                self._connection.receive(1.0)
            answer = self._connection.request(
                lambda number: client_commands.last_message_id(number, _CONSUMER_ID)
            )
            self.last = of_message_id(answer.last_message_id)
            """The last message of the topic; its entry id is -1 if there is none."""
            self.flow(permits)
        except BaseException:
            self.close()
            raise

    def flow(self, permits: int) -> None:
        if permits > 0:
            self._connection.write(client_commands.flow(_CONSUMER_ID, permits))

    def close(self) -> None:
        self._connection.close()

    def receive(self, timeout_s: float) -> bool:
        """Receive once into the buffer; False when nothing came in time.

        Raises `BrokerUnreachable`, `CorruptEntry`.
        """
        sock = self._connection.socket
        try:
            sock.settimeout(timeout_s)
            size = sock.recv_into(self.buffer.room())
        except TimeoutError:
            return False
        except OSError as error:
            raise BrokerUnreachable(f"the connection to {self._connection.url} is lost: {error}") from None
        if size == 0:
            raise BrokerUnreachable(f"{self._connection.url} closed the connection")
        try:
            self.buffer.received(size)
            if self.buffer.others:
                self._obey()
        except ProtocolError as error:
            raise BrokerUnreachable(f"{self._connection.url} does not follow the protocol: {error}") from None
        except CorruptEntry as error:
            raise CorruptEntry(f"{self.topic}: {error}") from None
        return True

    def _obey(self) -> None:
        others, self.buffer.others = self.buffer.others, []
        for body in others:
            size = int.from_bytes(body[:4], "big")
            command = parse_command(body, memoryview(body), 4, 4 + size, len(body))
            if isinstance(command, pb.CommandPing):
                self._connection.write(encoder.pong())
            elif isinstance(command, pb.CommandCloseConsumer):
                raise ConsumerClosed(f"{self.topic}: the broker closed the reader")


@dataclass(frozen=True)
class Range:
    """What to read of one topic or partition: from `start` up to, not including, `end`."""

    topic: str
    start: Place
    end: Place
    strict: bool = False
    """The entry that `start` is in exists, or did: if reading begins with a later one, something was lost."""
    check_previous: bool = False
    """Messages up to `start` were read before: their ledger must still be there, or later ones were lost
    too.
    """
    published_from_ms: int | None = None
    published_before_ms: int | None = None
    """Of the messages of the range only those that were published in this time."""
    loss_allowed: bool = False
    """What is no longer there is left out without a word."""
    acknowledged: tuple[int, int] | None = None
    """Where the mark-delete position of our own subscription is: what is up to there may be gone."""


class EntryReader:
    """Takes the entries of a range, buffer by buffer, and goes on after a broker was away for a while."""

    def __init__(
        self,
        access: Access,
        wanted: Range,
        *,
        poll_timeout_s: float,
        take_bytes: int = TAKE_BYTES,
        permits: int = PERMITS,
    ) -> None:
        self._permits = permits
        self._entry_messages = 1.0
        """In an entry, on average; they decide how soon the permits are used up."""
        self._access = access
        self._wanted = wanted
        self._poll_timeout_s = poll_timeout_s
        self._take_bytes = take_bytes
        self._next = wanted.start.entry
        self._seen_any = False

    def buffers(self) -> Iterator[Entries]:
        """Entries of the range in order; each is valid until the next is asked for.

        Raises `PipelineError`: `BrokerUnreachable` when it is away too long, `DataLost`.
        """
        if self._wanted.start >= self._wanted.end:
            return
        away_since: float | None = None
        while True:
            try:
                for entries in self._connected():
                    away_since = None
                    yield entries
                return
            except BrokerUnreachable as error:
                now = _CLOCK.monotonic_s()
                away_since = now if away_since is None else away_since
                if now - away_since > RETRY_SECONDS:
                    raise BrokerUnreachable(
                        f"{self._wanted.topic}: reading was given up after {RETRY_SECONDS:.0f} s: {error}"
                    ) from None
                threading.Event().wait(_PAUSE_SECONDS)

    def _connected(self) -> Iterator[Entries]:
        wanted = self._wanted
        stream = EntryStream(self._access, wanted.topic, self._begin(), permits=self._permits)
        try:
            if not self._check_end(stream.last):
                return
            buffer = stream.buffer
            waited_since = _CLOCK.monotonic_s()
            while True:
                left = waited_since + self._poll_timeout_s - _CLOCK.monotonic_s()
                came = left > 0 and stream.receive(min(left, _QUIET_SECONDS) if buffer.frames else left)
                if not came and not buffer.frames:
                    raise PipelineError(
                        f"{wanted.topic}: nothing more came within {self._poll_timeout_s:.0f} s "
                        "(pollTimeoutMs); "
                        f"read up to {self._next[0]}:{self._next[1]}, wanted up to {wanted.end}"
                    )
                is_end = buffer.last_position is not None and self._is_end(buffer.last_position)
                if came and not is_end and not self._is_enough(buffer):
                    if buffer.frames:
                        waited_since = _CLOCK.monotonic_s()
                    continue
                waited_since = _CLOCK.monotonic_s()
                entries = entries_of(wanted.topic, buffer.take())
                permits = int(entries.messages.sum())
                self._entry_messages = permits / max(len(entries), 1)
                entries = self._ours(entries)
                if len(entries):
                    yield entries
                if is_end:
                    return
                buffer.settle()
                stream.flow(permits)
        finally:
            stream.close()

    def _is_enough(self, buffer: FrameBuffer) -> bool:
        """Whether to decode what is there now. Messages that compress well use the permits up before they
        fill a buffer.
        """
        return (
            buffer.frame_bytes >= self._take_bytes
            or len(buffer.room()) == 0
            or buffer.frames * self._entry_messages >= self._permits / 2
        )

    def _check_end(self, last: Place) -> bool:
        """Whether there is anything to read. A topic that ends before the range does has lost something."""
        end = Place(last.ledger_id, last.entry_id + 1, 0)
        if end >= self._wanted.end:
            return True
        if not self._wanted.loss_allowed:
            raise DataLost(
                f"{self._wanted.topic} ends at {last}, but messages up to {self._wanted.end} were there when "
                "the query was planned: the topic was deleted (perhaps because nobody used it for a while; a "
                "subscription keeps it) or trimmed. Set failOnDataLoss=false to go on with what there is"
            )
        self._wanted = replace(self._wanted, end=end)
        return last.entry_id >= 0 and self._next < end.entry

    def _begin(self) -> Place:
        ledger_id, entry_id = self._next
        if self._seen_any or (self._wanted.check_previous and entry_id > 0):
            entry_id -= 1  # is there, or was; if it comes, nothing between is missing
        return Place(ledger_id, max(entry_id, 0) if ledger_id >= 0 else -1, 0)

    def _is_end(self, position: tuple[int, int]) -> bool:
        """Whether nothing of the range comes after the entry at `position`."""
        end = self._wanted.end
        following = (position[0], position[1] + 1)
        return following > end.entry or (following == end.entry and end.batch_index == 0)

    def _ours(self, entries: Entries) -> Entries:
        """Without those before what is wanted next and after the end. What comes again counts once."""
        entries = entries.once()
        first = int(entries.ledger_id[0]), int(entries.entry_id[0])
        self._check_begin(first)
        from_ledger, from_entry = self._next
        end = self._wanted.end
        ledger_id, entry_id = entries.ledger_id, entries.entry_id
        early = (ledger_id < from_ledger) | ((ledger_id == from_ledger) & (entry_id < from_entry))
        past = end.entry if end.batch_index == 0 else (end.ledger_id, end.entry_id + 1)
        late = (ledger_id > past[0]) | ((ledger_id == past[0]) & (entry_id >= past[1]))
        self._seen_any = True
        last = int(ledger_id[-1]), int(entry_id[-1]) + 1
        self._next = max(self._next, last)
        if early.any() or late.any():
            return entries.select(np.flatnonzero(~early & ~late))
        return entries

    def _check_begin(self, first: tuple[int, int]) -> None:
        """Of what the broker sends first after (re)connecting. Raises `DataLost`."""
        if self._seen_any or first <= self._next:
            return
        wanted = self._wanted
        if wanted.start == EARLIEST or not (wanted.strict or wanted.check_previous):
            return
        if wanted.acknowledged is not None and first <= (wanted.acknowledged[0], wanted.acknowledged[1] + 1):
            return
        if wanted.strict or first[0] == self._next[0] or self._next[1] > 0:
            raise DataLost(
                f"{wanted.topic}: messages from {wanted.start} on were asked for, but the first that is "
                "left is "
                f"{first[0]}:{first[1]}: the rest was trimmed (retention, TTL, or a cleared backlog). Set "
                "failOnDataLoss=false to go on without them, or start from 'earliest'"
            )
