"""Producers share the memory for what is not durable yet: none is left out, none blocks others for long."""

from __future__ import annotations

import struct
import urllib.request
from collections.abc import Iterator

import pytest
from fastcrc.crc32 import iscsi

from geminga.wire import pulsar_pb2 as pb
from tests.e2e.binary_session import MAGIC_CHECKSUM, BinarySession, frame, plain_metadata
from tests.e2e.broker_process import BrokerProcess, Endpoints

pytestmark = pytest.mark.geminga_only
BODY = bytes(900 * 1024)
"""Two of them are more than all the memory."""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    """A broker with 1 MiB for publishers."""
    settings = {"maxMessagePublishBufferSizeInMB": "1"}
    with BrokerProcess(tmp_path_factory.mktemp("small") / "data", settings=settings) as process:
        yield process.endpoints


def send_of(sequence_id: int, body: bytes = BODY) -> bytes:
    metadata = plain_metadata(sequence_id).SerializeToString()
    covered = struct.pack(">I", len(metadata)) + metadata + body
    send = pb.CommandSend(producer_id=1, sequence_id=sequence_id, num_messages=1)
    return frame(send, MAGIC_CHECKSUM + struct.pack(">I", iscsi(covered)) + covered)


def producer(small: Endpoints, number: int) -> BinarySession:
    session = BinarySession(small.binary_address)
    session.connect()
    session.create_producer(f"persistent://public/default/large-{number}")
    return session


def test_all_who_send_large_messages_get_their_turn(small: Endpoints) -> None:
    sessions = [producer(small, number) for number in range(6)]
    for sequence_id in range(3):
        for session in sessions:
            session.send_bytes(send_of(sequence_id))
    for sequence_id in range(3):
        for session in sessions:
            assert session.expect(pb.CommandSendReceipt).sequence_id == sequence_id
    with urllib.request.urlopen(f"{small.web_url}/metrics/") as answer:
        lines = answer.read().decode().splitlines()
    (waits,) = [float(line.split()[1]) for line in lines if line.startswith("geminga_publish_memory_waits ")]
    assert waits > 0
    for session in sessions:
        session.close()


def test_who_stalls_in_a_message_does_not_block_the_others_and_may_go_on(small: Endpoints) -> None:
    with producer(small, 10) as stalling, producer(small, 11) as other:
        data = send_of(5)
        stalling.send_bytes(data[:20_000])
        for sequence_id in range(2):
            other.send_bytes(send_of(sequence_id))
            assert other.expect(pb.CommandSendReceipt).sequence_id == sequence_id
        stalling.send_bytes(data[20_000:])
        assert stalling.expect(pb.CommandSendReceipt).sequence_id == 5


def test_who_leaves_in_a_message_gives_its_memory_back(small: Endpoints) -> None:
    for _ in range(5):
        with producer(small, 20) as leaving:
            leaving.send_bytes(send_of(0)[:50_000])
    with producer(small, 21) as other:
        other.send_bytes(send_of(0))
        assert other.expect(pb.CommandSendReceipt).sequence_id == 0


def test_half_messages_from_many_hold_up_neither_small_messages_nor_large_ones(small: Endpoints) -> None:
    data = send_of(0)
    halves = [producer(small, 100 + number) for number in range(30)]
    for number, half in enumerate(halves):
        half.send_bytes(data[: 10 if number % 10 else 300_000])
    with producer(small, 30) as other:
        for sequence_id in range(20):
            other.send_bytes(send_of(sequence_id, b"small"))
            assert other.expect(pb.CommandSendReceipt).sequence_id == sequence_id
        other.send_bytes(send_of(20))
        assert other.expect(pb.CommandSendReceipt).sequence_id == 20
    for half in halves:
        half.close()
