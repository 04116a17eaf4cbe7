"""How a dispatch task sleeps: until `wake`, a time of the monotonic clock, or a due time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import trio

from geminga.clock import WALL_CHECK_SECONDS

if TYPE_CHECKING:
    from geminga.clock import Clock, Worker


class Sleeper:
    """For one task. `wake` may be called from anywhere on the loop, also before the task sleeps."""

    __slots__ = ("_clock", "_is_woken", "_sleep", "_woken")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._is_woken = False
        self._woken: trio.Event | None = None
        self._sleep: trio.CancelScope | None = None
        """While it sleeps: without a clock, or with one."""

    @property
    def is_asleep(self) -> bool:
        """Whether the task sleeps and nothing has woken it."""
        return not self._is_woken and (self._woken is not None or self._sleep is not None)

    def wake(self) -> None:
        """End the sleep, or the next one if there is none. Cheap when it is ended already."""
        # Kept until the next sleep: a wake-up between a round and the sleep after it would be lost otherwise.
        self._is_woken = True
        if self._woken is not None:
            self._woken.set()
        elif self._sleep is not None:
            self._sleep.cancel()

    async def sleep(self, retry_at_s: float, due_ms: int | None) -> None:
        """Return when woken, at `retry_at_s` (I/O time, infinity: never), or at `due_ms` (message time).

        Always lets other tasks run once.
        """
        if not self._is_woken:
            if due_ms is None and retry_at_s == math.inf:
                # An Event for the usual sleep, which ends without the exception that a cancelled scope
                # raises. A new one each time, as trio's cannot be reset.
                self._woken = trio.Event()
                try:
                    await self._woken.wait()
                finally:
                    # Also for a cancelled task, which would pass for one that sleeps.
                    self._woken = None
            else:
                await self._sleep_until(retry_at_s, due_ms)
        else:
            # A round that is woken at each turn would keep all other tasks waiting.
            await trio.lowlevel.checkpoint()
        self._is_woken = False

    def begins(self) -> None:
        """The task has started; until its first sleep it works."""

    def ends(self) -> None:
        """The task is over."""

    async def _sleep_until(self, retry_at_s: float, due_ms: int | None) -> None:
        deadline_s = math.inf
        if retry_at_s < math.inf:
            # `retry_at_s` is of the injected clock, which tests set apart from trio's: only the difference
            # means the same in both.
            deadline_s = trio.current_time() + max(retry_at_s - self._clock.monotonic_s(), 0.0)
        try:
            with trio.CancelScope(deadline=deadline_s) as self._sleep:
                if due_ms is None:
                    await trio.sleep_forever()
                else:
                    await self._clock.sleep_until_ms(due_ms)
        finally:
            self._sleep = None


class WatchedSleeper(Sleeper):
    """Under a virtual clock: a jump waits until the task sleeps again. The task works from the call on that
    wakes it, so a jump need not wait for turns of the loop to see what was woken.
    """

    __slots__ = ("_worker",)

    def __init__(self, clock: Clock, worker: Worker) -> None:
        super().__init__(clock)
        self._worker = worker

    def wake(self) -> None:
        if self._woken is not None:
            self._worker.works()
        super().wake()

    async def sleep(self, retry_at_s: float, due_ms: int | None) -> None:
        if not self._is_woken:
            self._worker.rests()
        try:
            await super().sleep(retry_at_s, due_ms)
        finally:
            self._worker.works()

    async def _sleep_until(self, retry_at_s: float, due_ms: int | None) -> None:
        self._woken = trio.Event()
        alarm = None if due_ms is None else self._worker.alarm(due_ms, self.wake)
        try:
            # Between two stops of a jump no time passes by itself, and a scope with a deadline costs as much
            # as all the rest of a sleep.
            if retry_at_s == math.inf and self._worker.until_let_go(self._look_again):
                await self._woken.wait()
            while not self._woken.is_set() and (left_s := self._left_s(retry_at_s, due_ms)) > 0:
                with trio.move_on_after(min(left_s, WALL_CHECK_SECONDS)):
                    await self._woken.wait()
        finally:
            self._woken = None
            if alarm is not None:
                alarm.cancel()

    def _look_again(self) -> None:
        # Not as `wake` does: a jump that has just ended has left nothing undone.
        if self._woken is not None:
            self._woken.set()

    def _left_s(self, retry_at_s: float, due_ms: int | None) -> float:
        left_s = retry_at_s - self._clock.monotonic_s()
        return left_s if due_ms is None else min(left_s, (due_ms - self._clock.now_ms()) / 1000)

    def begins(self) -> None:
        self._worker.works()

    def ends(self) -> None:
        self._worker.rests()


def sleeper_for(clock: Clock, name: str) -> Sleeper:
    """For the dispatch task of the subscription that `name` is of."""
    worker = clock.worker(name)
    return Sleeper(clock) if worker is None else WatchedSleeper(clock, worker)
