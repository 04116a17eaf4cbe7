"""SEND and ACK with a transaction id, from a bare socket: refused, and nothing else notices."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from geminga.wire import pulsar_pb2 as pb
from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.binary_session import BinarySession, frame, message_bytes, plain_metadata
from tests.e2e.broker_process import Endpoints
from tests.e2e.waiting import eventually

NONE_ID = 2**64 - 1
WHOLE = {"txnid_least_bits": 5, "txnid_most_bits": 0}
HALVES = pytest.mark.parametrize("half", [{"txnid_least_bits": 5}, {"txnid_most_bits": 0}])


@pytest.fixture
def session(broker: Endpoints) -> Iterator[BinarySession]:
    with BinarySession(broker.binary_address) as session:
        session.connect()
        yield session


def produce_to(session: BinarySession, topic: str) -> None:
    """With a lookup first: without one Pulsar does not own the topic yet."""
    lookup = pb.CommandLookupTopic(topic=topic, request_id=session.next_request_id())
    session.request(lookup, pb.CommandLookupTopicResponse)
    session.create_producer(topic)


def send_frame(sequence_id: int, *, metadata: dict[str, Any] | None = None, **fields: Any) -> bytes:
    """A SEND whose payload is its sequence id."""
    command = pb.CommandSend(producer_id=1, sequence_id=sequence_id, num_messages=1, **fields)
    described = plain_metadata(sequence_id)
    described.MergeFrom(
        pb.MessageMetadata(producer_name="raw", sequence_id=sequence_id, publish_time=1, **metadata or {})
    )
    return frame(command, message_bytes(described, b"%d" % sequence_id))


def answers(session: BinarySession, count: int) -> list[tuple[int, int]]:
    """(sequence id, entry id) of each receipt; for an error minus its code instead of the entry id."""
    found = []
    for _ in range(count):
        answer = session.receive().command
        assert isinstance(answer, pb.CommandSendReceipt | pb.CommandSendError), answer
        is_error = isinstance(answer, pb.CommandSendError)
        found.append((answer.sequence_id, -answer.error if is_error else answer.message_id.entryId))
    return found


def payloads(session: BinarySession, topic: str, count: int) -> list[bytes]:
    session.subscribe(topic, consumer_id=9, initialPosition=pb.CommandSubscribe.Earliest)
    session.send(pb.CommandFlow(consumer_id=9, messagePermits=100))
    received = [session.receive() for _ in range(count)]
    assert all(isinstance(one.command, pb.CommandMessage) for one in received)
    return [one.rest[-1:] for one in received]


@pytest.mark.parametrize("metadata", [{}, WHOLE], ids=["command alone", "metadata as well"])
def test_a_send_of_a_transaction_is_not_stored(
    session: BinarySession, topic: str, metadata: dict[str, int]
) -> None:
    produce_to(session, topic)
    session.send_bytes(
        send_frame(0) + send_frame(1, metadata=metadata, **WHOLE) + send_frame(2) + send_frame(3, **WHOLE)
    )
    # The order of the answers is that of another test: Pulsar's errors overtake receipts.
    assert sorted(answers(session, 4)) == [(0, 0), (1, -pb.NotAllowedError), (2, 1), (3, -pb.NotAllowedError)]
    # The producer continues.
    assert session.publish(b"4", sequence_id=4).message_id.entryId == 2
    assert payloads(session, topic, 3) == [b"0", b"2", b"4"]


@pytest.mark.geminga_only  # stored on Pulsar, although 0 is the default of a half that is left out
@HALVES
def test_half_an_id_is_an_id(session: BinarySession, topic: str, half: dict[str, int]) -> None:
    produce_to(session, topic)
    session.send_bytes(send_frame(0, **half) + send_frame(1))
    assert answers(session, 2) == [(0, -pb.NotAllowedError), (1, 0)]


@pytest.mark.geminga_only
def test_the_error_says_what_to_do(session: BinarySession, topic: str) -> None:
    produce_to(session, topic)
    session.send_bytes(send_frame(0, **WHOLE))
    error = session.expect(pb.CommandSendError)
    assert error.message == (
        "transactions are not served by this broker: send the message without a transaction"
    )


@pytest.mark.geminga_only
def test_a_refusal_keeps_its_place_among_the_receipts(session: BinarySession, topic: str) -> None:
    """Java's client ignores the error of a message that is not its oldest one without an answer, takes the
    next receipt for a lost one, and sends again what is stored."""
    produce_to(session, topic)
    refused = {3, 4, 7, 9}
    session.send_bytes(b"".join(send_frame(i, **(WHOLE if i in refused else {})) for i in range(10)))
    assert [sequence_id for sequence_id, _ in answers(session, 10)] == list(range(10))
    assert payloads(session, topic, 6) == [b"%d" % i for i in range(10) if i not in refused]


def test_a_chunk_of_a_transaction_is_not_stored(session: BinarySession, topic: str) -> None:
    produce_to(session, topic)
    chunk = {"uuid": "u", "chunk_id": 0, "num_chunks_from_msg": 2, "total_chunk_msg_size": 2}
    session.send_bytes(send_frame(0, metadata=chunk | WHOLE, is_chunk=True, **WHOLE) + send_frame(1))
    assert sorted(answers(session, 2)) == [(0, -pb.NotAllowedError), (1, 0)]


def test_a_damaged_message_of_a_transaction_is_damaged_first(session: BinarySession, topic: str) -> None:
    produce_to(session, topic)
    session.send(
        pb.CommandSend(producer_id=1, sequence_id=3, num_messages=1, **WHOLE),
        message_bytes(plain_metadata(3), b"x", checksum=1),
    )
    assert session.expect(pb.CommandSendError).error == pb.ChecksumError


@pytest.mark.geminga_only  # Pulsar cannot determine any more whether it is a duplicate
def test_deduplication_knows_nothing_of_a_refused_message(
    session: BinarySession, admin: Admin, topic: str
) -> None:
    """Sent again without its transaction, it is stored, and not taken for a duplicate."""
    produce_to(session, topic)
    path = f"/admin/v2/{topic_path(topic)}"
    assert admin.post(f"{path}/deduplicationEnabled", True).status in (200, 204)
    eventually(lambda: admin.get(f"{path}/stats").json()["deduplicationStatus"] == "Enabled")
    session.send_bytes(send_frame(1) + send_frame(2, **WHOLE))
    assert sorted(answers(session, 2)) == [(1, 0), (2, -pb.NotAllowedError)]
    session.send_bytes(send_frame(1))
    duplicate = session.expect(pb.CommandSendReceipt)
    assert (duplicate.message_id.ledgerId, duplicate.message_id.entryId) == (NONE_ID, NONE_ID)
    assert session.publish(b"2", sequence_id=2).message_id.entryId == 1


ACKS = {
    "individual": {},
    "cumulative": {"ack_type": pb.CommandAck.Cumulative},
    "part of a batch": {"ack_set": [0]},
    "several": {"count": 2},
}


@pytest.mark.parametrize("shape", ACKS.values(), ids=ACKS)
@pytest.mark.parametrize("request_id", [None, 77], ids=["no answer wanted", "answer wanted"])
def test_an_ack_of_a_transaction_does_nothing(
    broker: Endpoints, session: BinarySession, topic: str, shape: dict[str, Any], request_id: int | None
) -> None:
    produce_to(session, topic)
    session.subscribe(topic)
    stored = [session.publish(b"%d" % i, sequence_id=i).message_id for i in range(3)]
    session.send(pb.CommandFlow(consumer_id=1, messagePermits=10))
    for _ in stored:
        session.expect(pb.CommandMessage)
    acked = stored[: shape.get("count", 1)]
    ids = [
        pb.MessageIdData(ledgerId=one.ledgerId, entryId=one.entryId, ack_set=shape.get("ack_set", []))
        for one in acked
    ]
    kind = shape.get("ack_type", pb.CommandAck.Individual)
    session.send(pb.CommandAck(consumer_id=1, ack_type=kind, message_id=ids, request_id=request_id, **WHOLE))
    if request_id is not None:
        answer = session.expect(pb.CommandAckResponse)
        assert (answer.request_id, answer.error) == (77, pb.NotAllowedError)
    # The consumer continues: this one counts.
    last = stored[2]
    plain = pb.MessageIdData(ledgerId=last.ledgerId, entryId=last.entryId)
    session.send(
        pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=[plain], request_id=78)
    )
    answer = session.expect(pb.CommandAckResponse)
    assert (answer.request_id, answer.HasField("error")) == (78, False)
    session.close()
    with BinarySession(broker.binary_address) as other:
        other.connect()
        other.subscribe(topic)
        other.send(pb.CommandFlow(consumer_id=1, messagePermits=10))
        again = [other.expect(pb.CommandMessage).message_id.entryId for _ in range(2)]
    assert again == [0, 1]
