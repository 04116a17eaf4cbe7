"""A range cut into parts: together they are the range, in order, and of about one size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.pipeline.client.topics import Ledger
from geminga.pipeline.columns.message_id import EARLIEST, MessageId
from geminga.pipeline.topics.ranges import Range
from geminga.pipeline.topics.splits import SPLIT_BYTES, SPLIT_ENTRIES_MIN, SPLITS_MAX, cut


def places(ranges: list[Range]) -> list[tuple[tuple[int, int, int], tuple[int, int, int]]]:
    return [(tuple(part.start), tuple(part.end)) for part in ranges]


def a_range(start: tuple[int, int, int], end: tuple[int, int, int], **more: bool) -> Range:
    return Range("topic", MessageId(*start), MessageId(*end), **more)


def test_entries_are_shared_out_evenly_over_ledgers() -> None:
    ledgers = [Ledger(1, 10), Ledger(3, 10), Ledger(4, 10)]
    assert places(cut(a_range((1, 0, 0), (4, 10, 0)), ledgers, splits=3)) == [
        ((1, 0, 0), (3, 0, 0)),
        ((3, 0, 0), (4, 0, 0)),
        ((4, 0, 0), (4, 10, 0)),
    ]
    assert places(cut(a_range((1, 4, 0), (4, 2, 0)), ledgers, splits=4)) == [
        ((1, 4, 0), (1, 8, 0)),  # 4 of 18
        ((1, 8, 0), (3, 3, 0)),  # 5: the two that are left there, and three
        ((3, 3, 0), (3, 7, 0)),
        ((3, 7, 0), (4, 2, 0)),
    ]


def test_a_part_begins_in_the_middle_of_an_entry_only_where_the_range_does() -> None:
    ledgers = [Ledger(1, 10)]
    found = cut(a_range((1, 2, 3), (1, 5, 4)), ledgers, splits=2)
    assert places(found) == [((1, 2, 3), (1, 4, 0)), ((1, 4, 0), (1, 5, 4))]
    assert places(cut(a_range((1, 2, 3), (1, 5, 4)), ledgers, splits=99)) == [
        ((1, 2, 3), (1, 3, 0)),
        ((1, 3, 0), (1, 4, 0)),
        ((1, 4, 0), (1, 5, 0)),
        ((1, 5, 0), (1, 5, 4)),
    ]


def test_the_ends_of_a_range_stay_as_they_are() -> None:
    """It may end behind what is known to be there, and begin before it."""
    assert places(cut(a_range((1, 0, 0), (1, 50, 0)), [Ledger(1, 10)], splits=2)) == [
        ((1, 0, 0), (1, 5, 0)),
        ((1, 5, 0), (1, 50, 0)),
    ]
    assert places(cut(Range("topic", EARLIEST, MessageId(7, 4, 0)), [Ledger(7, 4)], splits=2)) == [
        (tuple(EARLIEST), (7, 2, 0)),
        ((7, 2, 0), (7, 4, 0)),
    ]


def test_a_ledger_of_unknown_length_reaches_as_far_as_the_range() -> None:
    assert places(cut(a_range((1, 0, 0), (1, 8, 0)), [Ledger(1, -1)], splits=2)) == [
        ((1, 0, 0), (1, 4, 0)),
        ((1, 4, 0), (1, 8, 0)),
    ]


def test_an_empty_range_or_one_of_unknown_ledgers_stays_whole() -> None:
    wanted = a_range((5, 0, 0), (6, 3, 0))
    assert cut(wanted, [], splits=4) == [wanted]
    assert cut(wanted, [Ledger(4, 100), Ledger(5, 0), Ledger(7, 100)], splits=4) == [wanted]


@pytest.mark.parametrize(
    ("ledger", "count"),
    [
        (Ledger(1, 1000, 10 * SPLIT_BYTES), 10),
        (Ledger(1, 1000, 10 * SPLIT_BYTES + SPLIT_BYTES // 2 + SPLIT_BYTES // 8), 11),
        (Ledger(1, 1000, SPLIT_BYTES // 3), 1),
        (Ledger(1, 3, 10 * SPLIT_BYTES), 3),
        (Ledger(1, 2 * SPLIT_ENTRIES_MIN), 2),
        (Ledger(1, 2 * SPLIT_ENTRIES_MIN - 1), 1),
        (Ledger(1, 1000 * SPLIT_ENTRIES_MIN), SPLITS_MAX),
        (Ledger(1, 3), 1),
    ],
)
def test_as_many_parts_as_pay_off(ledger: Ledger, count: int) -> None:
    assert len(cut(a_range((1, 0, 0), (1, ledger.entries, 0)), [ledger])) == count


def test_only_the_bytes_of_the_range_count() -> None:
    ledgers = [Ledger(1, 1000, 8 * SPLIT_BYTES), Ledger(2, 1000, 2 * SPLIT_BYTES)]
    assert len(cut(a_range((1, 500, 0), (2, 500, 0)), ledgers)) == 4 + 1


def test_all_parts_but_the_first_begin_with_an_entry_that_is_there() -> None:
    found = cut(a_range((1, 0, 0), (1, 9, 0), check_previous=True), [Ledger(1, 9)], splits=3)
    assert [part.strict for part in found] == [False, True, True]
    assert [part.check_previous for part in found] == [True, False, False]
    (first, *_) = cut(a_range((1, 0, 0), (1, 9, 0), strict=True), [Ledger(1, 9)], splits=3)
    assert first.strict


@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=6),
    st.integers(1, 12),
    st.tuples(st.integers(1, 6), st.integers(0, 50)),
    st.tuples(st.integers(1, 6), st.integers(0, 50)),
)
def test_any_range_is_its_parts(
    entries: list[int], splits: int, start: tuple[int, int], end: tuple[int, int]
) -> None:
    start, end = sorted((start, end))
    ledgers = [Ledger(1 + number, count) for number, count in enumerate(entries)]
    wanted = a_range((*start, 0), (*end, 0))
    found = cut(wanted, ledgers, splits=splits)
    borders = [part.start for part in found] + [found[-1].end]
    assert (borders[0], borders[-1]) == (wanted.start, wanted.end)
    assert [part.end for part in found] == borders[1:]
    present = [(n.ledger_id, e) for n in ledgers for e in range(n.entries) if start <= (n.ledger_id, e) < end]
    sizes = [sum(part.start.entry <= each < part.end.entry for each in present) for part in found]
    assert sum(sizes) == len(present)
    assert len(found) == max(1, min(splits, len(present)))
    assert max(sizes) - min(sizes) <= 1
