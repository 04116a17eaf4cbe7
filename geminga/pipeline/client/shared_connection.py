"""One connection to a broker that many consumers share, their requests pipelined."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from geminga.client.session import Answer as Answered
from geminga.client.session import Build
from geminga.clock import RealClock
from geminga.errors import ProtocolError, ServerError
from geminga.limits import FRAME_PADDING_BYTES, MESSAGE_BYTES_MAX, MIB
from geminga.pipeline.client.connection import REQUEST_SECONDS, Connection
from geminga.pipeline.client.frames import CorruptEntry, FrameBuffer
from geminga.pipeline.columns.entries import read_entries
from geminga.pipeline.errors import BrokerUnreachable, PipelineError, Refused
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.parse import parse_command

PIPELINED_MAX = 256
"""Requests on their way on one connection."""
_BUFFER_BYTES = MIB // 4
_LOOK_SECONDS = 0.001
_CLOCK = RealClock()


@dataclass(frozen=True, slots=True)
class OfConsumer:
    """A `Build` of a request that a consumer makes."""

    build: Callable[[int, int], bytes]
    """Makes the command of a request id and the consumer's id."""
    consumer_id: int

    def __call__(self, request_id: int) -> bytes:
        return self.build(request_id, self.consumer_id)


Answer = Any | PipelineError


class EntryFacts(NamedTuple):
    """What is told by the metadata of one entry."""

    ledger_id: int
    entry_id: int
    rows: float
    """Messages that it gives; of a chunk its part of one. A marker counts as one."""
    size_bytes: int
    """Of its payload."""
    publish_time_ms: int


class SharedConnection:
    """Its consumers have ids of their own. Entries that they receive are reduced to their facts. Not for
    several threads; the buffer is bounded by the broker's largest message.
    """

    def __init__(self, connection: Connection) -> None:
        """Takes the connection over. Raises `BrokerUnreachable`."""
        connection.finish_frame()
        self.url = connection.url
        self.closed_consumers: set[int] = set()
        """Consumers that the broker has closed, until `was_closed` reports them."""
        self.is_active: dict[int, bool] = {}
        """Of consumers of Failover subscriptions, as far as the broker has told."""
        self.facts: dict[int, EntryFacts] = {}
        """By consumer, the first entry that it received."""
        self._connection = connection
        largest = max(MESSAGE_BYTES_MAX, connection.message_bytes_max) + FRAME_PADDING_BYTES
        self._buffer = FrameBuffer(_BUFFER_BYTES, frame_bytes_max=largest)
        self._waited: dict[int, Answer | None] = {}
        self._consumers: dict[int, int] = {}
        """Of each request that a consumer made, and that is not answered, the consumer."""
        self._free_consumers: list[int] = []

    def new_consumer_id(self) -> int:
        return self._free_consumers.pop() if self._free_consumers else self._connection.new_consumer_id()

    def was_closed(self, consumer_id: int) -> bool:
        """Whether the broker has closed the consumer. If so, another one has its id from now on: brokers
        bound the ids of a connection, and forget an id only when it is used again.
        """
        if consumer_id not in self.closed_consumers:
            return False
        self.closed_consumers.discard(consumer_id)
        self.is_active.pop(consumer_id, None)
        self._free_consumers.append(consumer_id)
        return True

    def tell(self, data: bytes) -> None:
        """Commands without an answer, or whose answer is of no interest. Raises `BrokerUnreachable`."""
        self._connection.write(data)

    def send(self, builds: Sequence[Build]) -> list[int]:
        """The ids of the requests. Raises `BrokerUnreachable`."""
        asked = [self._connection.session.ask(build) for build in builds]
        ids = [request_id for request_id, _ in asked]
        self._waited.update(dict.fromkeys(ids))
        for request_id, build in zip(ids, builds, strict=True):
            if isinstance(build, OfConsumer):
                self._consumers[request_id] = build.consumer_id
        self._connection.write(b"".join(data for _, data in asked))
        return ids

    def new_request_id(self) -> int:
        """Of a command whose answer is of no interest."""
        return self._connection.session.new_id()

    def collect(self, ids: Sequence[int]) -> list[Answer]:
        """The answers to what was sent; a refusal is one too. Raises `BrokerUnreachable`."""
        self._until(lambda: [request_id for request_id in ids if self._waited[request_id] is None])
        return [self._waited.pop(request_id) for request_id in ids]

    def wait_for_entries(self, consumers: Sequence[int], timeout_s: float) -> None:
        """Until each has received one, or was closed, or the time is over. Raises `BrokerUnreachable`."""
        self._until(lambda: set(consumers) - self.facts.keys() - self.closed_consumers, timeout_s)

    def catch_up(self, timeout_s: float = _LOOK_SECONDS) -> None:
        """See what has come, or comes within that time, without a question. Raises `BrokerUnreachable`."""
        self._receive(timeout_s)

    def close(self) -> None:
        self._connection.close()

    def _until(self, missing: Callable[[], Collection[int]], timeout_s: float | None = None) -> None:
        """Until nothing is missing any more. Without a time of its own it raises `BrokerUnreachable` if
        nothing of it comes for `REQUEST_SECONDS`, whatever else does.
        """
        seconds = REQUEST_SECONDS if timeout_s is None else timeout_s
        until_s = _CLOCK.monotonic_s() + seconds
        count = len(missing())
        while count:
            left_s = until_s - _CLOCK.monotonic_s()
            if left_s <= 0 or not self._receive(left_s):
                if timeout_s is None:
                    raise BrokerUnreachable(f"{self.url} does not answer within {seconds:.0f} s")
                return
            before, count = count, len(missing())
            if timeout_s is None and count < before:
                until_s = _CLOCK.monotonic_s() + seconds

    def _receive(self, timeout_s: float) -> bool:
        """False when nothing came in time."""
        size = self._connection.receive_into(self._buffer.room(), timeout_s)
        if size is None:
            return False
        try:
            self._buffer.received(size)
            self._keep_facts()
            self._hear_others()
        except (ProtocolError, CorruptEntry) as error:
            raise BrokerUnreachable(f"{self.url} does not follow the protocol: {error}") from None
        return True

    def _keep_facts(self) -> None:
        if self._buffer.frames:
            taken = self._buffer.take()
            entries = read_entries(*taken)
            for row, (at, end) in enumerate(taken.bounds[:, :2].tolist()):
                consumer = pb.CommandMessage.FromString(taken.data[at:end].tobytes()).consumer_id
                chunks = int(entries.chunks[row]) if entries.chunk_id[row] >= 0 else 1
                found = EntryFacts(
                    int(entries.ledger_id[row]),
                    int(entries.entry_id[row]),
                    int(entries.messages[row]) / chunks,
                    int(entries.payload_end[row] - entries.payload_at[row]),
                    int(entries.publish_time_ms[row]),
                )
                self.facts.setdefault(consumer, found)
        self._buffer.settle()

    def _hear_others(self) -> None:
        for body in self._buffer.take_others():
            command = parse_command(body, memoryview(body), 4, 4 + int.from_bytes(body[:4], "big"), len(body))
            if isinstance(command, pb.CommandCloseConsumer):
                self.closed_consumers.add(command.consumer_id)
                self._refuse(command.consumer_id)
            elif isinstance(command, pb.CommandActiveConsumerChange):
                self.is_active[command.consumer_id] = command.is_active
            elif isinstance(heard := self._connection.session.hear(command), Answered):
                refusal = heard.refusal
                self._waited[heard.request_id] = heard.command if refusal is None else Refused(*refusal)
                self._consumers.pop(heard.request_id, None)
            elif heard:
                self._connection.write(heard)

    def _refuse(self, consumer_id: int) -> None:
        """What a consumer has asked when the broker closes it: Pulsar never answers an ACK of a consumer that
        it does not have.
        """
        for request_id in [asked for asked, consumer in self._consumers.items() if consumer == consumer_id]:
            del self._consumers[request_id]
            self._connection.session.forget(request_id)
            self._waited[request_id] = Refused(
                ServerError.CONSUMER_NOT_FOUND, f"consumer {consumer_id} was closed by the broker"
            )


def ask_all(asked: Mapping[SharedConnection, Sequence[Build]]) -> dict[SharedConnection, list[Answer]]:
    """Of each connection the answers to its requests, in order. All brokers work at once, on as many
    requests as may be on their way. A connection that is lost answers the rest with `BrokerUnreachable`.
    """
    found: dict[SharedConnection, list[Answer]] = {connection: [] for connection in asked}
    lost: set[SharedConnection] = set()
    waiting = {connection: deque(builds) for connection, builds in asked.items() if builds}
    while waiting:
        sent = []
        for connection, builds in waiting.items():
            some = [builds.popleft() for _ in range(min(PIPELINED_MAX, len(builds)))]
            try:
                if connection in lost:
                    raise BrokerUnreachable(f"the connection to {connection.url} is lost")
                sent.append((connection, some, connection.send(some)))
            except BrokerUnreachable as error:
                lost.add(connection)
                found[connection] += [error] * len(some)
        for connection, some, ids in sent:
            try:
                found[connection] += connection.collect(ids)
            except BrokerUnreachable as error:
                lost.add(connection)
                found[connection] += [error] * len(some)
        waiting = {connection: builds for connection, builds in waiting.items() if builds}
    return found
