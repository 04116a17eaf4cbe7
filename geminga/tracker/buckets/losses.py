"""Which buckets were lost, how that was found, and what became of their messages: for the operator."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, Literal

LostBy = Literal["start", "load", "verify", "told"]
LOST_BY: Final[tuple[LostBy, ...]] = ("start", "load", "verify", "told")
# A bound on memory: beyond it only the counts of what is read again are too low.
LOST_MAX: Final = 1000


class Losses:
    """Counts since the process began. Remembers the ranges of the last `LOST_MAX` lost buckets, so that it
    can tell which messages are looked up, and which buckets are sealed, because of them.
    """

    def __init__(self) -> None:
        self.by: dict[LostBy, int] = dict.fromkeys(LOST_BY, 0)
        """How many buckets were lost, by how it was found."""
        self.read_again = 0
        """How many messages of lost buckets were looked up in the backlog."""
        self.rebuilt = 0
        """How many sealed buckets have messages of lost ones."""
        self._ranges: deque[tuple[int, int]] = deque(maxlen=LOST_MAX)

    def __bool__(self) -> bool:
        return bool(self._ranges)

    def count(self, how: LostBy, first_code: int, last_code: int) -> None:
        """A bucket that spans these positions, both included, is lost."""
        self.by[how] += 1
        self._ranges.append((first_code, last_code))

    def count_read_again(self, codes: Sequence[int]) -> None:
        """These delayed messages, ascending, were looked up in the backlog: count what a lost bucket had."""
        # Two comparisons for each range and read; each message is compared only with ranges that are near.
        near = [(first, last) for first, last in self._ranges if first <= codes[-1] and codes[0] <= last]
        if near:
            self.read_again += sum(any(first <= code <= last for first, last in near) for code in codes)

    def count_sealed(self, first_code: int, last_code: int) -> bool:
        """Whether a bucket that was sealed for these positions has messages of a lost one."""
        is_rebuilt = any(first <= last_code and first_code <= last for first, last in self._ranges)
        self.rebuilt += is_rebuilt
        return is_rebuilt
