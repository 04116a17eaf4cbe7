"""Indexes of one subscription and of a whole topic, on real parts: fed, shared, sealed, taken over."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from geminga.broker.delays.settings import DelayPolicy, DelaySettings
from geminga.broker.delays.statistics import bucket_statistics
from geminga.broker.delays.topic_delays import TopicDelays
from geminga.broker.dispatch.consumer import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED
from geminga.broker.subscription.statistics import statistics_of
from geminga.broker.subscription.subscription import Subscription
from geminga.clock import TrioClock
from geminga.errors import CorruptData
from geminga.managed_ledger.cursor.bucket_properties import DELAYED_PREFIX
from geminga.position import LATEST, Position
from geminga.tracker.format.rows import code_of
from tests.broker.delays.test_delayed_index import Reads
from tests.broker.dispatch_rig import OpenRig, Rig, message

BUCKETS = {
    "keeps_buckets": True,
    "bucket_indexes_min": 20,
    "segment_indexes_max": 5,
    "segment_span_ms": 1000,
    "buckets_max": 4,
    "strict": True,
}
LATER_MS = 600_000


async def publish(rig: Rig, delays_ms: Sequence[int]) -> list[Position]:
    now_ms = rig.now_ms()
    return await rig.publish(*(message(b"%d" % d, deliver_at_ms=now_ms + d if d else 0) for d in delays_ms))


def bucket_keys(properties: Any) -> list[str]:
    return [key for key in properties if key.startswith(f"{DELAYED_PREFIX}bucket_")]


def named(rig: Rig, subscription: Subscription) -> Any:
    """Properties that may name buckets: the topic's, or the cursor's."""
    assert rig.delays is not None
    is_shared = rig.delays.settings.is_shared
    return rig.ledger.internal_properties if is_shared else subscription.cursor.properties


async def until(condition: Any, *, polls: int = 2000) -> None:
    for _ in range(polls):
        if condition():
            return
        await trio.sleep(0.001)
    raise AssertionError("it never became so")


async def restarted(rig: Rig, **settings: Any) -> TopicDelays:
    """As a new process would find it: the subscriptions' trackers are closed, their cursors stay."""
    assert rig.delays is not None
    for subscription in list(rig.topic.subscriptions.values()):
        await subscription.close()
        rig.delays.detach(subscription.delayed)
    await rig.delays.close()
    rig.topic.subscriptions.clear()
    return await rig.index(**settings)


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
async def test_a_shared_index_is_fed_by_what_is_appended(
    dispatch_rig: OpenRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, sub_type: str
) -> None:
    """A delayed entry is read once, when it is due."""
    async with dispatch_rig() as rig:
        delays = await rig.index(is_shared=True, strict=True, tick_ms=16)
        subscription = await rig.subscription()
        client = rig.join(subscription, sub_type)
        assert not delays.feeds
        await publish(rig, [100])
        await rig.settle()
        assert delays.feeds, "someone waits now"
        reads = Reads(rig, monkeypatch)
        positions = await publish(rig, [1000, 0, 2000, 0])
        await rig.settle()
        assert client.payloads == [b"0", b"0"]
        assert not {positions[0], positions[2]} & set(reads.entries)
        assert statistics_of(subscription).msg_delayed == 3
        await trio.sleep(3)
        assert client.payloads == [b"0", b"0", b"100", b"1000", b"2000"]
        assert reads.entries.count(positions[0]) == reads.entries.count(positions[2]) == 1


async def test_each_subscription_has_its_own_view_of_a_shared_index(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        delays = await rig.index(is_shared=True, strict=True, tick_ms=16)
        a, b = await rig.subscription("a"), await rig.subscription("b")
        first, second = rig.join(a, SHARED), rig.join(b, SHARED, permits=1)
        positions = await publish(rig, [0, 1000, 2000, 3000])
        await rig.settle()
        assert (len(a.delayed), len(b.delayed)) == (3, 0), "b has no permits to look further"
        second.flow(100)
        await rig.settle()
        assert (len(a.delayed), len(b.delayed)) == (3, 3)
        assert delays.shared is not None
        assert len(delays.shared.index) == 3
        a.acks.skip_to(positions[1])
        assert (len(a.delayed), len(b.delayed)) == (2, 3)
        await trio.sleep(4)
        assert first.positions == [positions[0], *positions[2:]]
        assert second.positions == positions
        assert len(a.delayed) == len(b.delayed) == len(delays.shared.index) == 0


async def test_what_one_subscription_reads_again_does_not_wait_at_another_that_has_it_out(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    """The clock is set back, and one of them starts over: the entry is not due yet any more."""
    async with dispatch_rig() as rig:
        clock = rig.clock = SteppedClock()
        await rig.index(is_shared=True, strict=True, tick_ms=16)
        a, b, c = [await rig.subscription(name) for name in ("a", "b", "c")]
        first, second, third = [rig.join(subscription, SHARED) for subscription in (a, b, c)]
        await publish(rig, [1000])
        await trio.sleep(2)
        assert first.payloads == second.payloads == third.payloads == [b"1000"]
        third.ack_all()
        clock.stepped_ms = -3000
        first.leave()
        again = rig.join(a, SHARED)
        await rig.settle()
        assert (again.payloads, len(a.delayed)) == ([], 1)
        assert (len(b.delayed), len(c.delayed)) == (0, 0)
        await trio.sleep(5)
        assert again.payloads == second.payloads == third.payloads == [b"1000"]


class SteppedClock(TrioClock):
    stepped_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.stepped_ms


async def test_a_subscription_that_comes_late_gets_what_others_had_already(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        await rig.index(is_shared=True, strict=True, tick_ms=16)
        early = rig.join(await rig.subscription("early"), SHARED)
        positions = await publish(rig, [500, 5000, 0, 9000])
        await trio.sleep(1)
        early.ack(*early.positions)
        late_subscription = await rig.subscription("late")
        late = rig.join(late_subscription, SHARED)
        await rig.settle()
        assert late.positions == [positions[0], positions[2]]
        assert len(late_subscription.delayed) == 2
        await trio.sleep(10)
        assert early.positions == [positions[2], positions[0], positions[1], positions[3]]
        assert sorted(late.positions) == positions


async def test_a_subscription_that_ends_leaves_the_others_what_they_wait_for(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        delays = await rig.index(is_shared=True, strict=True, tick_ms=16)
        a, b = await rig.subscription("a"), await rig.subscription("b")
        rig.join(a, SHARED)
        stays = rig.join(b, SHARED)
        positions = await publish(rig, [1000, 2000])
        await rig.settle()
        await a.delete()
        delays.detach(a.delayed)
        await delays.subscription_deleted()
        await trio.sleep(3)
        assert stays.positions == positions
        await publish(rig, [1000])
        await rig.settle()
        await b.delete()
        delays.detach(b.delayed)
        await delays.subscription_deleted()
        assert delays.shared is not None
        assert len(delays.shared.index) == 0
        assert not delays.feeds


async def test_what_only_the_last_laggard_needed_goes_when_it_unsubscribes(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig(ledger_entries_max=25, rollover_min_ms=0) as rig:
        delays = await rig.index(**{**BUCKETS, "is_shared": True, "buckets_max": -1})
        ahead, laggard = await rig.subscription("ahead"), await rig.subscription("laggard")
        rig.join(ahead, SHARED)
        rig.join(laggard, SHARED)
        await publish(rig, [LATER_MS + n for n in range(110)])
        await until(lambda: len(bucket_keys(rig.ledger.internal_properties)) >= 3)
        await ahead.clear_backlog()
        later = await publish(rig, [LATER_MS + n for n in range(110, 170)])
        await until(lambda: len(bucket_keys(rig.ledger.internal_properties)) >= 5)
        assert len(laggard.delayed) == 170
        await laggard.delete()
        delays.detach(laggard.delayed)
        await delays.subscription_deleted()
        assert delays.shared is not None
        buckets, wanted = delays.shared, {position.ledger_id for position in later}

        def only_wanted_are_named() -> bool:
            ends = [bucket.end_ledger for bucket in buckets.stored]
            return len(bucket_keys(rig.ledger.internal_properties)) == len(ends) and min(ends) >= min(wanted)

        await until(only_wanted_are_named)
        assert len(buckets.index) == len(ahead.delayed) == 60
        await ahead.delete()
        delays.detach(ahead.delayed)
        await delays.subscription_deleted()
        assert not bucket_keys(rig.ledger.internal_properties)


async def test_what_a_subscription_without_consumers_needs_stays_in_a_shared_index(
    dispatch_rig: OpenRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no view yet. Trimmed by those that have one, the index would be built again from the backlog."""
    async with dispatch_rig(ledger_entries_max=25, rollover_min_ms=0) as rig:
        delays = await rig.index(**{**BUCKETS, "is_shared": True, "buckets_max": -1})
        ahead, absent = await rig.subscription("ahead"), await rig.subscription("absent")
        rig.join(ahead, SHARED)
        first = await publish(rig, [1, *(LATER_MS + n for n in range(99))])
        await until(lambda: len(bucket_keys(rig.ledger.internal_properties)) >= 4)
        assert delays.shared is not None
        keys = set(bucket_keys(rig.ledger.internal_properties))
        await ahead.clear_backlog()
        await publish(rig, [LATER_MS])
        await rig.settle()
        assert (len(ahead.delayed), len(delays.shared.index)) == (1, 100)
        assert keys <= set(bucket_keys(rig.ledger.internal_properties))
        reads = Reads(rig, monkeypatch)
        client = rig.join(absent, SHARED)
        await rig.settle()
        assert len(absent.delayed) == 100
        assert {*reads.entries} == {*client.positions} == {first[0]}, "nothing that waits is read"


async def test_a_reader_leaves_nothing_in_a_shared_index(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        delays = await rig.index(is_shared=True, strict=True, tick_ms=16)
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        positions = await publish(rig, [LATER_MS] * 3)
        await rig.settle()
        assert delays.shared is not None
        assert len(delays.shared.index.readers) == 1
        reader = rig.join(await rig.subscription("reader", durable=False), EXCLUSIVE)
        await rig.settle()
        assert reader.positions == positions
        reader.leave()
        await rig.settle()
        assert len(delays.shared.index.readers) == 1
        assert rig.topic.subscriptions == {"s": subscription}
        await subscription.clear_backlog()
        assert len(delays.shared.index) == 0, "it waits for nobody"
        assert client.positions == []


@pytest.mark.parametrize("sub_type", [EXCLUSIVE, FAILOVER])
async def test_exclusive_and_failover_count_nothing_as_delayed(
    dispatch_rig: OpenRig, autojump_clock: MockClock, sub_type: str
) -> None:
    """As the real broker says of 300 delayed messages: msgDelayed 0, msgBacklogNoDelayed 300."""
    async with dispatch_rig() as rig:
        await rig.index(is_shared=True, strict=True, tick_ms=16)
        waits = await rig.subscription("waits")
        rig.join(waits, SHARED)
        await publish(rig, [LATER_MS] * 3)
        await rig.settle()
        at_once = await rig.subscription("at-once")
        client = rig.join(at_once, sub_type)
        await trio.sleep(5)
        positions = await publish(rig, [LATER_MS] * 4)
        await rig.settle()
        assert set(positions) <= set(client.positions)
        found = statistics_of(at_once)
        assert (found.msg_delayed, found.msg_backlog_no_delayed, found.msg_backlog) == (0, 7, 7)
        assert found.delayed_message_index_size_in_bytes == 0
        held = statistics_of(waits)
        assert (held.msg_delayed, held.msg_backlog_no_delayed, held.msg_backlog) == (7, 0, 7)
        assert held.delayed_message_index_size_in_bytes > 0


@pytest.mark.parametrize("is_shared", [False, True])
async def test_what_is_sealed_is_known_at_the_next_start_and_not_read_again(
    dispatch_rig: OpenRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, is_shared: bool
) -> None:
    settings = {**BUCKETS, "is_shared": is_shared}
    async with dispatch_rig(ledger_entries_max=25, rollover_min_ms=0) as rig:
        await rig.index(**settings)
        subscription = await rig.subscription()
        rig.join(subscription, SHARED)
        positions = await publish(rig, [LATER_MS + n for n in range(110)])
        await until(lambda: 1 <= len(bucket_keys(named(rig, subscription))) <= 4)
        assert rig.delays is not None
        buckets = subscription.delayed.buckets
        assert buckets is not None
        await until(lambda: not buckets.frozen)
        ranges = [(bucket.first_code, bucket.last_code) for bucket in buckets.stored]
        sealed = {p for p in positions if any(first <= code_of(*p) <= last for first, last in ranges)}
        assert len(sealed) >= 50
        await restarted(rig, **settings)
        reads = Reads(rig, monkeypatch)
        again = await rig.subscription()
        client = rig.join(again, SHARED)
        await until(lambda: len(again.delayed) == 110)
        assert not sealed & set(reads.entries)
        await trio.sleep(LATER_MS / 1000 - 1)
        assert client.positions == []
        await trio.sleep(2)
        assert sorted(client.positions) == positions
        await until(
            lambda: not bucket_keys(rig.ledger.internal_properties if is_shared else again.cursor.properties)
        )


@pytest.mark.parametrize("is_shared", [False, True])
async def test_a_bucket_that_is_lost_while_running_is_read_again(
    dispatch_rig: OpenRig, autojump_clock: MockClock, is_shared: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "geminga.tracker")
    async with dispatch_rig(ledger_entries_max=25, rollover_min_ms=0) as rig:
        await rig.index(**{**BUCKETS, "is_shared": is_shared, "buckets_max": -1})
        names = ["a", "b"] if is_shared else ["a"]
        subscriptions = [await rig.subscription(name) for name in names]
        clients = [rig.join(subscription, SHARED) for subscription in subscriptions]
        positions = await publish(rig, [5000 + n for n in range(110)])
        buckets = subscriptions[0].delayed.buckets
        await until(lambda: (h := subscriptions[0].delayed.buckets) and len(h.stored) >= 3)
        buckets = subscriptions[0].delayed.buckets
        assert buckets is not None
        buckets.lose(buckets.stored[1], CorruptData("as if"), "load")
        missing = 110 - len(subscriptions[0].delayed)
        assert missing > 0
        await until(lambda: all(len(subscription.delayed) == 110 for subscription in subscriptions))
        await until(lambda: (found := bucket_statistics(buckets)) is not None and found.rebuilt)
        counts = bucket_statistics(buckets)
        assert counts is not None
        assert counts.lost == {"start": 0, "load": 1, "verify": 0, "told": 0}
        assert (counts.read_again, counts.rebuilt) == (missing, 1)
        told = [record for record in caplog.records if "is rebuilt out of messages" in record.getMessage()]
        assert [record.levelname for record in told] == ["INFO"]
        await trio.sleep(6)
        for client in clients:
            assert client.positions == positions


async def test_settings_that_change_between_starts_leave_no_buckets(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig(ledger_entries_max=25, rollover_min_ms=0) as rig:
        await rig.index(**BUCKETS)
        subscription = await rig.subscription()
        rig.join(subscription, SHARED)
        await publish(rig, [LATER_MS] * 60)
        await until(lambda: bucket_keys(subscription.cursor.properties))
        await restarted(rig, **BUCKETS, is_shared=True)
        assert not bucket_keys(subscription.cursor.properties)
        shared = await rig.subscription()
        rig.join(shared, SHARED)
        await until(lambda: bucket_keys(rig.ledger.internal_properties))
        await restarted(rig, strict=True)
        assert not bucket_keys(rig.ledger.internal_properties)
        last = await rig.subscription()
        rig.join(last, SHARED)
        await until(lambda: len(last.delayed) == 60)


@pytest.mark.parametrize("keeps_buckets", [False, True])
async def test_another_time_holds_and_survives_a_start(
    dispatch_rig: OpenRig, autojump_clock: MockClock, keeps_buckets: bool
) -> None:
    settings = {**BUCKETS, "keeps_buckets": keeps_buckets, "tick_ms": 16}
    async with dispatch_rig(ledger_entries_max=25, rollover_min_ms=0) as rig:
        await rig.index(**settings)
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        positions = await publish(rig, [5000] * 60)
        await until(lambda: len(subscription.delayed) == 60)
        buckets = subscription.delayed.buckets
        assert buckets is not None
        now_ms = rig.now_ms()
        assert await buckets.reschedule(positions[3], now_ms)
        assert await buckets.reschedule(positions[4], now_ms + 60_000)
        assert not await buckets.reschedule(Position(9999, 0), now_ms)
        await until(lambda: client.positions == [positions[3]])
        assert len(subscription.delayed) == 59
        client.leave()
        back = rig.join(subscription, SHARED)
        await until(lambda: back.positions == [positions[3]])
        await restarted(rig, **settings)
        again = await rig.subscription()
        last = rig.join(again, SHARED)
        await until(lambda: last.positions == [positions[3]])
        await trio.sleep(6)
        assert sorted(last.positions) == sorted(set(positions) - {positions[4]})
        await trio.sleep(60)
        assert last.positions[-1] == positions[4]


async def test_a_policy_reaches_every_subscription_and_the_feed(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        delays = await rig.index(is_shared=True, strict=True, tick_ms=16)
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        await publish(rig, [1000])
        await rig.settle()
        delays.set_policy(DelayPolicy(active=False))
        await publish(rig, [2000])
        await rig.settle()
        assert client.payloads == [b"2000"]
        assert not delays.feeds
        delays.set_policy(DelayPolicy())
        await publish(rig, [3000])
        await rig.settle()
        assert len(subscription.delayed) == 2


async def test_a_seek_to_the_end_lets_a_shared_index_go(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig(ledger_entries_max=25, rollover_min_ms=0) as rig:
        await rig.index(**BUCKETS, is_shared=True)
        subscription = await rig.subscription()
        rig.join(subscription, SHARED)
        await publish(rig, [LATER_MS] * 60)
        await until(lambda: bucket_keys(rig.ledger.internal_properties))
        await subscription.seek(LATEST)
        assert len(subscription.delayed) == 0
        await until(lambda: not bucket_keys(rig.ledger.internal_properties))


async def test_a_reader_that_leaves_no_trace_is_indexed_in_memory(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig(ledger_entries_max=25, rollover_min_ms=0) as rig:
        await rig.index(**BUCKETS)
        subscription = await rig.subscription(durable=False)
        client = rig.join(subscription, SHARED, durable=False)
        positions = await publish(rig, [1000] * 60)
        await until(lambda: len(subscription.delayed) == 60)
        buckets = subscription.delayed.buckets
        assert buckets is not None
        assert not buckets.keeps
        await trio.sleep(2)
        assert client.positions == positions


def test_settings_are_as_pulsars() -> None:
    settings = DelaySettings()
    assert (settings.bucket_indexes_min, settings.segment_span_ms, settings.segment_indexes_max) == (
        50_000,
        300_000,
        5_000,
    )
