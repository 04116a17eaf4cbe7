"""What a connection does in slices leaves the same as if it had been done at once."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from geminga.broker.connection.handle_consume import REDELIVERED_AT_ONCE
from geminga.broker.connection.session import Session
from geminga.broker.policies.table import POLICIES
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import Flow
from geminga.wire.decoder import Delivery
from tests.broker.connection.test_walks import new_session
from tests.broker.dispatch_rig import FakeOutbox
from tests.broker.topics_rig import TOPIC, TopicsRig, open_topics, publish

COUNT = 3 * REDELIVERED_AT_ONCE


def subscribe(consumer_id: int, sub_type: Any = pb.CommandSubscribe.Shared) -> pb.CommandSubscribe:
    return pb.CommandSubscribe(
        topic=str(TOPIC),
        subscription="s",
        subType=sub_type,
        consumer_id=consumer_id,
        request_id=consumer_id,
        initialPosition=pb.CommandSubscribe.Earliest,
    )


async def connected(rig: TopicsRig, nursery: trio.Nursery, *commands: Any) -> tuple[Session, FakeOutbox]:
    outbox = FakeOutbox()
    session = new_session(rig, nursery, outbox)
    for command in (pb.CommandConnect(client_version="c", protocol_version=20), *commands):
        session.serve([command])
        await wait_all_tasks_blocked()
    return session, outbox


def deliveries(outbox: FakeOutbox) -> Counter[int]:
    """By the redelivery count."""
    return Counter(
        command.message.redelivery_count for command in outbox.commands if isinstance(command, Delivery)
    )


@pytest.mark.parametrize("is_named", [False, True])
async def test_each_message_is_given_back_once_though_it_comes_again_meanwhile(is_named: bool) -> None:
    async with open_topics() as rig, trio.open_nursery() as nursery:
        await publish(rig, COUNT)
        session, outbox = await connected(rig, nursery, subscribe(1), Flow(1, 10 * COUNT))
        assert deliveries(outbox) == {0: COUNT}
        ids = [
            command.message.message_id
            for command in reversed(outbox.commands)
            if isinstance(command, Delivery)
        ]
        session.serve(
            [pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids if is_named else [])]
        )
        assert session.requests_open == 1 + COUNT // REDELIVERED_AT_ONCE
        await session.wait_requests_below(1)
        await wait_all_tasks_blocked()
        assert deliveries(outbox) == {0: COUNT, 1: COUNT}
        again = [
            command.message.message_id.entryId
            for command in outbox.commands
            if isinstance(command, Delivery) and command.message.redelivery_count
        ]
        assert again == sorted(again), "in the order of the topic"
        nursery.cancel_scope.cancel()


async def test_while_a_connection_leaves_its_place_can_be_taken_and_nothing_is_sent_to_it() -> None:
    async with open_topics() as rig, trio.open_nursery() as nursery:
        await publish(rig, 1)
        crowd = [subscribe(number) for number in range(1, 60)]
        gone, outbox = await connected(rig, nursery, *crowd, *(Flow(number, 1) for number in range(1, 60)))
        assert deliveries(outbox) == {0: 1}
        gone.end()
        session, found = await connected(rig, nursery, subscribe(1, pb.CommandSubscribe.Exclusive))
        assert len(session.consumers) == 1
        await gone.leave()
        assert not gone.consumers
        session.serve([Flow(1, 10)])
        await wait_all_tasks_blocked()
        assert sum(deliveries(found).values()) == 1, "what the others had comes to it"
        assert deliveries(outbox) == {0: 1}
        nursery.cancel_scope.cancel()


async def test_of_two_changes_at_once_all_subscriptions_get_the_later_one() -> None:
    async with open_topics() as rig:
        topic = await rig.topics.get(TOPIC, create=True)
        made = [await topic.create_subscription(f"s{n}", initial="earliest") for n in range(80)]
        policy = next(each for each in POLICIES if each.name == "consumers_max_per_subscription")
        async with trio.open_nursery() as nursery:
            for allowed in (3, 4, 5):
                nursery.start_soon(rig.rooms.policies.set_for_namespace, TOPIC.namespace, policy, allowed)
        stored = rig.rooms.policies.effective(TOPIC).consumers_max_per_subscription
        assert {each._around.settings.consumers_max for each in made} == {stored}
