"""The backlog of a subscription without consumers is read for the index alone."""

from __future__ import annotations

import pytest
import trio

from geminga.broker.delays.settings import DelaySettings
from geminga.broker.flow.slices import in_slices
from geminga.broker.operator.delayed_unread import not_read
from geminga.broker.subscription.statistics import statistics_of
from geminga.broker.subscription.unread_delays import READ_ENTRIES_MAX, read_delays
from tests.broker.delays.test_topic_delays import until
from tests.broker.dispatch_rig import on_loop
from tests.broker.topics_rig import TOPIC, open_topics, publish, subscription_of

HOUR_S = 3600


async def no_rest() -> None:
    await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("is_shared", [False, True])
async def test_what_waits_is_in_the_index_and_nothing_is_delivered(autojump_clock, is_shared: bool) -> None:
    async with open_topics(delay_settings=DelaySettings(is_shared=is_shared)) as rig:
        await subscription_of(rig)
        await publish(rig, 30)
        await publish(rig, 2 * READ_ENTRIES_MAX, delay_s=HOUR_S)
        await publish(rig, 20)
        await publish(rig, 7, delay_s=0.001)  # due by the time that it is read
        subscription = (await rig.topics.get(TOPIC, create=False)).subscription("s")
        await trio.sleep(1)
        assert subscription.delayed.unread_entries() == 2 * READ_ENTRIES_MAX + 57
        before = subscription.cursor.read_position
        await read_delays(subscription, no_rest)
        assert len(subscription.delayed) == 2 * READ_ENTRIES_MAX + 7
        assert statistics_of(subscription).msg_overdue == 7
        assert subscription.delayed.unread_entries() == 0
        assert subscription.cursor.read_position == before
        assert subscription.backlog() == 2 * READ_ENTRIES_MAX + 57
        # Once more adds nothing. A shared index is told of what comes later, one of its own is not.
        await read_delays(subscription, no_rest)
        await publish(rig, 5, delay_s=HOUR_S)
        assert len(subscription.delayed) == 2 * READ_ENTRIES_MAX + 7 + 5 * is_shared
        assert subscription.delayed.unread_entries() == 5 * (not is_shared)


async def test_the_note_in_the_record_follows_what_is_held_back(autojump_clock) -> None:
    async with open_topics() as rig:
        await subscription_of(rig)
        await publish(rig, 3, delay_s=HOUR_S)
        topic = await rig.topics.get(TOPIC, create=False)
        assert not topic.ledger.holds_delayed
        await read_delays(topic.subscription("s"), no_rest)
        await topic.delays.note_held()
        assert topic.ledger.holds_delayed
        again = await rig.restart()
        topic = await again.topics.get(TOPIC, create=False)
        assert topic.ledger.holds_delayed
        await topic.subscription("s").clear_backlog()
        await topic.delays.note_held()
        assert not topic.ledger.holds_delayed


async def test_a_backlog_that_the_index_has_already_is_read_beside_a_lost_bucket(autojump_clock) -> None:
    """All of a read is in the index, so that nothing is left to be looked up; the broker once ended by it."""
    async with open_topics(delay_settings=DelaySettings(keeps_buckets=True)) as rig:
        await subscription_of(rig)
        await publish(rig, 5, delay_s=HOUR_S)
        subscription = (await rig.topics.get(TOPIC, create=False)).subscription("s")

        async def rest() -> None:
            """Between the read and the look into the index, which gets all of it meanwhile."""
            await read_delays(subscription, no_rest)
            buckets = subscription.delayed.buckets
            assert buckets is not None
            buckets.losses.count("start", 0, 1 << 60)

        await read_delays(subscription, rest)
        assert len(subscription.delayed) == 5
        assert subscription.delayed.buckets is not None
        assert subscription.delayed.buckets.losses.read_again == 0


@pytest.mark.parametrize("change", ["unload", "clear", "delete"])
async def test_a_change_in_the_middle_ends_it(autojump_clock, change: str) -> None:
    async with open_topics() as rig:
        await subscription_of(rig)
        await publish(rig, 3 * READ_ENTRIES_MAX, delay_s=HOUR_S)
        topic = await rig.topics.get(TOPIC, create=False)
        subscription = topic.subscription("s")
        rests = 0

        async def rest() -> None:
            nonlocal rests
            rests += 1
            if rests == 2:
                if change == "unload":
                    await rig.topics.unload(TOPIC)
                elif change == "clear":
                    await subscription.clear_backlog()
                else:
                    await topic.delete_subscription("s")

        await read_delays(subscription, rest)
        assert rests == 2
        assert len(subscription.delayed) == 0


async def test_what_was_in_no_bucket_at_a_stop_is_not_said_to_be_lost(autojump_clock, monkeypatch) -> None:
    """It is read again with the ledgers of the buckets, though none of these is lost."""
    # The clock would jump while a thread seals.
    monkeypatch.setattr(trio.to_thread, "run_sync", on_loop)
    settings = DelaySettings(keeps_buckets=True, is_shared=True, bucket_indexes_min=10)
    async with open_topics(delay_settings=settings) as rig:
        await subscription_of(rig)
        topic = await rig.topics.get(TOPIC, create=False)
        await publish(rig, 1, delay_s=HOUR_S)
        await read_delays(topic.subscription("s"), no_rest)
        await publish(rig, 5)
        await publish(rig, 30, delay_s=HOUR_S)
        shared = topic.delays.shared
        assert shared is not None
        await until(lambda: bool(shared.serving))
        again = await rig.restart()
        subscription = (await again.topics.get(TOPIC, create=False)).subscription("s")
        await subscription.delayed.open()
        assert subscription.delayed.buckets is not None
        await subscription.delayed.buckets.recovered()
        assert subscription.delayed.lost_ranges
        assert {one.why for one in await in_slices(not_read(subscription))} == {"no-consumer"}
        await read_delays(subscription, no_rest)
        assert await in_slices(not_read(subscription)) == [], "the five were read, and are not delayed"
        assert statistics_of(subscription).delayed_reads_again is None
