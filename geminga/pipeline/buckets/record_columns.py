"""Records of an entry log as columns: many of one length are checked, and looked into, at once.

CRC-32C is linear: the checksum of a record is that of another one of the same length, changed by what each
differing byte contributes at its offset. Neighbouring entries differ in few bytes, so a table for each of
these and an exclusive or is all that is left of checking them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from geminga.bookie.records.records import RECORD_CRC, RECORD_HEAD, RECORD_PREFIX_BYTES, crc32c
from geminga.errors import ProtocolError
from geminga.pipeline.columns.protobuf_columns import PADDING_BYTES, scan
from geminga.tracker.format.rows import Integers
from geminga.wire.message_metadata import peek
from geminga.wire.stored_entry import CHECKSUM_MAGIC, STAMP_MAGIC, is_virtual, metadata_range
from geminga.wire.varint import skip_varint

Table = NDArray[np.uint8]
"""A record in each row, its prefix included; all columns of one width."""
Mask = NDArray[np.bool_]

_DELIVER_AT: Final = 19
_PUBLISH_TIME: Final = 3
_BROKER_TIME, _VIRTUAL_CLOCK = 1, 100
_CRC_AT: Final = RECORD_HEAD.size
_POLYNOMIAL: Final = 0x82F63B78
_WIDTH_MAX: Final = 4096
"""Longer records are so few in a file that they are looked at one by one."""
_HIGH_BIT: Final = 0x80


class Likeness(NamedTuple):
    """By column, which bits differ from row to row."""

    bits: NDArray[np.uint8]

    def is_fixed(self, first: int, end: int) -> bool:
        return not self.bits[first:end].any()

    def has_fixed_length(self, first: int, end: int) -> bool:
        """Whether a varint in these columns is as long in all rows."""
        return not (self.bits[first:end] & _HIGH_BIT).any()


def likeness(records: Table) -> Likeness:
    return Likeness(np.bitwise_or.reduce(records ^ records[0], axis=0))


# -- checking ---------------------------------------------------------------------------------------------


def _tables(count: int) -> NDArray[np.uint32]:
    """What a byte contributes to the checksum when so many bytes follow it."""
    first = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        first = np.where(first & 1, (first >> 1) ^ np.uint32(_POLYNOMIAL), first >> 1).astype(np.uint32)
    tables = np.empty((count, 256), np.uint32)
    tables[0] = first
    for number in range(1, count):
        before = tables[number - 1]
        tables[number] = (before >> np.uint32(8)) ^ first[before & 0xFF]
    return tables


_known = _tables(256)


def _tables_for(width: int) -> NDArray[np.uint32]:
    global _known
    if len(_known) < width:
        _known = _tables(min(2 * width, _WIDTH_MAX))
    return _known


def checksums(records: Table, like: Likeness, parts: Sequence[tuple[int, int]]) -> NDArray[np.uint32]:
    """CRC-32C of each row: of these column ranges, first and one past the last, put together."""
    first = records[0].tobytes()
    crc = 0
    for begin, end in parts:
        crc = crc32c(first[begin:end], crc)
    found = np.full(len(records), crc, np.uint32)
    follow = sum(end - begin for begin, end in parts)
    tables = _tables_for(follow)
    for begin, end in parts:
        for column in np.flatnonzero(like.bits[begin:end]).tolist():
            table = tables[follow - column - 1]
            found ^= (table ^ table[first[begin + column]])[records[:, begin + column]]
        follow -= end - begin
    return found


def right_records(records: Table, like: Likeness, ledger_id: int, entry_ids: Integers) -> Mask:
    """Which rows are whole records of these entries."""
    width = records.shape[1]
    if width > _WIDTH_MAX:
        return np.array([_is_right(row.tobytes()) for row in records]) & _heads(records, ledger_id, entry_ids)
    stored = np.ascontiguousarray(records[:, _CRC_AT:RECORD_PREFIX_BYTES]).view(">u4")[:, 0]
    crc = checksums(records, like, ((0, _CRC_AT), (RECORD_PREFIX_BYTES, width)))
    right: Mask = (crc == stored) & _heads(records, ledger_id, entry_ids)
    return right


def _is_right(record: bytes) -> bool:
    found: int = RECORD_CRC.unpack_from(record, _CRC_AT)[0]
    return found == crc32c(record[RECORD_PREFIX_BYTES:], crc32c(record[:_CRC_AT]))


def _heads(records: Table, ledger_id: int, entry_ids: Integers) -> Mask:
    heads = np.ascontiguousarray(records[:, :_CRC_AT])
    lengths = np.ascontiguousarray(heads[:, :4]).view(">u4")[:, 0]
    ids = np.ascontiguousarray(heads[:, 4:]).view(">u8")
    right: Mask = (lengths == records.shape[1] - RECORD_PREFIX_BYTES) & (ids[:, 0] == ledger_id)
    right &= ids[:, 1] == entry_ids
    return right


# -- looking into them ------------------------------------------------------------------------------------


def due_times_ms(records: Table, like: Likeness) -> Integers:
    """When each message is due, 0 without such a time; of an entry that is no message 0, too."""
    span = _shared_span(records, like)
    if span is not None:
        return _numbers(records, *span)
    try:
        return _scanned(records)
    except (ProtocolError, IndexError):
        return np.array([_due_ms(row[RECORD_PREFIX_BYTES:].tobytes()) for row in records], np.int64)


def _shared_span(records: Table, like: Likeness) -> tuple[int, int] | None:
    """The columns of the number, where all messages have it in the same ones; an empty range: none has it.
    None: that is not known.
    """
    first = records[0].tobytes()
    try:
        at, end = (RECORD_PREFIX_BYTES + offset for offset in metadata_range(first[RECORD_PREFIX_BYTES:]))
    except ProtocolError:
        return None
    # Then a number alone does not say when the message is due.
    if is_virtual(first[RECORD_PREFIX_BYTES:]):
        return None
    is_stamped = first.startswith(STAMP_MAGIC, RECORD_PREFIX_BYTES)
    head = list(range(RECORD_PREFIX_BYTES, RECORD_PREFIX_BYTES + (6 if is_stamped else 2)))
    if first.startswith(CHECKSUM_MAGIC, at - 10):
        head += [at - 10, at - 9]
    if like.bits[head + list(range(at - 4, at))].any():
        return None
    found = (at, at)
    try:
        while at < end:
            begin = at
            at = skip_varint(first, begin)
            tag = _number(first, begin)
            if not like.is_fixed(begin, at):
                return None
            start = at
            if tag & 7 == 0:
                at = skip_varint(first, start)
                if not like.has_fixed_length(start, at):
                    return None
                if tag >> 3 == _DELIVER_AT:
                    found = (start, at)
            elif tag & 7 == 2:
                at = skip_varint(first, start)
                if not like.is_fixed(start, at):
                    return None
                at += _number(first, start)
            else:
                return None
    except IndexError:
        return None
    return found if at == end else None


def _number(data: bytes, at: int) -> int:
    value, shift = 0, 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < _HIGH_BIT:
            return value
        at, shift = at + 1, shift + 7


def _numbers(records: Table, start: int, end: int) -> Integers:
    values = np.zeros(len(records), np.int64)
    for shift, column in enumerate(range(start, end)):
        values |= (records[:, column] & 0x7F).astype(np.int64) << min(7 * shift, 63)
    return values


def _scanned(records: Table) -> Integers:
    """Each message by itself, all side by side. ProtocolError: some are none."""
    count, width = records.shape
    flat = np.zeros(records.size + PADDING_BYTES, np.uint8)
    flat[: records.size] = records.reshape(-1)
    at = np.arange(count, dtype=np.int64) * width + RECORD_PREFIX_BYTES
    end = at + width - RECORD_PREFIX_BYTES
    stamped = (flat[at] == 0x0E) & (flat[at + 1] == 0x02)
    stamp_at, at = at + 6, np.where(stamped, at + 6 + _sizes(flat, at + 2), at)
    stamp_end = np.where(stamped, at, stamp_at)
    if (at + 10 > end).any():
        raise ProtocolError("an entry that is all stamp")
    at = np.where((flat[at] == 0x0E) & (flat[at + 1] == 0x01), at + 6, at)
    sizes = _sizes(flat, at)
    if (at + 4 + sizes > end).any():
        raise ProtocolError("metadata beyond the entry")
    wanted = {_DELIVER_AT: 0, _PUBLISH_TIME: 0}
    found = scan(flat, at + 4, at + 4 + sizes, numbers=wanted).numbers
    due_ms = found[_DELIVER_AT]
    stamps = scan(flat, stamp_at, stamp_end, numbers={_BROKER_TIME: 0, _VIRTUAL_CLOCK: 0}).numbers
    # Under a virtual clock the delay counts from the broker's stamp: clients keep their own clock.
    from_stamp = np.maximum(stamps[_BROKER_TIME] + due_ms - found[_PUBLISH_TIME], 1)
    return np.where((stamps[_VIRTUAL_CLOCK] == 1) & (due_ms != 0), from_stamp, due_ms)


def _sizes(flat: NDArray[np.uint8], at: Integers) -> Integers:
    at = np.minimum(at, len(flat) - 4)
    found = np.zeros(len(at), np.int64)
    for byte in range(4):
        found = (found << 8) | flat[at + byte]
    return found


def _due_ms(body: bytes) -> int:
    try:
        return peek(body).deliver_at_ms
    except ProtocolError:
        return 0
