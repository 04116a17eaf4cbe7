"""How long things took: counted by class, told as Prometheus summaries."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Final, NamedTuple

# Each bound is a tenth above the one before it: a quantile is at most so much too high.
BOUNDS_MS: Final = tuple(accumulate([1.1] * 166, lambda bound, factor: bound * factor, initial=0.02))
"""From 20 us to 2.5 minutes."""


class Summary(NamedTuple):
    """Count and sum since the start; the quantiles are of the last interval."""

    events: int
    total_ms: float
    classes: tuple[int, ...]
    """How many of the last interval were up to each of BOUNDS_MS and longer than the one before; then all
    longer ones.
    """

    def quantile_ms(self, quantile: float) -> float:
        """NaN if nothing was counted in the last interval."""
        rank = quantile * sum(self.classes)
        seen = 0
        for bound, count in zip((*BOUNDS_MS, float("inf")), self.classes, strict=False):
            seen += count
            if count and seen >= rank:
                return bound
        return float("nan")


NOTHING: Final = Summary(0, 0.0, ())


def total(parts: list[Summary]) -> Summary:
    """Of several places together."""
    counted = [part.classes for part in parts if part.classes]
    classes = tuple(map(sum, zip(*counted, strict=True)))
    return Summary(sum(part.events for part in parts), sum(part.total_ms for part in parts), classes)


class Durations:
    """Of one kind of event; `add` costs half a microsecond."""

    __slots__ = ("_classes", "_count", "_past", "_total_ms")

    def __init__(self) -> None:
        self._count = 0
        self._total_ms = 0.0
        self._classes = [0] * (len(BOUNDS_MS) + 1)
        self._past: tuple[int, ...] = ()

    def add(self, took_ms: float, count: int = 1) -> None:
        """So many events took so long each."""
        self._classes[bisect_left(BOUNDS_MS, took_ms)] += count
        self._count += count
        self._total_ms += took_ms * count

    def measure(self) -> None:
        """Close the interval: the quantiles tell of it until the next one is closed."""
        if any(self._classes):
            self._past = tuple(self._classes)
            self._classes = [0] * len(self._classes)
        else:
            self._past = ()

    def summary(self) -> Summary:
        return Summary(self._count, self._total_ms, self._past)
