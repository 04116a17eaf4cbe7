"""A topic for which compaction was asked keeps all its messages: who asks, what respects it, how it ends.

Time is trio's mock clock. Ledgers have ten entries, unused topics go after 20 seconds, and trimming runs
every five.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from geminga.admin.http.router import Request, Response
from geminga.broker.policies.policies import EffectivePolicies
from geminga.broker.policies.table import BY_NAME
from geminga.broker.topic.compaction_cursor import SETTLED_AT_ONCE
from geminga.errors import GemingaError, NotAllowed, ServiceNotReady
from geminga.managed_ledger.cursor.system_cursors import COMPACTION_CURSOR
from geminga.names import NamespaceName, TopicName
from tests.broker.topic.lifetime_player import TOPIC, Broker
from tests.broker.topic.lifetime_player import open_broker as open_player
from tests.broker.topics_rig import open_topics

UNUSED_S = 20
LONG_S = 60
"""Long enough for an unused topic to be found and deleted."""
TURNS_MAX = 20_000
"""Of the loop, after which what is waited for counts as missing: the clock stands still meanwhile."""
THRESHOLD = BY_NAME["compaction_threshold_bytes"]


def unused(mode: str) -> dict[str, Any]:
    """The policy of unused topics, with less time than the rig's."""
    return {
        "inactiveTopicDeleteMode": mode,
        "maxInactiveDurationSeconds": UNUSED_S,
        "deleteWhileInactive": True,
    }


@asynccontextmanager
async def open_broker() -> AsyncIterator[Broker]:
    async with open_player() as broker:
        assert await broker.set("N/inactiveTopicPolicies", unused("delete_when_no_subscriptions")) == 204
        yield broker


async def ask(broker: Broker, method: str, path: str, body: Any = None) -> tuple[int, str]:
    """Status, and the warning or the reason. `path` is behind `T`, the topic, or `N`, its namespace."""
    try:
        answer: Response = await broker._ask(method, path, body)
    except GemingaError as error:
        return error.http_status, str(error)
    return answer.status, dict(answer.headers).get("Warning", "")


async def refused(broker: Broker, method: str, path: str, body: Any = None) -> tuple[int, str]:
    """Status and reason of a request that is refused."""
    root = "/admin/v2/persistent/public/default/t"
    content = b"" if body is None else body.encode()
    try:
        answer = await broker.router(Request(method, root + path, content))
    except GemingaError as error:
        return error.http_status, str(error)
    return answer.status, "not refused"


async def cursors(broker: Broker) -> dict[str, Any]:
    found: dict[str, Any] = (await broker.shown("T/internalStats"))["cursors"]
    return found


def is_there(broker: Broker) -> bool:
    return broker.topics.catalog.exists(TOPIC)


async def by_request(broker: Broker) -> None:
    status, warning = await ask(broker, "PUT", "T/compaction")
    assert status == 204
    assert "does not compact" in warning
    assert "keeps all messages" in warning


async def by_topic_threshold(broker: Broker) -> None:
    status, warning = await ask(broker, "POST", "T/compactionThreshold", 1000)
    assert status == 204
    assert "does not compact" in warning


async def by_namespace_threshold(broker: Broker) -> None:
    status, warning = await ask(broker, "PUT", "N/compactionThreshold", 1000)
    assert status == 204
    assert "does not compact" in warning


ASKED = [by_request, by_topic_threshold, by_namespace_threshold]


@pytest.mark.parametrize("asked", ASKED)
async def test_the_state_outlives_its_clients(
    autojump_clock: MockClock, asked: Callable[[Broker], Awaitable[None]]
) -> None:
    """The ways in which it was lost: unused for a minute, trimmed after an unload or a restart."""
    async with open_broker() as broker:
        await broker.subscribe("s")
        await broker.publish(45, 10)
        await asked(broker)
        assert await ask(broker, "DELETE", "T/subscription/s") == (204, "")
        await broker.unload()
        assert (await ask(broker, "POST", "T/trim"))[0] == 200
        assert await broker.entries() == 45
        await broker.wait(LONG_S)
        assert await broker.entries() == 45
        await broker.set("T/inactiveTopicPolicies", unused("delete_when_subscriptions_caught_up"))
        await broker.wait(LONG_S)
        assert await broker.entries() == 45


async def test_a_restart_finds_it_before_anything_is_trimmed(autojump_clock: MockClock) -> None:
    async with open_topics() as rig:
        topic = await rig.topics.get(TOPIC, create=True)
        await topic.keep_for_compaction()
        rig = await rig.restart()
        topic = await rig.topics.get(TOPIC, create=False)
        assert topic.compaction.kept_by == "request"
        assert topic.subscriptions == {}
        with pytest.raises(NotAllowed, match="__compaction is the broker's own cursor"):
            await topic.create_subscription(COMPACTION_CURSOR)


async def test_the_default_of_the_broker_keeps_every_topic_that_is_loaded(autojump_clock: MockClock) -> None:
    """Also one that an earlier process left without the cursor."""
    async with open_topics() as rig:
        await rig.topics.get(TOPIC, create=True)
        await rig.topics.unload(TOPIC)
        await rig.rooms.policies.change_defaults(EffectivePolicies(compaction_threshold_bytes=1))
        topic = await rig.topics.get(TOPIC, create=False)
        assert COMPACTION_CURSOR in topic.ledger.cursors


async def test_it_is_no_subscription(autojump_clock: MockClock) -> None:
    async with open_broker() as broker:
        await by_request(broker)
        await broker.publish(15, 10)
        name = f"/subscription/{COMPACTION_CURSOR}"
        assert await broker.shown("T/subscriptions") == []
        stats = await broker.shown("T/stats")
        assert (stats["subscriptions"], stats["backlogSize"]) == ({}, 0)
        await broker.set("T/messageTTL?messageTTL=5", None)
        await broker.set("T/backlogQuota", {"limitSize": 10, "policy": "consumer_backlog_eviction"})
        await broker.wait(120)
        shown = (await cursors(broker))[COMPACTION_CURSOR]
        assert shown["markDeletePosition"].endswith(":-1")
        assert shown["messagesConsumedCounter"] == 0
        assert shown["properties"] == {}
        for method, path, body in [
            ("PUT", name, '"earliest"'),
            ("POST", f"{name}/skip/1", None),
            ("POST", f"{name}/skip_all", None),
            ("POST", f"{name}/expireMessages/1", None),
            ("POST", f"{name}/resetcursor/0", None),
            ("POST", f"{name}/analyzeBacklog", None),
            ("GET", f"{name}/properties", None),
        ]:
            status, reason = await refused(broker, method, path, body)
            assert (status, reason.partition(":")[0]) == (
                405,
                "__compaction is the broker's own cursor and no subscription",
            ), path
        assert await broker.entries() == 15


async def test_deleting_the_cursor_gives_the_state_up(autojump_clock: MockClock) -> None:
    async with open_broker() as broker:
        name = f"T/subscription/{COMPACTION_CURSOR}"
        await broker.publish(45, 10)
        assert (await refused(broker, "DELETE", name[1:]))[0] == 404
        await by_request(broker)
        assert await ask(broker, "DELETE", name) == (204, "")
        assert await cursors(broker) == {}
        assert (await refused(broker, "DELETE", name[1:]))[0] == 404
        await broker.wait(LONG_S)
        assert not is_there(broker)


async def test_the_namespaces_unsubscribe_gives_up_that_of_all_its_topics(autojump_clock: MockClock) -> None:
    """As in Pulsar."""
    async with open_broker() as broker:
        await broker.publish(15, 10)
        await by_request(broker)
        assert await ask(broker, "POST", f"N/unsubscribe/{COMPACTION_CURSOR}") == (204, "")
        assert await cursors(broker) == {}


async def test_a_threshold_has_to_go_before_the_cursor_can(autojump_clock: MockClock) -> None:
    async with open_broker() as broker:
        await by_request(broker)
        await by_topic_threshold(broker)
        status, reason = await refused(broker, "DELETE", f"/subscription/{COMPACTION_CURSOR}")
        assert status == 405
        assert "remove the threshold first" in reason
        await ask(broker, "DELETE", "T/compactionThreshold")
        await broker.wait(10)
        assert COMPACTION_CURSOR in await cursors(broker), "it was asked for, too"
        assert await ask(broker, "DELETE", f"T/subscription/{COMPACTION_CURSOR}") == (204, "")


@pytest.mark.parametrize("is_loaded", [True, False])
async def test_what_only_a_threshold_wants_goes_with_it(autojump_clock: MockClock, is_loaded: bool) -> None:
    async with open_broker() as broker:
        await broker.publish(45, 10)
        await by_namespace_threshold(broker)
        await broker.wait(10)
        assert COMPACTION_CURSOR in await cursors(broker)
        if not is_loaded:
            await broker.topics.unload(TOPIC)
        assert await ask(broker, "DELETE", "N/compactionThreshold") == (204, "")
        assert (await broker._topic()).compaction.kept_by == ""
        await broker.wait(10)
        assert await cursors(broker) == {}
        await broker.wait(LONG_S)
        assert not is_there(broker)


async def test_asked_for_while_a_threshold_wants_it_it_stays_after_it(autojump_clock: MockClock) -> None:
    async with open_broker() as broker:
        await by_topic_threshold(broker)
        await broker.wait(10)
        await by_request(broker)
        await broker.unload()
        await ask(broker, "DELETE", "T/compactionThreshold")
        await broker.wait(LONG_S)
        assert (await broker._topic()).compaction.kept_by == "request"


async def test_a_threshold_holds_from_its_answer_on(autojump_clock: MockClock) -> None:
    """Nothing is trimmed between the answer and the cursor, and a topic's own 0 takes a namespace's away."""
    async with open_broker() as broker:
        await broker.subscribe("s")
        await broker.publish(45, 10)
        await ask(broker, "DELETE", "T/subscription/s")
        topic = await broker._topic()
        policies = broker.rooms.policies
        async with trio.open_nursery() as nursery:
            nursery.start_soon(policies.set_for_topic, TOPIC, THRESHOLD, 1000)
            for _ in range(TURNS_MAX):
                if topic.compaction.kept_by:
                    break
                await trio.lowlevel.checkpoint()
            assert COMPACTION_CURSOR not in topic.ledger.cursors
            await topic.trim()
        assert topic.ledger.number_of_entries == 45
        await policies.set_for_namespace(NamespaceName.parse("public/default"), THRESHOLD, 1000)
        await policies.set_for_topic(TOPIC, THRESHOLD, 0)
        await broker.wait(20)
        assert topic.ledger.number_of_entries < 45


async def test_truncating_empties_the_topic_and_what_comes_is_kept(autojump_clock: MockClock) -> None:
    async with open_broker() as broker:
        await by_request(broker)
        await broker.publish(45, 10)
        assert await broker.truncate() == 204
        left = await broker.entries()
        assert left < 10, "the newest ledger stays, as in Pulsar"
        await broker.publish(45, 10)
        await broker.unload()
        await broker.wait(LONG_S)
        assert await broker.entries() == left + 45


async def test_all_partitions_are_kept_also_those_that_come_later(autojump_clock: MockClock) -> None:
    async with open_broker() as broker:
        whole = TopicName.parse("persistent://public/default/parts")
        await broker.topics.catalog.create_partitioned(whole, 2)
        path = "/admin/v2/persistent/public/default/parts"
        assert (await broker.router(Request("PUT", f"{path}/compaction", b""))).status == 204
        assert (await broker.router(Request("POST", f"{path}/partitions", b"4"))).status == 204
        await broker.wait(LONG_S)
        for index in range(4):
            topic = await broker.topics.get(whole.partition(index), create=False)
            assert topic.compaction.kept_by == "request"
        deletion = Request("DELETE", f"{path}/subscription/{COMPACTION_CURSOR}", b"")
        assert (await broker.router(deletion)).status == 204
        await broker.wait(LONG_S)
        assert not any(broker.topics.catalog.exists(whole.partition(index)) for index in range(4))


async def test_a_topic_that_is_not_there_is_not_made(autojump_clock: MockClock) -> None:
    async with open_broker() as broker:
        await broker.topics.delete(TOPIC)
        assert await refused(broker, "PUT", "/compaction") == (404, f"Topic {TOPIC} not found")
        assert not is_there(broker)


async def test_a_request_that_meets_the_deletion_of_the_topic_is_not_answered_with_success(
    autojump_clock: MockClock,
) -> None:
    """The check of unused topics decides while the cursor's record is on its way to the disk."""
    async with open_broker() as broker:
        topic, asked = await broker._topic(), trio.Event()

        async def ask_too_late() -> None:
            asked.set()
            with pytest.raises(ServiceNotReady):
                await topic.keep_for_compaction()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask_too_late)
            await asked.wait()
            assert COMPACTION_CURSOR not in topic.ledger.cursors
            topic.publishing.close()
        assert COMPACTION_CURSOR in topic.ledger.cursors, "it was made, and goes with the topic"


async def test_a_namespace_of_many_topics_is_settled_some_at_a_time(autojump_clock: MockClock) -> None:
    async with open_topics() as rig:
        count = 2 * SETTLED_AT_ONCE + 5
        names = [TopicName.parse(f"persistent://public/default/many-{n}") for n in range(count)]
        topics = [await rig.topics.get(name, create=True) for name in names]
        tasks_before = trio.lowlevel.current_statistics().tasks_living
        most = 0
        namespace = NamespaceName.parse("public/default")
        for value, wanted in ((1, count), (None, 0)):
            await rig.rooms.policies.set_for_namespace(namespace, THRESHOLD, value)
            for _ in range(TURNS_MAX):
                if sum(COMPACTION_CURSOR in topic.ledger.cursors for topic in topics) == wanted:
                    break
                most = max(most, trio.lowlevel.current_statistics().tasks_living - tasks_before)
                await trio.lowlevel.checkpoint()
            else:
                pytest.fail("topics were not settled")
        assert SETTLED_AT_ONCE / 2 < most < SETTLED_AT_ONCE + 20
