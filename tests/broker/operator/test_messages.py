"""A scan of a backlog stops at its limits, says so, and leaves everything as it was."""

from __future__ import annotations

import msgspec
import pytest

from geminga.broker.operator.messages import RUN_ENTRIES, BacklogAnalysis, MessagesOperator
from geminga.broker.policies.settings import BrokerSettings
from geminga.errors import NotAllowed, SubscriptionNotFound
from geminga.managed_ledger.cursor.system_cursors import SYSTEM_CURSORS
from geminga.position import Position
from tests.broker.topics_rig import TOPIC, open_topics, publish, subscription_of


async def looked(rig, entries_max, start=None, max_s=60.0):
    settings = msgspec.structs.replace(
        BrokerSettings(), backlog_scan_entries_max=entries_max, backlog_scan_max_s=max_s
    )
    operator = MessagesOperator(rig.topics, rig.rooms.clock, settings)
    return await operator.analyze(TOPIC, "s", start)


@pytest.mark.parametrize("entries_max", [1, 2, 5, 100, 249, 250, 251, 10_000])
async def test_a_scan_stops_before_its_largest_number(autojump_clock, entries_max):
    """As the real broker: with subscriptionBacklogScanMaxEntries=5 it counts 4 of 16 entries, and 4 of those
    in the backlog where others are acknowledged.
    """
    async with open_topics() as rig:
        subscription = await subscription_of(rig)
        await publish(rig, 250)
        found = await looked(rig, entries_max)
        read = min(250, entries_max - 1)
        ledger_id = subscription.topic.ledger.first_position().ledger_id
        whole = entries_max > 250
        first = Position(ledger_id, 0) if read else None
        last = Position(ledger_id, read - 1) if read else None
        assert found == BacklogAnalysis(read, read, first, last, whole)
        assert subscription.backlog() == 250


async def test_a_scan_ends_with_its_time(autojump_clock):
    async with open_topics() as rig:
        await subscription_of(rig)
        await publish(rig, 3 * RUN_ENTRIES)
        found = await looked(rig, 10_000, max_s=0.0)
        assert (found.entries, found.is_whole) == (0, False)


async def test_what_is_acknowledged_apart_is_not_counted(autojump_clock):
    async with open_topics() as rig:
        subscription = await subscription_of(rig)
        await publish(rig, 250)
        ledger_id = subscription.topic.ledger.first_position().ledger_id
        subscription.cursor.acknowledge([Position(ledger_id, n) for n in (0, 1, 5, 100, 249)])
        assert (await looked(rig, 10_000)).entries == 245
        limited = await looked(rig, 5)
        assert [limited.entries, limited.is_whole] == [4, False]
        assert [limited.first.entry_id, limited.last.entry_id] == [2, 6]
        from_start = await looked(rig, 10_000, Position(ledger_id, 0))
        assert (from_start.entries, from_start.first) == (247, Position(ledger_id, 0))
        beyond = await looked(rig, 10_000, Position(ledger_id, 1000))
        assert beyond == BacklogAnalysis(0, 0, None, None, True)


async def test_a_subscription_that_does_not_exist_is_not_made(autojump_clock):
    async with open_topics() as rig:
        subscription = await subscription_of(rig)
        await publish(rig, 3)
        operator = MessagesOperator(rig.topics, rig.rooms.clock, BrokerSettings())
        with pytest.raises(SubscriptionNotFound):
            await operator.analyze(TOPIC, "none", None)
        assert await operator.in_backlog(TOPIC, "none", 4) is None
        found = await operator.in_backlog(TOPIC, "none", 3)
        assert found is not None
        assert found.position.entry_id == 2
        assert list(subscription.topic.subscriptions) == ["s"]


async def test_a_system_cursor_has_no_backlog_to_look_into(autojump_clock):
    """Pulsar answers with the messages of the cursor, or creates a subscription of its name."""
    async with open_topics() as rig:
        await subscription_of(rig)
        await publish(rig, 3)
        operator = MessagesOperator(rig.topics, rig.rooms.clock, BrokerSettings())
        assert await operator.in_backlog(TOPIC, "missing", 1) is not None
        for name in SYSTEM_CURSORS:
            with pytest.raises(NotAllowed, match=f"{name} is the broker's own cursor"):
                await operator.in_backlog(TOPIC, name, 1)
