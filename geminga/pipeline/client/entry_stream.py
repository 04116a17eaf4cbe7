"""The entries of a topic as the broker sends them, over one connection."""

from __future__ import annotations

import math
import uuid

from geminga.errors import ProtocolError
from geminga.limits import FRAME_PADDING_BYTES, MESSAGE_BYTES_MAX
from geminga.pipeline.client.frames import CorruptEntry, FrameBuffer
from geminga.pipeline.client.lookup import owner_of
from geminga.pipeline.columns.places import Place, of_message_id
from geminga.pipeline.errors import Access, BrokerUnreachable
from geminga.wire import client_commands, encoder
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import unsigned
from geminga.wire.encoder import frame
from geminga.wire.parse import parse_command

PERMITS = 100_000
"""How many messages may be on their way to us."""
_CONSUMER_ID = 1


class ConsumerClosed(BrokerUnreachable):
    """The broker closed our consumer: the topic moves or is unloaded. Look it up again."""


def subscribe_reader(
    topic: str,
    start: Place,
    request_id: int,
    *,
    subscription: str | None = None,
    consumer_id: int = _CONSUMER_ID,
) -> bytes:
    """A non-durable subscription that begins with the very entry `start` is in. The topic is not created."""
    command = pb.CommandSubscribe(
        topic=topic,
        subscription=subscription or f"geminga-reader-{uuid.uuid4().hex[:16]}",
        subType=pb.CommandSubscribe.Exclusive,
        consumer_id=consumer_id,
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

    def __init__(
        self,
        access: Access,
        topic: str,
        start: Place,
        *,
        permits: int = PERMITS,
        until_s: float = math.inf,
    ) -> None:
        """Raises `PipelineError`, at the latest then (of the monotonic clock)."""
        self.topic = topic
        self._connection = owner_of(access, topic, until_s=until_s)
        message_bytes_max = max(MESSAGE_BYTES_MAX, self._connection.message_bytes_max)
        self.buffer = FrameBuffer(frame_bytes_max=message_bytes_max + FRAME_PADDING_BYTES)
        try:
            name = f"{access.reader_name}-{uuid.uuid4().hex[:16]}"
            self._connection.request(lambda number: subscribe_reader(topic, start, number, subscription=name))
            self._connection.finish_frame()
            answer = self._connection.request(
                lambda number: client_commands.last_message_id(number, _CONSUMER_ID)
            )
            self.last = of_message_id(answer.last_message_id)
            """The last message of the topic; its entry id is -1 if there is none."""
            self.flow(permits)
            self._connection.until_s = math.inf
        except BaseException:
            self.close()
            raise

    def flow(self, permits: int) -> None:
        if permits > 0:
            self._connection.write(client_commands.flow(_CONSUMER_ID, permits))

    def ping(self) -> None:
        """Have the broker say something."""
        self._connection.write(encoder.ping())

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
