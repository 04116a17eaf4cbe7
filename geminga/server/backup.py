"""A consistent copy of a running broker's data: the files that a crash at one moment would have left.

A plain `cp -a` copies one file after the other, so the first files in the copy are older than the last ones.
The metadata may then not know ledgers in the bookie's files, or know entries that these files do not have
yet. A backup fixes one moment. While no metadata is committed (a few milliseconds; publishing continues),
RocksDB links its tables of metadata and index into the copy, and the ends of journals and entry logs are
recorded. A ledger's record is durable before its first entry, so the metadata of that moment knows every
ledger with an entry before those ends. Then the files are copied up to these ends: they only grow meanwhile,
and none is deleted.

The copy opens like a data directory after `kill -9`. It has every entry whose receipt left before the backup
began.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NamedTuple

import trio

from geminga.bookie.index.database import IndexDatabase
from geminga.bookie.journal.journal_format import FILE_HEADERS_BYTES_MAX
from geminga.bookie.records.file_names import (
    ENTRY_LOG_SUFFIX,
    JOURNAL_SUFFIX,
    entry_log_directory,
    journal_directory,
    parse_id,
)
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.running.bookie import Bookie
from geminga.bookie.running.directory_cookies import index_directory
from geminga.bookie.running.directory_lists import COOKIE, DEFAULT, DirectoryLists, absolute
from geminga.broker.flow.statistics import BackupReport
from geminga.errors import Conflict, StorageError
from geminga.limits import MIB
from geminga.metadata.bookie_directories import recorded_directories
from geminga.metadata.records import BookieDirectoriesRecord, encode
from geminga.metadata.store import MetadataStore
from geminga.server.metadata_check import METADATA
from geminga.storage.disk import File, RealDisk
from geminga.storage.key_value import RocksKeyValue

UNFINISHED = ".unfinished"
"""The suffix of a copy that is not complete."""
SLICE_BYTES = 8 * MIB
"""Bytes copied in one call off the loop; cancelling waits for one call."""
PIECE_BYTES = MIB
FREE_BYTES_MIN = 64 * MIB
"""Free space that the copy must leave on its disk, which may be the broker's."""


class _Cut(NamedTuple):
    """A file, and how much of it belongs to the copy."""

    source: str
    target: str
    length: int
    is_needed: bool = True
    """False for a spare journal, which may have been renamed since it was listed."""


class Backup:
    """Makes copies of one running broker, one at a time. Belongs to the event loop."""

    def __init__(
        self,
        disk: RealDisk,
        data_dir: str,
        metadata: MetadataStore,
        metadata_values: RocksKeyValue,
        bookie: Bookie,
        indexes: Sequence[IndexDatabase],
    ) -> None:
        self._disk = disk
        self._data_dir = os.path.abspath(data_dir)
        self._metadata = metadata
        self._metadata_values = metadata_values
        self._bookie = bookie
        self._indexes = indexes
        self._lock = trio.Lock()

    async def __call__(self, directory: str) -> BackupReport:
        """Copy everything to `directory`, a path that does not exist yet or an empty directory.

        The copy gets this name when all of it is durable, before the return. Until then its name is
        `directory` with ".unfinished" appended; that is deleted after an error or when cancelled. Raises
        Conflict if the path cannot be used, or another backup is under way; StorageError if a disk fails.
        """
        if self._lock.locked():
            raise Conflict("another backup is under way; wait until it has ended")
        async with self._lock:
            target = directory.rstrip("/") or "/"
            started_s = trio.current_time()
            await self.check(target)
            unfinished = target + UNFINISHED
            await self._disk.run(self._disk.make_directory, unfinished)
            try:
                copied = await self._copy(unfinished)
                sizes = await self._disk.run(self._finish, unfinished, target, copied.lists)
            except BaseException:
                with trio.CancelScope(shield=True):
                    await self._disk.run(self._disk.remove_tree, unfinished)
                raise
            return BackupReport(
                directory=target,
                files=len(sizes),
                bytes=sum(sizes),
                seconds=round(trio.current_time() - started_s, 3),
                settings=copied.settings,
            )

    async def check(self, directory: str) -> None:
        """Raise Conflict if a copy may not be at this path."""
        await self._disk.run(self._check_target, directory.rstrip("/") or "/", self._lists())

    def _check_target(self, target: str, lists: DirectoryLists) -> None:
        disk = self._disk
        if not os.path.isabs(target) or os.path.normpath(target) != target:
            raise Conflict(f"{target!r}: name the copy's directory by an absolute path without '..'")
        real = os.path.join(os.path.realpath(target), "")
        for own in (self._data_dir, *(absolute(self._data_dir, name) for name in lists.all())):
            if real.startswith(os.path.join(os.path.realpath(own), "")):
                raise Conflict(f"{target} is inside the data directory; name one outside of {own}")
        if disk.exists(target) and (not os.path.isdir(target) or disk.list(target)):
            raise Conflict(f"{target} is there and not an empty directory; name a new one")
        if disk.exists(target + UNFINISHED):
            raise Conflict(
                f"{target}{UNFINISHED} is what a backup left when its broker died: delete it, or name "
                "another directory"
            )
        parent = os.path.dirname(target)
        if not os.path.isdir(parent):
            raise Conflict(f"{parent} is not a directory; make it, or name another one")

    async def _copy(self, target: str) -> _Copied:
        lists = self._lists()
        moved = _lists_inside(lists)
        async with self._bookie.files.keeping():
            async with self._metadata.paused():
                await self._disk.run(self._checkpoint, target, lists, moved)
                # Entry logs between the indexes and the ends of the journals: what the indexes do not know of
                # the logs is in the journals then, as after a crash.
                logs = await self._disk.run(self._logs, target, lists, moved)
                ends = self._bookie.files.journal_ends()
                files = [*await self._disk.run(self._journals, target, lists, moved, ends), *logs]
            if moved != lists:
                await self._record_lists(target, moved)  # before all else: it names the originals
            await self._disk.run(self._check_space, target, files)
            for cut in files:
                await self._copy_file(cut)
        if moved == lists:
            return _Copied(files, moved, {})
        final = target.removesuffix(UNFINISHED)
        return _Copied(
            files,
            moved,
            {
                "journalDirectories": ",".join(absolute(final, name) for name in moved.journals),
                "ledgerDirectories": ",".join(absolute(final, name) for name in moved.ledgers),
            },
        )

    def _lists(self) -> DirectoryLists:
        record = recorded_directories(self._metadata)
        return DirectoryLists(tuple(record.journals), tuple(record.ledgers)) if record else DirectoryLists()

    def _checkpoint(self, target: str, lists: DirectoryLists, moved: DirectoryLists) -> None:
        disk = self._disk
        for name in moved.all():
            disk.make_directory(absolute(target, name))
        self._metadata_values.checkpoint(os.path.join(target, METADATA))
        for index, name in zip(self._indexes, moved.ledgers, strict=True):
            index.checkpoint(index_directory(target, name))
        for old, new in zip(lists.all(), moved.all(), strict=True):
            cookie = disk.read_file(f"{absolute(self._data_dir, old)}/{COOKIE}")
            disk.replace_file(f"{absolute(target, new)}/{COOKIE}", cookie)

    def _journals(
        self, target: str, lists: DirectoryLists, moved: DirectoryLists, ends: Sequence[JournalPosition]
    ) -> list[_Cut]:
        disk, cuts = self._disk, []
        for old, new, end in zip(lists.journals, moved.journals, ends, strict=True):
            source, copy = (
                journal_directory(absolute(root, name)) for root, name in self._roots(target, old, new)
            )
            disk.make_directory(copy)
            for name in disk.list(source):
                journal_id = parse_id(name, JOURNAL_SUFFIX)
                if journal_id is None or journal_id > end.journal_id:
                    continue
                is_last = journal_id == end.journal_id
                length = max(end.offset, FILE_HEADERS_BYTES_MAX) if is_last else -1
                cuts.append(_Cut(f"{source}/{name}", f"{copy}/{name}", length, is_last))
        return [cut for cut in map(self._measured, cuts) if cut is not None]

    def _logs(self, target: str, lists: DirectoryLists, moved: DirectoryLists) -> list[_Cut]:
        disk = self._disk
        cuts: list[_Cut] = []
        for old, new in zip(lists.ledgers, moved.ledgers, strict=True):
            source, copy = (
                entry_log_directory(absolute(root, name)) for root, name in self._roots(target, old, new)
            )
            disk.make_directory(copy)
            cuts += [
                _Cut(f"{source}/{name}", f"{copy}/{name}", disk.size_of(f"{source}/{name}"))
                for name in disk.list(source)
                if parse_id(name, ENTRY_LOG_SUFFIX) is not None
            ]
        return cuts

    def _roots(self, target: str, old: str, new: str) -> tuple[tuple[str, str], tuple[str, str]]:
        return (self._data_dir, old), (target, new)

    def _measured(self, cut: _Cut) -> _Cut | None:
        """The file with its length; None if a spare journal was reused meanwhile."""
        if cut.length >= 0:
            return cut
        try:
            return cut._replace(length=self._disk.size_of(cut.source))
        except StorageError:
            if self._disk.exists(cut.source):
                raise
            return None

    def _check_space(self, target: str, files: Sequence[_Cut]) -> None:
        needed = sum(cut.length for cut in files) + FREE_BYTES_MIN
        free = self._disk.free_bytes(target)
        if free < needed:
            raise Conflict(
                f"{os.path.dirname(target)}: {free >> 20} MiB are free, and the copy needs "
                f"{needed >> 20} MiB; name a directory on another disk"
            )

    async def _copy_file(self, cut: _Cut) -> None:
        try:
            source = await self._disk.run(self._disk.open, cut.source)
        except StorageError:
            if cut.is_needed or self._disk.exists(cut.source):
                raise
            return
        try:
            copy = await self._disk.run(self._disk.create, cut.target)
            try:
                for offset in range(0, cut.length, SLICE_BYTES):
                    await self._disk.run(
                        _copy_slice, source, copy, offset, min(cut.length, offset + SLICE_BYTES)
                    )
                await self._disk.run(copy.sync)
            finally:
                copy.close()
        finally:
            source.close()

    async def _record_lists(self, target: str, moved: DirectoryLists) -> None:
        """Directories outside of the data directory are inside the copy, so that a start of the copy does
        not use the originals.
        """
        values = await self._disk.run(RocksKeyValue, os.path.join(target, METADATA))
        try:
            async with trio.open_nursery() as nursery:
                store = MetadataStore(values)
                await nursery.start(store.run)
                record = BookieDirectoriesRecord(journals=list(moved.journals), ledgers=list(moved.ledgers))
                await store.put(BookieDirectoriesRecord.path, encode(record))
                nursery.cancel_scope.cancel()
        finally:
            await self._disk.run(values.close)

    def _finish(self, unfinished: str, target: str, moved: DirectoryLists) -> list[int]:
        """The sizes of all files of the copy, whose directory has its name on return."""
        disk = self._disk
        sizes = [
            disk.size_of(os.path.join(folder, name))
            for folder, _, names in os.walk(unfinished)
            for name in names
        ]
        directories = [journal_directory(absolute(unfinished, name)) for name in moved.journals]
        directories += [entry_log_directory(absolute(unfinished, name)) for name in moved.ledgers]
        for path in (*directories, *(absolute(unfinished, name) for name in moved.all()), unfinished):
            disk.sync_directory(path)
        disk.rename(unfinished, target)
        disk.sync_directory(os.path.dirname(target))
        return sizes


class _Copied(NamedTuple):
    files: list[_Cut]
    lists: DirectoryLists
    """The directories of the copy, all inside it."""
    settings: dict[str, str]
    """Settings with which a broker must be started on the copy; empty: none."""


def _lists_inside(lists: DirectoryLists) -> DirectoryLists:
    """The lists with every directory inside the data directory, under a name of its own."""
    names = {
        name: name if name == DEFAULT else f"directory-{number}"
        for number, name in enumerate(lists.all(), start=1)
    }
    return DirectoryLists(
        tuple(names[name] for name in lists.journals), tuple(names[name] for name in lists.ledgers)
    )


def _copy_slice(source: File, copy: File, start: int, end: int) -> None:
    """Raises StorageError if the file has become shorter, which entry logs and journals never do."""
    for offset in range(start, end, PIECE_BYTES):
        data = source.pread(offset, min(PIECE_BYTES, end - offset))
        if not data:
            raise StorageError(f"{source.path}: ends at {offset}, before {end}: something else has cut it")
        copy.append(data)
