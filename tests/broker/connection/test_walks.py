"""No command looks at many rows between two turns of the loop, and those that look at many say so (`WALKS`).

As `tests/admin/routes/test_walks.py` for the routes, with the same blind spots: each command is served by a
session in a small broker and in one with far more topics, partitions, subscriptions, consumers and messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import trio
from trio.testing import MockClock

from geminga.broker.connection.handlers import HANDLERS, WALKS
from geminga.broker.connection.session import Session
from geminga.broker.dispatch import reader
from geminga.broker.flow.outbox import Outbox
from geminga.names import TopicName
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import Ack, Flow, Send
from tests.broker.topics_rig import TOPIC, TopicsRig, open_topics, publish, send
from tests.calls import FEW, GROWTH_MIN, MANY, Calls

PARTED = TopicName.parse("persistent://public/default/parted")
SHARED = pb.CommandSubscribe.Shared
NAMESPACE, PATTERN = "public/default", "persistent://public/default/t.*"


class Served(NamedTuple):
    longest: int
    total: int


def requests(rows: int, positions: list[tuple[int, int]]) -> Iterator[Any]:
    """One of each command, in an order in which they work."""
    topic = str(TOPIC)
    yield pb.CommandConnect(client_version="c", protocol_version=20)
    yield pb.CommandLookupTopic(topic=topic, request_id=1)
    yield pb.CommandPartitionedTopicMetadata(topic=str(PARTED), request_id=1)
    yield pb.CommandGetTopicsOfNamespace(namespace=NAMESPACE, topics_pattern=PATTERN, request_id=1)
    yield pb.CommandWatchTopicList(namespace=NAMESPACE, topics_pattern=PATTERN, request_id=1, watcher_id=1)
    yield pb.CommandWatchTopicListClose(request_id=1, watcher_id=1)
    yield pb.CommandProducer(topic=topic, producer_id=1, request_id=1, producer_name="p")
    yield send()
    yield pb.CommandCloseProducer(producer_id=1, request_id=1)
    yield pb.CommandSubscribe(topic=topic, subscription="s1", subType=SHARED, consumer_id=1, request_id=1)
    yield pb.CommandConsumerStats(consumer_id=1, request_id=1)
    yield pb.CommandGetLastMessageId(consumer_id=1, request_id=1)
    yield Flow(1, 10 * rows)
    yield pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1)
    ids = [pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id) for ledger_id, entry_id in positions]
    yield pb.CommandRedeliverUnacknowledgedMessages(consumer_id=1, message_ids=ids)
    yield pb.CommandAck(consumer_id=1, ack_type=pb.CommandAck.Individual, message_id=ids[:rows], request_id=1)
    yield Ack(1, False, positions[rows:], 1)
    for number in range(rows):
        yield pb.CommandSubscribe(
            topic=topic, subscription="s2", subType=SHARED, consumer_id=10 + number, request_id=1
        )
    yield pb.CommandSeek(consumer_id=10, request_id=1, message_id=pb.MessageIdData(ledgerId=0, entryId=0))
    for number in range(rows):
        yield pb.CommandSubscribe(
            topic=topic, subscription="s2", subType=SHARED, consumer_id=10 + number, request_id=1
        )
    yield pb.CommandUnsubscribe(consumer_id=10, request_id=1, force=True)
    yield pb.CommandCloseConsumer(consumer_id=1, request_id=1)
    yield pb.CommandGetSchema(topic=topic, request_id=1)
    yield pb.CommandGetOrCreateSchema(topic=topic, request_id=1)


async def serve_all(rows: int) -> dict[type, Served]:
    found: dict[type, Served] = {}
    async with open_topics() as rig, trio.open_nursery() as nursery:
        positions = await fill(rig, rows)
        session = new_session(rig, nursery, Outbox(rig.rooms.send_memory))
        calls = Calls()
        trio.lowlevel.add_instrument(calls)
        given = list(requests(rows, positions))
        kinds = {type(command) for command in given}
        given += [
            kind(request_id=1) if "Tx" in kind.__name__ or "Tc" in kind.__name__ else kind()
            for kind in HANDLERS
            if kind not in kinds
        ]
        for command in given:
            calls.begin()
            session.serve([command])
            await session.wait_requests_below(1)
            await trio.testing.wait_all_tasks_blocked()
            longest, total = calls.end()
            before = found.get(type(command), Served(0, 0))
            found[type(command)] = Served(max(longest, before.longest), max(total, before.total))
        calls.begin()
        session.end()
        await session.leave()
        longest, total = calls.end()
        found[Session] = Served(longest, total)
        nursery.cancel_scope.cancel()
    return found


def new_session(rig: TopicsRig, nursery: trio.Nursery, outbox: Any) -> Session:
    return Session(
        HANDLERS,
        outbox,
        rig.topics,
        rig.rooms,
        nursery,
        address="here",
        service_url="pulsar://here",
        producer_names=lambda: "p",
    )


async def fill(rig: TopicsRig, rows: int) -> list[tuple[int, int]]:
    """The positions of the topic's entries."""
    await publish(rig, 2 * rows)
    wide = await rig.topics.get(TOPIC, create=False)
    for number in range(max(rows, 3)):
        await wide.create_subscription(f"s{number}", initial="earliest")
        await rig.topics.get(TopicName.parse(f"persistent://public/default/t{number}"), create=True)
    await rig.topics.catalog.create_partitioned(PARTED, rows)
    ledger_id = wide.ledger.last_confirmed.ledger_id
    return [(ledger_id, entry_id) for entry_id in range(2 * rows)]


CALLS_MAX = 2000
KNOWN = {
    Flow: "a round of dispatch sends what one read has brought",
    pb.CommandRedeliverUnacknowledgedMessages: "such a round follows",
}
"""Beyond `CALLS_MAX`, with the reason."""
SEEN_MIN = 7


def test_no_command_walks_without_turns_for_others_and_those_that_walk_say_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The steps are counted in Python. In C the metadata of a read are one.
    monkeypatch.setattr(reader, "native", None)
    trio.run(serve_all, 1, clock=MockClock(autojump_threshold=0))  # what is imported first is not counted
    few, many = (trio.run(serve_all, rows, clock=MockClock(autojump_threshold=0)) for rows in (FEW, MANY))
    assert many.keys() == {*HANDLERS, Send, Ack, Flow, Session}, "a command that is not asked here"
    too_long = {kind: served for kind, served in many.items() if served.longest > CALLS_MAX}
    assert too_long.keys() == KNOWN.keys(), too_long
    walking = {kind for kind in many if many[kind].total - few[kind].total > GROWTH_MIN} - {Session}
    assert walking <= WALKS.keys(), "they walk, and do not say what (`WALKS`)"
    # The other direction, as far as these rows go.
    assert len(walking) >= SEEN_MIN, walking
