"""Slots, selectors and draining. The expected assignments are those of Pulsar's own classes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import combinations_with_replacement, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geminga.broker.dispatch.hash_ranges import (
    ConsistentHashSelector,
    DrainingSlots,
    RangeSplitSelector,
    Selector,
    SlotRange,
    StickyRangeSelector,
)
from geminga.errors import ConsumerAssign
from geminga.wire.message_metadata import sticky_hash
from tests.oracle.tables import REFUSED, rows


@dataclass(eq=False)
class Fake:
    name: str
    key_ranges: list[SlotRange] = field(default_factory=list)

    def __str__(self) -> str:
        return f"Consumer{{{self.name}}}"


HASH_RANGES = rows("hash_ranges")
"""[selector, consumers that come and go, slots, their owners, ranges] or [.., .., .., REFUSED, reason]."""
SELECTORS: dict[str, Callable[[], Selector[Fake]]] = {
    "consistent": ConsistentHashSelector,
    "split": RangeSplitSelector,
    "fixed": StickyRangeSelector,
}


def key_ranges(text: str) -> list[SlotRange]:
    """`0-99+200-299`."""
    return [SlotRange(*map(int, part.split("-"))) for part in text.split("+") if part]


@pytest.mark.parametrize("row", rows("sticky_hashes"), ids=lambda row: row[0])
def test_slots_are_pulsars(row: list[str]) -> None:
    key_hex, _, consistent, sticky = row
    key = bytes.fromhex(key_hex.replace("-", ""))
    assert ConsistentHashSelector().slot(sticky_hash(key)) == int(consistent)
    assert RangeSplitSelector().slot(sticky_hash(key)) == int(sticky)
    assert StickyRangeSelector().slot(sticky_hash(key)) == int(sticky)


@pytest.mark.parametrize("row", HASH_RANGES, ids=lambda row: f"{row[0]}: {row[1]}")
def test_slots_have_the_owners_that_they_have_in_pulsar(row: list[str]) -> None:
    kind, steps, slots, owners, outcome = row
    selector = SELECTORS[kind]()
    present: dict[str, Fake] = {}
    for step in steps.split():
        if step.startswith("-"):
            leaver = present.pop(step[1:])
            selector.remove(leaver)
            assert selector.ranges(leaver) == []
            continue
        label, _, ranges = step.partition("=")
        consumer = Fake(label.partition("#")[0], key_ranges(ranges))
        if owners == REFUSED and step == steps.split()[-1]:
            with pytest.raises(ConsumerAssign) as refused:
                selector.add(consumer)
            assert str(refused.value) == json.loads(outcome)
            assert selector.ranges(consumer) == []
            return
        selector.add(consumer)
        present[label] = consumer
    found = [selector.select(int(slot)) for slot in slots.split()]
    assert found == [present.get(label) for label in owners.split()]
    assigned = {label: [list(r) for r in selector.ranges(consumer)] for label, consumer in present.items()}
    assert assigned == json.loads(outcome)


@pytest.mark.parametrize("kind", SELECTORS)
def test_no_slot_has_an_owner_when_all_consumers_have_left(kind: str) -> None:
    selector = SELECTORS[kind]()
    assert selector.select(1) is None
    consumers = [Fake("a", key_ranges("0-9")), Fake("b", key_ranges("10-19"))]
    for consumer in consumers:
        selector.add(consumer)
    assert selector.select(1) is not None
    for consumer in consumers:
        selector.remove(consumer)
    assert [selector.select(slot) for slot in (1, 10, 65535)] == [None, None, None]


def test_sticky_ranges_that_overlap_are_found_wherever_they_are() -> None:
    for start, end in combinations_with_replacement(range(14), 2):
        selector: StickyRangeSelector[Fake] = StickyRangeSelector()
        selector.add(Fake("low", [SlotRange(2, 2), SlotRange(7, 9)]))
        selector.add(Fake("high", [SlotRange(4, 5), SlotRange(12, 12)]))
        wanted = Fake("wanted", [SlotRange(start, end)])
        if {2, 4, 5, 7, 8, 9, 12}.isdisjoint(range(start, end + 1)):
            selector.add(wanted)
            assert selector.ranges(wanted) == [(start, end)]
        else:
            with pytest.raises(ConsumerAssign, match="Range conflict with consumer Consumer"):
                selector.add(wanted)


def test_a_consumer_may_name_a_thousand_ranges_and_no_more() -> None:
    ranges = [SlotRange(2 * n, 2 * n) for n in range(1001)]
    selector: StickyRangeSelector[Fake] = StickyRangeSelector()
    with pytest.raises(ConsumerAssign, match="must not be more than 1000"):
        selector.add(Fake("greedy", ranges))
    selector.add(Fake("many", ranges[:1000]))
    assert selector.select(1998) is not None


def test_ranges_that_were_refused_are_free_for_others() -> None:
    selector: StickyRangeSelector[Fake] = StickyRangeSelector()
    selector.add(Fake("taken", key_ranges("40-60")))
    for ranges in ("0-40", "60-70", "10-20+0-10", "45-46"):
        with pytest.raises(ConsumerAssign):
            selector.add(Fake("new", key_ranges(ranges)))
    beside = Fake("beside", key_ranges("61-70+0-39"))
    selector.add(beside)
    assert selector.ranges(beside) == [(0, 39), (61, 70)]


names = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=5)


@settings(max_examples=30, deadline=None)
@given(names, st.randoms(use_true_random=False))
def test_a_consumer_that_comes_or_goes_moves_only_its_own_slots(wanted: list[str], chance: object) -> None:
    selector: ConsistentHashSelector[Fake] = ConsistentHashSelector(points=10)
    present: list[Fake] = []
    probes = range(1, 65536, 97)
    before: list[Fake | None] = [None for _ in probes]
    for name in wanted:
        newcomer = Fake(name)
        selector.add(newcomer)
        present.append(newcomer)
        after = [selector.select(s) for s in probes]
        moved = [(x, y) for x, y in zip(before, after, strict=True) if x is not y]
        assert all(y is newcomer for _, y in moved)
        before = after
    covered = sorted(r for c in present for r in selector.ranges(c))
    assert covered[0].start == 1
    assert covered[-1].end == 65535
    assert all(x.end + 1 == y.start for x, y in pairwise(covered))
    for leaver in present[::2]:
        selector.remove(leaver)
        after = [selector.select(s) for s in probes]
        assert all(x is leaver for x, y in zip(before, after, strict=True) if x is not y)
        before = after


class OneOwner:
    """A selector that a test turns by hand."""

    def __init__(self, owner: Fake) -> None:
        self.owner = owner

    def select(self, slot: int) -> Fake:
        return self.owner


def test_a_slot_drains_until_its_last_entry_is_settled() -> None:
    old, new = Fake("old"), Fake("new")
    selector = OneOwner(new)
    draining: DrainingSlots[Fake] = DrainingSlots()
    draining.reassigned([(old, [7, 7, 9])], selector)  # type: ignore[arg-type]
    assert draining.is_blocked(new, 7)
    assert not draining.is_blocked(new, 8)
    assert not draining.settled(old, 7), "one is still pending"
    assert draining.settled(old, 7), "free, and someone had waited"
    assert not draining.is_blocked(new, 7)
    assert not draining.settled(old, 9), "free, but no one had waited"
    assert not draining
    assert draining.cleared == {id(old): 2}


def test_a_slot_that_goes_back_to_its_consumer_does_not_drain() -> None:
    old, new = Fake("old"), Fake("new")
    draining: DrainingSlots[Fake] = DrainingSlots()
    selector = OneOwner(new)
    draining.reassigned([(old, [7])], selector)  # type: ignore[arg-type]
    selector.owner = old
    draining.reassigned([(old, [7])], selector)  # type: ignore[arg-type]
    assert not draining


def test_a_consumer_that_is_gone_drains_nothing() -> None:
    old, new = Fake("old"), Fake("new")
    draining: DrainingSlots[Fake] = DrainingSlots()
    draining.reassigned([(old, [7])], OneOwner(new))  # type: ignore[arg-type]
    draining.forget(old)
    assert not draining.is_blocked(new, 7)
