"""Rows that are due: out of the sources and out of the membership, on their way to the subscriptions.

They stand in batches, each sorted by (time, code), one linked to the next. A subscription's view walks along
them; a batch that all views have passed is gone. `Lateness` counts how late they were given out.
"""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from geminga.tracker.format.rows import (
    EMPTY,
    ENTRY_BITS,
    ENTRY_MASK,
    Integers,
    Rows,
    concatenate,
    order_of,
    split_repeated,
)
from geminga.tracker.index.membership import Membership

_SHORT_END: Final = 1 << 16
_SPARSE_MAX: Final = 4096
"""So many entry ids of a container are an array in roaring's portable form, more are bits."""
_QUICK_MAX: Final = 1500
_LEDGERS_COUNTED_MAX: Final = 256
_FEW_CODES: Final = 16
"""So many are faster one by one than as columns."""
_CONTAINER: Final = struct.Struct("<IIHHI")
_NO_RUNS: Final = 12346
"""Its cookie."""


class DueBatch:
    """Empty until it is filled, and only the last batch is empty: it is the place where all is read."""

    __slots__ = ("members", "min_code", "next", "readers", "rows")

    def __init__(self) -> None:
        self.rows = EMPTY
        # Made when the rows were taken anyway. Without them each question about a position would search all
        # rows.
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
        # From the bitmaps: a minimum of the column would look at each row.
        self.min_code = first_ledger << ENTRY_BITS | members[first_ledger].min()
        self.next = DueBatch()
        return self.next

    def left(self) -> None:
        """One view has passed it, or will not come to it."""
        self.readers -= 1

    def go_on_with(self, batch: DueBatch) -> None:
        """The batches behind it were taken back: this one, the empty last one, follows."""
        self.next = batch

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
    if overrides:
        # Before the membership is asked: a postponed position is still a member, and its first row must not
        # take it out.
        parts = [part.where(_has_its_time(part, overrides)) for part in parts]
    # Parts of different ledgers, in their order, are sorted by time alone.
    wanted = sorted((part for part in parts if part.length), key=lambda rows: rows.codes.item(0))
    rows, taken = _take(concatenate(wanted), members)
    return rows.sorted(), taken


def _take(rows: Rows, members: Membership) -> tuple[Rows, dict[int, BitMap]]:
    """The rows of members, one for each, and the same by ledger; these are members no more."""
    taken: dict[int, BitMap] = {}
    dead: dict[int, BitMap] = {}
    count = dead_count = 0
    bitmaps = members.bitmaps
    for ledger_id, found in members_of(rows.codes).items():
        bitmap = bitmaps.get(ledger_id)
        if bitmap is None:
            dead[ledger_id] = found
            dead_count += len(found)
            continue
        found_count = len(found)
        # Counted first: mostly all are members, and no bitmap has to be made.
        if bitmap.intersection_cardinality(found) != found_count:
            dead[ledger_id] = unwanted = found - bitmap
            dead_count += len(unwanted)
            found &= bitmap
            found_count = len(found)
        if found_count:
            members.take(ledger_id, found)
            taken[ledger_id] = found
            count += found_count
    # By the smaller of the two sets, as each is brought into a column.
    if dead_count > count:
        rows = keep_only(rows, codes_of(taken))
    elif dead_count:
        rows = rows.where(~are_among(rows.codes, codes_of(dead)))
    if count != rows.length:
        rows, _ = split_repeated(rows)
    # Rows and bitmaps go different ways from here; a row too many would be a message sent twice.
    assert rows.length == count
    return rows, taken


def _has_its_time(rows: Rows, overrides: Mapping[int, int]) -> NDArray[np.bool_]:
    wanted = np.ones(rows.length, bool)
    for row in changed_among(rows.codes, overrides):
        wanted[row] = overrides[rows.codes.item(row)] == rows.times_ms.item(row)
    return wanted


def changed_among(codes: Integers, overrides: Mapping[int, int]) -> list[int]:
    """Where these have codes that were given another time. The cost is that of the codes: with 100,000
    changed times a group of 100 due messages took 10 ms.
    """
    if len(overrides) < len(codes):
        found: list[int] = np.flatnonzero(
            np.isin(codes, np.fromiter(overrides, np.int64, len(overrides)))
        ).tolist()
        return found
    return [row for row, code in enumerate(codes.tolist()) if code in overrides]


def keep_only(rows: Rows, live: Integers) -> Rows:
    """The rows whose codes are among these, which ascend."""
    return rows.where(are_among(rows.codes, live))


def are_among(codes: Integers, ascending: Integers) -> NDArray[np.bool_]:
    """Which of the codes are among the others."""
    if not len(ascending):
        return np.zeros(len(codes), bool)
    places = ascending.searchsorted(codes)
    # Beyond the last there is nothing to compare with; the first one differs for sure.
    places[places == len(ascending)] = 0
    found: NDArray[np.bool_] = ascending[places] == codes
    return found


def members_of(codes: Integers) -> dict[int, BitMap]:
    """Codes in any order, perhaps none, perhaps some twice, as entry ids by ledger, which ascend."""
    if len(codes) <= _FEW_CODES:
        return _few_members_of(codes.tolist())
    ledgers = codes >> ENTRY_BITS
    low, high = int(ledgers.min()), int(ledgers.max())
    # All entry ids below 65,536, as in ledgers of Pulsar's default size: half the bytes to sort, and one
    # container each.
    is_short = int(np.bitwise_or.reduce(codes)) & ENTRY_MASK < _SHORT_END
    entry_ids = codes.astype(np.uint16) if is_short else codes & ENTRY_MASK
    if low == high:
        return {low: _bitmaps(entry_ids, [0, len(codes)])[0]}
    if high - low < _LEDGERS_COUNTED_MAX:
        # Their numbers are small: sorting by them takes a third, and counting them no comparison.
        numbers = (ledgers - low).astype(np.uint8)
        counts = np.bincount(numbers)
        if bool((numbers[1:] < numbers[:-1]).any()):
            entry_ids = entry_ids.take(np.argsort(numbers, kind="stable"))
        present = np.flatnonzero(counts)
        ledger_ids, bounds = (present + low).tolist(), [0, *np.cumsum(counts[present]).tolist()]
    else:
        if bool((ledgers[1:] < ledgers[:-1]).any()):
            order = order_of(ledgers - low)
            entry_ids, ledgers = entry_ids.take(order), ledgers.take(order)
        bounds = [0, *(np.flatnonzero(ledgers[1:] != ledgers[:-1]) + 1).tolist(), len(codes)]
        ledger_ids = ledgers[bounds[:-1]].tolist()
    return dict(zip(ledger_ids, _bitmaps(entry_ids, bounds), strict=True))


def _few_members_of(codes: list[int]) -> dict[int, BitMap]:
    # A message that is due alone is the rule where each has a time of its own: numpy took 12 us for it.
    few: dict[int, BitMap] = {}
    for code in sorted(codes):
        ledger_id = code >> ENTRY_BITS
        if ledger_id in few:
            few[ledger_id].add(code & ENTRY_MASK)
        else:
            few[ledger_id] = BitMap((code & ENTRY_MASK,))
    return few


def _bitmaps(entry_ids: NDArray[np.uint16] | Integers, bounds: list[int]) -> list[BitMap]:
    """Of the entry ids between two bounds each."""
    return (_short_bitmaps if entry_ids.dtype == np.uint16 else _long_bitmaps)(entry_ids, bounds)


def _short_bitmaps(short: NDArray[Any], bounds: list[int]) -> list[BitMap]:
    """Of numbers of 16 bits, which are sorted."""
    for start, end in pairwise(bounds):
        # Many are sorted faster digit by digit.
        short[start:end].sort(kind="stable" if end - start > _QUICK_MAX else None)
    repeated = short[1:] == short[:-1]
    # Equal neighbours across two ledgers are different positions.
    repeated[np.array(bounds[1:-1], np.intp) - 1] = False
    if bool(repeated.any()):
        once = [np.unique(short[start:end]) for start, end in pairwise(bounds)]
        short = np.concatenate(once)
        bounds = [0, *np.cumsum([len(part) for part in once]).tolist()]
    firsts, lasts = short[bounds[:-1]].tolist(), short[np.array(bounds[1:]) - 1].tolist()
    data = short.tobytes()
    return [
        _bitmap_of(data, start, end, first, last)
        for (start, end), first, last in zip(pairwise(bounds), firsts, lasts, strict=True)
    ]


def _bitmap_of(data: bytes, start: int, end: int, first: int, last: int) -> BitMap:
    """Of numbers `start` to `end` - 1 of those in `data`, which have 16 bits and ascend there."""
    count = end - start
    if last - first == count - 1:
        bitmap = BitMap()
        bitmap.add_range(first, last + 1)
        return bitmap
    numbers = data[2 * start : 2 * end]
    if count > _SPARSE_MAX:
        return BitMap(array("I", np.frombuffer(numbers, np.uint16).astype(np.uint32).tobytes()))
    # The portable form of one container is these numbers and a head, and is read in no time.
    return BitMap.deserialize(_CONTAINER.pack(_NO_RUNS, 1, 0, count - 1, _CONTAINER.size) + numbers)


def _long_bitmaps(entry_ids: NDArray[Any], bounds: list[int]) -> list[BitMap]:
    # From a buffer of C ints pyroaring takes a tenth of the time that it takes from numpy's array.
    return [
        BitMap(array("I", np.sort(entry_ids[start:end]).astype(np.uint32).tobytes()))
        for start, end in pairwise(bounds)
    ]


def codes_of(members: Mapping[int, BitMap]) -> Integers:
    """Ascending."""
    columns = [
        np.frombuffer(members[ledger_id].to_array(), np.uint32).astype(np.int64) + (ledger_id << ENTRY_BITS)
        for ledger_id in sorted(members)
    ]
    return np.concatenate(columns) if columns else EMPTY.codes


# Fine around the 20 ms that are promised, and up to what an outage costs.
LATENESS_BOUNDS_MS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000)
_ENDS: Final = np.array(LATENESS_BOUNDS_MS[::-1], np.int64)
_LAST: Final = len(LATENESS_BOUNDS_MS)
_FEW: Final = 16
"""So many are counted faster one by one than by numpy."""


class LatenessCounts(NamedTuple):
    """Of delayed messages that were given out. `counts[i]`: how many were up to the i-th bound late and more
    than the one before, the last one all that were later; those that came early are in none of them.
    """

    bounds_ms: tuple[int, ...]
    counts: tuple[int, ...]
    early: int
    total_ms: int
    """Of those that were not early."""


class Lateness:
    """Of one subscription. `counts[i]` are those up to the i-th bound late and more than the one before; the
    last is for all that were later. What came early is counted apart, and in no class.
    """

    __slots__ = ("counts", "early", "total_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(LATENESS_BOUNDS_MS) + 1)
        self.early = 0
        self.total_ms = 0
        """Of those that were not early."""

    def note(self, due_ms: Integers, now_ms: int) -> None:
        """Messages that were due at these times, ascending, were given out now. Of many, the places where a
        class ends are looked up, not each message: some 10 us, whatever their number.
        """
        if len(due_ms) <= _FEW:
            self._note_few(due_ms.tolist(), now_ms)
            return
        # A bisection for each bound, whatever the size of the read: nothing for a single message.
        places = due_ms.searchsorted(now_ms - _ENDS).tolist()
        on_time = int(due_ms.searchsorted(now_ms, "right"))
        # Apart, as a mean of late and early ones would tell of neither.
        self.early += len(due_ms) - on_time
        self.total_ms += now_ms * on_time - int(due_ms[:on_time].sum())
        for number, (start, end) in enumerate(pairwise((0, *places, on_time))):
            self.counts[_LAST - number] += end - start

    def _note_few(self, due_ms: list[int], now_ms: int) -> None:
        if due_ms and due_ms[-1] <= now_ms:
            least = bisect_left(LATENESS_BOUNDS_MS, now_ms - due_ms[-1])
            # First and last in one class: a wake-up for ten messages costs 0.7 us less than with one step for
            # each.
            if least == bisect_left(LATENESS_BOUNDS_MS, now_ms - due_ms[0]):
                self.counts[least] += len(due_ms)
                self.total_ms += now_ms * len(due_ms) - sum(due_ms)
                return
        for at_ms in due_ms:
            self._note_one(now_ms - at_ms)

    def _note_one(self, late_ms: int) -> None:
        if late_ms < 0:
            self.early += 1
        else:
            self.counts[bisect_left(LATENESS_BOUNDS_MS, late_ms)] += 1
            self.total_ms += late_ms
