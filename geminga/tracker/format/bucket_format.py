"""A sealed bucket of the delayed index as bytes: the entries of one ledger. docs/formats/bucket.md is the
page for people.

All integers are little-endian. A bucket with n segments has the entries 0 .. n-1, one segment each, and after
them its directory, in as many pieces as it needs: so it is written in one pass, however large, and a ledger
that was not written to its end has no directory.

    segment   := count u32 | min_ms i64 | positions_bytes u32 | positions | times
    piece     := number u16 | pieces u16 | part of the directory
    directory := start_ledger u32 | end_ledger u32 | segments u32 | ledgers u32 | table_bytes u32 | table
               | ledger * ledgers
    ledger    := ledger_id u32 | count u32 | set_bytes u32 | set of entry ids

Each entry, like those of `override_format.py`, is framed by what it is and a checksum, CRC-32C over version,
kind and body:

    entry := version u8 | kind u8 | crc u32 | body

`positions` is a set of `ledger << 32 | entry`; `times` are due times in the order of the positions, exact to
the millisecond. The table has four columns, each with a number for each segment: first and last due time,
rows, length of the entry. The directory's ledgers have the positions of all segments together. How sets and
columns are written is in `packed_columns.py`.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np
from fastcrc.crc32 import iscsi as crc32c
from pyroaring import BitMap

from geminga.errors import CorruptData
from geminga.limits import MIB
from geminga.tracker.format.packed_columns import (
    deflate,
    from_positions,
    from_varints,
    from_widths,
    inflate,
    runs_of_positions,
    to_positions,
    to_varints,
    to_widths,
)
from geminga.tracker.format.rows import ENTRY_BITS, ENTRY_MASK, Integers, Rows, order_of

VERSION: Final = 1
"""The version that is written. `LAYOUTS` has those that can be read."""
# Each entry states its kind, so that a segment where the directory should be is refused; the kind is under
# the checksum, so that a flipped bit cannot turn one into the other.
SEGMENT, PIECE, OVERRIDES = 1, 2, 3
"""Kinds: a bucket's segment, a piece of its directory, changed due times."""
_HEAD: Final = struct.Struct("<BBI")

T = TypeVar("T")


def framed(kind: int, body: bytes) -> bytes:
    return _HEAD.pack(VERSION, kind, crc32c(bytes((VERSION, kind)) + body)) + body


def unframed(entry: bytes, kind: int) -> tuple[int, bytes]:
    """Version and body; the version may be one that cannot be read. ValueError, or struct.error, if the entry
    is not what `framed` has made of a body of this kind.
    """
    version, found, crc = _HEAD.unpack_from(entry)
    # The bookie checks its records too. This checksum accompanies the entry further: through bundles, copies
    # made by `geminga pipeline`, and ledgers that another program wrote.
    body = entry[_HEAD.size :]
    if crc32c(bytes((version, found)) + body) != crc:
        raise ValueError("it does not match its checksum")
    if found != kind:
        raise ValueError(f"an entry of kind {found} where {kind} should be")
    return version, body


def layout_of(version: int, layouts: Mapping[int, T]) -> T:
    """How to read this version. ValueError if this release cannot."""
    # After the checksum: a damaged version byte is reported as damage and not as a release that is too old.
    if version not in layouts:
        known = ", ".join(map(str, sorted(layouts)))
        raise ValueError(f"version {version}; this release reads {known}")
    return layouts[version]


def checked(what: str, decode: Callable[[], T]) -> T:
    """What `decode` returns. CorruptData, naming `what`, for whatever bytes of another form make of it."""
    try:
        return decode()
    # All that damaged bytes can raise becomes CorruptData, upon which the index reads the bucket's range of
    # the topic again. Any other exception is a bug and must not be taken for damage.
    except (struct.error, ValueError, IndexError, OverflowError) as error:
        raise CorruptData(f"{what} does not follow its format: {error}") from error


# An entry of the bookie is at most 5 MiB. Smaller pieces keep one read, and one damaged record, small.
PIECE_BYTES_MAX: Final = 1 * MIB
# A segment is the unit of loading: larger ones bring rows into memory long before they are due.
SEGMENT_INDEXES_MAX: Final = 200_000
"""Where a segment is cut even if no limit is configured: such an entry is still below 4 MiB."""
SEGMENT_INDEXES_MIN: Final = 1000
"""A segment goes on beyond its time span up to so many rows, or a fifth of the most it may have: each costs
some 100 bytes by itself on disk and 37 in memory, which is much for the 170 messages that a bucket with
random delays over a day has in five minutes.
"""
# Offsets from a segment's first time are packed in at most 56 bits (`WIDTH_MAX`).
SEGMENT_SPAN_MS_MAX: Final = 1 << 48
_SEGMENT: Final = struct.Struct("<IqI")
_PIECE: Final = struct.Struct("<HH")
_DIRECTORY: Final = struct.Struct("<IIIII")
_LEDGER: Final = struct.Struct("<III")
# Two forms of times: random delays do not deflate and unpack faster as fixed widths; regular ones deflate to
# almost nothing.
_PACKED, _STEPS = range(2)
_STEPS_SAMPLED: Final = 256
_STEPS_DISTINCT_MAX: Final = 48
"""Due times that change by more different steps than this, among the first ones, do not deflate well."""


class EncodedBucket(NamedTuple):
    """The entries of a bucket, in the order in which they are written: all segments, then the directory."""

    segments: list[bytes]
    directory: list[bytes]


class Directory(NamedTuple):
    """What a bucket holds, without the rows: one element of each column for each segment."""

    start_ledger: int
    end_ledger: int
    min_ms: Integers
    max_ms: Integers
    counts: Integers
    sizes_bytes: Integers
    """The length of each segment's entry."""
    members: dict[int, BitMap]
    """The entry ids of all segments together, by ledger."""

    first_code: int
    last_code: int
    """The first and the last of the members, in the order of the topic."""

    @property
    def segments(self) -> int:
        return len(self.counts)

    @property
    def rows(self) -> int:
        return int(self.counts.sum())

    def check_segment(self, number: int, entry: bytes) -> None:
        """That it is undamaged and the segment with this number, as far as can be told without decoding it.
        CorruptData.
        """
        # The head alone: decoding the rows costs many times more, and the checksum has covered them already.
        head = checked("a segment of a bucket", lambda: _segment_head(entry))
        described = len(entry), *head
        if described != (self.sizes_bytes[number], self.counts[number], self.min_ms[number]):
            raise CorruptData(f"segment {number} of a bucket is not the one that the directory describes")

    def decode_segment(self, number: int, entry: bytes) -> Rows:
        """As the function `decode_segment`, and it must be what the directory says of this segment."""
        # A sound segment in the wrong place is the danger: a ledger id given twice, or a bundle put together
        # wrongly, would deliver messages early.
        rows = decode_segment(entry)
        first, last = int(rows.codes.min()) >> ENTRY_BITS, int(rows.codes.max()) >> ENTRY_BITS
        if (
            len(entry) != self.sizes_bytes[number]
            or len(rows.times_ms) != self.counts[number]
            or rows.times_ms[0] != self.min_ms[number]
            or rows.times_ms[-1] != self.max_ms[number]
            or not self.start_ledger <= first <= last <= self.end_ledger
        ):
            raise CorruptData(f"segment {number} of a bucket is not the one that the directory describes")
        return rows


# -- writing --------------------------------------------------------------------------------------------


def cut_segments(times_ms: Integers, span_max_ms: int, indexes_max: int) -> Iterator[tuple[int, int]]:
    """Where sorted times are cut: after `indexes_max` (-1: as many as there may be) rows, or before the first
    one that is `span_max_ms` or more after a segment's first, but not before `SEGMENT_INDEXES_MIN`.
    """
    assert span_max_ms > 0
    span_max_ms = min(span_max_ms, SEGMENT_SPAN_MS_MAX)
    if not 0 < indexes_max < SEGMENT_INDEXES_MAX:
        indexes_max = SEGMENT_INDEXES_MAX
    indexes_min = min(SEGMENT_INDEXES_MIN, indexes_max // 5)
    start, end = 0, len(times_ms)
    while start < end:
        window = times_ms[start : start + indexes_max]
        rows = int(np.searchsorted(window, int(window[0]) + span_max_ms, "left"))
        # Pulsar does not do this: sparse buckets give it segments of a few messages, each with its own
        # overhead.
        if rows < min(indexes_min, len(window)):
            rows = _rows_of_whole_bits(window[:indexes_min]) if len(window) > indexes_min else len(window)
        yield start, start + rows
        start += rows


def _rows_of_whole_bits(window: Integers) -> int:
    """How many of these rows, more than half, need a bit less for each of their times; else all."""
    bits = (int(window[-1]) - int(window[0])).bit_length() - 1
    rows = int(np.searchsorted(window, int(window[0]) + (1 << max(bits, 0)), "left"))
    return rows if 2 * rows > len(window) else len(window)


def encode_segment(rows: Rows) -> bytes:
    """One entry for at least one row; they come in the order of (time, code)."""
    # By position instead of time: the positions are a set, which packs far better than the times gain from
    # order.
    order = order_of(rows.codes - rows.codes.min())
    codes, times_ms = rows.codes[order], rows.times_ms[order]
    min_ms = int(rows.times_ms[0])
    positions = to_positions(codes)
    head = _SEGMENT.pack(len(codes), min_ms, len(positions))
    return framed(SEGMENT, head + positions + _encode_times(times_ms - min_ms))


def _encode_times(offsets_ms: Integers) -> bytes:
    width = int(offsets_ms.max()).bit_length()
    # Known without packing, so that the fast form's size costs nothing to compare.
    packed_bytes = -(-len(offsets_ms) * width // 8)
    steps = np.diff(offsets_ms, prepend=0)
    if packed_bytes and len(set(steps[:_STEPS_SAMPLED].tolist())) <= _STEPS_DISTINCT_MAX:
        # Zigzag, since in the order of positions times go up and down.
        deflated = deflate(to_varints((steps << 1) ^ (steps >> 63)))
        if len(deflated) < packed_bytes:
            return bytes((_STEPS,)) + deflated
    return bytes((_PACKED, width)) + to_widths(offsets_ms, width)


class DirectoryBuilder:
    """Collects what the directory says of segments that are encoded one by one, in the order of their times.

    Holds 32 bytes for each of them.
    """

    def __init__(self, start_ledger: int, end_ledger: int) -> None:
        assert 0 <= start_ledger <= end_ledger < 2**31
        self._range = start_ledger, end_ledger
        self._table: list[tuple[int, int, int, int]] = []
        self.rows = 0

    def add(self, rows: Rows) -> bytes:
        """Encode the next segment."""
        entry = encode_segment(rows)
        self._table.append((int(rows.times_ms[0]), int(rows.times_ms[-1]), len(rows.codes), len(entry)))
        self.rows += len(rows.codes)
        return entry

    def finish(self, members: Mapping[int, BitMap]) -> list[bytes]:
        """The directory's entries; `members` are the entry ids of all segments by ledger."""
        start, end = self._range
        assert self.rows > 0
        assert start <= min(members) <= max(members) <= end, "rows of ledgers out of the bucket's range"
        # By columns: first times, spans, counts and sizes each resemble themselves, and deflate sees that.
        columns = np.array(self._table, np.int64).T.copy()
        columns[1] -= columns[0]
        columns[0] = np.diff(columns[0], prepend=0)
        table = deflate(to_varints(((columns << 1) ^ (columns >> 63)).reshape(-1)))
        parts = [_DIRECTORY.pack(start, end, len(self._table), len(members), len(table)), table]
        for ledger_id in sorted(members):
            entry_ids = np.frombuffer(members[ledger_id].to_array(), np.uint32).astype(np.int64)
            written = to_positions(entry_ids)
            parts += [_LEDGER.pack(ledger_id, len(entry_ids), len(written)), written]
        whole = b"".join(parts)
        pieces = [whole[at : at + PIECE_BYTES_MAX] for at in range(0, len(whole), PIECE_BYTES_MAX)]
        # Each piece says how many there are: the last entry of the ledger then tells where the directory
        # begins, so that opening a bucket takes two reads.
        return [framed(PIECE, _PIECE.pack(i, len(pieces)) + piece) for i, piece in enumerate(pieces)]


def encode_bucket(
    start_ledger: int, end_ledger: int, rows: Rows, span_max_ms: int, indexes_max: int
) -> EncodedBucket:
    """At least one row, in the order of (time, code), all of ledgers `start_ledger` to `end_ledger`. About
    5 ms for 50,000; keep it off the loop.
    """
    builder = DirectoryBuilder(start_ledger, end_ledger)
    segments = [
        builder.add(rows.part(start, stop))
        for start, stop in cut_segments(rows.times_ms, span_max_ms, indexes_max)
    ]
    return EncodedBucket(segments, builder.finish(members_of(rows.codes)))


# -- reading --------------------------------------------------------------------------------------------


def decode_segment(entry: bytes) -> Rows:
    """The rows of one segment in the order of (time, code). About 0.3 ms for 5,000. CorruptData."""
    return checked("a segment of a bucket", lambda: _segment(entry))


def _segment(entry: bytes) -> Rows:
    version, body = unframed(entry, SEGMENT)
    return layout_of(version, LAYOUTS).segment(body)


def _segment_head(entry: bytes) -> tuple[int, int]:
    version, body = unframed(entry, SEGMENT)
    return layout_of(version, LAYOUTS).segment_head(body)


def _decode_segment_head(body: bytes) -> tuple[int, int]:
    count, min_ms, _ = _SEGMENT.unpack_from(body)
    return count, min_ms


def _decode_segment(body: bytes) -> Rows:
    count, min_ms, positions_bytes = _SEGMENT.unpack_from(body)
    times_at = _SEGMENT.size + positions_bytes
    # Bounds before work: the checksum says that bytes are as written, not that their writer was right.
    if not 0 < count <= SEGMENT_INDEXES_MAX or times_at >= len(body):
        raise ValueError(f"{count} rows in {len(body)} bytes")
    codes = from_positions(body[_SEGMENT.size : times_at], count)
    offsets_ms = _decode_times(body[times_at:], count)
    # `min_ms` must be the true minimum: the index decides by it when to load, and a larger one would deliver
    # late.
    if int(codes[0]) < 0 or int(offsets_ms.min()) != 0:
        raise ValueError("a segment that does not begin at its first time")
    # Constant delays: already in the order of time, no sort needed.
    if _ascends(offsets_ms):
        return Rows(offsets_ms + min_ms, codes)
    order = order_of(offsets_ms)
    return Rows(offsets_ms[order] + min_ms, codes[order])


def _decode_times(data: bytes, count: int) -> Integers:
    if data[0] == _PACKED and len(data) > 1:
        return from_widths(data[2:], count, data[1])
    if data[0] != _STEPS:
        raise ValueError(f"times of kind {data[0]}")
    # Nine bytes a number at most: a deflate stream of a few bytes could otherwise inflate to gigabytes.
    folded = from_varints(inflate(data[1:], count * 9), count)
    offsets_ms: Integers = np.cumsum((folded >> 1) ^ -(folded & 1))
    return offsets_ms


def directory_pieces(last_entry: bytes) -> int:
    """Of how many entries the directory is that ends with this one, the last of its ledger. CorruptData."""
    return checked("the end of a bucket", lambda: _directory_pieces(last_entry))


def _directory_pieces(last_entry: bytes) -> int:
    version, body = unframed(last_entry, PIECE)
    number, pieces, _ = layout_of(version, LAYOUTS).piece(body)
    # A ledger that a crash left unfinished ends in a segment or in an inner piece. Then the bucket never
    # counted: its property is written only after its last entry.
    if number != pieces - 1:
        raise ValueError(f"piece {number} of {pieces} is the last entry")
    return pieces


def _decode_piece(body: bytes) -> tuple[int, int, bytes]:
    number, pieces = _PIECE.unpack_from(body)
    return number, pieces, body[_PIECE.size :]


def decode_directory(entries: Sequence[bytes]) -> Directory:
    """From all pieces in order. CorruptData."""
    return checked("the directory of a bucket", lambda: _directory(entries))


def _directory(entries: Sequence[bytes]) -> Directory:
    parts, versions = [], set()
    for number, entry in enumerate(entries):
        version, body = unframed(entry, PIECE)
        found, pieces, part = layout_of(version, LAYOUTS).piece(body)
        if (found, pieces) != (number, len(entries)):
            raise ValueError(f"another piece where {number} of {len(entries)} should be")
        parts.append(part)
        versions.add(version)
    # One release writes a whole bucket: such pieces are of two directories.
    if len(versions) != 1:
        raise ValueError(f"pieces of versions {sorted(versions)}")
    return LAYOUTS[versions.pop()].directory(b"".join(parts))


def _decode_directory(whole: bytes) -> Directory:
    start, end, segments, ledgers, table_bytes = _DIRECTORY.unpack_from(whole)
    at = _DIRECTORY.size + table_bytes
    if not segments or start > end or at > len(whole):
        raise ValueError(f"{segments} segments of ledgers {start} to {end}")
    folded = from_varints(inflate(whole[_DIRECTORY.size : at], 36 * segments), 4 * segments)
    columns = ((folded >> 1) ^ -(folded & 1)).reshape(4, segments)
    min_ms, counts = np.cumsum(columns[0]), columns[2].copy()
    # Segments must follow each other in time: loading stops at the first one that is not due yet.
    if int(columns[1:].min()) < 0 or int(counts.min()) < 1 or not _ascends(min_ms):
        raise ValueError("a table of segments that cannot be")
    members = _decode_members(whole, at, ledgers)
    first, last = min(members), max(members)
    # Fewer members than rows is right (a changed due time gives a second row), more cannot be: such a bucket
    # would hide messages that no row ever delivers.
    if not start <= first <= last <= end or sum(map(len, members.values())) > int(counts.sum()):
        raise ValueError(f"members of ledgers {first} to {last} in a bucket of {start} to {end}")
    first_code, last_code = (
        first << ENTRY_BITS | members[first].min(),
        last << ENTRY_BITS | members[last].max(),
    )
    table = min_ms, min_ms + columns[1], counts, columns[3].copy()
    return Directory(start, end, *table, members, first_code, last_code)


def _decode_members(whole: bytes, at: int, ledgers: int) -> dict[int, BitMap]:
    members: dict[int, BitMap] = {}
    for _ in range(ledgers):
        ledger_id, count, set_bytes = _LEDGER.unpack_from(whole, at)
        at += _LEDGER.size
        firsts, lengths = runs_of_positions(whole[at : at + set_bytes], count)
        at += set_bytes
        members[ledger_id] = entry_ids = BitMap()
        if len(firsts) < count:
            for first, length in zip(firsts.tolist(), lengths.tolist(), strict=True):
                # Whole runs at once: a backlog of consecutive delayed messages is one range, not a million
                # insertions.
                entry_ids.add_range(first, first + length)
        else:
            entry_ids |= _bitmap(firsts)
        # pyroaring merges repeated ids without a word; the count shows it.
        if len(entry_ids) != count:
            raise ValueError(f"{len(entry_ids)} members of ledger {ledger_id}, {count} expected")
    if at != len(whole) or not members:
        raise ValueError(f"{len(whole) - at} bytes after the members")
    return members


class Layout(NamedTuple):
    """How the bodies of one version are read. What they raise is what `checked` takes for damage."""

    segment_head: Callable[[bytes], tuple[int, int]]
    """Rows, and the earliest due time, without decoding the rows."""
    segment: Callable[[bytes], Rows]
    piece: Callable[[bytes], tuple[int, int, bytes]]
    """Its number, how many pieces there are, and its part of the directory."""
    directory: Callable[[bytes], Directory]
    """From all parts together."""


LAYOUTS: Final[dict[int, Layout]] = {
    1: Layout(_decode_segment_head, _decode_segment, _decode_piece, _decode_directory),
}
"""By version: each that a release has written, for good. A bucket outlives the program that wrote it, and
the two sources of a merge may be of two versions. A new version gets a row, `LAYOUTS[1]._replace(...)` with
what it changes, and becomes `VERSION`; `override_format.py` has the same versions.
"""


def members_of(codes: Integers) -> dict[int, BitMap]:
    """Codes in any order as entry ids by ledger."""
    codes = np.sort(codes)
    ledgers = codes >> ENTRY_BITS
    starts = np.flatnonzero(np.diff(ledgers, prepend=-1))
    parts = np.split(codes & ENTRY_MASK, starts[1:])
    return {ledger_id: _bitmap(part) for ledger_id, part in zip(ledgers[starts].tolist(), parts, strict=True)}


def _bitmap(entry_ids: Integers) -> BitMap:
    # From a buffer of C ints pyroaring takes a tenth of the time that it takes from numpy's array.
    return BitMap(array("I", entry_ids.astype(np.uint32).tobytes()))


def _ascends(numbers: Integers) -> bool:
    return bool((numbers[1:] >= numbers[:-1]).all())
