"""A point between two groups of a journal."""

from __future__ import annotations

from typing import NamedTuple


class JournalPosition(NamedTuple):
    """A position between two groups. All bytes before it in its file, and all earlier files, precede it."""

    journal_id: int
    offset: int
