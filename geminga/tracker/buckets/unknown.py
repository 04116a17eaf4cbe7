"""The ledgers of which an index does not know yet what waits in them: their buckets have not been read."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate


class UnknownLedgers:
    """Ranges of ledgers, first and last both included, by the key of the bucket that is to be read."""

    def __init__(self) -> None:
        self._ranges: dict[str, tuple[int, int]] = {}
        # Sorted, for a binary search: the first ledger of each range, and the last of all ranges up to it.
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def expect(self, ranges: Mapping[str, tuple[int, int]]) -> None:
        self._ranges.update(ranges)
        self._sort()

    def settle(self, key: str) -> tuple[int, int]:
        """The bucket of this key was read, or never will be. Returns its range."""
        # Not sorted here: a start that takes over thousands of buckets would sort as often, for nothing.
        return self._ranges.pop(key)

    def _sort(self) -> None:
        ranges = sorted(self._ranges.values())
        self._firsts = [first for first, _ in ranges]
        # Of all up to it, as ranges may overlap: a long one may end behind those that begin after it.
        self._lasts = list(accumulate((last for _, last in ranges), max))

    def has(self, ledger_id: int) -> bool:
        """Whether a bucket that has not been read may say when entries of this ledger are due."""
        if len(self._firsts) != len(self._ranges):
            self._sort()
        # Asked for each ledger that a read passes: going through 2,000 buckets took a millisecond each time.
        place = bisect_right(self._firsts, ledger_id) - 1
        return place >= 0 and ledger_id <= self._lasts[place]
