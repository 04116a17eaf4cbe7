"""What is with consumers, as the delayed index asks for it: of one dispatcher after the other."""

from __future__ import annotations

from pyroaring import BitMap
from trio.testing import MockClock

from geminga.broker.delays.given_out import GivenOut
from geminga.broker.dispatch.consumer import KEY_SHARED, SHARED
from tests.broker.dispatch_rig import OpenRig


def test_nothing_is_given_out_before_the_first_dispatcher() -> None:
    given_out = GivenOut()
    assert not given_out.has(1, 0)
    assert given_out.of_ledger(1) == BitMap()


async def test_the_dispatcher_that_serves_now_is_asked(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        first = rig.join(subscription, SHARED)
        positions = await rig.numbered(2)
        await rig.settle()
        given_out = subscription.delayed.given_out
        assert [given_out.has(*position) for position in positions] == [True, True]
        first.ack(positions[0])
        assert given_out.of_ledger(positions[0].ledger_id) == BitMap([positions[1].entry_id])
        first.leave()
        second = rig.join(subscription, KEY_SHARED)
        await rig.settle()
        assert second.positions == [positions[1]]
        assert given_out.has(*positions[1])
        second.ack(positions[1])
        assert not given_out.has(*positions[1])
