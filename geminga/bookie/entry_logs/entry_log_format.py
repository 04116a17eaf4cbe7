"""An entry log's bytes. `docs/formats/entry-log.md` is the page for people.

    file    := header (64 bytes) record* footer trailer (32 bytes)
    footer  := ledger count u32 | ledger* | row count u32 | row*
    ledger  := ledger id u64 | entries u32 | record bytes u64 | topic length u16 | topic (UTF-8)
    row     := ledger id u64 | first entry u64 | length u32 | the index row's value
    trailer := magic | footer offset u64 | footer length u64 | crc of the footer u32 | crc of the trailer u32

Records are those of `bookie/records/records.py`. Footer and trailer are there once the log is closed; a log
without them was being written when its process ended, and its records are found one after the other.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from geminga.bookie.index.index_format import Row, Usage, decode_row, encode_row
from geminga.bookie.records.records import crc32c

VERSION: Final = 1
MAGIC: Final = b"GEMELOG\0"
_HEADER: Final = struct.Struct(">8sIQI")
"""magic | version | log id | crc"""
HEADER_BYTES: Final = 64
TRAILER_MAGIC: Final = b"GEMELFT\0"
_TRAILER: Final = struct.Struct(">8sQQII")
TRAILER_BYTES: Final = _TRAILER.size
_CRC: Final = struct.Struct(">I")
_COUNT: Final = struct.Struct(">I")
_LEDGER: Final = struct.Struct(">QIQH")
_ROW: Final = struct.Struct(">QQI")


class FooterLedger(NamedTuple):
    usage: Usage
    topic: str


class Footer(NamedTuple):
    """What a closed log holds: enough to index it again, and to know whose it is, without reading a
    record.
    """

    ledgers: dict[int, FooterLedger]
    rows: list[tuple[int, Row]]


def encode_header(log_id: int) -> bytes:
    head = _HEADER.pack(MAGIC, VERSION, log_id, 0)[: -_CRC.size]
    return (head + _CRC.pack(crc32c(head))).ljust(HEADER_BYTES, b"\0")


def decode_header(data: bytes) -> int | None:
    """The log id; None if these are not the first bytes of an entry log of this version."""
    if len(data) < _HEADER.size:
        return None
    magic, version, log_id, crc = _HEADER.unpack_from(data)
    if magic != MAGIC or version != VERSION or crc != crc32c(data[: _HEADER.size - _CRC.size]):
        return None
    return int(log_id)


def encode_footer(offset: int, ledgers: Mapping[int, FooterLedger], rows: Sequence[tuple[int, Row]]) -> bytes:
    """Footer and trailer, to be written at `offset`."""
    parts = [_COUNT.pack(len(ledgers))]
    for ledger_id, (usage, topic) in sorted(ledgers.items()):
        name = topic.encode()
        parts += (_LEDGER.pack(ledger_id, *usage, len(name)), name)
    parts.append(_COUNT.pack(len(rows)))
    for ledger_id, row in rows:
        value = encode_row(row)
        parts += (_ROW.pack(ledger_id, row.first, len(value)), value)
    footer = b"".join(parts)
    trailer = _TRAILER.pack(TRAILER_MAGIC, offset, len(footer), crc32c(footer), 0)[: -_CRC.size]
    return footer + trailer + _CRC.pack(crc32c(trailer))


def decode_trailer(data: bytes) -> tuple[int, int, int] | None:
    """(footer offset, footer length, footer crc) from a log's last bytes; None if it was not closed."""
    if len(data) < TRAILER_BYTES:
        return None
    magic, offset, length, footer_crc, crc = _TRAILER.unpack(data[-TRAILER_BYTES:])
    if magic != TRAILER_MAGIC or crc != crc32c(data[-TRAILER_BYTES : -_CRC.size]):
        return None
    return offset, length, footer_crc


def looks_like_trailer(data: bytes, size: int) -> bool:
    """Whether the last bytes of a file of this size were a trailer once: its magic is right, or offset and
    length fit the file, whatever became of the rest.
    """
    if len(data) != TRAILER_BYTES:
        return False
    magic, offset, length, _, _ = _TRAILER.unpack(data)
    fits: bool = length > 0 and offset + length + TRAILER_BYTES == size
    return magic == TRAILER_MAGIC or fits


def decode_footer(data: bytes) -> Footer:
    """`data` is a footer whose crc was right."""
    ledgers, position = _decode_ledgers(data)
    return Footer(ledgers, list(_decode_rows(data, position)))


def read_footer_piecewise(data: bytes) -> tuple[dict[int, FooterLedger], Iterator[tuple[int, Row]]]:
    """The same, the rows one at a time: there may be hundreds of thousands."""
    ledgers, position = _decode_ledgers(data)
    return ledgers, _decode_rows(data, position)


def _decode_ledgers(data: bytes) -> tuple[dict[int, FooterLedger], int]:
    (count,) = _COUNT.unpack_from(data)
    position = _COUNT.size
    ledgers = {}
    for _ in range(count):
        ledger_id, entries, record_bytes, name_bytes = _LEDGER.unpack_from(data, position)
        position += _LEDGER.size
        topic = data[position : position + name_bytes].decode()
        position += name_bytes
        ledgers[ledger_id] = FooterLedger(Usage(entries, record_bytes), topic)
    return ledgers, position


def _decode_rows(data: bytes, position: int) -> Iterator[tuple[int, Row]]:
    (count,) = _COUNT.unpack_from(data, position)
    position += _COUNT.size
    for _ in range(count):
        ledger_id, first, length = _ROW.unpack_from(data, position)
        position += _ROW.size
        yield ledger_id, decode_row(first, data[position : position + length])
        position += length
