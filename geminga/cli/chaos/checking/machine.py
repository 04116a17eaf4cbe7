"""How far the machine, and not the broker, held things up: the probes of a run, summed. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from geminga.cli.chaos.checking.history import Probe

BUSY_SHARE = 0.5
"""With more than this share of a time spent waiting nothing can be said of the broker in that time."""


class Machine:
    def __init__(self, probes: Sequence[Probe]) -> None:
        self._at = [probe.at_ms for probe in probes]
        held = (probe.late_ms + probe.client_waits_ms + probe.broker_waits_ms for probe in probes)
        self._sums = [0.0, *accumulate(held)]
        self.latest_ms = max((probe.late_ms for probe in probes), default=0.0)
        """How late the run's own timer fired at worst."""

    def waits_ms(self, from_ms: int, to_ms: int) -> int:
        """For how long client and broker waited for the machine between two moments, both included."""
        first = bisect_left(self._at, from_ms)
        # The probe after the end tells of the time before it.
        last = min(bisect_right(self._at, to_ms) + 1, len(self._at))
        return round(self._sums[last] - self._sums[first]) if first < last else 0

    def is_too_slow(self, from_ms: int, to_ms: int) -> bool:
        """Whether the machine had so little time for both that silence says nothing."""
        return self.waits_ms(from_ms, to_ms) > BUSY_SHARE * max(1, to_ms - from_ms)
