"""How dispatch lives with an index of delayed entries that stays, runs ahead, or loses a part."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from geminga.broker.delays.settings import DelayPolicy
from geminga.broker.dispatch.consumer import EXCLUSIVE, KEY_SHARED, SHARED
from geminga.broker.subscription.statistics import statistics_of
from geminga.broker.subscription.subscription import Subscription
from geminga.managed_ledger.chain.entry import Entry
from geminga.position import Position
from geminga.tracker.buckets.bucket_counts import Losses
from geminga.tracker.buckets.unknown import UnknownLedgers
from tests.broker.dispatch_rig import OpenRig, Rig, message

LATER_MS = 60_000


class Reads:
    """What is read of a managed ledger from now on."""

    def __init__(self, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entries: list[Position] = []
        for name in ("read_cached", "read", "read_positions"):
            monkeypatch.setattr(rig.ledger, name, self._noting(getattr(rig.ledger, name)))

    def _noting(self, read: Any) -> Any:
        def noting(*arguments: Any, **named: Any) -> Any:
            found = read(*arguments, **named)
            if isinstance(found, list):
                self._note(found)
                return found

            async def wait() -> list[Entry]:
                entries: list[Entry] = await found
                self._note(entries)
                return entries

            return wait()

        return noting

    def _note(self, entries: Sequence[Entry]) -> None:
        self.entries += [entry.position for entry in entries]


async def publish(rig: Rig, *delays_ms: int) -> list[Position]:
    now_ms = rig.now_ms()
    return await rig.publish(*(message(b"%d" % d, deliver_at_ms=now_ms + d if d else 0) for d in delays_ms))


async def lose(subscription: Subscription, *positions: Position) -> None:
    """The index forgets these, as when a bucket cannot be read, and asks for their ledgers again."""
    tracker = subscription.delayed.tracker
    assert tracker is not None
    tracker.pass_positions(positions)
    subscription.delayed.read_again(positions[0].ledger_id, positions[-1].ledger_id)


async def test_a_new_first_consumer_finds_the_index_as_it_was(
    dispatch_rig: OpenRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        first = rig.join(subscription, SHARED)
        held = await publish(rig, *[LATER_MS] * 300)
        (plain,) = await publish(rig, 0)
        await rig.settle()
        first.leave()
        reads = Reads(rig, monkeypatch)
        second = rig.join(subscription, SHARED)
        await rig.settle()
        assert second.positions == [plain]
        assert reads.entries == [plain], "what is held back is not read again"
        assert statistics_of(subscription).msg_delayed == 300
        await trio.sleep(61)
        assert sorted(second.positions) == [*held, plain]


async def test_entries_between_those_held_back_are_found(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig(ledger_entries_max=40, rollover_min_ms=0) as rig:
        subscription = await rig.subscription()
        first = rig.join(subscription, SHARED)
        delays = [LATER_MS if n % 3 or 50 <= n < 110 else 0 for n in range(200)]
        positions = await publish(rig, *delays)
        await rig.settle()
        plain = [p for p, delay in zip(positions, delays, strict=True) if not delay]
        assert first.positions == plain
        first.ack(*plain[::2])
        first.leave()
        second = rig.join(subscription, SHARED)
        await rig.settle()
        assert second.positions == plain[1::2]
        await trio.sleep(61)
        assert sorted(second.positions) == sorted(set(positions) - set(plain[::2]))


@pytest.mark.parametrize("sub_type", [SHARED, KEY_SHARED])
async def test_what_falls_due_ahead_of_reading_is_not_read_as_new(
    dispatch_rig: OpenRig, autojump_clock: MockClock, sub_type: str
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        first = rig.join(subscription, sub_type)
        positions = await publish(rig, 0, 1000, 0, 2000, 0)
        await rig.settle()
        first.leave()
        await trio.sleep(1.1)
        second = rig.join(subscription, sub_type, permits=1)
        await rig.settle()
        assert second.positions == [positions[1]], "due goes first, although reading starts before it"
        second.flow(100)
        await rig.settle()
        assert sorted(second.positions) == sorted(p for p in positions if p != positions[3])
        await trio.sleep(1)
        assert sorted(second.positions) == positions


async def test_a_lost_part_is_read_again_and_nothing_comes_twice(
    dispatch_rig: OpenRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dispatch_rig(ledger_entries_max=10, rollover_min_ms=0) as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED, permits=100)
        positions = await publish(rig, *[0, 500, LATER_MS, 0, 90_000] * 10)
        await trio.sleep(1)
        came = client.positions
        assert len(came) == 30
        client.ack(*came[:10])
        client.nack(*came[10:12])
        second_ledger = [p for p in positions if p.ledger_id == positions[12].ledger_id]
        lost = [p for p in second_ledger if p not in came]
        assert lost
        reads = Reads(rig, monkeypatch)
        await lose(subscription, *lost)
        assert statistics_of(subscription).msg_delayed == 20 - len(lost)
        await rig.settle()
        assert statistics_of(subscription).msg_delayed == 20
        assert set(lost) <= set(reads.entries)
        assert {p.ledger_id for p in reads.entries} <= {
            lost[0].ledger_id,
            *(p.ledger_id for p in came[10:12]),
        }
        assert client.positions[30:] == sorted(came[10:12]), "only what was refused came again"
        await trio.sleep(100)
        assert sorted(client.positions[32:]) == sorted(set(positions) - set(came))


async def test_what_was_lost_and_is_due_comes_at_once(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED, permits=0)
        client.flow(1)
        positions = await publish(rig, 1000, 2000, 3000)
        await rig.settle()
        await lose(subscription, positions[0], positions[1])
        await trio.sleep(2.5)
        client.flow(10)
        await rig.settle()
        assert client.positions == positions[:2]
        await trio.sleep(1)
        assert client.positions == positions


async def test_only_what_was_read_already_is_read_again(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED, permits=3)
        positions = await publish(rig, 1000, 0, 0, 0, 0, 0)
        await rig.settle()
        await lose(subscription, positions[0])
        client.flow(100)
        await rig.settle()
        assert client.positions == positions[1:]
        await trio.sleep(2)
        assert client.positions == [*positions[1:], positions[0]]


async def test_parts_lost_while_another_is_being_read_again_are_all_read(
    dispatch_rig: OpenRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dispatch_rig(ledger_entries_max=10, rollover_min_ms=0) as rig:
        subscription = await rig.subscription(read_entries_max=3)
        rig.join(subscription, SHARED)
        positions = await publish(rig, *[LATER_MS] * 40)
        await rig.settle()
        read_cached = rig.ledger.read_cached
        pending = [positions[0:10], positions[20:30]]

        def losing(*arguments: Any, **named: Any) -> list[Entry]:
            if pending and len(subscription.delayed) > 30:
                lost = pending.pop()
                tracker = subscription.delayed.tracker
                assert tracker is not None
                tracker.pass_positions(lost)
                subscription.delayed.read_again(lost[0].ledger_id, lost[-1].ledger_id)
            return read_cached(*arguments, **named)

        monkeypatch.setattr(rig.ledger, "read_cached", losing)
        await lose(subscription, *positions[10:14])
        await rig.settle()
        assert not pending
        assert len(subscription.delayed) == 40


async def test_acknowledging_what_is_held_back_takes_it_off_the_index(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        positions = await publish(rig, 1000, 2000, 3000, 4000)
        await rig.settle()
        client.ack(positions[2])
        assert statistics_of(subscription).msg_delayed == 3
        subscription.acks.skip_to(positions[0])
        assert statistics_of(subscription).msg_delayed == 2
        await trio.sleep(5)
        assert client.positions == [positions[1], positions[3]]


async def test_a_policy_that_is_not_active_lets_new_ones_through_and_keeps_what_waits(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        await publish(rig, 1000)
        await rig.settle()
        subscription.delayed.set_policy(DelayPolicy(active=False))
        await publish(rig, 2000)
        await rig.settle()
        assert client.payloads == [b"2000"]
        await trio.sleep(1.1)
        assert client.payloads == [b"2000", b"1000"]
        subscription.delayed.set_policy(DelayPolicy())
        await publish(rig, 3000)
        await rig.settle()
        assert statistics_of(subscription).msg_delayed == 1


async def test_a_longer_tick_lets_go_of_what_it_covers(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        rig.in_memory.strict = False
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        await publish(rig, 5000, 90_000)
        await rig.settle()
        assert client.payloads == []
        subscription.delayed.set_policy(DelayPolicy(tick_ms=10_000))
        await rig.settle()
        assert client.payloads == [b"5000"]


async def test_a_consumer_of_another_type_gets_all_and_the_index_starts_anew(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        rig.join(subscription, SHARED).leave()
        shared = rig.join(subscription, SHARED)
        positions = await publish(rig, LATER_MS, LATER_MS)
        await rig.settle()
        shared.leave()
        exclusive = rig.join(subscription, EXCLUSIVE)
        await rig.settle()
        assert (exclusive.positions, len(subscription.delayed)) == (positions, 0)
        exclusive.ack(positions[0])
        exclusive.leave()
        again = rig.join(subscription, KEY_SHARED)
        await rig.settle()
        assert (again.positions, len(subscription.delayed)) == ([], 1)


async def test_a_seek_forgets_what_is_held_back(dispatch_rig: OpenRig, autojump_clock: MockClock) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        rig.join(subscription, SHARED)
        positions = await publish(rig, 1000, 2000, 3000)
        await rig.settle()
        await subscription.seek(positions[1])
        assert len(subscription.delayed) == 0
        client = rig.join(subscription, SHARED)
        await trio.sleep(4)
        assert client.positions == positions[1:]


async def test_a_seek_forgets_what_was_to_be_read_again(
    dispatch_rig: OpenRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A range that was lost before the seek would be read beside the whole backlog, which begins anew."""
    async with dispatch_rig(ledger_entries_max=10, rollover_min_ms=0) as rig:
        subscription = await rig.subscription(read_entries_max=3)
        rig.join(subscription, SHARED)
        positions = await publish(rig, *[1000] * 30)
        await rig.settle()
        subscription.disconnect(next(iter(subscription.consumers)))
        await lose(subscription, *positions[:20])
        assert not subscription.delayed.is_complete
        reads = Reads(rig, monkeypatch)
        await subscription.seek(positions[0])
        assert subscription.delayed.lost_ranges == ()
        assert subscription.delayed.is_complete
        client = rig.join(subscription, SHARED)
        await rig.settle()
        assert sorted(reads.entries) == positions, "each is read once"
        await trio.sleep(2)
        assert sorted(client.positions) == positions


@pytest.mark.parametrize("by", ["seek", "skip"])
async def test_ranges_of_before_are_not_to_be_read_again_once_the_cursor_has_moved(
    dispatch_rig: OpenRig, autojump_clock: MockClock, by: str
) -> None:
    """Nor are they told, while no consumer is there to read anything."""
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, SHARED)
        positions = await publish(rig, *[1000] * 3)
        await rig.settle()
        client.leave()
        await lose(subscription, *positions)
        assert len(subscription.delayed.lost_ranges) == 1
        await (subscription.seek(positions[1]) if by == "seek" else subscription.clear_backlog())
        assert subscription.delayed.lost_ranges == ()
        assert subscription.delayed.is_complete


async def test_a_first_consumer_reads_the_backlog_and_no_lost_range_beside_it(
    dispatch_rig: OpenRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dispatch_rig(ledger_entries_max=10, rollover_min_ms=0) as rig:
        subscription = await rig.subscription(read_entries_max=3)
        first = rig.join(subscription, SHARED)
        positions = await publish(rig, *[1000] * 30)
        await rig.settle()
        first.leave()
        await lose(subscription, *positions[:20])
        reads = Reads(rig, monkeypatch)
        second = rig.join(subscription, SHARED)
        assert subscription.delayed.is_complete
        await rig.settle()
        assert sorted(reads.entries) == positions[:20], "what was lost, each once"
        await trio.sleep(2)
        assert sorted(second.positions) == positions


async def test_consumers_that_come_and_go_while_the_tracker_opens(
    dispatch_rig: OpenRig, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with dispatch_rig() as rig:
        open_index, opened = rig.in_memory.open, trio.Event()

        async def slow(delayed: Any) -> Any:
            await opened.wait()
            return await open_index(delayed)

        monkeypatch.setattr(rig.in_memory, "open", slow)
        subscription = await rig.subscription()
        first = rig.join(subscription, SHARED)
        positions = await publish(rig, 0, 1000)
        await rig.settle()
        assert first.positions == []
        first.leave()
        second = rig.join(subscription, SHARED)
        opened.set()
        await rig.settle()
        assert (first.positions, second.positions) == ([], positions[:1])
        await trio.sleep(2)
        assert second.positions == positions


class Found:
    """Buckets that an earlier process has left, and that are being read."""

    def __init__(self) -> None:
        self.unknown = UnknownLedgers()
        self.is_recovered = False
        self.losses = Losses()


@pytest.mark.parametrize(("sub_type", "skips"), [(SHARED, True), (KEY_SHARED, False)])
async def test_reading_goes_on_while_a_part_of_the_index_is_unknown(
    dispatch_rig: OpenRig, autojump_clock: MockClock, sub_type: str, skips: bool
) -> None:
    """Key_Shared waits: an entry must not come before an earlier one of its key."""
    async with dispatch_rig(ledger_entries_max=4, rollover_min_ms=0) as rig:
        subscription = await rig.subscription()
        positions = await publish(rig, 0, 0, 0, 0, 0, LATER_MS, 0, LATER_MS, 0, 0, 0, 0)
        found = Found()
        found.unknown.expect({"bucket": (positions[4].ledger_id, positions[4].ledger_id)})
        rig.in_memory.shared = found
        client = rig.join(subscription, sub_type)
        await rig.settle()
        flowing = positions[:4] + positions[8:]
        assert client.positions == (flowing if skips else positions[:4])
        subscription.delayed.read_again(*found.unknown.settle("bucket"))
        found.is_recovered = True
        await rig.settle()
        assert sorted(client.positions) == [p for p in positions if p not in (positions[5], positions[7])]
        assert skips or client.positions == sorted(client.positions)
        assert len(subscription.delayed) == 2


async def test_what_is_read_again_keeps_to_the_look_ahead_of_key_shared(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription(look_ahead_max_per_consumer=5)
        clients = [rig.join(subscription, KEY_SHARED, name, permits=1) for name in "ab"]
        body = message(b"x", key="k", deliver_at_ms=rig.now_ms() + LATER_MS)
        positions = await rig.publish(*[body] * 60)
        await rig.settle()
        assert len(subscription.delayed) == 60
        tracker = subscription.delayed.tracker
        assert tracker is not None
        tracker.pass_positions(positions)
        await trio.sleep(LATER_MS / 1000)
        subscription.delayed.read_again(positions[0].ledger_id, positions[-1].ledger_id)
        await rig.settle()
        assert statistics_of(subscription).msg_in_replay == 10, "five for each consumer"
        for client in clients:
            client.flow(100)
        await rig.settle()
        assert sorted(clients[0].positions + clients[1].positions) == positions
