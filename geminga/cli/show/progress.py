"""A line on standard error that tells how far something is, for what takes longer than a second."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Self

from geminga.cli.show import text
from geminga.clock import RealClock

FIRST_AFTER_S = 1.0
EVERY_S = 0.2
WIDTH_MAX = 79


class Progress:
    """`with Progress("reading topics", total) as progress: ... progress.step()`. It shows nothing unless
    standard error is a terminal and a second has passed, and takes its line away at the end.
    """

    def __init__(self, what: str, total: int | None = None) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._clock = RealClock()
        self._is_terminal = sys.stderr.isatty()
        self._next_s = self._clock.monotonic_s() + FIRST_AFTER_S
        self._is_shown = False

    def step(self, count: int = 1) -> None:
        self._done += count
        if not self._is_terminal:
            return
        now_s = self._clock.monotonic_s()
        if now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        self._is_shown = True
        of = f" of {self._total}" if self._total is not None else ""
        line = text.cut_end(f"{self._what}: {self._done}{of}", WIDTH_MAX)
        print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
