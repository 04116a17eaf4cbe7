"""The header of a journal file: either copy of it, or a header reconstructed from the groups in the file.

A file without a header may be empty, from a crash before its first sync, or its header may have been damaged.
The groups tell these cases apart, because each has the file's id and its own offset. The groups also yield
the other fields that are needed to read them:

- No client knows the salt, so no payload passes for a group; every group's checksum begins with the salt. In
  the checksum, the salt becomes 32 bits, and CRC can run backwards: a group whose records prove its runs
  yields a salt with an equal effect.
- The alignment divides every group's offset. Unless the groups refute it, it is the configured one.
- The end of the previous journal cannot be reconstructed. It is needed only if that journal is damaged, too.

A file that was about to be reused is full of an older journal's groups. Their payloads may contain anything,
including groups of this very file with right offsets. So the first group in the file must belong to this
file, because it is the first to be overwritten.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from geminga.bookie.journal.journal_format import (
    FILE_HEADER_BYTES,
    FILE_HEADERS_BYTES_MAX,
    GROUP_HEADER,
    GROUP_MAGIC,
    GROUP_MARK,
    FileHeader,
    GroupHeader,
    Run,
    decode_file_header,
    decode_group_header,
    decode_runs,
    walk_run,
)
from geminga.bookie.records.owner import Owner
from geminga.bookie.records.records import Segment, crc32c, damaged_record
from geminga.errors import StorageError
from geminga.storage.disk import File

SEARCH_BYTES: Final = 1 << 20
SECTOR_BYTES: Final = 512
"""Every alignment, and so every group's offset, is a multiple of this."""
# Used where the settings are unknown, as by `geminga bookie inspect`. A journal with another alignment is
# read all the same: `_rebuild` refutes this one by the offsets of its groups.
USUAL_ALIGNMENT: Final = 4096


class HeaderState(Enum):
    """The value completes the sentence "the header is damaged"."""

    WHOLE = ""
    COPIED = ", one copy of two"
    REBUILT = "; the groups in the file can be read all the same"
    UNREADABLE = ", and so are the groups in the file"
    UNUSED = " or was never written; there is no group in the file"


class FoundHeader(NamedTuple):
    """`header` is None for a file that cannot be read, and for an empty one."""

    header: FileHeader | None
    state: HeaderState

    @property
    def begun(self) -> bool:
        """Whether groups in this file may have confirmed entries."""
        return self.state is not HeaderState.UNUSED


def find_header(file: File, journal_id: int, *, alignment: int = USUAL_ALIGNMENT) -> FoundHeader:
    """The known header of the file with this id. Reads all of the file if the header is damaged. `alignment`
    is the one that journals are likely to have.
    """
    data = file.pread(0, FILE_HEADERS_BYTES_MAX)
    first = decode_file_header(data)
    # The copy is 512 bytes on, in a sector of its own: a bad sector or a torn write takes one of them.
    second = decode_file_header(data[FILE_HEADER_BYTES:])
    # The id is compared with the file's name, since a crash between the rename of a recycled file and its new
    # header leaves another journal's whole header under this name.
    if first is not None and first.journal_id == journal_id and (first.copies == 1 or first == second):
        return FoundHeader(first, HeaderState.WHOLE)
    known = next(
        (
            header
            for header, copies_min in ((first, 1), (second, 2))
            if header is not None and header.journal_id == journal_id and header.copies >= copies_min
        ),
        None,
    )
    groups = list(stated_groups(file))
    own = [offset for id_, offset in groups if id_ == journal_id]
    if known is not None:
        # A crash may have cut the header's only write short; then there is no group yet.
        return FoundHeader(known, HeaderState.COPIED if own else HeaderState.WHOLE)
    if not own:
        return FoundHeader(None, HeaderState.UNUSED)
    if first is not None or second is not None:
        # Another journal's whole header. Either this one's was never written, and payloads of the other look
        # like groups of it; or the file was about to be written over and lost its new name in a crash.
        return FoundHeader(None, HeaderState.UNUSED)
    rebuilt = _rebuild(file, journal_id, own, alignment) if groups[0][0] == journal_id else None
    return FoundHeader(rebuilt, HeaderState.REBUILT if rebuilt is not None else HeaderState.UNREADABLE)


def foreign_id(file: File, journal_id: int) -> int:
    """The id of the other journal whose whole header is in this file; 0 if there is none. A crash came while
    the file was prepared for reuse, between its new name and its new header. Both journals had been released
    before that.
    """
    header = decode_file_header(file.pread(0, FILE_HEADER_BYTES))
    return header.journal_id if header is not None and header.journal_id != journal_id else 0


def owner_of(file: File) -> Owner | None:
    """The owner in either copy of the header, whichever journal's it is; None if neither says."""
    with contextlib.suppress(StorageError):  # a bad sector names nothing
        data = file.pread(0, FILE_HEADERS_BYTES_MAX)
        copies = (decode_file_header(data[at:]) for at in (0, FILE_HEADER_BYTES))
        return next((copy.owner for copy in copies if copy is not None), None)
    return None


def stated_groups(file: File) -> Iterator[tuple[int, int]]:
    """(journal id, offset) of all bytes in the file that look like a group at their offset, in order. Any
    payload can imitate that.
    """
    for start in range(0, file.size(), SEARCH_BYTES):
        # Windows overlap by one mark: a group may begin on the last bytes of a window.
        window = file.pread(start, SEARCH_BYTES + GROUP_MARK.size)
        at = window.find(GROUP_MAGIC)
        while 0 <= at < SEARCH_BYTES and at + GROUP_MARK.size <= len(window):
            _, journal_id, offset = GROUP_MARK.unpack_from(window, at)
            # A client chooses its payload but not where the journal puts it, so an offset that is right by
            # chance is rare; `_whole_group` decides about those.
            if offset == start + at and offset % SECTOR_BYTES == 0:
                yield journal_id, offset
            at = window.find(GROUP_MAGIC, at + 1)


def _rebuild(file: File, journal_id: int, offsets: list[int], alignment: int) -> FileHeader | None:
    """A header with which the file's groups can be read, if a group at one of `offsets` is trustworthy."""
    inside = 0
    found: tuple[int, list[int]] | None = None
    for offset in offsets:
        group = _whole_group(file, journal_id, offset) if offset >= inside else None
        if group is None:
            continue
        # What stands in this group's records is no group of the file's.
        inside = group.header.end
        salt = _salt_of(group)
        header = FileHeader(journal_id, salt, SECTOR_BYTES, 0, 0)
        # One group proves nothing about its own salt, since the salt was worked out from it. A second group
        # that has the same salt settles it; with a single group in the file there is none to ask.
        same = [other for other in offsets if _is_group_of(file, header, other)]
        if found is None or len(same) > len(found[1]):
            found = salt, same
        if len(same) > 1:
            break
    if found is None:
        return None
    salt, same = found
    # Version 1 had one copy of the header, so that only there a group can begin before byte 1024.
    version = 1 if same[0] < FILE_HEADERS_BYTES_MAX else 2
    if any(offset % alignment for offset in same):
        alignment = math.gcd(*same)
    return FileHeader(journal_id, salt, alignment, 0, 0, version)


class _Group(NamedTuple):
    header: GroupHeader
    head: bytes
    """The bytes of the group header and the runs."""


def _whole_group(file: File, journal_id: int, offset: int) -> _Group | None:
    """A group whose records prove its runs: the first record of each run is right, and the lengths lead
    exactly to the group's end.
    """
    header = decode_group_header(file.pread(offset, GROUP_HEADER.size), journal_id, offset)
    if header is None or header.end > file.size() or not header.runs:
        return None
    head = file.pread(offset, header.head_bytes)
    records = file.pread(offset + header.head_bytes, header.records_bytes)
    position = 0
    for run in Run.table(head[GROUP_HEADER.size :]):
        ends, whole = walk_run(records, position, run)
        if not whole or not ends:
            return None
        if damaged_record(Segment(run.ledger_id, run.first, records, position, ends[:1])) is not None:
            return None
        position += ends[-1]
    return _Group(header, head) if position == header.records_bytes else None


def _is_group_of(file: File, header: FileHeader, offset: int) -> bool:
    group = decode_group_header(file.pread(offset, GROUP_HEADER.size), header.journal_id, offset)
    if group is None or group.end > file.size():
        return False
    return decode_runs(file.pread(offset, group.head_bytes), header, group) is not None


# ---- CRC-32C backwards

_POLYNOMIAL: Final = 0x82F63B78
_ONES: Final = 0xFFFFFFFF


def _table() -> list[int]:
    table = list(range(256))
    for _ in range(8):
        table = [row >> 1 ^ (_POLYNOMIAL if row & 1 else 0) for row in table]
    return table


_TABLE: Final = _table()
_ROW_BY_TOP: Final = {row >> 24: index for index, row in enumerate(_TABLE)}


# Each row of CRC-32C's table has another top byte, so the row that a step used can be told from the top byte
# of its result. That makes every step reversible, and the salt's effect computable without the salt.
def _before(register: int, data: bytes) -> int:
    """The CRC register before these bytes, given the register after them."""
    for byte in reversed(data):
        index = _ROW_BY_TOP[register >> 24]
        register = (register ^ _TABLE[index]) << 8 & _ONES | index ^ byte
    return register


def _salt_of(group: _Group) -> int:
    """A salt that makes this group's checksum right: the file's own salt, or one that no checksum can
    distinguish from it.
    """
    crc_at = GROUP_HEADER.size - 4
    register = int.from_bytes(group.head[crc_at : GROUP_HEADER.size], "big") ^ _ONES
    register = _before(register, group.head[:crc_at] + group.head[GROUP_HEADER.size :])
    # Any salt with the same effect on the register serves, and four free bytes reach every register of 32
    # bits.
    zeros = bytes(4)
    last = _before(register, zeros) ^ crc32c(zeros) ^ _ONES
    return int.from_bytes(zeros + last.to_bytes(4, "little"), "big")
