"""Buckets of the delayed index in bulk: cut, encoded, checked against the backlog. docs/rebuild.md.

A backlog is rows of position and due time, wherever they come from. It is cut into ranges of neighbouring
ledgers, one bucket each. All that belongs to a range comes together as *shares*: rows of the backlog, and the
entries of the bucket that is there already.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from geminga.errors import CorruptData
from geminga.tracker.buckets.bucket_check import whole_bucket
from geminga.tracker.buckets.bucket_settings import BUCKETS_MAX, BucketSettings
from geminga.tracker.format.bucket_format import encode_bucket
from geminga.tracker.format.rows import ENTRY_BITS, Integers, Rows, concatenate, split_repeated

SHARES: Final = pa.schema(
    [("range", pa.int32()), ("what", pa.string()), ("number", pa.int64()), ("data", pa.binary())]
)
"""`rows`: codes and due times of `number` rows; `entry`: entry `number` of the range's bucket; `unread`:
codes of `number` messages whose records are damaged.
"""
ENCODED: Final = pa.schema(
    [
        ("range", pa.int32()),
        ("rows", pa.int64()),
        ("entries", pa.list_(pa.binary())),
        ("unread", pa.list_(pa.int64())),
    ]
)
SPOOLED: Final = pa.schema([("range", pa.int32()), ("path", pa.string())])
"""A file with rows of `ENCODED` (Arrow's stream format)."""
FAULTS: Final = pa.schema(
    [
        ("range", pa.int32()),
        ("fault", pa.string()),
        ("count", pa.int64()),
        ("ledger_id", pa.int64()),
        ("entry_id", pa.int64()),
    ]
)
"""`count` positions; the first of them. Faults are those of `Fault`."""
NO_CODE: Final = -1
_BUCKETS_AIM: Final = BUCKETS_MAX // 2


class Range(NamedTuple):
    """Ledgers from `first` to `last`, of one bucket."""

    first: int
    last: int


class Encoded(NamedTuple):
    """A bucket, ready to be written: all its entries in order; none if it has no rows."""

    range: Range
    rows: int
    entries: list[bytes]
    unread: Sequence[int] = ()
    """Codes of messages of the range that are left out: their records are damaged. `NO_CODE`: some message of
    a log that does not say what it has.
    """


# -- cutting ----------------------------------------------------------------------------------------------


def rows_per_bucket(total: int, settings: BucketSettings) -> int:
    """So that there are not more buckets than half of what one record names."""
    return max(settings.indexes_min, -(-total // _BUCKETS_AIM))


def cut(counts: Mapping[int, int], rows_each: int, together: Iterable[Range] = ()) -> list[Range]:
    """Neighbouring ledgers together until they have so many rows; `counts` are rows by ledger. No range ends
    within one of `together`, of which no two overlap.
    """
    ranges: list[Range] = []
    first, rows, last = -1, 0, -1
    for unit, count in _units(counts, sorted(together)):
        last = unit.last
        first = unit.first if first < 0 else first
        rows += count
        if rows >= rows_each:
            ranges.append(Range(first, last))
            first, rows = -1, 0
    if first >= 0:
        ranges.append(Range(first, last))
    return ranges


def cut_all(
    parts: Iterable[Mapping[int, int]], settings: BucketSettings, together: Iterable[Range]
) -> list[Range]:
    """How a backlog is cut whose sources have so many rows by ledger."""
    counts: Counter[int] = Counter()
    for part in parts:
        counts.update(part)
    return cut(counts, rows_per_bucket(counts.total(), settings), together)


def _units(counts: Mapping[int, int], together: Sequence[Range]) -> Iterator[tuple[Range, int]]:
    """Single ledgers, and those of one range as one, with their rows; ascending."""
    rows: dict[Range, int] = {}
    for ledger_id in sorted(ledger_id for ledger_id, count in counts.items() if count):
        place = range_of(together, ledger_id)
        unit = Range(ledger_id, ledger_id) if place is None else together[place]
        rows[unit] = rows.get(unit, 0) + counts[ledger_id]
    yield from rows.items()


def count_by_ledger(rows: Rows) -> dict[int, int]:
    ledgers, counts = np.unique(rows.codes >> ENTRY_BITS, return_counts=True)
    return dict(zip(ledgers.tolist(), counts.tolist(), strict=True))


# -- shares -----------------------------------------------------------------------------------------------


def row_shares(rows: Rows, ranges: Sequence[Range]) -> Iterator[tuple[int, str, int, bytes]]:
    """The rows as shares, of those ranges only that are there (ascending, none overlaps)."""
    if not rows.length:
        return
    ledgers = rows.codes >> ENTRY_BITS
    places = np.searchsorted(np.array([one.first for one in ranges]), ledgers, "right") - 1
    lasts = np.array([one.last for one in ranges] or [0])
    inside = (places >= 0) & (ledgers <= lasts[places])
    if not inside.any():
        return
    order = np.argsort(places[inside], kind="stable")
    chosen, places = rows.where(inside), places[inside][order]
    codes, times_ms = chosen.codes[order], chosen.times_ms[order]
    begins = np.flatnonzero(np.diff(places, prepend=-1))
    for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(places)], strict=True):
        data = np.concatenate([codes[begin:end], times_ms[begin:end]]).astype("<i8").tobytes()
        yield int(places[begin]), "rows", end - begin, data


def range_of(ranges: Sequence[Range], ledger_id: int) -> int | None:
    """The number of the range that has this ledger."""
    place = bisect_right(ranges, (ledger_id, 1 << 62)) - 1
    return place if place >= 0 and ledger_id <= ranges[place].last else None


def rows_in(shares: pa.RecordBatch | pa.Table) -> Rows:
    """All rows of some shares, sorted, each position once (at its earliest time)."""
    parts = []
    for what, number, data in zip(*(shares[c].to_pylist() for c in ("what", "number", "data")), strict=True):
        if what == "rows":
            codes, times_ms = np.frombuffer(data, "<i8").reshape(2, number)
            parts.append(Rows(times_ms, codes))
    rows = concatenate(parts).sorted() if parts else Rows(np.zeros(0, np.int64), np.zeros(0, np.int64))
    return split_repeated(rows)[0]


def unread_in(shares: pa.RecordBatch | pa.Table) -> Integers:
    """Codes of the messages that could not be read."""
    columns = zip(*(shares[c].to_pylist() for c in ("what", "data")), strict=True)
    parts = [np.frombuffer(data, "<i8") for what, data in columns if what == "unread"]
    return np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)


def encode_range(number: int, one: Range, shares: pa.Table, settings: BucketSettings) -> pa.Table:
    """The bucket of a range as one row of `ENCODED`; none if nothing was, or should have been, read."""
    rows, unread = rows_in(shares), unread_in(shares)
    if not rows.length and not len(unread):
        return ENCODED.empty_table()
    entries: list[bytes] = []
    if rows.length:
        spans = settings.segment_span_ms, settings.segment_indexes_max
        bucket = encode_bucket(one.first, one.last, rows, *spans)
        entries = [*bucket.segments, *bucket.directory]
    values = (number, rows.length, entries, unread.tolist())
    return pa.Table.from_pylist([dict(zip(ENCODED.names, values, strict=True))], ENCODED)


# -- checking ---------------------------------------------------------------------------------------------


class Fault(NamedTuple):
    """What is wrong with the bucket of a range."""

    range: int
    fault: str
    """`damaged`: cannot be read. `missing`: positions of the backlog that it does not have. `other time`: it
    has them, due at another time. `unknown`: it has positions that are not in the backlog (acknowledged
    since, as a rule, which is harmless). `unread`: records of these messages are damaged, so nobody can say
    whether the bucket is right about them, nor deliver them.
    """
    positions: int
    ledger_id: int
    entry_id: int

    @property
    def is_harmless(self) -> bool:
        return self.fault in ("unknown", "unread")


def check_range(number: int, one: Range, shares: pa.Table) -> pa.Table:
    """What is wrong with the bucket of a range as rows of `FAULTS`, by the backlog's rows and the bucket's
    entries.
    """
    wanted, unread = rows_in(shares), unread_in(shares)
    columns = (shares[name].to_pylist() for name in ("what", "number", "data"))
    entries = {entry: data for what, entry, data in zip(*columns, strict=True) if what == "entry"}
    faults: list[tuple[int, str, int, int, int]] = []
    if len(unread):
        faults.append((number, "unread", len(unread), *_place(unread)))
    try:
        if entries:
            faults += _compared(number, wanted, _bucket_rows(one, entries), unread)
        elif wanted.length:
            faults.append((number, "missing", wanted.length, *_place(wanted.codes)))
    except CorruptData:
        faults.append((number, "damaged", wanted.length, one.first, -1))
    return pa.Table.from_pylist([dict(zip(FAULTS.names, fault, strict=True)) for fault in faults], FAULTS)


def faults_in(table: pa.Table) -> list[Fault]:
    """The rows of a `FAULTS` table, in order."""
    return sorted(Fault(*row.values()) for row in table.to_pylist())


def _bucket_rows(one: Range, entries: Mapping[int, bytes]) -> Rows:
    """All that a bucket says, each position once, at its last time. CorruptData."""
    directory, rows = whole_bucket(entries)
    if (directory.start_ledger, directory.end_ledger) != one:
        raise CorruptData(f"a bucket of ledgers {directory.start_ledger} to {directory.end_ledger}")
    return rows


def _compared(
    number: int, wanted: Rows, have: Rows, unread: Integers
) -> Iterator[tuple[int, str, int, int, int]]:
    wanted_order, have_order = np.argsort(wanted.codes), np.argsort(have.codes)
    wanted_codes, have_codes = wanted.codes[wanted_order], have.codes[have_order]
    missing = np.setdiff1d(wanted_codes, have_codes, assume_unique=True)
    if len(missing):
        yield number, "missing", len(missing), *_place(missing)
    unknown = np.setdiff1d(np.setdiff1d(have_codes, wanted_codes), unread)
    if len(unknown):
        yield number, "unknown", len(unknown), *_place(unknown)
    both = np.isin(wanted_codes, have_codes, assume_unique=False)
    codes, times_ms = wanted_codes[both], wanted.times_ms[wanted_order][both]
    # A position may be there at several times; one of them has to be right.
    pairs = have.times_ms[have_order]
    first, last = np.searchsorted(have_codes, codes, "left"), np.searchsorted(have_codes, codes, "right")
    wrong = (pairs[first] != times_ms) & (last - first == 1)
    if np.any(wrong):
        yield number, "other time", int(wrong.sum()), *_place(codes[wrong])


def _place(codes: Integers) -> tuple[int, int]:
    code = int(codes.min())
    if code == NO_CODE:
        return -1, -1
    return code >> ENTRY_BITS, code & ((1 << ENTRY_BITS) - 1)


def share_batch(shares: Iterable[tuple[int, str, int, bytes]]) -> pa.RecordBatch:
    columns: list[list[object]] = [[], [], [], []]
    for share in shares:
        for column, value in zip(columns, share, strict=True):
            column.append(value)
    return pa.RecordBatch.from_pydict(dict(zip(SHARES.names, columns, strict=True)), SHARES)
