"""The delivery log's bytes: which message was published, sent or acknowledged, and when, in columns.
`docs/formats/delivery-log.md` is the page for people.

    file    := file head (64 bytes) | segment*
    segment := head (40 bytes) | table * 3 | column * 15
    table   := strings u32 | (size u16 | UTF-8) * strings
    column  := form u8 | width u8 | least i64 | code (width bytes, unsigned) * events

All integers are little-endian. A segment is self-contained: it has the names of its events, so files can be
cut between segments and read in any order. Version 1 had 13 columns and version 2 had 14; both are read, and
no longer written. Reading and writing need numpy; nothing here does I/O.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from fastcrc.crc32 import iscsi as crc32c

from geminga.delivery_log.columns_format import (
    ABSENT,
    COLUMNS,
    COLUMNS_OF_VERSION_1,
    COLUMNS_OF_VERSION_2,
    DTYPES,
    NAME_BYTES_MAX,
    TABLES,
    Column,
    constant_column,
    pack_column,
    pack_table,
    unpack_column,
    unpack_table,
)
from geminga.errors import CorruptData
from geminga.limits import MIB

__all__ = ["ABSENT", "COLUMNS", "DTYPES", "NAME_BYTES_MAX", "TABLES", "Column"]

VERSION: Final = 3
VERSIONS: Final = (1, 2, 3)
"""The versions that can be read."""
FILE_MAGIC: Final = b"GEMDLOG\0"
_FILE_HEAD: Final = struct.Struct("<8sIQqI")
"""magic | version | file number | opened, ms | crc of what is before it"""
FILE_HEAD_BYTES: Final = 64
SEGMENT_MAGIC: Final = b"GDL3"
SEGMENT_MAGICS: Final = {
    b"GDL1": COLUMNS_OF_VERSION_1,
    b"GDL2": COLUMNS_OF_VERSION_2,
    SEGMENT_MAGIC: COLUMNS,
}
"""The columns of a segment, by its version."""
_SEGMENT_HEAD: Final = struct.Struct("<4sIIIQqq")
"""magic | crc of all after it | bytes of the segment | events | number in the file | first and last ms"""
SEGMENT_HEAD_BYTES: Final = _SEGMENT_HEAD.size
_CRC_FROM: Final = 8
_COUNT: Final = struct.Struct("<I")

SEGMENT_EVENTS_MAX: Final = 1 << 18
SEGMENT_BYTES_MAX: Final = 64 * MIB


class Kind(enum.IntEnum):
    """The kind of an event. docs/formats/delivery-log.md lists the columns that each kind fills."""

    OPENED = 1
    """A broker began to write here. Events of the last second of its predecessor may be missing."""
    PUBLISHED = 2
    """An entry is durable; its receipt leaves."""
    DISPATCHED = 3
    ACKED = 4
    """An acknowledgement. Without a client: by the broker itself."""
    ACKED_UP_TO = 5
    """A cumulative acknowledgement, by a consumer."""
    SKIPPED_UP_TO = 6
    """An acknowledgement by the broker: expiry, a backlog quota, `skip`, `clear`, forced retention."""
    SUBSCRIBED = 7
    """A subscription was created; it gets the messages after the position."""
    UNSUBSCRIBED = 8
    SOUGHT = 9
    """A cursor was moved: messages after the position are delivered (again), all others are settled."""
    DUPLICATE = 10
    """Deduplication refused an entry silently: nothing was stored."""
    MISSED = 11
    """`batch_size` events were dropped here, because the log could not keep up."""
    CLOSED = 12
    """The broker stopped in order: no event is missing."""
    RELEASED = 13
    """A consumer left, or returned all unacknowledged messages: they are redelivered."""


class FileHead(NamedTuple):
    number: int
    """Files of one directory are numbered in the order in which they were written, across restarts."""
    opened_ms: int


class SegmentHead(NamedTuple):
    """Enough to cut a file into pieces without reading its columns."""

    offset: int
    size_bytes: int
    """Includes this head."""
    events: int
    number: int
    """From 0 in each file, without a gap: a missing number was lost."""
    first_ms: int
    last_ms: int
    """The least and the greatest `time_ms`."""

    @property
    def end(self) -> int:
        return self.offset + self.size_bytes


class Segment(NamedTuple):
    head: SegmentHead
    topics: list[str]
    subscriptions: list[str]
    clients: list[str]
    columns: dict[str, Column]
    """By the names in `COLUMNS`, of the types in `DTYPES`, each with `head.events` values. `topic`,
    `subscription` and `client` are indexes into the lists above. Version 1 has no `early_ms`, and
    only version 3 has `step_ms`.
    """


def encode_file_head(head: FileHead) -> bytes:
    fields = _FILE_HEAD.pack(FILE_MAGIC, VERSION, head.number, head.opened_ms, 0)[: -_COUNT.size]
    return (fields + _COUNT.pack(crc32c(fields))).ljust(FILE_HEAD_BYTES, b"\0")


def decode_file_head(data: bytes) -> FileHead:
    """The head in the first `FILE_HEAD_BYTES` of a file. Raises `CorruptData`."""
    if len(data) < FILE_HEAD_BYTES:
        raise CorruptData(f"a delivery log of {len(data)} bytes: not even its head is there")
    magic, version, number, opened_ms, crc = _FILE_HEAD.unpack_from(data)
    if magic != FILE_MAGIC:
        raise CorruptData("not a delivery log: the first eight bytes are not its magic")
    if crc != crc32c(data[: _FILE_HEAD.size - _COUNT.size]):
        raise CorruptData("the head of the delivery log does not match its checksum")
    if version not in VERSIONS:
        raise CorruptData(
            f"a delivery log of version {version}; this program reads up to version {VERSION}: read it with "
            "the version of Geminga that wrote it, or a later one"
        )
    return FileHead(number, opened_ms)


def encode_segment(
    number: int,
    columns: Mapping[str, Column | Sequence[int]],
    *,
    topics: Sequence[str],
    subscriptions: Sequence[str] = (),
    clients: Sequence[str] = (),
) -> bytes:
    """One segment of 1 to `SEGMENT_EVENTS_MAX` events, in the order in which they happened.

    A column that is not given is absent in every event, or 0. Names of more than `NAME_BYTES_MAX` bytes
    raise `ValueError`.
    """
    events = len(columns["kind"])
    if not 1 <= events <= SEGMENT_EVENTS_MAX:
        raise ValueError(f"{events} events in one segment")
    times = np.asarray(columns["time_ms"], np.int64)
    parts = [pack_table(names) for names in (topics, subscriptions, clients)]
    for name in COLUMNS:
        values = columns.get(name)
        if values is None:
            parts.append(constant_column(ABSENT.get(name, 0)))
        else:
            parts.append(pack_column(np.asarray(values, np.int64), events, ABSENT.get(name)))
    body = b"".join(parts)
    head = _SEGMENT_HEAD.pack(
        SEGMENT_MAGIC, 0, SEGMENT_HEAD_BYTES + len(body), events, number, int(times.min()), int(times.max())
    )
    crc = crc32c(body, crc32c(head[_CRC_FROM:]))
    return head[:4] + _COUNT.pack(crc) + head[_CRC_FROM:] + body


def decode_segment_head(data: bytes | memoryview, offset: int = 0, *, at: int = 0) -> SegmentHead:
    """The head at `data[offset:]`, which needs `SEGMENT_HEAD_BYTES`; `data` begins at `at` in the file.

    Does not check the checksum; `decode_segment` does. Raises `CorruptData`.
    """
    place = at + offset
    if len(data) - offset < SEGMENT_HEAD_BYTES:
        raise CorruptData(f"offset {place}: the head of a segment is cut short")
    magic, _, size, events, number, first_ms, last_ms = _SEGMENT_HEAD.unpack_from(data, offset)
    if magic not in SEGMENT_MAGICS:
        raise CorruptData(f"offset {place}: no segment begins here")
    if not (1 <= events <= SEGMENT_EVENTS_MAX and SEGMENT_HEAD_BYTES < size <= SEGMENT_BYTES_MAX):
        raise CorruptData(f"offset {place}: a segment of {events} events in {size} bytes cannot be")
    return SegmentHead(place, size, events, number, first_ms, last_ms)


def decode_segment(
    data: bytes | memoryview, offset: int = 0, *, at: int = 0, columns: Collection[str] = COLUMNS
) -> Segment:
    """The whole segment at `data[offset:]`, checked, with the requested columns.

    Raises `CorruptData`, whose text has the offset in the file (`at` is where `data` begins in it).
    """
    head = decode_segment_head(data, offset, at=at)
    view = memoryview(data)[offset : offset + head.size_bytes]
    if len(view) < head.size_bytes:
        raise CorruptData(f"offset {head.offset}: a segment is cut short")
    if crc32c(bytes(view[_CRC_FROM:])) != _COUNT.unpack_from(view, 4)[0]:
        raise CorruptData(f"offset {head.offset}: a segment does not match its checksum")
    try:
        return _decode_body(head, view, columns)
    except (struct.error, IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise CorruptData(f"offset {head.offset}: a segment that does not add up: {error}") from error


def _decode_body(head: SegmentHead, view: memoryview, columns: Collection[str]) -> Segment:
    position = SEGMENT_HEAD_BYTES
    tables: list[list[str]] = []
    for _ in TABLES:
        names, position = unpack_table(view, position)
        tables.append(names)
    found: dict[str, Column] = {}
    for name in SEGMENT_MAGICS[bytes(view[:4])]:
        wanted = name if name in columns else None
        column, position = unpack_column(view, position, head.events, wanted)
        if column is not None:
            found[name] = column
    if position != len(view):
        raise ValueError(f"{position} bytes of {len(view)} are used")
    for name, names in zip(TABLES, tables, strict=True):
        if name in found and not -1 <= found[name].min() <= found[name].max() < len(names):
            raise ValueError(f"an index beyond the {len(names)} names of {name}")
    topics, subscriptions, clients = tables
    return Segment(head, topics, subscriptions, clients, found)


class Scan(NamedTuple):
    """The result of a scan over a file's bytes."""

    segments: list[SegmentHead]
    end: int
    """The end of the last segment; the bytes after it are a torn end, if the file is the last one of a
    crash.
    """
    damage: list[str]
    """One line for each offset with bytes that are no segment. The scan continued after them."""


def scan(data: bytes | memoryview, *, offset: int = FILE_HEAD_BYTES) -> Scan:
    """The heads of all segments of a file, by their lengths; checksums are not verified.

    Where no segment begins, the scan searches for the next one and adds the offset to `damage`. Bytes at the
    end without a further segment are only left out of `end`.
    """
    heads: list[SegmentHead] = []
    damage: list[str] = []
    end = offset
    whole = None
    while offset < len(data):
        try:
            head = decode_segment_head(data, offset)
            if head.end > len(data):
                raise CorruptData(f"offset {offset}: a segment is cut short")
        except CorruptData as error:
            whole = bytes(data) if whole is None else whole
            offset = _next_magic(whole, offset + 1)
            while offset >= 0 and not _is_whole(whole, offset):
                offset = _next_magic(whole, offset + 1)
            if offset < 0:
                break
            damage.append(str(error))
            continue
        heads.append(head)
        end = offset = head.end
    return Scan(heads, end, damage)


def _next_magic(data: bytes, start: int) -> int:
    """The offset of the next magic; -1 if there is none."""
    return min((at for magic in SEGMENT_MAGICS if (at := data.find(magic, start)) >= 0), default=-1)


def _is_whole(data: bytes, offset: int) -> bool:
    try:
        decode_segment(data, offset, columns=())
    except CorruptData:
        return False
    return True


def segments(data: bytes | memoryview, *, columns: Collection[str] = COLUMNS) -> Iterator[Segment]:
    """All segments of a whole file, in order, without a torn end. Other damage raises `CorruptData`."""
    decode_file_head(bytes(data[:FILE_HEAD_BYTES]))
    found = scan(data)
    if found.damage:
        raise CorruptData(found.damage[0])
    for expected, head in enumerate(found.segments):
        if head.number != expected:
            raise CorruptData(f"offset {head.offset}: segment {head.number} where {expected} should be")
        yield decode_segment(data, head.offset, columns=columns)


def file_name(number: int) -> str:
    return f"deliveries-{number:08d}.log"


def file_number(name: str) -> int | None:
    """The number in a file's name; None for any other name."""
    digits = name.removeprefix("deliveries-").removesuffix(".log")
    return int(digits) if digits.isdecimal() and file_name(int(digits)) == name else None
