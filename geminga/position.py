"""The position of an entry in a topic: the pair (ledger id, entry id), in the order of the topic."""

from __future__ import annotations

from typing import NamedTuple


class Position(NamedTuple):
    """One entry of a topic. Compares like a tuple, which is the order of the topic.

    `entry_id` -1 means "before the first entry of that ledger", which a cursor's mark-delete position may
    be.
    """

    ledger_id: int
    entry_id: int

    def next(self) -> Position:
        """The position after this one in the same ledger; its entry may not exist yet."""
        return Position(self.ledger_id, self.entry_id + 1)

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


EARLIEST = Position(-1, -1)
LATEST = Position(2**63 - 1, 2**63 - 1)
