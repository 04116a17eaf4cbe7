"""Waiting: for work, and after a failure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import trio

if TYPE_CHECKING:
    from geminga.clock import Worker

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
    """Says to one task that there is work. Nothing that was said is missed. `worker` is the task for jumps of
    a virtual clock: it works from the call on that ends its wait.
    """

    __slots__ = ("_event", "_is_awaited", "worker")

    def __init__(self, worker: Worker | None = None) -> None:
        self.worker = worker
        self._event = trio.Event()
        self._is_awaited = False

    def set(self) -> None:
        # Only then: what is said to a task that has ended would hold up each jump.
        if self._is_awaited and self.worker is not None:
            self.worker.works()
        self._event.set()

    async def wait(self, seconds_max: float = math.inf) -> None:
        """Until it is set, or was since the last wait; no longer than this. The worker rests meanwhile."""
        if not self._event.is_set():
            self._is_awaited = True
            self.rests()
        try:
            with trio.move_on_after(seconds_max):
                await self._event.wait()
        finally:
            self._is_awaited = False
            if self.worker is not None:
                self.worker.works()
        # After the wait and before the work: what is said during the work ends the next wait at once.
        self._event = trio.Event()

    def rests(self) -> None:
        """The task has nothing to do, or has ended."""
        if self.worker is not None:
            self.worker.rests()


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
