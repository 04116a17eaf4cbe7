"""A broker of one topic whose readers do not see every entry, as with transactions, and whose first ledgers
may be gone. What it answers is what Pulsar 4.0.7 answers.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping

from geminga.pipeline.errors import Access
from geminga.wire import encoder
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import Flow, signed, unsigned
from geminga.wire.decoder import Decoder
from tests.e2e.binary_session import frame, message_bytes

Position = tuple[int, int]
_SENT = (1 << 62, 0)


class MarkedBroker:
    """`lengths` of the ledgers that are left, by id in order; `hidden` entries are never sent. Each other
    entry is a message whose value is its position, such as b"7:3".
    """

    def __init__(
        self,
        lengths: Mapping[int, int],
        hidden: set[Position] | None = None,
        gone_when_sent: set[int] | None = None,
    ) -> None:
        self.lengths = dict(lengths)
        self._gone = gone_when_sent or set()
        """Ledgers that are deleted as soon as a reader has their messages."""
        self.hidden = hidden or set()
        self.metadata: dict[Position, pb.MessageMetadata] = {}
        """Of entries that have other metadata than the rest."""
        self.corrupt: set[Position] = set()
        """Entries with a wrong checksum."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()
        self.access = Access(f"pulsar://127.0.0.1:{self._listener.getsockname()[1]}")

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(10)

    @property
    def visible(self) -> list[Position]:
        return [each for each in self._entries() if each not in self.hidden]

    def _entries(self) -> list[Position]:
        return [(ledger, entry) for ledger, length in self.lengths.items() for entry in range(length)]

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._talk, args=(connection,), daemon=True).start()

    def _talk(self, connection: socket.socket) -> None:
        decoder = Decoder()
        starts: dict[int, Position] = {}
        with connection, contextlib.suppress(OSError):
            while data := connection.recv(100_000):
                for command in decoder.feed(data):
                    connection.sendall(self._answer(command, starts))

    def _answer(self, command: object, starts: dict[int, Position]) -> bytes:
        if isinstance(command, pb.CommandConnect):
            return frame(pb.CommandConnected(server_version="x", protocol_version=19))
        if isinstance(command, pb.CommandLookupTopic):
            return frame(
                pb.CommandLookupTopicResponse(
                    request_id=command.request_id, response=pb.CommandLookupTopicResponse.Connect
                )
            )
        if isinstance(command, pb.CommandPartitionedTopicMetadata):
            answer = pb.CommandPartitionedTopicMetadataResponse(
                request_id=command.request_id,
                partitions=0,
                response=pb.CommandPartitionedTopicMetadataResponse.Success,
            )
            return frame(answer)
        if isinstance(command, pb.CommandSubscribe):
            start_id = command.start_message_id
            starts[command.consumer_id] = signed(start_id.ledgerId), signed(start_id.entryId)
            return frame(pb.CommandSuccess(request_id=command.request_id))
        if isinstance(command, pb.CommandCloseConsumer):
            return frame(pb.CommandSuccess(request_id=command.request_id))
        if isinstance(command, pb.CommandGetLastMessageId):
            last = self.visible[-1]
            before = [each for each in self._entries() if each < starts[command.consumer_id]]
            mark_delete = before[-1] if before else (min(self.lengths), -1)
            return encoder.last_message_id(command.request_id, _id(last), _id(mark_delete))
        if isinstance(command, Flow):
            due = [each for each in self.visible if each >= starts[command.consumer_id]]
            starts[command.consumer_id] = _SENT
            self.lengths = {each: length for each, length in self.lengths.items() if each not in self._gone}
            return b"".join(
                _message(command.consumer_id, each, self.metadata.get(each), each in self.corrupt)
                for each in due
            )
        return b""


def _id(position: Position) -> pb.MessageIdData:
    return pb.MessageIdData(ledgerId=unsigned(position[0]), entryId=unsigned(position[1]))


def _message(
    consumer_id: int, position: Position, metadata: pb.MessageMetadata | None, is_corrupt: bool
) -> bytes:
    metadata = metadata or pb.MessageMetadata(producer_name="p", sequence_id=position[1], publish_time=1)
    value = f"{position[0]}:{position[1]}".encode()
    command = pb.CommandMessage(consumer_id=consumer_id, message_id=_id(position))
    return frame(command, message_bytes(metadata, value, checksum=0 if is_corrupt else None))
