"""Log lines that clients cause, bounded however fast a client repeats its error."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from geminga.clock import Clock

log = logging.getLogger("geminga.broker")

LINES_APART_S = 1.0


class SparseLog:
    """Writes at most one line of each kind per second; a line's kind is its text without the arguments.

    The next line of the kind has the number of suppressed lines.
    """

    __slots__ = ("_clock", "_left_out", "_next_s")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_s: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def info(self, text: str, *arguments: object) -> None:
        self._write(logging.INFO, text, arguments)

    def warning(self, text: str, *arguments: object) -> None:
        self._write(logging.WARNING, text, arguments)

    def error(self, text: str, *arguments: object) -> None:
        self._write(logging.ERROR, text, arguments)

    def _write(self, level: int, text: str, arguments: tuple[object, ...]) -> None:
        now_s = self._clock.monotonic_s()
        if now_s < self._next_s.get(text, now_s):
            self._left_out[text] = self._left_out.get(text, 0) + 1
            return
        self._next_s[text] = now_s + LINES_APART_S
        if left_out := self._left_out.pop(text, 0):
            text, arguments = (
                f"{text} (and %d more like this since the last such line)",
                (*arguments, left_out),
            )
        log.log(level, text, *arguments)
