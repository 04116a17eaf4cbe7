"""What is left of an index when the cursor leaps over it, and how far a lost part of it is read again."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from geminga.broker.dispatch.consumer import SHARED
from geminga.position import LATEST
from tests.broker.delays.test_delayed_index import lose
from tests.broker.delays.test_topic_delays import BUCKETS, LATER_MS, bucket_keys, publish, restarted, until
from tests.broker.dispatch_rig import OpenRig


@pytest.mark.parametrize("leap", ["clear-backlog", "seek to the end", "seek to the first entry"])
async def test_no_bucket_is_left_when_the_cursor_leaps(
    dispatch_rig: OpenRig, autojump_clock: MockClock, leap: str
) -> None:
    async with dispatch_rig(ledger_entries_max=25, rollover_min_ms=0) as rig:
        await rig.index(**BUCKETS)
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        positions = await publish(rig, [LATER_MS] * 60)
        await until(lambda: len(bucket_keys(subscription.cursor.properties)) >= 2)
        bookie = rig.ledger.storage.bookie
        bucket_ledgers = {
            subscription.cursor.properties[key] for key in bucket_keys(subscription.cursor.properties)
        }
        assert bucket_ledgers <= bookie.inventory.ledgers()
        if leap == "clear-backlog":
            await subscription.clear_backlog()
        else:
            await subscription.seek(LATEST if leap == "seek to the end" else positions[0])
        assert bucket_keys(subscription.cursor.properties) == []
        assert len(subscription.delayed) == 0
        await until(lambda: not bucket_ledgers & bookie.inventory.ledgers())
        client.leave()
        await restarted(rig, **BUCKETS)
        again = rig.join(await rig.subscription(), SHARED)
        await trio.sleep(LATER_MS / 1000 + 1)
        assert sorted(again.positions) == (positions if leap == "seek to the first entry" else [])


async def test_what_was_not_read_yet_is_not_read_again_with_a_lost_part(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    """Else it comes twice: with the lost part, and when it is read."""
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED, permits=3)
        positions = await publish(rig, [1000, 0, 0, 0, 0, 0])
        await rig.settle()
        assert client.positions == positions[1:4]
        await lose(subscription, positions[0])
        await trio.sleep(2)
        client.flow(1)
        await rig.settle()
        assert client.positions == positions[1:5]
        client.flow(100)
        await rig.settle()
        assert client.positions == [*positions[1:5], positions[0], positions[5]]
