"""Ordinary messages beside a great many delayed ones: whoever is overdue, indexed anew, or met first holds
them up by no more than a read.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from geminga.broker.dispatch.consumer import KEY_SHARED, SHARED
from geminga.broker.dispatch.delaying import LEAP_ENTRIES_MIN
from geminga.broker.subscription.statistics import statistics_of
from tests.broker.dispatch_rig import OpenRig, Rig, message

LATER_MS = 60_000


async def publish_delayed(rig: Rig, delay_ms: int, count: int) -> None:
    due_ms = rig.now_ms() + delay_ms
    await rig.publish(*(message(b"delayed", key=f"{n}", deliver_at_ms=due_ms) for n in range(count)))


async def publish_plain(rig: Rig) -> None:
    await rig.publish(message(b"plain", key="plain"))


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
async def test_overdue_messages_and_new_ones_go_by_turns(
    dispatch_rig: OpenRig, autojump_clock: MockClock, sub_type: str
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, sub_type, permits=1)
        await publish_delayed(rig, 100, 500)
        await rig.settle()
        await trio.sleep(1)
        assert client.new() == [b"delayed"], "the only permit"
        await publish_plain(rig)
        client.flow(500)
        await rig.settle()
        came = client.new()
        assert len(came) == 500
        assert came.index(b"plain") <= 200, "behind one read of what is overdue"


async def test_with_one_permit_at_a_time_each_side_has_its_turn(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED, permits=1)
        await publish_delayed(rig, 100, 50)
        await rig.settle()
        await trio.sleep(1)
        for _ in range(10):
            await publish_plain(rig)
        for _ in range(20):
            client.flow(1)
            await rig.settle()
        assert 8 <= client.payloads.count(b"plain") <= 10
        client.flow(50)
        await rig.settle()
        assert sorted(client.payloads) == [b"delayed"] * 50 + [b"plain"] * 10


@pytest.mark.parametrize("due_already", [0, 50])
async def test_a_new_message_does_not_wait_until_a_backlog_is_indexed_anew(
    dispatch_rig: OpenRig, autojump_clock: MockClock, due_already: int
) -> None:
    """`due_already`: how many percent of the backlog go out as they are read."""
    async with dispatch_rig() as rig:
        count = 2 * LEAP_ENTRIES_MIN
        subscription = await rig.subscription()
        for _ in range(count // 100):
            await publish_delayed(rig, 1, due_already)
            await publish_delayed(rig, LATER_MS, 100 - due_already)
        await publish_plain(rig)
        await trio.sleep(0.1)
        client = rig.join(subscription, SHARED, permits=2 * count)
        while b"plain" not in client.payloads:
            await trio.lowlevel.checkpoint()
        assert len(subscription.delayed) + len(client.payloads) < count / 2
        await rig.settle()
        assert len(subscription.delayed) == count // 100 * (100 - due_already)
        await trio.sleep(LATER_MS / 1000 + 1)
        assert len(client.payloads) == count + 1
        assert len(set(client.positions)) == count + 1


async def test_a_backlog_that_is_all_due_comes_in_its_order(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    """Nothing of it is held back: what is new is new."""
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        await publish_delayed(rig, 1, 2 * LEAP_ENTRIES_MIN)
        await publish_plain(rig)
        await trio.sleep(0.1)
        client = rig.join(subscription, SHARED, permits=4 * LEAP_ENTRIES_MIN)
        await rig.settle()
        assert client.payloads.index(b"plain") == 2 * LEAP_ENTRIES_MIN
        assert client.positions == sorted(client.positions)


async def test_in_order_nothing_is_leapt_over(dispatch_rig: OpenRig, autojump_clock: MockClock) -> None:
    async with dispatch_rig() as rig:
        count = LEAP_ENTRIES_MIN + 500
        subscription = await rig.subscription()
        await publish_delayed(rig, LATER_MS, count)
        await rig.publish(message(b"1", key="k"))
        await publish_delayed(rig, LATER_MS, count)
        await rig.publish(message(b"2", key="k"))
        client = rig.join(subscription, KEY_SHARED, permits=2 * count)
        await rig.settle()
        assert client.payloads == [b"1", b"2"]
        assert len(subscription.delayed) == 2 * count


async def test_ordinary_messages_go_on_while_the_first_index_is_opened(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        delays = await rig.index(strict=True, tick_ms=16)
        may_open = trio.Event()
        open_index = delays.open

        async def slow(delayed: object) -> object:
            await may_open.wait()
            return await open_index(delayed)  # type: ignore[arg-type]

        delays.open = slow  # type: ignore[method-assign, assignment]
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED, permits=5000)
        await publish_delayed(rig, LATER_MS, 1500)
        await publish_plain(rig)
        await publish_delayed(rig, 100, 5)
        await publish_plain(rig)
        await rig.settle()
        assert client.payloads == [b"plain"] * 2
        await trio.sleep(1)
        may_open.set()
        await rig.settle()
        assert sorted(client.payloads) == [b"delayed"] * 5 + [b"plain"] * 2
        assert statistics_of(subscription).msg_delayed == 1500
        await trio.sleep(LATER_MS / 1000 + 1)
        assert len(client.payloads) == 1507


async def test_a_subscription_that_is_closed_meanwhile_opens_no_index(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        delays = await rig.index(strict=True, tick_ms=16)
        subscription = await rig.subscription()
        started: list[Any] = []

        def note(work: Any) -> bool:
            started.append(work)
            return True

        delays.start_soon = note  # type: ignore[method-assign]
        rig.join(subscription, SHARED)
        await publish_delayed(rig, LATER_MS, 5)
        await rig.settle()
        await subscription.close()
        (opens,) = started
        await opens()
        assert subscription.delayed.tracker is None
