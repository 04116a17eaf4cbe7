"""The journal's bytes. `docs/formats/journal.md` is the page for people.

    file   := file header (512 bytes) | a copy of it | group*
    file header := fields (`FILE_HEADER`) | owner (40 bytes, `records/owner.py`) | zeros
    group  := group header | run* | record*
    run    := ledger id u64 | first entry u64 | count u32

A group begins at a multiple of the file's alignment, with zeros in between. A group is what one write and one
sync carried. Its records are sorted by run: all records of the first run, then all of the second. The name of
a ledger follows all entries of the group with its first entry, as a run with one record
(`records/ledger_name.py`). A file may be an old journal that is overwritten, so old bytes or zeros follow the
last group. A group belongs to the file only if it has the file's journal id.

The group header records how far the file was synced before the group was written. All bytes below that offset
were durable, so an error in them is damage. An error above it is the torn end of a crash.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from geminga.bookie.records.ledger_name import META_ENTRY_ID, LedgerName, encode_name
from geminga.bookie.records.owner import Owner, decode_owner_at, encode_owner_behind
from geminga.bookie.records.records import (
    RECORD_HEAD,
    RECORD_PREFIX_BYTES,
    Segment,
    crc32c,
    ends_of,
    pack_records,
)
from geminga.loops import native

# All versions are read for good, since a start replays journals that an earlier program left. An older
# program would take a name for an entry; it is kept out by the data directory's format, which version 3
# raised to 3.
VERSION: Final = 3
"""Version 1 had one file header; versions 1 and 2 had no names of ledgers. All are read, 3 is written."""
FILE_MAGIC: Final = b"GEMJRNL\0"
# The header names the previous journal and its end. Without that, a start could not tell a torn last group,
# which was never confirmed, from a synced one that has rotted: nothing behind it in its own file says how far
# that was synced.
FILE_HEADER: Final = struct.Struct(">8sIQQIQQI")
"""magic | version | journal id | salt | alignment | id of the previous journal (0: none) | end of that
journal | crc; the owner follows
"""
# Disks promise at most that one sector is written whole.
FILE_HEADER_BYTES: Final = 512
"""The size of one copy: a sector of its own, so that writing a group never rewrites the header."""
FILE_HEADERS_BYTES_MAX: Final = 2 * FILE_HEADER_BYTES

# Not a proof, only what a search looks for first: payloads may contain it.
GROUP_MAGIC: Final = b"GRP1"
# The offset is in it because a recycled file is full of old groups and a payload may be a copy of a journal:
# bytes that moved are not believed. "synced" equals the offset today; a writer with several groups under way
# would need it, and a new field would need a new version.
GROUP_HEADER: Final = struct.Struct(">4sQQQIII")
"""magic | journal id | offset in the file | synced up to | records bytes | runs | crc

The crc covers the file's salt, the header before the crc, and the runs. The salt is random, so no client can
send a payload that would pass for a group in the search for a torn end. The records have a crc of their own.
"""
GROUP_MARK: Final = struct.Struct(">4sQQ")
"""The first bytes of a group header, for which a search looks."""
RUN: Final = struct.Struct(">QQI")
# CRC-32C everywhere: it has hardware support, and Pulsar's own wire checksum is the same polynomial.
_CRC: Final = struct.Struct(">I")


# Rounded up, so that no group shares a page with one that was synced: rewriting such a page in a crash could
# tear entries that had their receipts.
def align(offset: int, alignment: int) -> int:
    """The least multiple of `alignment` that is not below `offset`."""
    return -(-offset // alignment) * alignment


class FileHeader(NamedTuple):
    journal_id: int
    salt: int
    alignment: int
    previous_id: int
    previous_end: int
    version: int = VERSION
    owner: Owner | None = None
    """None if the header does not say."""

    @property
    def copies(self) -> int:
        """How many copies of the header begin the file."""
        return 1 if self.version == 1 else 2

    @property
    def first_group(self) -> int:
        """Where the first group begins."""
        return align(self.copies * FILE_HEADER_BYTES, self.alignment)


class GroupHeader(NamedTuple):
    offset: int
    synced: int
    records_bytes: int
    runs: int

    @property
    def head_bytes(self) -> int:
        return GROUP_HEADER.size + self.runs * RUN.size

    @property
    def end(self) -> int:
        return self.offset + self.head_bytes + self.records_bytes


class Run(NamedTuple):
    """Consecutive entries of one ledger in a group."""

    ledger_id: int
    first: int
    entries: int

    @property
    def is_name(self) -> bool:
        """Whether this run is the ledger's name, not an entry."""
        # BookKeeper marks its meta entries by an entry id that no entry can have, too; so the run's layout
        # could stay.
        return self.first == META_ENTRY_ID

    @classmethod
    def table(cls, data: bytes) -> list[Run]:
        """The bytes of the runs that follow a group header."""
        return [cls(*fields) for fields in RUN.iter_unpack(data)]


def encode_file_header(header: FileHeader) -> bytes:
    """All copies, to be written at offset 0 in one write."""
    # One write for both copies. If it is torn there is no group yet, and the file counts as never used.
    *fields, version, owner = header
    head = FILE_HEADER.pack(FILE_MAGIC, version, *fields, 0)[: -_CRC.size]
    head += _CRC.pack(crc32c(head))
    return (head + encode_owner_behind(head, owner)).ljust(FILE_HEADER_BYTES, b"\0") * header.copies


def decode_file_header(data: bytes) -> FileHeader | None:
    """One copy; None if these are not the first bytes of a journal of a known version."""
    if len(data) < FILE_HEADER.size:
        return None
    magic, version, journal_id, salt, alignment, previous_id, previous_end, crc = FILE_HEADER.unpack_from(
        data
    )
    # A version of the future is "no header" here and not an error: the data directory's own format number has
    # refused such a start before any journal is opened.
    if magic != FILE_MAGIC or not 1 <= version <= VERSION:
        return None
    if crc != crc32c(data[: FILE_HEADER.size - _CRC.size]):
        return None
    try:
        owner = decode_owner_at(data, FILE_HEADER.size)
    except ValueError:
        return None
    return FileHeader(journal_id, salt, alignment, previous_id, previous_end, version, owner)


def encode_group(
    file: FileHeader,
    offset: int,
    synced: int,
    batches: Sequence[tuple[int, int, list[bytes]]],
    names: Sequence[tuple[int, LedgerName]] = (),
) -> tuple[bytes, list[Segment]]:
    """One group from (ledger id, first entry, bodies) triples, to be written at `offset`, with the names of
    ledgers. A name that cannot be encoded is left out.

    Returns the group's bytes and, as views of them, the entries of each triple.
    """
    # Names go last: a scan cannot get past a wrong length, and what it loses behind one should be a name,
    # which entry logs and metadata have too, rather than an entry.
    named = [(ledger_id, META_ENTRY_ID, [body]) for ledger_id, name in names if (body := encode_name(name))]
    all_batches = [*batches, *named]
    places = []
    position = 0
    for _, _, bodies in all_batches:
        ends = ends_of(bodies)
        places.append((position, ends))
        position += ends[-1]
    table = b"".join([RUN.pack(ledger_id, first, len(bodies)) for ledger_id, first, bodies in all_batches])
    head = GROUP_HEADER.pack(GROUP_MAGIC, file.journal_id, offset, synced, position, len(all_batches), 0)[
        : -_CRC.size
    ]
    head += _CRC.pack(_group_crc(file, head, table)) + table
    group = (native.pack_records if native is not None else join_records)(head, all_batches)
    # Views of the group's own buffer. The bookie puts them into the write cache as they are, so a payload is
    # not copied again on its way to the entry log.
    segments = [
        Segment(ledger_id, first, group, len(head) + start, ends)
        for (ledger_id, first, _), (start, ends) in zip(batches, places, strict=False)
    ]
    return group, segments


def join_records(head: bytes, batches: Sequence[tuple[int, int, list[bytes]]]) -> bytes:
    """The head of a group and the records of all batches: `loops.native.pack_records` in Python."""
    # Joined once, so each payload is copied once.
    parts = [head]
    for ledger_id, first, bodies in batches:
        pack_records(ledger_id, first, bodies, parts)
    return b"".join(parts)


def decode_group_header(data: bytes, journal_id: int, offset: int) -> GroupHeader | None:
    """The group header at `offset` of journal `journal_id`; None if the bytes do not look like one. Its crc
    needs the runs.
    """
    if len(data) < GROUP_HEADER.size:
        return None
    magic, group_journal_id, group_offset, synced, records_bytes, runs, _ = GROUP_HEADER.unpack_from(data)
    # The id, too: behind the last group of a recycled file stand the groups of the journal that it was, and
    # at the right offsets.
    if magic != GROUP_MAGIC or group_journal_id != journal_id or group_offset != offset:
        return None
    return GroupHeader(offset, synced, records_bytes, runs)


def _group_crc(file: FileHeader, head: bytes, table: bytes) -> int:
    # The salt first. A payload's author cannot know it, so no payload passes for a group when a torn end is
    # searched. The records are left out: they have checksums of their own, and a damaged record must not take
    # the others of its group with it.
    return crc32c(table, crc32c(head, crc32c(file.salt.to_bytes(8, "big"))))


def decode_runs(data: bytes, file: FileHeader, header: GroupHeader) -> list[Run] | None:
    """The runs of a group whose bytes begin with `data`; None if header or runs are damaged or cut short."""
    if len(data) < header.head_bytes:
        return None
    table = data[GROUP_HEADER.size : header.head_bytes]
    (crc,) = _CRC.unpack_from(data, GROUP_HEADER.size - _CRC.size)
    if crc != _group_crc(file, data[: GROUP_HEADER.size - _CRC.size], table):
        return None
    return Run.table(table)


def walk_run(buffer: bytes, position: int, run: Run) -> tuple[list[int], bool]:
    """The ends of a run's records, counted from `position`; False if a length leads out of the buffer.

    Follows lengths only: `records.damaged_record` checks the records.
    """
    # The table of runs has no lengths: it would cost bytes for each entry, and each record begins with its
    # own.
    unpack, limit = RECORD_HEAD.unpack_from, len(buffer)
    ends: list[int] = []
    end = position
    for _ in range(run.entries):
        if end + RECORD_PREFIX_BYTES > limit:
            return ends, False
        end += RECORD_PREFIX_BYTES + unpack(buffer, end)[0]
        if end > limit:
            return ends, False
        ends.append(end - position)
    return ends, True
