"""TTL and backlog quotas that count a delayed message from its due time, where they are told to."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from geminga.broker.delays.settings import DelaySettings
from geminga.broker.dispatch.consumer import EXCLUSIVE
from geminga.broker.policies.policies import EffectivePolicies
from geminga.broker.policies.settings import BrokerSettings
from geminga.broker.policies.values import BacklogQuota
from geminga.broker.subscription.statistics import statistics_of
from geminga.broker.topic.backlog_quota import BacklogQuotaRefused, due_bytes
from geminga.errors import CorruptData
from geminga.managed_ledger.managed_ledger import ManagedLedgerSettings
from tests.broker.dispatch_rig import on_loop
from tests.broker.topics_rig import (
    TopicsRig,
    join,
    open_topics,
    publish,
    received,
    subscription_of,
    topic_of,
)

REFUSES, EVICTS = "producer_exception", "consumer_backlog_eviction"
BUCKETS = DelaySettings(keeps_buckets=True, bucket_indexes_min=5)
INDEXES = {"own": DelaySettings(), "shared": DelaySettings(is_shared=True), "buckets": BUCKETS}


@pytest.fixture(autouse=True)
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What seals buckets does so on the loop: the clock must not jump meanwhile."""
    monkeypatch.setattr(trio.to_thread, "run_sync", on_loop)


@asynccontextmanager
async def opened(index: str = "own", **policies: Any) -> AsyncIterator[TopicsRig]:
    """TTLs are looked at every 5 s, quotas every 5 s; 10 entries a ledger."""
    settings = BrokerSettings(expiry_interval_s=5, quota_interval_s=5, trim_interval_s=5)
    ledgers = ManagedLedgerSettings(ledger_entries_max=10, rollover_min_ms=0)
    async with open_topics(settings, ledgers, EffectivePolicies(**policies), INDEXES[index]) as rig:
        yield rig


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("permits", [None, 0, 1000])
async def test_a_delayed_message_lives_for_its_ttl_from_when_it_is_due(
    autojump_clock: MockClock, index: str, permits: int | None
) -> None:
    """Nobody is there for it, nobody can take it, somebody takes it and does not acknowledge."""
    async with opened(index, message_ttl_s=10, ttl_from_due_time=True) as rig:
        subscription = await subscription_of(rig)
        if permits is not None:
            await join(rig, permits=permits)
        await publish(rig, 3)
        await publish(rig, 12, delay_s=60)
        await publish(rig, 4)
        await trio.sleep(30)
        assert subscription.backlog() == 12
        await trio.sleep(35)
        assert subscription.backlog() == 12, "due, and not as old as that"
        await trio.sleep(12)
        assert (subscription.backlog(), subscription.expiry.total) == (0, 19)
        assert statistics_of(subscription).unacked_messages == 0
        assert all(consumer.unacked == 0 for consumer in subscription.consumers)


async def test_what_has_not_expired_is_delivered_when_it_is_due(autojump_clock: MockClock) -> None:
    async with opened(message_ttl_s=10, ttl_from_due_time=True) as rig:
        await subscription_of(rig)
        await publish(rig, 12, delay_s=60)
        await trio.sleep(40)
        _, outbox = await join(rig)
        await trio.sleep(18)
        assert received(outbox) == 0
        await trio.sleep(3)
        assert received(outbox) == 12


async def test_messages_that_fell_due_while_nobody_was_there_are_delivered(autojump_clock: MockClock) -> None:
    async with opened(message_ttl_s=100, ttl_from_due_time=True) as rig:
        subscription = await subscription_of(rig)
        await publish(rig, 25, delay_s=150)
        await trio.sleep(200)
        assert subscription.backlog() == 25
        _, outbox = await join(rig)
        await trio.sleep(1)
        assert received(outbox) == 25


async def test_without_the_policy_a_long_delay_eats_the_message(autojump_clock: MockClock) -> None:
    async with opened(message_ttl_s=10) as rig:
        subscription = await subscription_of(rig)
        await publish(rig, 12, delay_s=60)
        await trio.sleep(20)
        assert subscription.backlog() == 0


@pytest.mark.parametrize("index", INDEXES)
async def test_a_restart_changes_nothing(autojump_clock: MockClock, index: str) -> None:
    async with opened(index, message_ttl_s=10, ttl_from_due_time=True) as rig:
        await subscription_of(rig)
        await publish(rig, 5)
        await publish(rig, 12, delay_s=60)
        await trio.sleep(20)
        rig = await rig.restart()
        subscription = await subscription_of(rig)
        assert subscription.backlog() == 12
        await trio.sleep(42)
        assert subscription.backlog() == 12
        await trio.sleep(15)
        assert subscription.backlog() == 0


async def test_exclusive_subscriptions_do_not_wait_and_so_count_from_publishing(
    autojump_clock: MockClock,
) -> None:
    async with opened(message_ttl_s=10, ttl_from_due_time=True) as rig:
        subscription = await subscription_of(rig)
        await join(rig, EXCLUSIVE)
        await publish(rig, 12, delay_s=60)
        await trio.sleep(20)
        assert subscription.backlog() == 0


async def test_asking_for_expiry_goes_by_publish_time(autojump_clock: MockClock) -> None:
    async with opened(ttl_from_due_time=True) as rig:
        subscription = await subscription_of(rig)
        await publish(rig, 12, delay_s=60)
        await trio.sleep(20)
        assert await (await topic_of(rig)).expire_older(subscription, 5)
        assert subscription.backlog() == 0


# -- quotas ------------------------------------------------------------------------------------------------


async def refused(rig: TopicsRig) -> bool:
    try:
        topic = await topic_of(rig)
        await topic.quotas.check_producer(topic.policies)
    except BacklogQuotaRefused:
        return True
    return False


@pytest.mark.parametrize("index", INDEXES)
@pytest.mark.parametrize("permits", [None, 0, 1000])
async def test_what_is_not_due_does_not_fill_a_quota(
    autojump_clock: MockClock, index: str, permits: int | None
) -> None:
    quota = BacklogQuota(1500, -1, REFUSES)
    async with opened(index, quota_size=quota, quota_from_due_time=True) as rig:
        subscription = await subscription_of(rig)
        if permits is not None:
            await join(rig, permits=permits)
        await publish(rig, 5)
        await publish(rig, 40, delay_s=60)
        assert not await refused(rig)
        assert due_bytes(subscription) == pytest.approx(5 * 150, rel=0.2)
        await trio.sleep(61)
        assert await refused(rig)
        assert due_bytes(subscription) == pytest.approx(45 * 150, rel=0.2)


async def test_what_is_consumed_behind_a_delayed_message_does_not_count_either(
    autojump_clock: MockClock,
) -> None:
    quota = BacklogQuota(1500, -1, REFUSES)
    async with opened(quota_size=quota, quota_from_due_time=True) as rig:
        subscription = await subscription_of(rig)
        await publish(rig, 1, delay_s=1000)
        await publish(rig, 30)
        assert await refused(rig)
        ledger, place = subscription.topic.ledger, subscription.cursor.mark_delete
        for _ in range(31):
            place = ledger.next_position(place)
            if place != ledger.first_position():
                subscription.acks.let_go([place])
        assert subscription.backlog() == 1
        assert not await refused(rig)


async def test_an_age_is_counted_from_the_due_time(autojump_clock: MockClock) -> None:
    quota = BacklogQuota(-1, 20, REFUSES)
    async with opened(quota_age=quota, quota_from_due_time=True) as rig:
        await subscription_of(rig)
        await publish(rig, 3, delay_s=100)
        await trio.sleep(115)
        assert not await refused(rig)
        await trio.sleep(10)
        assert await refused(rig)


@pytest.mark.parametrize("from_due_time", [False, True])
async def test_a_message_that_is_lost_keeps_no_producer_out(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, from_due_time: bool
) -> None:
    async def lost(*_: object) -> None:
        raise CorruptData("it does not match its checksum")

    quota = BacklogQuota(-1, 20, REFUSES)
    async with opened(quota_age=quota, quota_from_due_time=from_due_time) as rig:
        await subscription_of(rig)
        await publish(rig, 1)
        await trio.sleep(30)
        assert await refused(rig)
        ledger = (await topic_of(rig)).ledger
        monkeypatch.setattr(ledger, "read_positions", lost)
        monkeypatch.setattr(ledger, "read", lost)
        assert not await refused(rig)


async def test_an_ordinary_message_behind_delayed_ones_is_found_to_be_the_oldest(
    autojump_clock: MockClock,
) -> None:
    quota = BacklogQuota(-1, 50, REFUSES)
    async with opened(quota_age=quota, quota_from_due_time=True) as rig:
        await subscription_of(rig)
        await publish(rig, 30, delay_s=40)
        await publish(rig, 1)
        await trio.sleep(45)
        assert not await refused(rig)
        await trio.sleep(10)
        assert await refused(rig)


async def test_without_the_policy_delayed_messages_fill_the_quota(autojump_clock: MockClock) -> None:
    async with opened(quota_size=BacklogQuota(1500, -1, REFUSES)) as rig:
        await subscription_of(rig)
        await publish(rig, 40, delay_s=60)
        assert await refused(rig)


async def test_eviction_by_size_takes_what_is_due_and_leaves_what_waits(autojump_clock: MockClock) -> None:
    quota = BacklogQuota(1500, -1, EVICTS)
    async with opened(quota_size=quota, quota_from_due_time=True) as rig:
        subscription = await subscription_of(rig)
        await publish(rig, 10, delay_s=58)  # between two looks at the quota
        await publish(rig, 40)
        await trio.sleep(6)
        assert len(subscription.delayed) == 10
        left = subscription.backlog()
        assert 15 <= left <= 20
        assert due_bytes(subscription) <= 1500
        _, outbox = await join(rig)
        await trio.sleep(60)
        assert received(outbox) == left


async def test_eviction_by_age_takes_what_is_due_for_too_long(autojump_clock: MockClock) -> None:
    quota = BacklogQuota(-1, 20, EVICTS)
    async with opened(quota_age=quota, quota_from_due_time=True) as rig:
        subscription = await subscription_of(rig)
        await publish(rig, 10, delay_s=60)
        await publish(rig, 5)
        await trio.sleep(30)
        assert subscription.backlog() == 10
        await trio.sleep(40)
        assert subscription.backlog() == 10
        await trio.sleep(20)
        assert subscription.backlog() == 0


async def test_eviction_by_age_of_an_exclusive_subscription(autojump_clock: MockClock) -> None:
    quota = BacklogQuota(-1, 20, EVICTS)
    async with opened(quota_age=quota, quota_from_due_time=True) as rig:
        subscription = await subscription_of(rig)
        await join(rig, EXCLUSIVE)
        await publish(rig, 10, delay_s=60)
        await trio.sleep(30)
        assert subscription.backlog() == 0


async def test_after_a_seek_the_backlog_is_looked_at_again(autojump_clock: MockClock) -> None:
    quota = BacklogQuota(1500, -1, REFUSES)
    async with opened(quota_size=quota, quota_from_due_time=True) as rig:
        subscription = await subscription_of(rig)
        await publish(rig, 40, delay_s=60)
        assert not await refused(rig)
        await subscription.seek(subscription.topic.ledger.first_position())
        assert len(subscription.delayed) == 0
        assert not await refused(rig)
        assert len(subscription.delayed) == 40
