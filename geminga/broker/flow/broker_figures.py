"""What is counted for the broker as a whole: latencies, look-ups, loads, the tail cache, turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from geminga.bookie.running.statistics import measure
from geminga.broker.flow.rates import Rate
from geminga.broker.flow.statistics import CacheStatistics, TurnStatistics
from geminga.clock import RealClock
from geminga.durations import Durations

if TYPE_CHECKING:
    from geminga.bookie.running.bookie import Bookie
    from geminga.managed_ledger.chain.tail_cache import TailCache

_monotonic_s = RealClock().monotonic_s


class LoopTurns:
    """The turns of the event loop: `begin` and `end` are called at the edges of each."""

    __slots__ = (
        "_began_s",
        "_busy_s",
        "_longest_ever_s",
        "_longest_s",
        "_past_longest_s",
        "_pauses",
        "_turns",
    )

    def __init__(self) -> None:
        self._turns = self._pauses = 0
        self._busy_s = 0.0
        self._longest_s = self._past_longest_s = self._longest_ever_s = 0.0
        self._began_s = _monotonic_s()

    def begin(self) -> None:
        self._began_s = _monotonic_s()

    def end(self) -> float:
        """Returns how long the turn was, in seconds."""
        took_s = _monotonic_s() - self._began_s
        self._turns += 1
        self._busy_s += took_s
        if took_s > self._longest_s:
            self._longest_s = took_s
        return took_s

    def pause(self) -> None:
        """The loop pauses before it waits: see `Coalescing`."""
        self._pauses += 1

    def measure(self) -> None:
        """Close one interval."""
        self._past_longest_s, self._longest_s = self._longest_s, 0.0
        self._longest_ever_s = max(self._longest_ever_s, self._past_longest_s)

    def statistics(self) -> TurnStatistics:
        # An interval is a minute long: a turn that holds up everybody shows in the next scrape already.
        longest_s = max(self._longest_s, self._past_longest_s)
        longest_ever_s = max(longest_s, self._longest_ever_s)
        return TurnStatistics(self._turns, self._pauses, self._busy_s, longest_s, longest_ever_s)


class CacheRates:
    """How fast the tail cache is hit and missed."""

    def __init__(self) -> None:
        self._hits, self._hit_bytes = Rate(), Rate()
        self._misses, self._missed_bytes = Rate(), Rate()
        self._evictions = self._past_evictions = 0

    def measure(self, cache: TailCache, elapsed_s: float) -> None:
        found = cache.statistics()
        self._hits.measure(found.entries_served, elapsed_s)
        self._hit_bytes.measure(found.bytes_served, elapsed_s)
        self._misses.measure(found.entries_missed, elapsed_s)
        self._missed_bytes.measure(found.bytes_missed, elapsed_s)
        self._evictions, self._past_evictions = found.evictions - self._past_evictions, found.evictions

    def statistics(self, cache: TailCache) -> CacheStatistics:
        found = cache.statistics()
        return CacheStatistics(
            used_bytes=found.bytes_used,
            entries=found.entries_inserted - found.entries_evicted,
            inserted=found.entries_inserted,
            evicted=found.entries_evicted,
            evictions=self._evictions,
            served=found.entries_served,
            missed=found.entries_missed,
            hits_per_s=self._hits.per_s,
            hit_bytes_per_s=self._hit_bytes.per_s,
            misses_per_s=self._misses.per_s,
            missed_bytes_per_s=self._missed_bytes.per_s,
        )


class BrokerFigures:
    """One per broker. Rates and quantiles are those of the last interval that `measure` has closed."""

    def __init__(self) -> None:
        self.publishes = Durations()
        """Of entries, from SEND to durable: those that became durable together all as long as the oldest."""
        self.lookups = Durations()
        self.lookup_failures = 0
        self.topic_loads = Durations()
        self.topic_load_failures = 0
        self.cache = CacheRates()
        self.turns = LoopTurns()

    def lookup_failed(self) -> None:
        self.lookup_failures += 1

    def topic_load_failed(self) -> None:
        self.topic_load_failures += 1

    def measure(self, elapsed_s: float, bookie: Bookie, cache: TailCache) -> None:
        """Close one interval of `elapsed_s` seconds."""
        for durations in (self.publishes, self.lookups, self.topic_loads):
            durations.measure()
        measure(bookie.counts, bookie.directories)
        self.cache.measure(cache, elapsed_s)
        self.turns.measure()
