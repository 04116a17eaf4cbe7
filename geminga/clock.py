"""The only clock. It has two kinds of time.

*Message time* (`now_ms`, `sleep_until_ms`) is wall-clock milliseconds since 1970: delays, TTL, retention,
ages. A virtual clock may move it. *I/O time* (`monotonic_s`) is trio's monotonic clock: keep-alive, group
commit, throttles, time-outs of sockets. Moving message time never moves I/O time, so that advancing a month
does not close every connection.
"""

from __future__ import annotations

import time
from typing import Protocol

import trio

WALL_CHECK_SECONDS = 5.0
"""A sleeper looks at the wall clock at least this often, so that a step of the clock is noticed."""


class Clock(Protocol):
    """The clock that every room gets."""

    def now_ms(self) -> int:
        """Message time, in milliseconds since 1970-01-01 UTC."""
        ...

    async def sleep_until_ms(self, due_ms: int) -> None:
        """Return once `now_ms() >= due_ms`, never before. Cancelling has no effect on the clock."""
        ...

    def monotonic_s(self) -> float:
        """I/O time, in seconds from an arbitrary start. Works outside trio too."""
        ...


class RealClock:
    """The machine's own clock."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep_until_ms(self, due_ms: int) -> None:
        # By nanoseconds: a millisecond that has begun is not waited for once more.
        while (left_ns := due_ms * 1_000_000 - time.time_ns()) > 0:  # noqa: ASYNC110 - time is what is waited for
            await trio.sleep(min(left_ns / 1e9, WALL_CHECK_SECONDS))

    def monotonic_s(self) -> float:
        return time.monotonic()


class TrioClock:
    """Message time that follows trio's clock from a fixed start, so that a test with a `MockClock` controls
    both.
    """

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
