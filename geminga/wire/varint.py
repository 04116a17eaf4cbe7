"""Varints for the hot paths: written from tables, and read without a loop if they are short."""

from __future__ import annotations

# Tables: a loop over seven-bit groups costs more than the rest of a receipt's encoding.
MORE: list[bytes] = []
"""The two low groups of seven bits of a number with further groups. Empty before `fill_tables`."""
SHORT: list[bytes] = []
"""Whole varints of up to two bytes. Empty before `fill_tables`."""


def fill_tables() -> None:
    """Make the tables, once; called before anything is encoded with them."""
    # Not when the module is imported: they take 1.7 MiB and 5 ms, and an idle broker needs neither.
    if not MORE:
        SHORT.extend(map(_written, range(0x4000)))
        MORE.extend(bytes((n & 0x7F | 0x80, n >> 7 | 0x80)) for n in range(0x4000))


def varint(value: int) -> bytes:
    """`value`, which must be in [0, 2^64), as protobuf writes it."""
    assert value >= 0
    if not MORE:
        fill_tables()
    if value < 0x4000:
        return SHORT[value]
    if value < 0x1000_0000:
        return MORE[value & 0x3FFF] + SHORT[value >> 14]
    return MORE[value & 0x3FFF] + MORE[value >> 14 & 0x3FFF] + varint(value >> 28)


def _written(value: int) -> bytes:
    groups = bytearray()
    while value >= 0x80:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    groups.append(value)
    return bytes(groups)


def scan_varint(data: bytes, at: int) -> tuple[int, int]:
    """(value, offset of the next byte) for up to nine bytes, so below 2^63; (-1, at) for a longer varint.

    Raises IndexError if `data` ends inside it.
    """
    value = data[at]
    if value < 0x80:
        return value, at + 1
    byte = data[at + 1]
    if byte < 0x80:
        return value & 0x7F | byte << 7, at + 2
    value = value & 0x7F | (byte & 0x7F) << 7
    at += 2
    shift = 14
    while shift <= 56:
        byte = data[at]
        at += 1
        if byte < 0x80:
            return value | byte << shift, at
        value |= (byte & 0x7F) << shift
        shift += 7
    return -1, at


def skip_varint(data: bytes, at: int) -> int:
    """The offset after the varint, which may have up to ten bytes, as a negative int32 does."""
    # protobuf writes a negative int32 as ten bytes; more are refused by every parser.
    limit = at + 10
    while data[at] >= 0x80:
        at += 1
        if at == limit:
            raise IndexError
    return at + 1
