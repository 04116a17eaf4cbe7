"""What was just published reaches the consumers of an idle subscription by a plain call; whatever else is to
be done first, or needs an await, is left to the subscription's task.
"""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from geminga.broker.dispatch.consumer import EXCLUSIVE, FAILOVER, KEY_SHARED, SHARED
from geminga.broker.dispatch.dispatcher import PUBLISHED_ENTRIES_MAX
from geminga.broker.flow.slices import Pace
from geminga.broker.policies.values import DispatchRate
from geminga.broker.subscription.statistics import statistics_of
from geminga.errors import StorageError
from geminga.managed_ledger.chain.entry import Entry
from tests.broker.delays.test_published_and_held import Rounds
from tests.broker.dispatch_rig import Client, OpenRig, Rig, message

ALL_TYPES = pytest.mark.parametrize("sub_type", [EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED])
START_MS = 1_000
"""So long a Failover subscription takes to begin."""


def numbers(first: int, count: int) -> list[bytes]:
    return [b"%d" % n for n in range(first, first + count)]


async def joined(rig: Rig, sub_type: str, *, permits: int = 1000, **settings: Any) -> tuple[Client, Rounds]:
    """A consumer of a subscription whose task sleeps."""
    subscription = await rig.subscription(**settings)
    client = rig.join(subscription, sub_type, permits=permits)
    await trio.sleep(START_MS / 1000)
    await rig.settle()
    return client, Rounds(subscription)


def counts_at_once(rig: Rig, client: Client) -> list[int]:
    """How many messages the client has when a confirmation has been told; one number for each from now on."""
    counts: list[int] = []
    confirmed = rig.on_confirmed

    def count(ledger_id: int, first_entry_id: int, contexts: list[Any]) -> None:
        confirmed(ledger_id, first_entry_id, contexts)
        counts.append(len(client.deliveries))

    rig.on_confirmed = count  # type: ignore[method-assign]
    return counts


@ALL_TYPES
async def test_single_messages_are_there_with_their_confirmation_and_no_task_runs(
    dispatch_rig: OpenRig, autojump_clock: MockClock, sub_type: str
) -> None:
    async with dispatch_rig() as rig:
        client, rounds = await joined(rig, sub_type)
        counts = counts_at_once(rig, client)
        positions = []
        for n in range(20):
            positions += await rig.numbered(1, start=n)
            await rig.settle()
        assert counts == list(range(1, 21))
        assert rounds.count == 0
        assert (client.payloads, client.positions) == (numbers(0, 20), positions)
        statistics = statistics_of(client.subscription)
        (consumer,) = statistics.consumers
        assert (consumer.available_permits, consumer.msg_out_counter) == (980, 20)
        assert consumer.unacked_messages == (20 if sub_type in {SHARED, KEY_SHARED} else 0)
        assert (statistics.msg_backlog, statistics.msg_in_replay) == (20, 0)
        client.ack_all()
        assert client.subscription.backlog() == 0


@ALL_TYPES
async def test_many_at_once_are_the_tasks(
    dispatch_rig: OpenRig, autojump_clock: MockClock, sub_type: str
) -> None:
    async with dispatch_rig() as rig:
        client, rounds = await joined(rig, sub_type)
        counts, few = counts_at_once(rig, client), PUBLISHED_ENTRIES_MAX
        await rig.numbered(few)
        await rig.settle()
        assert (counts, rounds.count) == ([few], 0)
        await rig.numbered(few + 1, start=few)
        await rig.settle()
        assert (counts, rounds.count) == ([few, few], 1)
        assert client.payloads == numbers(0, 2 * few + 1)


@ALL_TYPES
async def test_all_of_it_goes_though_a_read_ends_at_its_bytes(
    dispatch_rig: OpenRig, autojump_clock: MockClock, sub_type: str
) -> None:
    async with dispatch_rig() as rig:
        client, rounds = await joined(rig, sub_type)
        client.outbox.room = 2500
        await rig.publish(*(message(b"%d" % n + bytes(1000)) for n in range(5)))
        await rig.settle()
        assert [payload[:1] for payload in client.payloads] == numbers(0, 5)
        assert rounds.count == 1


@ALL_TYPES
async def test_without_permits_nothing_is_sent_or_woken_and_with_them_all_comes_in_order(
    dispatch_rig: OpenRig, autojump_clock: MockClock, sub_type: str
) -> None:
    async with dispatch_rig() as rig:
        client, rounds = await joined(rig, sub_type, permits=2)
        for n in range(6):
            await rig.numbered(1, start=n)
            await rig.settle()
        assert (client.new(), rounds.count) == (numbers(0, 2), 0)
        client.flow(3)
        await rig.numbered(1, start=6)
        await rig.settle()
        assert client.new() == numbers(2, 3)
        client.flow(100)
        await rig.settle()
        assert client.new() == numbers(5, 2)


@ALL_TYPES
async def test_a_group_beyond_the_permits_goes_on_where_it_stopped(
    dispatch_rig: OpenRig, autojump_clock: MockClock, sub_type: str
) -> None:
    async with dispatch_rig() as rig:
        client, _ = await joined(rig, sub_type, permits=3)
        await rig.publish(*(message(b"%d" % n, batch=2) for n in range(6)))
        assert client.new() == numbers(0, 2)
        client.flow(100)
        await rig.numbered(1, start=6)
        await rig.settle()
        assert client.new() == numbers(2, 5)


@ALL_TYPES
async def test_a_full_outbox_gets_nothing_until_it_has_room(
    dispatch_rig: OpenRig, autojump_clock: MockClock, sub_type: str
) -> None:
    async with dispatch_rig() as rig:
        client, rounds = await joined(rig, sub_type)
        client.outbox.writable = False
        for n in range(3):
            await rig.numbered(1, start=n)
            await rig.settle()
        assert (client.new(), rounds.count) == ([], 0)
        client.outbox.has_room_again()
        await rig.numbered(1, start=3)
        await rig.settle()
        assert client.new() == numbers(0, 4)


@ALL_TYPES
async def test_the_first_message_of_the_next_ledger_comes_too(
    dispatch_rig: OpenRig, autojump_clock: MockClock, sub_type: str
) -> None:
    async with dispatch_rig(ledger_entries_max=3, rollover_min_ms=0) as rig:
        client, _ = await joined(rig, sub_type)
        for n in range(10):
            await rig.numbered(1, start=n)
            await rig.settle()
        assert client.payloads == numbers(0, 10)
        assert len({position.ledger_id for position in client.positions}) == 4


@pytest.mark.parametrize("sub_type", [EXCLUSIVE, SHARED])
async def test_what_is_asked_for_again_goes_before_what_is_published_in_the_same_turn(
    dispatch_rig: OpenRig, autojump_clock: MockClock, sub_type: str
) -> None:
    async with dispatch_rig() as rig:
        client, _ = await joined(rig, sub_type)
        await rig.numbered(3)
        assert client.new() == numbers(0, 3)
        confirmed = rig.on_confirmed

        def nack_first(ledger_id: int, first_entry_id: int, contexts: list[Any]) -> None:
            client.nack(*client.positions[:3])
            confirmed(ledger_id, first_entry_id, contexts)
            assert client.new() == []

        rig.on_confirmed = nack_first  # type: ignore[method-assign]
        await rig.numbered(1, start=3)
        await rig.settle()
        assert client.new() == numbers(0, 4)


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
async def test_what_was_read_without_permits_goes_before_what_is_published_when_they_come(
    dispatch_rig: OpenRig, autojump_clock: MockClock, sub_type: str
) -> None:
    async with dispatch_rig() as rig:
        client, _ = await joined(rig, sub_type, permits=3)
        await rig.publish(*(message(b"%d" % n, batch=2) for n in range(3)))
        await rig.settle()
        assert statistics_of(client.subscription).msg_in_replay == 1
        # By hand, so that the task is not woken: an outbox too may have room before it says so.
        client.consumer.flow(10, rig.now_ms())
        await rig.numbered(1, start=3)
        await rig.settle()
        assert client.payloads == numbers(0, 4)


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
async def test_a_subscription_with_too_many_unacknowledged_messages_gets_no_more(
    dispatch_rig: OpenRig, autojump_clock: MockClock, sub_type: str
) -> None:
    async with dispatch_rig() as rig:
        client, _ = await joined(rig, sub_type, unacked_max_per_subscription=2)
        for n in range(4):
            await rig.numbered(1, start=n)
            await rig.settle()
        assert client.payloads == numbers(0, 2)
        client.ack_all()
        await rig.settle()
        assert client.payloads == numbers(0, 4)


@ALL_TYPES
async def test_after_a_failed_read_nothing_is_sent_before_the_next_try(
    dispatch_rig: OpenRig, autojump_clock: MockClock, sub_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dispatch_rig() as rig:
        client, _ = await joined(rig, sub_type, read_retry_ms_min=10_000)

        async def failing(*_: Any, **__: Any) -> list[Entry]:
            raise StorageError("a damaged sector")

        with monkeypatch.context() as patch:
            patch.setattr(rig.ledger, "read_cached", lambda *_, **__: [])
            patch.setattr(rig.ledger, "read", failing)
            await rig.numbered(1)
            await rig.settle()
        await rig.numbered(1, start=1)
        await rig.settle()
        assert client.payloads == []
        await trio.sleep(11)
        assert client.payloads == numbers(0, 2)


@ALL_TYPES
async def test_a_limit_is_kept_and_what_is_above_it_comes_later(
    dispatch_rig: OpenRig, autojump_clock: MockClock, sub_type: str
) -> None:
    async with dispatch_rig() as rig:
        client, _ = await joined(rig, sub_type)
        client.subscription.limit_dispatch(None, DispatchRate(1, 0, False, 1), lambda: (0, 0))
        await rig.settle()
        counts = []
        for n in range(4):
            await rig.numbered(1, start=n)
            await rig.settle()
            counts.append(len(client.deliveries))
        await trio.sleep(0.01)
        for _ in range(4):
            await trio.sleep(1)
            counts.append(len(client.deliveries))
        assert counts == [1, 1, 1, 1, 2, 3, 4, 4]
        assert client.payloads == numbers(0, 4)


async def test_a_takeover_is_waited_for(dispatch_rig: OpenRig, autojump_clock: MockClock) -> None:
    async with dispatch_rig() as rig:
        client = rig.join(await rig.subscription(), FAILOVER)
        await rig.settle()
        await rig.numbered(1)
        await rig.settle()
        assert client.payloads == []
        await trio.sleep(START_MS / 1000)
        await rig.settle()
        assert client.payloads == numbers(0, 1)


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
async def test_delayed_messages_wait_for_their_time_and_others_go_at_once(
    dispatch_rig: OpenRig, autojump_clock: MockClock, sub_type: str
) -> None:
    async with dispatch_rig() as rig:
        client, rounds = await joined(rig, sub_type)
        for n in range(3):
            await rig.publish(message(b"late %d" % n, deliver_at_ms=rig.now_ms() + 5_000))
            await rig.numbered(1, start=n)
            await rig.settle()
        assert client.new() == numbers(0, 3)
        await trio.sleep(6)
        assert client.new() == [b"late 0", b"late 1", b"late 2"]
        before = rounds.count
        await rig.numbered(2, start=3)
        assert client.new() == numbers(3, 2), "nothing is held back any more"
        await rig.settle()
        assert rounds.count == before


async def test_markers_are_passed_over_and_acknowledged(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        client, rounds = await joined(rig, SHARED)
        await rig.publish(message(b"marker", marker=1))
        assert (client.subscription.backlog(), client.payloads, rounds.count) == (0, [], 0)


async def test_a_seek_that_has_begun_lets_nothing_out(
    dispatch_rig: OpenRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        clients = [rig.join(subscription, SHARED, name) for name in "ab"]
        positions = await rig.numbered(1)
        await rig.settle()
        for client in clients:
            client.ack_all()
        go_on = trio.Event()

        async def row(pace: Pace) -> None:
            await go_on.wait()

        monkeypatch.setattr(Pace, "row", row)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(subscription.seek, positions[0])
            await rig.settle()
            assert [client.consumer.closed for client in clients] == [True, False]
            await rig.numbered(1, start=1)
            await rig.settle()
            assert sum(len(client.payloads) for client in clients) == 1
            go_on.set()
        again = rig.join(subscription, SHARED)
        await rig.settle()
        assert again.payloads == numbers(0, 2)


async def test_a_task_that_was_cancelled_does_not_pass_for_one_that_sleeps(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        async with trio.open_nursery() as tasks:
            rig.nursery, outer = tasks, rig.nursery
            client, _ = await joined(rig, SHARED)
            tasks.cancel_scope.cancel()
        rig.nursery = outer
        await rig.numbered(1)
        await rig.settle()
        assert client.payloads == []


async def test_a_thousand_subscriptions_get_one_message_without_their_tasks(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        subscriptions = [await rig.subscription(f"s{n}", durable=False) for n in range(1000)]
        clients = [rig.join(subscription, EXCLUSIVE) for subscription in subscriptions]
        await rig.settle()
        rounds = [Rounds(subscription) for subscription in subscriptions]
        await rig.numbered(1)
        await rig.settle()
        assert all(client.payloads == [b"0"] for client in clients)
        assert sum(one.count for one in rounds) == 0
