"""What is published and waits in the shared index wakes no dispatch task, unless it is due first of all."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from geminga.broker.dispatch.consumer import KEY_SHARED, SHARED
from geminga.broker.subscription.subscription import Subscription
from tests.broker.delays.test_topic_delays import publish
from tests.broker.dispatch_rig import OpenRig

SETTINGS: dict[str, Any] = {"is_shared": True, "keeps_buckets": True, "strict": True}
FIRST_MS = 10_000


class Rounds:
    """Counts the rounds of a subscription's dispatcher from now on."""

    def __init__(self, subscription: Subscription) -> None:
        dispatcher = subscription.consumers.dispatcher
        assert dispatcher is not None
        self.count = 0
        self._run_round = dispatcher.run_round
        dispatcher.run_round = self._counted  # type: ignore[method-assign]

    async def _counted(self) -> None:
        self.count += 1
        await self._run_round()


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
async def test_messages_that_wait_cause_no_round_and_come_when_they_are_due(
    dispatch_rig: OpenRig, autojump_clock: MockClock, sub_type: str
) -> None:
    async with dispatch_rig() as rig:
        await rig.index(**SETTINGS)
        subscription = await rig.subscription()
        client = rig.join(subscription, sub_type)
        await publish(rig, [FIRST_MS])
        await rig.settle()
        rounds = Rounds(subscription)
        for n in range(1, 101):
            await publish(rig, [FIRST_MS + n, FIRST_MS + 200 - n])
            await rig.settle()
            assert subscription.cursor.is_at_end()
        assert (rounds.count, len(subscription.delayed)) == (0, 201)
        await trio.sleep(FIRST_MS / 1000 + 1)
        assert len(client.payloads) == len({*client.positions}) == 201


async def test_one_that_is_due_before_all_others_comes_at_its_time(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        await rig.index(**SETTINGS)
        client = rig.join(await rig.subscription(), SHARED)
        await publish(rig, [FIRST_MS])
        await rig.settle()
        await publish(rig, [FIRST_MS + 1, 500])
        await rig.settle()
        await trio.sleep(0.499)
        assert client.payloads == []
        await trio.sleep(0.02)
        assert client.payloads == [b"500"]


async def test_ordinary_messages_go_at_once_whatever_was_published_beside_them(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        await rig.index(**SETTINGS)
        client = rig.join(await rig.subscription(), SHARED)
        await publish(rig, [FIRST_MS])
        await rig.settle()
        for delays_ms in ([FIRST_MS], [0], [FIRST_MS, 0], [0, FIRST_MS], [0]):
            await publish(rig, delays_ms)
            await rig.settle()
            assert len(client.new()) == delays_ms.count(0)


async def test_a_subscription_that_may_be_early_gets_a_message_with_its_time_bucket(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        delays = await rig.index(**SETTINGS)
        exact, early = await rig.subscription("exact"), await rig.subscription("early")
        at_time, before = rig.join(exact, SHARED), rig.join(early, SHARED)
        await delays.set_precision(early.delayed, 60_000)
        await publish(rig, [600_000])
        await rig.settle()
        due_ms = (rig.now_ms() // 60_000 + 3) * 60_000 - 1000
        await publish(rig, [due_ms - rig.now_ms()])
        await rig.settle()
        await trio.sleep((due_ms - rig.now_ms()) / 1000 - 1)
        assert (len(before.payloads), at_time.payloads) == (1, [])


async def test_what_waits_for_permits_is_not_passed(dispatch_rig: OpenRig, autojump_clock: MockClock) -> None:
    async with dispatch_rig() as rig:
        await rig.index(**SETTINGS)
        client = rig.join(await rig.subscription(), SHARED, permits=2)
        await publish(rig, [FIRST_MS])
        await rig.settle()
        await publish(rig, [0, 0, 0])
        await rig.settle()
        await publish(rig, [FIRST_MS])
        await rig.settle()
        assert client.new() == [b"0", b"0"]
        client.flow(10)
        await rig.settle()
        assert client.new() == [b"0"]


async def test_after_a_seek_what_waited_is_read_and_held_again(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    """The read position is where the last delayed message is, but others follow."""
    async with dispatch_rig() as rig:
        await rig.index(**SETTINGS)
        subscription = await rig.subscription()
        rig.join(subscription, SHARED)
        await publish(rig, [FIRST_MS])
        await rig.settle()
        positions = await publish(rig, [FIRST_MS])
        await subscription.seek(positions[0])
        client = rig.join(subscription, SHARED, permits=0)
        positions += await publish(rig, [0])
        await rig.settle()
        client.flow(10)
        await trio.sleep(FIRST_MS / 1000 + 1)
        assert sorted(client.positions) == sorted(positions)
