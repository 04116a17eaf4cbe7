"""Summaries of durations: exact counts and sums, quantiles a tenth too high at most."""

from __future__ import annotations

import math
import statistics

from hypothesis import given
from hypothesis import strategies as st

from geminga.durations import BOUNDS_MS, NOTHING, Durations, total


@given(st.lists(st.floats(0.02, 100_000), min_size=1, max_size=200), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_a_quantile_is_that_of_the_last_interval(took_ms: list[float], quantile: float) -> None:
    durations = Durations()
    durations.add(1e9)
    durations.measure()
    for each in took_ms:
        durations.add(each)
    durations.measure()
    found = durations.summary()
    assert found.events == len(took_ms) + 1
    assert math.isclose(found.total_ms, math.fsum(took_ms) + 1e9)
    exact = sorted(took_ms)[max(0, math.ceil(quantile * len(took_ms)) - 1)]
    assert exact <= found.quantile_ms(quantile) <= exact * 1.1 + BOUNDS_MS[0]


def test_an_interval_without_events_has_no_quantiles() -> None:
    durations = Durations()
    assert math.isnan(NOTHING.quantile_ms(0.5))
    durations.add(2.0, 3)
    durations.measure()
    assert durations.summary().quantile_ms(0.5) < 2.3
    durations.measure()
    assert math.isnan(durations.summary().quantile_ms(0.5))
    assert durations.summary()[:2] == (3, 6.0)


def test_several_places_together() -> None:
    parts = [Durations(), Durations(), Durations()]
    for number, part in enumerate(parts[:2]):
        part.add(10.0**number)
        part.measure()
    found = total([part.summary() for part in parts])
    assert (found.events, found.total_ms) == (2, 11.0)
    assert found.quantile_ms(0.5) < statistics.mean((1, 10)) < found.quantile_ms(1.0)
