"""What was sent to one consumer of a Shared or Key_Shared subscription and is not acknowledged yet.

ledger id -> entry id -> one integer: the number of messages in the entry in its low 32 bits, the entry's
Key_Shared slot above them (0 for Shared). An unbatched message of a Shared subscription is the integer 1, so
that it costs one slot in a dictionary and no object of its own. How many there may be is bounded by the
consumer's unacked limit.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Sequence

from geminga.position import Position

HIGH = int(sys.byteorder == "little")
"""Where in a number of 64 bits its high half is."""
SIZE_BITS = 32
SIZE_MASK = (1 << SIZE_BITS) - 1


def pack(size: int, slot: int) -> int:
    """One entry's number of messages (at least 1) and its slot (0: none) as one integer."""
    return slot << SIZE_BITS | size


class PendingAcks:
    """One consumer's pending entries."""

    __slots__ = ("ledgers",)

    def __init__(self) -> None:
        self.ledgers: dict[int, dict[int, int]] = {}

    def of_ledger(self, ledger_id: int) -> dict[int, int]:
        """The ledger's pending entries, to be written to."""
        found = self.ledgers.get(ledger_id)
        if found is None:
            found = self.ledgers[ledger_id] = {}
        return found

    def add(self, positions: Sequence[tuple[int, int]], packed: Sequence[int]) -> None:
        """Add entries, at least one, each with its packed value. None of them may be pending here."""
        ledger_ids, entry_ids = zip(*positions, strict=True)
        ledger_id = ledger_ids[0]
        # A read of new entries never spans two ledgers: then no entry costs a call.
        if ledger_ids.count(ledger_id) == len(ledger_ids):
            pending = self.of_ledger(ledger_id)
            before = len(pending)
            pending.update(zip(entry_ids, packed, strict=True))
            added = len(pending) - before
        else:
            added = -len(self)
            for position, value in zip(positions, packed, strict=True):
                self.of_ledger(position[0])[position[1]] = value
            added += len(self)
        # Its messages would be counted twice and settled once: the consumer would end blocked for good.
        assert added == len(positions), "an entry is sent again while it is pending"

    def get(self, ledger_id: int, entry_id: int) -> int:
        """The packed value; 0 if the entry is not pending here."""
        entries = self.ledgers.get(ledger_id)
        return entries.get(entry_id, 0) if entries else 0

    def pop(self, ledger_id: int, entry_id: int) -> int:
        """Take one entry out; its packed value, or 0 if it was not pending here."""
        entries = self.ledgers.get(ledger_id)
        if entries is None:
            return 0
        packed = entries.pop(entry_id, 0)
        if not entries:
            # A subscription goes through thousands of ledgers: an empty dictionary for each would stay.
            del self.ledgers[ledger_id]
        return packed

    def take_all(self) -> list[tuple[Position, int]]:
        """Take everything out: (position, packed), in the order of the topic."""
        taken = list(self)
        self.ledgers = {}
        return taken

    def entry_ids(self) -> list[tuple[int, list[int]]]:
        """Of each ledger, in the order of the topic: a copy."""
        return [(ledger_id, sorted(self.ledgers[ledger_id])) for ledger_id in sorted(self.ledgers)]

    def take_codes(self) -> tuple[array[int], list[tuple[Position, int]]]:
        """Take everything out, in the order of the topic: ledger id << 32 | entry id of what has no slot, and
        (position, slot) of what has one. Some 0.1 us for each of the former.
        """
        codes, others = array("Q"), []
        for ledger_id in sorted(self.ledgers):
            entries = self.ledgers[ledger_id]
            if max(entries.values(), default=0) <= SIZE_MASK:
                # Pairs of low and high halves: a number made for each would take four times as long.
                halves = array("I", [ledger_id]) * (2 * len(entries))
                halves[1 - HIGH :: 2] = array("I", sorted(entries))
                codes.frombytes(halves.tobytes())
            else:
                others += [
                    (Position(ledger_id, each), entries[each] >> SIZE_BITS) for each in sorted(entries)
                ]
        self.ledgers = {}
        return codes, others

    def take_up_to(self, last: Position) -> list[tuple[Position, int]]:
        """Take out everything at or before `last`."""
        taken = [(position, packed) for position, packed in self if position <= last]
        for position, _ in taken:
            self.pop(*position)
        return taken

    def slots(self) -> Iterator[int]:
        """The slot of each pending entry."""
        for entries in self.ledgers.values():
            for packed in entries.values():
                # Kept with the entry: when keys move, the slots of all that is pending are counted, and
                # nothing is read for that.
                yield packed >> SIZE_BITS

    def __iter__(self) -> Iterator[tuple[Position, int]]:
        for ledger_id in sorted(self.ledgers):
            entries = self.ledgers[ledger_id]
            for entry_id in sorted(entries):
                yield Position(ledger_id, entry_id), entries[entry_id]

    def __len__(self) -> int:
        return sum(map(len, self.ledgers.values()))
