"""Whether there is enough space for a start, asked before the start writes its first byte.

An opening of RocksDB turns its logs into tables, and recovery turns journals into entry logs. A start that
runs out of space on the way changes files and achieves nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple

from geminga.bookie.index.index_format import decode_mark, mark_key
from geminga.bookie.records.file_names import JOURNAL_SUFFIX, journal_directory, parse_id
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.running.directory_cookies import index_directory
from geminga.bookie.running.directory_lists import DirectoryLists, absolute
from geminga.errors import StorageError
from geminga.limits import KIB, MIB
from geminga.server.metadata_check import METADATA
from geminga.storage.disk import RealDisk
from geminga.storage.disk_errors import DiskFull
from geminga.storage.key_value import RocksKeyValue
from geminga.storage.rocksdb import OPENING_BYTES, OPENING_FILES, BlockCache

JOURNAL_BYTES, JOURNAL_FILES = 64 * KIB, 2
"""For the new journal of a start: its header and first groups, if no more can be reserved."""
LEDGER_BYTES, LEDGER_FILES = 64 * KIB, 8
"""For new entry logs beside their records, cookies, and lock files."""
_CACHE_BYTES = MIB


class _Need(NamedTuple):
    directory: str
    """The first directory on this disk."""
    bytes: int
    files: int


def check_space(disk: RealDisk, data_dir: str, lists: DirectoryLists) -> None:
    """Raise DiskFull, with the directory and the missing space, if a start on these directories may run out
    of space. Changes nothing. Blocking: asks the system; only if that is not enough, opens the indexes for
    reading.
    """
    needs = _needs(disk, data_dir, lists, lambda directory: [JournalPosition(0, 0)] * len(lists.journals))
    if not any(_text(disk, need) for need in needs):
        return
    for need in _needs(disk, data_dir, lists, lambda path: _marks(disk, path, len(lists.journals))):
        if why := _text(disk, need):
            raise DiskFull(why)


def _needs(
    disk: RealDisk,
    data_dir: str,
    lists: DirectoryLists,
    marks_of: Callable[[str], list[JournalPosition]],
) -> list[_Need]:
    """What a start needs on each disk. `marks_of` returns the marks in the index at a path."""
    needs: dict[int, _Need] = {}

    def add(directory: str, more_bytes: int, more_files: int) -> None:
        there = _existing(disk, directory)
        identity = disk.identity(there)
        device = identity[0] if identity is not None else -1
        named, known_bytes, known_files = needs.get(device, _Need(there, 0, 0))
        needs[device] = _Need(named, known_bytes + more_bytes, known_files + more_files)

    databases = [os.path.join(data_dir, METADATA)]
    journals = [journal_directory(absolute(data_dir, name)) for name in lists.journals]
    add(data_dir, 0, LEDGER_FILES)
    for journal in journals:
        add(journal, JOURNAL_BYTES, JOURNAL_FILES)
    for name in lists.ledgers:
        index = index_directory(data_dir, name)
        databases.append(index)
        # An entry belongs to one ledger directory. Which one is not known before the journals are read.
        marks = marks_of(index)
        unflushed = sum(_bytes_behind(disk, *at) for at in zip(journals, marks, strict=True))
        add(absolute(data_dir, name), unflushed + LEDGER_BYTES, LEDGER_FILES)
    for path in databases:
        logs = [name for name in _names(disk, path) if name.endswith(".log")]
        add(path, OPENING_BYTES + 2 * sum(disk.size_of(f"{path}/{name}") for name in logs), OPENING_FILES)
    return list(needs.values())


def _bytes_behind(disk: RealDisk, journal: str, mark: JournalPosition) -> int:
    total = 0
    for name in _names(disk, journal):
        journal_id = parse_id(name, JOURNAL_SUFFIX)
        if journal_id is not None and journal_id >= mark.journal_id:
            size = disk.size_of(f"{journal}/{name}")
            total += size - min(size, mark.offset if journal_id == mark.journal_id else 0)
    return total


def _marks(disk: RealDisk, path: str, journals: int) -> list[JournalPosition]:
    """The marks of an index; the beginning of all journals if they cannot be read."""
    try:
        if not disk.exists(f"{path}/CURRENT"):
            raise StorageError(f"{path}: no index")
        values = RocksKeyValue(path, block_cache=BlockCache(_CACHE_BYTES), read_only=True)
        try:
            marks = [values.get(mark_key(number)) for number in range(journals)]
        finally:
            values.close()
    except StorageError:
        return [JournalPosition(0, 0)] * journals
    return [decode_mark(mark) if mark is not None else JournalPosition(0, 0) for mark in marks]


def _text(disk: RealDisk, need: _Need) -> str:
    """Why this is not enough; "" if it is."""
    free_bytes, free_inodes = disk.free_bytes(need.directory), disk.free_inodes(need.directory)
    has_inodes = free_inodes is None or free_inodes >= need.files
    if free_bytes >= need.bytes and has_inodes:
        return ""
    free = f"{free_bytes // KIB} KiB" + (f" and {free_inodes} inodes" if free_inodes is not None else "")
    wanted = f"{-(-need.bytes // KIB)} KiB" + (f" and {need.files} inodes" if free_inodes is not None else "")
    return (
        f"{need.directory}: disk full: {free} are free, a start needs {wanted}; nothing was changed; free "
        "some space, and start again"
    )


def _existing(disk: RealDisk, path: str) -> str:
    """The path, or the nearest directory above it that exists."""
    path = os.path.abspath(path)
    while not disk.exists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path


def _names(disk: RealDisk, directory: str) -> list[str]:
    return disk.list(directory) if disk.exists(directory) else []
