"""How late delayed messages were given out: counted in classes, a batch at a time."""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from geminga.tracker.format.rows import Integers

# Fine around the 20 ms that are promised, and up to what an outage costs.
LATENESS_BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000)
_ENDS: Final = np.array(LATENESS_BOUNDS_MS[::-1], np.int64)
_LAST: Final = len(LATENESS_BOUNDS_MS)
_FEW: Final = 16
"""So many are counted faster one by one than by numpy."""


class LatenessCounts(NamedTuple):
    """Of delayed messages that were given out. `counts[i]`: how many were up to the i-th bound late and more
    than the one before, the last one all that were later; those that came early are in none of them.
    """

    bounds_ms: tuple[int, ...]
    counts: tuple[int, ...]
    early: int
    total_ms: int
    """Of those that were not early."""


class Lateness:
    """Of one subscription. `counts[i]` are those up to the i-th bound late and more than the one before; the
    last is for all that were later. What came early is counted apart, and in no class.
    """

    __slots__ = ("counts", "early", "total_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENESS_BOUNDS_MS) + 1)
        self.early = 0
        self.total_ms = 0
        """Of those that were not early."""

    def note(self, due_ms: Integers, now_ms: int) -> None:
        """Messages that were due at these times, ascending, were given out now. Of many, the places where a
        class ends are looked up, not each message: some 10 us, whatever their number.
        """
        if len(due_ms) <= _FEW:
            self._note_few(due_ms.tolist(), now_ms)
            return
        # A bisection for each bound, whatever the size of the read: nothing for a single message.
        places = due_ms.searchsorted(now_ms - _ENDS).tolist()
        on_time = int(due_ms.searchsorted(now_ms, "right"))
        # Apart, as a mean of late and early ones would tell of neither.
        self.early += len(due_ms) - on_time
        self.total_ms += now_ms * on_time - int(due_ms[:on_time].sum())
        for number, (start, end) in enumerate(pairwise((0, *places, on_time))):
            self.counts[_LAST - number] += end - start

    def _note_few(self, due_ms: list[int], now_ms: int) -> None:
        if due_ms and due_ms[-1] <= now_ms:
            least = bisect_left(LATENESS_BOUNDS_MS, now_ms - due_ms[-1])
            # First and last in one class: a wake-up for ten messages costs 0.7 us less than with one step for
            # each.
            if least == bisect_left(LATENESS_BOUNDS_MS, now_ms - due_ms[0]):
                self.counts[least] += len(due_ms)
                self.total_ms += now_ms * len(due_ms) - sum(due_ms)
                return
        for at_ms in due_ms:
            self._note_one(now_ms - at_ms)

    def _note_one(self, late_ms: int) -> None:
        if late_ms < 0:
            self.early += 1
        else:
            self.counts[bisect_left(LATENESS_BOUNDS_MS, late_ms)] += 1
            self.total_ms += late_ms
