"""Rows that are due: out of the sources and out of the membership, on their way to the subscriptions.

They stand in batches, each sorted by (time, code), one linked to the next. A subscription's view walks along
them; a batch that all views have passed is gone.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence

import numpy as np
from pyroaring import BitMap

from geminga.tracker.membership import Membership
from geminga.tracker.rows import EMPTY, ENTRY_BITS, ENTRY_MASK, Integers, Rows, merge, split_repeated


class DueBatch:
    """Empty until it is filled, and only the last batch is empty: it is the place where all is read."""

    __slots__ = ("members", "min_code", "next", "readers", "rows")

    def __init__(self) -> None:
        self.rows = EMPTY
        self.members: Mapping[int, BitMap] = {}
        """The same positions by ledger."""
        self.min_code = 0
        self.next: DueBatch | None = None
        self.readers = 0
        """How many views have not passed it yet."""

    def fill(self, rows: Rows, members: Mapping[int, BitMap], readers: int) -> DueBatch:
        """Returns the new last batch."""
        assert self.next is None
        self.rows, self.members, self.readers = rows, members, readers
        first_ledger = min(members)
        self.min_code = first_ledger << ENTRY_BITS | members[first_ledger].min()
        self.next = DueBatch()
        return self.next

    def find(self, code: int) -> int:
        """The row of a code that is in here."""
        return int(np.flatnonzero(self.rows.codes == code)[0])

    def memory_bytes(self) -> int:
        return self.rows.times_ms.nbytes + self.rows.codes.nbytes + 300 * len(self.members)


def release(
    parts: Sequence[Rows], members: Membership, overrides: Mapping[int, int]
) -> tuple[Rows, dict[int, BitMap]]:
    """Sort gathered rows, leave out those that are dead, and take the rest out of the membership.

    A row is dead if its position is not a member, or if it was given another time (`overrides`) than the
    row's. Of several rows for one position the first counts.
    """
    rows = merge(parts)
    if overrides:
        rows = rows.where(_has_its_time(rows, overrides))
    if not rows.length:
        return EMPTY, {}
    taken: dict[int, BitMap] = {}
    released = 0
    for ledger_id, entry_ids in by_ledger(rows.codes):
        bitmap = members.bitmaps.get(ledger_id)
        if bitmap is None:
            continue
        found = bitmap_of(entry_ids)
        count = len(found)
        if bitmap.intersection_cardinality(found) != count:
            found &= bitmap
            count = len(found)
        if count:
            members.take(ledger_id, found)
            taken[ledger_id] = found
            released += count
    if released != rows.length:
        rows = keep_only(rows, codes_of(taken)) if released else EMPTY
        if released != rows.length:
            rows, _ = split_repeated(rows)
        assert rows.length == released
    return rows, taken


def _has_its_time(rows: Rows, overrides: Mapping[int, int]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    wanted = np.ones(rows.length, bool)
    for row in np.flatnonzero(np.isin(rows.codes, np.fromiter(overrides, np.int64, len(overrides)))).tolist():
        wanted[row] = overrides[rows.codes.item(row)] == rows.times_ms.item(row)
    return wanted


def keep_only(rows: Rows, live: Integers) -> Rows:
    """The rows whose codes are among these, which ascend and are not none."""
    places = live.searchsorted(rows.codes)
    places[places == len(live)] = 0
    return rows.where(live[places] == rows.codes)


def by_ledger(codes: Integers) -> list[tuple[int, Integers]]:
    """Ledgers ascending, each with its entry ids ascending (those that occur twice, twice)."""
    if not bool((codes[1:] >= codes[:-1]).all()):
        codes = np.sort(codes)
    first, last = codes.item(0) >> ENTRY_BITS, codes.item(-1) >> ENTRY_BITS
    entry_ids = codes & ENTRY_MASK
    if first == last:
        return [(first, entry_ids)]
    ledgers = codes >> ENTRY_BITS
    breaks = (np.flatnonzero(ledgers[1:] != ledgers[:-1]) + 1).tolist()
    starts = [0, *breaks]
    ends = [*breaks, len(codes)]
    ids = ledgers[starts].tolist()
    return [(ids[n], entry_ids[starts[n] : ends[n]]) for n in range(len(starts))]


def bitmap_of(entry_ids: Integers) -> BitMap:
    """Of ascending entry ids, at least one."""
    first, last = entry_ids.item(0), entry_ids.item(-1)
    if last - first == len(entry_ids) - 1:
        bitmap = BitMap()
        bitmap.add_range(first, last + 1)
        if len(bitmap) == len(entry_ids) and bool((entry_ids[1:] != entry_ids[:-1]).all()):
            return bitmap
    # From a buffer of C ints pyroaring takes a tenth of the time that it takes from numpy's array.
    return BitMap(array("I", entry_ids.astype(np.uint32).tobytes()))


def codes_of(members: Mapping[int, BitMap]) -> Integers:
    """Ascending."""
    columns = [
        np.frombuffer(members[ledger_id].to_array(), np.uint32).astype(np.int64) + (ledger_id << ENTRY_BITS)
        for ledger_id in sorted(members)
    ]
    return np.concatenate(columns) if columns else EMPTY.codes
