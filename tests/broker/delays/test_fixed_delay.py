"""The pause in reading when all messages have the same delay: what ends it on a real subscription."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from geminga.broker.dispatch.consumer import SHARED
from tests.broker.dispatch_rig import OpenRig, Rig, message

LATER_MS = 60_000


async def publish(rig: Rig, *delays_ms: int) -> None:
    now_ms = rig.now_ms()
    await rig.publish(*(message(b"%d" % d, deliver_at_ms=now_ms + d if d else 0) for d in delays_ms))
    await rig.settle()


async def test_reading_pauses_behind_enough_messages_of_one_delay(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        await rig.index(fixed_delay_lookahead=5)
        client = rig.join(await rig.subscription(), SHARED)
        await publish(rig, *[LATER_MS] * 5)
        await publish(rig, 0)
        assert client.payloads == []
        await trio.sleep(LATER_MS / 1000 + 1)
        assert client.payloads == [b"60000"] * 5 + [b"0"]


@pytest.mark.parametrize(
    "undelayed", [(0,), (0, LATER_MS), (LATER_MS, 0)], ids=["alone", "before a delayed one", "behind one"]
)
async def test_reading_does_not_pause_once_an_undelayed_message_came_by(
    dispatch_rig: OpenRig, autojump_clock: MockClock, undelayed: tuple[int, ...]
) -> None:
    """Whether it is read alone or together with delayed messages."""
    async with dispatch_rig() as rig:
        await rig.index(fixed_delay_lookahead=5)
        client = rig.join(await rig.subscription(), SHARED)
        await publish(rig, LATER_MS)
        await publish(rig, *undelayed)
        await publish(rig, *[LATER_MS] * 5)
        assert client.payloads == [b"0"]
        await publish(rig, 0)
        assert client.payloads == [b"0", b"0"]
