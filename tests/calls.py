"""Counts calls of functions in each step of the loop, for tests that no request walks without turns."""

from __future__ import annotations

import sys

import trio

FEW, MANY = 5, 100
CALLS_MAX = 4000
GROWTH_MIN = 4 * (MANY - FEW)
"""Calls more: so a row costs at least four."""


class Calls(trio.abc.Instrument):
    """Of functions, in each step of the loop while it is on."""

    def __init__(self) -> None:
        self._events = self._before = 0
        self.longest = self.total = 0

    def _count(self, frame: object, event: str, argument: object) -> None:
        self._events += 1

    def begin(self) -> None:
        self._events = self._before = self.longest = self.total = 0
        sys.setprofile(self._count)

    def end(self) -> tuple[int, int]:
        sys.setprofile(None)
        self._close()
        return self.longest, self.total

    def _close(self) -> None:
        calls = (self._events - self._before) // 2  # each returns, too
        self.longest, self.total = max(self.longest, calls), self.total + calls
        self._before = self._events

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self._close()
