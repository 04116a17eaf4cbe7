"""Lateness by classes: however it is counted, as if each message were looked at by itself."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from geminga.position import Position
from geminga.tracker.index.due_rows import LATENESS_BOUNDS_MS, Lateness
from geminga.tracker.index.index import DelayedIndex, IndexSettings
from geminga.tracker.index.view import GIVEN_COLUMNS_MAX, View
from tests.tracker.bucket_world import NOW_MS, HandClock


def one_by_one(late_ms: list[int]) -> tuple[list[int], int, int]:
    """Counts, early ones, sum."""
    bounds = [-1, *LATENESS_BOUNDS_MS, 10**15]
    counts = [sum(low < ms <= high for ms in late_ms) for low, high in itertools.pairwise(bounds)]
    return counts, sum(ms < 0 for ms in late_ms), sum(ms for ms in late_ms if ms >= 0)


@pytest.mark.parametrize("count", [1, 7, 16, 17, 400])
def test_as_if_each_was_counted(count: int) -> None:
    chance = random.Random(count)
    near = [bound + more for bound in LATENESS_BOUNDS_MS for more in (-1, 0, 1)]
    late_ms = [chance.choice([*near, 0, -1, -600, 70_000, chance.randrange(3000)]) for _ in range(count)]
    lateness = Lateness()
    lateness.note(np.array(sorted(NOW_MS - ms for ms in late_ms), np.int64), NOW_MS)
    assert (lateness.counts, lateness.early, lateness.total_ms) == one_by_one(late_ms)
    lateness.note(np.array([NOW_MS], np.int64), NOW_MS + 5)
    assert sum(lateness.counts) + lateness.early == count + 1


def opened(**settings: object) -> tuple[View, HandClock]:
    clock = HandClock()
    index = DelayedIndex(clock, IndexSettings(**settings))  # type: ignore[arg-type]
    return View(index), clock


def test_it_counts_when_it_is_given_out_not_when_it_is_taken() -> None:
    view, clock = opened(strict=True, exact=True)
    for entry_id in range(30):
        view.add(Position(1, entry_id), NOW_MS + 1000 + entry_id)
    clock.ms += 1029
    assert len(view.take_due(10)) == 10
    clock.ms += 100
    assert len(view.take_due(100)) == 20
    assert sum(view.lateness().counts) == 0
    clock.ms += 300
    view.given_out()
    found = view.lateness()
    counts, early, total_ms = one_by_one([400 + n for n in range(30)])
    assert (found.counts, found.early, found.total_ms) == (tuple(counts), early, total_ms)
    view.given_out()
    assert view.lateness() == found, "once"


def test_what_is_dropped_is_not_late() -> None:
    view, clock = opened(strict=True, exact=True)
    for entry_id in range(30):
        view.add(Position(1, entry_id), NOW_MS + 10)
    clock.ms += 10
    assert view.has_due()
    view.pass_positions([(1, entry_id) for entry_id in range(0, 30, 2)])
    assert len(view.take_due(100)) == 15
    view.given_out()
    assert view.lateness().counts[0] == 15


@pytest.mark.parametrize(("strict", "low", "high"), [(True, -256, 255), (False, -255, 256)])
def test_times_that_are_kept_less_exactly_count_as_their_middle(strict: bool, low: int, high: int) -> None:
    view, clock = opened(strict=strict, tick_ms=1000)
    late_ms = []
    for entry_id in range(500):
        due_ms = NOW_MS + 5000 + 7 * entry_id
        view.add(Position(1, entry_id), due_ms)
        late_ms.append(NOW_MS + 20_000 - due_ms)
    clock.ms += 20_000
    assert len(view.take_due(1000)) == 500
    view.given_out()
    assert low <= view.lateness().total_ms / 500 - sum(late_ms) / 500 <= high
    assert abs(view.lateness().total_ms - sum(late_ms)) < 500 * 30, "on average it is right"


def test_what_nothing_is_heard_of_is_counted_before_it_grows() -> None:
    view, clock = opened(strict=True, exact=True)
    for entry_id in range(GIVEN_COLUMNS_MAX + 3):
        view.add(Position(1, entry_id), clock.ms + 1)
        clock.ms += 2
        assert len(view.take_due(1)) == 1
    assert sum(view.lateness().counts) > GIVEN_COLUMNS_MAX
    assert len(view.due.given_ms) <= GIVEN_COLUMNS_MAX


def test_reads_of_following_rows_are_counted_together() -> None:
    view, clock = opened(strict=True, exact=True)
    for entry_id in range(500):
        view.add(Position(1, entry_id), clock.ms + 1)
    clock.ms += 8
    for _ in range(4):
        view.take_due(100)
    assert not view.due.given_ms
    view.given_out()
    clock.ms += 10
    assert len(view.take_due(200)) == 100
    view.given_out()
    assert (view.lateness().counts[3], view.lateness().counts[4]) == (400, 100)
