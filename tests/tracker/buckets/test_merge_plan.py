"""What is merged, and how much is written for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.tracker.buckets.merge_plan import SOURCES_MAX, choose_merge


def seal_all(seals: int, buckets_max: int, sizes_of: list[int]) -> tuple[float, list[int]]:
    """Rows written for each row sealed, and what is left."""
    sizes: list[int] = []
    written = sealed = 0
    for number in range(seals):
        size = sizes_of[number % len(sizes_of)]
        sizes.append(size)
        written += size
        sealed += size
        while (window := choose_merge(sizes, buckets_max)) is not None:
            start, end = window
            assert 0 <= start <= end - 2 < len(sizes), "at least two buckets, which are there"
            merged = sum(sizes[start:end])
            written += merged
            sizes[start:end] = [merged]
        assert buckets_max <= 0 or len(sizes) <= buckets_max
    assert sum(sizes) == sealed
    return written / sealed, sizes


UNEVEN = [50_000 + n * n * 37 % 70_000 for n in range(97)]


@pytest.mark.parametrize(
    ("seals", "buckets_max", "most"),
    [(200, 50, 4), (400, 50, 4), (2000, 50, 4), (20_000, 50, 5), (400, 10, 6), (2000, 10, 8)],
)
@pytest.mark.parametrize("sizes", [[50_000], UNEVEN], ids=["even", "uneven"])
def test_writes_grow_with_the_logarithm_of_the_buckets(
    seals: int, buckets_max: int, most: float, sizes: list[int]
) -> None:
    """Pulsar rewrites its oldest bucket again and again: 56 times as much for 400 buckets at most 10."""
    written, _ = seal_all(seals, buckets_max, sizes)
    print(f"{seals} seals, at most {buckets_max}: each row is written {written:.2f} times")
    assert written <= most


@pytest.mark.parametrize("buckets_max", [1, 2, 3])
def test_small_bounds(buckets_max: int) -> None:
    """Pulsar's testMergeSupportsSmallMaxNumBuckets, testSelectMergedBucketsSupportsTwoBuckets."""
    _, sizes = seal_all(40, buckets_max, [5])
    assert len(sizes) <= buckets_max
    assert choose_merge([7, 9], 1) == (0, 2)


@pytest.mark.parametrize("buckets_max", [0, -1, 5])
def test_nothing_is_merged_within_the_bound(buckets_max: int) -> None:
    """Pulsar's testMergeEarlyReturnWhenWithinLimit; 0 and less are no bound."""
    assert choose_merge([1, 2, 3, 4, 5], buckets_max) is None


def test_a_large_old_bucket_is_left_alone() -> None:
    """Nothing but small ones are merged while the old one is far larger than all of them."""
    start, end = choose_merge([1_000_000, *[50_000] * 10], 10) or (0, 0)
    assert start >= 1
    assert end == 11


def test_a_few_rows_between_large_buckets_are_merged_alone() -> None:
    start, end = choose_merge([10**6, 10**6, 3, 2, 10**6, 10**6], 5) or (0, 0)
    assert (start, end) == (2, 4)


def test_only_so_many_are_merged_at_once() -> None:
    """Whether the bound is large, or was lowered."""
    written, sizes = seal_all(6000, 1000, [7])
    assert len(sizes) <= 1000
    assert written <= 4
    sizes = [5] * 1000
    while (window := choose_merge(sizes, 3)) is not None:
        start, end = window
        assert end - start <= SOURCES_MAX + 1
        sizes[start:end] = [sum(sizes[start:end])]
    assert len(sizes) <= 3


@given(st.lists(st.integers(1, 10**7), min_size=1, max_size=60), st.integers(1, 55))
def test_any_sizes_come_down_to_the_bound(sizes: list[int], buckets_max: int) -> None:
    while (window := choose_merge(sizes, buckets_max)) is not None:
        start, end = window
        assert 0 <= start <= end - 2 < len(sizes)
        sizes[start:end] = [sum(sizes[start:end])]
    assert len(sizes) <= buckets_max
