"""What was promised of one topic, kept outside it and across crashes.

A receipt is a promise: the entry stays until every subscription has consumed it and retention lets it go. So
is what a cursor has said to be durable. What was begun and not answered may have happened or not, as a whole.
"""

from __future__ import annotations

from typing import Final, Literal

from geminga.position import Position
from simulation.bookie.sim_ledger import promise

Existence = Literal["yes", "maybe", "no"]
"""`maybe`: it was being made, or deleted, when the power went."""

BODY_BYTES: Final = 90


class CursorTruth:
    """One subscription."""

    def __init__(self) -> None:
        self.exists: Existence = "maybe"
        self.consumed: set[Position] = set()
        """Acknowledged by somebody, or expired: only these may the cursor have acknowledged."""
        self.durable: set[Position] = set()
        """Those of them that the cursor has to have acknowledged after a crash too."""


class TopicTruth:
    """One topic, until it is deleted; then it begins anew."""

    def __init__(self) -> None:
        self.sent = 0
        self.ids_used: set[int] = set()
        """Ledgers that had an entry with a receipt, of all topics that there were."""
        self._begin()

    def _begin(self) -> None:
        self.exists: Existence = "no"
        self.receipts: dict[Position, bytes] = {}
        self.may_go: set[int] = set()
        """Ledgers that trimming was free to drop when it was called."""
        self.cursors: dict[str, CursorTruth] = {}
        self.sealed: set[Position] = set()
        """Delayed entries that a durable bucket holds, unless they were delivered."""
        self.terminated: Existence = "no"

    def deleted(self) -> None:
        self._begin()

    # -- bodies -----------------------------------------------------------------------------------------

    def new_body(self, now_ms: int, due_ms: int, size: int) -> bytes:
        """Different for each entry; it says when it was published, and when it is due (0: at once)."""
        self.sent += 1
        return b"%d %d %d " % (self.sent, now_ms, due_ms) + b"." * size

    # -- what happens -----------------------------------------------------------------------------------

    def confirmed(self, ledger_id: int, first_entry_id: int, bodies: list[bytes]) -> None:
        for entry_id, body in enumerate(bodies, first_entry_id):
            position = Position(ledger_id, entry_id)
            promise(position not in self.receipts, f"two receipts for {position}")
            self.receipts[position] = body
        self.ids_used.add(ledger_id)

    def consume(self, name: str, positions: list[Position]) -> None:
        """Somebody is about to acknowledge these."""
        self.cursors[name].consumed.update(positions)

    def up_to(self, position: Position) -> list[Position]:
        """All receipts at or before this position."""
        return [receipt for receipt in self.receipts if receipt <= position]

    def is_consumed(self, ledger_id: int) -> bool:
        """Whether no subscription has anything left to consume of a ledger."""
        entries = {receipt for receipt in self.receipts if receipt.ledger_id == ledger_id}
        return all(entries <= cursor.consumed for cursor in self.cursors.values() if cursor.exists != "no")

    def live(self) -> dict[Position, bytes]:
        """What must be readable."""
        return {place: body for place, body in self.receipts.items() if place.ledger_id not in self.may_go}


def published_ms(body: bytes) -> int:
    return int(body.split(b" ", 2)[1])


def due_ms(body: bytes) -> int:
    return int(body.split(b" ", 3)[2])
