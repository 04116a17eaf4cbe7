"""The broker's time at a moment of the machine's, where its clock was moved. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from geminga.cli.chaos.checking.history import Jump

NEVER_MS = 1 << 62


class BrokerTime:
    """While a move is under way the broker's time is known within bounds only."""

    def __init__(self, offset_ms: int, jumps: Sequence[Jump]) -> None:
        self._asked = [jump.asked_ms for jump in jumps]
        self._done = [jump.done_ms or NEVER_MS for jump in jumps]
        # The clock stands still at the end of a move, for which moment is not known.
        self._least = [offset_ms]
        self._most = [offset_ms]
        for jump, done_ms in zip(jumps, self._done, strict=True):
            self._least.append(max(self._least[-1], jump.to_ms - done_ms))
            self._most.append(max(self._most[-1], jump.to_ms - jump.asked_ms))

    def at_least_ms(self, wall_ms: int) -> int:
        """No earlier than this: moves count once they are done."""
        return wall_ms + self._least[bisect_right(self._done, wall_ms)]

    def at_most_ms(self, wall_ms: int) -> int:
        """No later than this: moves count from when they were asked for."""
        return wall_ms + self._most[bisect_right(self._asked, wall_ms)]

    def wall_ms(self, broker_ms: int) -> int:
        """The moment at which the broker's clock may first have shown this; that of the asking, if it was
        passed by a move.
        """
        for number, offset_ms in enumerate(self._least):
            at_ms = broker_ms - offset_ms
            if number and at_ms < self._done[number - 1]:
                return self._asked[number - 1]
            if number == len(self._asked) or at_ms <= self._asked[number]:
                return at_ms
        raise AssertionError("the last offset holds for ever")
