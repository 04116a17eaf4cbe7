"""Whoever sends nonsense is told or cut off; a well-behaved connection next to it notices nothing."""

from __future__ import annotations

import contextlib
import random
import struct
from collections.abc import Iterator

import pulsar
import pytest
from google.protobuf.message import Message

from geminga.wire import pulsar_pb2 as pb
from tests.e2e.binary_session import (
    MAGIC_CHECKSUM,
    BinarySession,
    ConnectionEnded,
    crc32c,
    frame,
    message_bytes,
    plain_metadata,
)
from tests.e2e.broker_process import Endpoints

CLIENT_HELLO = bytes.fromhex("16030100c8010000c40303") + b"\x5a" * 200
CLOSED_WITHIN_S = 5.0
FRAME_BYTES_MAX = 5 * 1024 * 1024 + 10 * 1024


class Witness:
    """A well-behaved connection that was there before and must work on, undisturbed."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._session = BinarySession(address)
        self._session.connect()
        topic = f"persistent://public/default/witness-{id(self)}-{random.randrange(2**60)}"
        self._session.create_producer(topic, 1)
        self._session.subscribe(topic, consumer_id=1)
        self._session.send(pb.CommandFlow(consumer_id=1, messagePermits=100_000))
        self._count = 0

    def assert_undisturbed(self) -> None:
        body = b"%d" % self._count
        self._session.send(
            pb.CommandSend(producer_id=1, sequence_id=self._count, num_messages=1),
            message_bytes(plain_metadata(self._count), body),
        )
        answers = [self._session.receive() for _ in range(2)]
        kinds = {type(answer.command) for answer in answers}
        assert kinds == {pb.CommandSendReceipt, pb.CommandMessage}, answers
        [message] = [answer for answer in answers if isinstance(answer.command, pb.CommandMessage)]
        assert message.rest.endswith(body)
        assert message.command.message_id.entryId == self._count
        self._count += 1

    def close(self) -> None:
        self._session.close()


@pytest.fixture(scope="module")
def standing_witness(broker: Endpoints) -> Iterator[Witness]:
    witness = Witness(broker.binary_address)
    yield witness
    witness.close()


@pytest.fixture(autouse=True)
def witness(standing_witness: Witness) -> Iterator[None]:
    standing_witness.assert_undisturbed()
    yield
    standing_witness.assert_undisturbed()


@pytest.fixture
def session(broker: Endpoints) -> Iterator[BinarySession]:
    with BinarySession(broker.binary_address) as session:
        session.connect()
        yield session


@pytest.fixture
def stranger(broker: Endpoints) -> Iterator[BinarySession]:
    """A connection that has not said CONNECT."""
    with BinarySession(broker.binary_address) as session:
        yield session


GARBAGE = {
    "ones": b"\xff" * 100,
    "zeros": b"\x00" * 100,
    "size of 2 GiB": struct.pack(">II", 2**31 - 1, 10),
    "size of 4 GiB": struct.pack(">II", 2**32 - 1, 10),
    "one byte more than the largest frame": struct.pack(">II", FRAME_BYTES_MAX + 1, 10) + b"x" * 100,
    "command larger than its frame": struct.pack(">II", 10, 100) + b"x" * 100,
    "not protobuf": frame(b"\xff\xff\xff"),
    "no command type": frame(b""),
    "unknown command type": frame(b"\x08\xc8\x01"),
    "a type without its command": frame(
        pb.BaseCommand(type=pb.BaseCommand.PRODUCER).SerializePartialToString()
    ),
    "required fields missing": frame(
        pb.BaseCommand(type=pb.BaseCommand.PRODUCER, producer=pb.CommandProducer()).SerializePartialToString()
    ),
    "TLS": CLIENT_HELLO,
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("is_connected", [False, True], ids=["stranger", "connected"])
@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_ends_the_connection(broker: Endpoints, name: str, is_connected: bool) -> None:
    with BinarySession(broker.binary_address) as session:
        if is_connected:
            session.connect()
        session.send_bytes(GARBAGE[name])
        assert session.is_closed_by_broker(CLOSED_WITHIN_S)


@pytest.mark.parametrize("length", [1, 4, 6, 8, 12])
def test_a_frame_cut_short_by_the_end_of_the_stream(stranger: BinarySession, length: int) -> None:
    stranger.send_bytes(frame(pb.CommandConnect(client_version="x", protocol_version=20))[:length])
    stranger.shut_down_writing()
    assert stranger.is_closed_by_broker(CLOSED_WITHIN_S)


def test_random_bytes(broker: Endpoints) -> None:
    """Never an answer other than silence or the end, whatever the bytes."""
    dice = random.Random(20)
    for _ in range(30):
        with BinarySession(broker.binary_address) as session:
            size = dice.randrange(1, 200)
            session.send_bytes(struct.pack(">I", size) + dice.randbytes(size))
            session.send_bytes(dice.randbytes(100))
            session.shut_down_writing()
            assert session.is_closed_by_broker(CLOSED_WITHIN_S)


def test_random_bytes_in_commands(broker: Endpoints) -> None:
    """Well framed, with a known type, but nonsense inside: an answer, silence or the end; no harm."""
    dice = random.Random(21)
    for _ in range(60):
        with BinarySession(broker.binary_address) as session:
            session.connect()
            field = dice.choice(pb.BaseCommand.DESCRIPTOR.fields[1:])
            inside = dice.randbytes(dice.randrange(0, 40))
            tag = (field.number << 3) | 2
            key = bytes([tag]) if tag < 128 else bytes([tag & 127 | 128, tag >> 7])
            session.send(bytes([8, field.number]) + key + bytes([len(inside)]) + inside)
            session.shut_down_writing()
            assert session.is_closed_by_broker(CLOSED_WITHIN_S)


BEFORE_CONNECT: list[Message] = [
    pb.CommandLookupTopic(topic="t", request_id=7),
    pb.CommandPartitionedTopicMetadata(topic="t", request_id=7),
    pb.CommandProducer(topic="t", producer_id=1, request_id=7),
    pb.CommandSubscribe(topic="t", subscription="s", subType=0, consumer_id=1, request_id=7),
    pb.CommandFlow(consumer_id=1, messagePermits=1),
    pb.CommandGetTopicsOfNamespace(namespace="public/default", request_id=7),
    pb.CommandCloseProducer(producer_id=1, request_id=7),
]


@pytest.mark.parametrize("command", BEFORE_CONNECT, ids=lambda command: type(command).__name__)
def test_commands_before_connect_end_the_connection(stranger: BinarySession, command: Message) -> None:
    stranger.send(command)
    assert stranger.is_closed_by_broker(CLOSED_WITHIN_S)


def test_sending_before_connect_ends_the_connection(stranger: BinarySession) -> None:
    stranger.send(pb.CommandSend(producer_id=1, sequence_id=0), message_bytes(plain_metadata(), b"x"))
    assert stranger.is_closed_by_broker(CLOSED_WITHIN_S)


def test_a_second_connect_ends_the_connection(session: BinarySession) -> None:
    session.send(pb.CommandConnect(client_version="again", protocol_version=20))
    assert session.is_closed_by_broker(CLOSED_WITHIN_S)


BROKERS_OWN: list[Message] = [
    pb.CommandConnected(server_version="x"),
    pb.CommandSendReceipt(producer_id=1, sequence_id=1),
    pb.CommandSendError(producer_id=1, sequence_id=1, error=pb.UnknownError, message="x"),
    pb.CommandMessage(consumer_id=1, message_id=pb.MessageIdData(ledgerId=1, entryId=1)),
    pb.CommandSuccess(request_id=5),
    pb.CommandError(request_id=5, error=pb.UnknownError, message="x"),
    pb.CommandProducerSuccess(request_id=5, producer_name="x"),
    pb.CommandPartitionedTopicMetadataResponse(request_id=5),
    pb.CommandLookupTopicResponse(request_id=5),
    pb.CommandConsumerStatsResponse(request_id=5),
    pb.CommandReachedEndOfTopic(consumer_id=1),
    pb.CommandGetLastMessageIdResponse(last_message_id=pb.MessageIdData(ledgerId=1, entryId=1), request_id=5),
    pb.CommandActiveConsumerChange(consumer_id=1),
    pb.CommandGetTopicsOfNamespaceResponse(request_id=5),
    pb.CommandGetSchemaResponse(request_id=5),
    pb.CommandAuthChallenge(),
    pb.CommandAckResponse(consumer_id=1),
    pb.CommandGetOrCreateSchemaResponse(request_id=5),
    pb.CommandNewTxnResponse(request_id=5),
    pb.CommandTcClientConnectResponse(request_id=5),
    pb.CommandWatchTopicUpdate(watcher_id=1, topics_hash=""),
]


@pytest.mark.parametrize("command", BROKERS_OWN, ids=lambda command: type(command).__name__)
def test_what_only_a_broker_may_say_ends_the_connection(session: BinarySession, command: Message) -> None:
    session.send(command)
    assert session.is_closed_by_broker(CLOSED_WITHIN_S)


# -------------------------------------------------------------------------------------------- unknown ids


def test_sending_for_an_unknown_producer_ends_the_connection(session: BinarySession) -> None:
    session.send(pb.CommandSend(producer_id=99, sequence_id=3), message_bytes(plain_metadata(), b"x"))
    assert session.is_closed_by_broker(CLOSED_WITHIN_S)


@pytest.mark.parametrize(
    "command",
    [
        pb.CommandAck(consumer_id=99, ack_type=0, message_id=[pb.MessageIdData(ledgerId=1, entryId=1)]),
        pb.CommandFlow(consumer_id=99, messagePermits=5),
        pb.CommandRedeliverUnacknowledgedMessages(consumer_id=99),
    ],
    ids=lambda command: type(command).__name__,
)
def test_words_about_an_unknown_consumer_are_ignored(session: BinarySession, command: Message) -> None:
    """They may be on their way when a consumer is closed, so they are nobody's fault."""
    session.send(command)
    session.send(pb.CommandPing())
    session.expect(pb.CommandPong)


@pytest.mark.parametrize("permits", [0, 2**32 - 1])
def test_senseless_permits_end_the_connection(session: BinarySession, topic: str, permits: int) -> None:
    session.subscribe(topic)
    session.send(pb.CommandFlow(consumer_id=1, messagePermits=permits))
    assert session.is_closed_by_broker(CLOSED_WITHIN_S)


def test_permits_may_not_overflow(session: BinarySession, topic: str) -> None:
    session.create_producer(topic, 9)
    session.subscribe(topic)
    for _ in range(3):
        session.send(pb.CommandFlow(consumer_id=1, messagePermits=2**31 - 1))
    session.send(pb.CommandPing())
    session.expect(pb.CommandPong)


# ------------------------------------------------------------------------------------------- bad messages


def test_a_wrong_checksum_is_reported_for_its_message_only(session: BinarySession, topic: str) -> None:
    session.create_producer(topic)
    session.send(
        pb.CommandSend(producer_id=1, sequence_id=3, num_messages=1),
        message_bytes(plain_metadata(3), b"x", checksum=1),
    )
    error = session.expect(pb.CommandSendError)
    assert (error.producer_id, error.sequence_id, error.error) == (1, 3, pb.ChecksumError)
    assert session.publish(b"good", sequence_id=4).message_id.entryId == 0


def test_one_flipped_bit_is_noticed(session: BinarySession, topic: str) -> None:
    session.create_producer(topic)
    sent = bytearray(message_bytes(plain_metadata(), b"payload"))
    sent[-1] ^= 1
    session.send(pb.CommandSend(producer_id=1, sequence_id=0, num_messages=1), bytes(sent))
    assert session.expect(pb.CommandSendError).error == pb.ChecksumError


def test_a_message_of_nothing_ends_the_connection(session: BinarySession, topic: str) -> None:
    session.create_producer(topic)
    session.send(pb.CommandSend(producer_id=1, sequence_id=0, num_messages=1), b"")
    assert session.is_closed_by_broker(CLOSED_WITHIN_S)


def covered_by_checksum(data: bytes) -> bytes:
    return MAGIC_CHECKSUM + struct.pack(">I", crc32c(data)) + data


@pytest.mark.parametrize(
    "data",
    [struct.pack(">I", 5) + b"\xff" * 5 + b"x", struct.pack(">I", 5000) + b"short"],
    ids=["metadata is not protobuf", "metadata longer than the message"],
)
@pytest.mark.parametrize("kind", [pb.CommandSubscribe.Exclusive, pb.CommandSubscribe.Shared])
def test_unreadable_metadata_harms_nobody(
    broker: Endpoints, session: BinarySession, topic: str, data: bytes, kind: int
) -> None:
    """Stored and never delivered (the real broker), refused, or cut off: the next good message arrives."""
    session.create_producer(topic)
    session.send(pb.CommandSend(producer_id=1, sequence_id=0, num_messages=1), covered_by_checksum(data))
    with contextlib.suppress(ConnectionEnded):
        assert isinstance(session.receive().command, pb.CommandSendReceipt | pb.CommandSendError)
    with BinarySession(broker.binary_address) as good, BinarySession(broker.binary_address) as consumer:
        good.connect()
        good.create_producer(topic)
        consumer.connect()
        consumer.subscribe(topic, kind=kind, initialPosition=pb.CommandSubscribe.Earliest)
        consumer.send(pb.CommandFlow(consumer_id=1, messagePermits=10))
        good.publish(b"good", sequence_id=1)
        assert consumer.receive().rest.endswith(b"good")


@pytest.mark.parametrize("count", [0, -1, 2**31 - 1])
def test_a_wrong_count_of_messages_harms_nobody(
    broker: Endpoints, session: BinarySession, topic: str, count: int
) -> None:
    session.create_producer(topic)
    session.send(
        pb.CommandSend(producer_id=1, sequence_id=0, num_messages=count),
        message_bytes(plain_metadata(), b"x"),
    )
    assert isinstance(session.receive().command, pb.CommandSendReceipt | pb.CommandSendError)
    session.publish(b"good", sequence_id=1)


# ---------------------------------------------------------------------------------------------- bad names

BAD_TOPICS = [
    "",
    "persistent://a/b",
    "://x",
    "foo://public/default/x",
    "persistent://pu blic/default/x",
    "persistent://public/de fault/x",
    "persistent://public//x",
    "persistent://public/default/",
]


@pytest.mark.parametrize("name", BAD_TOPICS)
def test_bad_topic_names(session: BinarySession, name: str) -> None:
    error = session.request(pb.CommandProducer(topic=name, producer_id=1, request_id=7), pb.CommandError)
    assert (error.request_id, error.error) == (7, pb.InvalidTopicName)
    error = session.request(
        pb.CommandSubscribe(topic=name, subscription="s", subType=0, consumer_id=1, request_id=8),
        pb.CommandError,
    )
    assert (error.request_id, error.error) == (8, pb.InvalidTopicName)
    assert error.message


@pytest.mark.parametrize("name", ["persistent://public/no-such/x", "persistent://no-such/no-such/x"])
def test_topics_in_missing_namespaces(session: BinarySession, name: str) -> None:
    error = session.request(pb.CommandProducer(topic=name, producer_id=1, request_id=7), pb.CommandError)
    assert error.request_id == 7
    assert error.message


def test_an_empty_subscription_name(session: BinarySession, topic: str) -> None:
    error = session.request(
        pb.CommandSubscribe(topic=topic, subscription="", subType=0, consumer_id=1, request_id=8),
        pb.CommandError,
    )
    assert (error.request_id, error.message) == (8, "Empty subscription name")


@pytest.mark.parametrize("name", ["../../etc", "a/b", "nul\x00name", "new\nline", "x" * 1000, "日本"])
def test_odd_subscription_names_are_names(client: pulsar.Client, topic: str, name: str) -> None:
    """They are never a path or a line of anything: consuming under them simply works."""
    consumer = client.subscribe(topic, name)
    client.create_producer(topic).send(b"x")
    message = consumer.receive(5000)
    assert message.data() == b"x"
    consumer.acknowledge(message)
    consumer.unsubscribe()
