"""What is kept and what is let go: every case of the recording, with the same outcome on a simulated disk.

Time is trio's mock clock, so that minutes pass at once; checks run at the intervals of the recording.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from geminga.broker.topic.producer import Producer
from geminga.errors import ServiceNotReady
from geminga.metadata.records import topic_policies_path
from geminga.names import TopicName
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import Send
from tests.broker.dispatch_rig import FakeOutbox
from tests.broker.topic.lifetime_player import TOPIC, open_broker
from tests.broker.topic.lifetime_recording import cases

CASES = cases()
DIFFERENT = {
    # A backlog's age is looked at message by message: Pulsar does so with preciseTimeBasedBacklogQuotaCheck.
    ("quota by age: consumer_backlog_eviction", "backlog s"): 1,
    # 15 messages were there; Pulsar counted some of them twice.
    ("expire on demand", "expired"): 15,
    # Our entries are 16 bytes longer, since the broker's stamp is always there.
    ("quota by size, evicting only who is slow", "backlog slow"): 30,
}
NO_SUBSCRIPTIONS = {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "deleteWhileInactive": True}


@pytest.mark.parametrize("name", CASES)
async def test_the_recording(autojump_clock: MockClock, name: str) -> None:
    async with open_broker() as broker:
        for want, got in zip(CASES[name], await broker.play(CASES[name]), strict=True):
            what = " ".join(
                [want.what, *(str(part) for part in want.arguments[:1] if want.what == "backlog")]
            )
            expected = DIFFERENT.get((name, what), want.outcome)
            if want.what == "receive" and abs(got.outcome - expected) <= expected / 7:
                continue  # a rate is kept to all the time here, there in portions
            assert got.outcome == expected, f"{want.what}{want.arguments}: {got.outcome}, recorded {expected}"


@pytest.mark.parametrize("by_broker_time", [False, True])
async def test_whose_clock_counts_for_the_age_of_a_message(
    autojump_clock: MockClock, by_broker_time: bool
) -> None:
    async with open_broker(by_broker_time=by_broker_time) as broker:
        await broker.subscribe("s")
        broker.producers_ahead_ms = 3_600_000
        await broker.publish(5, 10)
        await broker.wait(10)
        assert await broker.expire("s", 5) == 204
        assert await broker.backlog("s") == (0 if by_broker_time else 5)


async def test_a_message_expires_when_it_is_older_than_its_ttl(autojump_clock: MockClock) -> None:
    async with open_broker() as broker:
        await broker.subscribe("s")
        await broker.publish(1, 10)
        await trio.sleep(4.9)
        await broker.expire("s", 5)
        assert await broker.backlog("s") == 1
        await trio.sleep(0.2)
        await broker.expire("s", 5)
        assert await broker.backlog("s") == 0


async def test_an_entry_that_nobody_can_read_does_not_stop_expiry(autojump_clock: MockClock) -> None:
    async with open_broker() as broker:
        await broker.subscribe("s")
        topic = await broker.topics.get(TOPIC, create=False)
        producer = Producer(1, "p", FakeOutbox(), message_bytes_max=100)  # type: ignore[arg-type]
        await topic.add_producer(producer, None)
        topic.publishing.publish(producer, Send(1, 0, 1, 0, b"\xff" * 40, True))
        durable = trio.Event()
        producer.when_idle(durable.set)
        await durable.wait()
        topic.producers.remove(producer)
        await broker.publish(3, 10)
        await broker.wait(10)
        await broker.publish(2, 10)
        assert await broker.expire("s", 5) == 204
        assert (await broker.backlog("s"), await broker.expired("s")) == (2, 4)


async def test_only_one_expiry_runs_at_a_time(autojump_clock: MockClock) -> None:
    async with open_broker() as broker:
        await broker.subscribe("s")
        await broker.publish(20, 10)
        await broker.wait(10)
        answers: list[int] = []

        async def expire() -> None:
            answers.append(await broker.expire("s", 5))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(expire)
            nursery.start_soon(expire)
        assert sorted(answers) == [204, 409]
        assert await broker.expired("s") == 20


async def test_connected_producers_are_sent_away_only_while_a_quota_is_exceeded(
    autojump_clock: MockClock,
) -> None:
    async with open_broker() as broker:
        await broker.subscribe("s")
        topic = await broker.topics.get(TOPIC, create=False)
        outbox = FakeOutbox()
        producer = Producer(1, "stays", outbox, message_bytes_max=100)  # type: ignore[arg-type]
        await topic.add_producer(producer, None)
        await broker.set("T/backlogQuota", {"limitSize": 500, "policy": "producer_request_hold"})
        await broker.wait(20)
        assert not producer.closed
        assert await broker.publish(20, 100) == "ok"
        await broker.wait(6)
        assert producer.closed
        assert [type(command) for command in outbox.commands] == [pb.CommandCloseProducer]


async def test_policies_go_with_their_topic(autojump_clock: MockClock) -> None:
    async with open_broker() as broker:
        await broker.set("T/messageTTL?messageTTL=5", None)
        loaded = await broker.topics.get(TOPIC, create=False)
        assert loaded.policies.message_ttl_s == 5
        await broker.topics.unload(TOPIC)
        await broker.set("T/messageTTL?messageTTL=6", None)
        assert loaded.policies.message_ttl_s == 5, "a closed topic is told no more"
        assert (await broker.topics.get(TOPIC, create=False)).policies.message_ttl_s == 6
        await broker.topics.delete(TOPIC)
        assert broker.rooms.metadata.get(topic_policies_path(TOPIC)) is None
        assert (await broker.topics.get(TOPIC, create=True)).policies.message_ttl_s == 0


async def test_nobody_joins_a_topic_that_is_about_to_go(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Or its messages would be confirmed, and gone."""
    caplog.set_level("INFO")
    async with open_broker() as broker:
        topic = await broker.topics.get(TOPIC, create=False)
        await broker.set("T/inactiveTopicPolicies", {**NO_SUBSCRIPTIONS, "maxInactiveDurationSeconds": 0})
        producer = Producer(1, "p", FakeOutbox(), message_bytes_max=100)  # type: ignore[arg-type]
        to_the_end = broker.topics._to_the_end
        refused = []

        async def somebody_was_faster(work: Callable[[], Awaitable[None]]) -> None:
            with pytest.raises(ServiceNotReady) as error:
                await topic.add_producer(producer, None)
            refused.append(str(error.value))
            await to_the_end(work)

        monkeypatch.setattr(broker.topics, "_to_the_end", somebody_was_faster)
        await broker.wait(6)
        assert refused == [f"topic {TOPIC} is closing; look it up again"]
        assert "1 topics with 0 entries deleted, as no client has used them" in caplog.text
        assert await broker.stats() == 404


async def test_a_round_that_deletes_many_topics_is_one_line(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with open_broker() as broker:
        await broker.publish(3, 100)
        for number in range(30):
            await broker.topics.get(TopicName.parse(f"{TOPIC}-{number}"), create=True)
        caplog.clear()
        await broker.set("N/inactiveTopicPolicies", {**NO_SUBSCRIPTIONS, "maxInactiveDurationSeconds": 0})
        await broker.wait(6)
        assert broker.topics.loaded == {}
    lines = [record for record in caplog.records if "deleted" in record.getMessage()]
    assert [record.levelname for record in lines] == ["WARNING"], "entries went"
    text = lines[0].getMessage()
    assert text.startswith("31 topics with 3 entries deleted, as no client has used them")
    assert f": {TOPIC} (3 entries), {TOPIC}-0, " in text
    assert text.endswith(", and 11 more")
