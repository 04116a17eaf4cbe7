"""What an index keeps of what has left it: bounded, and counted down as it goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from geminga.position import Position
from geminga.tracker.index import index as index_module
from geminga.tracker.index.index import DelayedIndex, IndexSettings
from geminga.tracker.index.view import View
from tests.tracker.taking import take

FAR_MS = 1_000_000


class HandClock:
    ms = 0

    def now_ms(self) -> int:
        return self.ms

    async def sleep_until_ms(self, due_ms: int) -> None:
        raise NotImplementedError

    def monotonic_s(self) -> float:
        raise NotImplementedError


# -- changed due times ---------------------------------------------------------------------------------


def deliver(clock: HandClock, index: DelayedIndex, view: View) -> None:
    clock.ms = 2
    assert take(view, 9) == [(1, 0), (1, 1)]


def cancel(clock: HandClock, index: DelayedIndex, view: View) -> None:
    assert index.cancel([(1, 0), (1, 1)]) == 2


def acknowledge(clock: HandClock, index: DelayedIndex, view: View) -> None:
    view.pass_positions([(1, 0), (1, 1)])
    assert len(view) == 8


@pytest.mark.parametrize("leave", [deliver, cancel, acknowledge])
def test_a_changed_time_is_forgotten_when_its_message_no_longer_waits(
    monkeypatch: pytest.MonkeyPatch, leave: Callable[[HandClock, DelayedIndex, View], None]
) -> None:
    """Although others still wait: there is room for as many changes as before."""
    monkeypatch.setattr(index_module, "OVERRIDES_MAX", 2)
    clock = HandClock()
    index = DelayedIndex(clock, IndexSettings(tick_ms=1))
    view = View(index)
    for entry_id in range(10):
        assert view.add(Position(1, entry_id), FAR_MS)
    assert index.reschedule((1, 0), 1)
    assert index.reschedule((1, 1), 2)
    assert not index.reschedule((1, 2), 3), "as many as there may be"
    leave(clock, index, view)
    assert index.reschedule((1, 2), 5)
    assert index.reschedule((1, 3), 5)
    assert not index.reschedule((1, 4), 5)
    clock.ms = 5
    assert take(view, 9) == [(1, 2), (1, 3)]


class Looks(dict[int, int]):
    """Counts the keys that are looked at one after the other."""

    count = 0

    def __iter__(self) -> Iterator[int]:
        for code in super().__iter__():
            self.count += 1
            yield code


def test_the_cost_of_what_is_due_does_not_grow_with_the_changed_times() -> None:
    clock = HandClock()
    index = DelayedIndex(clock, IndexSettings(tick_ms=1))
    view = View(index)
    for entry_id in range(1000):
        assert view.add(Position(1, entry_id), FAR_MS if entry_id < 900 else 10)
    for entry_id in range(900):
        assert index.reschedule((1, entry_id), FAR_MS + 1)
    for entry_id in range(50):
        assert index.reschedule((1, entry_id), 1)
    index.overrides = looks = Looks(index.overrides)
    clock.ms = 1
    assert take(view, 1000) == [(1, entry_id) for entry_id in range(50)]
    assert len(index.overrides) == 850
    clock.ms = 10
    assert take(view, 1000) == [(1, entry_id) for entry_id in range(900, 1000)]
    assert (len(index.overrides), looks.count) == (850, 0)


# -- what is due and unread ----------------------------------------------------------------------------


class TwoViews:
    """A quick and a slow view of one index that keeps at most ten due rows in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(index_module, "DUE_ROWS_MAX", 10)
        self.clock = HandClock()
        self.index = DelayedIndex(self.clock, IndexSettings(tick_ms=1, is_shared=True))
        self.quick, self.slow = View(self.index), View(self.index)
        self.ledger_id = 1

    def append(self, times_ms: list[int]) -> list[Position]:
        """To a ledger of their own; they are returned in the order of time."""
        self.ledger_id += 1
        for entry_id, at_ms in enumerate(times_ms):
            assert self.index.append_run(self.ledger_id, entry_id, (at_ms,))
        by_time = sorted(range(len(times_ms)), key=times_ms.__getitem__)
        return [Position(self.ledger_id, entry_id) for entry_id in by_time]

    def is_kept_in_order(self) -> bool:
        """Whether two batches of 5 rows, which are due at different times, reach the slow view in order."""
        now_ms = self.clock.ms
        expected: list[Position] = []
        for number in (1, 2):
            places = self.append([now_ms + 100 * number + 5 - n for n in range(5)])
            self.clock.ms = now_ms + 100 * number + 5
            assert take(self.quick, 99) == sorted(places)
            expected += places
        came = [place for _ in expected for place in take(self.slow, 1)]
        assert sorted(came) == sorted(expected)
        return came == expected

    def lag(self) -> list[Position]:
        """Four batches of 8 rows come to be due, and only the quick view takes them."""
        missed: list[Position] = []
        for _ in range(4):
            places = self.append([self.clock.ms + 9 - n for n in range(8)])
            self.clock.ms += 20
            assert take(self.quick, 99) == sorted(places)
            missed += places
        return missed


def test_the_newest_due_rows_are_kept_in_order_and_the_others_as_positions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = TwoViews(monkeypatch)
    missed = world.lag()
    came = [place for _ in missed for place in take(world.slow, 1)]
    assert came == sorted(missed[:24]) + missed[24:]


def test_rows_that_fell_behind_do_not_count_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    world = TwoViews(monkeypatch)
    missed = world.lag()
    assert world.slow.due.behind.count == 24
    assert sorted(place for _ in missed for place in take(world.slow, 1)) == sorted(missed)
    assert world.is_kept_in_order()


def test_rows_that_were_taken_back_do_not_count_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock steps back, others become due before them, and they wait again."""
    world = TwoViews(monkeypatch)
    places = world.append([100 - n for n in range(8)])
    for n in range(3):
        world.clock.ms = 100
        assert world.quick.has_due()
        world.clock.ms = 50 + n
        assert not world.quick.has_due()
        sooner = world.append([51 + n])
        world.clock.ms = 51 + n
        assert take(world.quick, 99) == take(world.slow, 99) == sooner
    world.clock.ms = 100
    assert take(world.quick, 99) == take(world.slow, 99) == sorted(places)
    assert world.is_kept_in_order()
