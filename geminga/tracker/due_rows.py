"""Rows that are due: out of the sources and out of the membership, on their way to the subscriptions.

They stand in batches, each sorted by (time, code), one linked to the next. A subscription's view walks along
them; a batch that all views have passed is gone.
"""

from __future__ import annotations

import struct
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
_SPARSE_MAX: Final = 4096
"""So many entry ids of a container are an array in roaring's portable form, more are bits."""
_CONTAINER: Final = struct.Struct("<IIHHI")
_NO_RUNS: Final = 12346
"""Its cookie."""


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
    bitmaps = members.bitmaps
    for ledger_id, found in members_of(rows.codes).items():
        bitmap = bitmaps.get(ledger_id)
        if bitmap is None:
            continue
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


def members_of(codes: Integers) -> dict[int, BitMap]:
    """Codes in any order, perhaps none, as entry ids by ledger, which ascend."""
    if not len(codes):
        return {}
    low, high = int(codes.min()), int(codes.max())
    if low >> ENTRY_BITS == high >> ENTRY_BITS:
        return {low >> ENTRY_BITS: _bitmap_of(codes & ENTRY_MASK, high & ENTRY_MASK)}
    codes = np.sort(codes)
    entry_ids = codes & ENTRY_MASK
    ledgers = codes >> ENTRY_BITS
    breaks = (np.flatnonzero(ledgers[1:] != ledgers[:-1]) + 1).tolist()
    starts, ends = [0, *breaks], [*breaks, len(codes)]
    return {
        ledgers.item(start): _bitmap_of(entry_ids[start:end], entry_ids.item(end - 1))
        for start, end in zip(starts, ends, strict=True)
    }


def _bitmap_of(entry_ids: Integers, last: int) -> BitMap:
    """Of entry ids in any order, at least one, perhaps some twice; `last` is the largest."""
    if last >= _SHORT_END:
        # From a buffer of C ints pyroaring takes a tenth of the time that it takes from numpy's array.
        return BitMap(array("I", np.sort(entry_ids).astype(np.uint32).tobytes()))
    short = entry_ids.astype(np.uint16)
    short.sort(kind="stable")  # digit by digit
    count = len(short)
    if count > 1 and bool((short[1:] == short[:-1]).any()):
        short = np.unique(short)
        count = len(short)
    first = short.item(0)
    if last - first == count - 1:
        bitmap = BitMap()
        bitmap.add_range(first, last + 1)
        return bitmap
    if count > _SPARSE_MAX:
        return BitMap(array("I", short.astype(np.uint32).tobytes()))
    # The portable form of one container is these numbers and a head, and is read in no time.
    return BitMap.deserialize(_CONTAINER.pack(_NO_RUNS, 1, 0, count - 1, _CONTAINER.size) + short.tobytes())


def codes_of(members: Mapping[int, BitMap]) -> Integers:
    """Ascending."""
    columns = [
        np.frombuffer(members[ledger_id].to_array(), np.uint32).astype(np.int64) + (ledger_id << ENTRY_BITS)
        for ledger_id in sorted(members)
    ]
    return np.concatenate(columns) if columns else EMPTY.codes
