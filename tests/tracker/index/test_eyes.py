"""What can be seen of a delayed index: histogram, pages, due times."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Generator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from pyroaring import BitMap

from geminga.position import Position
from geminga.tracker.format.bucket_format import decode_directory, decode_segment, encode_bucket
from geminga.tracker.format.rows import Rows, from_columns
from geminga.tracker.format.stored_bucket import StoredBucket
from geminga.tracker.index import eyes
from geminga.tracker.index.histogram import DueClass, Histogram
from geminga.tracker.index.index import DelayedIndex, IndexSettings
from geminga.tracker.index.part import Frozen
from geminga.tracker.index.view import View
from tests.tracker.taking import take


class HandClock:
    ms = 0

    def now_ms(self) -> int:
        return self.ms

    async def sleep_until_ms(self, due_ms: int) -> None:
        raise NotImplementedError

    def monotonic_s(self) -> float:
        raise NotImplementedError


def slices(look: Generator[int, None, Any]) -> tuple[list[int], Any]:
    """What it looked at in each slice, and what it found."""
    looked = []
    while True:
        try:
            looked.append(next(look))
        except StopIteration as end:
            return looked, end.value


def due_times_ms(view: View, places: list[tuple[int, int]]) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = slices(eyes.due_times_ms(view, places))[1]
    return found


def page(view: View, start: tuple[int, int], count_max: int) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = slices(eyes.page(view, start, count_max))[1]
    return found


def next_due_ms(view: View) -> int | None:
    due: eyes.Due = slices(eyes.due_now(view))[1]
    return due.next_ms


def drawn(
    view: View, width_ms: int, read: dict[tuple[StoredBucket, int], Rows], classes_max: int = 1000
) -> Histogram:
    drawing = Histogram(view, width_ms, classes_max)
    looked = [*drawing.look(), *drawing.count(read)]
    assert max(looked, default=0) <= 2 * eyes.SLICE_ROWS_MAX
    return drawing


def histogram(
    view: View, width_ms: int, read: dict[tuple[StoredBucket, int], Rows] | None = None
) -> list[DueClass]:
    drawing = drawn(view, width_ms, read or {})
    assert drawing.width_ms == width_ms
    return drawing.classes()


def segments_to_read(view: View, width_ms: int) -> list[tuple[StoredBucket, int]]:
    drawing = Histogram(view, width_ms, 1000)
    slices(drawing.look())  # type: ignore[arg-type]
    return drawing.to_read


EXACT = IndexSettings(tick_ms=1, strict=True, exact=True, indexes_min=4)


def test_the_histogram_counts_what_is_tracked_and_nothing_else() -> None:
    clock = HandClock()
    view = View(DelayedIndex(clock, EXACT))
    for entry_id, at_ms in enumerate([50, 150, 160, 250, 260, 270]):
        view.add(Position(1, entry_id), at_ms)
    view.pass_positions([(1, 2)])
    assert histogram(view, 100) == [DueClass(0, 1), DueClass(100, 1), DueClass(200, 3)]
    clock.ms = 155
    assert take(view, 1) == [(1, 0)]
    assert view.has_due()
    assert histogram(view, 100) == [DueClass(100, 1), DueClass(200, 3)]


def test_packed_rows_are_spread_over_the_histogram_and_none_is_missing() -> None:
    view = View(DelayedIndex(HandClock(), EXACT))
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


def test_the_width_is_doubled_until_the_classes_are_few_enough_and_no_further() -> None:
    view = View(DelayedIndex(HandClock(), EXACT))
    chance = random.Random(1)
    times_ms = [chance.randrange(1, 1_000_000) for _ in range(5000)]
    for entry_id, at_ms in enumerate(times_ms):
        view.add(Position(1, entry_id), at_ms)
    for width_ms, used_ms in ((1, 1024), (100, 1600), (1000, 1000), (3_000_000, 3_000_000)):
        drawing = drawn(view, width_ms, {})
        assert drawing.width_ms == used_ms
        counts = Counter(at_ms // used_ms * used_ms for at_ms in times_ms)
        assert drawing.classes() == [DueClass(at_ms, counts[at_ms]) for at_ms in sorted(counts)]


def test_spread_segments_fit_into_the_classes_whatever_width_is_asked_for() -> None:
    """Packed rows over a year: 300 segments, most of them not decoded."""
    year_ms = 365 * 86_400_000
    view = View(DelayedIndex(HandClock(), EXACT))
    chance = random.Random(2)
    for ledger_id in range(1, 5):
        times_ms = [chance.randrange(1, year_ms) for _ in range(50_000)]
        view.add_many(ledger_id, range(50_000), times_ms)
    for width_ms in (1, 60_000, 86_400_000):
        drawing = drawn(view, width_ms, {})
        classes = drawing.classes()
        assert len(classes) <= 1000
        assert len(classes) > 300
        assert drawing.width_ms % width_ms == 0
        assert sum(found.positions for found in classes) == 200_000
        share = 200_000 * drawing.width_ms / year_ms
        assert all(abs(found.positions - share) < share / 2 + 40 for found in classes[1:-1])


def test_a_histogram_of_many_buckets_over_a_year_counts_everything_once() -> None:
    """Whatever width is asked for: the work is that of the buckets' columns, and of 1,000 classes each."""
    frozen: list[Frozen] = []
    year_ms, rows = 365 * 86_400_000, 200
    settings = IndexSettings(tick_ms=1, strict=True, exact=True, indexes_min=rows)
    index = DelayedIndex(HandClock(), settings, frozen.append)
    view, chance = View(index), random.Random(3)
    for ledger_id in range(1, 101):
        view.add_many(ledger_id, range(rows), [chance.randrange(1, year_ms) for _ in range(rows)])
        index.feed.freeze_all()
        for piece in frozen:
            encoded = encode_bucket(ledger_id, ledger_id, piece.rows, 300_000, 5000)
            index.sealed(piece, StoredBucket(1000 + ledger_id, decode_directory(encoded.directory), 1))
        frozen.clear()
    looked = []
    for width_ms in (1, 60_000, 86_400_000):
        drawing = Histogram(view, width_ms, 1000)
        looked.append(sum([*drawing.look(), *drawing.count({})]))
        assert sum(found.positions for found in drawing.classes()) == 100 * rows
        assert len(drawing.classes()) <= 1000
    assert max(looked) <= 100 * (1000 + 2 * eyes.COLUMNS_COST + rows)


def test_overdue_is_told_from_not_yet_due_wherever_the_rows_are() -> None:
    """In the growing part (as they came and narrowed), a run, a pack, a bucket whose segments are not loaded,
    and brought out; acknowledged ones are not counted.
    """
    frozen: list[Frozen] = []
    clock = HandClock()
    settings = IndexSettings(tick_ms=1, strict=True, exact=True, indexes_min=10_000)
    index = DelayedIndex(clock, settings, frozen.append)
    view, chance = View(index), random.Random(4)
    times_ms: dict[tuple[int, int], int] = {}

    def add(ledger_id: int, count: int, first_ms: int, last_ms: int) -> None:
        drawn_ms = [chance.randrange(first_ms, last_ms) for _ in range(count)]
        view.add_many(ledger_id, range(count), drawn_ms)
        times_ms.update({(ledger_id, n): at_ms for n, at_ms in enumerate(drawn_ms)})

    def off_by() -> int:
        return abs(eyes.overdue(view) - sum(at_ms <= clock.ms for at_ms in times_ms.values()))

    add(1, 300, 1000, 2000)
    assert (eyes.overdue(view), off_by()) == (0, 0)
    clock.ms = 1500
    assert (eyes.overdue(view) > 100, off_by()) == (True, 0), "as they came"
    assert view.has_due()
    assert off_by() == 0, "brought out"
    for position in take(view, 40):
        del times_ms[position]
    assert off_by() == 0
    gone = [position for position in times_ms if position[1] % 3 == 0]
    view.pass_positions(gone)
    for position in gone:
        del times_ms[position]
    assert off_by() == 0
    add(2, 20_000, 1600, 5000)
    index.feed.freeze_all()
    for piece in frozen:
        encoded = encode_bucket(piece.start_ledger, piece.end_ledger, piece.rows, 3000, 500)
        index.sealed(piece, StoredBucket(1002, decode_directory(encoded.directory), 1))
    add(3, 9000, 1600, 9000)
    for clock.ms in (1590, 2000, 3333, 4999, 9000):
        assert off_by() <= 0.01 * len(times_ms)
    assert eyes.overdue(view) == len(times_ms) == len(view)


@pytest.mark.parametrize("is_shared", [False, True])
def test_what_was_delivered_before_a_start_is_not_overdue(is_shared: bool) -> None:
    """Its rows are in the bucket still. Loaded, they are passed over; before, as many as can be are due."""
    clock = HandClock()
    index = DelayedIndex(clock, replace(EXACT, is_shared=is_shared))
    chance = random.Random(5)
    times_ms = [chance.randrange(1, 10_000) for _ in range(5000)]
    made = from_columns(times_ms, [1 << 32 | n for n in range(5000)])
    encoded = encode_bucket(1, 1, made.sorted(), 1000, 50)
    stored = StoredBucket(1002, decode_directory(encoded.directory), 1)
    clock.ms = 4000
    gone = BitMap([n for n, at_ms in enumerate(times_ms) if at_ms <= 3000 or 7000 < at_ms <= 7100])
    view = View(index, acknowledged_in=lambda ledger_id, first, end: gone & BitMap(range(first, end)))
    index.recovered(stored, {1: BitMap(range(5000)) - (BitMap() if is_shared else gone)})
    left = [at_ms for n, at_ms in enumerate(times_ms) if n not in gone]
    true = sum(at_ms <= 4000 for at_ms in left)
    assert abs(eyes.overdue(view) - true) < 80, "but for those of later times that are gone"

    def load() -> None:
        for _, number in index.wanted(clock.ms):
            index.segment_loaded(stored, number, encoded.segments[number])

    loads = 0
    while not view.has_due():
        assert view.awaits_due()
        load()
        loads += 1
    assert loads >= 2
    load()
    assert abs(eyes.overdue(view) - true) < 20
    assert slices(eyes.due_now(view))[1].positions == eyes.overdue(view)
    while index.wanted(clock.ms):
        take(view, 10_000)
        load()
    take(view, 10_000)
    assert (eyes.overdue(view), len(view)) == (0, len(left) - true)


def test_what_another_view_was_given_early_is_not_overdue() -> None:
    clock = HandClock()
    index = DelayedIndex(clock, replace(EXACT, is_shared=True))
    early, exact = View(index), View(index)
    early.set_precision(1000)
    for entry_id in range(10):
        exact.add(Position(1, entry_id), 1001 + 100 * entry_id)
    clock.ms = 1250
    assert len(take(early, 100)) == 10
    assert (eyes.overdue(early), eyes.overdue(exact), len(exact)) == (0, 3, 10)


def test_no_look_at_many_rows_is_longer_than_a_slice() -> None:
    view = View(DelayedIndex(HandClock(), IndexSettings(exact=True, indexes_min=200_000)))
    for ledger_id in range(1, 4):
        view.add_many(ledger_id, range(60_000), [10**6 + n * 7919 % 99_991 for n in range(60_000)])
    drawing = Histogram(view, 1000, 1000)
    for looked in (
        [*drawing.look(), *drawing.count({})],
        slices(eyes.due_now(view))[0],
        slices(eyes.due_times_ms(view, [(2, 59_999), (3, 7)]))[0],
        slices(eyes.page(view, (1, 0), 100_000))[0],
    ):
        assert max(looked, default=0) <= 2 * eyes.SLICE_ROWS_MAX
    assert sum(found.positions for found in drawing.classes()) == 180_000


def test_pages_go_on_where_the_last_one_ended() -> None:
    clock = HandClock()
    view = View(DelayedIndex(clock, EXACT))
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
    view = View(index)
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


def test_only_a_time_that_is_earlier_than_all_others_wakes_the_views() -> None:
    """100,000 changes of times that were later than others woke a dispatcher 100,000 times."""
    woken: list[str] = []
    index = DelayedIndex(HandClock(), replace(EXACT, is_shared=True))
    views = [View(index, wake=partial(woken.append, name)) for name in ("first", "second")]
    for entry_id in range(3):
        views[0].add(Position(1, entry_id), 1000 + entry_id)
    woken.clear()
    for entry_id, due_ms in ((1, 5000), (2, 2000), (0, 3000)):
        assert index.reschedule((1, entry_id), due_ms)
    assert not woken
    assert index.reschedule((1, 1), 900)
    assert woken == ["first", "second"]
    assert [view.next_due_ms() for view in views] == [900, 900]


def test_one_message_far_in_the_future_takes_no_others_of_its_segment_along() -> None:
    frozen: list[Frozen] = []
    index = DelayedIndex(HandClock(), replace(EXACT, indexes_min=100), frozen.append)
    view = View(index)
    far_ms = 10**14
    for entry_id in range(9):
        view.add(Position(1, entry_id), 10_000_000 + 1000 * entry_id)
    view.add(Position(1, 9), far_ms)
    index.feed.freeze_all()
    view.add(Position(2, 0), 1)
    [piece] = frozen
    encoded = encode_bucket(1, 1, piece.rows, 300_000, 5000)
    stored = StoredBucket(77, decode_directory(encoded.directory), 1)
    index.sealed(piece, stored)
    assert view.contains((1, 5))
    assert due_times_ms(view, [(1, 5)]) == {}
    assert segments_to_read(view, 1000) == [(stored, 0)]
    assert sum(found.positions for found in drawn(view, 1000, {}).classes()) == len(view) == 11
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
    view = View(index)
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
