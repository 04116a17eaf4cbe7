"""Receipts of a group of entries are written in runs: each producer gets its own, in order."""

from __future__ import annotations

from typing import NamedTuple

from trio.testing import wait_all_tasks_blocked

from geminga.broker.topic.producer import Producer
from geminga.wire import pulsar_pb2 as pb
from tests.broker.dispatch_rig import FakeOutbox
from tests.broker.topics_rig import TOPIC, open_topics, send


class Receipt(NamedTuple):
    sequence_id: int
    entry_id: int


def receipts(outbox: FakeOutbox) -> list[Receipt]:
    assert all(type(command) is pb.CommandSendReceipt for command in outbox.commands)
    return [Receipt(command.sequence_id, command.message_id.entryId) for command in outbox.commands]


async def test_producers_that_take_turns_get_the_receipts_of_their_own_entries() -> None:
    async with open_topics(bookie_runs=False) as rig:
        topic = await rig.topics.get(TOPIC, create=True)
        outboxes = {name: FakeOutbox() for name in "ab"}
        producers = {
            name: Producer(1, name, outbox, message_bytes_max=2**22)  # type: ignore[arg-type]
            for name, outbox in outboxes.items()
        }
        for producer in producers.values():
            await topic.add_producer(producer, None)
        for sequence_id, name in enumerate("aabbba"):
            topic.publishing.publish(producers[name], send(sequence_id))
        assert not any(outbox.commands for outbox in outboxes.values())
        await rig.nursery.start(rig.bookie.run)
        await wait_all_tasks_blocked()
        assert receipts(outboxes["a"]) == [(0, 0), (1, 1), (5, 5)]
        assert receipts(outboxes["b"]) == [(2, 2), (3, 3), (4, 4)]
        assert [producer.pending for producer in producers.values()] == [0, 0]
        topic.publishing.measure(1.0)
        assert sum(topic.publishing.write_latencies.classes().counts) == 6
