"""How many rows and bytes entries hold, estimated from a few of them. Pure."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from geminga.pipeline.client.shared_connection import EntryFacts
from geminga.pipeline.triggers.windows import Window

SAMPLES_MAX = 64
"""Of one topic."""
_ALMOST = 1e-6


@dataclass
class Limit:
    """What may still be read. None: no bound."""

    rows: float | None = None
    size_bytes: float | None = None

    @property
    def is_none(self) -> bool:
        return self.rows is None and self.size_bytes is None

    @property
    def is_spent(self) -> bool:
        return (self.rows is not None and self.rows < 1) or (
            self.size_bytes is not None and self.size_bytes <= 0
        )

    def share(self, parts: int) -> Limit:
        """An equal part of what is left, at least one row and byte."""
        rows = None if self.rows is None else max(self.rows // parts, 1)
        size_bytes = None if self.size_bytes is None else max(self.size_bytes // parts, 1)
        return Limit(rows, size_bytes)

    def spend(self, rows: float, size_bytes: float) -> None:
        if self.rows is not None:
            self.rows -= rows
        if self.size_bytes is not None:
            self.size_bytes -= size_bytes

    def exhaust(self) -> None:
        """Nothing more may be read, even if part of a message's bytes is left. Without a bound there is
        nothing to exhaust.
        """
        self.rows = None if self.rows is None else 0
        self.size_bytes = None if self.size_bytes is None else 0


@dataclass
class Samples:
    """Entries of one topic that were looked at."""

    entries: list[EntryFacts] = field(default_factory=list)
    """In order, each once."""

    def add(self, facts: EntryFacts) -> None:
        if facts not in self.entries:
            insort(self.entries, facts)

    def forget_before(self, entry: tuple[int, int]) -> None:
        """But the last of them, which still tells something; and more than may be kept."""
        before = sum((facts.ledger_id, facts.entry_id) < entry for facts in self.entries)
        del self.entries[: max(before - 1, len(self.entries) - SAMPLES_MAX, 0)]

    def at(self, entry: tuple[int, int]) -> EntryFacts | None:
        for facts in self.entries:
            if (facts.ledger_id, facts.entry_id) == entry:
                return facts
        return None


class Piece(NamedTuple):
    """Entries that are taken for equal."""

    entries: int
    rows: float
    """Of each."""
    size_bytes: float
    """Of each."""


def pieces(window: Window, samples: list[EntryFacts]) -> list[Piece]:
    """The window cut so that each entry is taken for the nearest that was looked at; its bytes for the
    average of its ledger where that is known. `samples` in order, never none.
    """
    ordinals = [window.ordinal((facts.ledger_id, facts.entry_id)) for facts in samples]
    borders = [(one + other) // 2 + 1 for one, other in pairwise(ordinals)]
    found: list[Piece] = []
    at, sample = 0, 0
    for part in window.parts:
        end = at + part.last - part.first
        while at < end:
            while sample < len(borders) and borders[sample] <= at:
                sample += 1
            until = min(end, borders[sample]) if sample < len(borders) else end
            facts = samples[sample]
            found.append(Piece(until - at, facts.rows, part.entry_bytes or facts.size_bytes))
            at = until
    return found


class Reach(NamedTuple):
    """How many entries a limit admits, and what they are thought to hold."""

    entries: int
    rows: float
    size_bytes: float


def reach(found: list[Piece], limit: Limit, rows_read: int = 0) -> Reach:
    """`rows_read`: of the first entry, before. Rows: not more than the limit; bytes: up to the entry that
    reaches it.
    """
    rows = -min(rows_read, found[0].rows) if found else 0.0
    entries, size_bytes = 0, 0.0
    for piece in found:
        count = piece.entries
        if limit.rows is not None:
            count = min(count, int((limit.rows - rows) / max(piece.rows, _ALMOST) + _ALMOST))
        if limit.size_bytes is not None:
            missing = max(limit.size_bytes - size_bytes, 0)
            count = min(count, -int(-missing // max(piece.size_bytes, 1)))
        entries += count
        rows += count * piece.rows
        size_bytes += count * piece.size_bytes
        if count < piece.entries:
            break
    return Reach(entries, max(rows, 0.0), size_bytes)
