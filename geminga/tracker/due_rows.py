"""Rows that are due: out of the sources and out of the membership, on their way to the subscriptions.

They stand in batches, each sorted by (time, code), one linked to the next. A subscription's view walks along
them; a batch that all views have passed is gone.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from geminga.tracker.membership import Membership
from geminga.tracker.rows import (
    EMPTY,
    ENTRY_BITS,
    ENTRY_MASK,
    Integers,
    Rows,
    concatenate,
    merge,
    split_repeated,
)

ROWS_PER_PART_MIN: Final = 64
"""Below this, parts are put together first: numpy costs more for each call than for each row."""
_SHORT_END: Final = 1 << 16


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
    """Leave out of gathered rows those that are dead, take the rest out of the membership, and sort them.

    A row is dead if its position is not a member, or if it was given another time (`overrides`) than the
    row's. Of several rows for one position one counts.
    """
    if sum(part.length for part in parts) < ROWS_PER_PART_MIN * len(parts):
        parts = (concatenate(parts),)
    taken: dict[int, BitMap] = {}
    live = []
    for part in parts:
        rows = part.where(_has_its_time(part, overrides)) if overrides else part
        if rows.length and (rows := _take(rows, members, taken)).length:
            live.append(rows)
    # Parts of different ledgers, in their order, are sorted by time alone.
    live.sort(key=lambda rows: rows.codes.item(0))
    return merge(live), taken


def _take(rows: Rows, members: Membership, taken: dict[int, BitMap]) -> Rows:
    """The rows of members; these are members no more, but `taken`."""
    own: dict[int, BitMap] = {}
    count = 0
    for ledger_id, entry_ids in by_ledger(rows.codes):
        bitmap = members.bitmaps.get(ledger_id)
        if bitmap is None:
            continue
        found = bitmap_of(entry_ids)
        found_count = len(found)
        if bitmap.intersection_cardinality(found) != found_count:
            found &= bitmap
            found_count = len(found)
        if found_count:
            members.take(ledger_id, found)
            own[ledger_id] = found
            count += found_count
    if count != rows.length:
        rows = keep_only(rows, codes_of(own)) if count else EMPTY
        if count != rows.length:
            rows, _ = split_repeated(rows)
        assert rows.length == count
    for ledger_id, found in own.items():
        before = taken.get(ledger_id)
        taken[ledger_id] = found if before is None else before | found
    return rows


def _has_its_time(rows: Rows, overrides: Mapping[int, int]) -> NDArray[np.bool_]:
    wanted = np.ones(rows.length, bool)
    for row in np.flatnonzero(np.isin(rows.codes, np.fromiter(overrides, np.int64, len(overrides)))).tolist():
        wanted[row] = overrides[rows.codes.item(row)] == rows.times_ms.item(row)
    return wanted


def keep_only(rows: Rows, live: Integers) -> Rows:
    """The rows whose codes are among these, which ascend."""
    return rows.where(are_among(rows.codes, live))


def are_among(codes: Integers, ascending: Integers) -> NDArray[np.bool_]:
    """Which of the codes are among the others."""
    if not len(ascending):
        return np.zeros(len(codes), bool)
    places = ascending.searchsorted(codes)
    places[places == len(ascending)] = 0
    found: NDArray[np.bool_] = ascending[places] == codes
    return found


def by_ledger(codes: Integers) -> list[tuple[int, Integers]]:
    """Ledgers ascending, each with its entry ids ascending (those that occur twice, twice)."""
    first, last = int(codes.min()) >> ENTRY_BITS, int(codes.max()) >> ENTRY_BITS
    if first == last:
        return [(first, _ascending(codes & ENTRY_MASK))]
    codes = _ascending(codes)
    entry_ids = codes & ENTRY_MASK
    ledgers = codes >> ENTRY_BITS
    breaks = (np.flatnonzero(ledgers[1:] != ledgers[:-1]) + 1).tolist()
    starts = [0, *breaks]
    ends = [*breaks, len(codes)]
    ids = ledgers[starts].tolist()
    return [(ids[n], entry_ids[starts[n] : ends[n]]) for n in range(len(starts))]


def members_of(codes: Integers) -> dict[int, BitMap]:
    """Codes in any order, perhaps none, as entry ids by ledger."""
    return {ledger_id: bitmap_of(ids) for ledger_id, ids in by_ledger(codes)} if len(codes) else {}


def _ascending(numbers: Integers) -> Integers:
    if bool((numbers[1:] >= numbers[:-1]).all()):
        return numbers
    if int(numbers.max()) < _SHORT_END:
        # numpy sorts short numbers digit by digit, in a tenth of the time.
        return np.sort(numbers.astype(np.uint16), kind="stable").astype(np.int64)
    return np.sort(numbers)


def bitmap_of(entry_ids: Integers) -> BitMap:
    """Of ascending entry ids, at least one."""
    first, last = entry_ids.item(0), entry_ids.item(-1)
    if last - first == len(entry_ids) - 1 and bool((entry_ids[1:] != entry_ids[:-1]).all()):
        bitmap = BitMap()
        bitmap.add_range(first, last + 1)
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
