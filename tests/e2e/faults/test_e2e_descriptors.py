"""A crowd of connections, on both ports, at brokers that may open few files: nobody's work ends for it."""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pulsar
import pytest

from geminga.wire import pulsar_pb2 as pb
from tests.e2e.admin_http import Admin
from tests.e2e.binary_session import BinarySession, frame
from tests.e2e.broker_process import BrokerProcess, Endpoints
from tests.e2e.waiting import eventually, receive

pytestmark = [
    pytest.mark.geminga_only,
    pytest.mark.skipif(sys.platform != "linux", reason="counts the open files of another process"),
]
TOPIC = "persistent://public/default/before-the-crowd"
CONNECT = frame(pb.CommandConnect(client_version="crowd", protocol_version=20))
ASK = b"GET /admin/v2/brokers/health HTTP/1.1\r\nHost: localhost\r\n\r\n"
HALF_A_REQUEST = b"GET /metrics/ HTTP/1.1\r\nHo"


class LimitedBroker(BrokerProcess):
    """A broker that a shell starts after `ulimit` with these words."""

    def __init__(self, data_dir: Path, ulimit: str) -> None:
        # A journal of 1 MiB and a quick flush: files are opened all the time.
        super().__init__(data_dir, settings={"journalMaxSizeMB": "1", "flushInterval": "100"})
        self._ulimit = ulimit

    def command(self) -> list[str]:
        return ["sh", "-c", f'ulimit {self._ulimit}; exec "$@"', "sh", *super().command()]

    def open_files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    """For the crowd's own ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def crowd(address: tuple[str, int], count: int, data: bytes = b"") -> list[socket.socket]:
    """Connections that send this, as far as the broker takes them, and then nothing."""
    sockets = []
    for _ in range(count):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex(address)
        sockets.append(sock)
        if data:
            try:
                sock.send(data)
            except OSError:
                pass  # not connected yet, or closed at once
    return sockets


def web_address(endpoints: Endpoints) -> tuple[str, int]:
    host, _, port = endpoints.web_url.removeprefix("http://").rpartition(":")
    return host, int(port)


def assert_answers(admin: Admin) -> None:
    assert admin.well().text == "ok"
    assert b"pulsar_broker_topics_count" in admin.get("/metrics/").body
    assert admin.get("/admin/v2/clusters").json() == ["standalone"]


@pytest.mark.parametrize(
    ("ulimit", "connecting", "idle"),
    [("-S -n 1024", 1100, 300), ("-n 256", 300, 60)],
    ids=["raised", "256"],
)
def test_a_crowd_ends_nothing_and_leaves_no_trace(
    tmp_path: Path, ulimit: str, connecting: int, idle: int
) -> None:
    """The first crowd is more than the soft limit allows, and all are more than a port takes where there is
    no other.
    """
    with LimitedBroker(tmp_path / "data", ulimit) as broker:
        client = pulsar.Client(broker.endpoints.service_url)
        producer = client.create_producer(TOPIC)
        consumer = client.subscribe(TOPIC, "s")
        admin = Admin(broker.endpoints.web_url)

        def work(count: int = 3) -> None:
            for _ in range(count):
                producer.send(bytes(400_000))
                consumer.acknowledge(receive(consumer))

        work()
        assert_answers(admin)
        files_before = broker.open_files()
        sockets = crowd(broker.endpoints.binary_address, idle)
        newcomer = pulsar.Client(broker.endpoints.service_url)
        newcomer.create_producer(TOPIC).send(b"beside the silent")
        newcomer.close()
        assert receive(consumer).data() == b"beside the silent"
        sockets += crowd(broker.endpoints.binary_address, connecting, CONNECT)
        work()
        sockets += crowd(web_address(broker.endpoints), idle)
        work()
        assert_answers(admin)
        sockets += crowd(web_address(broker.endpoints), idle, ASK)
        work(6)
        assert_answers(admin)
        sockets += crowd(web_address(broker.endpoints), idle, HALF_A_REQUEST)
        assert_answers(admin)
        print(f"\nulimit {ulimit}: {files_before} open files before, {broker.open_files()} with the crowd")
        for sock in sockets:
            sock.close()
        eventually(lambda: broker.open_files() <= files_before + 16, 30.0, what="the crowd's files let go")
        print(f"{broker.open_files()} after it has left")
        work()
        assert_answers(admin)
        another = pulsar.Client(broker.endpoints.service_url)
        another.create_producer(TOPIC).send(b"a newcomer")
        assert receive(consumer).data() == b"a newcomer"
        another.close()
        client.close()
        assert "Too many open files" not in broker.log_path.read_text()


def test_opens_that_fail_for_want_of_descriptors_are_tried_again(tmp_path: Path) -> None:
    """Nothing can be opened for a while, by whatever way that came about: no disk has failed."""
    with LimitedBroker(tmp_path / "data", "-n 1024") as broker:
        client = pulsar.Client(broker.endpoints.service_url)
        producer = client.create_producer(TOPIC)
        consumer = client.subscribe(TOPIC, "s")
        producer.send(b"before")
        before = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (3, before[1]))
        receipts: list[pulsar.Result] = []
        sent = 0

        def received_or_waiting(count: int) -> bool:
            return len(receipts) == count or ".journal: cannot" in broker.log_path.read_text()

        while not (log := broker.log_path.read_text()).count(".journal: cannot create now"):
            assert sent < 50, log
            producer.send_async(b"%d" % sent + bytes(400_000), lambda result, _: receipts.append(result))
            sent += 1
            eventually(partial(received_or_waiting, sent))
        newcomer = socket.create_connection(web_address(broker.endpoints))
        newcomer.sendall(ASK)
        eventually(lambda: "cannot accept a connection now" in broker.log_path.read_text())
        assert len(receipts) < sent
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, before)
        eventually(lambda: len(receipts) == sent, what="the receipts")
        assert set(receipts) == {pulsar.Result.Ok}
        got = [receive(consumer).data().rstrip(b"\0") for _ in range(1 + sent)]
        assert got == [b"before", *(b"%d" % number for number in range(sent))]
        assert newcomer.recv(4096).startswith(b"HTTP/1.1 200")
        newcomer.close()
        client.close()


def test_a_database_that_cannot_open_its_next_log_goes_on_when_it_can(tmp_path: Path) -> None:
    """Its write waits, reads go on, and a killed broker has all that was confirmed."""

    def schema(number: int) -> pb.CommandGetOrCreateSchema:
        definition = {"type": "record", "name": f"r{number}", "doc": "x" * 500_000, "fields": []}
        return pb.CommandGetOrCreateSchema(
            request_id=number,
            topic=f"persistent://public/default/with-schema-{number}",
            schema=pb.Schema(name="s", type=pb.Schema.Avro, schema_data=json.dumps(definition).encode()),
        )

    with LimitedBroker(tmp_path / "data", "-n 1024") as broker:
        address = broker.endpoints.binary_address
        with BinarySession(address) as writer, BinarySession(address) as reader:
            writer.connect()
            reader.connect()
            for number in range(1, 20):
                reader.create_producer(schema(number).topic, number)
            before = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (3, before[1]))
            for number in range(1, 20):
                writer.send(schema(number))
            eventually(lambda: "metadata: cannot write now, waiting" in broker.log_path.read_text())
            ask = pb.CommandPartitionedTopicMetadata(topic=TOPIC, request_id=1)
            assert reader.request(ask, pb.CommandPartitionedTopicMetadataResponse).partitions == 0
            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, before)
            answers = [writer.expect(pb.CommandGetOrCreateSchemaResponse) for _ in range(1, 20)]
        assert {answer.error_message for answer in answers} == {""}
        assert sorted(answer.request_id for answer in answers) == list(range(1, 20))
        broker.kill()
        broker.start()
        admin = Admin(broker.endpoints.web_url)
        for number in range(1, 20):
            found = admin.get(f"/admin/v2/schemas/public/default/with-schema-{number}/schema").json()
            assert json.loads(found["data"])["name"] == f"r{number}"
