"""How far the machine, and not the broker, held things up: the probes of a run, summed. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from geminga.cli.chaos.checking.history import Probe

BUSY_SHARE = 0.5
"""With more than this share of a time without the machine, nothing can be said of client or broker in it."""


class Machine:
    def __init__(self, probes: Sequence[Probe]) -> None:
        self._at = [probe.at_ms for probe in probes]
        # A timer that fires late has waited for the processor: it is the same time twice.
        self._client = _sums([max(probe.late_ms, probe.client_waits_ms) for probe in probes])
        self._timer = _sums([probe.late_ms for probe in probes])
        self._broker = _sums([probe.broker_waits_ms for probe in probes])
        self.latest_ms = max((probe.late_ms for probe in probes), default=0.0)
        """How late the run's own timer fired at worst."""

    def waits_ms(self, from_ms: int, to_ms: int) -> int:
        """For how long client and broker waited for the machine between two moments, both included."""
        first, last = self._within(from_ms, to_ms)
        return round(sum(sums[last] - sums[first] for sums in (self._client, self._broker)))

    def stretched_ms(self, length_ms: int, to_ms: int) -> int:
        """How long before `to_ms` something may have begun that takes `length_ms` where nothing has to wait.
        Eight times as long at most.
        """
        long_ms = length_ms
        for _ in range(3):  # what is waited for makes room for more waits
            long_ms = length_ms + min(self.waits_ms(to_ms - long_ms, to_ms), 7 * length_ms)
        return long_ms

    def is_too_slow(self, from_ms: int, to_ms: int) -> bool:
        """Whether one of the two had so little time that silence says nothing."""
        first, last = self._within(from_ms, to_ms)
        waits_ms = max(sums[last] - sums[first] for sums in (self._timer, self._broker))
        return waits_ms > BUSY_SHARE * max(1, to_ms - from_ms)

    def _within(self, from_ms: int, to_ms: int) -> tuple[int, int]:
        first = bisect_left(self._at, from_ms)
        # The probe after the end tells of the time before it.
        return first, max(first, min(bisect_right(self._at, to_ms) + 1, len(self._at)))


def _sums(waits_ms: Sequence[float]) -> list[float]:
    return [0.0, *accumulate(waits_ms)]
