"""The virtual clock: what it shows, whom it wakes, and when it is quiet."""

from __future__ import annotations

import math
import time

import pytest
import trio

from geminga import clock as clock_module
from geminga.broker.dispatch.task import Sleeper, sleeper_for
from geminga.clock import VirtualClock

DAY_MS = 86_400_000


class Wall:
    """The machine's clock, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ms = 1_800_000_000_000
        monkeypatch.setattr(time, "time_ns", lambda: self.ms * 1_000_000)


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Wall:
    return Wall(monkeypatch)


def moved(clock: VirtualClock, at_ms: int) -> None:
    with clock.held():
        clock.move_to(at_ms)


def test_it_ticks_between_moves_and_stands_still_within_one(wall: Wall) -> None:
    clock = VirtualClock()
    began_ms = wall.ms
    wall.ms += 5
    assert clock.now_ms() == began_ms + 5
    with clock.held():
        wall.ms += 1000
        assert clock.now_ms() == began_ms + 5
        clock.move_to(began_ms + DAY_MS)
        wall.ms += 1000
        assert clock.now_ms() == began_ms + DAY_MS
    assert clock.now_ms() == began_ms + DAY_MS
    wall.ms += 7
    assert clock.now_ms() == began_ms + DAY_MS + 7
    assert clock.offset_ms == began_ms + DAY_MS + 7 - wall.ms


def test_it_never_goes_back(wall: Wall) -> None:
    clock = VirtualClock(DAY_MS, wall.ms + DAY_MS + 500)
    assert clock.now_ms() == wall.ms + DAY_MS + 500, "what it has shown before a restart"
    shown_ms = clock.now_ms()
    wall.ms -= 3_600_000
    assert clock.now_ms() == shown_ms
    moved(clock, shown_ms - 1)
    assert clock.now_ms() == shown_ms
    wall.ms += 2
    assert clock.now_ms() == shown_ms + 2, "after a move it ticks from where it stands"


def test_alarms_go_off_in_order_and_once(wall: Wall) -> None:
    clock = VirtualClock()
    rang: list[int] = []
    for at_ms in (30, 10, 20, 40, 10):
        clock.alarm(wall.ms + at_ms, lambda at_ms=at_ms: rang.append(at_ms))  # type: ignore[misc]
    cancelled = clock.alarm(wall.ms + 5, lambda: rang.append(5))
    assert clock.next_alarm_ms() == wall.ms + 5
    cancelled.cancel()
    assert clock.next_alarm_ms() == wall.ms + 10
    moved(clock, wall.ms + 30)
    assert rang == [10, 10, 20, 30]
    assert clock.next_alarm_ms() == wall.ms + 40
    moved(clock, wall.ms + 39)
    assert rang == [10, 10, 20, 30]
    moved(clock, wall.ms + 40)
    assert rang == [10, 10, 20, 30, 40]
    assert clock.next_alarm_ms() is None


def test_a_step_is_a_move_past_an_alarm(wall: Wall) -> None:
    clock = VirtualClock()
    began_ms = clock.now_ms()
    for due_ms in (100, 200, 300):
        clock.alarm(began_ms + due_ms, lambda: None)
    with clock.held():
        clock.move_to(began_ms + 100)
        assert clock.step_ms() == 0, "it stopped at the alarm"
        clock.move_to(began_ms + 250)
        assert clock.step_ms() == 150
        clock.move_to(began_ms + 299)
        assert clock.step_ms() == 0, "nothing was due on the way"
        clock.move_to(began_ms + 301)
        assert clock.step_ms() == 2
    assert clock.step_ms() == 0, "the move is over"


def test_cancelled_alarms_are_forgotten(wall: Wall) -> None:
    """A subscription that each publish wakes makes and cancels one each time."""
    clock = VirtualClock()
    kept = [clock.alarm(wall.ms + DAY_MS + number, lambda: None) for number in range(10)]
    for _ in range(20_000):
        clock.alarm(wall.ms + DAY_MS, lambda: None).cancel()
    assert len(clock._alarms) < 3000
    assert clock.next_alarm_ms() == wall.ms + DAY_MS
    assert len(kept) == 10


async def test_a_sleeper_wakes_with_the_move_to_its_time() -> None:
    clock = VirtualClock()
    woken: list[int] = []
    due_ms = clock.now_ms() + DAY_MS

    async def sleep() -> None:
        await clock.sleep_until_ms(due_ms)
        woken.append(clock.now_ms())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(sleep)
        await trio.testing.wait_all_tasks_blocked()
        with clock.held():
            clock.move_to(due_ms - 1)
            await trio.testing.wait_all_tasks_blocked()
            assert woken == []
            clock.move_to(due_ms)
            await trio.testing.wait_all_tasks_blocked()
            assert woken == [due_ms]
    assert clock.next_alarm_ms() is None


async def test_it_is_quiet_when_those_that_were_woken_rest() -> None:
    """Also those that they have woken in turn. Each works from the call on that wakes it."""
    clock = VirtualClock()
    first, second = clock.worker("first"), clock.worker("second")
    go, go_on, events = trio.Event(), trio.Event(), []

    async def one() -> None:
        await go.wait()
        await trio.lowlevel.checkpoint()
        second.works()
        go_on.set()
        first.rests()

    async def two() -> None:
        await go_on.wait()
        for _ in range(50):
            await trio.lowlevel.checkpoint()
        events.append("done")
        second.rests()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(one)
        nursery.start_soon(two)
        await trio.testing.wait_all_tasks_blocked()
        await clock.quiet()
        assert events == []
        first.works()
        go.set()
        await clock.quiet()
        assert events == ["done"]
        assert clock.working() == []


@pytest.mark.parametrize("is_by_alarm", [True, False])
async def test_a_dispatch_task_works_from_the_call_on_that_wakes_it(*, is_by_alarm: bool) -> None:
    """Whichever of two tasks the loop runs first: the one that sleeps, or the one that waits for quiet."""
    for _ in range(20):
        clock = VirtualClock()
        sleeper, rounds = sleeper_for(clock, "t / s"), []
        due_ms = clock.now_ms() + DAY_MS

        async def dispatch(sleeper: Sleeper, due_ms: int, rounds: list[int]) -> None:
            sleeper.begins()
            while True:
                await sleeper.sleep(math.inf, due_ms if is_by_alarm and not rounds else None)
                await trio.lowlevel.checkpoint()
                rounds.append(1)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(dispatch, sleeper, due_ms, rounds)
            await trio.testing.wait_all_tasks_blocked()
            with clock.held():
                clock.move_to(due_ms)
                if not is_by_alarm:
                    sleeper.wake()
                assert clock.is_working
                await clock.quiet()
                assert rounds == [1]
                assert not clock.is_working
            nursery.cancel_scope.cancel()


async def test_a_task_that_fell_asleep_within_a_move_wakes_up_by_the_ticking_after_it(
    wall: Wall, autojump_clock: trio.testing.MockClock
) -> None:
    clock = VirtualClock()
    sleeper, woken = sleeper_for(clock, "t / s"), []

    async def dispatch(due_ms: int) -> None:
        sleeper.begins()
        await sleeper.sleep(math.inf, due_ms)
        while clock.now_ms() < due_ms:
            await sleeper.sleep(math.inf, due_ms)
        woken.append(clock.now_ms())

    due_ms = clock.now_ms() + 1000
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            with clock.held():
                nursery.start_soon(dispatch, due_ms)
                await trio.testing.wait_all_tasks_blocked()
                assert not clock.is_working
            wall.ms += 1000
    assert woken == [due_ms]


async def test_a_worker_that_others_keep_busy_holds_up_nothing() -> None:
    """Publishers wake a dispatcher all the time: it has rested in between, and that is enough."""
    clock = VirtualClock()
    busy = clock.worker("busy")

    async def run() -> None:
        while True:
            busy.works()
            await trio.lowlevel.checkpoint()
            busy.rests()
            busy.works()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await trio.lowlevel.checkpoint()
        with trio.fail_after(60):
            await clock.quiet()
        assert clock.working() == ["busy"]
        nursery.cancel_scope.cancel()


async def test_a_task_that_is_started_counts_from_then_on() -> None:
    clock = VirtualClock()
    done: list[str] = []

    async def work() -> None:
        for _ in range(20):
            await trio.lowlevel.checkpoint()
        done.append("opened")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(clock.worker("opening").to_rest_after(work))
        await clock.quiet()
        assert done == ["opened"]


def test_its_last_moment_fits_into_a_stamp() -> None:
    from geminga.wire.message_metadata import VIRTUAL_LAST_MS

    assert clock_module.LAST_MS == VIRTUAL_LAST_MS


def test_at_its_last_moment_it_stands_still(wall: Wall) -> None:
    clock = VirtualClock()
    moved(clock, clock_module.LAST_MS - 5)
    wall.ms += 3
    assert clock.now_ms() == clock_module.LAST_MS - 2
    wall.ms += DAY_MS
    assert clock.offset_ms == clock_module.LAST_MS - wall.ms
    assert clock.now_ms() == clock_module.LAST_MS
    assert VirtualClock(clock.offset_ms, clock.now_ms() - 1).now_ms() == clock_module.LAST_MS
