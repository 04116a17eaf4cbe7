"""One connection of our own small client to a broker: requests and their answers, receipts, deliveries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol
from urllib.parse import urlsplit

import trio

from geminga import __version__
from geminga.cli.client.addresses import start_one
from geminga.cli.client.errors import ClientError, ConnectionLost, Refused
from geminga.client.session import CONNECT_ID, Answer, Session
from geminga.errors import ProtocolError
from geminga.limits import HANDSHAKE_SECONDS
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.decoder import BadFrame, Decoder, Delivery

RECEIVE_BYTES = 256 * 1024
UNSENT_BYTES_MAX = 1024 * 1024
"""Above this `wait_room` waits."""
DEFAULT_PORT = 6650


class Receiver(Protocol):
    """A producer or consumer on a connection."""

    def on_command(self, command: Any) -> None: ...


class _Reply:
    __slots__ = ("done", "error", "message")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.message: Any = None
        self.error: ClientError | None = None


class Connection:
    """Open it with `open`; `run` must be running. Not thread safe; everything but `request` is plain
    calls.
    """

    def __init__(self, stream: trio.SocketStream, address: str) -> None:
        self.address = address
        self._stream = stream
        self._decoder = Decoder()
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._has_unsent = trio.Event()
        self._room = trio.lowlevel.ParkingLot()
        self._session = Session()
        self._connected = _Reply()
        self._waiting: dict[int, _Reply] = {CONNECT_ID: self._connected}
        self._producers: dict[int, Receiver] = {}
        self._consumers: dict[int, Receiver] = {}
        self.lost: ConnectionLost | None = None

    @property
    def message_bytes_max(self) -> int:
        """The maximum that the broker announced."""
        return self._session.message_bytes_max

    @classmethod
    async def open(cls, url: str) -> Connection:
        """Connect the socket. Raises `ClientError`, with a text for the user, if no broker answers."""
        host, port = parse_url(url)
        try:
            with trio.fail_after(HANDSHAKE_SECONDS):
                stream = await trio.open_tcp_stream(host, port)
        except (OSError, trio.TooSlowError) as error:
            reason = str(error) or "no answer"
            if "attempts to connect" in reason:
                reason = f"nothing listens there; {start_one()}"
            raise ClientError(f"cannot connect to {url}: {reason}") from None
        return cls(stream, f"{host}:{port}")

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Introduce ourselves, then read and write until cancelled or the broker closes."""
        async with self._stream, trio.open_nursery() as nursery:
            nursery.start_soon(self._write_forever)
            nursery.start_soon(self._read_forever, nursery.cancel_scope)
            self.write(self._session.connect(f"geminga-cli-{__version__}"))
            with trio.move_on_after(HANDSHAKE_SECONDS):
                await self._connected.done.wait()
            if self._connected.message is None:
                raise self._connected.error or ConnectionLost(f"{self.address}: no answer to CONNECT")
            task_status.started()

    # -- writing ---------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Queue bytes; order is kept."""
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        self._has_unsent.set()

    async def wait_room(self) -> None:
        """Return once less than `UNSENT_BYTES_MAX` wait to be sent."""
        while self._unsent_bytes >= UNSENT_BYTES_MAX and self.lost is None:
            await self._room.park()
        if self.lost is not None:
            raise self.lost

    async def request(self, build: Callable[[int], bytes]) -> Any:
        """Send what `build` makes of a new request id; the broker's answer. Raises `Refused`."""
        if self.lost is not None:
            raise self.lost
        request_id, data = self._session.ask(build)
        reply = self._waiting[request_id] = _Reply()
        self.write(data)
        try:
            await reply.done.wait()
        finally:
            self._waiting.pop(request_id, None)
            self._session.forget(request_id)
        if reply.error is not None:
            raise reply.error
        return reply.message

    async def _write_forever(self) -> None:
        while True:
            await self._has_unsent.wait()
            self._has_unsent = trio.Event()
            data = b"".join(self._unsent)
            self._unsent.clear()
            self._unsent_bytes = 0
            self._room.unpark_all()
            try:
                await self._stream.send_all(data)
            except trio.BrokenResourceError:
                return  # the reader sees the end too, and says so

    # -- reading ---------------------------------------------------------------------------------------------

    def attach(self, producer: Receiver | None = None, consumer: Receiver | None = None) -> int:
        """A new id, under which the receiver hears of what the broker sends to it."""
        number = self._session.new_id()
        if producer is not None:
            self._producers[number] = producer
        if consumer is not None:
            self._consumers[number] = consumer
        return number

    async def _read_forever(self, scope: trio.CancelScope) -> None:
        reason = "closed by the broker"
        try:
            while data := await self._stream.receive_some(RECEIVE_BYTES):
                if not self._session.is_connected and data.startswith(b"HTTP/"):
                    reason = f"this looks like an HTTP port; clients use another one (usually {DEFAULT_PORT})"
                    break
                for command in self._decoder.feed(bytes(data)):
                    self._dispatch(command)
        except BadFrame as error:
            reason = f"the broker does not follow the protocol: {error}"
        except trio.BrokenResourceError:
            reason = "connection reset"
        self._lose(ConnectionLost(f"{self.address}: {reason}"))
        scope.cancel()

    def _lose(self, error: ConnectionLost) -> None:
        self.lost = error
        for reply in (*self._waiting.values(), self._connected):
            if not reply.done.is_set():
                reply.error = error
                reply.done.set()
        for receiver in (*self._producers.values(), *self._consumers.values()):
            receiver.on_command(error)
        self._room.unpark_all()

    def _dispatch(self, command: Any) -> None:
        if isinstance(command, Delivery):
            self._tell(self._consumers, command.message.consumer_id, command)
        elif isinstance(command, pb.CommandSendReceipt | pb.CommandSendError | pb.CommandCloseProducer):
            self._tell(self._producers, command.producer_id, command)
        elif isinstance(
            command,
            pb.CommandCloseConsumer | pb.CommandReachedEndOfTopic | pb.CommandActiveConsumerChange,
        ):
            self._tell(self._consumers, command.consumer_id, command)
        else:
            heard = self._session.hear(command)
            if isinstance(heard, Answer):
                self._answer(heard)
            elif heard:
                self.write(heard)

    def _tell(self, receivers: dict[int, Receiver], number: int, command: Any) -> None:
        receiver = receivers.get(number)
        if receiver is not None:
            receiver.on_command(command)

    def _answer(self, answer: Answer) -> None:
        reply = self._waiting[answer.request_id]
        if answer.refusal is not None:
            reply.error = Refused(*answer.refusal)
        else:
            reply.message = answer.command
        reply.done.set()


def parse_url(url: str) -> tuple[str, int]:
    """Host and port of `pulsar://host:port`. Raises `ClientError`."""
    try:
        parts = urlsplit(url if "://" in url else f"pulsar://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        raise ClientError(f"{url}: not an address; expected pulsar://HOST:PORT") from None
    if parts.scheme != "pulsar" or not host:
        raise ClientError(f"{url}: only pulsar://HOST:PORT and http://HOST:PORT are supported")
    return host, port or DEFAULT_PORT


assert issubclass(BadFrame, ProtocolError)
