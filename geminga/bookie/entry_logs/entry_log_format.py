"""An entry log's bytes. `docs/formats/entry-log.md` is the page for people.

    file    := header (64 bytes) record* footer trailer (32 bytes)
    header  := magic | version u32 | log id u64 | crc u32 | owner (40 bytes, `records/owner.py`)
    footer  := ledger count u32 | ledger* | row count u32 | row*
    ledger  := ledger id u64 | entries u32 | record bytes u64 | length u16 | name (`records/ledger_name.py`)
    row     := ledger id u64 | first entry u64 | length u32 | the index row's value
    trailer := magic | footer offset u64 | footer length u64 | crc of the footer u32 | crc of the trailer u32

Records are those of `bookie/records/records.py`. The name of a ledger, if known, precedes the ledger's first
entry in the log. A closed log has footer and trailer. A log without them was being written when its process
ended; its records are found one after the other.

Version 1 had no names among the records, and a topic instead of a name in the footer. The magic of the
trailer states the version of the footer, because the header may be damaged.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from geminga.bookie.index.index_format import Row, Usage, decode_row, encode_row
from geminga.bookie.records.ledger_name import NAMELESS, LedgerName, decode_name, encode_name
from geminga.bookie.records.owner import OWNER_BYTES, Owner, decode_owner_at, encode_owner_behind
from geminga.bookie.records.records import crc32c

# A log lives as long as any of its entries, which may be years: version 1 stays readable for good.
VERSION: Final = 2
MAGIC: Final = b"GEMELOG\0"
_HEADER: Final = struct.Struct(">8sIQI")
"""magic | version | log id | crc; the owner follows"""
HEADER_BYTES: Final = _HEADER.size + OWNER_BYTES
# A magic for each version and none shared: the trailer has to be readable when the header is damaged, since
# it is what makes the log indexable without its records.
TRAILER_MAGICS: Final = (b"GEMELFT\0", b"GEMELF2\0")
"""The magic of version 1, and of version 2."""
_TRAILER: Final = struct.Struct(">8sQQII")
TRAILER_BYTES: Final = _TRAILER.size
_CRC: Final = struct.Struct(">I")
_COUNT: Final = struct.Struct(">I")
# Counts and names of ledgers are derived from rows and records; they stand here so that `geminga bookie
# inspect` and compaction learn a log's owners from its last few KiB instead of from 256 MiB.
_LEDGER: Final = struct.Struct(">QIQH")
_ROW: Final = struct.Struct(">QQI")


class FooterLedger(NamedTuple):
    usage: Usage
    name: LedgerName
    """Empty texts if unknown."""


class Footer(NamedTuple):
    """The contents of a closed log: enough to index the log again, and to name its ledgers, without reading
    a record.
    """

    ledgers: dict[int, FooterLedger]
    rows: list[tuple[int, Row]]


# The id is in the header as well as in the file's name, so a log that was renamed or copied by hand over
# another one is not read as that one.
def encode_header(log_id: int, owner: Owner | None = None) -> bytes:
    head = _HEADER.pack(MAGIC, VERSION, log_id, 0)[: -_CRC.size]
    head += _CRC.pack(crc32c(head))
    return head + encode_owner_behind(head, owner)


class LogHeader(NamedTuple):
    log_id: int
    owner: Owner | None
    """None if the header does not say."""


def decode_header(data: bytes) -> LogHeader | None:
    """None if these are not the first bytes of an entry log of a known version."""
    if len(data) < _HEADER.size:
        return None
    magic, version, log_id, crc = _HEADER.unpack_from(data)
    if magic != MAGIC or not 1 <= version <= VERSION or crc != crc32c(data[: _HEADER.size - _CRC.size]):
        return None
    try:
        return LogHeader(log_id, decode_owner_at(data, _HEADER.size))
    except ValueError:
        return None


def encode_footer(offset: int, ledgers: Mapping[int, FooterLedger], rows: Sequence[tuple[int, Row]]) -> bytes:
    """Footer and trailer, to be written at `offset`."""
    parts = [_COUNT.pack(len(ledgers))]
    # Sorted, so that a footer is the same for the same contents: the format's example is compared byte by
    # byte.
    for ledger_id, (usage, name) in sorted(ledgers.items()):
        encoded = encode_name(name) if any(name) else b""
        parts += (_LEDGER.pack(ledger_id, *usage, len(encoded)), encoded)
    parts.append(_COUNT.pack(len(rows)))
    for ledger_id, row in rows:
        # The very bytes of the index's row: a rebuild copies them, and no second encoding has to agree with
        # the first.
        value = encode_row(row)
        parts += (_ROW.pack(ledger_id, row.first, len(value)), value)
    footer = b"".join(parts)
    # The trailer goes last and has a fixed length: it is found from the end of the file, and a footer that a
    # crash cut short has none.
    trailer = _TRAILER.pack(TRAILER_MAGICS[VERSION - 1], offset, len(footer), crc32c(footer), 0)[: -_CRC.size]
    return footer + trailer + _CRC.pack(crc32c(trailer))


class Trailer(NamedTuple):
    """Offset, checksum and version of a log's footer."""

    offset: int
    length: int
    crc: int
    version: int


def decode_trailer(data: bytes) -> Trailer | None:
    """The trailer in a log's last bytes; None if the log was not closed."""
    if len(data) < TRAILER_BYTES:
        return None
    magic, offset, length, footer_crc, crc = _TRAILER.unpack(data[-TRAILER_BYTES:])
    # A log that was not closed ends in some record's bytes; a payload that imitates the magic fails the
    # checksum, and one that imitates both must still point to a footer that fits the file's size.
    if magic not in TRAILER_MAGICS or crc != crc32c(data[-TRAILER_BYTES : -_CRC.size]):
        return None
    return Trailer(offset, length, footer_crc, TRAILER_MAGICS.index(magic) + 1)


def looks_like_trailer(data: bytes, size: int) -> bool:
    """Whether the last bytes of a file of this size were a trailer once: the magic is right, or offset and
    length fit the file, even if the rest is damaged.
    """
    if len(data) != TRAILER_BYTES:
        return False
    magic, offset, length, _, _ = _TRAILER.unpack(data)
    # One flipped bit in the magic must not turn a closed log into one "that was being written": the start
    # would then look for entries behind its end. Damage is reported instead.
    fits: bool = length > 0 and offset + length + TRAILER_BYTES == size
    return magic in TRAILER_MAGICS or fits


class FooterBytes(NamedTuple):
    """A footer whose checksum was right, not decoded."""

    version: int
    data: bytes


def decode_footer(footer: FooterBytes) -> Footer:
    ledgers, position = _decode_ledgers(footer)
    return Footer(ledgers, list(_decode_rows(footer.data, position)))


# Compaction calls this while clients are served: a list of all rows would take their memory, and hold the
# interpreter in one stretch.
def read_footer_piecewise(
    footer: FooterBytes,
) -> tuple[dict[int, FooterLedger], Iterator[tuple[int, Row]]]:
    """As `read_footer`, with the rows one at a time, because a footer may have hundreds of thousands."""
    ledgers, position = _decode_ledgers(footer)
    return ledgers, _decode_rows(footer.data, position)


def _decode_ledgers(footer: FooterBytes) -> tuple[dict[int, FooterLedger], int]:
    version, data = footer
    (count,) = _COUNT.unpack_from(data)
    position = _COUNT.size
    ledgers = {}
    for _ in range(count):
        ledger_id, entries, record_bytes, name_bytes = _LEDGER.unpack_from(data, position)
        position += _LEDGER.size
        text = data[position : position + name_bytes]
        name = decode_name(text) if version > 1 else LedgerName("", text.decode())
        position += name_bytes
        ledgers[ledger_id] = FooterLedger(Usage(entries, record_bytes), name or NAMELESS)
    return ledgers, position


def _decode_rows(data: bytes, position: int) -> Iterator[tuple[int, Row]]:
    (count,) = _COUNT.unpack_from(data, position)
    position += _COUNT.size
    for _ in range(count):
        ledger_id, first, length = _ROW.unpack_from(data, position)
        position += _ROW.size
        yield ledger_id, decode_row(first, data[position : position + length])
        position += length
