"""Buckets of the usual size come of what is read behind the end of a topic, whoever else reads there."""

from __future__ import annotations

from typing import Any

import pytest

from geminga.broker.dispatch.consumer import SHARED
from geminga.broker.subscription.subscription import Subscription
from geminga.errors import CorruptData
from geminga.position import EARLIEST, LATEST, Position
from geminga.tracker.index.index import DelayedIndex
from tests.broker.dispatch_rig import Client, OpenRig, Rig, message

BUCKET = 500
INDEX: dict[str, Any] = {
    "strict": True,
    "tick_ms": 1,
    "is_shared": True,
    "keeps_buckets": True,
    "bucket_indexes_min": BUCKET,
    "segment_indexes_max": 200,
    "segment_span_ms": 500_000,
    "buckets_max": 100,
}


async def open_subscription(rig: Rig, name: str, start: Position = EARLIEST) -> tuple[Subscription, Client]:
    subscription = await rig.subscription(name, start=start, read_entries_max=40)
    client = rig.join(subscription, SHARED, name)
    await rig.settle()
    return subscription, client


async def publish_delayed(rig: Rig, count: int, due_ms: int, *, undelayed_every: int = 0) -> None:
    for first in range(0, count, 100):
        for_now = [undelayed_every and not n % undelayed_every for n in range(first, first + 100)]
        await rig.publish(*(message(b"x", deliver_at_ms=0 if now else due_ms) for now in for_now))
        await rig.settle()


def index_of(rig: Rig) -> DelayedIndex:
    assert rig.delays is not None
    assert rig.delays.shared is not None
    return rig.delays.shared.index


def sizes(rig: Rig) -> list[int]:
    return [stored.directory.rows for stored, _ in index_of(rig).buckets.items()]


def lose_all(rig: Rig) -> None:
    assert rig.delays is not None
    assert rig.delays.shared is not None
    buckets = rig.delays.shared
    for stored in buckets.stored:
        buckets.lose(stored, CorruptData("as if"), "load")


def assert_usual(sizes: list[int]) -> None:
    """All of the usual size, but for the last one that was cut off."""
    least, *others = sorted(sizes)
    assert least >= BUCKET / 10
    assert min(others) >= BUCKET


async def test_a_subscription_at_the_end_cuts_off_nothing_that_another_reads_again(
    dispatch_rig: OpenRig, autojump_clock: object
) -> None:
    async with dispatch_rig(rollover_min_ms=0) as rig:
        await rig.index(**INDEX)
        behind, _ = await open_subscription(rig, "behind")
        due_ms = rig.now_ms() + 1_000_000_000
        await publish_delayed(rig, 4 * BUCKET, due_ms)
        at_end, _ = await open_subscription(rig, "at end", LATEST)
        assert (len(behind.delayed), len(at_end.delayed)) == (4 * BUCKET, 0)
        assert sizes(rig) == [BUCKET] * 4
        lose_all(rig)
        rounds = 0
        while not behind.delayed.is_complete or index_of(rig).is_behind:
            await rig.publish(message(b"x", deliver_at_ms=due_ms))
            rounds += 1
        await rig.settle()
        assert rounds > 5
        assert (len(behind.delayed), len(at_end.delayed)) == (4 * BUCKET + rounds, rounds)
        assert_usual(sizes(rig))


@pytest.mark.parametrize("leaves", ["consumer", "subscription"])
async def test_what_a_subscription_was_reading_is_sealed_when_it_leaves(
    dispatch_rig: OpenRig, autojump_clock: object, leaves: str
) -> None:
    async with dispatch_rig(rollover_min_ms=0) as rig:
        await rig.index(**INDEX)
        behind, client = await open_subscription(rig, "behind")
        due_ms = rig.now_ms() + 1_000_000_000
        await publish_delayed(rig, 2 * BUCKET, due_ms)
        await open_subscription(rig, "at end", LATEST)
        await rig.publish(message(b"x", deliver_at_ms=due_ms))
        lose_all(rig)
        while not index_of(rig).is_behind or index_of(rig).feed.tails[0].rows() < BUCKET / 5:
            await rig.publish(message(b"x", deliver_at_ms=due_ms))
        client.leave()
        if leaves == "subscription":
            await behind.close()
        await rig.publish(message(b"x", deliver_at_ms=due_ms))
        await rig.settle()
        assert not index_of(rig).is_behind
        [size] = sizes(rig)
        assert size >= BUCKET / 5


async def test_a_backlog_with_other_messages_becomes_buckets_of_the_usual_size(
    dispatch_rig: OpenRig, autojump_clock: object
) -> None:
    """Nothing leaps there: it is read in order, behind what is published meanwhile."""
    async with dispatch_rig(rollover_min_ms=0) as rig:
        await rig.index(**INDEX)
        due_ms = rig.now_ms() + 1_000_000_000
        subscription = await rig.subscription("s", read_entries_max=40)
        await publish_delayed(rig, 2000, due_ms, undelayed_every=10)
        rig.join(subscription, SHARED, "c")
        rounds = 0
        while len(subscription.delayed) < 1800 + rounds or index_of(rig).is_behind:
            await rig.publish(message(b"x", deliver_at_ms=due_ms))
            rounds += 1
        await rig.settle()
        assert rounds > 5
        # What each of three streams had left is cut off in the end.
        assert len(sizes(rig)) <= 6
        assert min(sizes(rig)) >= BUCKET / 10
