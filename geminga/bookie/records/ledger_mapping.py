"""Maps a ledger to its journal and its ledger directory, for good. As in BookKeeper, the index of either is
the ledger's id modulo their number.

The first start fixes the lists of directories (`bookie/running/directory_lists.py`), so the numbers never
change.
"""

from __future__ import annotations

from collections.abc import Iterable

from geminga.bookie.records.journal_position import JournalPosition


def directory_index(ledger_id: int, count: int) -> int:
    """The index, from 0, of a ledger's journal or ledger directory, among `count` of them."""
    # No table: the mapping must be known to a start that has nothing but the files.
    return ledger_id % count


def needed_from(marks: Iterable[tuple[JournalPosition, ...]]) -> tuple[JournalPosition, ...]:
    """For each journal, the earliest position that some ledger directory still needs. `marks` has, for each
    ledger directory, its mark in each journal: the position before which it needs nothing.
    """
    return tuple(min(of_journal) for of_journal in zip(*marks, strict=True))
