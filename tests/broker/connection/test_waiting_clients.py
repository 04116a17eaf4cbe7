"""Which commands end the loop's pauses, as a client waits for what follows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from geminga.broker.connection.session import Session
from geminga.broker.flow.coalescing import Coalescing
from geminga.broker.flow.outbox import Outbox
from geminga.broker.topic.producer import Producer
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import Ack, Flow
from tests.broker.connection.test_walks import new_session
from tests.broker.dispatch_rig import FakeOutbox
from tests.broker.topics_rig import TOPIC, open_topics, run_of, send, topic_of


class Questions:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked = 0
        self.alone: list[tuple[object, int]] = []
        monkeypatch.setattr(Coalescing, "asked", lambda _: self._asked())
        monkeypatch.setattr(
            Coalescing, "sent", lambda _, *sent, is_alone: self._sent(*sent, is_alone=is_alone)
        )

    def _asked(self) -> None:
        self.asked += 1

    def _sent(self, publisher: object, entries: int, *, is_alone: bool) -> None:
        if is_alone:
            self.alone.append((publisher, entries))

    @contextmanager
    def more(self, count: int) -> Iterator[None]:
        before = self.asked
        yield
        assert self.asked - before == count


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> Questions:
    return Questions(monkeypatch)


async def serve(session: Session, command: Any) -> None:
    session.serve([command])
    await session.wait_requests_below(1)
    await wait_all_tasks_blocked()


async def connected(session: Session) -> None:
    await serve(session, pb.CommandConnect(client_version="v", protocol_version=19))
    subscribe = pb.CommandSubscribe(
        topic=str(TOPIC),
        subscription="s",
        subType=pb.CommandSubscribe.SubType.Shared,
        consumer_id=1,
        request_id=1,
    )
    await serve(session, subscribe)


async def test_clients_wait_for_what_has_a_request_id(questions: Questions) -> None:
    async with open_topics() as rig, trio.open_nursery() as nursery:
        session = new_session(rig, nursery, Outbox(rig.rooms.send_memory))
        with questions.more(1):  # CONNECT has no request id
            await connected(session)
        with questions.more(1):
            await serve(session, pb.CommandGetLastMessageId(consumer_id=1, request_id=2))
        position = pb.MessageIdData(ledgerId=0, entryId=0)
        with questions.more(0):
            await serve(session, pb.CommandPing())
            await serve(session, pb.CommandPong())
            individual = pb.CommandAck.AckType.Individual
            await serve(session, pb.CommandAck(consumer_id=1, ack_type=individual, message_id=[position]))
        nursery.cancel_scope.cancel()


async def test_a_consumer_waits_that_asks_for_more_when_it_has_all_it_asked_for(questions: Questions) -> None:
    async with open_topics() as rig, trio.open_nursery() as nursery:
        session = new_session(rig, nursery, Outbox(rig.rooms.send_memory))
        await connected(session)
        with questions.more(1):
            await serve(session, Flow(1, 1))
        with questions.more(0):
            await serve(session, Flow(1, 1))
        nursery.cancel_scope.cancel()


async def test_an_acknowledgement_waits_only_for_its_receipt(questions: Questions) -> None:
    async with open_topics() as rig, trio.open_nursery() as nursery:
        session = new_session(rig, nursery, Outbox(rig.rooms.send_memory))
        await connected(session)
        position = (await topic_of(rig)).ledger.last_confirmed
        with questions.more(0):
            await serve(session, Ack(1, False, [(position.ledger_id, 0)]))
        with questions.more(1):
            await serve(session, Ack(1, False, [(position.ledger_id, 0)], 7))
        nursery.cancel_scope.cancel()


async def test_a_publisher_counts_once_for_all_that_it_sends_after_its_receipts(questions: Questions) -> None:
    async with open_topics() as rig:
        topic = await topic_of(rig)
        producer = Producer(1, "p", FakeOutbox(), message_bytes_max=1000)  # type: ignore[arg-type]
        await topic.add_producer(producer, None)
        topic.publishing.publish_run(producer, run_of(send(0), send(1)))
        topic.publishing.publish_run(producer, run_of(send(2)))
        assert questions.alone == [(producer, 2)]
        durable = trio.Event()
        producer.when_idle(durable.set)
        await durable.wait()
        topic.publishing.publish_run(producer, run_of(send(3), send(4)))
        assert questions.alone == [(producer, 2), (producer, 2)]
