"""What limits admit, estimated from samples: pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.pipeline.client.shared_connection import EntryFacts
from geminga.pipeline.client.topics import Ledger
from geminga.pipeline.columns.message_id import EARLIEST, MessageId
from geminga.pipeline.triggers.lag import Lag, totals
from geminga.pipeline.triggers.ledgers import Ledgers
from geminga.pipeline.triggers.samples import Limit, Piece, Reach, Samples, pieces, reach
from geminga.pipeline.triggers.sampling import ENTRIES_PER_LOOK, Sampling, Unread
from geminga.pipeline.triggers.waiting import Waiting
from geminga.pipeline.triggers.windows import Window


def facts(ledger_id: int, entry_id: int, rows: float = 1, size_bytes: int = 100) -> EntryFacts:
    return EntryFacts(ledger_id, entry_id, rows, size_bytes, 0)


class Stored:
    """Topics whose entries hold so many messages each, ledger by ledger; counts what is asked."""

    def __init__(self, topics: dict[str, dict[int, Sequence[int]]]) -> None:
        self.topics = topics
        self.looks: list[tuple[str, MessageId]] = []
        self.asked_before: list[tuple[str, int]] = []

    def first_entries(self, asked: Sequence[tuple[str, MessageId]]) -> list[EntryFacts | None]:
        self.looks += asked
        return [
            facts(*place.entry, self.topics[topic][place.ledger_id][place.entry_id]) for topic, place in asked
        ]

    def last_before(self, asked: Sequence[tuple[str, int]]) -> list[tuple[int, int]]:
        self.asked_before += asked
        found = []
        for topic, ledger_id in asked:
            earlier = [each for each, rows in self.topics[topic].items() if each < ledger_id and rows]
            found.append(
                (max(earlier), len(self.topics[topic][max(earlier)]) - 1) if earlier else (ledger_id, -1)
            )
        return found

    def unread(self, topic: str, start: MessageId = EARLIEST) -> Unread:
        last = max(self.topics[topic])
        end = MessageId(last, len(self.topics[topic][last]), 0)
        ledgers = Ledgers(self).between({topic: (start, end)})[topic]  # type: ignore[arg-type]
        return Unread(start, Window.between(start, end, ledgers or []))

    def rows(self, topic: str, start: MessageId, end: MessageId) -> int:
        total = 0
        for ledger_id, entries in self.topics[topic].items():
            for entry_id, rows in enumerate(entries):
                entry = (ledger_id, entry_id)
                if start.entry <= entry < end.entry:
                    total += rows
                total -= start.batch_index if entry == start.entry else 0
                total += end.batch_index if entry == end.entry else 0
        return total


def test_ledgers_are_found_from_the_end_on_and_asked_for_once() -> None:
    stored = Stored({"t": {2: [1] * 30, 5: [], 7: [1] * 50, 9: [1] * 20}})
    ledgers = Ledgers(stored)  # type: ignore[arg-type]
    wanted = {"t": (EARLIEST, MessageId(9, 4, 3))}
    assert ledgers.between(wanted) == {"t": [Ledger(2, 30), Ledger(7, 50), Ledger(9, 5)]}
    assert stored.asked_before == [("t", 9), ("t", 7), ("t", 2)]
    assert ledgers.between(wanted) == {"t": [Ledger(2, 30), Ledger(7, 50), Ledger(9, 5)]}
    assert ledgers.between({"t": (MessageId(7, 3, 0), MessageId(9, 20, 0))}) == {
        "t": [Ledger(7, 50), Ledger(9, 20)]
    }
    assert len(stored.asked_before) == 3


def test_ledgers_that_the_admin_api_tells_keep_their_bytes() -> None:
    asked: list[list[str]] = []

    def sizes(topics: list[str]) -> dict[str, list[Ledger]]:
        asked.append(topics)
        return {topic: [Ledger(2, 10, 1000), Ledger(3, 4, 800)] for topic in topics}

    ledgers = Ledgers(Stored({}), sizes)  # type: ignore[arg-type]
    assert ledgers.between({"t": (EARLIEST, MessageId(3, 4, 0))}) == {
        "t": [Ledger(2, 10, 1000), Ledger(3, 4, 800)]
    }
    assert ledgers.between({"t": (MessageId(3, 0, 0), MessageId(3, 8, 0))}) == {"t": [Ledger(3, 8, 1600)]}
    assert asked == [["t"], []]


def test_an_entry_is_taken_for_the_nearest_that_was_looked_at() -> None:
    window = Window.between(MessageId(1, 2, 0), MessageId(4, 10, 0), [Ledger(1, 12), Ledger(4, 10, 70)])
    assert window.entries == 20
    found = pieces(window, [facts(1, 2, 5, 50), facts(1, 8, 7, 90), facts(4, 9, 9, 10)])
    assert found == [Piece(4, 5, 50), Piece(6, 7, 90), Piece(3, 7, 7.0), Piece(7, 9, 7.0)]


@pytest.mark.parametrize(
    ("limit", "read", "expected"),
    [
        (Limit(), 0, Reach(15, 200, 1500)),
        (Limit(rows=100), 0, Reach(10, 100, 1000)),
        (Limit(rows=99), 0, Reach(9, 90, 900)),
        (Limit(rows=96), 4, Reach(10, 96, 1000)),
        (Limit(rows=139), 0, Reach(11, 120, 1100)),
        (Limit(rows=9), 0, Reach(0, 0, 0)),
        (Limit(size_bytes=1000), 0, Reach(10, 100, 1000)),
        (Limit(size_bytes=1001), 0, Reach(11, 120, 1100)),
        (Limit(rows=50, size_bytes=101), 0, Reach(2, 20, 200)),
    ],
)
def test_a_limit_reaches_so_many_entries(limit: Limit, read: int, expected: Reach) -> None:
    assert reach([Piece(10, 10, 100), Piece(5, 20, 100)], limit, read) == expected


def test_samples_are_kept_in_order_and_bounded() -> None:
    samples = Samples()
    for entry_id in (5, 1, 3, 5):
        samples.add(facts(1, entry_id))
    assert [each.entry_id for each in samples.entries] == [1, 3, 5]
    samples.forget_before((1, 4))
    assert [each.entry_id for each in samples.entries] == [3, 5]
    for entry_id in range(200):
        samples.add(facts(2, entry_id))
    samples.forget_before((1, 0))
    assert len(samples.entries) == 64


@given(
    st.lists(st.lists(st.integers(3, 12), max_size=400), min_size=1, max_size=3),
    st.integers(1, 5000),
)
def test_a_stream_makes_progress_and_exceeds_its_limit_as_far_as_batches_differ(
    ledgers: list[list[int]], rows_max: int
) -> None:
    """By the largest batch over the smallest, 12 / 3, and one entry where the limit is less than a batch."""
    stored = Stored({"t": dict(enumerate([[5], *ledgers], 1))})
    sampling = Sampling(stored)  # type: ignore[arg-type]
    place, total = EARLIEST, 0
    while (unread := stored.unread("t", place)).window.entries:
        end = sampling.admit({"t": unread}, Limit(rows_max))["t"]
        assert end > place
        rows = stored.rows("t", place, end)
        assert rows <= max(rows_max * 4, 12)
        total += rows
        place = end
    assert total == sum(map(sum, stored.topics["t"].values()))


def test_of_equal_batches_the_limit_is_kept_and_one_entry_in_a_hundred_is_looked_at() -> None:
    stored = Stored({"t": {1: [10] * 5000, 2: [10] * 5000}})
    sampling = Sampling(stored)  # type: ignore[arg-type]
    place, steps = EARLIEST, []
    while (unread := stored.unread("t", place)).window.entries:
        end = sampling.admit({"t": unread}, Limit(12_345))["t"]
        steps.append(stored.rows("t", place, end))
        place = end
    assert steps == [12_340] * 8 + [100_000 - 8 * 12_340]
    assert len(stored.looks) <= 10_000 // ENTRIES_PER_LOOK


def test_batches_that_grow_are_noticed_before_they_are_admitted() -> None:
    stored = Stored({"t": {1: [1] * 1000 + [100] * 1000}})
    end = Sampling(stored).admit({"t": stored.unread("t")}, Limit(2000))["t"]  # type: ignore[arg-type]
    assert 500 <= stored.rows("t", EARLIEST, end) <= 8000  # not the 100,000 that the first entry promises


def test_a_limit_below_a_batch_ends_inside_of_it() -> None:
    stored = Stored({"t": {1: [100, 100]}})
    sampling = Sampling(stored)  # type: ignore[arg-type]
    place, steps = EARLIEST, []
    while (unread := stored.unread("t", place)).window.entries:
        place = sampling.admit({"t": unread}, Limit(30))["t"]
        steps.append(tuple(place))
    assert steps == [
        (1, 0, 30),
        (1, 0, 60),
        (1, 0, 90),
        (1, 1, 0),
        (1, 1, 30),
        (1, 1, 60),
        (1, 1, 90),
        (1, 2, 0),
    ]
    assert stored.looks == [("t", MessageId(1, 0, 0)), ("t", MessageId(1, 1, 0))]


def test_many_partitions_share_a_limit_and_what_was_seen_of_a_few() -> None:
    stored = Stored({f"t{number}": {1: [10] * 50} for number in range(1000)})
    sampling = Sampling(stored)  # type: ignore[arg-type]
    unread = {topic: stored.unread(topic) for topic in stored.topics}
    found = sampling.admit(unread, Limit(100_000))
    assert sum(stored.rows(topic, EARLIEST, end) for topic, end in found.items()) == 100_000
    assert len(found) == 1000
    assert len(stored.looks) <= 100
    few = sampling.admit(unread, Limit(70))
    assert sum(stored.rows(topic, EARLIEST, end) for topic, end in few.items()) <= 70
    assert few


@pytest.mark.parametrize("large", [0, 7, 15])
@pytest.mark.parametrize("limit", [(2000, None), (None, 20_000)])
def test_what_small_partitions_leave_of_a_limit_goes_to_large_ones(large: int, limit: Any) -> None:
    """Wherever the large one stands among them."""
    stored = Stored({f"t{number}": {1: [10] * (5000 if number == large else 2)} for number in range(16)})
    unread = {topic: stored.unread(topic) for topic in stored.topics}
    found = Sampling(stored).admit(unread, Limit(*limit))  # type: ignore[arg-type]
    rows = {topic: stored.rows(topic, EARLIEST, end) for topic, end in found.items()}
    assert rows == {topic: 20 for topic in unread if topic != f"t{large}"} | {f"t{large}": 1700}


def test_what_a_partition_leaves_is_shared_among_the_others() -> None:
    stored = Stored({"a": {1: [10] * 500}, "b": {1: [10] * 500}, "c": {1: [10] * 4}, "d": {1: [10] * 50}})
    unread = {topic: stored.unread(topic) for topic in stored.topics}
    found = Sampling(stored).admit(unread, Limit(2000))  # type: ignore[arg-type]
    rows = {topic: stored.rows(topic, EARLIEST, end) for topic, end in found.items()}
    assert sum(rows.values()) == 2000
    assert rows == {"a": 730, "b": 730, "c": 40, "d": 500}


def test_bytes_that_the_admin_api_tells_need_no_look() -> None:
    stored = Stored({"t": {1: [1] * 100}})
    window = Window.between(EARLIEST, MessageId(1, 100, 0), [Ledger(1, 100, 10_000)])
    end = Sampling(stored).admit({"t": Unread(EARLIEST, window)}, Limit(size_bytes=950))["t"]  # type: ignore[arg-type]
    assert end == MessageId(1, 10, 0)
    assert stored.looks == []


def test_a_micro_batch_waits_for_rows_and_no_longer_than_it_may() -> None:
    waiting = Waiting(100, 30.0, now_s=0.0)
    assert not waiting.is_over(99, 29.9)
    assert waiting.is_over(99, 30.0)
    assert not waiting.is_over(99, 59.0)
    assert waiting.is_over(100, 59.0)
    assert not waiting.is_over(0, 88.0)


def test_the_lag_of_a_query_is_that_of_its_topics() -> None:
    lags = {"a": Lag(10, 100, 1000, 50), "b": Lag(1, 5, 20, 900), "c": Lag(0, 0, 0)}
    assert totals(lags) == {
        "rows": 105,
        "bytes": 1020,
        "entries": 11,
        "rowsOfWorstPartition": 100,
        "rowsOfTopics": {"a": 100, "b": 5, "c": 0},
        "ms": 900,
    }
    none = {"rows": 0, "bytes": 0, "entries": 0, "rowsOfWorstPartition": 0}
    assert totals({}) == none


@given(st.lists(st.integers(0, 5), max_size=8))
def test_entries_by_their_numbers(lengths: list[int]) -> None:
    ledgers = [Ledger(2 * number, length) for number, length in enumerate(lengths)]
    window = Window.between(EARLIEST, MessageId(2 * len(lengths), 0, 0), ledgers)
    stored = [(each.ledger_id, number) for each in ledgers for number in range(each.entries)]
    assert window.entries_at(range(len(stored))) == [window.entry(number) for number in range(len(stored))]
    assert window.entries_at(range(len(stored))) == stored
    assert window.entries_at(range(0, len(stored), 3)) == stored[::3]
    with pytest.raises(IndexError):
        window.entries_at([len(stored)])
