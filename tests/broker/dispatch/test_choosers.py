"""The choosers by themselves: plain calls, no broker, no time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from geminga.broker.dispatch.chooser import Batch, Chooser, Shares
from geminga.broker.dispatch.consumer import Consumer
from geminga.broker.dispatch.hash_ranges import DrainingSlots, SlotRange
from geminga.broker.dispatch.key_shared import KeyShared
from geminga.broker.dispatch.pending_acks import pack
from geminga.broker.dispatch.redelivery import RedeliverySet
from geminga.broker.dispatch.settings import SubscriptionSettings
from geminga.broker.dispatch.shared import Shared
from geminga.broker.dispatch.single import Exclusive, Failover, Takeover
from geminga.managed_ledger.chain.entry import Entry
from geminga.position import Position
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.message_metadata import peek, sticky_hash, sticky_key
from tests.broker.dispatch_rig import FakeOutbox, message


def taker(name: str, permits: int = 100, *, level: int = 0, ranges: Sequence[SlotRange] = ()) -> Consumer:
    command = pb.CommandSubscribe(
        topic="t", subscription="s", subType=0, consumer_id=1, request_id=1, consumer_name=name
    )
    command.priority_level = level
    for start, end in ranges:
        command.keySharedMeta.hashRanges.add(start=start, end=end)
    consumer = Consumer(command, FakeOutbox())  # type: ignore[arg-type]
    consumer.flow(permits, 0)
    return consumer


def settings(**fields: Any) -> Any:
    return SimpleNamespace(settings=SubscriptionSettings(**fields))


def batch(*keys: str, size: int = 1, chunks: int = 0) -> Batch:
    """Entries 0, 1, ... of ledger 1, with these keys; or the first chunks of one message."""
    entries = []
    for number, key in enumerate(keys):
        body = message(key=key, chunk=(number, chunks) if chunks else None)
        entries.append(Entry(Position(1, number), body, peek(body)))
    return Batch(entries, [size] * len(entries), [], {}, has_chunks=chunks > 0)


def share(chooser: Chooser, shared: Batch, *, is_new: bool = True) -> tuple[dict[str, list[int]], list[int]]:
    """Share, and take the permits as sending does: entry ids by consumer, and those that wait."""
    shares: Shares = chooser.share(shared, is_new=is_new)
    given: dict[str, list[int]] = {}
    for one in shares.given:
        given[one.consumer.name] = [entry.position.entry_id for entry in one.entries]
        one.consumer.sent(len(one.entries), sum(one.sizes), 0, 0)
    return given, [entry.position.entry_id for entry in shares.waiting]


def join(chooser: Any, *takers: Consumer) -> None:
    for consumer in takers:
        chooser.add(consumer)


def test_exclusive_gives_in_order_as_far_as_permits_go() -> None:
    chooser = Exclusive()
    join(chooser, taker("a", permits=3))
    assert share(chooser, batch(*"kkkk", size=2)) == ({"a": [0, 1]}, [2, 3])
    assert share(chooser, batch("k")) == ({}, [0])


def test_a_reader_of_some_keys_passes_over_the_others() -> None:
    lower = SlotRange(0, 32767)
    chooser = Exclusive()
    join(chooser, taker("a", ranges=[lower]))
    keys = [str(number) for number in range(20)]
    given, waiting = share(chooser, batch(*keys))
    upper = Exclusive()
    join(upper, taker("b", ranges=[SlotRange(32768, 65535)]))
    others, _ = share(upper, batch(*keys))
    assert sorted(given["a"] + others["b"]) == list(range(20))
    assert waiting == []
    assert given["a"]
    assert others["b"]


def test_failover_gives_all_to_the_active_one_and_chooses_again_when_it_leaves() -> None:
    chooser = Failover(settings(), "persistent://public/default/t", 1)
    takers = [taker(name) for name in "cab"]
    join(chooser, *takers)
    active = chooser.active()
    assert active is takers[2], "the second by name: the partition is number 1"
    assert chooser.receivers() == (active,)
    assert share(chooser, batch(*"xyz")) == ({"b": [0, 1, 2]}, [])
    chooser.remove(active)
    assert chooser.active() is takers[0]
    better = taker("z", level=-1)
    join(chooser, better)
    assert chooser.active() is better
    for consumer in (better, *takers[:2]):
        chooser.remove(consumer)
    assert chooser.active() is None
    assert chooser.receivers() == ()


def test_a_takeover_is_not_put_off_by_who_comes_next() -> None:
    takeover = Takeover()
    assert not takeover.take_over(10.0)
    takeover.active_changed(10.0, 1000, has_active=True)
    takeover.active_changed(10.9, 1000, has_active=True)
    assert (takeover.is_waiting, takeover.at_s) == (True, 11.0)
    assert not takeover.take_over(10.99)
    assert takeover.take_over(11.0)
    assert (takeover.is_waiting, takeover.at_s) == (False, math.inf)
    takeover.active_changed(12.0, 1000, has_active=True)
    takeover.active_changed(12.1, 1000, has_active=False)
    assert not takeover.is_waiting


def test_shared_goes_round_within_a_level_and_leaves_what_finds_no_permits() -> None:
    redelivery = RedeliverySet()
    chooser = Shared(settings(round_robin_entries_max=2), redelivery)
    join(chooser, taker("late", level=1), taker("a", permits=3), taker("b", permits=2))
    assert [consumer.name for consumer in chooser.consumers] == ["a", "b", "late"]
    given, waiting = share(chooser, batch(*"x" * 8))
    assert given == {"a": [0, 1, 4], "b": [2, 3], "late": [5, 6, 7]}
    assert waiting == []
    assert chooser.active() is None


def test_chunks_that_wait_for_their_owner_are_not_selected_before_it_takes_more() -> None:
    redelivery = RedeliverySet()
    chooser = Shared(settings(), redelivery)
    owner, other = taker("a", permits=1), taker("b")
    join(chooser, owner, other)
    assert share(chooser, batch("k", "k", "k", chunks=3)) == ({"a": [0]}, [1, 2])
    redelivery.add(1, 1)
    redelivery.add(1, 2)
    redelivery.add(1, 9)
    # `add` had them tried again: what was held before this select is let go by it, and what is held after it
    # stays until something happens.
    chooser.select(10)
    share(chooser, batch("k", "k", "k", chunks=3))
    assert Position(1, 9) in chooser.select(10)
    assert Position(1, 1) not in chooser.select(10)
    chooser.reconsider()
    assert chooser.select(10) == [Position(1, 1), Position(1, 2), Position(1, 9)]


def keyed(*takers: Consumer, allows_out_of_order: bool = False, **fields: Any) -> tuple[KeyShared, Any, Any]:
    redelivery, draining = RedeliverySet(), DrainingSlots[Any]()
    chooser = KeyShared(
        settings(**fields), redelivery, draining, is_sticky=False, allows_out_of_order=allows_out_of_order
    )
    join(chooser, *takers)
    return chooser, redelivery, draining


def test_a_key_waits_behind_itself_and_others_go() -> None:
    chooser, redelivery, _ = keyed(taker("a"))
    entries = batch("k", "m", "k")
    redelivery.add(1, 100, chooser.selector.slot(peek_hash(entries, 0)))
    assert share(chooser, entries) == ({"a": [1]}, [0, 2])
    assert share(chooser, entries, is_new=False) == ({"a": [0, 1, 2]}, []), "what waits goes itself"
    free, redelivery, _ = keyed(taker("a"), allows_out_of_order=True)
    redelivery.add(1, 100, free.selector.slot(peek_hash(entries, 0)))
    assert share(free, entries) == ({"a": [0, 1, 2]}, [])
    assert (chooser.keeps_order, free.keeps_order) == (True, False)


def peek_hash(shared: Batch, number: int) -> int:
    return sticky_hash(sticky_key(shared.entries[number].peek))


def test_a_slot_that_moved_waits_for_what_its_old_consumer_holds() -> None:
    first = taker("a")
    chooser, _, draining = keyed(first)
    entries = batch(*(str(number) for number in range(40)))
    slots = [chooser.selector.slot(peek_hash(entries, number)) for number in range(40)]
    first.pending.of_ledger(1).update({100 + n: pack(1, slot) for n, slot in enumerate(slots)})
    second = taker("b")
    join(chooser, second)
    given, waiting = share(chooser, entries)
    moved = [n for n, slot in enumerate(slots) if chooser.selector.select(slot) is second]
    assert 0 < len(moved) < 40
    assert waiting == moved
    assert sorted(given) == ["a"]
    for slot in slots:
        draining.settled(first, slot)
    assert share(chooser, entries)[1] == []


def test_what_was_refused_is_not_looked_at_again_before_something_happens() -> None:
    consumer = taker("a", permits=1)
    chooser, redelivery, _ = keyed(consumer)
    for number in range(3):
        redelivery.add(1, number, 7)
    assert chooser.select(10) == [Position(1, 0)]
    redelivery.discard(1, 0)
    share(chooser, batch("k"), is_new=False)
    consumer.flow(5, 0)
    assert chooser.select(10) == [], "that permits came is told by `reconsider`"
    chooser.reconsider()
    assert chooser.select(10) == [Position(1, 1), Position(1, 2)]


def test_what_came_meanwhile_is_a_reason_to_look_but_new_entries_that_wait_are_none() -> None:
    consumer = taker("a", permits=0)
    chooser, redelivery, _ = keyed(consumer)
    redelivery.add(1, 9, 7)
    assert chooser.select(10) == []
    entries = batch("k", "k")
    assert share(chooser, entries) == ({}, [0, 1])
    for entry in entries.entries:
        redelivery.add(*entry.position, 9)
    consumer.flow(5, 0)
    assert chooser.select(10) == []
    redelivery.add(1, 5, 11)
    assert Position(1, 5) in chooser.select(10)


def test_what_was_selected_and_never_came_is_looked_for_again() -> None:
    chooser, redelivery, _ = keyed(taker("a", permits=2))
    for number in range(3):
        redelivery.add(1, number, number + 1)
    assert chooser.select(10) == [Position(1, 0), Position(1, 1)]
    assert chooser.select(10) == [Position(1, 0), Position(1, 1)], "the read failed: nothing was shared"


@pytest.mark.parametrize(
    ("per_consumer", "per_subscription", "unacked_max", "left"),
    [(10, 100, 0, 18), (10, 15, 0, 13), (0, 15, 0, 13), (0, 0, 50, 48), (10, 0, 0, 18)],
)
def test_how_far_keys_are_looked_past(
    per_consumer: int, per_subscription: int, unacked_max: int, left: int
) -> None:
    chooser, redelivery, _ = keyed(
        taker("a"),
        taker("b"),
        look_ahead_max_per_consumer=per_consumer,
        look_ahead_max_per_subscription=per_subscription,
        unacked_max_per_subscription=unacked_max,
    )
    redelivery.add(1, 0, 1)
    redelivery.add(1, 1, 1)
    assert chooser.look_ahead_left() == left
