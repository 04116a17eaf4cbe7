"""The entries of a topic as the broker sends them, over one connection."""

from __future__ import annotations

import math
import uuid

from geminga.clock import RealClock
from geminga.errors import ProtocolError
from geminga.limits import FRAME_PADDING_BYTES, MESSAGE_BYTES_MAX, MIB
from geminga.pipeline.client.connection import Connection
from geminga.pipeline.client.frames import CorruptEntry, FrameBuffer
from geminga.pipeline.client.kept_connections import KEPT
from geminga.pipeline.client.lookup import owner_of
from geminga.pipeline.columns.message_id import MessageId, of_message_id
from geminga.pipeline.errors import Access, BrokerUnreachable, PipelineError, Refused
from geminga.wire import client_commands, encoder
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.parse import parse_command

PERMITS = 100_000
"""How many messages may be on their way to us."""
LEFT_BYTES_MAX = MIB // 8
"""What is on its way to a reader that is done is received up to here, to keep its connection."""
LEAVE_SECONDS_MAX = 1.0
_CONSUMER_ID = 1
_CLOCK = RealClock()


class ConsumerClosed(BrokerUnreachable):
    """The broker closed our consumer: the topic moves or is unloaded. Look it up again."""


def subscribe_reader(
    topic: str,
    start: MessageId,
    request_id: int,
    *,
    subscription: str | None = None,
    consumer_id: int = _CONSUMER_ID,
) -> bytes:
    """A non-durable subscription that begins with the very entry `start` is in. The topic is not created."""
    return client_commands.subscribe(
        request_id,
        consumer_id,
        topic,
        subscription or f"geminga-reader-{uuid.uuid4().hex[:16]}",
        earliest=True,
        durable=False,
        start=(start.ledger_id, start.entry_id),
        create_topic=False,
    )


class EntryStream:
    """The entries of a topic from a position on; permits bound how many are on their way. Close it."""

    def __init__(
        self,
        access: Access,
        topic: str,
        start: MessageId,
        *,
        permits: int = PERMITS,
        until_s: float = math.inf,
    ) -> None:
        """Raises `PipelineError`, at the latest then (of the monotonic clock)."""
        self.topic = topic
        self._access = access
        kept = KEPT.take(access, topic)
        if kept is not None:
            try:
                self._begin(kept, start, permits, until_s)
                return
            except (BrokerUnreachable, Refused):
                pass  # it was closed meanwhile, or the topic has moved
        self._begin(owner_of(access, topic, until_s=until_s), start, permits, until_s)

    def _begin(self, connection: Connection, start: MessageId, permits: int, until_s: float) -> None:
        self._connection = connection
        self._consumer_id = connection.new_consumer_id()
        message_bytes_max = max(MESSAGE_BYTES_MAX, connection.message_bytes_max)
        self.buffer = FrameBuffer(
            frame_bytes_max=message_bytes_max + FRAME_PADDING_BYTES, consumer_id=self._consumer_id
        )
        name = f"{self._access.reader_name}-{uuid.uuid4().hex[:16]}"
        try:
            with connection.requests_end_by(until_s):
                connection.request(
                    lambda number: subscribe_reader(
                        self.topic, start, number, subscription=name, consumer_id=self._consumer_id
                    )
                )
                connection.finish_frame()
                answer = connection.request(
                    lambda number: client_commands.last_message_id(number, self._consumer_id)
                )
                self.last = of_message_id(answer.last_message_id)
                """The last message of the topic; its entry id is -1 if there is none."""
                self.flow(permits)
        except BaseException:
            connection.close()
            raise

    def flow(self, permits: int) -> None:
        if permits > 0:
            self._connection.write(client_commands.flow(self._consumer_id, permits))

    def ping(self) -> None:
        """Have the broker say something."""
        self._connection.write(encoder.ping())

    def close(self) -> None:
        self._connection.close()

    def leave(self) -> None:
        """Close the reader instead, where nothing has gone wrong, and keep the connection for the next one if
        little is on its way to this one. The buffer is no longer valid.
        """
        if self._is_left():
            KEPT.give(self._access, self.topic, self._connection)
        else:
            self._connection.close()

    def _is_left(self) -> bool:
        """Closes the consumer; whether nothing of it is left on the connection."""
        request_id = self._connection.session.new_id()
        left_bytes = LEFT_BYTES_MAX
        until_s = _CLOCK.monotonic_s() + LEAVE_SECONDS_MAX
        buffer = self.buffer
        try:
            self._connection.write(client_commands.close_consumer(request_id, self._consumer_id))
            while left_bytes > 0 and (left_s := until_s - _CLOCK.monotonic_s()) > 0:
                buffer.take()
                buffer.settle()
                self._connection.socket.settimeout(left_s)
                size = self._connection.socket.recv_into(buffer.room())
                if size == 0:
                    return False
                left_bytes -= size
                buffer.received(size)
                if any(_is_success(body, request_id) for body in buffer.take_others()):
                    return buffer.is_whole
        except (OSError, PipelineError, ProtocolError, CorruptEntry):
            return False
        return False

    def receive(self, timeout_s: float) -> bool:
        """Receive once into the buffer; False when nothing came in time.

        Raises `BrokerUnreachable`, `CorruptEntry`.
        """
        is_refused = self.buffer.is_corrupt and not self.buffer.frames
        size = 0 if is_refused else self._connection.receive_into(self.buffer.room(), timeout_s)
        if size is None:
            return False
        try:
            self.buffer.received(size)
            self._obey()
        except ProtocolError as error:
            raise BrokerUnreachable(f"{self._connection.url} does not follow the protocol: {error}") from None
        except CorruptEntry as error:
            raise CorruptEntry(f"{self.topic}: {error}") from None
        return True

    def _obey(self) -> None:
        for body in self.buffer.take_others():
            size = int.from_bytes(body[:4], "big")
            command = parse_command(body, memoryview(body), 4, 4 + size, len(body))
            if isinstance(command, pb.CommandPing):
                self._connection.write(encoder.pong())
            elif isinstance(command, pb.CommandCloseConsumer):
                raise ConsumerClosed(f"{self.topic}: the broker closed the reader")


def _is_success(body: bytes, request_id: int) -> bool:
    command = parse_command(body, memoryview(body), 4, 4 + int.from_bytes(body[:4], "big"), len(body))
    return isinstance(command, pb.CommandSuccess) and command.request_id == request_id
