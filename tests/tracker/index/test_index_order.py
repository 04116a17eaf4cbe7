"""Many rows in many sources come out in the order of time, then ledger, then entry, in any portions."""

from __future__ import annotations

import numpy as np
import pytest
from pyroaring import BitMap

from geminga.position import Position
from geminga.tracker.format.bucket_format import decode_directory, encode_bucket
from geminga.tracker.format.rows import Rows, from_columns, order_of
from geminga.tracker.format.stored_bucket import StoredBucket
from geminga.tracker.index.due_rows import codes_of, members_of
from geminga.tracker.index.index import DelayedIndex, IndexSettings
from geminga.tracker.index.part import Frozen
from geminga.tracker.index.sources import Queue, Run
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


def expected(times: np.ndarray[tuple[int], np.dtype[np.int64]], width_ms: int) -> list[tuple[int, int]]:
    kept = times // width_ms
    order = np.lexsort((np.arange(len(times)), kept))
    return [(1 + n // 50_000, n % 50_000) for n in order.tolist()]


def fill(view: View, times: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    for first in range(0, len(times), 100):
        ledger_id, entry_id = 1 + first // 50_000, first % 50_000
        ids = list(range(entry_id, entry_id + 100))
        assert not view.add_many(ledger_id, ids, times[first : first + 100].tolist())


@pytest.mark.parametrize(("tick_ms", "span_ms"), [(1, 3000), (1, 10_000_000), (1024, 100_000), (1024, 500)])
def test_overlapping_packs_and_a_column_drain_in_order(tick_ms: int, span_ms: int) -> None:
    clock = HandClock()
    index = DelayedIndex(clock, IndexSettings(tick_ms, strict=False))
    view = View(index)
    times = np.random.default_rng(span_ms).integers(5000, 5000 + span_ms, size=230_000)
    fill(view, times)
    clock.ms = 10**9
    in_order, drained = expected(times, tick_ms), 0
    while taken := take(view, 997):
        assert taken == sorted(in_order[drained : drained + 997])
        drained += len(taken)
    assert drained == len(in_order)


def test_sealed_buckets_drain_in_order_while_their_segments_are_loaded() -> None:
    clock = HandClock()
    frozen: list[Frozen] = []
    segments: dict[StoredBucket, list[bytes]] = {}
    index = DelayedIndex(clock, IndexSettings(tick_ms=1, strict=True, exact=True), frozen.append)
    view = View(index)
    times = np.random.default_rng(1).integers(100_000, 400_000, size=170_000)
    fill(view, times)
    assert [(f.start_ledger, f.end_ledger) for f in frozen] == [(1, 1), (2, 2), (3, 3)]
    for number, piece in enumerate(frozen):
        encoded = encode_bucket(piece.start_ledger, piece.end_ledger, piece.rows, 300_000, 5000)
        stored = StoredBucket(100 + number, decode_directory(encoded.directory), 0)
        segments[stored] = encoded.segments
        index.sealed(piece, stored)
    in_order, drained = expected(times, 1), 0
    for now_ms in range(99_000, 401_000, 1000):
        clock.ms = now_ms
        while wanted := index.wanted(now_ms):
            for stored, number in wanted:
                index.segment_loaded(stored, number, segments[stored][number])
        while taken := take(view, 500):
            assert all(times[(ledger_id - 1) * 50_000 + entry_id] <= now_ms for ledger_id, entry_id in taken)
            assert taken == sorted(in_order[drained : drained + len(taken)])
            drained += len(taken)
    assert drained == len(in_order)
    assert len(view) == 0
    assert set(index.buckets.released()) == set(segments)


def test_a_view_that_lags_keeps_what_is_due_as_bitmaps() -> None:
    clock = HandClock()
    index = DelayedIndex(clock, IndexSettings(tick_ms=1, is_shared=True))
    quick, slow = View(index), View(index)
    count = 600_000
    for n in range(count):
        index.append_run(1 + n // 50_000, n % 50_000, (10 + n % 7,))
    slow.pass_positions([(1, 0), (3, 5)])
    clock.ms = 1000
    while take(quick, 5000):
        pass
    assert (len(quick), len(slow)) == (0, count - 2)
    assert slow.due.behind.count > count // 4, "the oldest batches are gone"
    quick_alone = index.memory_bytes()
    assert quick_alone < 6 * 2**20, "and what is kept of them is small"
    came: set[tuple[int, int]] = set()
    taken_count = 0
    while taken := take(slow, 5000):
        came.update(taken)
        taken_count += len(taken)
    assert taken_count == len(came) == count - 2
    assert came.isdisjoint({(1, 0), (3, 5)})


def test_positions_may_be_huge() -> None:
    clock = HandClock()
    view = View(DelayedIndex(clock, IndexSettings(tick_ms=1)))
    places = [(2**31 - 1, 2**32 - 2), (2**31 - 1, 0), (0, 2**31)]
    for place in places:
        assert view.add(Position(*place), 2**63 - 1)
    assert len(view) == 3
    view.pass_positions([places[1]])
    assert (len(view), view.contains(places[0]), view.contains(places[1])) == (2, True, False)
    clock.ms = 2**62
    assert list(take(view, 9)) == [places[2], places[0]]


@pytest.mark.parametrize("opened_first", [True, False])
def test_a_view_of_recovered_buckets_asks_once_for_each_ledger(opened_first: bool) -> None:
    index = DelayedIndex(HandClock(), IndexSettings(tick_ms=1, strict=True, exact=True, is_shared=True))
    rows = Rows(
        np.arange(900, dtype=np.int64) + 5000, (np.arange(900) // 300 + 1 << 32) + np.arange(900) % 300
    )
    encoded = encode_bucket(1, 3, rows, 300_000, 5000)
    stored = StoredBucket(7, decode_directory(encoded.directory), 0)
    asked = []

    def acknowledged_in(ledger_id: int, first: int, stop: int) -> BitMap | None:
        asked.append((ledger_id, first, stop))
        return BitMap([200, 250, 299, 300]) & BitMap(range(first, stop)) if ledger_id == 2 else None

    def open_view() -> View:
        view = View(index, acknowledged_in=acknowledged_in)
        view.mark_delete_moved((2, 99))
        return view

    def recover() -> None:
        index.recovered(stored, {n: BitMap(range(300)) for n in (1, 2, 3)})

    if opened_first:
        view = open_view()
        recover()
    else:
        recover()
        view = open_view()
    assert len(view) == 900 - 400 - 3
    assert not view.contains((1, 299))
    assert not view.contains((2, 99))
    assert [e for e in range(95, 300) if not view.contains((2, e))] == [*range(95, 100), 200, 250, 299]
    assert view.contained(3, 0, 299) == 300
    assert len(asked) <= 3
    assert asked[-1] == (3, 0, 300)


@pytest.mark.parametrize("bits", [3, 15, 16, 20, 24, 31, 33, 52, 62])
def test_numbers_are_ordered_stably_whatever_their_width(bits: int) -> None:
    numbers = np.random.default_rng(bits).integers(1 << bits, size=5000)
    numbers[::7] = numbers[0]
    numbers[3] = (1 << bits) - 1
    assert order_of(numbers).tolist() == sorted(range(5000), key=numbers.tolist().__getitem__)


def test_a_position_made_due_earlier_overtakes_what_a_slower_view_has_yet_to_read() -> None:
    clock = HandClock()
    clock.ms = 100_000
    index = DelayedIndex(clock, IndexSettings(tick_ms=1000, strict=False, is_shared=True))
    quick, slow = View(index), View(index)
    for entry_id in range(8):
        assert index.append_run(4, entry_id, (101_001,))
    assert index.reschedule((4, 0), 100_352)
    assert take(quick, 9) == [(4, 0)]
    assert index.reschedule((4, 1), 100_000)
    assert quick.has_due()
    assert slow.next_due_ms() == 99_840, "of (4, 1), which the quick view has had brought out"
    assert take(slow, 1) == [(4, 1)]
    assert take(slow, 9) == [(4, 0)]
    assert take(quick, 9) == [(4, 1)]


@pytest.mark.parametrize("views", [1, 2])
def test_what_all_views_have_read_does_not_wait_again(views: int) -> None:
    """When the clock is set back: counted, kept and sealed, it would wait for nobody."""
    clock = HandClock()
    index = DelayedIndex(clock, IndexSettings(tick_ms=1, strict=True, exact=True, is_shared=views > 1))
    readers = [View(index) for _ in range(views)]
    for entry_id in range(10):
        readers[0].add(Position(1, entry_id), 5000 + entry_id)
    clock.ms = 6000
    # They stand in one batch: the first has read seven rows of it, the second, slower one four.
    taken = [take(view, 7 - 3 * number) for number, view in enumerate(readers)]
    read_by_all = min(map(len, taken))
    clock.ms = 4000
    index.take_back(4000)
    assert len(index) == 10 - read_by_all
    assert index.feed.shared.rows() == 10 - read_by_all
    assert [len(view) for view in readers] == [10 - len(places) for places in taken]
    clock.ms = 6000
    for view, places in zip(readers, taken, strict=True):
        assert [*places, *take(view, 20)] == [(1, entry_id) for entry_id in range(10)]
    assert len(index) == 0


def test_what_a_subscription_without_a_view_still_needs_stays_in_a_shared_index() -> None:
    """As after a start, when consumers of one that has acknowledged everything come first."""
    clock = HandClock()
    lagging = Position(1, 4)
    settings = IndexSettings(tick_ms=1, is_shared=True)
    index = DelayedIndex(clock, settings, passed_by_all=lambda: lagging)
    quick = View(index)
    for entry_id in range(10):
        index.append_run(1, entry_id, (50_000,))
    quick.mark_delete_moved((1, 9))
    assert (len(quick), len(index)) == (0, 5)
    slow = View(index)
    slow.mark_delete_moved(lagging)
    assert len(slow) == 5
    lagging = Position(1, 9)
    slow.mark_delete_moved(lagging)
    assert (len(slow), len(index)) == (0, 5), "trimmed with the next ledger"
    quick.mark_delete_moved((2, 0))
    slow.mark_delete_moved((2, 0))
    assert len(index) == 0


def test_what_was_cut_off_and_has_no_rows_left_is_not_sealed() -> None:
    """It came to be due, then the clock stepped back: its row is in the part that stays in memory."""
    clock = HandClock()
    clock.ms = 1000
    frozen: list[Frozen] = []
    settings = IndexSettings(tick_ms=1, strict=True, exact=True)
    index = DelayedIndex(clock, settings, frozen.append)
    view = View(index)
    view.add(Position(1, 0), 2000)
    clock.ms = 2000
    assert view.has_due()
    clock.ms = 1500
    view.add(Position(2, 0), 1600)
    clock.ms = 1600
    assert take(view, 9) == [(2, 0)]
    index.feed.freeze_all()
    assert not frozen
    assert not index.buckets.frozen()
    assert not index.buckets.covers(1 << 32, 2 << 32)
    clock.ms = 2000
    assert take(view, 9) == [(1, 0)]


@pytest.mark.parametrize("entries", [1, 2, 300, 4096, 4097, 40_000])
@pytest.mark.parametrize("highest", [40_000, 65_535, 200_000])
@pytest.mark.parametrize("ledgers", [1, 3])
def test_codes_in_any_order_become_bitmaps(entries: int, highest: int, ledgers: int) -> None:
    draw = np.random.default_rng(entries)
    codes = (draw.integers(5, 5 + ledgers, size=entries) << 32) + draw.integers(highest + 1, size=entries)
    codes[-1] = (5 << 32) + highest
    codes = np.concatenate((codes, codes[:7]))
    expected: dict[int, set[int]] = {}
    for code in codes.tolist():
        expected.setdefault(code >> 32, set()).add(code & 0xFFFFFFFF)
    found = members_of(codes)
    assert list(found) == sorted(expected)
    assert {ledger_id: set(entry_ids) for ledger_id, entry_ids in found.items()} == expected
    assert codes_of(found).tolist() == sorted(set(codes.tolist()))


def test_a_look_at_what_is_due_next_takes_nothing() -> None:
    clock = HandClock()
    index = DelayedIndex(clock, IndexSettings(1, strict=True, indexes_min=5000))
    view = View(index)
    times = np.random.default_rng(7).integers(5000, 5_000_000, size=40_000)
    fill(view, times)
    in_order = expected(times, 1)
    clock.ms = int(np.sort(times)[999])
    drained = len(take(view, 600))
    # What is due and not taken goes first, and then what waits.
    assert view.peek(300) == sorted(in_order[drained : drained + 300])
    ahead = view.peek(2000)
    assert ahead == sorted(ahead)
    assert len(ahead) == 2000
    assert set(in_order[drained:1000]) < set(ahead) <= set(in_order[drained : drained + 2500])
    clock.ms = 10**9
    while taken := take(view, 997):
        assert taken == sorted(in_order[drained : drained + 997])
        drained += len(taken)
    assert drained == len(in_order)
    assert view.peek(10) == []


def test_a_look_at_few_rows_asks_few_sources() -> None:
    asked = []

    class Asked(Run):
        def peek(self, count_max: int) -> Rows:
            asked.append(self)
            return super().peek(count_max)

    queue = Queue()
    for number in range(200):
        queue.push(Asked(from_columns([1000 - number], [number]).sorted()))
    assert queue.peek(1).codes.tolist() == [199]
    assert len(asked) <= 3
    assert set(queue.peek(40).codes.tolist()) <= set(range(200))
    assert len(asked) <= 3 + 64
