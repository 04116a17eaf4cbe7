"""Ranges of ledgers that have to be read once more."""

from __future__ import annotations

from geminga.broker.delays.ledger_ranges import RANGES_MAX, LedgerRanges
from geminga.position import Position


def ranges_of(*parts: tuple[int, int]) -> LedgerRanges:
    ranges = LedgerRanges()
    for first, last in parts:
        ranges.add(first, last)
    return ranges


def test_ranges_are_in_order_and_those_that_touch_are_one() -> None:
    ranges = ranges_of((9, 9), (1, 2), (3, 4), (20, 30), (25, 26))
    assert ranges.ranges == [(1, 4), (9, 9), (20, 30)]


def test_more_ranges_than_are_kept_apart_cover_all_the_same() -> None:
    ranges = ranges_of(*((2 * n, 2 * n) for n in range(RANGES_MAX + 5)))
    assert len(ranges.ranges) == RANGES_MAX
    assert ranges.ranges[0] == (0, 0)
    assert ranges.ranges[-1] == (2 * RANGES_MAX - 2, 2 * RANGES_MAX + 8)


def test_a_range_is_read_on_from_where_the_last_read_ended() -> None:
    ranges = ranges_of((5, 6), (9, 9))
    assert ranges.next_start() == ((5, 0), 6)
    ranges.read_up_to(Position(6, 3))
    assert ranges.next_start() == ((6, 3), 6)
    ranges.drop_first()
    assert ranges.next_start() == ((9, 0), 9)
    ranges.drop_first()
    assert ranges.next_start() is None
    assert not ranges


def test_what_is_lost_while_a_part_is_read_has_it_read_from_the_start() -> None:
    ranges = ranges_of((5, 6))
    assert ranges.next_start() == ((5, 0), 6)
    ranges.add(3, 5)
    ranges.read_up_to(Position(6, 3))
    assert ranges.next_start() == ((3, 0), 6)


def test_all_can_be_taken() -> None:
    ranges = ranges_of((5, 6), (9, 9))
    assert list(ranges.take_all()) == [(5, 6), (9, 9)]
    assert not ranges
