"""Entries that came together go down as one run, and each gets the answer that it would get alone."""

from __future__ import annotations

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from geminga.broker.policies.policies import EffectivePolicies
from geminga.broker.policies.values import DelayedDelivery
from geminga.broker.topic.producer import Producer
from geminga.broker.topic.topic import Topic
from geminga.errors import StorageError
from geminga.managed_ledger.chain.rollover import ManagedLedgerSettings
from geminga.wire import pulsar_pb2 as pb
from tests.broker.dispatch_rig import FakeOutbox
from tests.broker.topics_rig import open_topics, run_of, send, topic_of

MESSAGE_BYTES_MAX = 1000
"""More than padding above it is refused."""
TOO_LARGE = bytes(MESSAGE_BYTES_MAX + 10_240 + 1)
HOUR_MS = 3_600_000


async def producer_of(topic: Topic) -> tuple[Producer, FakeOutbox]:
    outbox = FakeOutbox()
    producer = Producer(1, "p", outbox, message_bytes_max=MESSAGE_BYTES_MAX)  # type: ignore[arg-type]
    await topic.add_producer(producer, None)
    return producer, outbox


async def idle(producer: Producer) -> None:
    durable = trio.Event()
    producer.when_idle(durable.set)
    await durable.wait()


def answers(outbox: FakeOutbox) -> list[tuple[int, int] | int]:
    """(sequence id, entry id) of a receipt, the sequence id alone of an error."""
    return [
        (command.sequence_id, command.message_id.entryId)
        if isinstance(command, pb.CommandSendReceipt)
        else command.sequence_id
        for command in outbox.commands
    ]


async def test_a_run_is_one_item_of_the_journal_with_a_receipt_for_each_entry(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_topics() as rig:
        topic = await topic_of(rig)
        producer, outbox = await producer_of(topic)
        queued: list[int] = []
        append = topic.ledger.append

        def noting(bodies: list[bytes], context: object, parsed: object = None) -> None:
            queued.append(len(bodies))
            append(bodies, context, parsed)  # type: ignore[arg-type]

        monkeypatch.setattr(topic.ledger, "append", noting)
        topic.publishing.publish_run(producer, run_of(*(send(number, b"x" * number) for number in range(7))))
        topic.publishing.publish_run(producer, run_of(send(7)))
        await idle(producer)
        assert queued == [7, 1]
        assert answers(outbox) == [(number, number) for number in range(8)]
        topic.publishing.measure(1.0)
        assert sum(topic.publishing.entry_sizes.classes().counts) == 8
        assert sum(topic.publishing.write_latencies.classes().counts) == 8
        assert (topic.publishing.messages_in, producer.messages_in, producer.pending) == (8, 8, 0)
        assert topic.publishing.bytes_in == producer.bytes_in


async def test_a_ledger_ends_with_its_last_entry_although_a_run_goes_on() -> None:
    settings = ManagedLedgerSettings(ledger_entries_max=10, rollover_min_ms=0)
    async with open_topics(ledger_settings=settings) as rig:
        topic = await topic_of(rig)
        producer, outbox = await producer_of(topic)
        for first in range(0, 36, 12):
            topic.publishing.publish_run(producer, run_of(*(send(first + i) for i in range(12))))
        await idle(producer)
        found: dict[int, list[int]] = {}
        for command in outbox.commands:
            found.setdefault(command.message_id.ledgerId, []).append(command.message_id.entryId)
        assert [command.sequence_id for command in outbox.commands] == list(range(36))
        assert list(found.values()) == [[*range(10)], [*range(10)], [*range(10)], [*range(6)]]


async def test_an_entry_that_is_refused_leaves_the_others_of_its_run() -> None:
    async with open_topics() as rig:
        topic = await topic_of(rig)
        producer, outbox = await producer_of(topic)
        topic.publishing.publish_run(producer, run_of(send(0), send(1), send(2, TOO_LARGE), send(3)))
        await idle(producer)
        assert answers(outbox) == [(0, 0), (1, 1), 2, (3, 2)]
        assert topic.publishing.messages_in == 3


async def test_a_due_time_too_far_away_is_refused_alone() -> None:
    bounded = EffectivePolicies(delayed_delivery=DelayedDelivery(1000, True, HOUR_MS))
    async with open_topics(defaults=bounded) as rig:
        topic = await topic_of(rig)
        producer, outbox = await producer_of(topic)
        due = [0, HOUR_MS, HOUR_MS + 2, 0]
        topic.publishing.publish_run(
            producer, run_of(*(send(i, deliver_at_ms=at_ms) for i, at_ms in enumerate(due)))
        )
        await idle(producer)
        assert answers(outbox) == [(0, 0), (1, 1), 2, (3, 2)]


async def test_entries_that_a_closed_topic_refuses_are_answered_one_by_one() -> None:
    async with open_topics() as rig:
        topic = await topic_of(rig)
        producer, outbox = await producer_of(topic)
        topic.publishing.close()
        topic.publishing.publish_run(producer, run_of(send(4), send(5)))
        assert answers(outbox) == [4, 5]
        assert producer.pending == topic.publishing.messages_in == 0


async def test_every_entry_of_a_run_that_fails_gets_an_error() -> None:
    async with open_topics(bookie_runs=False) as rig:
        topic = await topic_of(rig)
        producer, outbox = await producer_of(topic)
        topic.publishing.publish_run(producer, run_of(send(0), send(1), send(2)))
        topic.publishing.publish_run(producer, run_of(send(3)))
        assert sum(len(run.sequence_ids) for run in topic.ledger.pending()) == 4
        topic.ledger.fence(StorageError("the disk is gone"))
        assert answers(outbox) == [0, 1, 2, 3]
        assert (topic.publishing.add_errors, producer.pending) == (4, 0)


async def test_deduplication_judges_each_entry_of_what_came_together() -> None:
    async with open_topics(defaults=EffectivePolicies(deduplication=True)) as rig:
        topic = await topic_of(rig)
        producer, outbox = await producer_of(topic)
        topic.publishing.publish_run(producer, run_of(send(0), send(1)))
        await idle(producer)
        topic.publishing.publish_run(producer, run_of(send(1), send(2)))
        await wait_all_tasks_blocked()
        confirmed = [entry_id for _, entry_id in answers(outbox) if entry_id < 2**63]  # type: ignore[misc]
        assert confirmed == [0, 1, 2]


async def test_entries_on_their_way_are_known_when_deduplication_begins() -> None:
    async with open_topics(bookie_runs=False) as rig:
        topic = await topic_of(rig)
        producer, _ = await producer_of(topic)
        topic.publishing.publish_run(producer, run_of(*(send(i) for i in range(5))))
        await rig.nursery.start(rig.bookie.run)
        topic.publishing.dedup.want(True)
        await topic.publishing.dedup.ready()
        assert topic.publishing.dedup.last_sequence_id("p") == 4
