"""What an operator sees of delayed messages, and what is done for one."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from geminga.broker.delays.topic_delays import TopicDelays
from geminga.broker.dispatch.consumer import EXCLUSIVE, KEY_SHARED, SHARED
from geminga.broker.operator.delayed_statistics import DueHistogram
from geminga.broker.operator.delayed_view import DelayedOperator, InThePast, NotDelayed
from geminga.broker.subscription.statistics import statistics_of
from geminga.broker.subscription.subscription import Subscription
from geminga.chaos.bucket_damage import NothingLeft
from geminga.cli.admin.delayed_text import summary_lines
from geminga.errors import CorruptData, NotAllowed
from geminga.position import Position
from geminga.tracker.buckets import override_store
from tests.broker.delays.test_topic_delays import BUCKETS, LATER_MS, bucket_keys, named, publish, until
from tests.broker.dispatch_rig import TOPIC, OpenRig, Rig, message


def operator(rig: Rig, *, allows_damage: bool = False) -> DelayedOperator:
    def subscription(name: str) -> Subscription:
        found: Subscription = rig.topic.subscriptions[name]
        return found

    topic = SimpleNamespace(
        name=TOPIC,
        subscription=subscription,
        subscriptions=rig.topic.subscriptions,
        delays=rig.delays,
        ledger=rig.ledger,
    )

    async def get(name: object, *, create: bool) -> Any:
        assert name == TOPIC
        return topic

    topics: Any = SimpleNamespace(get=get, catalog=SimpleNamespace(partitions=lambda name: 0))
    return DelayedOperator(topics, allows_damage=allows_damage)


@pytest.mark.parametrize("settings", [{}, BUCKETS, {**BUCKETS, "is_shared": True}])
async def test_counts_by_due_time(
    dispatch_rig: OpenRig, autojump_clock: MockClock, settings: dict[str, Any]
) -> None:
    async with dispatch_rig(ledger_entries_max=25, rollover_min_ms=0) as rig:
        await rig.index(**{"strict": True, "tick_ms": 16, **settings})
        subscription = await rig.subscription()
        other = await rig.subscription("other")
        clients = [rig.join(subscription, SHARED), rig.join(other, SHARED)]
        chance = random.Random(5)
        delays = [chance.randrange(100_000, 200_000) for _ in range(150)]
        started_ms = rig.now_ms()
        positions = await publish(rig, delays)
        await until(lambda: len(subscription.delayed) == 150 == len(other.delayed))
        await trio.sleep(1)
        subscription.acks.skip_to(positions[9])
        view = operator(rig)
        rows = (await view.histogram(TOPIC, "s", 10_000)).classes
        assert sum(row.messages for row in rows) == pytest.approx(140, abs=5)
        for row in rows:
            assert row.to_ms - row.from_ms == 10_000
            wanted = sum(row.from_ms <= started_ms + delay < row.to_ms for delay in delays[10:])
            assert row.messages == pytest.approx(wanted, abs=10)
        fine = await view.histogram(TOPIC, "s", 1)
        assert len(fine.classes) <= 1000
        assert {row.to_ms - row.from_ms for row in fine.classes} == {fine.width_ms}
        summary = await view.summary(TOPIC, "s")
        assert (summary.messages, summary.is_shared) == (140, bool(settings.get("is_shared")))
        assert summary.next_due_ms is not None
        assert all(not client.positions for client in clients)


@pytest.mark.parametrize(
    "settings", [{}, {"is_shared": True}, BUCKETS, {**BUCKETS, "is_shared": True}], ids=str
)
async def test_each_message_is_counted_in_one_place_whoever_comes_and_goes(
    dispatch_rig: OpenRig, autojump_clock: MockClock, settings: dict[str, Any]
) -> None:
    async with dispatch_rig(ledger_entries_max=25, rollover_min_ms=0) as rig:
        await rig.index(**{"strict": True, "tick_ms": 16, **settings})
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED, permits=5)
        view = operator(rig)

        async def counts() -> tuple[int, int, int, int, int]:
            """Waiting, due of these, with consumers, to be sent again, unread."""
            await rig.settle()
            found = await view.summary(TOPIC, "s")
            parts = found.messages, found.pending, found.to_be_sent_again, found.unread
            assert sum(parts) == found.backlog
            shown = statistics_of(subscription)
            assert (shown.msg_delayed, shown.msg_overdue) == (found.messages, found.due)
            assert shown.unread_entries == (0 if found.consumers else found.unread)
            assert sum(one.entries for one in found.not_read) == found.unread
            return parts[0], found.due, *parts[1:]

        await publish(rig, [10_000 + n for n in range(30)] + [200_000 + n for n in range(30)] + [0] * 5)
        await until(lambda: len(subscription.delayed) == 60)
        assert await counts() == (60, 0, 5, 0, 0)
        await trio.sleep(11)
        assert await counts() == (60, 30, 5, 0, 0), "due, and nobody takes it"
        client.nack(client.positions[0])
        assert await counts() == (60, 30, 4, 1, 0)
        client.flow(11)
        assert await counts() == (49, 19, 15, 1, 0), "eleven were taken, and there was one already"
        client.nack(client.positions[7])
        assert await counts() == (49, 19, 14, 2, 0)
        client.leave()
        assert await counts() == (49, 19, 0, 16, 0), "nobody has what it had, and it was read"
        await publish(rig, [100_000] * 10)
        known = 10 if settings.get("is_shared") else 0
        assert await counts() == (49 + known, 19, 0, 16, 10 - known)
        other = rig.join(subscription, SHARED, permits=40)
        await until(lambda: len(other.positions) == 35)
        assert await counts() == (40, 0, 35, 0, 0)


async def test_an_exclusive_consumer_has_what_was_sent_to_it(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        await rig.index()
        subscription = await rig.subscription()
        client = rig.join(subscription, EXCLUSIVE, permits=3)
        await publish(rig, [0, 50_000, 0, 50_000, 0])
        await rig.settle()
        assert len(client.positions) == 3
        found = await operator(rig).summary(TOPIC, "s")
        assert (found.messages, found.pending, found.unread, found.backlog) == (0, 3, 2, 5)
        assert not found.holds_back


async def test_pages_of_what_waits(dispatch_rig: OpenRig, autojump_clock: MockClock) -> None:
    async with dispatch_rig(ledger_entries_max=25, rollover_min_ms=0) as rig:
        await rig.index(**BUCKETS)
        subscription = await rig.subscription()
        rig.join(subscription, SHARED)
        delays = [0 if n % 4 == 0 else 50_000 + n for n in range(120)]
        started_ms = rig.now_ms()
        positions = await publish(rig, delays)
        await until(lambda: len(subscription.delayed) == 90)
        view, start, found = operator(rig), Position(0, 0), []
        for _ in range(10):
            page = await view.messages(TOPIC, "s", start, 40)
            found += page.messages
            assert len(page.messages) <= 40
            if page.next is None:
                break
            start = Position(*map(int, page.next.split(":")))
        expected = [(*p, started_ms + d) for p, d in zip(positions, delays, strict=True) if d]
        assert [(m.ledger_id, m.entry_id, m.due_ms) for m in found] == expected


async def test_why_a_message_is_not_delivered(dispatch_rig: OpenRig, autojump_clock: MockClock) -> None:
    async with dispatch_rig() as rig:
        await rig.index(strict=True, tick_ms=16)
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED, permits=3)
        positions = await publish(rig, [0, 0, 1000, 50_000, 0, 0, 0])
        view = operator(rig)
        await rig.settle()
        client.ack(positions[0])

        async def reason(position: Position) -> str:
            return (await view.why(TOPIC, "s", position)).reason

        assert await reason(positions[0]) == "acknowledged"
        assert await reason(positions[1]) == "pending"
        assert await reason(positions[2]) == "delayed"
        assert "50." in (await view.why(TOPIC, "s", positions[3])).text
        assert await reason(positions[6]) == "not-read-yet"
        assert await reason(Position(positions[0].ledger_id, 99)) == "no-such-entry"
        await trio.sleep(2)
        due = await view.why(TOPIC, "s", positions[2])
        assert due.reason == "due"
        assert "0 of 1" in due.text
        client.nack(positions[1])
        assert await reason(positions[1]) == "to-be-sent-again"


async def test_the_look_ahead_limit_of_key_shared_is_told(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        await rig.index(strict=True, tick_ms=16)
        subscription = await rig.subscription(look_ahead_max_per_consumer=5)
        rig.join(subscription, KEY_SHARED, permits=0)
        taker = rig.join(subscription, KEY_SHARED, name="taker", permits=1000)
        due_ms = rig.now_ms() + 1000
        await rig.publish(*(message(key=f"k{n}", deliver_at_ms=due_ms + n) for n in range(100)))
        view = operator(rig)
        await until(lambda: len(subscription.delayed) == 100)
        assert (await view.summary(TOPIC, "s")).held_up_by == ""
        await trio.sleep(3)
        summary = await view.summary(TOPIC, "s")
        reason = (
            "10 messages wait for the consumers of their keys, and no more are taken: "
            "the limit is 10 for 2 consumers (keySharedLookAheadMsgInReplayThresholdPerConsumer)"
        )
        assert (summary.held_up_by, summary.due > 0, summary.to_be_sent_again) == (reason, True, 10)
        assert f"held up             {reason}" in list(summary_lines(msgspec.to_builtins(summary)))
        last = (await view.messages(TOPIC, "s", Position(0, 0), 100)).messages[-1]
        why = await view.why(TOPIC, "s", Position(last.ledger_id, last.entry_id))
        assert (why.reason, why.text.endswith(f"is due, but {reason}")) == ("due", True)
        assert taker.positions


async def test_cancelled_messages_never_come(dispatch_rig: OpenRig, autojump_clock: MockClock) -> None:
    async with dispatch_rig() as rig:
        await rig.index(strict=True, tick_ms=16)
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        positions = await publish(rig, [0, 1000, 1000, 1000])
        await rig.settle()
        view = operator(rig)
        result = await view.cancel(TOPIC, "s", [positions[0], positions[2], positions[2]])
        assert result.cancelled == 1
        assert [left.message for left in result.not_cancelled] == [f"{positions[0][0]}:{positions[0][1]}"]
        assert "was sent to the consumer" in result.not_cancelled[0].why
        assert len(subscription.delayed) == 2
        assert not subscription.cursor.is_dirty, "durable by now"
        await trio.sleep(2)
        assert client.positions == [positions[0], positions[1], positions[3]]


@pytest.mark.parametrize("is_shared", [True, False])
async def test_nothing_of_the_index_is_left_when_all_is_cancelled(
    dispatch_rig: OpenRig, autojump_clock: MockClock, is_shared: bool
) -> None:
    async with dispatch_rig() as rig:
        await rig.index(**{**BUCKETS, "is_shared": is_shared})
        subscription = await rig.subscription()
        rig.join(subscription, SHARED)
        positions = await publish(rig, [LATER_MS + n for n in range(100)])
        await until(lambda: len(subscription.delayed) == 100)
        await until(lambda: bool(bucket_keys(named(rig, subscription))))
        result = await operator(rig).cancel(TOPIC, "s", positions)
        assert result.cancelled == 100
        assert subscription.cursor.mark_delete == positions[-1]
        assert subscription.acks.last_mark_delete_advanced_ms == rig.now_ms()
        await until(lambda: not bucket_keys(named(rig, subscription)))
        assert len(subscription.delayed) == 0


@pytest.mark.parametrize("is_waiting", [True, False])
async def test_thousands_are_cancelled_by_turns(
    dispatch_rig: OpenRig, autojump_clock: MockClock, is_waiting: bool
) -> None:
    """Each is compared with few others, and other work goes on between those that cannot be cancelled."""
    compared = turns = 0

    class Counted(Position):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return tuple.__eq__(self, other)

        __hash__ = Position.__hash__

    async def other_work() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with dispatch_rig() as rig, trio.open_nursery() as nursery:
        await rig.index()
        subscription = await rig.subscription()
        rig.join(subscription, SHARED)
        places = await publish(rig, [LATER_MS] * 1000)
        await until(lambda: len(subscription.delayed) == 1000)
        if not is_waiting:
            places = [Position(place[0], place[1] + 1000) for place in places]
        nursery.start_soon(other_work)
        await trio.lowlevel.checkpoint()
        turns = 0
        result = await operator(rig).cancel(TOPIC, "s", [Counted(*place) for place in places])
        assert (result.cancelled, len(result.not_cancelled)) == ((1000, 0) if is_waiting else (0, 1000))
        assert compared < 10_000
        assert turns >= 10
        nursery.cancel_scope.cancel()


async def test_messages_that_nobody_has_read_are_cancelled_too(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        await rig.index(strict=True, tick_ms=16)
        subscription = await rig.subscription()
        positions = await publish(rig, [0, 5000, 5000, 5000])
        view = operator(rig)
        result = await view.cancel(TOPIC, "s", [positions[0], positions[1]])
        assert result.cancelled == 1
        assert "has not been read yet: no consumer is connected" in result.not_cancelled[0].why
        assert (await view.why(TOPIC, "s", positions[2])).reason == "delayed"
        await trio.sleep(6)
        why = await view.why(TOPIC, "s", positions[2])
        assert (why.reason, "is due, and goes out" in why.text) == ("due", True)
        assert (await view.cancel(TOPIC, "s", [positions[2]])).cancelled == 1
        client = rig.join(subscription, SHARED)
        await trio.sleep(6)
        assert client.positions == [positions[0], positions[3]]


async def test_looking_at_an_exclusive_subscription_holds_nothing_back_for_it(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        await rig.index(strict=True, tick_ms=16, is_shared=True)
        exclusive = await rig.subscription("x")
        rig.join(await rig.subscription(), SHARED)
        client = rig.join(exclusive, EXCLUSIVE)
        positions = await publish(rig, [5000, 5000])
        await rig.settle()
        view = operator(rig)
        assert sum(row.messages for row in (await view.histogram(TOPIC, "s", 1000)).classes) == 2
        assert (await view.histogram(TOPIC, "x", 1000)).classes == []
        assert (await view.messages(TOPIC, "x", Position(0, 0), 10)).messages == []
        result = await view.cancel(TOPIC, "x", [positions[1]])
        assert (result.cancelled, len(result.not_cancelled)) == (0, 1)
        assert client.positions == positions
        assert (await view.summary(TOPIC, "x")).pending == 2


@pytest.mark.parametrize("settings", [{}, BUCKETS, {**BUCKETS, "is_shared": True}], ids=str)
async def test_other_times_are_seen_where_they_are(
    dispatch_rig: OpenRig, autojump_clock: MockClock, settings: dict[str, Any]
) -> None:
    """However often a message was given another time, and wherever its first one is kept."""
    async with dispatch_rig(ledger_entries_max=25, rollover_min_ms=0) as rig:
        await rig.index(**{"strict": True, "tick_ms": 16, **settings})
        subscription = await rig.subscription()
        rig.join(subscription, SHARED)
        positions = await publish(rig, [100_000 + n for n in range(100)])
        await until(lambda: len(subscription.delayed) == 100)
        await trio.sleep(1)
        view, started_ms = operator(rig), rig.now_ms()
        hour_ms = 3_600_000
        for hours in (2, 9, 5):
            for position in (positions[0], positions[60], positions[99]):
                await view.reschedule(TOPIC, "s", position, started_ms + hours * hour_ms)
            rows = (await view.histogram(TOPIC, "s", hour_ms)).classes
            first, last = rows[0], rows[-1]
            assert sum(row.messages for row in rows[:-1]) == 97
            assert first.from_ms <= started_ms + 100_000 < rows[-2].to_ms
            assert last.from_ms <= started_ms + hours * hour_ms < last.to_ms
            assert (last.messages, last.is_estimated) == (3, False)
        for position in positions[:99]:
            await view.reschedule(TOPIC, "s", position, started_ms + 8 * hour_ms)
        summary = await view.summary(TOPIC, "s")
        assert summary.next_due_ms is not None
        if not settings:
            assert summary.next_due_ms == pytest.approx(started_ms + 5 * hour_ms, abs=16)


async def test_other_times(dispatch_rig: OpenRig, autojump_clock: MockClock) -> None:
    async with dispatch_rig() as rig:
        await rig.index(strict=True, tick_ms=16)
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        positions = await publish(rig, [1000, 50_000, 60_000])
        await rig.settle()
        view = operator(rig)
        with pytest.raises(InThePast, match="Z is in the past, now is 20.*Z: expedite it"):
            await view.reschedule(TOPIC, "s", positions[2], rig.now_ms() - 60_000)
        await view.reschedule(TOPIC, "s", positions[2], None)
        await view.reschedule(TOPIC, "s", positions[0], rig.now_ms() + 5000)
        await trio.sleep(2)
        assert client.positions == [positions[2]]
        assert (await view.messages(TOPIC, "s", Position(0, 0), 1)).messages[0].due_ms > rig.now_ms()  # type: ignore[operator]
        await trio.sleep(4)
        assert client.positions == [positions[2], positions[0]]
        for gone in (positions[0], positions[2], Position(77, 0)):
            with pytest.raises(NotDelayed):
                await view.reschedule(TOPIC, "s", gone, None)


async def test_changed_times_are_looked_through_only_for_room(
    dispatch_rig: OpenRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(override_store, "OVERRIDES_MAX", 3)
    looks = []
    is_acknowledged = TopicDelays.is_acknowledged_by_all

    def counted(delays: TopicDelays, position: Position) -> bool:
        looks.append(position)
        return is_acknowledged(delays, position)

    monkeypatch.setattr(TopicDelays, "is_acknowledged_by_all", counted)
    async with dispatch_rig() as rig:
        await rig.index(**{**BUCKETS, "is_shared": True})
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        positions = await publish(rig, [LATER_MS] * 5)
        await until(lambda: len(subscription.delayed) == 5)
        view = operator(rig)
        for position in positions[:3]:
            await view.reschedule(TOPIC, "s", position, rig.now_ms() + 1000)
        assert not looks
        with pytest.raises(NotAllowed):
            await view.reschedule(TOPIC, "s", positions[3], None)
        assert len(looks) == 3
        await trio.sleep(2)
        assert client.positions == positions[:3]
        client.ack(*positions[:2])
        for position in positions[3:]:
            await view.reschedule(TOPIC, "s", position, None)
        assert len(looks) == 6
        await trio.sleep(1)
        assert client.positions == positions


@pytest.mark.parametrize("how", ["lose", "truncate", "corrupt"])
async def test_a_bucket_is_damaged_only_where_that_is_allowed(
    dispatch_rig: OpenRig, autojump_clock: MockClock, how: Any
) -> None:
    async with dispatch_rig(ledger_entries_max=25, rollover_min_ms=0) as rig:
        await rig.index(**BUCKETS)
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        positions = await publish(rig, [70_000 + 10 * n for n in range(60)])
        view = operator(rig, allows_damage=True)

        async def stored() -> list[Any]:
            return [bucket for bucket, _ in await view.buckets(TOPIC, "s") if bucket.ledger_id is not None]

        async def wear_out(ledger_id: int | None) -> None:
            while ledger_id is not None:
                ledger_id = await view.damage(TOPIC, "s", how, ledger_id, quietly=True)

        await until(lambda: bucket_keys(subscription.cursor.properties))
        before = await stored()
        with pytest.raises(NotAllowed):
            await operator(rig).damage(TOPIC, "s", how, None)
        assert await view.damage(TOPIC, "s", how, 123_456) is None
        damaged = await view.damage(TOPIC, "s", how, before[0].ledger_id, quietly=True)
        assert damaged is not None
        if how == "truncate":  # down to nothing, which the index does not know yet
            with pytest.raises(NothingLeft):
                await wear_out(damaged)
        await trio.sleep(72)
        assert client.positions == positions


@pytest.mark.parametrize("is_shared", [False, True])
async def test_what_is_being_read_again_is_told_with_how_far_it_is(
    dispatch_rig: OpenRig, autojump_clock: MockClock, is_shared: bool
) -> None:
    """A consumer with as many unacknowledged messages as it may have stops the reading, and so does one
    without permits; the text says which.
    """
    async with dispatch_rig(ledger_entries_max=25, rollover_min_ms=0) as rig:
        await rig.index(**BUCKETS, is_shared=is_shared)
        subscription = await rig.subscription(unacked_max_per_subscription=4)
        client = rig.join(subscription, SHARED)
        await publish(rig, [LATER_MS + n for n in range(100)])
        view = operator(rig)

        async def listed() -> dict[str, int]:
            rows = [row for row, _ in await view.buckets(TOPIC, "s")]
            summary = await view.summary(TOPIC, "s")
            assert sum(row.messages for row in rows) == summary.messages
            assert sum(row.not_read for row in rows) == summary.unread
            found: dict[str, int] = {}
            for row in rows:
                found[row.state] = found.get(row.state, 0) + row.messages + row.not_read
            return found

        await until(lambda: len(subscription.delayed) == 100)
        await trio.sleep(1)
        assert (await listed())["sealed"] >= 80
        await publish(rig, [0] * 4)
        await until(lambda: len(client.positions) == 4)
        buckets = subscription.delayed.buckets
        assert buckets is not None
        stored = buckets.stored[0]
        buckets.lose(stored, CorruptData("flipped"), "told")
        lost = 100 - len(subscription.delayed)
        assert lost >= 20
        found = await listed()
        assert (found["rebuilding"], sum(found.values())) == (lost, 100)
        [reason] = (await view.histogram(TOPIC, "s", 1000)).not_read
        assert (reason.why, reason.entries) == ("rebuilding", lost)
        assert (reason.start_ledger, reason.end_ledger) == (stored.start_ledger, stored.end_ledger)
        done = reason.of - lost
        expected = f"the index has {done} of {reason.of} entries there"
        waits = "read again from the topic once consumers have acknowledged more"
        assert reason.text == f"missing in the index, and {waits}: {expected}"
        client.consumer.permits, permits = 0, client.consumer.permits
        client.ack(*client.positions)
        [reason] = (await view.summary(TOPIC, "s")).not_read
        waits = (
            "read again from the topic once a consumer takes more (0 of 1 connected consumers have permits)"
        )
        assert reason.text == f"missing in the index, and {waits}: {expected}"
        client.flow(permits)
        await until(lambda: len(subscription.delayed) == 100)
        await trio.sleep(1)
        found = await listed()
        assert "rebuilding" not in found
        assert sum(found.values()) == 100


async def test_without_delayed_messages_there_is_nothing(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        await rig.index()
        await rig.subscription()
        await rig.publish(message(b"plain"))
        view = operator(rig)
        assert (await view.summary(TOPIC, "s")).messages == 0
        found = await view.histogram(TOPIC, "s", 1000)
        assert (found.width_ms, found.classes) == (1000, [])
        assert [(one.why, one.entries) for one in found.not_read] == [("no-consumer", 1)], "it may be delayed"
        assert (await view.messages(TOPIC, "s", Position(0, 0), 10)).messages == []
        [(row, _)] = await view.buckets(TOPIC, "s")
        assert (row.state, row.messages, row.not_read) == ("no-consumer", 0, 1)
        result = await view.cancel(TOPIC, "s", [Position(1, 1)])
        assert (result.cancelled, [left.why for left in result.not_cancelled]) == (
            0,
            ["there is no message 1:1"],
        )
        client = rig.join(await rig.subscription("t"), SHARED)
        await rig.settle()
        client.ack(client.positions[0])
        assert await view.histogram(TOPIC, "t", 1000) == DueHistogram(width_ms=1000, classes=[])
        assert list(await view.buckets(TOPIC, "t")) == []
        with pytest.raises(NotDelayed):
            await view.reschedule(TOPIC, "s", Position(1, 1), None)
