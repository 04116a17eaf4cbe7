"""Brokers that are none, break off, talk nonsense, or take larger messages than ours."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from fastcrc.crc32 import iscsi as crc_32c

from geminga.clock import RealClock
from geminga.errors import ServerError
from geminga.pipeline.client import admin_http, entry_stream, owning_brokers, shared_connection
from geminga.pipeline.client.kept_connections import KeptConnections
from geminga.pipeline.client.last_message import last_of
from geminga.pipeline.client.topic_questions import TopicQuestions
from geminga.pipeline.columns.columns import ColumnMaker
from geminga.pipeline.columns.message_id import EARLIEST, MessageId
from geminga.pipeline.errors import Access, BrokerUnreachable, PipelineError
from geminga.pipeline.topics import reading
from geminga.pipeline.topics.options import parse_options
from geminga.pipeline.topics.publish_times import MessageIdsByTime
from geminga.pipeline.topics.ranges import Range
from geminga.pipeline.topics.rows import read_range
from geminga.pipeline.values.avro_shapes import SchemaMismatch
from geminga.pipeline.values.schemas import schema_of
from geminga.wire import encoder
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


@pytest.fixture(autouse=True)
def _keeps_no_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers here serve one connection after the other."""
    monkeypatch.setattr(entry_stream, "KEPT", KeptConnections(connections_max=0))


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
    if isinstance(command, pb.CommandSubscribe | pb.CommandCloseConsumer | pb.CommandSeek):
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
    wanted = Range(TOPIC, EARLIEST, MessageId(3, 1, 0))
    (batch,) = read_range(serve(has_large_messages), wanted, maker, poll_timeout_s=10)
    assert batch["value"].to_pylist() == [VALUE]


def goes_silent(after: int) -> Talk:
    """Answers so many commands of a connection, and then does not even answer a PING."""

    def talk(connection: socket.socket) -> None:
        decoder, left = Decoder(), after
        with contextlib.suppress(OSError):
            while data := connection.recv(100_000):
                for command in decoder.feed(data):
                    if left > 0:
                        connection.sendall(answer_to(command))
                    left -= 1

    return talk


@pytest.mark.parametrize("after", [0, 1, 2, 3, 4])
def test_a_broker_that_falls_silent_is_given_up_soon(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """After its CONNECTED, LOOKUP_RESPONSE, ..., always within the time that is counted from its last."""
    monkeypatch.setattr(reading, "RETRY_SECONDS", 1.0)
    monkeypatch.setattr(reading, "PING_SECONDS", 0.2)
    monkeypatch.setattr(reading, "SILENT_SECONDS", 0.6)
    monkeypatch.setattr(reading, "_GRACE_SECONDS", 0.2)
    monkeypatch.setattr(reading, "_PAUSE_SECONDS", 0.05)
    maker = ColumnMaker(TOPIC, pa.schema([("value", pa.binary())]))
    wanted = Range(TOPIC, EARLIEST, MessageId(3, 1, 0))
    begun_s = RealClock().monotonic_s()
    with pytest.raises(PipelineError, match=r"up after 1 s: .*(silent|does not answer).* start the query"):
        list(read_range(serve(goes_silent(after)), wanted, maker, poll_timeout_s=60))
    assert 0.9 < RealClock().monotonic_s() - begun_s < 3


def test_the_poll_timeout_is_the_patience_with_a_broker_that_is_away(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what reads and of what plans, in words that name the option."""
    monkeypatch.setattr(reading, "RETRY_SECONDS", 0.1)
    monkeypatch.setattr(reading, "_PAUSE_SECONDS", 0.05)
    monkeypatch.setattr(owning_brokers, "PATIENCE_SECONDS", 0.0)
    url = serve(lambda connection: None).service_url
    access = parse_options({"service.url": url, "topic": TOPIC, "pollTimeoutMs": "600"}).access
    maker = ColumnMaker(TOPIC, pa.schema([("value", pa.binary())]))
    wanted = Range(TOPIC, EARLIEST, MessageId(3, 1, 0))
    with pytest.raises(PipelineError, match=r"given up after 1 s: .*a larger pollTimeoutMs waits longer"):
        list(read_range(access, wanted, maker, poll_timeout_s=60))
    answered = {TOPIC: BrokerUnreachable("the connection to b is lost")}
    (answer,) = owning_brokers.persistently(access, [TOPIC], lambda _: answered).values()
    assert (
        str(answer) == "the connection to b is lost; given up after 1 s, a larger pollTimeoutMs waits longer"
    )


def test_a_broker_that_answers_pings_is_waited_for(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "RETRY_SECONDS", 0.5)
    monkeypatch.setattr(reading, "PING_SECONDS", 0.05)
    monkeypatch.setattr(reading, "SILENT_SECONDS", 0.3)
    pings = 0

    def talk(connection: socket.socket) -> None:
        nonlocal pings
        decoder = Decoder()
        while data := connection.recv(100_000):
            for command in decoder.feed(data):
                if isinstance(command, pb.CommandPing):
                    pings += 1
                    connection.sendall(encoder.pong())
                elif (answer := answer_to(command)) != large_message():
                    connection.sendall(answer)
                if pings == 15:  # longer than silence is borne
                    pings += 1
                    connection.sendall(large_message())

    maker = ColumnMaker(TOPIC, pa.schema([("value", pa.binary())]))
    wanted = Range(TOPIC, EARLIEST, MessageId(3, 1, 0))
    (batch,) = read_range(serve(talk), wanted, maker, poll_timeout_s=10)
    assert batch["value"].to_pylist() == [VALUE]
    assert pings >= 15


def test_a_consumer_that_is_closed_while_it_subscribes_comes_again(serve: Serve) -> None:
    """Pulsar closes the one that seeks, and now and then the one that comes back at once."""
    subscribed: list[int] = []

    def talk(connection: socket.socket) -> None:
        decoder = Decoder()
        with contextlib.suppress(OSError):
            while data := connection.recv(100_000):
                for command in decoder.feed(data):
                    comes_back = False
                    if isinstance(command, pb.CommandSubscribe):
                        subscribed.append(command.consumer_id)
                        comes_back = len(subscribed) == 2
                    if isinstance(command, pb.CommandSeek) or comes_back:
                        closing = pb.CommandCloseConsumer(consumer_id=subscribed[-1], request_id=0)
                        connection.sendall(
                            frame(pb.BaseCommand(type=TYPE.CLOSE_CONSUMER, close_consumer=closing))
                        )
                    if not comes_back:
                        connection.sendall(answer_to(command))

    with contextlib.closing(owning_brokers.OwningBrokers(serve(talk))) as brokers:
        assert MessageIdsByTime(brokers).at(TOPIC, 5) == EARLIEST
    assert len(subscribed) == 4


@pytest.mark.parametrize("code", [ServerError.METADATA, ServerError.UNKNOWN, ServerError.NOT_ALLOWED])
def test_a_brokers_trouble_is_not_taken_for_a_topic_without_schema(serve: Serve, code: ServerError) -> None:
    told = code

    def talk(connection: socket.socket) -> None:
        decoder = Decoder()
        while data := connection.recv(100_000):
            for command in decoder.feed(data):
                if isinstance(command, pb.CommandGetSchema):
                    connection.sendall(encoder.schema_failed(command.request_id, told, "ZooKeeper is away"))
                else:
                    connection.sendall(answer_to(command))

    with pytest.raises(SchemaMismatch, match="ZooKeeper is away; retry"):
        schema_of(serve(talk), [TOPIC])
    told = ServerError.TOPIC_NOT_FOUND
    assert schema_of(serve(talk), [TOPIC]).kind is None


def test_what_is_wrong_with_tls_is_told(serve: Serve, tmp_path: Path) -> None:
    def talk(connection: socket.socket) -> None:
        connection.recv(1000)
        connection.sendall(b"\x00\x00\x00\x10plain talk")

    url = serve(talk).service_url.replace("pulsar://", "pulsar+ssl://")
    with pytest.raises(PipelineError, match="does not speak TLS.*is the port right"):
        last_of(Access(url), TOPIC)
    missing = str(tmp_path / "missing.pem")
    with pytest.raises(PipelineError, match=rf"{missing} \(tlsTrustCertsFilePath\).*No such file"):
        last_of(Access(url, trust_certificates=missing), TOPIC)
    with pytest.raises(PipelineError, match=rf"{missing} \(tlsCertificateFilePath.*No such file"):
        last_of(Access(url, certificate=missing), TOPIC)


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_an_admin_api_that_dribbles_is_not_waited_for(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    """In its headers, and in a body that ends where the connection does."""
    monkeypatch.setattr(admin_http, "HTTP_SECONDS", 0.5)
    dribbled: list[int] = []

    def talk(connection: socket.socket) -> None:
        connection.recv(10_000)
        with contextlib.suppress(OSError):
            connection.sendall(head)
            for number in range(200):
                connection.sendall(b"1")
                dribbled.append(number)
                threading.Event().wait(0.05)

    url = serve(talk).service_url.replace("pulsar://", "http://")
    with pytest.raises(PipelineError, match=r"no whole answer within 0 s.*is admin\.url right"):
        admin_http.get_json(Access("pulsar://localhost"), url, "/admin/v2/x")
    assert 3 < len(dribbled) < 100


def only_pings(connection: socket.socket) -> None:
    connection.recv(1000)
    connection.sendall(CONNECTED)
    with contextlib.suppress(OSError):
        while True:
            connection.sendall(encoder.ping())
            threading.Event().wait(0.05)


def test_a_broker_that_says_something_but_does_not_answer_is_given_up(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_connection, "REQUEST_SECONDS", 0.3)
    monkeypatch.setattr(owning_brokers, "PATIENCE_SECONDS", 0.0)
    with (
        TopicQuestions(serve(only_pings)) as questions,
        pytest.raises(PipelineError, match="does not answer"),
    ):
        questions.partitions([TOPIC])
