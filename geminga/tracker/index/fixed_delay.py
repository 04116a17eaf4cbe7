"""Pulsar's fixed-delay detection: whether all that was added so far was delayed by about the same time.

Then a dispatcher that has tracked enough need not read ahead: what comes is later. Its price is Pulsar's too:
undelayed messages behind `lookahead` delayed ones are not seen until some of those are due.
"""

from __future__ import annotations

from collections.abc import Sequence

from geminga.tracker.index.time_rules import TimeRules


class FixedDelay:
    """Each add so far was accepted and later than those before, but for some jitter. Lookahead 0: off."""

    __slots__ = ("_highest_ms", "_lookahead", "_rules", "is_watched")

    def __init__(self, lookahead: int, rules: TimeRules) -> None:
        self._lookahead = lookahead
        self._rules = rules
        self.reset()

    def reset(self) -> None:
        # Off where buckets are kept or an index is shared: there is no reason to stop reading, and undelayed
        # messages behind 50,000 delayed ones are seen.
        self.is_watched = self._lookahead > 0
        """Whether adds have to be told."""
        self._highest_ms = 0

    def refuse(self) -> None:
        """One was not delayed, or not for long enough."""
        self.is_watched = False

    def add(self, deliver_at_ms: int) -> None:
        if deliver_at_ms > self._highest_ms:
            self._highest_ms = deliver_at_ms
        # A little earlier is no other delay: Pulsar allows a tick.
        elif deliver_at_ms < self._highest_ms - self._rules.jitter_ms:
            self.is_watched = False

    def add_many(self, earliest_ms: int, deliver_at_ms: Sequence[int]) -> None:
        latest_ms = max(deliver_at_ms)
        # Two comparisons for a batch in which all is within the jitter, whatever its order.
        if earliest_ms >= max(self._highest_ms, latest_ms) - self._rules.jitter_ms:
            self._highest_ms = max(self._highest_ms, latest_ms)
            return
        for at_ms in deliver_at_ms:
            self.add(at_ms)

    def is_full(self, tracked: int) -> bool:
        return self.is_watched and tracked >= self._lookahead
