"""Who gets what, as plain functions: examples with Pulsar's outcomes, and models that hypothesis tries to
break.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geminga.broker.dispatch.choice import choose_active, next_consumer, share_by_key, share_round_robin
from tests.oracle.tables import rows


@dataclass(eq=False)
class Fake:
    name: str
    permits: int = 0
    priority_level: int = 0

    def capacity(self) -> int:
        return max(self.permits, 0)


def test_turns_by_priority_level_and_permits() -> None:
    """The example that Pulsar's own dispatcher documents."""
    consumers = [Fake("C1", 2), Fake("C2", 1), Fake("C3", 1), Fake("C4", 2, 1), Fake("C5", 1, 1)]
    levels = [c.priority_level for c in consumers]
    turn, order = 0, []
    while (number := next_consumer(levels, lambda n: consumers[n].permits > 0, turn)) >= 0:
        consumers[number].permits -= 1
        order.append(consumers[number].name)
        turn = number + 1
    assert order == ["C1", "C2", "C3", "C1", "C4", "C5", "C4"]


def test_a_level_that_has_permits_again_comes_first() -> None:
    levels = [0, 0, 1, 1]
    assert next_consumer(levels, lambda n: n >= 2, 0) == 2
    assert next_consumer(levels, lambda n: n != 0, 3) == 1
    assert next_consumer(levels, lambda n: False, 3) == -1
    assert next_consumer([], lambda n: True, 3) == -1


def test_round_robin_gives_a_bounded_number_of_entries_at_a_time() -> None:
    consumers = [Fake("a", 1000), Fake("b", 1000)]
    shares, turn = share_round_robin([1] * 50, consumers, 0, 20)
    assert shares == [(0, 0, 20), (1, 20, 40), (0, 40, 50)]
    assert turn == 1


def test_one_consumer_gets_a_batch_in_one_share() -> None:
    assert share_round_robin([1] * 50, [Fake("a", 30)], 0, 20)[0] == [(0, 0, 30)]


def test_the_last_entry_may_take_more_permits_than_are_left() -> None:
    shares, _ = share_round_robin([10, 10, 10], [Fake("a", 11)], 0)
    assert shares == [(0, 0, 2)]


fakes = st.lists(
    st.builds(
        Fake,
        name=st.sampled_from("abcdef"),
        permits=st.integers(-5, 40),
        priority_level=st.integers(0, 2),
    ),
    max_size=5,
).map(lambda found: sorted(found, key=lambda c: c.priority_level))
sizes_of_entries = st.lists(st.integers(1, 12), max_size=60)


@settings(max_examples=300, deadline=None)
@given(sizes_of_entries, fakes, st.integers(0, 6), st.integers(1, 25))
def test_round_robin_shares_are_gapless_bounded_and_leave_no_permits_unused(
    sizes: list[int], consumers: list[Fake], turn: int, entries_max: int
) -> None:
    shares, next_turn = share_round_robin(sizes, consumers, turn, entries_max)
    assert (shares, next_turn) == share_round_robin(sizes, consumers, turn, entries_max), "no hidden state"
    end = 0
    taken: Counter[int] = Counter()
    for number, start, stop in shares:
        assert start == end < stop
        assert len(consumers) == 1 or stop - start <= entries_max
        last = sizes[stop - 1]
        taken[number] += sum(sizes[start:stop])
        left = consumers[number].permits - taken[number]
        assert left > -last, "permits may fall below zero only by the last entry"
        better = consumers[number].priority_level
        assert all(
            consumers[n].permits - taken[n] <= 0
            for n in range(len(consumers))
            if consumers[n].priority_level < better
        ), "a lower level was served while a higher one had permits"
        end = stop
    if end < len(sizes):
        assert all(c.permits - taken[n] <= 0 for n, c in enumerate(consumers)), "permits were left unused"


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 6), st.integers(1, 5)), max_size=60),
    fakes,
    st.sets(st.integers(1, 6)),
)
def test_by_key_keeps_order_within_a_slot_and_blocks_what_is_blocked(
    entries: list[tuple[int, int]], consumers: list[Fake], blocked: set[int]
) -> None:
    slots = [slot for slot, _ in entries]
    sizes = [size for _, size in entries]

    def select(slot: int) -> Fake | None:
        return consumers[slot % len(consumers)] if consumers and slot != 6 else None

    shares, waiting = share_by_key(slots, sizes, select, Fake.capacity, lambda c, slot: slot in blocked)
    given_out = [n for numbers in shares.values() for n in numbers]
    assert sorted([*given_out, *waiting]) == list(range(len(entries))), "each entry once"
    for consumer, numbers in shares.items():
        assert numbers == sorted(numbers)
        assert all(select(slots[n]) is consumer and slots[n] not in blocked for n in numbers)
        assert consumer.permits - sum(sizes[n] for n in numbers[:-1]) > 0
    for slot in set(slots):
        of_slot = [n for n in range(len(slots)) if slots[n] == slot]
        first_waiting = next((n for n in of_slot if n in waiting), len(slots))
        assert all(n in waiting for n in of_slot if n > first_waiting), "none overtakes one that waits"
    held = {slots[n] for n in waiting}
    for slot in held - blocked:
        owner = select(slot)
        if owner is not None:
            assert owner.permits - sum(sizes[n] for n in shares.get(owner, [])) <= 0


@pytest.mark.parametrize(("consumers", "topic", "partition", "active"), rows("active_consumers"))
def test_failover_makes_the_consumer_active_that_pulsar_makes_active(
    consumers: str, topic: str, partition: str, active: str
) -> None:
    """By the hash ring on a topic without partitions; else by turns over the best priority level."""
    connected = [
        Fake(name, priority_level=int(level)) for name, level in (c.split(":") for c in consumers.split())
    ]
    assert choose_active(connected, topic, int(partition)).name == active
