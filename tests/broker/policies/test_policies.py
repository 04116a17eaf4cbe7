"""Policies: who wins, who is told, what is refused, and what a restart leaves."""

from __future__ import annotations

import pytest
import trio

from geminga.broker.policies.namespaces import Namespaces
from geminga.broker.policies.policies import TOLD_AT_ONCE, EffectivePolicies, Policies
from geminga.broker.policies.records import AGE, STORAGE
from geminga.broker.policies.table import BY_NAME
from geminga.broker.policies.values import (
    BacklogQuota,
    DelayedDelivery,
    PolicyInvalid,
    PolicyRefused,
    PublishRate,
    Retention,
)
from geminga.clock import RealClock
from geminga.errors import NamespaceNotFound
from geminga.metadata.store import MetadataStore
from geminga.names import NamespaceName, TopicName

DEFAULT = NamespaceName.parse("public/default")
TOPIC = TopicName.parse("persistent://public/default/t")
RETENTION, TTL, DELAYED = BY_NAME["retention"], BY_NAME["message_ttl_s"], BY_NAME["delayed_delivery"]
BROKER = EffectivePolicies(message_ttl_s=3, producers_max=9)


@pytest.fixture
async def policies(store: MetadataStore) -> Policies:
    return await open_policies(store)


async def open_policies(store: MetadataStore) -> Policies:
    namespaces = Namespaces(store, RealClock(), cluster="standalone")
    await namespaces.bootstrap()
    return Policies(store, namespaces, BROKER)


async def test_the_topic_wins_over_the_namespace_and_that_over_the_broker(
    store: MetadataStore, policies: Policies
) -> None:
    assert policies.effective(TOPIC) is BROKER
    await policies.set_for_namespace(DEFAULT, TTL, 10)
    assert policies.effective(TOPIC).message_ttl_s == 10
    await policies.set_for_topic(TOPIC, TTL, 0)
    assert policies.effective(TOPIC).message_ttl_s == 0, "0 is a value, not an absence"
    assert policies.effective(TOPIC).producers_max == 9, "each policy by itself"
    other = TopicName.parse("persistent://public/default/other")
    assert policies.effective(other).message_ttl_s == 10
    assert (await open_policies(store)).effective(TOPIC).message_ttl_s == 0, "and so after a restart"
    await policies.set_for_topic(TOPIC, TTL, None)
    assert policies.effective(TOPIC).message_ttl_s == 10
    await policies.set_for_namespace(DEFAULT, TTL, None)
    assert policies.effective(TOPIC) is BROKER


async def test_loaded_topics_are_told_before_a_change_returns(policies: Policies) -> None:
    told: list[tuple[str, int]] = []
    part = TopicName.parse("persistent://public/default/p-partition-1")
    elsewhere = TopicName.parse("persistent://pulsar/system/t")
    listeners = {
        name: (lambda effective, name=name: told.append((name.local, effective.message_ttl_s)))  # type: ignore[misc]
        for name in (TOPIC, part, elsewhere)
    }
    for name, listener in listeners.items():
        assert policies.attach(name, listener).message_ttl_s == 3
    await policies.set_for_namespace(DEFAULT, TTL, 10)
    assert sorted(told) == [("p-partition-1", 10), ("t", 10)]
    told.clear()
    await policies.set_for_topic(part.partitioned_name, TTL, 20)
    assert told == [("p-partition-1", 20)], "a partition goes by its partitioned topic"
    told.clear()
    await policies.set_for_topic(part.partitioned_name, TTL, 20)
    assert told == [], "nothing changed"
    policies.detach(TOPIC, listeners[TOPIC])
    policies.detach(TOPIC, listeners[TOPIC])
    await policies.set_for_namespace(DEFAULT, TTL, 11)
    assert told == [("p-partition-1", 20)]
    assert policies.effective(part).message_ttl_s == 20
    assert policies.effective(TOPIC) is policies.effective(TopicName.parse("another")), "shared"
    told.clear()
    await policies.forget_topic(part.partitioned_name)
    assert told == [("p-partition-1", 11)]


async def test_what_is_refused_changes_nothing(policies: Policies) -> None:
    await policies.set_for_topic(TOPIC, RETENTION, Retention(10, 10))
    for bad in (Retention(0, 10), Retention(10, 0), Retention(-2, 10), Retention(10, -2)):
        with pytest.raises(PolicyRefused, match="Invalid retention policy"):
            await policies.set_for_topic(TOPIC, RETENTION, bad)
        with pytest.raises(PolicyRefused, match="Invalid retention policy"):
            await policies.set_for_namespace(DEFAULT, RETENTION, bad)
    assert policies.effective(TOPIC).retention == Retention(10, 10)
    assert policies.namespace_value(DEFAULT, RETENTION) is None
    with pytest.raises(NamespaceNotFound):
        await policies.set_for_namespace(NamespaceName.parse("public/nowhere"), RETENTION, Retention(1, 1))


async def test_a_quota_stays_below_the_retention(policies: Policies) -> None:
    mib = 1024 * 1024
    hold = "producer_request_hold"
    await policies.set_for_namespace(DEFAULT, RETENTION, Retention(10, 10))
    with pytest.raises(PolicyInvalid, match="exceeds configured retention quota for namespace"):
        await policies.set_namespace_quota(DEFAULT, STORAGE, BacklogQuota(10 * mib, 0, hold))
    await policies.set_namespace_quota(DEFAULT, STORAGE, BacklogQuota(10 * mib - 1, 0, hold))
    with pytest.raises(PolicyInvalid, match="must exceed configured backlog quota for namespace"):
        await policies.set_for_namespace(DEFAULT, RETENTION, Retention(10, 9))
    # At the level of topics both quotas count, and what the namespace says does too.
    with pytest.raises(PolicyInvalid, match="exceeds configured retention quota for topic"):
        await policies.set_topic_quota(TOPIC, AGE, BacklogQuota(0, 600, hold))
    await policies.set_topic_quota(TOPIC, AGE, BacklogQuota(0, 599, hold))
    with pytest.raises(PolicyInvalid, match="must exceed configured backlog quota for topic"):
        await policies.set_for_topic(TOPIC, RETENTION, Retention(9, 20))
    effective = policies.effective(TOPIC)
    assert (effective.quota_size.limit_size, effective.quota_age.limit_time) == (10 * mib - 1, 599)
    assert policies.applied_quotas(TOPIC) == {AGE: BacklogQuota(0, 599, hold)}
    await policies.set_topic_quota(TOPIC, AGE, None)
    assert policies.applied_quotas(TOPIC) == {STORAGE: BacklogQuota(10 * mib - 1, 0, hold)}


async def test_rates_of_a_namespace_are_kept_by_cluster_as_pulsar_shows_them(policies: Policies) -> None:
    rate = BY_NAME["dispatch_rate"]
    await policies.set_for_namespace(DEFAULT, BY_NAME["publish_rate"], PublishRate(5, 100))
    await policies.set_for_namespace(DEFAULT, rate, policies.defaults.dispatch_rate)
    stored = policies._namespaces.policies(DEFAULT)
    assert stored["publishMaxMessageRate"] == {
        "standalone": {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": 100}
    }
    assert stored["topicDispatchRate"] == stored["clusterDispatchRate"]
    assert policies.effective(TOPIC).publish_rate == PublishRate(5, 100)


async def test_nonsense_in_a_record_does_not_hold(policies: Policies) -> None:
    stored = {"message_ttl_in_seconds": [1], "retention_policies": {"retentionTimeInMinutes": 5}}
    await policies._namespaces.change_policies(DEFAULT, lambda _: stored)
    assert policies.effective(TOPIC).message_ttl_s == 3
    assert policies.effective(TOPIC).retention == Retention(5, 0)


def test_delayed_delivery_is_bounded_where_it_is_used() -> None:
    assert (DelayedDelivery(-5, True, -7).tick_ms, DelayedDelivery(-5, True, -7).delay_max_ms) == (1, 0)
    assert (DelayedDelivery(2000, True, 5).tick_ms, DelayedDelivery(2000, True, 5).delay_max_ms) == (2000, 5)


def attach_many(policies: Policies, count: int) -> dict[str, list[int]]:
    """Topics, half of them partitions of one; what each was told, as the first of it what it began with."""
    told: dict[str, list[int]] = {}
    for number in range(count):
        text = f"t{number}" if number % 2 else f"p-partition-{number}"
        name = TopicName.parse(f"persistent://public/default/{text}")
        seen = told[text] = []
        seen.append(
            policies.attach(name, lambda new, seen=seen: seen.append(new.message_ttl_s)).message_ttl_s
        )  # type: ignore[misc]
    return told


async def test_a_change_leaves_turns_to_others_and_is_in_force_when_it_returns(policies: Policies) -> None:
    told = attach_many(policies, 200)
    most = 0

    async def look() -> None:
        nonlocal most
        before = 200
        while True:
            await trio.lowlevel.checkpoint()
            now = sum(map(len, told.values()))
            most, before = max(most, now - before), now

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        for change in (
            policies.set_for_namespace(DEFAULT, TTL, 10),
            policies.change_defaults(EffectivePolicies(message_ttl_s=4)),
        ):
            before = sum(map(len, told.values()))
            await change
            assert sum(map(len, told.values())) == before + 200
        assert {seen[-1] for seen in told.values()} == {10}
        nursery.cancel_scope.cancel()
    assert 0 < most <= 2 * TOLD_AT_ONCE


async def test_two_changes_at_once_leave_what_was_stored_last(
    store: MetadataStore, policies: Policies
) -> None:
    told = attach_many(policies, 200)
    async with trio.open_nursery() as nursery:
        for ttl_s in (10, 11, 12):
            nursery.start_soon(policies.set_for_namespace, DEFAULT, TTL, ttl_s)
    last = (await open_policies(store)).effective(TOPIC).message_ttl_s
    assert {seen[-1] for seen in told.values()} == {last}


async def test_a_topic_that_is_loaded_or_closed_during_a_change(policies: Policies) -> None:
    late: list[int] = []
    closed: list[int] = []
    first, gone = (TopicName.parse(f"persistent://public/default/p-partition-{n}") for n in (0, 998))

    def close(effective: EffectivePolicies) -> None:
        closed.append(effective.message_ttl_s)

    def meanwhile(effective: EffectivePolicies) -> None:
        policies.detach(gone, close)
        late.append(policies.attach(TOPIC, lambda new: late.append(new.message_ttl_s)).message_ttl_s)

    policies.attach(first, meanwhile)
    attach_many(policies, 200)
    policies.attach(gone, close)
    await policies.set_for_namespace(DEFAULT, TTL, 10)
    assert (late, closed) == ([10], [])


async def test_a_repeated_change_returns_when_the_first_one_is_in_force(policies: Policies) -> None:
    told: dict[str, list[int]] = {}

    async def repeat() -> None:
        await policies.set_for_namespace(DEFAULT, TTL, 10)
        assert {seen[-1] for seen in told.values()} == {10}

    async with trio.open_nursery() as nursery:
        first = TopicName.parse("persistent://public/default/p-partition-999")
        policies.attach(first, lambda _: nursery.start_soon(repeat))
        told.update(attach_many(policies, 200))
        await policies.set_for_namespace(DEFAULT, TTL, 10)
    assert {len(seen) for seen in told.values()} == {2}, "it tells nobody again"
