"""A process reads one range after the other over the connections that it keeps."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from geminga.pipeline.client import entry_stream
from geminga.pipeline.client.connection import Connection
from geminga.pipeline.client.frames import FrameBuffer
from geminga.pipeline.client.kept_connections import KeptConnections
from geminga.pipeline.errors import Access
from geminga.pipeline.topics.planning import plan_batch
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.client_commands import entry, metadata
from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.waiting import eventually
from tests.pipeline.conftest import Topics
from tests.pipeline.topics.test_topics import read_values

ROWS = [b"%d" % number for number in range(500)]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that connections are opened to, by a process that keeps none yet."""
    found: list[str] = []
    monkeypatch.setattr(entry_stream, "KEPT", KeptConnections())
    connect = socket.create_connection

    def counted(address: tuple[str, int], *arguments: Any, **named: Any) -> socket.socket:
        found.append(f"{address[0]}:{address[1]}")
        return connect(address, *arguments, **named)

    monkeypatch.setattr(socket, "create_connection", counted)
    return found


def test_the_next_range_is_read_over_the_connection_of_the_last(
    topics: Topics, topic: str, opened: list[str]
) -> None:
    topics.write(topic, {"value": ROWS}, batchRows="10")
    ranges = plan_batch(topics.options(topic, splitsPerPartition="5"))
    del opened[:]
    assert [value for part in ranges for value in read_values(topics, part)] == ROWS
    assert len(opened) <= 2  # to ask which broker serves the topic, and to that broker, if it is another


def test_what_is_on_its_way_to_a_reader_that_is_done_reaches_no_other(
    topics: Topics, topic: str, opened: list[str]
) -> None:
    """Ranges in turn from all over two topics, each while the broker sends what comes behind it."""
    other = topic + "-other"
    topics.write(topic, {"value": ROWS}, batchRows="1")
    topics.write(other, {"value": [b"other " + row for row in ROWS]}, batchRows="1")
    ours = plan_batch(topics.options(topic, splitsPerPartition="10"))
    theirs = plan_batch(topics.options(other, splitsPerPartition="10"))
    del opened[:]
    for number in range(10):
        assert read_values(topics, ours[-number]) == ROWS[-number % 10 * 50 :][:50]
        assert read_values(topics, theirs[number]) == [b"other " + row for row in ROWS[number * 50 :][:50]]
    assert len(opened) <= 4


def test_a_connection_that_died_or_a_topic_that_moved_is_replaced_without_a_word(
    topics: Topics, admin: Admin, topic: str, opened: list[str]
) -> None:
    topics.write(topic, {"value": ROWS})
    (wanted,) = plan_batch(topics.options(topic))
    assert read_values(topics, wanted) == ROWS
    for kept in entry_stream.KEPT._idle:
        kept.connection.socket.shutdown(socket.SHUT_RDWR)
    del opened[:]
    assert read_values(topics, wanted) == ROWS
    assert opened
    assert admin.put(f"/admin/v2/{topic_path(topic)}/unload").status == 204
    assert read_values(topics, wanted) == ROWS


def test_connections_are_bounded_and_closed_when_idle(topics: Topics) -> None:
    access = Access(topics.endpoints.service_url)
    kept = KeptConnections(connections_max=2, idle_seconds_max=0.05)
    made = [Connection.open(access) for _ in range(3)]
    for connection in made:
        kept.give(access, "t", connection)
    assert made[0].socket.fileno() == -1
    assert kept.take(access, "another topic") is None
    eventually(lambda: len(kept) == 0 and made[2].socket.fileno() == -1)
    assert kept.take(access, "t") is None


def test_other_credentials_have_connections_of_their_own(topics: Topics) -> None:
    access = Access(topics.endpoints.service_url)
    kept = KeptConnections()
    kept.give(access, "t", Connection.open(access))
    assert kept.take(Access(access.service_url, auth_method="token", auth_data=b"x"), "t") is None
    found = kept.take(access, "t")
    assert found is not None
    found.close()
    assert kept.take(access, "t") is None


def frame_of(consumer_id: int, entry_id: int) -> bytes:
    body = entry(metadata("p", 1, 1), b"x")
    message = pb.CommandMessage(
        consumer_id=consumer_id, message_id=pb.MessageIdData(ledgerId=1, entryId=entry_id)
    )
    command = pb.BaseCommand(type=pb.BaseCommand.Type.MESSAGE, message=message).SerializeToString()
    head = (4 + len(command) + len(body)).to_bytes(4, "big") + len(command).to_bytes(4, "big")
    return head + command + body


@pytest.mark.parametrize("ours", [1, 300])
def test_a_buffer_takes_the_entries_of_its_own_consumer(ours: int) -> None:
    buffer = FrameBuffer(consumer_id=ours)
    data = b"".join(frame_of(consumer, number) for number, consumer in enumerate([2, ours, 3000, ours, 172]))
    buffer.room()[: len(data)] = data
    buffer.received(len(data))
    assert buffer.frames == 2
    assert buffer.last_position == (1, 3)
    assert buffer.is_whole
