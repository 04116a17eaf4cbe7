"""One raw connection to a broker's binary port: frames built by hand, answers read one by one.

Nothing here hides a mistake in the bytes: what a test writes is what the broker gets.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import Any, TypeVar

from google.protobuf.message import Message

from geminga.wire import pulsar_pb2 as pb

ANSWER_SECONDS_MAX = 10.0
MAGIC_CHECKSUM = b"\x0e\x01"
M = TypeVar("M", bound=Message)

_FIELD_OF = {
    field.message_type.full_name: field
    for field in pb.BaseCommand.DESCRIPTOR.fields
    if field.message_type is not None
}


class ConnectionEnded(Exception):
    """The broker closed the connection."""


@dataclass(frozen=True)
class Frame:
    """One received frame: its command as the specific message, and what follows the command."""

    kind: int
    command: Any
    rest: bytes


def crc32c(data: bytes) -> int:
    """Bit by bit, so that it shares nothing with what it checks."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def base_command(command: Message) -> bytes:
    """A specific command inside its BaseCommand, whose type has the same number as its field."""
    field = _FIELD_OF[command.DESCRIPTOR.full_name]
    wrapped = pb.BaseCommand(type=field.number)
    getattr(wrapped, field.name).CopyFrom(command)
    return wrapped.SerializeToString()


def frame(command: Message | bytes, rest: bytes = b"") -> bytes:
    """u32 total size, u32 command size, command, rest."""
    body = command if isinstance(command, bytes) else base_command(command)
    return struct.pack(">II", 4 + len(body) + len(rest), len(body)) + body + rest


def parse_frame(body: bytes) -> Frame:
    """What follows the total size."""
    command_bytes = struct.unpack(">I", body[:4])[0]
    wrapped = pb.BaseCommand.FromString(body[4 : 4 + command_bytes])
    field = pb.BaseCommand.DESCRIPTOR.fields_by_number[wrapped.type]
    return Frame(wrapped.type, getattr(wrapped, field.name), body[4 + command_bytes :])


def message_bytes(metadata: pb.MessageMetadata, payload: bytes, *, checksum: int | None = None) -> bytes:
    """Magic, checksum, metadata and payload as they follow SEND; a `checksum` replaces the right one."""
    encoded = metadata.SerializeToString()
    covered = struct.pack(">I", len(encoded)) + encoded + payload
    value = crc32c(covered) if checksum is None else checksum
    return MAGIC_CHECKSUM + struct.pack(">I", value) + covered


def plain_metadata(sequence_id: int = 0, producer: str = "raw") -> pb.MessageMetadata:
    return pb.MessageMetadata(
        producer_name=producer, sequence_id=sequence_id, publish_time=time.time_ns() // 1_000_000
    )


class BinarySession:
    """A socket with Pulsar frames on it. `connect()` does the handshake; without it nothing was sent yet.

    A thread reads, so that the broker's PINGs are answered (unless `answers_pings` is off) whatever the test
    is doing: a broker that must decide whether an older connection is still alive asks it.
    """

    def __init__(self, address: tuple[str, int], *, answers_pings: bool = True) -> None:
        self._socket = socket.create_connection(address, timeout=ANSWER_SECONDS_MAX)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.settimeout(None)
        self._answers_pings = answers_pings
        self._frames: queue.Queue[Frame | None] = queue.Queue()
        self._write_lock = threading.Lock()
        self._request_ids = itertools.count(1)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> BinarySession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket, with no word to the broker."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join(5)
        self._socket.close()

    def next_request_id(self) -> int:
        return next(self._request_ids)

    def _read(self) -> None:
        buffer = bytearray()
        while True:
            try:
                chunk = self._socket.recv(65536)
            except OSError:
                chunk = b""
            if not chunk:
                self._frames.put(None)
                return
            buffer += chunk
            while len(buffer) >= 4 and len(buffer) >= (end := 4 + struct.unpack(">I", buffer[:4])[0]):
                received = parse_frame(bytes(buffer[4:end]))
                del buffer[:end]
                if isinstance(received.command, pb.CommandPing) and self._answers_pings:
                    with contextlib.suppress(OSError):
                        self.send(pb.CommandPong())
                else:
                    self._frames.put(received)

    def send_bytes(self, data: bytes) -> None:
        """Write it all. If the broker has closed already, the next `receive` says so."""
        with self._write_lock, contextlib.suppress(ConnectionError):
            self._socket.sendall(data)

    def shut_down_writing(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def send(self, command: Message | bytes, rest: bytes = b"") -> None:
        self.send_bytes(frame(command, rest))

    def receive(self, timeout_s: float = ANSWER_SECONDS_MAX) -> Frame:
        """The next frame; ConnectionEnded when there will be none, TimeoutError when none came in time."""
        try:
            received = self._frames.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError(f"no frame within {timeout_s} s") from None
        if received is None:
            self._frames.put(None)
            raise ConnectionEnded
        return received

    def expect(self, kind: type[M], timeout_s: float = ANSWER_SECONDS_MAX) -> M:
        """The next frame, which must hold this command."""
        received = self.receive(timeout_s)
        assert isinstance(received.command, kind), f"{kind.__name__} expected, got {received}"
        return received.command

    def request(self, command: Message, answer: type[M]) -> M:
        self.send(command)
        return self.expect(answer)

    def is_closed_by_broker(self, timeout_s: float = ANSWER_SECONDS_MAX) -> bool:
        """Whether the broker closes within the time, whatever frames it still sends before."""
        try:
            while True:
                self.receive(timeout_s)
        except ConnectionEnded:
            return True
        except TimeoutError:
            return False

    # --------------------------------------------------------------------------------------- handshakes

    def connect(self, protocol_version: int = 20) -> pb.CommandConnected:
        return self.request(
            pb.CommandConnect(client_version="raw-test", protocol_version=protocol_version),
            pb.CommandConnected,
        )

    def create_producer(self, topic: str, producer_id: int = 1) -> pb.CommandProducerSuccess:
        return self.request(
            pb.CommandProducer(topic=topic, producer_id=producer_id, request_id=self.next_request_id()),
            pb.CommandProducerSuccess,
        )

    def subscribe(
        self,
        topic: str,
        subscription: str = "s",
        consumer_id: int = 1,
        kind: int = pb.CommandSubscribe.Exclusive,
        **options: object,
    ) -> pb.CommandSuccess:
        command = pb.CommandSubscribe(
            topic=topic,
            subscription=subscription,
            subType=kind,
            consumer_id=consumer_id,
            request_id=self.next_request_id(),
            **options,
        )
        return self.request(command, pb.CommandSuccess)

    def publish(self, payload: bytes, producer_id: int = 1, sequence_id: int = 0) -> pb.CommandSendReceipt:
        self.send(
            pb.CommandSend(producer_id=producer_id, sequence_id=sequence_id, num_messages=1),
            message_bytes(plain_metadata(sequence_id), payload),
        )
        return self.expect(pb.CommandSendReceipt)
