"""Which buckets are merged when there are too many. Pure.

With room for k buckets, each row written at most d times (the first included), C(k + d, d) - 1 buckets of
one size can be taken in and not one more; what reaches this always merges a number of the newest buckets into
one, and lets an older bucket be as large as the rest has to become before it is touched again ("Bigtable
merge compaction", Mathieu, Staelin, Young and Yousefi 2014). So 2,000 sealed buckets at a bound of 50 are
written 2.7 times, and the number of times grows with the logarithm.

Buckets are not of one size here, and shrink as their messages are delivered. Hence sizes count, not numbers,
and where a few neighbours have become so small that merging them alone is far cheaper for each bucket less,
that is done instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import comb
from typing import Final

# Without slack a bucket that is a few rows too small would be written again, together with all that are
# newer.
LARGE_ENOUGH: Final = 0.75
"""A bucket with this share of the size that it should have is left as it is."""
# For buckets of one size the plan above is the best there is, so it is left for a clear gain only.
FAR_CHEAPER: Final = 8
WINDOW_MAX: Final = 8
"""Most neighbours that are merged because they are small."""
SOURCES_MAX: Final = 128
"""About the most that are merged at once, as all are open at the same time. Under a larger bound only the
newest are ever merged, as if there might be no more than these.
"""


def choose_merge(sizes: Sequence[int], buckets_max: int) -> tuple[int, int] | None:
    """The neighbours to merge, first and one past the last, of buckets with so many rows each, in the order
    of their ledgers; None if there are not more than `buckets_max` (0 or less: never).

    Merging until this answers None takes the number down to any bound from 1 on.
    """
    if buckets_max <= 0 or len(sizes) <= buckets_max:
        return None
    if buckets_max > SOURCES_MAX:
        # All sources are open at once, each with segments in memory, and a bound of thousands may be
        # configured.
        left_alone = buckets_max - SOURCES_MAX
        start, end = _choose(sizes[left_alone:], SOURCES_MAX)
        return start + left_alone, end + left_alone
    return _choose(sizes, buckets_max)


def _choose(sizes: Sequence[int], buckets_max: int) -> tuple[int, int]:
    # Pulsar's choice of neighbours takes the big old bucket into each merge when delivery times rise: 400
    # buckets at a bound of 10 were written 56 times over.
    start = _newest_to_merge(sizes, buckets_max)
    end = min(len(sizes), start + SOURCES_MAX + 1)
    # Rows for each bucket less: what a merge costs and what it brings.
    price = sum(sizes[start:end]) / (end - start - 1)
    cheapest, window = _cheapest_window(sizes)
    return window if cheapest * FAR_CHEAPER < price else (start, end)


def _newest_to_merge(sizes: Sequence[int], buckets_max: int) -> int:
    """From which bucket on all are merged: the oldest that is smaller than it should be."""
    # The newest one, as the others may be half delivered: it shows how large a bucket is when it is sealed.
    unit = max(1, sizes[-1])
    left = sum(sizes)
    for i in range(len(sizes) - 2):
        if i >= buckets_max - 1:
            return i
        if sizes[i] < LARGE_ENOUGH * unit * _first_of(max(1, round(left / unit)), buckets_max - i):
            return i
        left -= sizes[i]
    return len(sizes) - 2


def _first_of(units: int, slots: int) -> int:
    """How large the oldest of `slots` buckets is when so many of size 1 were merged into them."""
    depth = 1
    while comb(slots + depth, depth) - 1 < units:
        depth += 1
    return comb(slots + depth - 1, depth - 1)


def _cheapest_window(sizes: Sequence[int]) -> tuple[float, tuple[int, int]]:
    """The neighbours with the fewest rows for each bucket less."""
    best = float("inf"), (0, 2)
    for start in range(len(sizes) - 1):
        total = sizes[start]
        for end in range(start + 2, min(start + WINDOW_MAX, len(sizes)) + 1):
            total += sizes[end - 1]
            best = min(best, (total / (end - start - 1), (start, end)))
    return best
