"""Which entries are to be sent again, and how often each has been."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, takewhile
from typing import Final

from pyroaring import BitMap64

from geminga.position import Position

ENTRY_BITS: Final = 32
ENTRY_MASK: Final = (1 << ENTRY_BITS) - 1
_NONE: Final = array("Q")


class RedeliverySet:
    """Positions that go out before anything new: negatively acknowledged, left by a closed consumer, due
    after a delay, or read when no consumer had permits. In the order of the topic.

    A position may carry its Key_Shared slot; then `holds_slot` tells that newer entries of that slot have to
    wait. Its length is counted in 5 ns for each ledger, or each 65,536 entries of one.

    Most of what comes here is due after a delay, comes as a column to the empty set, and goes from its front
    before anything else comes: it stays that column until something else happens.
    """

    __slots__ = ("_at", "_codes", "_column", "_slot_counts", "_slots", "additions")

    def __init__(self) -> None:
        self._codes = BitMap64()
        """Of ledger id << 32 | entry id. Empty while there is a column."""
        self._column = _NONE
        """Such codes, ascending and without slots; those before `_at` are gone."""
        self._at = 0
        self._slots: dict[int, int] = {}
        self._slot_counts: dict[int, int] = {}
        self.additions = 0
        """Grows with each new position: a reader compares it before and after an await to see additions."""

    def __len__(self) -> int:
        return len(self._column) - self._at if self._column else len(self._codes)

    def __bool__(self) -> bool:
        return bool(self._column) or bool(self._codes)

    def __contains__(self, position: tuple[int, int]) -> bool:
        code = position[0] << ENTRY_BITS | position[1]
        return self._is_in_column(code) if self._column else code in self._codes

    def _is_in_column(self, code: int) -> bool:
        place = bisect_left(self._column, code, self._at)
        return place < len(self._column) and self._column[place] == code

    def add(self, ledger_id: int, entry_id: int, slot: int = 0) -> None:
        # One entry that is added to a column makes a bitmap of all of it: there is one order to go by, not
        # two.
        if self._column:
            self._give_up_column()
        code = ledger_id << ENTRY_BITS | entry_id
        if code not in self._codes:
            self._codes.add(code)
            self.additions += 1
        # The first slot stays: a key's slot changes with the type of selector only, and then this set is a
        # new one.
        if slot and code not in self._slots:
            self._slots[code] = slot
            self._slot_counts[slot] = self._slot_counts.get(slot, 0) + 1

    def add_all(self, codes: array[int]) -> None:
        """Positions without slots, new ones all: a column of type "Q" of ledger id << 32 | entry id that
        ascend and belong to this set from now on. In no time if it was empty, else some 20 ns for each.
        """
        if not codes:
            return
        if self._column:
            self._give_up_column()
        if self._codes:
            self._codes.update(codes)
        else:
            # Without a copy: a drain of many due messages is a column for each read, and this set is empty
            # each time.
            self._column, self._at = codes, 0
        self.additions += len(codes)

    def of_ledger(self, ledger_id: int) -> Iterator[int]:
        """The entry ids of one ledger that are in here, ascending."""
        first = ledger_id << ENTRY_BITS
        codes = (
            islice(self._column, bisect_left(self._column, first, self._at), None)
            if self._column
            else self._codes.iter_equal_or_larger(first)
        )
        return (code & ENTRY_MASK for code in takewhile(((ledger_id + 1) << ENTRY_BITS).__gt__, codes))

    def _give_up_column(self) -> None:
        self._codes.update(self._column[self._at :])
        self._column, self._at = _NONE, 0

    def discard(self, ledger_id: int, entry_id: int) -> None:
        code = ledger_id << ENTRY_BITS | entry_id
        if self._column:
            # What is sent is nearly always the front: one step of a number, and nothing to search.
            if self._column[self._at] == code:
                self._pass_column(self._at + 1)
                return
            if not self._is_in_column(code):
                return
            self._give_up_column()
        self._codes.discard(code)
        if self._slots:
            self._forget_slot(code)

    def _pass_column(self, at: int) -> None:
        if at < len(self._column):
            self._at = at
        else:
            self._column, self._at = _NONE, 0

    def _forget_slot(self, code: int) -> None:
        slot = self._slots.pop(code, 0)
        if slot:
            left = self._slot_counts[slot] - 1
            if left:
                self._slot_counts[slot] = left
            else:
                del self._slot_counts[slot]

    def holds_slot(self, slot: int) -> bool:
        """Whether an entry of this slot waits here."""
        return slot in self._slot_counts

    def first(self, count_max: int) -> list[Position]:
        """At most `count_max` positions, the earliest; they stay in the set."""
        return [
            Position(code >> ENTRY_BITS, code & ENTRY_MASK) for code in islice(self._ascending(), count_max)
        ]

    def _ascending(self) -> Iterator[int]:
        return islice(self._column, self._at, None) if self._column else iter(self._codes)

    def select(self, count_max: int, admits: Callable[[int], bool]) -> list[Position]:
        """Like `first`, but only positions whose slot `admits` takes (0: the slot is not known yet).

        O(size of the set) when most of it is refused; the look-ahead limit bounds that size.
        """
        slot_of = self._slots.get
        admitted = (code for code in self._ascending() if admits(slot_of(code, 0)))
        return [Position(code >> ENTRY_BITS, code & ENTRY_MASK) for code in islice(admitted, count_max)]

    def remove_up_to(self, last: Position) -> None:
        """Drop everything at or before `last`, e.g. because it was acknowledged or expired."""
        if last.ledger_id < 0 or not self:
            return
        end = (last.ledger_id << ENTRY_BITS) + last.entry_id
        if self._column:
            self._pass_column(bisect_right(self._column, end, self._at))
            return
        # `last` may be LATEST, whose code does not fit into 64 bits.
        end = min(end, self._codes.max())
        if self._slots:
            for code in takewhile(end.__ge__, self._codes):
                self._forget_slot(code)
        self._codes.remove_range(0, end + 1)

    def clear(self) -> None:
        self._column, self._at = _NONE, 0
        self._codes.clear()
        self._slots.clear()
        self._slot_counts.clear()


class RedeliveryCounts:
    """How often an entry has been asked for again, for MESSAGE's redelivery count. In memory only, as in
    Pulsar.
    """

    __slots__ = ("counts",)

    def __init__(self) -> None:
        self.counts: dict[tuple[int, int], int] = {}

    def increment(self, ledger_id: int, entry_id: int) -> None:
        self.counts[ledger_id, entry_id] = self.counts.get((ledger_id, entry_id), 0) + 1

    def forget(self, positions: Iterable[tuple[int, int]]) -> None:
        counts = self.counts
        if counts:
            for position in positions:
                counts.pop(position, None)

    def forget_up_to(self, last: Position) -> None:
        self.counts = {p: n for p, n in self.counts.items() if p > last}

    def clear(self) -> None:
        # The count starts over with a new first consumer, as in Pulsar, whose tracker is in memory too.
        self.counts.clear()
