"""Rates from counters: a counter is cheap on the hot path, the division is done once per interval."""

from __future__ import annotations


class Rate:
    """How fast one counter grew over the last interval, per second."""

    __slots__ = ("_last", "per_s")

    def __init__(self) -> None:
        self._last = 0
        self.per_s = 0.0

    def measure(self, counter: int, elapsed_s: float) -> float:
        """Close an interval of `elapsed_s` seconds at which the counter stands at `counter`."""
        self.per_s = max(counter - self._last, 0) / elapsed_s if elapsed_s > 0 else 0.0
        self._last = counter
        return self.per_s
