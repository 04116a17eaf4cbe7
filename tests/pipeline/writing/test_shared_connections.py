"""Producers of a task share a connection to each broker, and each still answers for itself."""

from __future__ import annotations

import pytest

from geminga.pipeline.client.producer_connections import ProducerConnections
from geminga.pipeline.client.producing import PendingBytes, Producer
from geminga.pipeline.columns.encoding import send_frame
from geminga.pipeline.errors import PipelineError, Refused
from geminga.wire import pulsar_pb2 as pb
from tests.e2e.admin_http import Admin
from tests.pipeline.conftest import Topics

PARTITIONS = 12


class Task:
    """Producers of a topic's partitions, as a task that writes has them."""

    def __init__(self, topics: Topics, topic: str, names: str | None = None) -> None:
        access = topics.options(topic).access
        connections, pending = ProducerConnections(access), PendingBytes()
        self.producers = [
            Producer(
                access,
                f"{topic}-partition-{number}",
                names,
                connections=connections,
                pending_max=100,
                send_timeout_s=20,
                pending_bytes=pending,
            )
            for number in range(PARTITIONS)
        ]

    def write(self, sequence_id: int) -> None:
        """One message to each, all under way before the first receipt is waited for."""
        for number, producer in enumerate(self.producers):
            assert producer.name is not None
            metadata = pb.MessageMetadata(
                producer_name=producer.name, sequence_id=sequence_id, publish_time=1
            )
            value = b"%d-%d" % (number, sequence_id)
            producer.send(sequence_id, send_frame(producer.producer_id, metadata, value, pb.NONE))
        for producer in self.producers:
            producer.flush()

    def close(self) -> None:
        for producer in self.producers:
            producer.close()


def publishers(admin: Admin, topic: str) -> list[str]:
    """The addresses that the producers of all partitions come from."""
    found: list[str] = []
    for number in range(PARTITIONS):
        stats = admin.stats(f"{topic}-partition-{number}")
        found += [each["address"] for each in stats["publishers"]]
    return found


def sent(sequence_ids: int) -> list[bytes]:
    return sorted(b"%d-%d" % (number, one) for number in range(PARTITIONS) for one in range(sequence_ids))


def test_producers_share_one_connection_and_leave_nothing(topics: Topics, admin: Admin, topic: str) -> None:
    admin.create_partitions(topic, PARTITIONS)
    task = Task(topics, topic)
    try:
        task.write(0)
        addresses = publishers(admin, topic)
        assert len(addresses) == PARTITIONS
        assert len(set(addresses)) == 1
    finally:
        task.close()
    assert publishers(admin, topic) == []
    assert sorted(filter(None, topics.values(topic))) == sent(1)


def test_a_producer_that_the_broker_closes_opens_again_without_the_others(
    topics: Topics, admin: Admin, topic: str
) -> None:
    admin.create_partitions(topic, PARTITIONS)
    task = Task(topics, topic)
    try:
        task.write(0)
        before = set(publishers(admin, topic))
        moved = topic.replace("://", "/") + "-partition-3"
        assert admin.put(f"/admin/v2/{moved}/unload").status in (200, 204)
        task.write(1)
        assert set(publishers(admin, topic)) == before
    finally:
        task.close()
    assert sorted(filter(None, topics.values(topic))) == sent(2)


def test_a_lost_connection_is_made_again_once_for_all(topics: Topics, admin: Admin, topic: str) -> None:
    admin.create_partitions(topic, PARTITIONS)
    task = Task(topics, topic)
    try:
        task.write(0)
        before = set(publishers(admin, topic))
        task.producers[5]._connection._connection.close()
        task.write(1)
        after = publishers(admin, topic)
        assert len(after) == PARTITIONS
        assert len(set(after)) == 1
        assert set(after) != before
    finally:
        task.close()
    assert sorted(filter(None, topics.values(topic))) == sent(2)


def test_an_error_of_one_producer_names_its_topic(topics: Topics, admin: Admin, topic: str) -> None:
    admin.create_partitions(topic, PARTITIONS)
    task = Task(topics, topic)
    try:
        task.write(0)
        ended = topic.replace("://", "/") + "-partition-3"
        assert admin.post(f"/admin/v2/{ended}/terminate").status == 200
        with pytest.raises(PipelineError, match=f"{topic}-partition-3: "):
            task.write(1)
        error = pb.CommandSendError(producer_id=task.producers[7].producer_id, error=pb.ChecksumError)
        with pytest.raises(Refused, match=f"{topic}-partition-7: "):
            task.producers[0]._connection._hand_out([error])
    finally:
        task.close()
