"""Buckets of the delayed index in bulk: cut, encoded, checked against the backlog. docs/rebuild.md.

A backlog is rows of position and due time, wherever they come from. It is cut into *ranges* of positions
(`KeyRange`), one bucket each, which may end inside a ledger. Rows are counted for that by *block*, so many
entries of a ledger. All that belongs to a range, or to a bucket that is to be checked, has its number and
comes together as *shares*: rows of the backlog, and the entries of the bucket.

Buckets that are there may overlap: then each position belongs to the narrowest one (`regions_of`), and what
that one lacks and another has is taken out at the end (`faults_in`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from geminga.errors import CorruptData
from geminga.tracker.buckets.bucket_check import whole_bucket
from geminga.tracker.buckets.bucket_settings import BUCKETS_MAX, BucketSettings
from geminga.tracker.format.bucket_format import encode_bucket
from geminga.tracker.format.rows import (
    ENTRY_BITS,
    ENTRY_MASK,
    Integers,
    Rows,
    code_of,
    concatenate,
    position_of,
    split_repeated,
)
from geminga.tracker.format.stored_bucket import KEY_PREFIX, KeyRange, bucket_key, range_of_key

BLOCK_BITS: Final = 12
"""Rows are counted, and ranges end, by so many bits of an entry id."""
_LEDGER_BLOCK_BITS: Final = ENTRY_BITS - BLOCK_BITS
COUNTS: Final = pa.schema([("block", pa.int64()), ("rows", pa.int64())])
"""Rows by block: a position's code without its lowest `BLOCK_BITS`."""
SHARES: Final = pa.schema(
    [("range", pa.int64()), ("what", pa.string()), ("number", pa.int64()), ("data", pa.binary())]
)
"""`rows`: codes and due times of `number` rows; `entry`: entry `number` of the bucket; `unread`: codes of
`number` messages whose records are damaged. `range`: the number of a range, or the ledger of a bucket.
"""
ENCODED: Final = pa.schema(
    [
        ("range", pa.int64()),
        ("first_code", pa.int64()),
        ("last_code", pa.int64()),
        ("rows", pa.int64()),
        ("entries", pa.list_(pa.binary())),
        ("unread", pa.list_(pa.int64())),
    ]
)
FAULTS: Final = pa.schema(
    [
        ("bucket", pa.int64()),
        ("fault", pa.string()),
        ("count", pa.int64()),
        ("ledger_id", pa.int64()),
        ("entry_id", pa.int64()),
        ("rows", pa.binary()),
    ]
)
"""`count` positions; the first of them. Faults are those of `Fault`. `rows`: codes and due times of all of
them, where another bucket may explain the fault; else null.
"""
NO_CODE: Final = -1
_BUCKETS_AIM: Final = BUCKETS_MAX // 2


class Encoded(NamedTuple):
    """A bucket, ready to be written: all its entries in order; none if it has no rows."""

    covered: KeyRange
    """What its name is to speak of."""
    rows: int
    entries: list[bytes]
    unread: Sequence[int] = ()
    """Codes of messages of the range that are left out: their records are damaged. `NO_CODE`: some message of
    a log that does not say what it has.
    """


class Region(NamedTuple):
    """Positions, first and last included, that belong to the range or the bucket with this number."""

    first_code: int
    last_code: int
    number: int


class Division(NamedTuple):
    """Where shares go."""

    regions: tuple[Region, ...]
    """Ascending; none overlaps."""
    buckets: frozenset[int]
    """The ledgers of buckets whose entries are wanted."""

    @classmethod
    def into(cls, ranges: Sequence[KeyRange]) -> Division:
        """Rows by the index of their range; no bucket."""
        return cls(tuple(regions_of(dict(enumerate(ranges)))), frozenset())

    @classmethod
    def of_buckets(cls, buckets: Mapping[int, KeyRange]) -> Division:
        """Each bucket's entries and the rows that it has to have, by its ledger."""
        return cls(tuple(regions_of(buckets)), frozenset(buckets))

    def number_of(self, code: int) -> int | None:
        """To what a position belongs."""
        index = bisect_right(self.regions, code, key=_first_code) - 1
        return self.regions[index].number if index >= 0 and code <= self.regions[index].last_code else None

    def has_any(self, first_code: int, last_code: int) -> bool:
        """Whether some of these positions belong to something."""
        index = bisect_right(self.regions, last_code, key=_first_code) - 1
        return index >= 0 and first_code <= self.regions[index].last_code


def _first_code(region: Region) -> int:
    return region.first_code


def text_of(covered: KeyRange) -> str:
    """A range for people, as `geminga delayed buckets` has it: `10-11`, or `10:5-11:7`."""
    return bucket_key(covered).removeprefix(KEY_PREFIX).replace("_", "-")


def range_of_text(text: str) -> KeyRange | None:
    return range_of_key(KEY_PREFIX + text.replace("-", "_"))


# -- cutting ----------------------------------------------------------------------------------------------


def rows_per_bucket(total: int, settings: BucketSettings) -> int:
    """So that there are not more buckets than half of what one record names."""
    return max(settings.indexes_min, -(-total // _BUCKETS_AIM))


def cut(counts: Mapping[int, int], rows_each: int) -> list[KeyRange]:
    """Neighbouring blocks together until they have so many rows; `counts` are rows by block. From the begin
    of the first ledger to the end of the last one nothing is left out, but ledgers between two ranges.
    """
    ranges: list[KeyRange] = []
    blocks = sorted(block for block, count in counts.items() if count)
    if not blocks:
        return []
    first_code, rows = code_of(blocks[0] >> _LEDGER_BLOCK_BITS, 0), 0
    for block, following in pairwise([*blocks, None]):
        assert block is not None
        rows += counts[block]
        ledger_id = block >> _LEDGER_BLOCK_BITS
        ends_ledger = following is None or following >> _LEDGER_BLOCK_BITS != ledger_id
        if rows >= rows_each or following is None:
            last_code = code_of(ledger_id, ENTRY_MASK) if ends_ledger else ((block + 1) << BLOCK_BITS) - 1
            ranges.append(KeyRange(first_code, last_code))
            if following is not None:
                first_code = (following >> _LEDGER_BLOCK_BITS) << ENTRY_BITS if ends_ledger else last_code + 1
            rows = 0
    return ranges


def count_by_block(rows: Rows) -> dict[int, int]:
    blocks, counts = np.unique(rows.codes >> BLOCK_BITS, return_counts=True)
    return dict(zip(blocks.tolist(), counts.tolist(), strict=True))


def count_batch(counts: Mapping[int, int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"block": list(counts), "rows": list(counts.values())}, COUNTS)


def regions_of(ranges: Mapping[int, KeyRange]) -> list[Region]:
    """To which of the ranges, by number, each position belongs: to the narrowest that has it."""
    waiting = sorted((one.first_code, one.last_code - one.first_code, n) for n, one in ranges.items())
    waiting.reverse()
    borders = sorted({code for one in ranges.values() for code in (one.first_code, one.last_code + 1)})
    having: list[tuple[int, int]] = []
    found: list[Region] = []
    for begin, end in pairwise(borders):
        while waiting and waiting[-1][0] <= begin:
            heappush(having, waiting.pop()[1:])
        while having and ranges[having[0][1]].last_code < begin:
            heappop(having)
        if not having:
            continue
        number = having[0][1]
        if found and found[-1].number == number and found[-1].last_code == begin - 1:
            begin = found.pop().first_code
        found.append(Region(begin, end - 1, number))
    return found


def apart(ranges: Iterable[KeyRange]) -> list[KeyRange]:
    """The same positions in ranges of which no two overlap, ascending."""
    return [KeyRange(first, last) for first, last, _ in regions_of(dict(enumerate(ranges)))]


def overlapping(ranges: Mapping[int, KeyRange]) -> frozenset[int]:
    """The numbers of those that have a position in common with another one."""
    found: set[int] = set()
    reach, furthest = -1, -1
    for first_code, last_code, number in sorted((*one, number) for number, one in ranges.items()):
        if first_code <= reach:
            found |= {number, furthest}
        if last_code > reach:
            reach, furthest = last_code, number
    return frozenset(found)


# -- shares -----------------------------------------------------------------------------------------------


def row_shares(rows: Rows, division: Division) -> Iterator[tuple[int, str, int, bytes]]:
    """The rows as shares, of those only that belong to something."""
    if not rows.length or not division.regions:
        return
    firsts, lasts, numbers = np.array(division.regions, np.int64).T
    indexes = np.searchsorted(firsts, rows.codes, "right") - 1
    inside = (indexes >= 0) & (rows.codes <= lasts[indexes])
    if not inside.any():
        return
    chosen, mine = rows.where(inside), numbers[indexes[inside]]
    order = np.argsort(mine, kind="stable")
    mine, codes, times_ms = mine[order], chosen.codes[order], chosen.times_ms[order]
    begins = np.flatnonzero(np.diff(mine, prepend=-1))
    for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(mine)], strict=True):
        yield int(mine[begin]), "rows", end - begin, _packed(codes[begin:end], times_ms[begin:end])


def _packed(codes: Integers, times_ms: Integers) -> bytes:
    return np.concatenate([codes, times_ms]).astype("<i8").tobytes()


def _unpacked(data: bytes) -> Rows:
    codes, times_ms = np.frombuffer(data, "<i8").reshape(2, -1)
    return Rows(times_ms, codes)


def rows_in(shares: pa.RecordBatch | pa.Table) -> Rows:
    """All rows of some shares, sorted, each position once (at its earliest time)."""
    columns = zip(*(shares[name].to_pylist() for name in ("what", "data")), strict=True)
    rows = concatenate([_unpacked(data) for what, data in columns if what == "rows"]).sorted()
    return split_repeated(rows)[0]


def unread_in(shares: pa.RecordBatch | pa.Table) -> Integers:
    """Codes of the messages that could not be read."""
    columns = zip(*(shares[c].to_pylist() for c in ("what", "data")), strict=True)
    parts = [np.frombuffer(data, "<i8") for what, data in columns if what == "unread"]
    return np.sort(np.concatenate(parts)) if parts else np.zeros(0, np.int64)


def encode_range(number: int, one: KeyRange, shares: pa.Table, settings: BucketSettings) -> pa.Table:
    """The bucket of a range as one row of `ENCODED`; none if nothing was, or should have been, read."""
    rows, unread = rows_in(shares), unread_in(shares)
    if not rows.length and not len(unread):
        return ENCODED.empty_table()
    entries: list[bytes] = []
    if rows.length:
        first_code, last_code = int(rows.codes.min()), int(rows.codes.max())
        ledgers = first_code >> ENTRY_BITS, last_code >> ENTRY_BITS
        bucket = encode_bucket(*ledgers, rows, settings.segment_span_ms, settings.segment_indexes_max)
        entries = [*bucket.segments, *bucket.directory]
        if one.last_code & ENTRY_MASK == ENTRY_MASK and not one.is_whole:
            one = KeyRange(one.first_code, last_code)
    values = (number, *one, rows.length, entries, unread.tolist())
    return pa.Table.from_pylist([dict(zip(ENCODED.names, values, strict=True))], ENCODED)


# -- checking ---------------------------------------------------------------------------------------------


class Fault(NamedTuple):
    """What is wrong with a bucket."""

    bucket: int
    """The ledger that holds it."""
    fault: str
    """`damaged`: cannot be read. `missing`: positions of the backlog that it does not have. `other time`: it
    has them, due at another time. `unknown`: it has positions that are not in the backlog (acknowledged
    since, as a rule), or that another bucket has, too; harmless. `unread`: records of these messages are
    damaged, so they can be neither checked against the bucket nor delivered.
    """
    positions: int
    ledger_id: int
    entry_id: int

    @property
    def is_harmless(self) -> bool:
        return self.fault in ("unknown", "unread")


_Found = tuple[str, Rows]
"""A fault, and where it is."""


def check_bucket(ledger_id: int, covered: KeyRange, overlaps: bool, shares: pa.Table) -> pa.Table:
    """What is wrong with a bucket as rows of `FAULTS`, by its share of the backlog's rows and its entries.
    `overlaps`: another bucket may have what it lacks.
    """
    wanted, unread = rows_in(shares), unread_in(shares)
    columns = (shares[name].to_pylist() for name in ("what", "number", "data"))
    entries = {entry: data for what, entry, data in zip(*columns, strict=True) if what == "entry"}
    found: list[_Found] = []
    if len(unread):
        found.append(("unread", Rows(unread, unread)))
    try:
        if entries:
            found += _compared(wanted, _bucket_rows(covered, entries), unread)
        elif wanted.length:
            found.append(("missing", wanted))
    except CorruptData:
        found.append(("damaged", wanted))
    faults = []
    for fault, rows in found:
        position = _position(rows.codes) if fault != "damaged" else (position_of(covered.first_code)[0], -1)
        is_open = overlaps and fault in ("missing", "unknown")
        data = _packed(rows.codes, rows.times_ms) if is_open else None
        values = (ledger_id, fault, rows.length, *position, data)
        faults.append(dict(zip(FAULTS.names, values, strict=True)))
    return pa.Table.from_pylist(faults, FAULTS)


def faults_in(table: pa.Table) -> list[Fault]:
    """The rows of a `FAULTS` table, in order, without what one bucket lacks and another one has."""
    faults = table.to_pylist()
    missing, spare = (
        concatenate([_unpacked(one["rows"]) for one in faults if one["rows"] and one["fault"] == fault])
        for fault in ("missing", "unknown")
    )
    found = []
    for one in faults:
        if one["rows"] is None:
            found.append(Fault(*list(one.values())[:-1]))
        else:
            found += _unexplained(one, spare if one["fault"] == "missing" else missing)
    return sorted(found)


def _unexplained(fault: Mapping[str, Any], others: Rows) -> Iterator[Fault]:
    """What of a bucket's missing positions no other has spare, and of its unknown ones no other misses."""
    rows = _unpacked(fault["rows"])
    apart = ~np.isin(rows.codes, others.codes)
    if apart.any():
        codes = rows.codes[apart]
        yield Fault(fault["bucket"], fault["fault"], len(codes), *_position(codes))
    if fault["fault"] == "missing" and not apart.all():
        right = set(zip(others.codes.tolist(), others.times_ms.tolist(), strict=True))
        mine = zip(rows.codes[~apart].tolist(), rows.times_ms[~apart].tolist(), strict=True)
        wrong = [code for code, at_ms in mine if (code, at_ms) not in right]
        if wrong:
            yield Fault(fault["bucket"], "other time", len(wrong), *position_of(min(wrong)))


def _bucket_rows(covered: KeyRange, entries: Mapping[int, bytes]) -> Rows:
    """All that a bucket says, each position once, at its last time. CorruptData."""
    directory, rows = whole_bucket(entries)
    has = KeyRange(directory.first_code, directory.last_code)
    if has.first_code < covered.first_code or has.last_code > covered.last_code:
        raise CorruptData(f"a bucket of {text_of(has)}, not of {text_of(covered)}")
    return rows


def _compared(wanted: Rows, have: Rows, unread: Integers) -> Iterator[_Found]:
    wanted, have = _by_code(wanted), _by_code(have)
    lacked = ~np.isin(wanted.codes, have.codes)
    if lacked.any():
        yield "missing", wanted.where(lacked)
    unknown = ~np.isin(have.codes, wanted.codes) & ~np.isin(have.codes, unread)
    if unknown.any():
        yield "unknown", have.where(unknown)
    codes, times_ms = wanted.codes[~lacked], wanted.times_ms[~lacked]
    # A position may be there at several times; one of them has to be right.
    first, last = np.searchsorted(have.codes, codes, "left"), np.searchsorted(have.codes, codes, "right")
    wrong = (have.times_ms[first] != times_ms) & (last - first == 1)
    if wrong.any():
        yield "other time", Rows(times_ms[wrong], codes[wrong])


def _by_code(rows: Rows) -> Rows:
    order = np.argsort(rows.codes)
    return Rows(rows.times_ms[order], rows.codes[order])


def _position(codes: Integers) -> tuple[int, int]:
    code = int(codes.min())
    return (-1, -1) if code == NO_CODE else position_of(code)


def share_batch(shares: Iterable[tuple[int, str, int, bytes]]) -> pa.RecordBatch:
    columns: list[list[object]] = [[], [], [], []]
    for share in shares:
        for column, value in zip(columns, share, strict=True):
            column.append(value)
    return pa.RecordBatch.from_pydict(dict(zip(SHARES.names, columns, strict=True)), SHARES)
