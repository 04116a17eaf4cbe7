"""Percentiles out of a histogram, against the exact ones."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from geminga.cli.perf.latency import Histogram


def test_percentiles_are_within_two_percent() -> None:
    generator = random.Random(1)
    values = sorted(int(generator.lognormvariate(8, 2)) for _ in range(20_000))
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    for percent in (1, 50, 90, 99, 99.9):
        exact = values[min(int(len(values) * percent / 100), len(values) - 1)]
        assert abs(histogram.percentile(percent) - exact) <= exact * 0.02 + 2
    assert histogram.max == values[-1]
    assert histogram.count == 20_000
    assert abs(histogram.mean - sum(values) / len(values)) < 1e-6


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=50), st.lists(st.integers(0, 2**62), max_size=50))
def test_a_merge_is_the_same_as_adding_all(first: list[int], second: list[int]) -> None:
    merged, other, whole = Histogram(), Histogram(), Histogram()
    for value in first:
        merged.add(value)
    for value in second:
        other.add(value)
    for value in first + second:
        whole.add(value)
    merged.merge(other)
    assert [merged.percentile(p) for p in (0, 50, 100)] == [whole.percentile(p) for p in (0, 50, 100)]
    assert whole.percentile(100) <= whole.max
    assert whole.percentile(100) >= whole.max * 0.98


def test_nothing_is_zero() -> None:
    assert Histogram().percentile(50) == 0
    assert Histogram().mean == 0
