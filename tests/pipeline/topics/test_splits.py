"""A range cut into parts: together they are the range, in order, and of about one size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.pipeline.client.shared_connection import EntryFacts
from geminga.pipeline.client.topics import Ledger
from geminga.pipeline.columns.message_id import EARLIEST, MessageId
from geminga.pipeline.topics.ranges import Range
from geminga.pipeline.topics.splits import (
    SPLIT_BYTES,
    SPLIT_ENTRIES_MIN,
    SPLITS_MAX,
    cut,
    looks,
    row_borders,
    splits_wanted,
)
from geminga.pipeline.topics.splitting import AS_WORTH, Splitting
from geminga.pipeline.triggers.samples import Piece
from geminga.pipeline.triggers.sampling import ENTRIES_PER_LOOK, LOOKS_MAX, LOOKS_OF_TOPIC_MAX


def places(ranges: list[Range]) -> list[tuple[tuple[int, int, int], tuple[int, int, int]]]:
    return [(tuple(part.start), tuple(part.end)) for part in ranges]


def parts(wanted: Range, ledgers: Sequence[Ledger], *, splits: int = 0) -> list[Range]:
    return cut([(wanted, ledgers)], Splitting(of_each=splits))


def a_range(start: tuple[int, int, int], end: tuple[int, int, int], **more: bool) -> Range:
    return Range("topic", MessageId(*start), MessageId(*end), **more)


def test_entries_are_shared_out_evenly_over_ledgers() -> None:
    ledgers = [Ledger(1, 10), Ledger(3, 10), Ledger(4, 10)]
    assert places(parts(a_range((1, 0, 0), (4, 10, 0)), ledgers, splits=3)) == [
        ((1, 0, 0), (3, 0, 0)),
        ((3, 0, 0), (4, 0, 0)),
        ((4, 0, 0), (4, 10, 0)),
    ]
    assert places(parts(a_range((1, 4, 0), (4, 2, 0)), ledgers, splits=4)) == [
        ((1, 4, 0), (1, 8, 0)),  # 4 of 18
        ((1, 8, 0), (3, 3, 0)),  # 5: the two that are left there, and three
        ((3, 3, 0), (3, 7, 0)),
        ((3, 7, 0), (4, 2, 0)),
    ]


def test_a_part_begins_in_the_middle_of_an_entry_only_where_the_range_does() -> None:
    ledgers = [Ledger(1, 10)]
    found = parts(a_range((1, 2, 3), (1, 5, 4)), ledgers, splits=2)
    assert places(found) == [((1, 2, 3), (1, 4, 0)), ((1, 4, 0), (1, 5, 4))]
    assert places(parts(a_range((1, 2, 3), (1, 5, 4)), ledgers, splits=99)) == [
        ((1, 2, 3), (1, 3, 0)),
        ((1, 3, 0), (1, 4, 0)),
        ((1, 4, 0), (1, 5, 0)),
        ((1, 5, 0), (1, 5, 4)),
    ]


def test_the_ends_of_a_range_stay_as_they_are() -> None:
    """It may end behind what is known to be there, and begin before it."""
    assert places(parts(a_range((1, 0, 0), (1, 50, 0)), [Ledger(1, 10)], splits=2)) == [
        ((1, 0, 0), (1, 5, 0)),
        ((1, 5, 0), (1, 50, 0)),
    ]
    assert places(parts(Range("topic", EARLIEST, MessageId(7, 4, 0)), [Ledger(7, 4)], splits=2)) == [
        (tuple(EARLIEST), (7, 2, 0)),
        ((7, 2, 0), (7, 4, 0)),
    ]


def test_a_ledger_of_unknown_length_reaches_as_far_as_the_range() -> None:
    assert places(parts(a_range((1, 0, 0), (1, 8, 0)), [Ledger(1, -1)], splits=2)) == [
        ((1, 0, 0), (1, 4, 0)),
        ((1, 4, 0), (1, 8, 0)),
    ]


def test_an_empty_range_or_one_of_unknown_ledgers_stays_whole() -> None:
    wanted = a_range((5, 0, 0), (6, 3, 0))
    assert parts(wanted, [], splits=4) == [wanted]
    assert parts(wanted, [Ledger(4, 100), Ledger(5, 0), Ledger(7, 100)], splits=4) == [wanted]


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
    assert len(parts(a_range((1, 0, 0), (1, ledger.entries, 0)), [ledger])) == count


def test_only_the_bytes_of_the_range_count() -> None:
    ledgers = [Ledger(1, 1000, 8 * SPLIT_BYTES), Ledger(2, 1000, 2 * SPLIT_BYTES)]
    assert len(parts(a_range((1, 500, 0), (2, 500, 0)), ledgers)) == 4 + 1


def test_all_parts_but_the_first_begin_with_an_entry_that_is_there() -> None:
    found = parts(a_range((1, 0, 0), (1, 9, 0), check_previous=True), [Ledger(1, 9)], splits=3)
    assert [part.strict for part in found] == [False, True, True]
    assert [part.check_previous for part in found] == [True, False, False]
    (first, *_) = parts(a_range((1, 0, 0), (1, 9, 0), strict=True), [Ledger(1, 9)], splits=3)
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
    found = parts(wanted, ledgers, splits=splits)
    borders = [part.start for part in found] + [found[-1].end]
    assert (borders[0], borders[-1]) == (wanted.start, wanted.end)
    assert [part.end for part in found] == borders[1:]
    present = [(n.ledger_id, e) for n in ledgers for e in range(n.entries) if start <= (n.ledger_id, e) < end]
    sizes = [sum(part.start.entry <= each < part.end.entry for each in present) for part in found]
    assert sum(sizes) == len(present)
    assert len(found) == max(1, min(splits, len(present)))
    assert max(sizes) - min(sizes) <= 1


Topic = tuple[Range, Sequence[Ledger]]


def topic(name: str, *entries: int, entry_bytes: int = 0) -> Topic:
    """All of a topic with ledgers of so many entries."""
    ledgers = [Ledger(1 + number, count, count * entry_bytes) for number, count in enumerate(entries)]
    end = MessageId(ledgers[-1].ledger_id, ledgers[-1].entries, 0)
    return Range(name, MessageId(1, 0, 0), end), ledgers


def sizes(found: Sequence[Topic], ranges: Sequence[Range]) -> dict[str, list[int]]:
    """Of each topic the entries of its parts; all of its entries are in one part, in order."""
    counts = {}
    for wanted, ledgers in found:
        own = [part for part in ranges if part.topic == wanted.topic]
        assert (own[0].start, own[-1].end) == (wanted.start, wanted.end)
        assert [part.end for part in own[:-1]] == [part.start for part in own[1:]]
        entries = [(each.ledger_id, number) for each in ledgers for number in range(each.entries)]
        counts[wanted.topic] = [sum(p.start.entry <= each < p.end.entry for each in entries) for p in own]
        assert sum(counts[wanted.topic]) == len(entries)
    return counts


def least(count: int, *found: Topic) -> dict[str, list[int]]:
    return sizes(found, cut(found, Splitting(of_all_min=count)))


@pytest.mark.parametrize("count", [0, 1, 2])
def test_no_more_parts_than_without_if_there_are_enough(count: int) -> None:
    assert least(count, topic("a", 10), topic("b", 3)) == {"a": [10], "b": [3]}


def test_large_ranges_are_cut_in_proportion() -> None:
    assert least(12, topic("a", 60), topic("b", 30), topic("c", 30)) == {
        "a": [10] * 6,
        "b": [10] * 3,
        "c": [10] * 3,
    }
    assert least(3, topic("a", 50), topic("b", 40)) == {"a": [25, 25], "b": [40]}
    assert least(4, topic("a", 50), topic("b", 40)) == {"a": [25, 25], "b": [20, 20]}


def test_one_huge_range_beside_many_small_and_empty_ones() -> None:
    small = [topic(f"small-{number}", 1) for number in range(20)]
    empty = [topic(f"empty-{number}", 0) for number in range(30)]
    found = least(60, topic("huge", 40, 60), *small, *empty)
    assert found["huge"] == [10] * 10
    assert sum(map(len, found.values())) == 60


def test_not_more_parts_than_entries() -> None:
    assert least(1000, topic("a", 3), topic("b", 1), topic("c", 0)) == {"a": [1, 1, 1], "b": [1], "c": [0]}
    assert cut([], Splitting(of_all_min=10, rows_max=10)) == []


def test_bytes_count_where_those_of_all_are_known() -> None:
    large, small = topic("large", 60, entry_bytes=1000), topic("small", 60, entry_bytes=200)
    assert {name: len(own) for name, own in least(12, large, small).items()} == {"large": 10, "small": 2}
    unknown = topic("unknown", 60)
    assert {name: len(own) for name, own in least(12, large, unknown).items()} == {"large": 6, "unknown": 6}


def test_what_pays_off_is_the_least() -> None:
    assert len(least(2, topic("a", 10 * SPLIT_ENTRIES_MIN))["a"]) == SPLITS_MAX


@given(st.lists(st.integers(0, 60), min_size=1, max_size=8), st.integers(1, 80))
def test_no_part_is_larger_than_it_has_to_be(entries: list[int], count: int) -> None:
    found = [topic(f"t{number}", each) for number, each in enumerate(entries)]
    counts = least(count, *found)
    assert sum(map(len, counts.values())) == max(len(entries), min(count, sum(max(e, 1) for e in entries)))
    for own in counts.values():
        assert max(own) - min(own) <= 1
        if len(own) > 1:  # its last part did not belong to any other
            assert all(sum(own) / (len(own) - 1) >= sum(o) / len(o) for o in counts.values() if max(o) > 1)


def facts(entry_id: int, rows: float) -> EntryFacts:
    return EntryFacts(1, entry_id, rows, 100, 0)


def with_rows(rows_max: int, rows: Sequence[int], every: int = 1, count: int = 0) -> list[list[int]]:
    """The rows of each entry of the parts, if one of so many entries was looked at."""
    found = [topic("t", len(rows))]
    samples = {"t": [facts(number, rows[number]) for number in range(0, len(rows), every)]}
    counts = sizes(found, cut(found, Splitting(of_all_min=count, rows_max=rows_max), samples))["t"]
    ends = [sum(counts[:number]) for number in range(len(counts) + 1)]
    return [list(rows[first:end]) for first, end in pairwise(ends)]


@pytest.mark.parametrize(
    ("rows_max", "rows", "lengths"),
    [
        (10, [], [0]),
        (10, [1], [1]),
        (10, [100], [1]),  # nothing is cut within an entry
        (10, [1] * 10, [10]),
        (10, [1] * 11, [5, 6]),
        (1, [1] * 3, [1, 1, 1]),
        (35, [10] * 7, [2, 2, 3]),
        (9, [10] * 3, [1, 1, 1]),
        (100, [100, 1, 1, 1, 100], [1, 3, 1]),
    ],
)
def test_parts_have_no_more_rows_than_they_may(rows_max: int, rows: list[int], lengths: list[int]) -> None:
    assert [len(part) for part in with_rows(rows_max, rows)] == lengths


@given(st.integers(1, 12), st.integers(0, 60), st.integers(1, 100), st.integers(1, 70))
def test_equal_batches_are_never_too_many_rows(batch: int, entries: int, rows_max: int, every: int) -> None:
    found = with_rows(rows_max, [batch] * entries, every)
    assert all(sum(part) <= rows_max or len(part) == 1 for part in found)
    of_part = max(rows_max // batch, 1)
    assert len(found) == max(-(-entries // of_part), 1)
    assert max(map(len, found)) - min(map(len, found)) <= 1
    samples = {"t": [facts(0, batch)]}
    wanted = splits_wanted([topic("t", entries)], Splitting(rows_max=rows_max), samples)
    assert wanted == (len(found) if entries else 0)


@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 80))
def test_splits_are_counted_without_making_them(one: int, other: int, splits: int) -> None:
    found = [topic("a", one), topic("b", other)]
    made = sizes(found, cut(found, Splitting(splits)))
    assert splits_wanted(found, Splitting(splits)) == sum(len(own) for own in made.values() if sum(own))
    assert splits_wanted(found, AS_WORTH) == 0


@given(st.lists(st.integers(1, 30), max_size=50), st.integers(1, 100), st.integers(0, 40))
def test_batches_that_are_known_are_never_too_many_rows(rows: list[int], rows_max: int, count: int) -> None:
    found = with_rows(rows_max, rows, count=count)
    assert [row for part in found for row in part] == rows
    assert all(sum(part) <= rows_max or len(part) == 1 for part in found)
    assert len(found) >= min(count, len(rows))


def test_batches_that_differ_are_as_large_as_their_neighbours() -> None:
    """Half of a topic has single messages, half batches of 100."""
    found = with_rows(1000, [1] * 2000 + [100] * 200, every=50)
    assert max(map(sum, found)) <= 1000 + 25 * 100
    assert len(found) <= 2 + 20 + 3


def test_nothing_known_is_taken_for_single_messages_or_for_what_others_have() -> None:
    two = [topic("a", 40), topic("b", 40)]
    both = Splitting(rows_max=20)
    assert Counter(part.topic for part in cut(two, both)) == {"a": 2, "b": 2}
    assert Counter(part.topic for part in cut(two, both, {"a": [facts(0, 10)]})) == {"a": 20, "b": 20}


def test_borders_of_no_pieces() -> None:
    assert row_borders([], 5) == [0]
    assert row_borders([Piece(3, 0, 0)], 1) == [0]  # markers have no rows


def test_looks_are_few_and_the_same_each_time() -> None:
    found = [topic(f"t{number:04}", 1 + number) for number in range(2000)]
    asked = looks(found)
    assert asked == looks(found[::-1])
    by_topic = Counter(name for name, _ in asked)
    assert len(by_topic) == LOOKS_MAX
    assert min(by_topic) == f"t{2000 - LOOKS_MAX:04}"
    assert len(asked) <= 2 * LOOKS_MAX
    assert looks([topic("none", 0), topic("one", 1)]) == []
    for entries in (2, ENTRIES_PER_LOOK, 2 * ENTRIES_PER_LOOK, 10**6):
        some = [place.entry_id for _, place in looks([topic("t", entries)])]
        count = max(1, min(entries // ENTRIES_PER_LOOK, LOOKS_OF_TOPIC_MAX + 1))
        assert some == [entries * number // count for number in range(count)]


def test_the_way_to_cut_is_in_the_offsets() -> None:
    for splitting in (AS_WORTH, Splitting(3), Splitting(of_all_min=4, rows_max=5)):
        assert Splitting.of_offsets({"t": "1:2:0"} | splitting.offsets()) == splitting
    assert Splitting(3).offsets() == {"splitsPerPartition": "3"}  # as in checkpoints of earlier versions
    assert AS_WORTH.offsets() == {}


def test_many_small_ledgers_are_no_more_splits_than_their_rows_make() -> None:
    ledgers = [Ledger(number, 1) for number in range(300)]
    wanted = Range("persistent://a/b/c", MessageId(0, 0, 0), MessageId(299, 1, 0))
    for rows_max, count in ((10, 30), (100, 3), (1_000_000, 1)):
        assert splits_wanted([(wanted, ledgers)], Splitting(rows_max=rows_max)) == count
