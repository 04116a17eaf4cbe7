"""Brokers that are none, break off, talk nonsense, or take larger messages than ours."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from fastcrc.crc32 import iscsi as crc_32c

from geminga.pipeline.columns import ColumnMaker
from geminga.pipeline.connection import Access, PipelineError
from geminga.pipeline.places import EARLIEST, Place
from geminga.pipeline.reading import Range
from geminga.pipeline.rows import read_range
from geminga.pipeline.topics import last_of
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.decoder import Decoder
from geminga.wire.encoder import frame

TOPIC = "persistent://public/default/t"
TYPE = pb.BaseCommand.Type
VALUE = b"0123456789" * 800_000
"""More than any message of ours."""
CONNECTED = frame(
    pb.BaseCommand(
        type=TYPE.CONNECTED,
        connected=pb.CommandConnected(server_version="x", protocol_version=19, max_message_size=20 << 20),
    )
)

Talk = Callable[[socket.socket], None]
Serve = Callable[[Talk], Access]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Starts a broker that does this with each connection, and closes it then."""
    listeners: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def start(talk: Talk) -> Access:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def run() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.settimeout(10)
                    talk(connection)

        threads.append(threading.Thread(target=run, daemon=True))
        threads[-1].start()
        return Access(f"pulsar://127.0.0.1:{listener.getsockname()[1]}")

    yield start
    for listener in listeners:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    for thread in threads:
        thread.join(10)


def closes(connection: socket.socket) -> None:
    connection.recv(1000)


def half_closes(connection: socket.socket) -> None:
    connection.recv(1000)
    connection.sendall(CONNECTED)
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1000)


def talks_nonsense(connection: socket.socket) -> None:
    connection.recv(1000)
    connection.sendall(b"\x00\x00\x00\x10\xff\xff\xff\xff" * 10)


def announces_too_much(connection: socket.socket) -> None:
    connection.recv(1000)
    connection.sendall(b"\x7f\xff\xff\xff\x00\x00\x00\x10")


def speaks_http(connection: socket.socket) -> None:
    connection.recv(1000)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize(
    ("talk", "text"),
    [
        (closes, "closed the connection"),
        (half_closes, "closed the connection"),
        (talks_nonsense, "does not follow the protocol"),
        (announces_too_much, "does not follow the protocol"),
        (speaks_http, "is an HTTP port; service.url needs"),
    ],
)
def test_what_is_no_broker_is_told_at_once(serve: Serve, talk: Talk, text: str) -> None:
    with pytest.raises(PipelineError, match=text):
        last_of(serve(talk), TOPIC)


def large_message() -> bytes:
    head = pb.MessageMetadata(producer_name="p", sequence_id=1, publish_time=1).SerializeToString()
    rest = struct.pack(">I", len(head)) + head + VALUE
    body = b"\x0e\x01" + struct.pack(">I", crc_32c(rest)) + rest
    delivery = pb.CommandMessage(consumer_id=1, message_id=pb.MessageIdData(ledgerId=3, entryId=0))
    command = pb.BaseCommand(type=TYPE.MESSAGE, message=delivery).SerializeToString()
    return struct.pack(">II", 4 + len(command) + len(body), len(command)) + command + body


def has_large_messages(connection: socket.socket) -> None:
    decoder = Decoder()
    while data := connection.recv(100_000):
        for command in decoder.feed(data):
            connection.sendall(answer_to(command))


def answer_to(command: object) -> bytes:
    if isinstance(command, pb.CommandConnect):
        return CONNECTED
    if isinstance(command, pb.CommandLookupTopic):
        found = pb.CommandLookupTopicResponse(
            request_id=command.request_id, response=pb.CommandLookupTopicResponse.Connect
        )
        return frame(pb.BaseCommand(type=TYPE.LOOKUP_RESPONSE, lookupTopicResponse=found))
    if isinstance(command, pb.CommandSubscribe):
        done = pb.CommandSuccess(request_id=command.request_id)
        return frame(pb.BaseCommand(type=TYPE.SUCCESS, success=done))
    if isinstance(command, pb.CommandGetLastMessageId):
        last = pb.CommandGetLastMessageIdResponse(
            request_id=command.request_id, last_message_id=pb.MessageIdData(ledgerId=3, entryId=0)
        )
        return frame(pb.BaseCommand(type=TYPE.GET_LAST_MESSAGE_ID_RESPONSE, getLastMessageIdResponse=last))
    return large_message()


def test_messages_may_be_as_large_as_the_broker_says(serve: Serve) -> None:
    maker = ColumnMaker(TOPIC, pa.schema([("value", pa.binary())]))
    wanted = Range(TOPIC, EARLIEST, Place(3, 1, 0))
    (batch,) = read_range(serve(has_large_messages), wanted, maker, poll_timeout_s=10)
    assert batch["value"].to_pylist() == [VALUE]
