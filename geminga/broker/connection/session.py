"""One client's session: which commands it may send now, and who answers each.

The session is plain code on top of the decoder. SEND, ACK and FLOW are served at once, without a task or an
await; a request that has to wait for a disk or a topic gets a task of the connection's nursery.
"""

from __future__ import annotations

import contextlib
import enum
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from geminga import limits
from geminga.errors import GemingaError, ProtocolError, ServerError
from geminga.wire import encoder
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import Ack, Flow, Send, UnknownCommand, request_id_of
from geminga.wire.decoder import Decoder

if TYPE_CHECKING:
    from geminga.broker.connection.topic_list_watch import TopicListWatch
    from geminga.broker.dispatch.consumer import Consumer
    from geminga.broker.flow.client_metadata import Pair
    from geminga.broker.flow.outbox import Outbox
    from geminga.broker.subscription.subscription import Subscription
    from geminga.broker.topic.producer import Producer
    from geminga.broker.topic.rooms import Rooms
    from geminga.broker.topic.topic import Topic
    from geminga.broker.topic.topics import Topics

log = logging.getLogger("geminga.broker")

Handler = Callable[["Session", Any], Awaitable[None] | None]


class State(enum.Enum):
    NEW = "new"
    """Nothing but CONNECT may come."""
    READY = "ready"
    CLOSING = "closing"


READY_ONLY = frozenset({State.READY})
ALLOWED_IN: dict[type, frozenset[State]] = {
    pb.CommandConnect: frozenset({State.NEW}),
    pb.CommandPing: frozenset({State.NEW, State.READY}),
}
"""When a command may come, where that is not simply once the connection is ready."""


def _name(kind: type, command: Any) -> str:
    return f"command type {command.type}" if kind is UnknownCommand else kind.__name__


@dataclass(slots=True, frozen=True)
class Publisher:
    """A producer of this connection and where it belongs."""

    topic: Topic
    producer: Producer


class Attached(NamedTuple):
    """A consumer of this connection and where it belongs."""

    topic: Topic
    subscription: Subscription
    consumer: Consumer


class Session:
    """What the broker knows of one connection."""

    def __init__(
        self,
        handlers: dict[type, Handler],
        outbox: Outbox,
        topics: Topics,
        rooms: Rooms,
        nursery: trio.Nursery,
        *,
        address: str,
        service_url: str,
        producer_names: Callable[[], str],
    ) -> None:
        self._handlers = handlers
        self.decoder = Decoder(rooms.settings.message_bytes_max + limits.FRAME_PADDING_BYTES)
        self.outbox = outbox
        self.topics = topics
        self.rooms = rooms
        self.nursery = nursery
        self.address = address
        self.service_url = service_url
        self.producer_names = producer_names
        self.state = State.NEW
        self.connected = trio.Event()
        self.protocol_version = 0
        self.client_version = ""
        self.wants_broker_metadata = False
        self.requests_open = 0
        self._request_ended = trio.Event()
        self.producers: dict[int, Publisher] = {}
        self.consumers: dict[int, Attached] = {}
        self.watches: dict[int, TopicListWatch] = {}
        """Of topic names, by the client's watcher id."""
        self.opening: dict[tuple[str, int], trio.CancelScope] = {}
        """Producers and consumers that are being made: ("producer" | "consumer", id)."""
        self._metadata_bytes: dict[tuple[str, int], int] = {}
        """What the names and metadata of those, and of those that are made, take of `rooms.client_metadata`.
        """
        self.large_answers = trio.Lock()
        """Held by whoever writes an answer that may be large, so that they queue up one at a time."""
        self._ping_unanswered = False
        self._is_held_back = False
        """The socket is not read now: the disk or the client's own unread answers have to catch up."""
        self.throttled_until_s = 0.0
        """It has published more than a rate limit allows and is not read before then (monotonic)."""
        self._warned = False

    def begin(self, *, protocol_version: int, client_version: str, wants_broker_metadata: bool) -> None:
        """Accept the client's CONNECT: from now on it may send any command."""
        self.protocol_version = protocol_version
        self.client_version = client_version
        self.wants_broker_metadata = wants_broker_metadata
        self.state = State.READY
        self.connected.set()

    def throttle(self, until_s: float) -> None:
        self.throttled_until_s = max(self.throttled_until_s, until_s)

    def throttled_for_s(self) -> float:
        """How long it is not to be read, as of now; asking takes note of it."""
        left_s = self.throttled_until_s - self.rooms.clock.monotonic_s()
        self.throttled_until_s = 0.0
        return left_s

    @contextlib.contextmanager
    def held_back(self) -> Iterator[None]:
        """Do not read the socket inside this context."""
        self._is_held_back = True
        try:
            yield
        finally:
            self._is_held_back = False
            self.heard()

    # -- keep-alive ------------------------------------------------------------------------------------------

    def heard(self) -> None:
        """Note that the client has sent something: any byte answers a PING."""
        self._ping_unanswered = False

    def ping(self) -> None:
        """Send a PING. The client has until the next one to send anything."""
        self._ping_unanswered = True
        self.outbox.write(encoder.ping())

    def is_silent(self) -> bool:
        """True if the last PING is unanswered and an answer would have been read."""
        if not self._ping_unanswered:
            return False
        # While the socket is not read, its PONG is not read either, so silence means nothing. Except if the
        # reason is that the client leaves its own answers unread: then it has stopped, and may be gone.
        return not self._is_held_back or self.outbox.is_behind()

    def serve(self, commands: Iterable[Any]) -> None:
        """Serve what the decoder found, in order. Raises `ProtocolError`; then the connection must be
        closed.
        """
        for command in commands:
            kind = type(command)
            if kind is Send:
                self._send(command)
            elif kind is Ack:
                self._ack(command)
            elif kind is Flow:
                self._flow(command)
            else:
                self._request(kind, command)

    # -- the hot three ---------------------------------------------------------------------------------------

    def _send(self, send: Send) -> None:
        publisher = self.producers.get(send.producer_id)
        if publisher is None:
            raise ProtocolError(f"SEND for producer {send.producer_id}, which this connection does not have")
        producer = publisher.producer
        if not producer.closed:
            publisher.topic.publishing.publish(producer, send)

    def _ack(self, ack: Ack) -> None:
        attached = self.consumers.get(ack.consumer_id)
        if attached is None or attached.consumer.closed:
            if self.state is State.NEW:
                raise ProtocolError("ACK while the connection is new")
            if ack.request_id is not None:
                self._refuse_ack(ack.consumer_id, ack.request_id)
            return
        subscription, consumer = attached.subscription, attached.consumer
        try:
            if ack.cumulative:
                subscription.acks.acknowledge_cumulative(consumer, ack.positions[-1])
            else:
                subscription.acks.acknowledge(consumer, ack.positions)
        except GemingaError as error:
            if ack.request_id is None:
                self._warn(f"ack refused: {error}")
            else:
                self.outbox.write(
                    encoder.ack_response(ack.consumer_id, ack.request_id, error.server_error, str(error))
                )
            return
        if ack.request_id is not None:
            self.outbox.write(encoder.ack_response(ack.consumer_id, ack.request_id))

    def _refuse_ack(self, consumer_id: int, request_id: int) -> None:
        self.outbox.write(
            encoder.ack_response(
                consumer_id, request_id, ServerError.CONSUMER_NOT_FOUND, f"Consumer {consumer_id} is not here"
            )
        )

    def _flow(self, flow: Flow) -> None:
        if not 0 < flow.permits <= limits.PERMITS_MAX or self.state is State.NEW:
            raise ProtocolError(f"FLOW of {flow.permits} permits while the connection is {self.state.value}")
        attached = self.consumers.get(flow.consumer_id)
        if attached is not None:
            attached.subscription.consumers.flow(attached.consumer, flow.permits)

    # -- requests --------------------------------------------------------------------------------------------

    def _request(self, kind: type, command: Any) -> None:
        handler = self._handlers.get(kind)
        if handler is None:
            raise ProtocolError(f"{_name(kind, command)} is nothing that a client sends")
        if self.state not in ALLOWED_IN.get(kind, READY_ONLY):
            raise ProtocolError(f"{kind.__name__} while the connection is {self.state.value}")
        try:
            waiting = handler(self, command)
        except ProtocolError:
            raise
        except GemingaError as error:
            self._answer(command, error.server_error, str(error))
        else:
            if waiting is not None:
                self.requests_open += 1
                self.nursery.start_soon(self._finish, command, waiting)

    async def _finish(self, command: Any, waiting: Awaitable[None]) -> None:
        """The connection boundary of requests: nothing comes out of here. Whatever goes wrong is told to the
        sender and to no one else.
        """
        try:
            await waiting
        except GemingaError as error:
            self._answer(command, error.server_error, str(error))
        except Exception as error:
            log.exception("%s: %s failed; this is a bug in Geminga", self.address, type(command).__name__)
            self._answer(command, ServerError.UNKNOWN, f"internal error: {error!r}")
        finally:
            self.requests_open -= 1
            self._request_ended.set()

    async def wait_requests_below(self, limit: int) -> None:
        """Return once fewer than `limit` requests wait for their answer: at once, nearly always."""
        while self.requests_open >= limit:
            self._request_ended = trio.Event()
            await self._request_ended.wait()

    def _answer(self, command: Any, code: ServerError, text: str) -> None:
        request_id = request_id_of(command)
        if request_id is not None:
            self.outbox.write(encoder.error(request_id, code, text))
        else:
            self._warn(f"{type(command).__name__} refused: {text}")

    def _warn(self, text: str) -> None:
        """Log what this client did wrong and cannot be told: once, so that no client can flood the log."""
        if not self._warned:
            self._warned = True
            log.warning("%s: %s (said once for this connection)", self.address, text)

    def keep_metadata(self, kind: str, number: int, name: str, pairs: Iterable[Pair]) -> None:
        """Count what a producer or consumer says of itself, until `drop_metadata`. Raises as
        `ClientMetadata.take`.
        """
        self.drop_metadata(kind, number)
        self._metadata_bytes[kind, number] = self.rooms.client_metadata.take(kind, name, pairs)

    def drop_metadata(self, kind: str, number: int) -> None:
        """The producer or consumer is gone, or was not made. May be repeated."""
        self.rooms.client_metadata.give(self._metadata_bytes.pop((kind, number), 0))

    def close(self) -> None:
        """The connection is gone: its producers and consumers leave their topics."""
        self.state = State.CLOSING
        for kind, number in tuple(self._metadata_bytes):
            self.drop_metadata(kind, number)
        for publisher in self.producers.values():
            publisher.topic.producers.leave(publisher.producer)
        for attached in self.consumers.values():
            attached.subscription.remove_consumer(attached.consumer)
        for watch in self.watches.values():
            watch.end()
        self.producers.clear()
        self.consumers.clear()
        self.watches.clear()
