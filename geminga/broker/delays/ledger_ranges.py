"""Ranges of ledgers that have to be read once more, and how far that has come. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from geminga.position import Position

# A broker whose thousands of buckets are all lost names a range for each, and each `add` goes through the
# list.
RANGES_MAX = 1000
"""Ranges that are kept apart; beyond it the last two become one, which costs reads only."""


class LedgerRange(NamedTuple):
    """Ledgers `first` to `last`, both included."""

    first: int
    last: int


class LedgerRanges:
    """In order, and no two touch. The first range may have been read in part."""

    __slots__ = ("_at", "_is_asked", "_ranges")

    def __init__(self) -> None:
        self._ranges: Sequence[LedgerRange] = ()
        self._at: Position | None = None
        self._is_asked = False
        """Whether `next_start` was answered since a range was added."""

    def __bool__(self) -> bool:
        return bool(self._ranges)

    @property
    def ranges(self) -> Sequence[LedgerRange]:
        return self._ranges

    def add(self, first: int, last: int) -> None:
        """All of these ledgers is to be read, whatever of it was read before."""
        merged: list[LedgerRange] = []
        for part in sorted([*self._ranges, LedgerRange(first, last)]):
            # Joining costs reads only: what lies between is acknowledged, or in the index, and left out
            # again.
            if merged and (part.first <= merged[-1].last + 1 or len(merged) >= RANGES_MAX):
                merged[-1] = LedgerRange(merged[-1].first, max(merged[-1].last, part.last))
            else:
                merged.append(part)
        self._ranges = merged
        # From the beginning: a new loss may lie before what has been read, and would never be looked at.
        self._at = None
        self._is_asked = False

    def next_start(self) -> tuple[Position, int] | None:
        """Where to read on, and the last ledger to be read; None: all has been read."""
        if not self._ranges:
            return None
        part = self._ranges[0]
        self._is_asked = True
        return self._at or Position(part.first, 0), part.last

    def read_up_to(self, position: Position) -> None:
        """What lies before this, from where `next_start` said, was read. If a range was added since, the
        answer was about less than is to be read now, and does not count.
        """
        if self._is_asked:
            self._at = position

    def drop_first(self) -> None:
        """The first range was read to its end."""
        self._ranges = self._ranges[1:]
        self._at = None

    def take_all(self) -> Sequence[LedgerRange]:
        """All ranges; none is left."""
        ranges = self._ranges
        self.clear()
        return ranges

    def clear(self) -> None:
        self._ranges = ()
        self._at = None
        self._is_asked = False
