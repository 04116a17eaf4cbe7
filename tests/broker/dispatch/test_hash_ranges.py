"""Slots, selectors and draining. The expected assignments were computed by Pulsar 4.0.7's own classes."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import combinations_with_replacement, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geminga.broker.dispatch.hash_ranges import (
    ConsistentHashSelector,
    DrainingSlots,
    RangeSplitSelector,
    SlotRange,
    StickyRangeSelector,
)
from geminga.errors import ConsumerAssign
from geminga.wire.message_metadata import sticky_hash


@dataclass(eq=False)
class Fake:
    name: str
    key_ranges: list[SlotRange] = field(default_factory=list)

    def __str__(self) -> str:
        return f"Consumer{{{self.name}}}"


PROBES = (1, 2, 100, 5000, 12345, 30000, 40000, 50000, 65000, 65535)


@pytest.mark.parametrize(
    ("key", "split", "sticky"),
    [
        (b"", 1, 1),
        (b"key-1", 11858, 5536),
        (b"key-2", 51461, 21772),
        (b"NONE_KEY", 56505, 48803),
        (b"producer-0-17", 9882, 46638),
    ],
)
def test_slots_are_pulsars(key: bytes, split: int, sticky: int) -> None:
    assert ConsistentHashSelector().slot(sticky_hash(key)) == split
    assert StickyRangeSelector().slot(sticky_hash(key)) == sticky


def test_the_ring_assigns_as_pulsar_does() -> None:
    selector: ConsistentHashSelector[Fake] = ConsistentHashSelector()
    alpha, beta, beta2, gamma = (Fake(name) for name in ("alpha", "beta", "beta", "gamma"))

    def probe() -> list[Fake | None]:
        return [selector.select(slot) for slot in PROBES]

    assert probe() == [None] * 10
    selector.add(alpha)
    assert selector.ranges(alpha) == [(1, 65535)]
    selector.add(beta)
    assert selector.ranges(alpha)[:4] == [(1, 1121), (1128, 1584), (5338, 6078), (7616, 7893)]
    assert (len(selector.ranges(alpha)), len(selector.ranges(beta))) == (49, 48)
    assert probe() == [alpha, alpha, alpha, beta, beta, beta, alpha, beta, alpha, alpha]
    selector.add(beta2)
    assert [len(selector.ranges(c)) for c in (alpha, beta, beta2)] == [62, 68, 69]
    assert selector.ranges(beta2)[0] == (1, 425)
    assert selector.ranges(alpha)[-1] == (65381, 65518)
    selector.add(gamma)
    assert [len(selector.ranges(c)) for c in (alpha, beta, beta2, gamma)] == [65, 78, 75, 80]
    selector.remove(beta)
    assert [len(selector.ranges(c)) for c in (alpha, beta, beta2, gamma)] == [57, 0, 68, 67]
    assert probe() == [gamma, gamma, gamma, beta2, gamma, gamma, alpha, gamma, gamma, gamma]
    back = Fake("beta")
    selector.add(back)
    assert [len(selector.ranges(c)) for c in (alpha, back, beta2, gamma)] == [65, 78, 75, 80], (
        "a name's free index is used again"
    )


def test_range_split_assigns_as_pulsar_does() -> None:
    selector: RangeSplitSelector[Fake] = RangeSplitSelector()
    a, b, c = Fake("a"), Fake("b"), Fake("c")
    selector.add(a)
    selector.add(b)
    assert (selector.ranges(a), selector.ranges(b)) == ([(32769, 65536)], [(0, 32768)])
    selector.add(c)
    assert [selector.select(slot) for slot in PROBES] == [c, c, c, c, c, b, a, a, a, a]
    selector.remove(a)
    assert (selector.ranges(b), selector.ranges(c)) == ([(16385, 65536)], [(0, 16384)])
    selector.remove(b)
    selector.remove(c)
    assert selector.select(1) is None


def test_range_split_splits_the_widest_wherever_it_is() -> None:
    selector: RangeSplitSelector[Fake] = RangeSplitSelector()
    a, b, c, d, e, f = (Fake(name) for name in "abcdef")
    for consumer in (a, b, c, d, e):
        selector.add(consumer)
    for consumer in (c, d):
        selector.remove(consumer)
    assert [selector.ranges(consumer) for consumer in (e, b, a)] == [
        [(0, 8192)], [(8193, 32768)], [(32769, 65536)],
    ]  # fmt: skip
    selector.add(f)
    assert [selector.ranges(consumer) for consumer in (e, b, f, a)] == [
        [(0, 8192)], [(8193, 32768)], [(32769, 49152)], [(49153, 65536)],
    ]  # fmt: skip


def test_sticky_ranges_have_gaps_and_owners() -> None:
    selector: StickyRangeSelector[Fake] = StickyRangeSelector()
    low = Fake("low", [SlotRange(0, 99), SlotRange(200, 299)])
    high = Fake("high", [SlotRange(100, 150)])
    selector.add(low)
    selector.add(high)
    assert [selector.select(s) for s in (1, 99, 100, 150, 151, 200, 299, 300)] == [
        low, low, high, high, None, low, low, None,
    ]  # fmt: skip
    selector.remove(low)
    assert selector.select(1) is None
    assert selector.select(100) is high


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


@pytest.mark.parametrize(
    ("ranges", "text"),
    [
        ([], "Ranges for KeyShared policy must not be empty."),
        ([(5, 4)], "Fixed hash range start > end for range: [5,4]"),
        ([(10, 20), (0, 10)], "Consumer's own ranges conflict: [0,10] overlaps with [10,20]"),
        ([(0, 40)], "Range conflict with consumer Consumer{taken}"),
        ([(60, 70)], "Range conflict with consumer Consumer{taken}"),
        ([(45, 46)], "Range conflict with consumer Consumer{taken}"),
    ],
)
def test_bad_ranges_are_refused_in_pulsars_words(ranges: list[tuple[int, int]], text: str) -> None:
    selector: StickyRangeSelector[Fake] = StickyRangeSelector()
    taken = Fake("taken", [SlotRange(40, 60)])
    selector.add(taken)
    newcomer = Fake("new", [SlotRange(*r) for r in ranges])
    with pytest.raises(ConsumerAssign) as refused:
        selector.add(newcomer)
    assert str(refused.value) == text
    assert selector.ranges(newcomer) == []
    selector.add(Fake("beside", [SlotRange(61, 70), SlotRange(30, 39)]))


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
