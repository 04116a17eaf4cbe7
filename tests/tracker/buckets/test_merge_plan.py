"""What is merged, and how much is written for it."""

from __future__ import annotations

from math import comb

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.tracker.buckets.merge_plan import SOURCES_MAX, WINDOW_MAX, choose_merge


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


def most_writes(seals: int, buckets_max: int, size: int) -> int:
    """How often the row that was written most often was written, after so many seals of equal size."""
    buckets: list[tuple[int, int]] = []
    for _ in range(seals):
        buckets.append((size, 1))
        while (window := choose_merge([rows for rows, _ in buckets], buckets_max)) is not None:
            sources = buckets[slice(*window)]
            merged = sum(rows for rows, _ in sources), 1 + max(writes for _, writes in sources)
            buckets[slice(*window)] = [merged]
    return max(writes for _, writes in buckets)


@pytest.mark.parametrize("size", [1, 50_000])
@pytest.mark.parametrize(
    ("buckets_max", "depth"), [(1, 4), (2, 3), (2, 4), (3, 2), (3, 4), (5, 3), (10, 2), (20, 2)]
)
def test_as_many_buckets_as_a_number_of_writes_allows_are_taken_in(
    buckets_max: int, depth: int, size: int
) -> None:
    """C(k + d, d) - 1 buckets of one size, and not one more: the optimum for a bound of k and d writes."""
    seals = comb(buckets_max + depth, depth) - 1
    assert most_writes(seals, buckets_max, size) == depth
    assert most_writes(seals + 1, buckets_max, size) == depth + 1


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


@pytest.mark.parametrize(("sizes", "buckets_max"), [([100, 10, 10, 10], 1), ([1000, 100, 10, 10, 10], 2)])
def test_a_bound_that_was_lowered_is_reached_in_one_merge(sizes: list[int], buckets_max: int) -> None:
    """The last bucket that there may be takes in all that are newer, however large it is."""
    assert choose_merge(sizes, buckets_max) == (buckets_max - 1, len(sizes))


def test_a_few_rows_between_large_buckets_are_merged_alone() -> None:
    start, end = choose_merge([10**6, 10**6, 3, 2, 10**6, 10**6], 5) or (0, 0)
    assert (start, end) == (2, 4)


LARGE = 10**9


@pytest.mark.parametrize(
    ("sizes", "window"),
    [
        ([LARGE, 3, 3, LARGE, 5, 5, 5, LARGE], (1, 3)),  # 6 rows for one bucket less, 15 for two
        ([LARGE, 4, 4, LARGE, 5, 5, 5, LARGE], (4, 7)),  # 8 for one, 15 for two
        ([LARGE, 5, 5, 5, LARGE, 4, 4, LARGE], (1, 4)),
        ([LARGE, 5, 5, 5, LARGE, 4, 4, 4, 4, LARGE], (5, 9)),  # 15 for two, 16 for three
        ([LARGE, 2, 2, LARGE, *[1] * WINDOW_MAX, LARGE], (4, 4 + WINDOW_MAX)),
    ],
)
def test_of_small_neighbours_those_with_the_fewest_rows_for_each_bucket_less_are_merged(
    sizes: list[int], window: tuple[int, int]
) -> None:
    assert choose_merge(sizes, len(sizes) - 1) == window


@pytest.mark.parametrize("buckets_max", [SOURCES_MAX + 1, 1000, 2000])
def test_under_a_large_bound_only_the_newest_are_ever_merged(buckets_max: int) -> None:
    """However few rows the oldest have."""
    left_alone = buckets_max - SOURCES_MAX
    sizes = [1] * left_alone + [50_000] * (SOURCES_MAX + 1)
    start, end = choose_merge(sizes, buckets_max) or (0, 0)
    assert left_alone <= start < end <= len(sizes)
    sizes[-3:-1] = [2, 2]
    assert choose_merge(sizes, buckets_max) == (len(sizes) - 3, len(sizes) - 1)


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
