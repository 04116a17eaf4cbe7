"""Entries of a ledger as ranges of ids."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from geminga.bookie.records.records import Run


def runs_of(entry_ids: Iterable[int]) -> list[tuple[int, int]]:
    """(first, last) of each run of consecutive ids. `entry_ids` are ascending."""
    runs: list[tuple[int, int]] = []
    for each in entry_ids:
        if runs and runs[-1][1] == each - 1:
            runs[-1] = runs[-1][0], each
        else:
            runs.append((each, each))
    return runs


def joined(runs: Iterable[Run]) -> list[Run]:
    """Runs in order of ledger and entries, with adjacent runs joined."""
    found: list[Run] = []
    for run in runs:
        before = found[-1] if found else None
        if before is not None and before.ledger_id == run.ledger_id and before.last == run.first - 1:
            found[-1] = Run(run.ledger_id, before.first, run.last)
        else:
            found.append(run)
    return found


class EntryRanges:
    """Ascending, disjoint ranges of entry ids; adjacent ranges are joined."""

    # Two lists of numbers and not a list of pairs: a damaged log may cost thousands of ranges, and `bisect`
    # on plain integers needs no key function.
    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def __len__(self) -> int:
        return len(self._firsts)

    def missing_before(self, first: int) -> int | None:
        """The first of the missing entries directly before this one; None if none is missing there."""
        at = bisect_right(self._firsts, first)
        last = self._lasts[at - 1] if at else -1
        return last + 1 if last < first - 1 else None

    def missing(self, first: int, last: int) -> list[tuple[int, int]]:
        """(first, last) of each missing part of these entries."""
        pieces = []
        while first <= last:
            at = bisect_right(self._firsts, first)
            if at and self._lasts[at - 1] >= first:
                first = self._lasts[at - 1] + 1
                continue
            end = min(last, self._firsts[at] - 1) if at < len(self._firsts) else last
            pieces.append((first, end))
            first = end + 1
        return pieces

    def add(self, first: int, last: int) -> list[tuple[int, int]]:
        """Add these entries; returns (first, last) of each part that is new."""
        pieces = self.missing(first, last)
        for begin, end in pieces:
            at = bisect_right(self._firsts, begin)
            if at and self._lasts[at - 1] == begin - 1:
                self._lasts[at - 1] = end
            else:
                self._firsts.insert(at, begin)
                self._lasts.insert(at, end)
        return pieces
