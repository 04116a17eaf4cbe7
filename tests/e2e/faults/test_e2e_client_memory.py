"""What clients that do not read, or that say much of themselves, take of the memory of a real broker."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import urllib.request
from collections.abc import Iterator

import pytest
from fastcrc.crc32 import iscsi

from geminga.wire import pulsar_pb2 as pb
from tests.e2e.binary_session import MAGIC_CHECKSUM, BinarySession, frame, plain_metadata
from tests.e2e.broker_process import BrokerProcess, Endpoints
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.geminga_only
BODY = bytes(100_000)
MESSAGES = 200
STUCK = 30
TOPIC = "persistent://public/default/crowded"
METADATA = [pb.KeyValue(key="k", value="v" * 60_000)]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    """A broker with the least budget."""
    arguments = ["--memory", "160M"]
    with BrokerProcess(tmp_path_factory.mktemp("small") / "data", arguments=arguments) as process:
        yield process.endpoints


def part(broker: Endpoints, name: str) -> tuple[int, int]:
    """Configured and used bytes."""
    with urllib.request.urlopen(f"{broker.web_url}/geminga/v1/memory") as answer:
        parts = {part["name"]: part for part in json.load(answer)["parts"]}
    return parts[name]["configured_bytes"], parts[name]["used_bytes"]


def large_send(sequence_id: int) -> bytes:
    metadata = plain_metadata(sequence_id).SerializeToString()
    covered = struct.pack(">I", len(metadata)) + metadata + BODY
    send = pb.CommandSend(producer_id=1, sequence_id=sequence_id, num_messages=1)
    return frame(send, MAGIC_CHECKSUM + struct.pack(">I", iscsi(covered)) + covered)


def subscription(name: str) -> pb.CommandSubscribe:
    return pb.CommandSubscribe(
        topic=TOPIC,
        subscription=name,
        subType=pb.CommandSubscribe.Exclusive,
        consumer_id=1,
        request_id=7,
        initialPosition=pb.CommandSubscribe.Earliest,
    )


def never_reads(broker: Endpoints, number: int) -> socket.socket:
    """A consumer that has permits for all of it, and whose socket is not read from then on."""
    sock = socket.create_connection(broker.binary_address)
    with contextlib.ExitStack() as failing:
        failing.callback(sock.close)
        sock.settimeout(30)
        sock.sendall(frame(pb.CommandConnect(client_version="stuck", protocol_version=20)))
        sock.sendall(frame(subscription(f"stuck-{number}")))
        with sock.makefile("rb", buffering=0) as answers:
            for _ in ("CONNECTED", "SUCCESS"):
                (size,) = struct.unpack(">I", answers.read(4))
                answers.read(size)
        sock.sendall(frame(pb.CommandFlow(consumer_id=1, messagePermits=MESSAGES)))
        failing.pop_all()
    return sock


def test_consumers_that_never_read_hold_little_and_others_are_served(small: Endpoints) -> None:
    with BinarySession(small.binary_address) as producer:
        producer.connect()
        producer.create_producer(TOPIC)
        for sequence_id in range(MESSAGES):
            producer.send_bytes(large_send(sequence_id))
        for _ in range(MESSAGES):
            producer.expect(pb.CommandSendReceipt)
    with contextlib.ExitStack() as stuck:
        for number in range(STUCK):
            stuck.enter_context(never_reads(small, number))
        with BinarySession(small.binary_address) as live:
            live.connect()
            live.send_bytes(frame(subscription("live")))
            live.expect(pb.CommandSuccess)
            live.send_bytes(frame(pb.CommandFlow(consumer_id=1, messagePermits=MESSAGES)))
            received = [live.expect(pb.CommandMessage).message_id.entryId for _ in range(MESSAGES)]
        assert received == list(range(MESSAGES))
        configured, used = part(small, "outboxes")
        assert 0 < used <= configured + STUCK * 1.01 * len(BODY)
    eventually(lambda: part(small, "outboxes")[1] < len(BODY), what="the memory of those that left")


def test_metadata_of_clients_is_bounded_for_each_and_for_all_and_given_back(small: Endpoints) -> None:
    def producer(number: int, metadata: list[pb.KeyValue]) -> bytes:
        return frame(
            pb.CommandProducer(topic=TOPIC, producer_id=number, request_id=number, metadata=metadata)
        )

    with BinarySession(small.binary_address) as session:
        session.connect()
        session.send_bytes(producer(1, [pb.KeyValue(key="k", value="v" * 65_536)]))
        refused = session.expect(pb.CommandError)
        assert (refused.request_id, refused.error) == (1, pb.NotAllowedError)
        assert "at most 65536" in refused.message
        consumer = subscription("m")
        consumer.metadata.add(key="k" * 65_536, value="")
        session.send_bytes(frame(consumer))
        assert session.expect(pb.CommandError).error == pb.NotAllowedError
        assert part(small, "client_metadata")[1] == 0
        fitting = part(small, "client_metadata")[0] // 60_129
        for number in range(1, fitting + 1):
            session.send_bytes(producer(number, METADATA))
            assert session.expect(pb.CommandProducerSuccess).request_id == number
        assert part(small, "client_metadata")[1] == fitting * 60_129
        session.send_bytes(producer(100, METADATA))
        refused = session.expect(pb.CommandError)
        assert (refused.request_id, refused.error) == (100, pb.TooManyRequests)
        assert "--memory" in refused.message
        session.send_bytes(producer(101, [pb.KeyValue(key="application", value="orders")]))
        assert session.expect(pb.CommandProducerSuccess).request_id == 101
        session.send_bytes(frame(pb.CommandCloseProducer(producer_id=1, request_id=102)))
        session.expect(pb.CommandSuccess)
        assert part(small, "client_metadata")[1] == (fitting - 1) * 60_129
    eventually(
        lambda: part(small, "client_metadata")[1] == 0, what="the metadata of a connection that is gone"
    )
