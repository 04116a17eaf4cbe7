"""The binary protocol, command by command, from a bare socket: what exactly the broker answers."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from google.protobuf.message import Message

from geminga.wire import pulsar_pb2 as pb
from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.binary_session import (
    BinarySession,
    ConnectionEnded,
    frame,
    message_bytes,
    parse_frame,
    plain_metadata,
)
from tests.e2e.broker_process import BrokerProcess, Endpoints

NONE_ID = 2**64 - 1
QUIET_SECONDS = 0.3
Open = Callable[[], BinarySession]


@pytest.fixture
def open_session(broker: Endpoints) -> Iterator[Open]:
    """Sessions that have done their handshake."""
    sessions: list[BinarySession] = []

    def make() -> BinarySession:
        session = BinarySession(broker.binary_address)
        sessions.append(session)
        session.connect()
        return session

    yield make
    for session in sessions:
        session.close()


@pytest.fixture
def session(open_session: Open) -> BinarySession:
    return open_session()


def assert_silent(session: BinarySession) -> None:
    try:
        received = session.receive(QUIET_SECONDS)
    except TimeoutError:
        return
    raise AssertionError(f"unexpected {received}")


def flow(session: BinarySession, permits: int, consumer_id: int = 1) -> None:
    session.send(pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits))


def entry_ids(session: BinarySession, count: int) -> list[int]:
    return [session.expect(pb.CommandMessage).message_id.entryId for _ in range(count)]


# ----------------------------------------------------------------------------------------------- handshake


@pytest.mark.parametrize(("offered", "agreed"), [(20, 20), (15, 15), (6, 6)])
def test_the_lower_protocol_version_is_agreed(broker: Endpoints, offered: int, agreed: int) -> None:
    with BinarySession(broker.binary_address) as session:
        connected = session.connect(offered)
        assert connected.protocol_version == agreed
        assert connected.max_message_size == 5 * 1024 * 1024
        assert connected.server_version


def test_a_newer_client_is_served(broker: Endpoints) -> None:
    with BinarySession(broker.binary_address) as session:
        assert session.connect(99).protocol_version >= 20


def test_ping_gets_pong(session: BinarySession) -> None:
    session.send(pb.CommandPing())
    session.expect(pb.CommandPong)


def test_ping_gets_pong_before_the_handshake(broker: Endpoints) -> None:
    with BinarySession(broker.binary_address) as session:
        session.send(pb.CommandPing())
        session.expect(pb.CommandPong)


def test_pong_gets_nothing(session: BinarySession) -> None:
    session.send(pb.CommandPong())
    assert_silent(session)


def test_frames_may_arrive_byte_by_byte(broker: Endpoints, topic: str) -> None:
    with BinarySession(broker.binary_address) as session:
        for byte in frame(pb.CommandConnect(client_version="slow", protocol_version=20)):
            session.send_bytes(bytes([byte]))
        session.expect(pb.CommandConnected)


def test_many_frames_may_arrive_at_once(session: BinarySession) -> None:
    session.send_bytes(frame(pb.CommandPing()) * 100)
    for _ in range(100):
        session.expect(pb.CommandPong)


# ------------------------------------------------------------------------------------- lookup and metadata


def test_lookup_names_this_broker(session: BinarySession, broker: Endpoints, topic: str) -> None:
    answer = session.request(pb.CommandLookupTopic(topic=topic, request_id=7), pb.CommandLookupTopicResponse)
    assert answer.request_id == 7
    assert answer.response == pb.CommandLookupTopicResponse.Connect
    assert answer.authoritative
    assert answer.brokerServiceUrl.endswith(f":{broker.binary_address[1]}")
    assert answer.proxy_through_service_url, "the client stays on the address that it has, say a mapped port"


def test_lookup_of_a_bad_name(session: BinarySession) -> None:
    answer = session.request(
        pb.CommandLookupTopic(topic="persistent://a/b", request_id=7), pb.CommandLookupTopicResponse
    )
    assert answer.response == pb.CommandLookupTopicResponse.Failed
    assert answer.error == pb.InvalidTopicName
    assert "persistent://a/b" in answer.message


def test_lookup_in_a_missing_namespace(session: BinarySession) -> None:
    answer = session.request(
        pb.CommandLookupTopic(topic="persistent://public/no-such/x", request_id=7),
        pb.CommandLookupTopicResponse,
    )
    assert answer.response == pb.CommandLookupTopicResponse.Failed
    assert answer.error == pb.TopicNotFound
    assert answer.message == "Namespace not found"


def test_partition_metadata(session: BinarySession, admin: Admin, topic: str) -> None:
    admin.create_partitions(topic, 5)
    for name, expected in ((topic, 5), (topic + "-plain", 0), (topic + "-partition-3", 0)):
        answer = session.request(
            pb.CommandPartitionedTopicMetadata(topic=name, request_id=8),
            pb.CommandPartitionedTopicMetadataResponse,
        )
        assert answer.response == pb.CommandPartitionedTopicMetadataResponse.Success
        assert (answer.request_id, answer.partitions) == (8, expected)


def test_partition_metadata_of_a_bad_name(session: BinarySession) -> None:
    answer = session.request(
        pb.CommandPartitionedTopicMetadata(topic="persistent://a/b", request_id=8),
        pb.CommandPartitionedTopicMetadataResponse,
    )
    assert answer.response == pb.CommandPartitionedTopicMetadataResponse.Failed
    assert answer.error == pb.InvalidTopicName


def test_partition_metadata_without_creating(session: BinarySession, topic: str) -> None:
    answer = session.request(
        pb.CommandPartitionedTopicMetadata(topic=topic, request_id=8, metadata_auto_creation_enabled=False),
        pb.CommandPartitionedTopicMetadataResponse,
    )
    assert answer.response == pb.CommandPartitionedTopicMetadataResponse.Failed
    assert answer.error == pb.TopicNotFound


def test_topics_of_a_namespace(session: BinarySession, topic: str) -> None:
    session.create_producer(topic)
    request = pb.CommandGetTopicsOfNamespace(
        namespace="public/default", request_id=9, mode=pb.CommandGetTopicsOfNamespace.PERSISTENT
    )
    answer = session.request(request, pb.CommandGetTopicsOfNamespaceResponse)
    assert answer.request_id == 9
    assert topic in answer.topics
    assert not answer.filtered


def test_topics_by_pattern_and_hash(session: BinarySession) -> None:
    """The real broker applies patterns of at most 50 characters and leaves longer ones to the client.

    A broker may leave them all to the client, if it says so.
    """
    stem = f"persistent://public/default/{time.time_ns() % 10**12}"
    for number in range(3):
        session.create_producer(f"{stem}-{number}", number)
    request = pb.CommandGetTopicsOfNamespace(
        namespace="public/default", request_id=9, topics_pattern=f"{stem}-[01]"
    )
    answer = session.request(request, pb.CommandGetTopicsOfNamespaceResponse)
    assert answer.changed
    if answer.filtered:
        assert sorted(answer.topics) == [f"{stem}-0", f"{stem}-1"]
    else:
        assert set(answer.topics) >= {f"{stem}-{number}" for number in range(3)}
    request.topics_hash = answer.topics_hash
    again = session.request(request, pb.CommandGetTopicsOfNamespaceResponse)
    assert (list(again.topics), again.changed) == ([], False)
    assert again.topics_hash == answer.topics_hash


def test_topics_of_a_missing_namespace(session: BinarySession) -> None:
    answer = session.request(
        pb.CommandGetTopicsOfNamespace(namespace="public/no-such", request_id=9),
        pb.CommandGetTopicsOfNamespaceResponse,
    )
    assert list(answer.topics) == []


# ------------------------------------------------------------------------------------------------ producers


def test_a_producer_gets_a_name(session: BinarySession, topic: str) -> None:
    answer = session.create_producer(topic)
    assert answer.producer_name.startswith("standalone-")
    assert (answer.last_sequence_id, answer.producer_ready) == (-1, True)


def test_the_same_producer_id_again_is_the_same_producer(session: BinarySession, topic: str) -> None:
    first = session.create_producer(topic)
    assert session.create_producer(topic).producer_name == first.producer_name


def test_a_second_producer_of_a_name(open_session: Open, topic: str) -> None:
    command = pb.CommandProducer(topic=topic, producer_id=1, request_id=5, producer_name="orders-1")
    open_session().request(command, pb.CommandProducerSuccess)
    error = open_session().request(command, pb.CommandError)
    assert (error.request_id, error.error) == (5, pb.ProducerBusy)
    assert "Producer with name 'orders-1' is already connected" in error.message


def test_a_live_producer_keeps_its_name_whatever_the_epoch(open_session: Open, topic: str) -> None:
    old, new = open_session(), open_session()
    command = pb.CommandProducer(
        topic=topic, producer_id=1, request_id=5, epoch=0, user_provided_producer_name=False
    )
    command.producer_name = old.request(command, pb.CommandProducerSuccess).producer_name
    command.epoch = 1
    assert new.request(command, pb.CommandError).error == pb.ProducerBusy
    old.publish(b"still mine")


def test_receipts(session: BinarySession, topic: str) -> None:
    session.create_producer(topic, 7)
    for sequence_id in (0, 1, 5):
        receipt = session.publish(b"x", 7, sequence_id)
        assert (receipt.producer_id, receipt.sequence_id) == (7, sequence_id)
    assert receipt.message_id.entryId == 2


def test_receipts_of_a_pipeline_come_in_order(session: BinarySession, topic: str) -> None:
    session.create_producer(topic)
    for number in range(500):
        session.send(
            pb.CommandSend(producer_id=1, sequence_id=number, num_messages=1),
            message_bytes(plain_metadata(number), b"%d" % number),
        )
    receipts = [session.expect(pb.CommandSendReceipt) for _ in range(500)]
    assert [receipt.sequence_id for receipt in receipts] == list(range(500))
    assert [receipt.message_id.entryId for receipt in receipts] == list(range(500))


def test_a_receipt_repeats_the_highest_sequence_id(session: BinarySession, topic: str) -> None:
    session.create_producer(topic)
    session.send(
        pb.CommandSend(producer_id=1, sequence_id=3, highest_sequence_id=9, num_messages=7),
        message_bytes(plain_metadata(3), b"batch"),
    )
    receipt = session.expect(pb.CommandSendReceipt)
    assert (receipt.sequence_id, receipt.highest_sequence_id) == (3, 9)


def test_a_message_without_checksum_is_accepted(session: BinarySession, topic: str) -> None:
    session.create_producer(topic)
    covered = message_bytes(plain_metadata(), b"bare")[6:]
    session.send(pb.CommandSend(producer_id=1, sequence_id=0, num_messages=1), covered)
    assert session.expect(pb.CommandSendReceipt).message_id.entryId == 0


def test_close_producer(open_session: Open, topic: str) -> None:
    session = open_session()
    command = pb.CommandProducer(topic=topic, producer_id=1, request_id=5, producer_name="orders-1")
    session.request(command, pb.CommandProducerSuccess)
    closed = session.request(pb.CommandCloseProducer(producer_id=1, request_id=6), pb.CommandSuccess)
    assert closed.request_id == 6
    open_session().request(command, pb.CommandProducerSuccess)


# ------------------------------------------------------------------------------------ consumers and permits


def test_nothing_is_sent_without_permits(open_session: Open, topic: str) -> None:
    producer, consumer = open_session(), open_session()
    producer.create_producer(topic)
    consumer.subscribe(topic)
    for number in range(5):
        producer.publish(b"%d" % number, sequence_id=number)
    assert_silent(consumer)
    flow(consumer, 2)
    assert entry_ids(consumer, 2) == [0, 1]
    assert_silent(consumer)
    flow(consumer, 10)
    assert entry_ids(consumer, 3) == [2, 3, 4]
    assert_silent(consumer)


def test_permits_count_the_messages_of_a_batch(open_session: Open, topic: str) -> None:
    """A whole entry goes out while any permit is left; the debt must be paid before the next.

    The real broker is looser with Exclusive: what one read has brought goes out without a second look.
    """
    producer, consumer = open_session(), open_session()
    producer.create_producer(topic)
    consumer.subscribe(topic, kind=pb.CommandSubscribe.Shared)
    for number in range(2):
        metadata = plain_metadata(number)
        metadata.num_messages_in_batch = 10
        producer.send(
            pb.CommandSend(producer_id=1, sequence_id=number, num_messages=10), message_bytes(metadata, b"")
        )
        producer.expect(pb.CommandSendReceipt)
    flow(consumer, 3)
    assert entry_ids(consumer, 1) == [0]
    flow(consumer, 5)
    assert_silent(consumer)
    flow(consumer, 3)
    assert entry_ids(consumer, 1) == [1]


def test_a_message_arrives_byte_for_byte(open_session: Open, topic: str) -> None:
    """What follows the command is what the producer sent, checksum included; no stamp before it."""
    producer, consumer = open_session(), open_session()
    producer.create_producer(topic)
    consumer.subscribe(topic)
    flow(consumer, 10)
    metadata = plain_metadata()
    metadata.properties.add(key="a", value="b")
    sent = message_bytes(metadata, b"\x00\xffbody")
    producer.send(pb.CommandSend(producer_id=1, sequence_id=0, num_messages=1), sent)
    producer.expect(pb.CommandSendReceipt)
    received = consumer.receive()
    assert received.rest == sent
    assert received.command.consumer_id == 1
    assert received.command.redelivery_count == 0
    assert list(received.command.ack_set) == []
    assert received.command.message_id.partition == -1


def test_messages_of_a_partition_name_it(open_session: Open, admin: Admin, topic: str) -> None:
    admin.create_partitions(topic, 3)
    name = f"{topic}-partition-2"
    producer, consumer = open_session(), open_session()
    producer.create_producer(name)
    consumer.subscribe(name)
    flow(consumer, 1)
    producer.publish(b"x")
    assert consumer.expect(pb.CommandMessage).message_id.partition == 2


def test_acknowledgement_with_a_receipt(open_session: Open, admin: Admin, topic: str) -> None:
    producer, consumer = open_session(), open_session()
    producer.create_producer(topic)
    consumer.subscribe(topic)
    flow(consumer, 10)
    message_id = producer.publish(b"x").message_id
    consumer.expect(pb.CommandMessage)
    answer = consumer.request(
        pb.CommandAck(
            consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[message_id], request_id=11
        ),
        pb.CommandAckResponse,
    )
    assert (answer.consumer_id, answer.request_id, answer.message) == (1, 11, "")
    assert not answer.HasField("error")
    assert admin.backlog(topic, "s") == 0


def test_acknowledgement_without_a_request_id_gets_nothing(open_session: Open, topic: str) -> None:
    producer, consumer = open_session(), open_session()
    producer.create_producer(topic)
    consumer.subscribe(topic)
    flow(consumer, 10)
    message_id = producer.publish(b"x").message_id
    consumer.expect(pb.CommandMessage)
    consumer.send(pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[message_id]))
    assert_silent(consumer)


@pytest.mark.parametrize(("ledger_id", "entry_id"), [(1, 1), (2**40, 0), (0, 0)])
def test_acknowledging_unknown_positions_is_harmless(
    session: BinarySession, topic: str, ledger_id: int, entry_id: int
) -> None:
    session.subscribe(topic)
    message_id = pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id)
    answer = session.request(
        pb.CommandAck(
            consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[message_id], request_id=11
        ),
        pb.CommandAckResponse,
    )
    assert answer.request_id == 11


@pytest.mark.parametrize("kind", [pb.CommandAck.Individual, pb.CommandAck.Cumulative])
def test_an_acknowledgement_of_a_consumer_that_an_unload_has_closed_is_refused(
    open_session: Open, admin: Admin, topic: str, kind: pb.CommandAck.AckType
) -> None:
    """Answering with success would lose it: the client believes that it counts."""
    producer, consumer = open_session(), open_session()
    producer.create_producer(topic)
    consumer.subscribe(topic)
    message_id = producer.publish(b"x").message_id
    assert admin.put(f"/admin/v2/{topic_path(topic)}/unload").status == 204
    consumer.expect(pb.CommandCloseConsumer)
    consumer.send(pb.CommandAck(consumer_id=1, ack_type=kind, message_id=[message_id], request_id=12))
    answer = consumer.expect(pb.CommandAckResponse)
    assert answer.request_id == 12
    assert "onsumer" in answer.message
    assert admin.backlog(topic, "s") == 1


def test_partly_acknowledged_batches_say_what_is_left(open_session: Open, topic: str) -> None:
    producer, consumer = open_session(), open_session()
    producer.create_producer(topic)
    consumer.subscribe(topic, kind=pb.CommandSubscribe.Shared)
    metadata = plain_metadata()
    metadata.num_messages_in_batch = 10
    producer.send(pb.CommandSend(producer_id=1, sequence_id=0, num_messages=10), message_bytes(metadata, b""))
    flow(consumer, 100)
    message_id = consumer.expect(pb.CommandMessage).message_id
    message_id.ack_set.append(0b1111100101)
    message_id.batch_size = 10
    consumer.request(
        pb.CommandAck(
            consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[message_id], request_id=3
        ),
        pb.CommandAckResponse,
    )
    consumer.send(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
    again = consumer.expect(pb.CommandMessage)
    assert list(again.ack_set) == [0b1111100101]


def test_redelivery_of_named_messages(open_session: Open, topic: str) -> None:
    producer, consumer = open_session(), open_session()
    producer.create_producer(topic)
    consumer.subscribe(topic, kind=pb.CommandSubscribe.Shared)
    flow(consumer, 100)
    for number in range(4):
        producer.publish(b"%d" % number, sequence_id=number)
    ids = [consumer.expect(pb.CommandMessage).message_id for _ in range(4)]
    consumer.send(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=[ids[3], ids[1]]))
    again = [consumer.expect(pb.CommandMessage) for _ in range(2)]
    assert [(m.message_id.entryId, m.redelivery_count) for m in again] == [(1, 1), (3, 1)]
    assert_silent(consumer)


def test_redelivery_waits_for_permits(open_session: Open, topic: str) -> None:
    producer, consumer = open_session(), open_session()
    producer.create_producer(topic)
    consumer.subscribe(topic)
    flow(consumer, 2)
    for number in range(3):
        producer.publish(b"%d" % number, sequence_id=number)
    assert entry_ids(consumer, 2) == [0, 1]
    consumer.send(pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1))
    assert_silent(consumer)
    flow(consumer, 10)
    assert entry_ids(consumer, 3) == [0, 1, 2]


def test_a_second_exclusive_consumer(open_session: Open, topic: str) -> None:
    open_session().subscribe(topic)
    second = open_session()
    command = pb.CommandSubscribe(
        topic=topic, subscription="s", subType=pb.CommandSubscribe.Exclusive, consumer_id=1, request_id=4
    )
    error = second.request(command, pb.CommandError)
    assert (error.request_id, error.error) == (4, pb.ConsumerBusy)
    assert error.message == "Exclusive consumer is already connected"
    command.subType = pb.CommandSubscribe.Shared
    command.consumer_id = 2
    error = second.request(command, pb.CommandError)
    assert error.error == pb.ConsumerBusy
    assert error.message.startswith("Subscription is of different type.")


def test_the_same_consumer_id_again_is_the_same_consumer(session: BinarySession, topic: str) -> None:
    session.subscribe(topic)
    session.subscribe(topic)


def test_failover_consumers_are_told_who_is_active(open_session: Open, topic: str) -> None:
    """A newcomer that does not become active is told so at once, even before the success of its SUBSCRIBE."""
    first, second = open_session(), open_session()
    first.subscribe(topic, kind=pb.CommandSubscribe.Failover, consumer_name="a")
    change = first.expect(pb.CommandActiveConsumerChange)
    assert (change.consumer_id, change.is_active) == (1, True)
    second.send(
        pb.CommandSubscribe(
            topic=topic,
            subscription="s",
            subType=pb.CommandSubscribe.Failover,
            consumer_id=1,
            consumer_name="b",
            request_id=2,
        )
    )
    answers = [second.receive().command for _ in range(2)]
    assert {type(answer) for answer in answers} == {pb.CommandSuccess, pb.CommandActiveConsumerChange}
    [told] = [answer for answer in answers if isinstance(answer, pb.CommandActiveConsumerChange)]
    winner, loser = (second, first) if told.is_active else (first, second)
    if told.is_active:
        assert not first.expect(pb.CommandActiveConsumerChange).is_active
    winner.close()
    assert loser.expect(pb.CommandActiveConsumerChange).is_active


def test_exclusive_consumers_are_told_nothing(session: BinarySession, topic: str) -> None:
    session.subscribe(topic)
    assert_silent(session)


def test_non_durable_subscription_from_an_id(session: BinarySession, topic: str) -> None:
    """The broker begins at the given place itself; clients leave that message out unless told otherwise."""
    session.create_producer(topic)
    ids = [session.publish(b"%d" % number, sequence_id=number).message_id for number in range(5)]
    session.subscribe(topic, durable=False, start_message_id=ids[2])
    flow(session, 10)
    assert entry_ids(session, 3) == [2, 3, 4]


def test_last_message_id(session: BinarySession, topic: str) -> None:
    session.create_producer(topic)
    session.subscribe(topic)
    request = pb.CommandGetLastMessageId(consumer_id=1, request_id=5)
    empty = session.request(request, pb.CommandGetLastMessageIdResponse)
    assert (empty.last_message_id.ledgerId, empty.last_message_id.entryId) == (NONE_ID, NONE_ID)
    last = session.publish(b"x").message_id
    answer = session.request(request, pb.CommandGetLastMessageIdResponse)
    assert answer.request_id == 5
    assert (answer.last_message_id.ledgerId, answer.last_message_id.entryId) == (last.ledgerId, last.entryId)
    assert (answer.last_message_id.partition, answer.last_message_id.batch_index) == (-1, -1)
    mark_delete = answer.consumer_mark_delete_position
    assert (mark_delete.ledgerId, mark_delete.entryId) == (last.ledgerId, NONE_ID)


def test_seek_closes_the_consumer_first(open_session: Open, topic: str) -> None:
    """So that what is under way is not taken for what comes after: clients subscribe anew."""
    session = open_session()
    session.create_producer(topic, 9)
    session.subscribe(topic)
    ids = [session.publish(b"%d" % number, 9, number).message_id for number in range(5)]
    session.send(pb.CommandSeek(consumer_id=1, request_id=6, message_id=ids[3]))
    assert session.expect(pb.CommandCloseConsumer).consumer_id == 1
    assert session.expect(pb.CommandSuccess).request_id == 6
    session.subscribe(topic)
    flow(session, 10)
    assert entry_ids(session, 2) == [3, 4]


def test_seek_to_nothing(session: BinarySession, topic: str) -> None:
    session.subscribe(topic)
    error = session.request(pb.CommandSeek(consumer_id=1, request_id=6), pb.CommandError)
    assert error.request_id == 6


def test_unsubscribe_and_close(session: BinarySession, topic: str) -> None:
    session.subscribe(topic)
    answer = session.request(pb.CommandUnsubscribe(consumer_id=1, request_id=6), pb.CommandSuccess)
    assert answer.request_id == 6
    session.subscribe(topic)
    answer = session.request(pb.CommandCloseConsumer(consumer_id=1, request_id=7), pb.CommandSuccess)
    assert answer.request_id == 7
    session.subscribe(topic)


def test_consumer_statistics(open_session: Open, topic: str) -> None:
    producer, session = open_session(), open_session()
    producer.create_producer(topic, 9)
    session.subscribe(topic, consumer_name="worker-1")
    flow(session, 10)
    producer.publish(b"x", 9)
    producer.publish(b"y", 9, 1)
    assert entry_ids(session, 2) == [0, 1]
    answer = session.request(
        pb.CommandConsumerStats(consumer_id=1, request_id=5), pb.CommandConsumerStatsResponse
    )
    assert (answer.request_id, answer.consumerName, answer.type) == (5, "worker-1", "Exclusive")
    assert (answer.msgBacklog, answer.availablePermits) == (2, 8)


# --------------------------------------------------------------------------- every command gets some answer

MESSAGE_ID = pb.MessageIdData(ledgerId=1, entryId=1)
TXN = {"txnid_least_bits": 1, "txnid_most_bits": 0}
SCHEMA = pb.Schema(name="x", type=pb.Schema.String, schema_data=b"")
REQUESTS: list[Message] = [
    pb.CommandLookupTopic(topic="t", request_id=5),
    pb.CommandPartitionedTopicMetadata(topic="t", request_id=5),
    pb.CommandProducer(topic="t-every", producer_id=1, request_id=5),
    pb.CommandSubscribe(topic="t-every", subscription="s", subType=1, consumer_id=1, request_id=5),
    pb.CommandUnsubscribe(consumer_id=99, request_id=5),
    pb.CommandCloseProducer(producer_id=99, request_id=5),
    pb.CommandCloseConsumer(consumer_id=99, request_id=5),
    pb.CommandSeek(consumer_id=99, request_id=5, message_publish_time=1),
    pb.CommandGetLastMessageId(consumer_id=99, request_id=5),
    pb.CommandGetTopicsOfNamespace(namespace="public/default", request_id=5),
    pb.CommandGetTopicsOfNamespace(namespace="public/default", request_id=5, topics_pattern="("),
    pb.CommandGetSchema(topic="t-no-schema", request_id=5),
    pb.CommandGetOrCreateSchema(topic="t-never-made", request_id=5, schema=SCHEMA),
    pb.CommandTcClientConnectRequest(request_id=5, tc_id=0),
    pb.CommandNewTxn(request_id=5, tc_id=3, txn_ttl_seconds=10),
    pb.CommandAddPartitionToTxn(request_id=5, partitions=["t"], **TXN),
    pb.CommandAddSubscriptionToTxn(request_id=5, **TXN),
    pb.CommandEndTxn(request_id=5, txn_action=pb.COMMIT, **TXN),
    pb.CommandWatchTopicList(
        request_id=5, watcher_id=1, namespace="public/default", topics_pattern="no-.*", topics_hash=""
    ),
    pb.CommandWatchTopicListClose(request_id=5, watcher_id=1),
]


@pytest.mark.parametrize("command", REQUESTS, ids=lambda command: type(command).__name__)
def test_every_request_is_answered(session: BinarySession, command: Message) -> None:
    """Done, or an error with the request's id, in its own kind of answer or as ERROR."""
    session.send(command)
    answer = session.receive().command
    assert answer.request_id == 5
    session.send(pb.CommandPing())
    session.expect(pb.CommandPong)


@pytest.mark.parametrize(
    "command",
    [
        pb.CommandUnsubscribe(consumer_id=99, request_id=5),
        pb.CommandSeek(consumer_id=99, request_id=5, message_publish_time=1),
        pb.CommandGetLastMessageId(consumer_id=99, request_id=5),
    ],
    ids=lambda command: type(command).__name__,
)
def test_requests_for_an_unknown_consumer(session: BinarySession, command: Message) -> None:
    error = session.request(command, pb.CommandError)
    assert (error.request_id, error.error) == (5, pb.MetadataError)
    assert error.message == "Consumer not found"


COORDINATORS = "persistent://pulsar/system/transaction_coordinator_assign"


@pytest.mark.geminga_only
@pytest.mark.parametrize("topic", [COORDINATORS, f"{COORDINATORS}-partition-0"])
def test_a_client_built_for_transactions_is_refused_at_once(session: BinarySession, topic: str) -> None:
    """With 0 partitions, Java's client 2.10.0 asked for a coordinator for ever."""
    reason = "transactions are not served by this broker: build the client without them (enableTransaction)"
    partitions = session.request(
        pb.CommandPartitionedTopicMetadata(topic=topic, request_id=5),
        pb.CommandPartitionedTopicMetadataResponse,
    )
    assert partitions.response == pb.CommandPartitionedTopicMetadataResponse.Failed
    assert (partitions.error, partitions.message) == (pb.NotAllowedError, reason)
    found = session.request(pb.CommandLookupTopic(topic=topic, request_id=6), pb.CommandLookupTopicResponse)
    assert found.response == pb.CommandLookupTopicResponse.Failed
    assert (found.error, found.message) == (pb.NotAllowedError, reason)
    connected = session.request(
        pb.CommandTcClientConnectRequest(request_id=7, tc_id=0), pb.CommandTcClientConnectResponse
    )
    assert connected.error == pb.NotAllowedError


def test_an_unknown_transaction_coordinator_is_named(session: BinarySession) -> None:
    session.send(pb.CommandNewTxn(request_id=5, tc_id=3, txn_ttl_seconds=10))
    answer = session.receive().command
    assert answer.request_id == 5
    assert answer.error == pb.TransactionCoordinatorNotFound


def test_the_schema_of_a_topic_without_one(session: BinarySession, topic: str) -> None:
    session.create_producer(topic)
    session.send(pb.CommandGetSchema(topic=topic, request_id=5))
    answer = session.receive().command
    assert answer.request_id == 5
    code = answer.error if isinstance(answer, pb.CommandError) else answer.error_code
    assert code == pb.TopicNotFound


# ------------------------------------------------------------------------------------------------ keep-alive


@pytest.mark.geminga_only
def test_a_silent_peer_is_asked_and_then_dropped(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", settings={"keepAliveIntervalSeconds": "1"}) as process:
        address = process.endpoints.binary_address
        with (
            BinarySession(address, answers_pings=False) as silent,
            BinarySession(address) as answering,
        ):
            silent.connect()
            answering.connect()
            silent.expect(pb.CommandPing)
            assert silent.is_closed_by_broker()
            answering.send(pb.CommandPing())
            answering.expect(pb.CommandPong)


def test_a_frame_has_exactly_the_bytes_that_it_says(broker: Endpoints) -> None:
    """Read the very first answer without any decoder in between."""
    with socket.create_connection(broker.binary_address, timeout=10) as plain:
        plain.sendall(frame(pb.CommandConnect(client_version="x", protocol_version=20)))
        header = plain.recv(4, socket.MSG_WAITALL)
        body = plain.recv(struct.unpack(">I", header)[0], socket.MSG_WAITALL)
        received = parse_frame(body)
        assert isinstance(received.command, pb.CommandConnected)
        assert received.rest == b""
        plain.settimeout(QUIET_SECONDS)
        with pytest.raises(TimeoutError):
            plain.recv(1)


def test_leaving_without_a_word(broker: Endpoints, open_session: Open, topic: str) -> None:
    with BinarySession(broker.binary_address) as session:
        session.connect()
        session.subscribe(topic)
        session.shut_down_writing()
        with pytest.raises(ConnectionEnded):
            session.receive()
    open_session().subscribe(topic)
