"""Clients that leave, hurry or interfere at the worst moment: nobody else notices, nothing stays behind."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator

import pytest

from geminga.wire import pulsar_pb2 as pb
from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.binary_session import (
    MAGIC_CHECKSUM,
    BinarySession,
    crc32c,
    frame,
    message_bytes,
    plain_metadata,
)
from tests.e2e.broker_process import Endpoints

pytestmark = pytest.mark.geminga_only


@pytest.fixture
def session(broker: Endpoints) -> Iterator[BinarySession]:
    with connected(broker) as session:
        yield session


def connected(broker: Endpoints) -> BinarySession:
    session = BinarySession(broker.binary_address)
    session.connect()
    return session


def flow(session: BinarySession, permits: int = 100) -> None:
    session.send(pb.CommandFlow(consumer_id=1, messagePermits=permits))


def delivered(session: BinarySession) -> bytes:
    """The payload of the next message, whatever notices come before it."""
    while True:
        received = session.receive()
        if isinstance(received.command, pb.CommandMessage):
            return received.rest


def publish_unreadable(session: BinarySession) -> None:
    """A well-framed message with a right checksum whose metadata nobody can parse."""
    covered = (3).to_bytes(4, "big") + b"\xff\xff\xff" + b"payload"
    session.send(
        pb.CommandSend(producer_id=1, sequence_id=0, num_messages=1),
        MAGIC_CHECKSUM + crc32c(covered).to_bytes(4, "big") + covered,
    )
    session.expect(pb.CommandSendReceipt)


def test_the_last_message_may_be_one_that_nobody_can_read(session: BinarySession, topic: str) -> None:
    session.create_producer(topic)
    session.subscribe(topic)
    publish_unreadable(session)
    answer = session.request(
        pb.CommandGetLastMessageId(consumer_id=1, request_id=7), pb.CommandGetLastMessageIdResponse
    )
    assert (answer.last_message_id.entryId, answer.last_message_id.batch_index) == (0, -1)


def test_a_seek_by_time_passes_what_nobody_can_read(
    broker: Endpoints, session: BinarySession, topic: str
) -> None:
    session.create_producer(topic)
    publish_unreadable(session)
    session.publish(b"good", sequence_id=1)
    with connected(broker) as consumer:
        consumer.subscribe(topic, initialPosition=pb.CommandSubscribe.Earliest)
        consumer.send(pb.CommandSeek(consumer_id=1, request_id=7, message_publish_time=1))
        consumer.expect(pb.CommandCloseConsumer)
        consumer.expect(pb.CommandSuccess)
        consumer.subscribe(topic)
        flow(consumer)
        assert delivered(consumer).endswith(b"good")


def test_a_consumer_of_an_unloaded_topic_cannot_unsubscribe_its_successor(
    broker: Endpoints, admin: Admin, session: BinarySession, topic: str
) -> None:
    session.create_producer(topic, 9)
    with connected(broker) as stale, connected(broker) as successor:
        stale.subscribe(topic)
        status = admin.put(f"/admin/v2/{topic_path(topic)}/unload").status
        assert status == 204
        stale.expect(pb.CommandCloseConsumer)
        successor.subscribe(topic)
        error = stale.request(pb.CommandUnsubscribe(consumer_id=1, request_id=8), pb.CommandError)
        assert error.message == "Consumer not found"
        flow(successor)
        with connected(broker) as producer:
            producer.create_producer(topic)
            producer.publish(b"still subscribed")
        assert delivered(successor).endswith(b"still subscribed")


def test_a_subscription_whose_first_client_vanished_serves_the_next(
    broker: Endpoints, session: BinarySession, topic: str
) -> None:
    """The first client is gone while its subscription is still being written down."""
    session.create_producer(topic)
    for attempt in range(20):
        name = f"s{attempt}"
        with connected(broker) as hasty:
            hasty.send(
                pb.CommandSubscribe(
                    topic=topic, subscription=name, subType=1, consumer_id=1, request_id=1, initialPosition=1
                )
            )
            gone_at_s = time.perf_counter() + attempt * 1e-4
            while time.perf_counter() < gone_at_s:
                pass
        with connected(broker) as patient:
            patient.subscribe(topic, name, kind=1, initialPosition=1)
            flow(patient)
            session.publish(b"%d" % attempt, sequence_id=attempt)
            assert delivered(patient).endswith(b"0")


def test_an_exclusive_producer_that_vanished_at_once_leaves_its_place(broker: Endpoints, topic: str) -> None:
    for attempt in range(8):
        with connected(broker) as hasty:
            hasty.send(
                pb.CommandProducer(
                    topic=topic,
                    producer_id=1,
                    request_id=1,
                    producer_access_mode=pb.ProducerAccessMode.Exclusive,
                )
            )
        deadline = time.monotonic() + 10
        while True:
            with connected(broker) as patient:
                patient.send(pb.CommandProducer(topic=topic, producer_id=1, request_id=2))
                answer = patient.receive().command
            if isinstance(answer, pb.CommandProducerSuccess):
                break
            assert time.monotonic() < deadline, f"attempt {attempt}: {answer}"


def test_opened_and_closed_in_one_breath(broker: Endpoints, topic: str) -> None:
    """What was closed before it was made is not made: its name and its place stay free."""
    with connected(broker) as hasty:
        hasty.send_bytes(
            frame(pb.CommandProducer(topic=topic, producer_id=1, request_id=1, producer_name="mine"))
            + frame(pb.CommandCloseProducer(producer_id=1, request_id=2))
            + frame(
                pb.CommandSubscribe(topic=topic, subscription="s", subType=0, consumer_id=1, request_id=3)
            )
            + frame(pb.CommandCloseConsumer(consumer_id=1, request_id=4))
        )
        answered = {hasty.receive().command.request_id for _ in range(4)}
        assert answered == {1, 2, 3, 4}
        with connected(broker) as other:
            named = pb.CommandProducer(topic=topic, producer_id=1, request_id=5, producer_name="mine")
            other.request(named, pb.CommandProducerSuccess)
            other.subscribe(topic)


def test_subscription_properties_have_a_bound(session: BinarySession, topic: str) -> None:
    large = [pb.KeyValue(key="k", value="v" * 70_000)]
    error = session.request(
        pb.CommandSubscribe(
            topic=topic,
            subscription="s",
            subType=0,
            consumer_id=1,
            request_id=3,
            subscription_properties=large,
        ),
        pb.CommandError,
    )
    assert "properties of 70001 bytes" in error.message


def test_a_producer_that_does_not_read_its_receipts_is_held_back(broker: Endpoints, topic: str) -> None:
    """Its own unread receipts fill its socket and then its outbox; then it is not read any more."""
    with connected(broker) as setup:
        setup.create_producer(topic)
    sent = frame(
        pb.CommandSend(producer_id=1, sequence_id=0, num_messages=1), message_bytes(plain_metadata(), b"x")
    )
    with socket.create_connection(broker.binary_address, timeout=10) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(frame(pb.CommandConnect(client_version="deaf", protocol_version=20)))
        deaf.sendall(frame(pb.CommandProducer(topic=topic, producer_id=1, request_id=1)))
        assert deaf.recv(1)
        deaf.settimeout(1)
        messages = 0
        # Held back; or disconnected, if connections of other tests want the memory of its outbox.
        with contextlib.suppress(TimeoutError, ConnectionError):
            while messages < 1_000_000:
                deaf.sendall(sent * 1000)
                messages += 1000
    assert messages < 1_000_000
    with connected(broker) as other:
        other.create_producer(topic)
        other.publish(b"undisturbed")
