"""The journal's files: written group by group, closed when full, reused when no longer needed.

Blocking; used by one thread at a time, except `release`.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from geminga.bookie.journal.journal_format import FileHeader, align, encode_file_header, encode_group
from geminga.bookie.records.file_names import journal_path
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.ledger_name import LedgerName
from geminga.bookie.records.owner import Owner
from geminga.bookie.records.records import Segment
from geminga.bookie.records.settings import BookieSettings
from geminga.clock import RealClock
from geminga.errors import StorageError
from geminga.limits import KIB
from geminga.storage.disk import Disk, File
from geminga.storage.disk_errors import DiskFull
from geminga.storage.removed_files import is_cut, write_again

# BookKeeper drops the page cache behind its journal too (`journalRemoveFromPageCache`): nothing reads these
# bytes again before a crash, and they would push out the pages of entry logs, which consumers do read.
DROP_CACHE_BYTES = 1 << 20
"""The page cache is released behind the writer in steps of at least this."""
# A sync is slow if the group is the first to write to its blocks: the file system then commits that they are
# written. Zeros in the write of one small group save that for those that follow, and 64 KiB more are hardly
# slower. One message at a time took 0.75 of the CPU, and 0.65 of the time, that it takes without them.
ZEROS_BYTES = 64 * KIB
"""A small group at the end of the written part of a file has this many zeros written behind it."""
SMALL_GROUP_BYTES_MAX = 16 * KIB
"""A group that takes up more of the file has no zeros written behind it, and pays for its blocks itself."""
_monotonic_s = RealClock().monotonic_s


class WrittenGroup(NamedTuple):
    """One durable group."""

    segments: list[Segment]
    end: JournalPosition
    entries: int
    record_bytes: int
    file_bytes: int
    sync_s: float
    """Its write and its sync, which are one call on most file systems."""
    waited_s: float = 0.0
    """Of its entries none has been in the queue for longer than this when the group was begun..."""
    took_s: float = 0.0
    """...and this much later it was durable."""


class _NamedFile(NamedTuple):
    """The file that is being written, as it was found by its name when it was opened."""

    path: str
    identity: tuple[int, int] | None
    file: File


class JournalFiles:
    """Starts a new file on construction: nothing is ever written behind the remains of a crash."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        settings: BookieSettings,
        *,
        journal_id: int,
        previous: JournalPosition,
        free: Sequence[str],
        owner: Owner | None = None,
    ) -> None:
        """`journal_id` was never used before. `previous` is the end of the last journal that is still needed,
        `(0, 0)` if none is. `free` are old journals that may be overwritten. `owner` goes into the header of
        each file; None if it is not known.
        """
        self._disk = disk
        self.directory = directory
        self._settings = settings
        self._owner = owner
        self._zeros = bytes(settings.journal_alignment_bytes + ZEROS_BYTES)
        self._lock = threading.Lock()
        self._free = list(free)
        self._old: list[int] = []
        self._closed_bytes: dict[str, int] = {}
        """The lengths of the files that are closed, from the first look at each on."""
        self._kept = False
        self._may_overwrite: Callable[[], bool] = lambda: True
        self._file: File
        self._named: _NamedFile
        self._header: FileHeader
        self._end = self._allocated = self._written = self._dropped = 0
        self._open_next(journal_id, previous)
        self._trim_free()

    @property
    def position(self) -> JournalPosition:
        """The position after the last group."""
        return JournalPosition(self._header.journal_id, self._end)

    def write(
        self,
        batches: Sequence[tuple[int, int, list[bytes]]],
        names: Sequence[tuple[int, LedgerName]] = (),
        waited_s: float = 0.0,
    ) -> WrittenGroup:
        """Write (ledger id, first entry, bodies) triples as one group, with the names of the ledgers that
        begin in it. Durable on return. `waited_s` is only told in what is returned.

        Raises DiskFull if no space could be reserved: nothing was written then, and a later call may succeed.
        Raises StorageError for any other failure. The object must not be used after that, because the state
        of the group on disk is unknown.
        """
        began_s = _monotonic_s()
        # A file whose first group is larger than a whole file still takes it: the second condition. Without
        # it such a group would open one empty file after another.
        if self._end >= self._settings.journal_file_bytes and self._end > self._header.first_group:
            # Without an inode for another file, this one just becomes longer.
            with contextlib.suppress(DiskFull):
                self._leave_file()
        offset = self._end
        group, segments = encode_group(self._header, offset, offset, batches, names)
        end = align(offset + len(group), self._settings.journal_alignment_bytes)
        file = self._file
        # A cut file becomes as long as it was by a reservation, or by a last group that ends where its space
        # does, with a hole, and no later look could tell. A look at each group costs 1 % of a publish.
        if end >= self._allocated and is_cut(self._disk, file.path, file.size()):
            raise StorageError(f"{file.path}: cut while it was being written")
        if end > self._allocated:
            step = self._settings.journal_allocate_bytes
            wanted = max(end, min(align(end, step), self._settings.journal_file_bytes))
            self._allocated = _reserve(file, end, wanted)
        # Zeros up to the alignment, so that the page is written whole. A recycled file has old groups there;
        # the kernel would have to read the page before it could change part of it.
        zeros_end = self._end_of_zeros(offset, end)
        started = _monotonic_s()
        try:
            file.write_synced(offset, (group, self._zeros[: zeros_end - offset - len(group)]))
        except DiskFull as error:
            # The space was reserved: this file system does not keep its promise, and the group may be there.
            raise StorageError(str(error)) from error
        ended_s = _monotonic_s()
        self._end = end
        # After the sync: the kernel drops clean pages only, so an earlier call would do nothing.
        if end - self._dropped >= DROP_CACHE_BYTES and self._settings.journal_drops_page_cache:
            file.drop_cache(self._dropped, end - self._dropped)
            self._dropped = end
        entries = sum(len(segment.ends) for segment in segments)
        record_bytes = sum(segment.record_bytes for segment in segments)
        return WrittenGroup(
            segments,
            self.position,
            entries,
            record_bytes,
            end - offset,
            ended_s - started,
            waited_s,
            ended_s - began_s,
        )

    def _end_of_zeros(self, offset: int, end: int) -> int:
        """Where the write of a group ends that takes up the bytes from `offset` to `end`."""
        if end <= self._written:
            return end
        zeros_end = end
        if end - offset <= SMALL_GROUP_BYTES_MAX:
            # Not up to the end of the reserved space: a write that ends there hides that the file was cut,
            # and only a group that does so has looked for that.
            last = self._allocated - self._settings.journal_alignment_bytes
            zeros_end = max(end, min(end + ZEROS_BYTES, last))
        self._written = zeros_end
        return zeros_end

    def release(self, needed: JournalPosition) -> None:
        """Allow every journal before the one of `needed` to be overwritten or deleted. Call on any thread."""
        with self._lock:
            released = [journal_id for journal_id in self._old if journal_id < needed.journal_id]
            self._old = [journal_id for journal_id in self._old if journal_id >= needed.journal_id]
            self._free += [journal_path(self.directory, journal_id) for journal_id in released]
        self._trim_free()

    def reuse(self, paths: Sequence[str]) -> None:
        """Add journals of an earlier start that may be overwritten or deleted, oldest first."""
        with self._lock:
            self._free += paths
        self._trim_free()

    def keep(self, kept: bool) -> None:
        """While `kept` is true, no file is overwritten, renamed or deleted; the next `release` catches up.
        Call on any thread.
        """
        with self._lock:
            self._kept = kept

    def overwrite_if(self, may_overwrite: Callable[[], bool]) -> None:
        """Ask this before each time that a file is overwritten or deleted; it is called on any thread. After
        False the files stay, and the journal makes new ones.
        """
        self._may_overwrite = may_overwrite

    def gone(self) -> list[str]:
        """The paths of files that something else has removed, moved, replaced or cut, with those that are
        kept. Call on any thread. Raises StorageError if the directory cannot be listed.
        """
        named, closed = self._existing()
        names = {f"{self.directory}/{name}" for name in self._disk.list(self.directory)}
        suspects = {path for path in closed if path not in names or self._is_closed_one_cut(path)}
        if not suspects and self._is_there(named):
            return []
        # The journal itself deletes and renames files. A path that it has given up is not used again, so one
        # that it still has now has existed until something else removed it.
        named_now, closed_now = self._existing()
        gone = {
            path
            for path in suspects & closed_now
            if not self._disk.exists(path) or self._is_closed_one_cut(path)
        }
        if named_now is named and not self._is_there(named):
            gone.add(named.path)
        return sorted(gone)

    def write_again(self) -> None:
        """Write the open file again if it has been removed; durable on return. Nothing may be written to the
        journal after this. Raises StorageError.
        """
        path, identity, file = self._named
        # What was cut off is in no open file either. None: it was removed between its creation and the first
        # look, and its directory would be left without a journal.
        if identity is None or self._disk.identity(path) != identity:
            write_again(self._disk, file, path)
            self._named = _NamedFile(path, self._disk.identity(path), file)

    def _existing(self) -> tuple[_NamedFile, set[str]]:
        """The open file, and the paths of all others."""
        with self._lock:
            old = {journal_path(self.directory, journal_id) for journal_id in self._old}
            closed = old.union(self._free)
            self._closed_bytes = {
                path: length for path, length in self._closed_bytes.items() if path in closed
            }
            return self._named, closed

    def _is_there(self, named: _NamedFile) -> bool:
        """Whether the open file has its name and its length."""
        has_name = self._disk.identity(named.path) == named.identity is not None
        return has_name and not is_cut(self._disk, named.path, named.file.size())

    def _is_closed_one_cut(self, path: str) -> bool:
        size = self._disk.size(path)
        if size is None:
            return False
        with self._lock:
            return size < self._closed_bytes.setdefault(path, size)

    def close(self) -> None:
        """Close the file; nothing is written after this."""
        self._file.close()

    def _leave_file(self) -> None:
        position = self.position
        # The last moment at which its bytes can be saved. Receipts for them have left, and only the write
        # caches have them beside it, until they are flushed.
        if not self._is_there(self._named):
            raise StorageError(
                f"{self._named.path}: removed, moved, replaced or cut short while it was being written"
            )
        left = self._file
        # The file is open until there is another one: a failure in between may come from whatever removes
        # files, and `write_again` then needs it.
        self._open_next(position.journal_id + 1, position)
        left.close()
        with self._lock:
            self._old.append(position.journal_id)
            self._closed_bytes[left.path] = left.size()

    def _open_next(self, journal_id: int, previous: JournalPosition) -> None:
        path = journal_path(self.directory, journal_id)
        # A new salt each time the file is used: with an old one the groups that the recycled file still holds
        # could pass for groups of this journal.
        header = FileHeader(
            journal_id,
            secrets.randbits(64),
            self._settings.journal_alignment_bytes,
            *previous,
            owner=self._owner,
        )
        may_overwrite = bool(self._free) and self._may_overwrite()
        with self._lock:
            recycled = self._free.pop(0) if may_overwrite and self._free and not self._kept else None
        try:
            file = self._make_file(path, recycled, header)
        except DiskFull:
            # The next try finds this name free again.
            if self._disk.exists(path):
                if recycled is None:
                    self._disk.unlink(path)
                else:
                    self._disk.rename(path, recycled)
            if recycled is not None:
                with self._lock:
                    if recycled not in self._free:  # `_kept_if_it_fails` has put it back
                        self._free.insert(0, recycled)
            raise
        self._file = file
        self._named = _NamedFile(path, self._disk.identity(path), file)
        self._header = header
        self._end = header.first_group
        self._allocated = file.size()
        # Of a recycled file all blocks count as written. Those behind the last group of a broker that was
        # restarted early are not; their syncs are as slow as they were.
        self._written = 0 if recycled is None else self._allocated
        self._dropped = 0

    def _make_file(self, path: str, recycled: str | None, header: FileHeader) -> File:
        """The file at `path`, with its header; durable on return, and closed after an error."""
        if recycled is None:
            file = self._disk.create(path)
        else:
            # Renamed, not created: blocks that are allocated already make a sync several times faster, since
            # fdatasync need not commit the file's size and extents (BookKeeper's `journalMaxBackups`).
            with self._kept_if_it_fails(recycled):
                self._disk.rename(recycled, path)
            file = self._disk.open(path)
        try:
            if recycled is None:
                step = min(self._settings.journal_allocate_bytes, self._settings.journal_file_bytes)
                _reserve(file, header.first_group, max(step, header.first_group))
            # Before the first group: a group whose header is not durable could not be told from old bytes.
            file.pwrite(0, encode_file_header(header))
            file.sync()
            # The name must be durable before any entry in the file is promised.
            self._disk.sync_directory(self.directory)
        except BaseException:
            file.close()
            raise
        return file

    def _trim_free(self) -> None:
        free_max = self._settings.journal_free_files_max
        if len(self._free) <= free_max or not self._may_overwrite():
            return
        while True:
            with self._lock:
                if self._kept or len(self._free) <= free_max:
                    return
                # The oldest first: a start that finds a journal expects to find all later ones too.
                path = self._free.pop(0)
            # No directory sync: an old journal that comes back is recognised by the mark and deleted again.
            with self._kept_if_it_fails(path):
                self._disk.unlink(path)

    @contextlib.contextmanager
    def _kept_if_it_fails(self, path: str) -> Iterator[None]:
        """Keep an old journal that could not be renamed or deleted among those that have to exist, so that
        `gone` names it if it is not there.
        """
        try:
            yield
        except StorageError:
            with self._lock:
                self._free.insert(0, path)
            raise


def _reserve(file: File, needed: int, wanted: int) -> int:
    """Make the file `wanted` bytes long, or `needed` on a full disk; returns the length. Raises DiskFull if
    not even `needed` fits. Nothing has been written at this point, so a retry is safe.
    """
    try:
        file.allocate(wanted)
        return wanted
    except DiskFull:
        file.allocate(needed)
        return needed
