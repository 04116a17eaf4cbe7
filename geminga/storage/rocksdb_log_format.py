"""Reads RocksDB's log files (the write-ahead log and the manifest) to distinguish a torn end from damage.

RocksDB itself cannot do this. A flipped bit in a record's length makes the record seem cut off, and RocksDB
silently forgets everything that was synced after it. A flipped bit in a record's type can make it loop for
ever. So its logs are read here before RocksDB may open a directory.

    file   = blocks of 32,768 bytes; a block's last bytes, fewer than 7, are zero
    record = crc (u32, CRC-32C of type and payload, masked) | length (u16) | type (u8) | payload
    type   = 1 whole, 2 first, 3 middle, 4 last part of a payload         all integers little-endian

A write-ahead log's payload is a batch: first sequence number (u64), count (u32), operations. After each sync
`geminga.storage.key_value` logs a batch of one operation, the deletion of a key that does not exist,
`synced_marker(sequence)`: everything up to that sequence number was durable by then. So damage before such a
number is no torn end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from fastcrc.crc32 import iscsi as crc32c

# RocksDB's constants, unchanged since LevelDB; a test reads files that RocksDB wrote.
BLOCK_BYTES: Final = 32_768
HEADER_BYTES: Final = 7
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4
RECYCLED_TYPES = range(5, 9)
"""Record types that need an option which Geminga does not set. RocksDB never returns from reading one in a
log like ours.
"""

_MASK_DELTA: Final = 0xA282EAD8
# A deletion of a key that is never there: it changes nothing, needs no column family, and any version of
# RocksDB reads over it.
_MARKER_PREFIX: Final = b"\x00synced"
_BATCH_HEADER_BYTES: Final = 12
_DELETION: Final = 0
_MARKER_OPERATION: Final = bytes((_DELETION, len(_MARKER_PREFIX) + 8)) + _MARKER_PREFIX


def synced_marker(sequence: int) -> bytes:
    """The key whose deletion states that every operation up to `sequence` is durable."""
    return _MARKER_PREFIX + sequence.to_bytes(8, "big")


class Part(NamedTuple):
    """An intact record: a payload or a part of one."""

    offset: int
    type: int
    payload: bytes


class Damage(NamedTuple):
    """Bytes from `offset` on that are no record. `whole` means that they were once written completely."""

    offset: int
    type: int
    whole: bool


def read_log(content: bytes) -> Iterator[Part | Damage]:
    """Intact records and the damaged parts between them, in order. Zeros at the end are no item."""
    # Zeros are what preallocated space and a torn write leave; they say nothing of damage.
    offset, size = 0, len(content.rstrip(b"\0"))
    while offset < size:
        # RocksDB does not begin a record where its header does not fit.
        left_in_block = BLOCK_BYTES - offset % BLOCK_BYTES
        if left_in_block < HEADER_BYTES:
            offset += left_in_block
            continue
        part = _part_at(content, offset)
        if part is not None:
            yield part
            offset += HEADER_BYTES + len(part.payload)
            continue
        yield Damage(
            offset,
            content[offset + 6] if offset + 6 < len(content) else 0,
            _has_wrong_length(content, offset),
        )
        # Searched byte by byte: once a length is wrong, nothing says where the next record begins.
        offset = _next_intact(content, offset + 1, size)


def _part_at(content: bytes, offset: int) -> Part | None:
    header = content[offset : offset + HEADER_BYTES]
    if len(header) < HEADER_BYTES or not WHOLE <= header[6] <= LAST:
        return None
    length = header[4] | header[5] << 8
    end = offset + HEADER_BYTES + length
    # A record never crosses a block: a length that says so is damaged, whatever the checksum would be.
    if end > len(content) or length > BLOCK_BYTES - offset % BLOCK_BYTES - HEADER_BYTES:
        return None
    if int.from_bytes(header[:4], "little") != _masked_crc(content[offset + 6 : end]):
        return None
    return Part(offset, header[6], content[offset + HEADER_BYTES : end])


def _masked_crc(data: bytes) -> int:
    # Masked as in LevelDB: a CRC of data that contains CRCs is weak.
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _has_wrong_length(content: bytes, offset: int) -> bool:
    """Whether the record would be intact if its payload ended where the block or the file ends."""
    block_end = offset - offset % BLOCK_BYTES + BLOCK_BYTES
    stored = int.from_bytes(content[offset : offset + 4], "little")
    # The flipped bit is in the length then: the payload is whole up to the block's end. No torn write leaves
    # that.
    return stored == _masked_crc(content[offset + 6 : block_end])


def _next_intact(content: bytes, offset: int, size: int) -> int:
    """The next offset at which an intact record starts, or `size`."""
    while offset < size:
        block_end = offset - offset % BLOCK_BYTES + BLOCK_BYTES
        for candidate in range(offset, min(block_end - HEADER_BYTES + 1, size)):
            if WHOLE <= content[min(candidate + 6, size - 1)] <= LAST and _part_at(content, candidate):
                return candidate
        offset = block_end
    return size


def damage_in_manifest(content: bytes) -> int | None:
    """The offset of damage that cannot be a torn end, or None. Each record is synced before the next is
    written.
    """
    suspect: Damage | None = None
    for item in read_log(content):
        # Anything intact behind a damaged place shows that it was synced: manifests are synced record by
        # record.
        if suspect is not None:
            return suspect.offset
        if isinstance(item, Damage):
            if item.whole or item.type in RECYCLED_TYPES:
                return item.offset
            suspect = item
    return None


def end_of_writes(content: bytes, sequence: int) -> int:
    """The length of the part of a write-ahead log that has only whole batches, and no operation behind this
    sequence number.
    """
    end = begin = 0
    begun: list[bytes] = []
    for item in read_log(content):
        if isinstance(item, Damage):
            return end
        if item.type in (WHOLE, FIRST):
            begin, begun = item.offset, []
        begun.append(item.payload)
        if item.type in (WHOLE, LAST):
            batch = b"".join(begun)
            last = int.from_bytes(batch[:8], "little") + int.from_bytes(batch[8:12], "little") - 1
            if last > sequence:
                return begin
            end = item.offset + HEADER_BYTES + len(item.payload)
    return end


class WriteAheadCheck:
    """Checks the write-ahead logs of a directory, oldest first, for damage to synced bytes."""

    def __init__(self) -> None:
        self._next_sequence = 0
        # Only suspected until a later sync marker proves that these bytes were synced: damage behind the last
        # sync is an ordinary torn end.
        self._suspect: tuple[str, int, int] | None = None
        """File and offset of the first damage, and the first sequence number that it may have held."""

    def add(self, name: str, content: bytes) -> tuple[str, int] | None:
        """(name, offset) of damage to synced bytes, as far as the files up to this one show it."""
        begun: list[bytes] = []
        for item in read_log(content):
            if isinstance(item, Damage):
                if item.whole or item.type in RECYCLED_TYPES:
                    return name, item.offset
                if self._suspect is None:
                    self._suspect = name, item.offset, self._next_sequence
                # Parts of a batch around damage must not be joined: the marker inside would be read at a
                # wrong place.
                begun.clear()
                continue
            if item.type in (WHOLE, FIRST):
                begun = [item.payload]
            elif begun:
                begun.append(item.payload)
            if item.type in (WHOLE, LAST) and begun and self._batch(b"".join(begun)):
                assert self._suspect is not None
                return self._suspect[:2]
        return None

    def _batch(self, batch: bytes) -> bool:
        """Note a batch; True if it proves that the suspect bytes had been synced."""
        if len(batch) < _BATCH_HEADER_BYTES:
            return False
        first = int.from_bytes(batch[:8], "little")
        # Counted from intact batches: the damaged one began at this number at the earliest.
        self._next_sequence = first + int.from_bytes(batch[8:12], "little")
        if self._suspect is None or not batch.startswith(_MARKER_OPERATION, _BATCH_HEADER_BYTES):
            return False
        start = _BATCH_HEADER_BYTES + len(_MARKER_OPERATION)
        # A marker with a higher number was written after a sync that covered the damaged place.
        return int.from_bytes(batch[start : start + 8], "big") >= self._suspect[2]
