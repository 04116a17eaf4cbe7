"""Delayed messages on Shared and Key_Shared: when they come, what goes before what, who is woken."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from geminga.broker.delays.settings import DelayPolicy
from geminga.broker.dispatch.consumer import EXCLUSIVE, KEY_SHARED, SHARED
from geminga.broker.subscription.statistics import statistics_of
from geminga.clock import TrioClock
from geminga.errors import StorageError
from geminga.managed_ledger.chain.entry import Entry
from tests.broker.dispatch.test_dispatch_model import slow_down
from tests.broker.dispatch_rig import Client, OpenRig, Rig, message


async def publish_delayed(rig: Rig, *delays_ms: int) -> int:
    """Payloads are the delays; returns the present time."""
    now_ms = rig.now_ms()
    await rig.publish(*(message(b"%d" % d, deliver_at_ms=now_ms + d if d else 0) for d in delays_ms))
    return now_ms


async def arrivals(rig: Rig, client: Client, count: int, started_ms: int) -> dict[bytes, int]:
    """Each payload and how long after `started_ms` it came, looked at every millisecond."""
    found: dict[bytes, int] = {}
    while len(found) < count:
        await rig.settle()
        for payload in client.new():
            found[payload] = rig.now_ms() - started_ms
        await trio.sleep(0.001)
    return found


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
async def test_strict_is_never_early_and_at_most_one_bucket_late(
    dispatch_rig: OpenRig, autojump_clock: MockClock, sub_type: str
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, sub_type)
        started_ms = await publish_delayed(rig, 700, 0, 250, 1234)
        late = {p: ms - int(p) for p, ms in (await arrivals(rig, client, 4, started_ms)).items()}
        assert sorted(late) == [b"0", b"1234", b"250", b"700"]
        assert all(0 <= ms <= 16 for ms in late.values()), late


async def test_not_strict_is_early_by_at_most_a_tick_and_not_late(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        rig.in_memory.strict, rig.in_memory.tick_ms = False, 1000
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        started_ms = await publish_delayed(rig, 900, 2000, 2600)
        late = {p: ms - int(p) for p, ms in (await arrivals(rig, client, 3, started_ms)).items()}
        assert all(-1000 <= ms <= 0 for ms in late.values()), late
        assert late[b"900"] == -900, "within a tick of now: at once"


async def test_due_messages_and_redeliveries_go_before_new_ones(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED, permits=1)
        await publish_delayed(rig, 500, 0)
        await rig.settle()
        assert client.new() == [b"0"]
        await rig.numbered(2)
        client.nack(client.positions[0])
        await trio.sleep(1)
        assert client.new() == []
        client.flow(10)
        await rig.settle()
        assert client.new() == [b"500", b"0", b"0", b"1"]


async def test_no_wake_ups_without_permits_and_none_after_the_last(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED, permits=3)
        rounds = 0
        dispatcher = subscription.consumers.dispatcher
        assert dispatcher is not None
        original = dispatcher.run_round

        async def counted() -> None:
            nonlocal rounds
            rounds += 1
            await original()

        dispatcher.run_round = counted  # type: ignore[method-assign]
        await publish_delayed(rig, *range(1000, 2000, 100))
        await rig.settle()
        statistics = statistics_of(subscription)
        assert (statistics.msg_delayed, statistics.msg_backlog_no_delayed, statistics.msg_backlog) == (
            10,
            0,
            10,
        )
        assert statistics.delayed_message_index_size_in_bytes > 0
        before = rounds
        await trio.sleep(60)
        assert client.new() == [b"1000", b"1100", b"1200"]
        assert rounds - before <= 4
        client.flow(100)
        await rig.settle()
        assert len(client.new()) == 7
        before = rounds
        await trio.sleep(600)
        assert rounds == before


async def test_delays_survive_a_change_of_consumers_without_being_counted_twice(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        first = rig.join(subscription, SHARED)
        await publish_delayed(rig, 5000, 6000, 7000)
        await rig.settle()
        first.leave()
        await trio.sleep(5.5)
        second = rig.join(subscription, SHARED)
        await rig.settle()
        assert second.new() == [b"5000"]
        assert statistics_of(subscription).msg_delayed == 2
        await trio.sleep(2)
        assert second.new() == [b"6000", b"7000"]
        assert statistics_of(subscription).msg_delayed == 0


async def test_clearing_the_backlog_forgets_delayed_messages(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        await publish_delayed(rig, 1000, 0)
        await rig.settle()
        assert client.consumer.unacked == 1
        await subscription.clear_backlog()
        statistics = statistics_of(subscription)
        assert (statistics.msg_delayed, statistics.msg_backlog, statistics.unacked_messages) == (0, 0, 0)
        await trio.sleep(2)
        assert client.payloads == [b"0"]


async def test_what_was_skipped_while_it_was_delayed_does_not_come(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        await publish_delayed(rig, 1000, 2000)
        await rig.settle()
        subscription.acks.skip_to(rig.ledger.first_position())
        await trio.sleep(3)
        assert client.payloads == [b"2000"]


async def test_delay_may_be_switched_off(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        rig.in_memory.policy = DelayPolicy(active=False)
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        await publish_delayed(rig, 60_000)
        await rig.settle()
        assert client.payloads == [b"60000"]


async def test_another_type_takes_over_and_delivers_at_once(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        shared = rig.join(subscription, SHARED)
        await publish_delayed(rig, 60_000)
        await rig.settle()
        shared.leave()
        exclusive = rig.join(subscription, EXCLUSIVE)
        await rig.settle()
        assert exclusive.payloads == [b"60000"]
        assert statistics_of(subscription).msg_delayed == 0


async def test_many_messages_of_one_moment_come_in_the_order_of_the_topic(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig(ledger_entries_max=70, rollover_min_ms=0) as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        due_ms = rig.now_ms() + 1600
        positions = await rig.publish(*(message(b"%d" % n, deliver_at_ms=due_ms) for n in range(350)))
        assert len({p.ledger_id for p in positions}) > 3
        await trio.sleep(2)
        assert client.positions == positions


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
async def test_a_message_that_falls_due_between_a_round_and_the_sleep_comes_at_once(
    dispatch_rig: OpenRig, autojump_clock: MockClock, sub_type: str
) -> None:
    async with dispatch_rig() as rig:
        clock = rig.clock = SteppedClock()
        subscription = await rig.subscription()
        client = rig.join(subscription, sub_type)
        dispatcher = subscription.consumers.dispatcher
        assert dispatcher is not None
        original = dispatcher.run_round

        async def slow_round() -> None:
            await original()
            if subscription.delayed.tracker is not None:
                clock.stepped_ms = 1100

        dispatcher.run_round = slow_round  # type: ignore[method-assign]
        await publish_delayed(rig, 1000)
        await rig.settle()
        assert client.payloads == [b"1000"]


class SteppedClock(TrioClock):
    stepped_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.stepped_ms


async def test_a_due_message_that_cannot_be_read_does_not_keep_the_task_awake(
    dispatch_rig: OpenRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription(read_retry_ms_min=10_000)
        client = rig.join(subscription, SHARED, permits=1)
        await publish_delayed(rig, 100, 200, 300)
        await rig.settle()
        reads = 0
        read = rig.ledger.read_positions

        async def failing(*arguments: Any, **named: Any) -> list[Entry]:
            nonlocal reads
            reads += 1
            if reads == 1:
                raise StorageError("no answer")
            return await read(*arguments, **named)

        monkeypatch.setattr(rig.ledger, "read_positions", failing)
        await trio.sleep(9)
        assert (client.payloads, reads) == ([], 1)
        client.flow(10)
        await trio.sleep(2)
        assert client.payloads == [b"100", b"200", b"300"]


async def test_consumers_that_take_the_place_of_others_during_a_read_get_each_message_once(
    dispatch_rig: OpenRig, autojump_clock: object
) -> None:
    """While what the index has lost is to be read again: that is part of starting over."""
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        before = rig.join(subscription, SHARED, "before")
        due_ms = rig.now_ms() + 100
        delayed = await rig.publish(*(message(b"%d" % n, deliver_at_ms=due_ms) for n in range(3)))
        await rig.settle()
        before.consumer.permits = 0
        await trio.sleep(0.2)
        assert before.positions == []
        [last] = await rig.publish(message(b"3"))
        slow_down(rig, 20)
        assert subscription.delayed.tracker is not None
        subscription.delayed.tracker.pass_positions(delayed)
        subscription.delayed.read_again(delayed[0].ledger_id, delayed[0].ledger_id)
        before.flow(1)
        await trio.sleep(0.01)
        before.leave()
        after = rig.join(subscription, SHARED, "after")
        await trio.sleep(1)
        assert sorted(after.positions) == [*delayed, last]
