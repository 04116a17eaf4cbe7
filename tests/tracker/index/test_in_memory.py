"""The in-memory tracker: when positions are kept, when they come back, and in which order."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from geminga.position import Position
from geminga.tracker.index.time_rules import precision_bits
from geminga.tracker.index.view import NOT_DELAYED_MS, View
from tests.tracker.in_memory import in_memory_tracker
from tests.tracker.taking import take


class HandClock:
    """A clock that stands still until it is moved."""

    def __init__(self, now_ms: int = 0) -> None:
        self.ms = now_ms

    def now_ms(self) -> int:
        return self.ms

    async def sleep_until_ms(self, due_ms: int) -> None:
        raise NotImplementedError

    def monotonic_s(self) -> float:
        raise NotImplementedError


def positions(*pairs: tuple[int, int]) -> list[Position]:
    return [Position(*pair) for pair in pairs]


def add_all(tracker: View, adds: Iterable[tuple[int, int]]) -> list[bool]:
    """Adds (entry id, time) pairs, all of ledger 1."""
    return [tracker.add(Position(1, entry_id), at_ms) for entry_id, at_ms in adds]


@pytest.mark.parametrize(("tick_ms", "bits"), [(0, 0), (1, 0), (2, 1), (16, 4), (1000, 9), (1024, 10)])
def test_bucket_width_is_the_power_of_two_within_the_tick(tick_ms: int, bits: int) -> None:
    assert precision_bits(tick_ms) == bits


def test_due_positions_come_in_time_order_within_the_limit() -> None:
    clock = HandClock()
    tracker = in_memory_tracker(clock, tick_ms=1)
    assert all(add_all(tracker, [(2, 20), (1, 10), (5, 50), (4, 40), (3, 30)]))
    assert (len(tracker), tracker.has_due(), take(tracker, 10)) == (5, False, [])

    clock.ms = 15
    assert not tracker.add(Position(1, 6), 15)
    assert len(tracker) == 5
    assert tracker.has_due()
    assert take(tracker, 10) == positions((1, 1))
    assert (len(tracker), tracker.has_due()) == (4, False)

    clock.ms = 60
    assert take(tracker, 1) == positions((1, 2))
    assert len(tracker) == 3
    assert take(tracker, 3) == positions((1, 3), (1, 4), (1, 5))
    assert (len(tracker), tracker.has_due(), take(tracker, 10)) == (0, False, [])


def test_next_due_follows_the_earliest_bucket() -> None:
    clock = HandClock()
    tracker = in_memory_tracker(clock, tick_ms=1)
    assert tracker.next_due_ms() is None
    tracker.add(Position(1, 0), 20)
    assert tracker.next_due_ms() == 20
    tracker.add(Position(1, 1), 10)
    assert tracker.next_due_ms() == 10
    tracker.add(Position(1, 2), 15)
    assert tracker.next_due_ms() == 10
    clock.ms = 10
    take(tracker, 10)
    assert tracker.next_due_ms() == 15
    clock.ms = 20
    take(tracker, 10)
    assert tracker.next_due_ms() is None


def test_within_the_tick_is_dispatched_now_when_not_strict() -> None:
    tracker = in_memory_tracker(HandClock(), tick_ms=100)
    answers = add_all(tracker, [(0, 10), (1, 99), (2, 100), (3, 101), (4, 200)])
    assert answers == [False, False, False, True, True]
    assert len(tracker) == 2


def test_strict_keeps_all_that_is_later_than_now() -> None:
    tracker = in_memory_tracker(HandClock(10), tick_ms=100, strict=True)
    assert add_all(tracker, [(0, 9), (1, 10), (2, 11)]) == [False, False, True]
    assert (len(tracker), tracker.has_due()) == (1, False)


@pytest.mark.parametrize("now_ms", [60_000, 60_401, 60_415])
def test_strict_is_never_early_and_still_knows_when_to_wake(now_ms: int) -> None:
    clock = HandClock(59_000)
    tracker = in_memory_tracker(clock, tick_ms=1000, strict=True)
    assert add_all(tracker, [(0, 60_401), (1, 61_000)]) == [True, True]
    clock.ms = now_ms
    assert (take(tracker, 10), tracker.next_due_ms()) == ([], 60_416)
    clock.ms = 60_416
    assert take(tracker, 10) == positions((1, 0))
    assert tracker.next_due_ms() == 61_008


def test_strict_is_due_by_the_end_of_its_bucket_however_soon_it_was_added() -> None:
    clock = HandClock(3)
    tracker = in_memory_tracker(clock, tick_ms=16, strict=True)
    tracker.add(Position(1, 0), 4)
    assert tracker.next_due_ms() == 16
    clock.ms = 16
    assert take(tracker, 1) == positions((1, 0))


def test_a_position_that_waits_is_not_handed_back_and_forth() -> None:
    clock = HandClock(59_000)
    tracker = in_memory_tracker(clock, tick_ms=1000)
    for _ in range(10):
        assert tracker.add(Position(1, 0), 60_400)
        assert take(tracker, 10) == []
    clock.ms = 59_414
    assert take(tracker, 10) == []
    clock.ms = 59_415
    assert take(tracker, 10) == positions((1, 0))
    assert not tracker.add(Position(1, 0), 60_400), "what was taken is due when it is read back"


def test_not_strict_wakes_at_the_bucket_so_as_to_be_little_early_and_never_late() -> None:
    tracker = in_memory_tracker(HandClock(0), tick_ms=1000)
    tracker.add(Position(1, 0), 60_400)
    assert tracker.next_due_ms() == 59_904


def test_fixed_delays_pause_reading_until_some_are_due() -> None:
    clock = HandClock()
    tracker = in_memory_tracker(clock, tick_ms=1, strict=True, fixed_delay_lookahead=100)
    add_all(tracker, ((n, 10 + n) for n in range(5)))
    assert not tracker.should_pause()
    add_all(tracker, ((n, 10 + n) for n in range(5, 100)))
    assert tracker.should_pause()
    clock.ms = 10
    assert not tracker.should_pause()
    clock.ms = 200
    take(tracker, 100)
    assert not tracker.should_pause()


@pytest.mark.parametrize(
    ("at_ms", "pauses"), [(5, False), (NOT_DELAYED_MS, False), (109, True), (108, True), (107, False)]
)
def test_one_add_that_is_undelayed_or_earlier_lifts_the_pause(at_ms: int, pauses: bool) -> None:
    tracker = in_memory_tracker(HandClock(5), tick_ms=1, strict=True, fixed_delay_lookahead=100)
    add_all(tracker, ((n, 10 + n) for n in range(100)))
    tracker.add(Position(1, 500), at_ms)
    assert tracker.should_pause() is pauses


def test_fixed_delay_is_looked_for_anew_once_emptied() -> None:
    clock = HandClock()
    tracker = in_memory_tracker(clock, tick_ms=1, strict=True, fixed_delay_lookahead=3)
    tracker.add(Position(1, 9), NOT_DELAYED_MS)
    add_all(tracker, [(0, 10), (1, 11), (2, 12)])
    assert not tracker.should_pause()
    clock.ms = 100
    assert len(take(tracker, 10)) == 3
    add_all(tracker, [(3, 110), (4, 111), (5, 112)])
    assert tracker.should_pause()


def test_lookahead_of_zero_never_pauses() -> None:
    tracker = in_memory_tracker(HandClock(), tick_ms=1, fixed_delay_lookahead=0)
    add_all(tracker, ((n, 10 + n) for n in range(10)))
    assert not tracker.should_pause()


def test_equal_times_taken_one_by_one_come_in_topic_order() -> None:
    clock = HandClock()
    tracker = in_memory_tracker(clock, tick_ms=100)
    adds = positions((2, 0), (1, 7), (1, 3), (3, 1), (1, 5))
    assert all(tracker.add(position, 5000) for position in adds)
    clock.ms = 5000
    taken = [take(tracker, 1)[0] for _ in adds]
    assert taken == sorted(adds)


def test_a_bucket_is_split_by_the_limit() -> None:
    clock = HandClock()
    tracker = in_memory_tracker(clock, tick_ms=1024)
    for position in positions((1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (2, 3), (2, 4)):
        tracker.add(position, 3000)
    clock.ms = 3000
    assert take(tracker, 4) == positions((1, 0), (1, 1), (2, 0), (2, 1))
    assert len(tracker) == 3
    assert take(tracker, 2) == positions((2, 2), (2, 3))
    assert take(tracker, 2) == positions((2, 4))
    assert (len(tracker), tracker.next_due_ms()) == (0, None)


def test_adding_after_a_split_goes_to_the_rest_of_that_bucket() -> None:
    clock = HandClock()
    tracker = in_memory_tracker(clock, tick_ms=1024, strict=True)
    add_all(tracker, ((n, 3000) for n in range(100)))
    clock.ms = 3072
    assert len(take(tracker, 60)) == 60
    clock.ms = 2999  # a wall clock may step back
    add_all(tracker, [(0, 3000), (70, 3000), (100, 3000)])
    assert len(tracker) == 42
    clock.ms = 3072
    assert [entry_id for _, entry_id in take(tracker, 99)] == [0, *range(60, 101)]


def test_a_bucket_that_was_emptied_is_filled_anew() -> None:
    clock = HandClock(3000)
    tracker = in_memory_tracker(clock, tick_ms=1024, strict=True)
    add_all(tracker, [(0, 3072), (1, 9000), (2, 3072)])
    clock.ms = 3072
    assert len(take(tracker, 9)) == 2
    clock.ms = 3000  # a wall clock may step back
    add_all(tracker, [(3, 3072)])
    assert (len(tracker), tracker.next_due_ms()) == (2, 3072)


def test_the_same_position_counts_once() -> None:
    clock = HandClock()
    tracker = in_memory_tracker(clock, tick_ms=1000)
    for entry_id in (5, 3, 5, 3, 5):
        assert tracker.add(Position(1, entry_id), 5000)
    assert len(tracker) == 2
    clock.ms = 5000
    assert take(tracker, 10) == positions((1, 3), (1, 5))
    assert len(tracker) == 0


def test_an_offer_that_is_refused_as_due_is_not_returned_a_second_time() -> None:
    clock = HandClock()
    tracker = in_memory_tracker(clock, tick_ms=1, strict=True)
    add_all(tracker, [(0, 10), (1, 10), (2, 30)])
    clock.ms = 10
    assert not tracker.add(Position(1, 0), 10)
    assert (len(tracker), tracker.contains(Position(1, 0))) == (2, False)
    assert take(tracker, 10) == positions((1, 1))
    clock.ms = 30
    assert not tracker.add(Position(1, 2), 30)
    assert (len(tracker), tracker.next_due_ms()) == (0, None)


def test_contains_only_what_is_tracked() -> None:
    clock = HandClock()
    tracker = in_memory_tracker(clock, tick_ms=1)
    add_all(tracker, [(0, 10), (1, 20)])
    assert tracker.contains(Position(1, 0))
    assert not tracker.contains(Position(2, 0))
    clock.ms = 10
    take(tracker, 1)
    assert not tracker.contains(Position(1, 0))
    assert tracker.contains(Position(1, 1))


async def test_clear_forgets_all_even_the_fixed_delay() -> None:
    clock = HandClock()
    tracker = in_memory_tracker(clock, tick_ms=1, strict=True, fixed_delay_lookahead=2)
    add_all(tracker, [(0, 1000), (1, NOT_DELAYED_MS), (2, 1000)])
    tracker.clear()
    assert (len(tracker), tracker.next_due_ms(), tracker.memory_bytes()) == (0, None, 0)
    assert not tracker.contains(Position(1, 0))
    add_all(tracker, [(0, 500), (1, 500)])
    assert (len(tracker), tracker.should_pause()) == (2, True)
    clock.ms = 500
    assert take(tracker, 9) == positions((1, 0), (1, 1))


def test_a_tick_of_everything_delivers_all_at_once() -> None:
    tracker = in_memory_tracker(HandClock(), tick_ms=1000)
    tracker.add(Position(1, 0), 100_000)
    tracker.set_tick(2**31 - 1)
    assert not tracker.add(Position(1, 1), 200_000)
    assert take(tracker, 9) == positions((1, 0))


def test_a_shorter_tick_narrows_the_buckets_once_empty() -> None:
    clock = HandClock()
    tracker = in_memory_tracker(clock, tick_ms=1000, strict=True)
    tracker.set_tick(4)
    tracker.add(Position(1, 0), 1001)
    assert tracker.next_due_ms() == 1004
    tracker.set_tick(1000)
    assert (tracker.next_due_ms(), len(tracker)) == (1004, 1)
    clock.ms = 1004
    assert take(tracker, 9) == positions((1, 0))
    tracker.add(Position(1, 1), 2001)
    assert tracker.next_due_ms() == 2016


def test_a_tick_shorter_than_the_buckets_does_not_hand_back_and_forth() -> None:
    clock = HandClock()
    tracker = in_memory_tracker(clock, tick_ms=1000)
    add_all(tracker, [(0, 60_400), (1, 99_000)])
    tracker.set_tick(16)
    clock.ms = 59_904
    assert take(tracker, 9) == positions((1, 0))
    assert not tracker.add(Position(1, 0), 60_400), "early by the old width, as it cannot be told apart"


def test_what_a_wide_bucket_gave_back_early_waits_in_a_narrow_one() -> None:
    clock = HandClock()
    tracker = in_memory_tracker(clock, tick_ms=1000)
    tracker.add(Position(1, 0), 60_400)
    tracker.set_tick(16)
    clock.ms = 59_904
    assert take(tracker, 9) == positions((1, 0))
    assert tracker.add(Position(1, 0), 60_400), "nothing is left of the old width"
    assert tracker.next_due_ms() == 60_400


def test_the_far_future_is_kept() -> None:
    tracker = in_memory_tracker(HandClock(), tick_ms=1000, strict=True)
    assert tracker.add(Position(1, 0), 2**63 - 1)
    assert (len(tracker), take(tracker, 1)) == (1, [])


def test_memory_is_counted_in_bytes_of_the_columns() -> None:
    tracker = in_memory_tracker(HandClock(), tick_ms=1024)
    add_all(tracker, ((n, 10_000 + 7919 * n % 400_000) for n in range(49_999)))
    open_bytes = tracker.memory_bytes()
    assert 8 * 49_999 <= open_bytes < 8.5 * 49_999, "a time for each, as the entries follow each other"
    add_all(tracker, [(49_999, 10_000)])
    assert tracker.memory_bytes() < 2.6 * 50_000, "steps of two bytes from one entry to the next"


def test_contiguous_entries_cost_next_to_nothing() -> None:
    tracker = in_memory_tracker(HandClock(), tick_ms=1024)
    add_all(tracker, ((n, 10_000 + n // 8) for n in range(200_000)))
    assert len(tracker) == 200_000
    assert tracker.memory_bytes() < 0.25 * 200_000


times = st.integers(0, 5000)


@settings(max_examples=150, deadline=None)
@given(
    adds=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 200), times), max_size=120),
    tick_ms=st.sampled_from([0, 1, 3, 16, 100, 1000, 1024]),
    strict=st.booleans(),
    count_max=st.integers(1, 50),
)
def test_a_sleeper_who_follows_next_due_loses_nothing(
    adds: list[tuple[int, int, int]], tick_ms: int, strict: bool, count_max: int
) -> None:
    """Wakes only when told, as a dispatcher does: all come, none early or late beyond what was promised."""
    clock = HandClock()
    tracker = in_memory_tracker(clock, tick_ms=tick_ms, strict=strict)
    due_ms = {Position(ledger_id, entry_id): at_ms for ledger_id, entry_id, at_ms in adds}
    kept = {position for position, at_ms in due_ms.items() if tracker.add(position, at_ms)}
    allowed_ms = 0 if strict else tick_ms
    assert kept == {position for position, at_ms in due_ms.items() if at_ms > allowed_ms}
    early_ms = 0 if strict else tick_ms
    late_ms = (1 << precision_bits(tick_ms)) - 1 if strict else 0

    taken: list[Position] = []
    while (wake_ms := tracker.next_due_ms()) is not None:
        assert tracker.has_due() or wake_ms > clock.ms
        clock.ms = max(clock.ms, wake_ms)
        batch = take(tracker, count_max)
        assert batch, "awake, and nothing to do: this would spin"
        for position in batch:
            assert -early_ms <= clock.ms - due_ms[position] <= late_ms
        taken += batch
        assert len(tracker) == len(kept) - len(taken)
    assert len(taken) == len(kept)
    assert set(taken) == kept


class AgainstAModel(RuleBasedStateMachine):
    """Random adds, takes, ticks of the clock against a plain dictionary of position to time."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = HandClock(1000)
        self.tick_ms = 100
        self.tracker = in_memory_tracker(self.clock, tick_ms=100, strict=False, fixed_delay_lookahead=5)
        self.model: dict[Position, int] = {}
        self.times: dict[Position, int] = {}
        """Of every message that ever was: its time never changes."""

    @rule(ledger_id=st.integers(1, 3), entry_id=st.integers(0, 300), delay_ms=st.integers(-50, 900))
    def add(self, ledger_id: int, entry_id: int, delay_ms: int) -> None:
        position = Position(ledger_id, entry_id)
        at_ms = self.times.setdefault(position, self.clock.ms + delay_ms)
        kept = self.tracker.add(position, at_ms)
        assert kept == (at_ms > self.clock.ms + self.tick_ms)
        if kept:
            self.model[position] = at_ms
        else:
            self.model.pop(position, None)

    @rule(ledger_id=st.integers(1, 3), first=st.integers(0, 200), run=st.integers(60, 90))
    def add_run(self, ledger_id: int, first: int, run: int) -> None:
        for entry_id in range(first, first + run):
            self.add(ledger_id, entry_id, 700)

    @rule(step_ms=st.integers(0, 400))
    def pass_time(self, step_ms: int) -> None:
        self.clock.ms += step_ms

    @rule(count_max=st.integers(1, 80))
    def take(self, count_max: int) -> None:
        due = self.due_in_order()
        assert self.tracker.has_due() == bool(due)
        taken = take(self.tracker, count_max)
        assert taken == sorted(due[:count_max])
        for position in taken:
            assert self.model.pop(position) <= self.clock.ms + self.tick_ms

    def due_in_order(self) -> list[Position]:
        """By bucket of 64 ms, then place; a bucket counts when its last millisecond is within the tick."""
        keyed = sorted((at_ms - at_ms % 64, position) for position, at_ms in self.model.items())
        return [position for key, position in keyed if key + 63 <= self.clock.ms + self.tick_ms]

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def contains(self, data: st.DataObject) -> None:
        assert self.tracker.contains(data.draw(st.sampled_from(sorted(self.model))))

    @invariant()
    def agrees(self) -> None:
        assert len(self.tracker) == len(self.model)
        earliest_ms = min(self.model.values(), default=None)
        found_ms = self.tracker.next_due_ms()
        if earliest_ms is None or found_ms is None:
            assert found_ms == earliest_ms
            return
        assert found_ms <= earliest_ms - earliest_ms % 64
        assert found_ms > self.clock.ms or self.tracker.has_due(), "this would spin"


TestAgainstAModel = AgainstAModel.TestCase
TestAgainstAModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
