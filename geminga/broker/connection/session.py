"""One client's session: the commands that it may send now, and the part of the broker that answers each.

The session is plain code on top of the decoder. SEND, ACK and FLOW are served at once, without a task or an
await. A request that has to wait for a disk or a topic gets a task of the connection's nursery.
"""

from __future__ import annotations

import contextlib
import enum
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import trio
from msgspec import Struct

from geminga import limits
from geminga.broker.flow.slices import Pace
from geminga.broker.topic.stamper import Stamper
from geminga.errors import GemingaError, ProtocolError, ServerError
from geminga.wire import encoder
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import Ack, Flow, Send, Sends, UnknownCommand, request_id_of
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
    """Only CONNECT is accepted."""
    READY = "ready"
    CLOSING = "closing"


# Pulsar's `ServerCnx` closes a connection that sends a second CONNECT, or anything else before its first.
# PING is the exception there as well: clients may send it at any time.
READY_ONLY = frozenset({State.READY})
ALLOWED_IN: dict[type, frozenset[State]] = {
    pb.CommandConnect: frozenset({State.NEW}),
    pb.CommandPing: frozenset({State.NEW, State.READY}),
}
"""The states in which a command is accepted, if other than `READY` alone."""


def _name(kind: type, command: Any) -> str:
    return f"command type {command.type}" if kind is UnknownCommand else kind.__name__


class Publisher(Struct, frozen=True):
    """A producer of this connection, and its topic."""

    topic: Topic
    producer: Producer


class Attached(NamedTuple):
    """A consumer of this connection, its subscription and topic."""

    topic: Topic
    subscription: Subscription
    consumer: Consumer


class Session:
    """The state of one connection."""

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
        # Handed in, as the handlers import this module: a table here would be a circle.
        self._handlers = handlers
        # Each entry has had its stamp from the first release on: expiry by the broker's time can be computed
        # from what is on disk. In front, so that the client's bytes and their checksum stay as they are. The
        # stamp has the time of receipt: those of several connections may follow each other a few ms late.
        frame_bytes_max = rooms.settings.message_bytes_max + limits.FRAME_PADDING_BYTES
        self.decoder = Decoder(frame_bytes_max, prefix=Stamper(rooms.clock).now)
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
        """Watches of topic names, by the client's watcher id."""
        self.opening: dict[tuple[str, int], trio.CancelScope] = {}
        """Producers and consumers that are being opened: ("producer" | "consumer", id)."""
        self._metadata_bytes: dict[tuple[str, int], int] = {}
        """The part of `rooms.client_metadata` that the opening and attached producers and consumers take."""
        # A GET_SCHEMA has forty bytes, its answer up to half a megabyte. Before this lock all requests of a
        # chunk were answered at once: four connections that sent 15 KB each and did not read took 1 GB.
        self.large_answers = trio.Lock()
        """Held by a task that writes a large answer, which waits for the outbox first."""
        self._ping_unanswered = False
        self._is_held_back = False
        """Whether the socket is not read because the disk, or the client's own reading, has to catch up."""
        self.throttled_until_s = 0.0
        """The client has exceeded a rate limit and is not read before this time (monotonic)."""
        # One flag, not a line for each error: a client decides how many errors there are.
        self._warned = False

    def begin(self, *, protocol_version: int, client_version: str, wants_broker_metadata: bool) -> None:
        """Accept the client's CONNECT: from now on it may send any command."""
        self.protocol_version = protocol_version
        self.client_version = client_version
        self.wants_broker_metadata = wants_broker_metadata
        self.state = State.READY
        self.connected.set()

    def throttle(self, until_s: float) -> None:
        """Do not read the client before then (monotonic). All producers of the connection wait, because
        their SENDs share one stream of bytes.
        """
        # The latest time counts: the limits of the topic and of the broker both call this for the same SEND.
        self.throttled_until_s = max(self.throttled_until_s, until_s)

    def throttled_for_s(self) -> float:
        """How long not to read the client, from now. Call it once: the caller then has to wait."""
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
        """The client has sent something: any byte answers a PING."""
        self._ping_unanswered = False

    def ping(self) -> None:
        """Send a PING. The client has until the next one to send anything."""
        self._ping_unanswered = True
        self.outbox.write(encoder.ping())

    def is_silent(self) -> bool:
        """Whether the last PING is unanswered although an answer would have been read."""
        if not self._ping_unanswered:
            return False
        # While the socket is not read, its PONG is not read either, so silence means nothing (Pulsar's check
        # asks `isAutoRead` for the same reason). Except if it is not read because the client leaves its own
        # answers unread: then it has stopped, and may be gone.
        return not self._is_held_back or self.outbox.is_behind()

    def serve(self, commands: Iterable[Any]) -> None:
        """Serve the decoder's commands in order. After a `ProtocolError` the connection must be closed."""
        # A chain of comparisons by frequency, not the table of handlers: these are nearly all commands,
        # and none of them may cost a task or a dictionary lookup of a handler.
        for command in commands:
            kind = type(command)
            if kind is Sends:
                self._sends(command)
            elif kind is Send:
                self._send(command)
            elif kind is Ack:
                self._ack(command)
            elif kind is Flow:
                self._flow(command)
            else:
                self._request(kind, command)

    # -- the hot ones ----------------------------------------------------------------------------------------

    def _sends(self, sends: Sends) -> None:
        publisher = self._publisher(sends.producer_id)
        if not publisher.producer.closed:
            publisher.topic.publishing.publish_run(publisher.producer, sends)

    def _send(self, send: Send) -> None:
        publisher = self._publisher(send.producer_id)
        if not publisher.producer.closed:
            publisher.topic.publishing.publish(publisher.producer, send)

    def _publisher(self, producer_id: int) -> Publisher:
        publisher = self.producers.get(producer_id)
        # An unknown id ends the connection, since no honest client gets here: it sends only after
        # PRODUCER_SUCCESS. It stays quiet about a closed producer, whose SENDs were on their way when it
        # was closed: the client sends them again after the next lookup.
        if publisher is None:
            raise ProtocolError(f"SEND for producer {producer_id}, which this connection does not have")
        return publisher

    def _ack(self, ack: Ack) -> None:
        attached = self.consumers.get(ack.consumer_id)
        # An unload closes consumers and the client hears of it later. Acknowledgements that come in between
        # were once answered with success and had no effect, so the client believed that they count.
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
            # An ACK without a request id has no answer in the protocol: that is the Java client's default
            # (`isAckReceiptEnabled(false)`). It never learns of the refusal, so the log has to say it.
            if ack.request_id is None:
                self.warn(f"ack refused: {error}")
            else:
                self.outbox.write(
                    encoder.ack_response(ack.consumer_id, ack.request_id, error.server_error, str(error))
                )
            return
        if ack.request_id is not None:
            self.rooms.coalescing.asked()
            self.outbox.write(encoder.ack_response(ack.consumer_id, ack.request_id))

    def _refuse_ack(self, consumer_id: int, request_id: int) -> None:
        self.outbox.write(
            encoder.ack_response(
                consumer_id, request_id, ServerError.CONSUMER_NOT_FOUND, f"Consumer {consumer_id} is not here"
            )
        )

    def _flow(self, flow: Flow) -> None:
        # Pulsar closes the connection too: `Consumer.flowPermits` fails if the number is not positive.
        if not 0 < flow.permits <= limits.PERMITS_MAX or self.state is State.NEW:
            raise ProtocolError(f"FLOW of {flow.permits} permits while the connection is {self.state.value}")
        attached = self.consumers.get(flow.consumer_id)
        # FLOW has no answer, and one for a consumer that was closed meanwhile is no fault of the client.
        if attached is not None:
            # A consumer without a queue of its own asks for each message, and waits for it.
            if attached.consumer.permits <= 0:
                self.rooms.coalescing.asked()
            attached.subscription.consumers.flow(attached.consumer, flow.permits)

    # -- requests --------------------------------------------------------------------------------------------

    def _request(self, kind: type, command: Any) -> None:
        handler = self._handlers.get(kind)
        if handler is None:
            raise ProtocolError(f"a client may not send {_name(kind, command)}")
        if self.state not in ALLOWED_IN.get(kind, READY_ONLY):
            raise ProtocolError(f"{kind.__name__} while the connection is {self.state.value}")
        if request_id_of(command) is not None:
            self.rooms.coalescing.asked()
        try:
            waiting = handler(self, command)
        except ProtocolError:
            raise  # ends the connection: what follows such a command cannot be trusted
        except GemingaError as error:
            self._answer(command, error.server_error, str(error))
        else:
            # Requests that need no disk are answered already. The others get a task, so that one slow topic
            # does not hold up the connection; clients match answers by request id, not by order.
            if waiting is not None:
                self.requests_open += 1
                self.nursery.start_soon(self._finish, command, waiting)

    async def _finish(self, command: Any, waiting: Awaitable[None]) -> None:
        """The connection boundary of requests: no error leaves this method. The client gets an error as the
        answer to this request, and keeps its connection.
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

    def count_open(self, more: int) -> None:
        """A request that is worked on in slices counts as one for each: the memory of its rows is bounded by
        what waits.
        """
        self.requests_open += more
        self._request_ended.set()

    async def wait_requests_below(self, limit: int) -> None:
        """Return once fewer than `limit` requests wait for their answer: nearly always at once."""
        while self.requests_open >= limit:
            self._request_ended = trio.Event()
            await self._request_ended.wait()

    def _answer(self, command: Any, code: ServerError, text: str) -> None:
        request_id = request_id_of(command)
        self.note("%s refused with %s: %r", type(command).__name__, code.name, text)
        if request_id is not None:
            self.outbox.write(encoder.error(request_id, code, text))
        else:
            self.warn(f"{type(command).__name__} refused: {text}")

    def note(self, text: str, *arguments: object) -> None:
        """Log an action of this client at level debug. Names that a client chose are formatted with %r,
        because they may have line breaks.
        """
        log.debug("%s: " + text, self.address, *arguments)

    def warn(self, text: str) -> None:
        """Log an error that has no answer in the protocol, once, so that no client can flood the log."""
        if not self._warned:
            self._warned = True
            log.warning("%s: %s (said once for this connection)", self.address, text)

    def keep_metadata(self, kind: str, number: int, name: str, pairs: Iterable[Pair]) -> None:
        """Count the name and metadata of a producer or consumer until `drop_metadata`. Raises as
        `ClientMetadata.take`.
        """
        # A client whose producer or consumer was closed by an unload attaches again with the same id, and the
        # earlier count is still here.
        self.drop_metadata(kind, number)
        self._metadata_bytes[kind, number] = self.rooms.client_metadata.take(kind, name, pairs)

    def drop_metadata(self, kind: str, number: int) -> None:
        """The producer or consumer has gone, or was not created. May be repeated."""
        self.rooms.client_metadata.give(self._metadata_bytes.pop((kind, number), 0))

    def end(self) -> None:
        """The connection has gone. Requests under way are cancelled after this; one that has just attached
        finds `outbox.closed`, and undoes it. `leave` is still to be called.
        """
        self.state = State.CLOSING
        # Also: nothing is dispatched to a closed outbox, and a client that reconnects by the same name takes
        # the place of one that has not left yet.
        self.outbox.refuse()
        self.note(
            "disconnected; %d producers and %d consumers leave", len(self.producers), len(self.consumers)
        )

    async def leave(self) -> None:
        """The producers and consumers leave their topics, in slices. Not to be cancelled."""
        pace = Pace()
        while self.producers:
            _, publisher = self.producers.popitem()
            publisher.topic.producers.leave(publisher.producer)
            await pace.row()
        while self.consumers:
            _, attached = self.consumers.popitem()
            attached.subscription.remove_consumer(attached.consumer)
            await pace.row()
        while self.watches:
            _, watch = self.watches.popitem()
            watch.end()
            await pace.row()
        for kind, number in tuple(self._metadata_bytes):
            self.drop_metadata(kind, number)
            await pace.row()
