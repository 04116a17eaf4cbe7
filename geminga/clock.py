"""The only clock. It has two kinds of time.

*Message time* (`now_ms`, `sleep_until_ms`) is wall-clock milliseconds since 1970: delays, TTL, retention,
ages. A virtual clock lets a user move it. *I/O time* (`monotonic_s`) is trio's
monotonic clock: keep-alive, group commit, throttles, time-outs of sockets. Moving message time never moves
I/O time, so that advancing a month does not close every connection.

Between two jumps a virtual clock ticks as the machine's does. A jump goes from one due time to the next
(`geminga/broker/jumps`); at each stop `move_to` wakes the tasks whose time has come, and `quiet` waits until
they have done what they were woken for. Tasks that act on message time are *workers*: each says when it
starts to work and when it rests. Rooms that only read the time need nothing of this.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import ClassVar, Final, Protocol

import trio

WALL_CHECK_SECONDS = 5.0
"""A sleeper looks at the wall clock at least this often, so that a step of the clock is noticed."""
LAST_MS: Final = 2**42 - 1
"""The last moment that the clock can show, in May 2109: a stamp of an entry has room for no later one."""
GENERATIONS_MAX: Final = 16
"""How often `quiet` waits for workers that others have woken. Publishers wake them all the time, and a jump
does not wait for those.
"""


def block(seconds: float) -> None:
    """Let the calling thread sleep for so long: of the event loop, and of all its tasks."""
    time.sleep(seconds)


class Clock(Protocol):
    """The clock that every room gets."""

    is_virtual: ClassVar[bool]
    """Whether message time may be moved, so that it has nothing to do with the clocks of clients."""

    def now_ms(self) -> int:
        """Message time, in milliseconds since 1970-01-01 UTC."""
        ...

    async def sleep_until_ms(self, due_ms: int) -> None:
        """Return once `now_ms() >= due_ms`, never before. Cancelling has no effect on the clock."""
        ...

    def monotonic_s(self) -> float:
        """I/O time, in seconds from an arbitrary start. Works outside trio too."""
        ...

    def step_ms(self) -> int:
        """The length of the step that a jump is taking now, if it passes due times on the way; else 0."""
        ...

    def worker(self, name: str) -> Worker | None:
        """For a task that acts on message time, if jumps of the clock wait for it; else None."""
        ...


class RealClock:
    """The machine's own clock."""

    is_virtual: ClassVar = False

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep_until_ms(self, due_ms: int) -> None:
        # By nanoseconds: a millisecond that has begun is not waited for once more.
        while (left_ns := due_ms * 1_000_000 - time.time_ns()) > 0:  # noqa: ASYNC110 - time is what is waited for
            await trio.sleep(min(left_ns / 1e9, WALL_CHECK_SECONDS))

    def monotonic_s(self) -> float:
        return time.monotonic()

    def step_ms(self) -> int:
        return 0

    def worker(self, name: str) -> None:
        return None


class TrioClock:
    """Message time that follows trio's clock from a fixed start, so that a test with a `MockClock` controls
    both.
    """

    is_virtual: ClassVar = False

    def __init__(self, epoch_ms: int = 1_700_000_000_000) -> None:
        self._epoch_ms = epoch_ms
        self._started_s = trio.current_time()

    def now_ms(self) -> int:
        return self._epoch_ms + int((trio.current_time() - self._started_s) * 1000)

    async def sleep_until_ms(self, due_ms: int) -> None:
        while (left_ms := due_ms - self.now_ms()) > 0:  # noqa: ASYNC110 - time itself is what is waited for
            await trio.sleep(max(left_ms, 1) / 1000)

    def monotonic_s(self) -> float:
        return trio.current_time()

    def step_ms(self) -> int:
        return 0

    def worker(self, name: str) -> None:
        return None


class Worker:
    """A task that acts on message time. It calls `rests` itself; `works` is called by what wakes it, so that
    it counts from then on.
    """

    __slots__ = ("_clock", "name")

    def __init__(self, clock: VirtualClock, name: str) -> None:
        self._clock = clock
        self.name = name

    def works(self) -> None:
        """The task has work to do."""
        self._clock.works(self)

    def to_rest_after(self, work: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """`work` as a task that counts as working from now on."""

        async def run() -> None:
            try:
                await work()
            finally:
                self.rests()

        self.works()
        return run

    def alarm(self, due_ms: int, call: Callable[[], None]) -> Alarm:
        """As `VirtualClock.alarm`; the task works from the moment on at which it goes off."""

        def goes_off() -> None:
            self.works()
            call()

        return self._clock.alarm(due_ms, goes_off)

    def until_let_go(self, call: Callable[[], None]) -> bool:
        """Whether the clock is held. Then this is called once when it ticks on, and until then an alarm alone
        can end a wait for a time.
        """
        return self._clock.until_let_go(call)

    def rests(self) -> None:
        """The task has nothing to do until it is woken, or it ends."""
        self._clock.rests(self)


@contextmanager
def working(worker: Worker | None) -> Iterator[None]:
    """A context in which the task works; None: jumps do not wait for it."""
    if worker is None:
        yield
        return
    worker.works()
    try:
        yield
    finally:
        worker.rests()


class Alarm:
    """A call at a moment of message time. Cancelling one that has gone off has no effect."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class VirtualClock:
    """`offset_ms` ahead of the machine's clock (`wall_ms`), never before `reached_ms` nor after `LAST_MS`."""

    is_virtual: ClassVar = True

    def __init__(
        self, offset_ms: int = 0, reached_ms: int = 0, wall_ms: Callable[[], int] | None = None
    ) -> None:
        self._wall_ms = wall_ms or _wall_ms
        self._offset_ms = offset_ms
        self._reached_ms = reached_ms
        self._is_held = False
        self._stands = False
        self._step_ms = 0
        self._until_let_go: set[Callable[[], None]] = set()
        self._alarms: list[tuple[int, int, Alarm]] = []
        self._alarm_number = 0
        self._working: set[Worker] = set()
        self._awaited: set[Worker] = set()
        self._rested = trio.Event()
        """Set when all that are awaited have rested once."""

    # -- a clock --------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        """Message time. It never goes back, also if the machine's clock does."""
        return self._shown_ms(self._wall_ms())

    def _shown_ms(self, wall_ms: int) -> int:
        if not self._is_held:
            # At its last moment the clock stands still: no entry could be stamped later.
            self._reached_ms = max(self._reached_ms, min(wall_ms + self._offset_ms, LAST_MS))
        return self._reached_ms

    async def sleep_until_ms(self, due_ms: int) -> None:
        while (left_ms := due_ms - self.now_ms()) > 0:
            woken = trio.Event()
            alarm = self.alarm(due_ms, woken.set)
            try:
                with trio.move_on_after(min(left_ms / 1000, WALL_CHECK_SECONDS)):
                    await woken.wait()
            finally:
                alarm.cancel()

    def monotonic_s(self) -> float:
        """I/O time, which no jump moves."""
        return time.monotonic()

    def step_ms(self) -> int:
        return self._step_ms

    # -- moving it ------------------------------------------------------------------------------------------

    @property
    def offset_ms(self) -> int:
        """How far message time is ahead of the machine's clock."""
        # One look at the machine's clock: it may tick between two.
        wall_ms = self._wall_ms()
        return self._shown_ms(wall_ms) - wall_ms

    def start_at(self, at_ms: int) -> None:
        """Show `at_ms` and tick from there; for a clock that has shown nothing yet."""
        self._reached_ms = at_ms
        self._offset_ms = at_ms - self._wall_ms()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Only `move_to` moves the clock meanwhile: what happens at a stop happens at one moment. Afterwards
        it ticks on, unless it is to `stand`.
        """
        self.now_ms()
        self._is_held = True
        try:
            yield
        finally:
            if self._is_held and not self._stands:
                self.let_go(self.offset_ms)

    def stand(self) -> None:
        """Stay where the clock is held, until it is held and let go once more."""
        assert self._is_held
        self._stands = True

    @property
    def stands(self) -> bool:
        """Whether it is to `stand`, so that it does not tick though nothing moves it."""
        return self._stands

    def let_go(self, offset_ms: int) -> None:
        """End `held`, so far ahead of the machine's clock; it never goes back."""
        self._is_held = self._stands = False
        self._step_ms = 0
        self._offset_ms = offset_ms
        calls, self._until_let_go = self._until_let_go, set()
        for call in calls:
            call()

    def until_let_go(self, call: Callable[[], None]) -> bool:
        """See `Worker.until_let_go`."""
        if self._is_held:
            self._until_let_go.add(call)
        return self._is_held

    def move_to(self, at_ms: int) -> bool:
        """Show `at_ms`, if that is not past, and wake the tasks whose time has come; whether any were."""
        assert self._is_held
        from_ms = self._reached_ms
        now_ms = self._reached_ms = max(from_ms, at_ms)
        next_ms = self.next_alarm_ms()
        self._step_ms = now_ms - from_ms if next_ms is not None and next_ms < now_ms else 0
        alarms, has_woken = self._alarms, False
        while alarms and (alarms[0][2].call is None or alarms[0][0] <= now_ms):
            _, _, alarm = heapq.heappop(alarms)
            if alarm.call is not None:
                alarm.call()
                has_woken = True
        return has_woken

    def next_alarm_ms(self) -> int | None:
        """The earliest moment for which a task waits; None: no task waits for one."""
        alarms = self._alarms
        while alarms and alarms[0][2].call is None:
            heapq.heappop(alarms)
        return alarms[0][0] if alarms else None

    def alarm(self, due_ms: int, call: Callable[[], None]) -> Alarm:
        """Call this with the first move of the clock to `due_ms` or beyond. The clock's own ticking calls
        nothing: a task that waits sleeps as well.
        """
        alarm = Alarm(call)
        self._alarm_number += 1
        heapq.heappush(self._alarms, (due_ms, self._alarm_number, alarm))
        self._forget_cancelled()
        return alarm

    def _forget_cancelled(self) -> None:
        # A subscription that is woken by each publish cancels an alarm each time: the heap would grow until
        # the time of the first one comes.
        alarms = self._alarms
        if self._alarm_number % 1024 == 0 and len(alarms) >= 1024:
            alarms[:] = [entry for entry in alarms if entry[2].call is not None]
            heapq.heapify(alarms)

    # -- workers --------------------------------------------------------------------------------------------

    def worker(self, name: str) -> Worker:
        """For one task; `name` says what it works for. It rests at first."""
        return Worker(self, name)

    def works(self, worker: Worker) -> None:
        self._working.add(worker)

    def rests(self, worker: Worker) -> None:
        self._working.discard(worker)
        self._awaited.discard(worker)
        if not self._awaited:
            self._rested.set()

    @property
    def is_working(self) -> bool:
        """Whether a worker is not resting."""
        return bool(self._working)

    def working(self) -> list[str]:
        """The names of the workers that are not resting."""
        return sorted(worker.name for worker in self._working)

    async def quiet(self, seconds_max: float = math.inf) -> None:
        """Return when each worker that a move has woken, or that one of them has woken, has come to rest, or
        after so long. Each works from the call on that wakes it. Tasks that are no workers have had a turn.
        """
        # Without turns in which nothing works, to see whether something begins to: three of them made a stop
        # half as long again.
        await trio.lowlevel.checkpoint()
        if self._working:
            with trio.move_on_after(seconds_max):
                await self._generations()

    async def _generations(self) -> None:
        for _ in range(GENERATIONS_MAX):
            if not self._working:
                return
            self._awaited = set(self._working)
            self._rested = trio.Event()
            await self._rested.wait()


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
