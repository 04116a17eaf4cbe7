"""Rates from counters: the hot path only counts, and a division follows once per interval."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import cache

from geminga.broker.flow.statistics import Classes


class Rate:
    """The growth of one counter over the last interval, per second."""

    __slots__ = ("_last", "per_s")

    def __init__(self) -> None:
        self._last = 0
        self.per_s = 0.0

    def measure(self, counter: int, elapsed_s: float) -> float:
        """Close an interval of `elapsed_s` seconds that ends with the counter at `counter`."""
        self.per_s = max(counter - self._last, 0) / elapsed_s if elapsed_s > 0 else 0.0
        self._last = counter
        return self.per_s


@cache
def _zeros(count: int) -> tuple[int, ...]:
    """One list of zeros for all histograms of a kind, because most topics are idle."""
    return (0,) * count


class Histogram:
    """The number of values in each class since the interval began; the classes are not cumulative."""

    __slots__ = ("_bounds", "_counts", "_past", "_past_sum", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` are the upper ends of the classes, ascending; one more class has the values above the
        last.
        """
        self._bounds = tuple(bounds)  # the one that was given, if it is a tuple
        self._counts: list[int] | None = None  # made with the first value: most topics are idle
        self._sum = 0.0
        self._past = _zeros(len(bounds) + 1)
        self._past_sum = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Add `count` values equal to `value`. Hot: called once for an entry or for a group of
        equal ones.
        """
        counts = self._counts
        if counts is None:
            counts = self._counts = [0] * (len(self._bounds) + 1)
        counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def measure(self) -> None:
        """Close the interval: `classes` describes it until the next one is closed."""
        if self._counts is None:
            self._past, self._past_sum = _zeros(len(self._bounds) + 1), 0.0
        else:
            self._past, self._past_sum = tuple(self._counts), self._sum
            self._counts, self._sum = None, 0.0

    def classes(self) -> Classes:
        """The classes of the last closed interval, as Pulsar exposes them."""
        return Classes(self._past, self._past_sum)
