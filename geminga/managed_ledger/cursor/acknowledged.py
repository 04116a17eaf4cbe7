"""The acknowledged entries of a subscription, for queries: mark-delete, and acknowledgements beyond it.
Pure.

Invariants: no bit is at or before mark-delete; the entry after mark-delete is not acknowledged; every bit
and every batch is an entry of the chain; no entry has a bit and a batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Generator
from itertools import islice
from typing import Final

from pyroaring import BitMap

from geminga.managed_ledger.chain.entry import Entry
from geminga.managed_ledger.chain.ledger_chain import LedgerChain
from geminga.managed_ledger.cursor.batch_index import words_of
from geminga.managed_ledger.cursor.cursor_state_format import CursorState
from geminga.position import EARLIEST, Position

Range = tuple[int, int, int]
"""Acknowledged entries of a ledger: its id, the first entry, the last one."""
RANGES_AT_ONCE: Final = 200
"""Between two yields: a tenth of a millisecond."""


class Acknowledged:
    """The state of a cursor (markDelete, and the acknowledgements beyond it) and every query about it.

    The backlog costs O(log ledgers), a position O(1). Only `Acknowledgments` changes it.
    """

    __slots__ = ("_acked", "_acked_entries", "_batches", "_chain", "_dropped_end", "_md_entry", "_md_ledger")

    def __init__(self, chain: LedgerChain, mark_delete: tuple[int, int]) -> None:
        self._chain = chain
        # Two integers in place of a `Position`: acknowledging moves the entry id for most messages, and would
        # make a new tuple each time.
        self._md_ledger, self._md_entry = chain.floor(min(mark_delete, chain.tail))
        self._dropped_end = self._end_before_chain(mark_delete)
        """Mark-delete in a ledger that is gone, while it stands at the beginning of the chain."""
        self._acked: dict[int, BitMap] = {}
        self._acked_entries = 0
        self._batches: dict[tuple[int, int], int] = {}
        """Bits of the messages of a batch that are *not* acknowledged yet; never 0."""

    @property
    def mark_delete(self) -> Position:
        """Everything up to here is acknowledged; the entry after it is not."""
        return Position(self._md_ledger, self._md_entry)

    @property
    def acknowledged_up_to(self) -> Position:
        """As `mark_delete`, but in a ledger that was dropped since it is the position that it had there. So
        clients and files can tell what was acknowledged of that ledger, and `restore` brings it to the chain.
        """
        if self._dropped_end is not None and (self._md_ledger, self._md_entry) == (self._chain.ids[0], -1):
            return self._dropped_end
        return self.mark_delete

    def _end_before_chain(self, position: tuple[int, int]) -> Position | None:
        return Position(*position) if position[1] >= 0 and position[0] < self._chain.ids[0] else None

    def is_acknowledged(self, position: tuple[int, int]) -> bool:
        ledger_id, entry_id = position
        if position <= (self._md_ledger, self._md_entry):
            return True
        bitmap = self._acked.get(ledger_id)
        # The range is checked first: a position comes from a client, and a bitmap takes ids of 32 bits only.
        return bitmap is not None and 0 <= entry_id < self._chain.counts[ledger_id] and entry_id in bitmap

    def ack_set(self, position: tuple[int, int]) -> list[int] | None:
        """The wire's longs of not yet acknowledged messages of a batch; None if none of them is
        acknowledged.
        """
        remaining = self._batches.get(position)
        return None if remaining is None else words_of(remaining)

    def next_unacknowledged(self, position: tuple[int, int]) -> Position:
        """The first position at or after `position` that is not acknowledged; it may be that of the next
        entry to come.
        """
        chain = self._chain
        after = (self._md_ledger, self._md_entry + 1)
        found = chain.ceiling(position if position > after else after)
        while (bitmap := self._acked.get(found.ledger_id)) is not None and found.entry_id in bitmap:
            found = chain.ceiling((found.ledger_id, end_of_run(bitmap, found.entry_id)))
        return found

    def nth_unacknowledged(self, number: int) -> Position | None:
        """The backlog's entry of this number, 1 or more; None if the backlog is smaller. O(ledgers)."""
        chain = self._chain
        for i in range(bisect_left(chain.ids, self._md_ledger), len(chain.ids)):
            ledger_id = chain.ids[i]
            first = self._md_entry + 1 if ledger_id == self._md_ledger else 0
            bitmap = self._acked.get(ledger_id)
            entries = chain.counts[ledger_id] - first - (len(bitmap) if bitmap is not None else 0)
            if number > entries:
                number -= entries
                continue
            if bitmap is None:
                return Position(ledger_id, first + number - 1)
            # How many entries up to one are in the backlog only grows from entry to entry.
            ids = range(first, chain.counts[ledger_id])
            place = bisect_left(ids, number, key=lambda entry: entry + 1 - first - bitmap.rank(entry))
            return Position(ledger_id, ids[place])
        return None

    def unacknowledged(self, entries: list[Entry]) -> list[Entry]:
        """The unacknowledged entries of a run (one ledger, ascending); often the list itself."""
        if not entries:
            return entries
        first = entries[0].position
        if first > (self._md_ledger, self._md_entry):
            bitmap = self._acked.get(first.ledger_id)
            # Most runs that a dispatcher reads have no acknowledged entry. One count over the range tells,
            # and the list goes on without a copy.
            if bitmap is None:
                return entries
            if not bitmap.range_cardinality(first.entry_id, entries[-1].position.entry_id + 1):
                return entries
        return [entry for entry in entries if not self.is_acknowledged(entry.position)]

    def acknowledged_in(self, ledger_id: int, first: int, stop: int) -> BitMap | None:
        """The acknowledged entry ids in [first, stop), which is beyond mark-delete; None: none is."""
        bitmap = self._acked.get(ledger_id)
        if bitmap is None or not bitmap.range_cardinality(first, stop):
            return None
        return bitmap & BitMap(range(first, stop))

    def backlog_entries(self) -> int:
        """Entries up to the last confirmed one that are not acknowledged."""
        chain = self._chain
        return (
            chain.ordinal(chain.tail) - chain.ordinal((self._md_ledger, self._md_entry)) - self._acked_entries
        )

    def acknowledged_ranges(self) -> list[Range]:
        """Acknowledged entries beyond mark-delete, ascending. One step: a million of them take a second."""
        slices = ranges_of(self.acknowledged_copies(), EARLIEST, self._acked_entries)
        while True:
            try:
                next(slices)
            except StopIteration as end:
                found: list[Range] = end.value[0]
                return found

    def acknowledged_copies(self) -> list[tuple[int, BitMap]]:
        """By ledger id, ascending: the acknowledged entries beyond mark-delete as they are now."""
        # Copies are cheap, and later acknowledgements are not in them: a range at a time they would not fit
        # the mark-delete position that was read with the first one.
        return [(ledger_id, self._acked[ledger_id].copy()) for ledger_id in sorted(self._acked)]

    def acknowledged_ranges_count(self) -> int:
        """How many ranges `acknowledged_ranges` would list, at a fraction of the cost."""
        return sum(map(count_ranges, self._acked.values()))

    def state(self) -> CursorState:
        """The live state, not a copy: encode it before anything else happens."""
        return CursorState(self.acknowledged_up_to, self._acked, self._batches)


def ranges_of(
    copies: list[tuple[int, BitMap]], after: tuple[int, int], ranges_max: int
) -> Generator[int, None, tuple[list[Range], int]]:
    """The first ranges of `acknowledged_copies` beyond `after`, ascending, and how many more there are.

    Yields after each ledger, and after `RANGES_AT_ONCE`; the copies change.
    """
    found: list[Range] = []
    left_out = 0
    for ledger_id, bitmap in copies:
        if ledger_id < after[0]:
            continue
        if ledger_id == after[0]:
            bitmap.remove_range(0, max(0, after[1]) + 1)
        # Set operations of the bitmap and no loop over its entries: a cursor may have a million of them.
        firsts = bitmap - bitmap.shift(1)
        left_out += len(firsts)
        # Also behind the last range that is taken: counting the others of 20 ledgers took 8 ms.
        yield 1
        if len(found) >= ranges_max:
            continue
        pairs = zip(firsts, bitmap - bitmap.shift(-1), strict=True)
        while some := list(islice(pairs, min(RANGES_AT_ONCE, ranges_max - len(found)))):
            found += [(ledger_id, first, last) for first, last in some]
            left_out -= len(some)
            yield len(some)
    return found, left_out


def count_ranges(bitmap: BitMap) -> int:
    return len(bitmap) - bitmap.intersection_cardinality(bitmap.shift(1))


def end_of_run(bitmap: BitMap, start: int) -> int:
    """The first number after `start` (which is in the set) that is not in the set; O(log) of the run."""
    end = start + 1
    stride = 1
    # Strides that double, then halve: a run may be one entry or a whole ledger, and a test of a range costs
    # about the same for either.
    while bitmap.contains_range(end, end + stride):
        end += stride
        stride *= 2
    while stride := stride // 2:
        if bitmap.contains_range(end, end + stride):
            end += stride
    return end
