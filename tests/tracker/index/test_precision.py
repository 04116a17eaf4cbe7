"""How early and how late a view gives messages: strict, and with precisions of its own."""

from __future__ import annotations

import random

import numpy as np
import pytest

from geminga.position import Position
from geminga.tracker.format.bucket_format import decode_directory, encode_bucket
from geminga.tracker.format.rows import Rows, code_of
from geminga.tracker.format.stored_bucket import StoredBucket
from geminga.tracker.index import index as index_module
from geminga.tracker.index.bucket_map import BucketMap
from geminga.tracker.index.index import DelayedIndex, IndexSettings
from geminga.tracker.index.time_rules import OwnPrecision, Slack
from geminga.tracker.index.view import View
from tests.tracker.index.test_index_model import HandClock
from tests.tracker.taking import take

START_MS = 1_000_000
BOTH = pytest.mark.parametrize("exact", [False, True], ids=["memory", "buckets"])


def at_start(settings: IndexSettings) -> tuple[HandClock, DelayedIndex]:
    clock = HandClock()
    clock.ms = START_MS
    return clock, DelayedIndex(clock, settings)


def lateness_ms(clock: HandClock, views: list[View], due_ms: dict[Position, int]) -> list[list[int]]:
    """Take all there is by the time that each view says, and at no other."""
    found: list[list[int]] = [[] for _ in views]
    while any(map(len, views)):
        wakes_ms = [view.next_due_ms() if len(view) else None for view in views]
        clock.ms = min(wake_ms for wake_ms in wakes_ms if wake_ms is not None)
        for view, late_ms, wake_ms in zip(views, found, wakes_ms, strict=True):
            if wake_ms == clock.ms:
                late_ms += [clock.ms - due_ms[place] for place in take(view, 10_000)]
    return found


@BOTH
@pytest.mark.parametrize("tick_ms", [1000, 5000, 2**31 - 1])
def test_strict_is_exact_whatever_the_tick(exact: bool, tick_ms: int) -> None:
    clock, index = at_start(IndexSettings(1000, exact=exact))
    view = View(index)
    view.set_tick(tick_ms)
    draw = random.Random(1)
    due_ms = {Position(1, n): START_MS + draw.randint(1, 5000) for n in range(500)}
    for place, at_ms in due_ms.items():
        assert view.add(place, at_ms)
    [late_ms] = lateness_ms(clock, [view], due_ms)
    assert min(late_ms) == 0
    assert max(late_ms) == (0 if exact else 15)


@BOTH
def test_each_view_of_a_shared_index_has_its_own_precision(exact: bool) -> None:
    clock, index = at_start(IndexSettings(1000, exact=exact, is_shared=True))
    views = [View(index) for _ in range(4)]
    for view, precision_ms in zip(views, (None, 0, 700, 3000), strict=True):
        view.set_precision(precision_ms)
    draw = random.Random(2)
    due_ms = {Position(1, n): START_MS + draw.randint(1, 20_000) for n in range(2000)}
    for place, at_ms in due_ms.items():
        assert index.append_run(*place, (at_ms,))
    late_ms = lateness_ms(clock, views, due_ms)
    assert [len(found) for found in late_ms] == [2000] * 4
    rounded_ms = 0 if exact else 15
    for found, early_max_ms in zip(late_ms, (0, 0, 699, 2999), strict=True):
        assert -early_max_ms <= min(found) <= -early_max_ms + 20
        assert max(found) <= rounded_ms


def test_messages_of_a_time_bucket_come_together() -> None:
    clock, index = at_start(IndexSettings(1000, exact=True))
    view = View(index)
    view.set_precision(1000)
    for n in range(5000):
        view.add(Position(1, n), START_MS + 1000 + n)
    batches = []
    while (due_ms := view.next_due_ms()) is not None:
        clock.ms = due_ms
        batches.append((due_ms - START_MS, len(take(view, 10_000))))
    assert batches == [(1000 * n, 1000) for n in range(1, 6)]


def test_what_comes_to_a_bucket_that_was_drained_is_exact() -> None:
    clock, index = at_start(IndexSettings(1000, exact=True, is_shared=True))
    exact, early = View(index), View(index)
    early.set_precision(1000)
    for n in range(0, 1000, 10):
        index.append_run(1, n, (START_MS + n + 1000,))
    clock.ms += 1000
    assert len(take(early, 999)) == 100
    assert take(exact, 999) == [(1, 0)]
    index.append_run(2, 0, (START_MS + 1505,))
    assert (early.next_due_ms(), exact.next_due_ms()) == (START_MS + 1505, START_MS + 1010)
    clock.ms = START_MS + 1504
    assert take(early, 999) == []
    assert len(take(exact, 999)) == 50
    clock.ms += 1
    assert (take(exact, 999), take(early, 999)) == ([(2, 0)], [(2, 0)])
    assert (len(early), len(exact)) == (0, 49)
    clock.ms += 10_000
    assert (len(take(early, 999)), len(take(exact, 999))) == (0, 49)


def test_what_one_view_got_early_does_not_fall_behind_for_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bounded: what is beyond is given to all at its time."""
    monkeypatch.setattr(index_module, "EARLY_ROWS_MAX", 50)
    monkeypatch.setattr(index_module, "DUE_ROWS_MAX", 150)
    clock, index = at_start(IndexSettings(1000, exact=True, is_shared=True))
    exact, early = View(index), View(index)
    early.set_precision(60_000)
    clock.ms = START_MS - START_MS % 60_000 + 60_000
    early_count = 0
    for ledger_id in range(1, 6):
        for n in range(60):
            index.append_run(ledger_id, n, (clock.ms + 1000,))
        early.set_precision(60_000)  # as if the bucket had not been drained
        early_count += len(take(early, 999))
        assert take(exact, 999) == []
    assert early_count == 60
    assert not exact.due.behind.count
    clock.ms += 1000
    assert (len(take(early, 999)), len(take(exact, 999))) == (240, 300)


def test_a_precision_is_given_and_taken_away() -> None:
    clock, index = at_start(IndexSettings(1000, strict=False, exact=True))
    view = View(index)
    view.add(Position(1, 0), START_MS + 2500)
    clock.ms = START_MS + 1700
    assert view.has_due()
    view.set_precision(0)
    assert (view.has_due(), view.next_due_ms()) == (False, START_MS + 2500)
    view.set_precision(500)
    assert view.next_due_ms() == START_MS + 2500
    clock.ms = START_MS + 2500
    assert take(view, 9) == [(1, 0)]


def test_segments_are_loaded_in_time_for_the_greatest_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_ms: list[int] = []
    monkeypatch.setattr(BucketMap, "wanted", lambda _, now_ms: asked_ms.append(now_ms))
    monkeypatch.setattr(BucketMap, "next_wanted_ms", lambda _: START_MS + 900_000)
    clock, index = at_start(IndexSettings(1000, exact=True, is_shared=True))
    View(index)
    early = View(index)
    early.set_precision(600_000)
    index.wanted(clock.ms)
    assert (asked_ms, index.next_wanted_ms()) == ([START_MS + 600_000], START_MS + 300_000)
    early.set_precision(None)
    assert index.next_wanted_ms() == START_MS + 900_000


def test_limits_at_the_edges_of_a_time_bucket() -> None:
    precision = OwnPrecision(1000, Slack())
    assert [precision.limit_ms(ms) for ms in (1999, 2000, 2999)] == [1999, 2999, 2999]
    assert [precision.wake_ms(ms) for ms in (2000, 2999, 3000)] == [2000, 2000, 3000]
    precision.drained(2999)
    assert [precision.limit_ms(ms) for ms in (2500, 2999, 3000)] == [2500, 2999, 3999]
    assert [precision.wake_ms(ms) for ms in (2999, 3000)] == [2999, 3000]


@BOTH
def test_what_is_read_again_after_it_came_early_is_not_lost_to_the_others(exact: bool) -> None:
    """As when the consumers of one subscription leave and others come, before the time has come."""
    clock, index = at_start(IndexSettings(1000, exact=exact, is_shared=True))
    early, late = View(index), View(index)
    early.set_precision(3000)
    due_ms = {Position(1, n): START_MS + 4000 + n for n in range(50)}
    for place, at_ms in due_ms.items():
        assert index.append_run(*place, (at_ms,))
    clock.ms = START_MS + 2500
    assert take(early, 100) == list(due_ms)
    late.pass_positions([Position(1, 40)])
    for place, at_ms in list(due_ms.items())[30:]:
        assert early.add(place, at_ms)
    assert [len(early), len(late)] == [20, 49]
    assert take(late, 100) == []
    late_ms = lateness_ms(clock, [early, late], due_ms)
    assert [len(found) for found in late_ms] == [20, 49]
    assert -3000 < min(late_ms[0]) <= 0
    assert 0 <= min(late_ms[1]) <= max(late_ms[1]) <= (0 if exact else 15)


def test_what_is_read_again_after_the_clock_stepped_back_is_not_lost_to_the_others() -> None:
    clock, index = at_start(IndexSettings(1000, exact=True, is_shared=True))
    one = View(index)
    other = View(index, is_acknowledged=lambda position: position[1] < 10)
    due_ms = {Position(1, n): START_MS + 100 + n for n in range(50)}
    for place, at_ms in due_ms.items():
        assert index.append_run(*place, (at_ms,))
    clock.ms = START_MS + 1000
    assert take(one, 100) == list(due_ms)
    assert take(other, 10) == list(due_ms)[:10]
    clock.ms = START_MS
    for place, at_ms in due_ms.items():
        assert one.add(place, at_ms)
    assert [len(one), len(other)] == [50, 40]
    clock.ms = START_MS + 1000
    assert take(other, 100) == list(due_ms)[10:]
    assert take(one, 100) == list(due_ms)


def test_a_bucket_that_is_recovered_late_is_in_time_behind_what_came_early() -> None:
    """One view was given later messages early; then a bucket with earlier ones is found, as at a start."""
    clock, index = at_start(IndexSettings(1000, exact=True, is_shared=True))
    early, strict = View(index), View(index)
    early.set_precision(3000)
    due_ms = {Position(2, n): START_MS + 1500 + n for n in range(10)}
    for place, at_ms in due_ms.items():
        assert index.append_run(*place, (at_ms,))
    clock.ms = START_MS + 10
    assert early.has_due()
    found = {Position(1, n): START_MS + 500 + n for n in range(10)}
    codes = np.array([code_of(*place) for place in found], np.int64)
    encoded = encode_bucket(1, 1, Rows(np.array([*found.values()], np.int64), codes), 1000, 100)
    directory = decode_directory(encoded.directory)
    bucket = StoredBucket(100, directory, 1)
    index.recovered(bucket, directory.members)
    for wanted, number in index.wanted(clock.ms):
        index.segment_loaded(wanted, number, encoded.segments[number])
    assert len(take(early, 100)) == 20
    assert take(strict, 100) == []
    assert strict.next_due_ms() == START_MS + 500
    [late_ms] = lateness_ms(clock, [strict], due_ms | found)
    assert late_ms == [0] * 20
