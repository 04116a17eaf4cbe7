"""Entries as bytes: one record each, with equal bytes in the journal, in memory and in entry logs.

    record := length u32 | ledger id u64 | entry id u64 | crc u32 | body        (all numbers big-endian)

`length` is the body's. `crc` is CRC-32C over the twenty bytes before it and the body, so a record that is
read from a wrong offset is detected like wrong bytes.

The journal's thread makes a record once; later layers copy it. So an entry's checksum accompanies the entry
from the first write to the last read.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from fastcrc.crc32 import iscsi

crc32c = iscsi

# The ledger and the entry id are part of the record and of its checksum: right bytes at the wrong place, as a
# stale index row or a misdirected write would give, are noticed like wrong ones.
RECORD_HEAD: Final = struct.Struct(">IQQ")
RECORD_CRC: Final = struct.Struct(">I")
RECORD_PREFIX_BYTES: Final = RECORD_HEAD.size + RECORD_CRC.size


class Run(NamedTuple):
    """Consecutive entries of one ledger; `last` is included."""

    ledger_id: int
    first: int
    last: int


# A class with slots and no NamedTuple: a flush makes hundreds of thousands, and the read cache needs identity
# for its order of use, not equality of contents.
class Segment:
    """Consecutive entries of one ledger: their records are contiguous in `buffer` from `start` on. `ends[i]`
    is where the record of entry `first + i` ends, counted from `start`. `ends` is an `array("I")`, or a
    `range` if all records are equally long. Other segments may share the buffer, which never changes.
    """

    __slots__ = ("buffer", "ends", "first", "ledger_id", "start")

    def __init__(self, ledger_id: int, first: int, buffer: bytes, start: int, ends: Sequence[int]) -> None:
        self.ledger_id = ledger_id
        self.first = first
        self.buffer = buffer
        self.start = start
        self.ends = ends

    @property
    def last(self) -> int:
        return self.first + len(self.ends) - 1

    @property
    def record_bytes(self) -> int:
        return self.ends[-1]

    def records(self) -> memoryview:
        """The bytes of all records, ready for an entry log."""
        return memoryview(self.buffer)[self.start : self.start + self.ends[-1]]

    def bodies(self, first: int, last: int) -> list[bytes]:
        """The bodies of entries first..last, which must be in this segment. Does not check them: see
        `damaged_record`.
        """
        buffer, start, ends = self.buffer, self.start + RECORD_PREFIX_BYTES, self.ends
        index = first - self.first
        begin = ends[index - 1] if index else 0
        bodies = []
        for end in ends[index : last - self.first + 1]:
            bodies.append(buffer[start + begin : start + end - RECORD_PREFIX_BYTES])
            begin = end
        return bodies

    def body_bytes(self, first: int, last: int) -> int:
        """The total length of the bodies of entries first..last."""
        index = first - self.first
        begin = self.ends[index - 1] if index else 0
        return self.ends[last - self.first] - begin - (last - first + 1) * RECORD_PREFIX_BYTES

    def part(self, first: int, last: int) -> Segment:
        """The entries first..last of this segment, in the shared buffer."""
        if first == self.first and last == self.last:
            return self
        index = first - self.first
        begin = self.ends[index - 1] if index else 0
        ends = compact([end - begin for end in self.ends[index : last - self.first + 1]])
        return Segment(self.ledger_id, first, self.buffer, self.start + begin, ends)

    def detached(self) -> Segment:
        """The same entries. If they are a small part of the buffer, they get a buffer of their own, so that a
        cache does not keep a large buffer alive for them.
        """
        # An eighth of waste is cheaper than copying everything else.
        if self.ends[-1] * 8 >= len(self.buffer) * 7:
            return self
        return Segment(self.ledger_id, self.first, bytes(self.records()), 0, self.ends)


def pack_records(ledger_id: int, first: int, bodies: Sequence[bytes], parts: list[bytes]) -> None:
    """Append the records of consecutive entries to `parts`."""
    # Locals: this loop runs once for each message published, in the journal's thread, while the loop waits
    # for the interpreter.
    pack_head, pack_crc, crc, add = RECORD_HEAD.pack, RECORD_CRC.pack, crc32c, parts.append
    for entry_id, body in enumerate(bodies, first):
        head = pack_head(len(body), ledger_id, entry_id)
        add(head)
        add(pack_crc(crc(body, crc(head))))
        add(body)


def ends_of(bodies: Sequence[bytes]) -> Sequence[int]:
    """Where the record of each body ends, counted from where the first one begins, in as little memory as
    possible. There is at least one.
    """
    sizes = list(map(len, bodies))
    size, count = sizes[0] + RECORD_PREFIX_BYTES, len(sizes)
    # Messages of one size are common, and a range takes 48 bytes where an array takes four for each entry.
    if sizes.count(sizes[0]) == count:
        return range(size, size * count + 1, size)
    return array("I", accumulate([n + RECORD_PREFIX_BYTES for n in sizes]))


def compact(ends: Sequence[int]) -> Sequence[int]:
    """Equal numbers in as little memory as possible. `ends` is ascending and not empty."""
    size, count = ends[0], len(ends)
    # A cheap test before the comparison of all: unequal records rarely end where equal ones would.
    if ends[-1] == size * count:
        equal = range(size, size * count + 1, size)
        if count == 1 or list(ends) == list(equal):
            return equal
    return array("I", ends)


def damaged_record(segment: Segment) -> int | None:
    """The index of the first record that does not match its ids or its checksum; None if all match."""
    unpack_head, unpack_crc, crc = RECORD_HEAD.unpack_from, RECORD_CRC.unpack_from, crc32c
    view, ledger_id, begin = memoryview(segment.buffer), segment.ledger_id, segment.start
    head_bytes = RECORD_HEAD.size
    length_of_buffer = len(segment.buffer)
    # Length, ledger and id are compared before the checksum: they are cheap, and a right checksum over the
    # wrong id is exactly what a stale place gives.
    for index, end_after_start in enumerate(segment.ends):
        end = segment.start + end_after_start
        if end > length_of_buffer or end - begin < RECORD_PREFIX_BYTES:
            return index
        length, ledger, entry_id = unpack_head(view, begin)
        if (
            length != end - begin - RECORD_PREFIX_BYTES
            or ledger != ledger_id
            or entry_id != segment.first + index
            or unpack_crc(view, begin + head_bytes)[0]
            != crc(view[begin + RECORD_PREFIX_BYTES : end], crc(view[begin : begin + head_bytes]))
        ):
            return index
        begin = end
    return None
