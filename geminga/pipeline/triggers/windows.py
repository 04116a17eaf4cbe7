"""The entries between two message ids, counted by ledgers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from geminga.pipeline.client.topics import Ledger
from geminga.pipeline.columns.message_id import MessageId


class Part(NamedTuple):
    """The part of one ledger: from its entry `first` up to, not including, `last`."""

    ledger_id: int
    first: int
    last: int
    entry_bytes: float
    """Of an entry on average; 0: not known."""


class Window(NamedTuple):
    """What is between two message ids, in order; an entry counts that is in it in part."""

    parts: tuple[Part, ...]

    @classmethod
    def between(cls, start: MessageId, end: MessageId, ledgers: Sequence[Ledger]) -> Window:
        """`ledgers` in order. One of a negative length reaches as far as `end`."""
        found = []
        for ledger in ledgers:
            first = start.entry_id if ledger.ledger_id == start.ledger_id else 0
            last = ledger.entries
            if ledger.ledger_id == end.ledger_id:
                last = min(last, end.entry_id + (1 if end.batch_index else 0)) if last >= 0 else end.entry_id
            if start.ledger_id <= ledger.ledger_id <= end.ledger_id and max(first, 0) < last:
                each = ledger.size_bytes / max(ledger.entries, 1)
                found.append(Part(ledger.ledger_id, max(first, 0), last, each))
        return cls(tuple(found))

    @property
    def entries(self) -> int:
        return sum(part.last - part.first for part in self.parts)

    @property
    def size_bytes(self) -> float:
        """0: not known."""
        return sum((part.last - part.first) * part.entry_bytes for part in self.parts)

    @property
    def has_sizes(self) -> bool:
        return all(part.entry_bytes for part in self.parts)

    def entry(self, ordinal: int) -> tuple[int, int]:
        """(ledger, entry) of the entry with this number, from 0."""
        for part in self.parts:
            if ordinal < part.last - part.first:
                return part.ledger_id, part.first + ordinal
            ordinal -= part.last - part.first
        raise IndexError(ordinal)

    def entries_at(self, ordinals: Iterable[int]) -> list[tuple[int, int]]:
        """As `entry` of each number; the numbers ascend."""
        found = []
        parts = iter(self.parts)
        part, begun = next(parts, None), 0
        for ordinal in ordinals:
            while part is not None and ordinal >= begun + part.last - part.first:
                begun += part.last - part.first
                part = next(parts, None)
            if part is None:
                raise IndexError(ordinal)
            found.append((part.ledger_id, part.first + ordinal - begun))
        return found

    def ordinal(self, entry: tuple[int, int]) -> int:
        """How many entries of the window come before this one."""
        count = 0
        for part in self.parts:
            if entry < (part.ledger_id, part.last):
                if entry > (part.ledger_id, part.first):
                    count += entry[1] - part.first
                break
            count += part.last - part.first
        return count
