"""Which entries are to be sent again, and how often each has been."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice, takewhile

from pyroaring import BitMap

from geminga.position import Position


class RedeliverySet:
    """Positions that go out before anything new: negatively acknowledged, left by a closed consumer, due
    after a delay, or read when no consumer had permits. In the order of the topic.

    A position may carry its Key_Shared slot; then `holds_slot` tells that newer entries of that slot have to
    wait.
    """

    __slots__ = ("_count", "_ledgers", "_slot_counts", "_slots", "additions")

    def __init__(self) -> None:
        self._ledgers: dict[int, BitMap] = {}
        self._slots: dict[tuple[int, int], int] = {}
        self._slot_counts: dict[int, int] = {}
        self._count = 0
        self.additions = 0
        """Grows with each new position; whoever reads across an await sees by it that something was added."""

    def __len__(self) -> int:
        return self._count

    def __contains__(self, position: tuple[int, int]) -> bool:
        entries = self._ledgers.get(position[0])
        return entries is not None and position[1] in entries

    def add(self, ledger_id: int, entry_id: int, slot: int = 0) -> None:
        entries = self._ledgers.get(ledger_id)
        if entries is None:
            entries = self._ledgers[ledger_id] = BitMap()
        if entry_id not in entries:
            entries.add(entry_id)
            self._count += 1
            self.additions += 1
        if slot and (ledger_id, entry_id) not in self._slots:
            self._slots[ledger_id, entry_id] = slot
            self._slot_counts[slot] = self._slot_counts.get(slot, 0) + 1

    def discard(self, ledger_id: int, entry_id: int) -> None:
        entries = self._ledgers.get(ledger_id)
        if entries is None or entry_id not in entries:
            return
        entries.remove(entry_id)
        self._count -= 1
        if not entries:
            del self._ledgers[ledger_id]
        slot = self._slots.pop((ledger_id, entry_id), 0)
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
        found: list[Position] = []
        for ledger_id in sorted(self._ledgers):
            wanted = count_max - len(found)
            found += [Position(ledger_id, e) for e in islice(self._ledgers[ledger_id], wanted)]
            if len(found) >= count_max:
                break
        return found

    def select(self, count_max: int, admits: Callable[[int], bool]) -> list[Position]:
        """Like `first`, but only positions whose slot `admits` takes (0: the slot is not known yet).

        O(size of the set) when most of it is refused; the look-ahead limit bounds that size.
        """
        found: list[Position] = []
        slots = self._slots
        for ledger_id in sorted(self._ledgers):
            for entry_id in self._ledgers[ledger_id]:
                if admits(slots.get((ledger_id, entry_id), 0)):
                    found.append(Position(ledger_id, entry_id))
                    if len(found) >= count_max:
                        return found
        return found

    def remove_up_to(self, last: Position) -> None:
        """Drop everything at or before `last`, e.g. because it was acknowledged or expired."""
        for ledger_id in [i for i in self._ledgers if i <= last.ledger_id]:
            entries = self._ledgers[ledger_id]
            end = entries.max() if ledger_id < last.ledger_id else min(last.entry_id, entries.max())
            for entry_id in list(takewhile(end.__ge__, entries)):
                self.discard(ledger_id, entry_id)

    def clear(self) -> None:
        self._ledgers.clear()
        self._slots.clear()
        self._slot_counts.clear()
        self._count = 0


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
        self.counts.clear()
