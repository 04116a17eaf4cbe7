"""Which journal and which ledger directory a ledger belongs to, for good. After BookKeeper, which takes the
ledger's id modulo their number for both.

The lists of directories are fixed with the first start (`bookie/running/directory_lists.py`), so the numbers
never change.
"""

from __future__ import annotations

from collections.abc import Iterable

from geminga.bookie.records.journal_position import JournalPosition


def directory_index(ledger_id: int, count: int) -> int:
    """The number, counted from 0, of the one of `count` journals, or ledger directories, that is the
    ledger's.
    """
    # No table: the mapping must be known to a start that has nothing but the files.
    return ledger_id % count


def needed_from(marks: Iterable[tuple[JournalPosition, ...]]) -> tuple[JournalPosition, ...]:
    """For each journal the position from which on some ledger directory needs it. `marks` has, for each
    ledger directory, the positions up to which it needs none of them.
    """
    return tuple(min(of_journal) for of_journal in zip(*marks, strict=True))
