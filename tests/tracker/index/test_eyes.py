"""What can be seen of a delayed index: histogram, pages, due times."""

from __future__ import annotations

from collections import Counter

from geminga.position import Position
from geminga.tracker.format.bucket_format import decode_directory, decode_segment, encode_bucket
from geminga.tracker.format.stored_bucket import StoredBucket
from geminga.tracker.index.eyes import (
    DueClass,
    due_times_ms,
    histogram,
    next_due_ms,
    page,
    segments_to_read,
)
from geminga.tracker.index.frozen import Frozen
from geminga.tracker.index.index import DelayedIndex, IndexSettings
from tests.tracker.taking import take


class HandClock:
    ms = 0

    def now_ms(self) -> int:
        return self.ms

    async def sleep_until_ms(self, due_ms: int) -> None:
        raise NotImplementedError

    def monotonic_s(self) -> float:
        raise NotImplementedError


EXACT = IndexSettings(tick_ms=1, strict=True, exact=True, indexes_min=4)


def test_the_histogram_counts_what_is_tracked_and_nothing_else() -> None:
    clock = HandClock()
    view = DelayedIndex(clock, EXACT).open_view()
    for entry_id, at_ms in enumerate([50, 150, 160, 250, 260, 270]):
        view.add(Position(1, entry_id), at_ms)
    view.pass_positions([(1, 2)])
    assert histogram(view, 100) == [DueClass(0, 1), DueClass(100, 1), DueClass(200, 3)]
    clock.ms = 155
    assert take(view, 1) == [(1, 0)]
    assert view.has_due()
    assert histogram(view, 100) == [DueClass(100, 1), DueClass(200, 3)]


def test_packed_rows_are_spread_over_the_histogram_and_none_is_missing() -> None:
    view = DelayedIndex(HandClock(), EXACT).open_view()
    for entry_id in range(50_000):
        view.add(Position(1, entry_id), 1 + entry_id * 7919 % 99_999)
    exact = Counter((1 + entry_id * 7919 % 99_999) // 5000 * 5000 for entry_id in range(50_000))
    assert histogram(view, 5000) == [DueClass(at_ms, exact[at_ms]) for at_ms in sorted(exact)], "decoded"
    for entry_id in range(50_000, 200_000):
        view.add(Position(1, entry_id), 1 + entry_id * 7919 % 99_999)
    counts = histogram(view, 5000)
    assert sum(found.positions for found in counts) == 200_000
    assert [found.start_ms for found in counts] == list(range(0, 100_000, 5000))
    assert all(abs(found.positions - 10_000) < 120 for found in counts)
    assert any(found.is_estimated for found in counts)
    assert histogram(view, 200_000) == [DueClass(0, 200_000)], "all of them for certain"
    view.pass_positions([(1, 0)])
    assert histogram(view, 200_000) == [DueClass(0, 199_999, is_estimated=True)]


def test_pages_go_on_where_the_last_one_ended() -> None:
    clock = HandClock()
    view = DelayedIndex(clock, EXACT).open_view()
    places = [(1, 3), (1, 9), (2, 0), (4, 7), (4, 8)]
    for ledger_id, entry_id in places:
        view.add(Position(ledger_id, entry_id), 100 * ledger_id + entry_id)
    clock.ms = 103
    assert view.has_due()
    assert page(view, (0, 0), 3) == places[:3]
    assert page(view, (2, 1), 3) == places[3:]
    assert page(view, (4, 8), 3) == [(4, 8)]
    assert due_times_ms(view, [*places, (9, 9)]) == {p: 100 * p[0] + p[1] for p in places}


def test_a_position_is_held_until_it_is_due_and_knows_its_new_time() -> None:
    clock = HandClock()
    index = DelayedIndex(clock, EXACT)
    view = index.open_view()
    for entry_id in range(3):
        view.add(Position(1, entry_id), 100 + entry_id)
    assert due_times_ms(view, [(1, 1)]) == {(1, 1): 101}
    assert index.reschedule((1, 1), 500)
    assert due_times_ms(view, [(1, 1)]) == {(1, 1): 500}
    clock.ms = 100
    assert view.has_due()
    assert view.due.contains(1, 0)
    assert not view.due.contains(1, 1)
    assert due_times_ms(view, [(1, 0), (1, 7)]) == {(1, 0): 100}
    assert not view.contains((1, 7))


def test_one_message_far_in_the_future_takes_no_others_of_its_segment_along() -> None:
    frozen: list[Frozen] = []
    index = DelayedIndex(HandClock(), EXACT, frozen.append)
    view = index.open_view()
    far_ms = 10**14
    for entry_id in range(9):
        view.add(Position(1, entry_id), 10_000_000 + 1000 * entry_id)
    view.add(Position(1, 9), far_ms)
    view.add(Position(2, 0), 1)
    [piece] = frozen
    encoded = encode_bucket(1, 1, piece.rows, 300_000, 5000)
    stored = StoredBucket(77, decode_directory(encoded.directory), 1)
    index.sealed(piece, stored)
    assert view.contains((1, 5))
    assert due_times_ms(view, [(1, 5)]) == {}
    assert segments_to_read(view, 1000) == [(stored, 0)]
    assert sum(found.positions for found in histogram(view, 1000)) == len(view) == 11
    read = {(stored, 0): decode_segment(encoded.segments[0])}
    near = [DueClass(10_000_000 + 1000 * n, 1) for n in range(9)]
    assert histogram(view, 1000, read) == [DueClass(0, 1), *near, DueClass(far_ms, 1)]
    assert index.reschedule((1, 3), 20_000_000)
    assert index.reschedule((1, 3), 30_000_000)
    del near[3]
    assert histogram(view, 1000, read) == [
        DueClass(0, 1),
        *near,
        DueClass(30_000_000, 1),
        DueClass(far_ms, 1),
    ]
    assert next_due_ms(view) == 1


def test_the_next_due_time_is_that_of_one_that_waits_until_then() -> None:
    index = DelayedIndex(HandClock(), EXACT)
    view = index.open_view()
    for entry_id in range(3):
        view.add(Position(1, entry_id), 100 + entry_id)
    assert next_due_ms(view) == 100
    assert index.reschedule((1, 0), 50)
    assert next_due_ms(view) == 50
    assert index.reschedule((1, 0), 500)
    assert next_due_ms(view) == 101
    view.pass_positions([(1, 1), (1, 2)])
    assert next_due_ms(view) == 500
    assert histogram(view, 100) == [DueClass(500, 1)]
    view.pass_positions([(1, 0)])
    assert next_due_ms(view) is None
