"""Key_Shared: one consumer per key at a time, in order, whatever comes, goes, or is given back."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from geminga.broker.dispatch.consumer import KEY_SHARED
from geminga.broker.subscription.statistics import statistics_of
from geminga.errors import ConsumerAssign, ConsumerBusy, StorageError
from geminga.position import Position
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.message_metadata import sticky_hash
from tests.broker.dispatch_rig import Client, OpenRig, Rig, message


def sticky(*ranges: tuple[int, int]) -> pb.KeySharedMeta:
    return pb.KeySharedMeta(
        keySharedMode=pb.STICKY, hashRanges=[pb.IntRange(start=start, end=end) for start, end in ranges]
    )


OUT_OF_ORDER = pb.KeySharedMeta(keySharedMode=pb.AUTO_SPLIT, allowOutOfOrderDelivery=True)


async def publish(rig: Rig, *keys: str) -> list[Position]:
    """Payloads are `key` and a running number of it."""
    counts: dict[str, int] = {}
    bodies = []
    for number, key in enumerate(keys):
        counts[key] = counts.get(key, 0) + 1
        bodies.append(message(f"{key}{counts[key]}".encode(), key=key, sequence_id=number))
    return await rig.publish(*bodies)


def owner_of(client: Client, key: str) -> object:
    dispatcher = client.subscription.consumers.dispatcher
    assert dispatcher is not None
    assert dispatcher.key_shared is not None
    selector = dispatcher.key_shared.selector
    return selector.select(selector.slot(sticky_hash(key.encode())))


def keys_of(client: Client, count: int) -> list[str]:
    """So many keys that are this consumer's now."""
    found = []
    for number in range(10_000):
        if owner_of(client, f"k{number}-") is client.consumer:
            found.append(f"k{number}-")
            if len(found) == count:
                return found
    raise AssertionError("the consumer has no keys")


async def test_each_key_goes_to_one_consumer_in_order(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        clients = [rig.join(subscription, KEY_SHARED, name) for name in "abc"]
        keys = [f"k{n % 20}-" for n in range(200)]
        await publish(rig, *keys)
        await rig.settle()
        assert sum(len(c.payloads) for c in clients) == 200
        for key in set(keys):
            expected = [f"{key}{n}".encode() for n in range(1, 11)]
            received = [[p for p in c.payloads if p.startswith(key.encode())] for c in clients]
            assert sorted(received) == [[], [], expected]
        assert all(c.payloads for c in clients)


async def test_a_key_waits_behind_its_own_entries_only(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        one, two = (rig.join(subscription, KEY_SHARED, name, permits=0) for name in "ab")
        mine, other = keys_of(one, 1)[0], keys_of(two, 1)[0]
        two.flow(100)
        await publish(rig, mine, other, mine, other)
        await rig.settle()
        assert (one.payloads, two.payloads) == ([], [f"{other}1".encode(), f"{other}2".encode()])
        assert statistics_of(subscription).msg_in_replay == 2
        one.flow(1)
        await publish(rig, mine)
        await rig.settle()
        assert one.new() == [f"{mine}1".encode()]
        one.flow(10)
        await rig.settle()
        assert one.new() == [f"{mine}2".encode(), f"{mine}1".encode()]


async def test_a_key_that_moves_waits_until_the_old_consumer_has_settled(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        old = rig.join(subscription, KEY_SHARED, "old")
        keys = [f"k{n}-" for n in range(50)]
        positions = await publish(rig, *keys)
        await rig.settle()
        new = rig.join(subscription, KEY_SHARED, "new")
        moved = [k for k in keys if owner_of(old, k) is new.consumer]
        stayed = [k for k in keys if k not in moved]
        assert moved
        assert stayed
        await publish(rig, *keys)
        await rig.settle()
        assert sorted(old.payloads[50:]) == sorted(f"{k}1".encode() for k in stayed)
        assert new.payloads == []
        statistics = statistics_of(subscription)
        assert (statistics.draining_hashes_count, statistics.msg_in_replay) == (len(moved), len(moved))
        assert statistics.draining_hashes_unacked_messages == len(moved)
        draining = statistics.consumers[0].draining_hashes
        assert [d.unack_msgs for d in draining] == [1] * len(moved)
        old.ack(positions[keys.index(moved[0])])
        await rig.settle()
        assert new.payloads == [f"{moved[0]}1".encode()], "one key is free"
        old.ack(*positions)
        await rig.settle()
        assert sorted(new.payloads) == sorted(f"{k}1".encode() for k in moved)
        statistics = statistics_of(subscription)
        assert statistics.draining_hashes_count == 0
        assert statistics.draining_hashes_cleared_total == len(moved)


async def test_what_is_given_back_while_its_key_moves_goes_to_the_new_consumer_in_order(
    dispatch_rig: OpenRig,
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        old = rig.join(subscription, KEY_SHARED, "old")
        keys = [f"k{n}-" for n in range(30)]
        positions = await publish(rig, *keys, *keys)
        await rig.settle()
        new = rig.join(subscription, KEY_SHARED, "new")
        key = next(k for k in keys if owner_of(old, k) is new.consumer)
        first, second = positions[keys.index(key)], positions[30 + keys.index(key)]
        old.nack(first)
        await rig.settle()
        assert new.payloads == [], "the second is still at the old consumer"
        old.nack(second)
        await rig.settle()
        assert new.payloads == [f"{key}1".encode(), f"{key}2".encode()]


async def test_a_nack_is_not_overtaken_by_newer_entries_of_its_key(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, KEY_SHARED, permits=2)
        positions = await publish(rig, "a", "a", "a", "a")
        await rig.settle()
        client.nack(positions[0])
        client.flow(1)
        await rig.settle()
        assert client.payloads == [b"a1", b"a2", b"a1"]


async def test_a_leaving_consumers_keys_go_on_at_the_others_in_order(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        one, two = (rig.join(subscription, KEY_SHARED, name) for name in "ab")
        keys = [f"k{n}-" for n in range(20)]
        await publish(rig, *keys, *keys)
        await rig.settle()
        of_one = {p[:-1] for p in one.payloads}
        one.ack(one.positions[0])
        left_behind = one.payloads[1:]
        one.leave()
        await publish(rig, *keys)
        await rig.settle()
        for key in of_one:
            received = [p for p in two.payloads if p[:-1] == key]
            assert received == [*[p for p in left_behind if p[:-1] == key], key + b"1"]


async def test_a_stuck_consumer_lets_others_go_on_up_to_the_look_ahead(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription(look_ahead_max_per_consumer=5, read_entries_max=4)
        one, two = (rig.join(subscription, KEY_SHARED, name, permits=0) for name in "ab")
        mine, other = keys_of(one, 1)[0], keys_of(two, 1)[0]
        two.flow(1000)
        await publish(rig, *[mine, other] * 50)
        await rig.settle()
        assert len(two.payloads) == 9, "ten entries may wait for two consumers; the tenth was the last read"
        assert statistics_of(subscription).msg_in_replay == 10
        one.flow(1000)
        await rig.settle()
        assert (len(one.payloads), len(two.payloads)) == (50, 50)


async def test_sticky_ranges(dispatch_rig: OpenRig) -> None:
    """key-1 has slot 5536, key-2 has slot 21772."""
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        low = rig.join(subscription, KEY_SHARED, "low", keySharedMeta=sticky((0, 9_999)))
        await publish(rig, "key-1", "key-2", "key-1")
        await rig.settle()
        assert low.payloads == [b"key-11", b"key-12"]
        taken, _ = rig.consumer(KEY_SHARED, "x", keySharedMeta=sticky((9_999, 20_000)))
        with pytest.raises(
            ConsumerAssign, match="^Range conflict with consumer Consumer{subscription=Persist"
        ):
            subscription.add_consumer(taken)
        assert list(subscription.consumers) == [low.consumer]
        high = rig.join(subscription, KEY_SHARED, "high", keySharedMeta=sticky((10_000, 65_535)))
        await rig.settle()
        assert high.payloads == [b"key-21"], "what no one wanted waited"
        statistics = statistics_of(subscription)
        assert statistics.key_shared_mode == "STICKY"
        assert statistics.consumers[0].key_hash_range_arrays == [(0, 9_999)]


async def test_policies_must_agree_in_pulsars_words(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        first = rig.join(subscription, KEY_SHARED)
        other_mode, _ = rig.consumer(KEY_SHARED, keySharedMeta=sticky((0, 1)))
        with pytest.raises(ConsumerBusy) as refused:
            subscription.add_consumer(other_mode)
        assert str(refused.value) == (
            "Subscription is of different type. Active subscription key_shared mode of 'AUTO_SPLIT' is "
            "different than the connecting consumer's key_shared mode 'STICKY'."
        )
        other_order, _ = rig.consumer(KEY_SHARED, keySharedMeta=OUT_OF_ORDER)
        with pytest.raises(ConsumerBusy) as refused:
            subscription.add_consumer(other_order)
        assert str(refused.value) == (
            "Subscription is of different type. Active subscription does not allow out of order delivery "
            "while the connecting consumer allows it."
        )
        first.leave()
        rig.join(subscription, KEY_SHARED, keySharedMeta=OUT_OF_ORDER)
        refused_too, _ = rig.consumer(KEY_SHARED)
        with pytest.raises(ConsumerBusy, match="Active subscription allows out of order delivery while the"):
            subscription.add_consumer(refused_too)
        assert statistics_of(subscription).allow_out_of_order_delivery


async def test_out_of_order_does_not_wait_for_anything(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        old = rig.join(subscription, KEY_SHARED, "old", keySharedMeta=OUT_OF_ORDER)
        keys = [f"k{n}-" for n in range(30)]
        await publish(rig, *keys)
        await rig.settle()
        new = rig.join(subscription, KEY_SHARED, "new", keySharedMeta=OUT_OF_ORDER)
        moved = [k for k in keys if owner_of(old, k) is new.consumer]
        await publish(rig, *keys)
        await rig.settle()
        assert sorted(new.payloads) == sorted(f"{k}1".encode() for k in moved)


async def test_entries_without_a_key_are_spread_and_ordering_keys_win(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        clients = [rig.join(subscription, KEY_SHARED, name) for name in "ab"]
        await rig.numbered(40)
        await rig.settle()
        assert all(len(c.payloads) > 5 for c in clients)


class SlowReads:
    """Holds back every read of the ledger until the test lets it go on."""

    def __init__(self, rig: Rig) -> None:
        ledger: Any = rig.ledger
        self._read, self._read_positions = ledger.read, ledger.read_positions
        self.go_on = trio.Event()
        ledger.read_cached = lambda *_: []
        ledger.read, ledger.read_positions = self.read, self.read_positions

    async def read(self, *arguments: Any) -> Any:
        await self.go_on.wait()
        return await self._read(*arguments)

    async def read_positions(self, *arguments: Any, **named: Any) -> Any:
        await self.go_on.wait()
        return await self._read_positions(*arguments, **named)


async def test_what_is_given_back_during_a_read_of_new_entries_goes_first(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, KEY_SHARED, permits=2)
        positions = await publish(rig, "a", "a", "a", "a")
        await rig.settle()
        slow = SlowReads(rig)
        client.flow(3)
        await rig.settle()
        client.nack(positions[0])
        slow.go_on.set()
        await rig.settle()
        assert client.payloads == [b"a1", b"a2", b"a1", b"a3", b"a4"]


async def test_what_is_given_back_during_a_repeated_read_goes_first(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, KEY_SHARED, permits=9)
        positions = await publish(rig, "a", "a", "a")
        await rig.settle()
        slow = SlowReads(rig)
        client.nack(positions[2])
        await rig.settle()
        client.nack(positions[0])
        slow.go_on.set()
        await rig.settle()
        assert client.payloads == [b"a1", b"a2", b"a3", b"a1", b"a3"]


async def test_a_consumer_that_leaves_during_a_read_gets_nothing_of_it(dispatch_rig: OpenRig) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        one = rig.join(subscription, KEY_SHARED, "a")
        slow = SlowReads(rig)
        await publish(rig, *[f"k{n}-" for n in range(10)])
        await rig.settle()
        two = rig.join(subscription, KEY_SHARED, "b")
        one.leave()
        slow.go_on.set()
        await rig.settle()
        assert (len(one.payloads), len(two.payloads)) == (0, 10)


async def test_what_was_acknowledged_before_it_is_sent_again_takes_no_permits_from_what_follows(
    dispatch_rig: OpenRig,
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription()
        client = rig.join(subscription, KEY_SHARED, "a", permits=3)
        rig.join(subscription, KEY_SHARED, "b")  # so that more could be read than client a has permits for
        (key,) = keys_of(client, 1)
        positions = await publish(rig, *[key] * 5)
        await rig.settle()
        assert client.new_positions() == positions[:3]
        client.nack(*positions[:3])
        client.ack(*positions[:2])
        await rig.settle()
        client.flow(2)
        await rig.settle()
        assert client.new_positions() == positions[2:4]


async def test_what_could_not_be_read_is_sent_again_later(
    dispatch_rig: OpenRig, autojump_clock: MockClock
) -> None:
    async with dispatch_rig() as rig:
        subscription = await rig.subscription(read_retry_ms_min=100)
        client = rig.join(subscription, KEY_SHARED, permits=2)
        positions = await publish(rig, "k", "k")
        await rig.settle()
        client.nack(*positions)
        ledger: Any = rig.ledger
        read_positions = ledger.read_positions

        async def fail_once(*_: Any, **named: Any) -> Any:
            ledger.read_positions = read_positions
            await trio.lowlevel.checkpoint()
            raise StorageError("cannot read")

        ledger.read_positions = fail_once
        client.flow(10)
        await rig.settle()
        assert client.new_positions() == positions, "sent once only so far"
        await trio.sleep(0.2)
        assert client.new_positions() == positions
