"""Waiting: for work, and after a failure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

import trio

T = TypeVar("T")

# Short at first: Pulsar's `testWithBkException` fails operations one to four times and expects every message
# all the same.
RETRY_FIRST_S: Final = 0.05
RETRY_LAST_S: Final = 60.0
# With a minute between two tries, messages would be late by up to a minute after the disk is well again.
READ_RETRY_LAST_S: Final = 5.0
"""Of a bucket whose messages may be late meanwhile."""
READ_FAILURES_QUIET: Final = 5
"""So many failed reads of a bucket in a row, three quarters of a second of them, go unnoticed."""
READ_WHAT_TO_DO: Final = (
    "that is tried again every few seconds, and nothing is deleted: see that the disk, the memory and the "
    "open files of the broker suffice"
)


class OffLoop(Protocol):
    """Calls a function where it does not hold up the loop. Cancelling waits for it."""

    async def __call__(self, function: Callable[..., T], *args: Any) -> T: ...


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    return await trio.to_thread.run_sync(function, *args)


class Signal:
    """Says to one task that there is work. Nothing that was said is missed."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        self._event.set()

    async def wait(self, seconds_max: float = math.inf) -> None:
        """Until it is set, or was since the last wait, but no longer than this."""
        with trio.move_on_after(seconds_max):
            await self._event.wait()
        # After the wait and before the work: what is said during the work ends the next wait at once.
        self._event = trio.Event()


class BackOff:
    """How long to wait after failures in a row: twice as long each time, up to `last_s`."""

    __slots__ = ("_last_s", "failures")

    def __init__(self, last_s: float = RETRY_LAST_S) -> None:
        self.failures = 0
        self._last_s = last_s

    def next_s(self) -> float:
        self.failures += 1
        # The exponent is bounded too, or the power would grow with each failure.
        return float(min(self._last_s, RETRY_FIRST_S * 2 ** min(self.failures - 1, 20)))

    def succeeded(self) -> None:
        self.failures = 0
