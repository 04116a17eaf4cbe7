"""A point between two groups of a journal."""

from __future__ import annotations

from typing import NamedTuple


class JournalPosition(NamedTuple):
    """A place between two groups. Everything before it in this file, and every file before it, comes
    earlier.
    """

    journal_id: int
    offset: int
