"""Producer deduplication, as Pulsar has it: what was sent again is confirmed and not stored again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pulsar
import pytest
from pulsar import InitialPosition

from geminga.wire import pulsar_pb2 as pb
from tests.e2e.admin_http import Admin
from tests.e2e.binary_session import BinarySession, message_bytes, plain_metadata
from tests.e2e.broker_process import Endpoints
from tests.e2e.waiting import eventually, payloads, receive_count

NOWHERE = 2**64 - 1
Make = Callable[..., pulsar.Client]


@pytest.fixture
def deduplicated(topic: str, admin: Admin, client: pulsar.Client) -> str:
    """A topic with deduplication switched on."""
    client.create_producer(topic).close()
    path = topic.replace("persistent://", "/admin/v2/persistent/")
    assert admin.post(f"{path}/deduplicationEnabled", True).status in (200, 204)
    eventually(lambda: admin.get(f"{path}/stats").json()["deduplicationStatus"] == "Enabled")
    return topic


@contextmanager
def session(broker: Endpoints, topic: str, name: str = "p") -> Iterator[tuple[BinarySession, int]]:
    """A raw connection with a producer 1 of that name, and the last sequence id that it was told."""
    with BinarySession(broker.binary_address) as connection:
        connection.connect()
        answer = connection.request(
            pb.CommandProducer(
                topic=topic,
                producer_id=1,
                request_id=connection.next_request_id(),
                producer_name=name,
                user_provided_producer_name=True,
            ),
            pb.CommandProducerSuccess,
        )
        yield connection, answer.last_sequence_id
        connection.send(pb.CommandCloseProducer(producer_id=1, request_id=connection.next_request_id()))
        connection.expect(pb.CommandSuccess)


def send(
    connection: BinarySession,
    sequence_id: int,
    payload: bytes,
    *,
    name: str = "p",
    highest: int | None = None,
    chunk: tuple[int, int] | None = None,
) -> tuple[int, int]:
    """Send one entry; (ledger id, entry id) of its receipt."""
    metadata = plain_metadata(sequence_id, name)
    command = pb.CommandSend(producer_id=1, sequence_id=sequence_id, num_messages=1)
    if highest is not None:
        metadata.highest_sequence_id = command.highest_sequence_id = highest
        metadata.num_messages_in_batch = command.num_messages = highest - sequence_id + 1
        single = pb.SingleMessageMetadata(payload_size=len(payload)).SerializeToString()
        payload = (len(single).to_bytes(4, "big") + single + payload) * command.num_messages
    if chunk is not None:
        metadata.chunk_id, metadata.num_chunks_from_msg = chunk
        metadata.uuid, metadata.total_chunk_msg_size = f"p-{sequence_id}", len(payload) * chunk[1]
        command.is_chunk = True
    connection.send(command, message_bytes(metadata, payload))
    receipt = connection.expect(pb.CommandSendReceipt)
    assert receipt.sequence_id == sequence_id
    return receipt.message_id.ledgerId, receipt.message_id.entryId


def entries(admin: Admin, topic: str) -> int:
    path = topic.replace("persistent://", "/admin/v2/persistent/")
    return int(admin.get(f"{path}/internalStats").json()["numberOfEntries"])


def test_what_is_sent_again_is_confirmed_and_not_stored(
    broker: Endpoints, admin: Admin, deduplicated: str
) -> None:
    with session(broker, deduplicated) as (connection, last):
        assert last == -1
        first = send(connection, 5, b"five")
        assert first[1] == 0
        assert send(connection, 5, b"five again") == (NOWHERE, NOWHERE)
        assert send(connection, 3, b"three") == (NOWHERE, NOWHERE)
        assert send(connection, 9, b"nine")[1] == 1
        assert send(connection, 10, b"batch", highest=14)[1] == 2
        assert send(connection, 14, b"in the batch") == (NOWHERE, NOWHERE)
        assert send(connection, 12, b"reaches beyond", highest=20) == (NOWHERE, NOWHERE)
        assert send(connection, 15, b"next")[1] == 3
    with session(broker, deduplicated) as (connection, last):
        assert last == 15
        assert send(connection, 15, b"next") == (NOWHERE, NOWHERE)
    with session(broker, deduplicated, "q") as (connection, last):
        assert last == -1
        assert send(connection, 15, b"of another", name="q")[1] == 4
    assert entries(admin, deduplicated) == 5


def test_chunks_of_a_message_share_its_id_and_the_last_one_settles_it(
    broker: Endpoints, admin: Admin, deduplicated: str
) -> None:
    with session(broker, deduplicated) as (connection, _):
        assert [send(connection, 4, b"x", chunk=(part, 3))[1] for part in range(3)] == [0, 1, 2]
        assert send(connection, 4, b"x", chunk=(2, 3)) == (NOWHERE, NOWHERE)
        assert send(connection, 5, b"x", chunk=(0, 2))[1] == 3
    with session(broker, deduplicated) as (connection, last):
        assert last == 4
        assert [send(connection, 5, b"x", chunk=(part, 2))[1] for part in range(2)] == [4, 5]
        assert send(connection, 6, b"y")[1] == 6
    assert entries(admin, deduplicated) == 7


@pytest.mark.geminga_only
def test_no_chunk_of_a_message_that_is_there_is_stored_again(broker: Endpoints, deduplicated: str) -> None:
    with session(broker, deduplicated) as (connection, _):
        assert [send(connection, 4, b"x", chunk=(part, 2))[1] for part in range(2)] == [0, 1]
        assert [send(connection, 4, b"x", chunk=(part, 2)) for part in range(2)] == [(NOWHERE, NOWHERE)] * 2


def test_a_client_that_comes_back_goes_on_after_its_last_id(client: pulsar.Client, deduplicated: str) -> None:
    consumer = client.subscribe(deduplicated, "s", initial_position=InitialPosition.Earliest)
    producer = client.create_producer(deduplicated, producer_name="p", initial_sequence_id=100)
    for number in range(3):
        producer.send(b"%d" % number)
    producer.close()
    producer = client.create_producer(deduplicated, producer_name="p")
    assert producer.last_sequence_id() == 103
    producer.send(b"again", sequence_id=102)
    producer.send(b"3")
    assert payloads(receive_count(consumer, 4)) == [b"0", b"1", b"2", b"3"]


def test_an_unload_keeps_what_is_known(broker: Endpoints, admin: Admin, deduplicated: str) -> None:
    path = deduplicated.replace("persistent://", "/admin/v2/persistent/")
    with session(broker, deduplicated) as (connection, _):
        for number in range(5):
            send(connection, number, b"x")
    assert admin.put(f"{path}/unload").status in (200, 204)
    with session(broker, deduplicated) as (connection, last):
        assert last == 4
        assert send(connection, 4, b"x") == (NOWHERE, NOWHERE)
        assert send(connection, 5, b"x")[0] != NOWHERE


def test_switched_off_everything_is_stored_and_nothing_remembered(
    broker: Endpoints, admin: Admin, deduplicated: str
) -> None:
    path = deduplicated.replace("persistent://", "/admin/v2/persistent/")
    with session(broker, deduplicated) as (connection, _):
        send(connection, 7, b"x")
        stats = admin.get(f"{path}/internalStats").json()
        assert "pulsar.dedup" in stats["cursors"]
        admin.post(f"{path}/deduplicationEnabled", False)
        eventually(lambda: admin.get(f"{path}/stats").json()["deduplicationStatus"] == "Disabled")
        assert send(connection, 7, b"x")[0] != NOWHERE
    with session(broker, deduplicated) as (_, last):
        assert last == -1
    assert "pulsar.dedup" not in admin.get(f"{path}/internalStats").json()["cursors"]
