"""One RocksDB directory as the binding shows it: opened, read, written, closed, and opened again.

Nothing is retried here, and most methods raise what RocksDB raises; `key_value.py` makes the map of it that
all other rooms use.

Facts about `rocksdict` that the shape of both files comes from, each held by a test:

- A block that fails its checksum makes an iterator *end*, without an exception. Only `status()` tells. So
  every scan asks for the status after its last row, and no code outside this module may touch an iterator.
- `write()` keeps the interpreter lock while it syncs; `flush_wal()` gives it up. So a synced write is an
  unsynced write followed by `flush_wal()`, and a slow disk does not stop the event loop.
- A live iterator keeps the database, and with it the directory's lock, open after `close()`. So iterators are
  let go by `close()` even if a half-used scan is still referenced.
- What RocksDB holds to be the torn end of a log may be damage to synced data, and some damage makes it loop
  for ever. So each sync leaves a mark in the log, and logs are checked before RocksDB reads them
  (`rocksdb_log_format`).
- It makes files with mode 0644, and has no option for another one. So opening one for writing narrows the
  mask of the process.
- All errors are plain `Exception`s that carry RocksDB's text (`rocksdb_errors`).
- After a background flush, a merge of tables or a new log could not open its file, each write fails until the
  database is opened again; reads go on. Where only descriptors or memory were lacking, that is done here, and
  the write is applied again: see `Database.replace`.
- A full disk stops every write, too. RocksDB looks for space every five seconds, and then writes tables of
  all that it has in memory, also of a batch whose sync has failed. `DB::Resume` is not bound. So the database
  is closed at once, the logs are cut behind the last confirmed write, and it is opened for reading only until
  there is space (`Database.go_back`).
- An iterator does not keep its upper bound alive: the options that it was made with have to live as long, and
  so they are the scan's. `set_iterate_lower_bound` sets the upper one.
- An iterator that could not open a table stays failed, and one of a `snapshot()` sees later writes. So a scan
  goes on with a new iterator, and only if nothing was written since it began: sequence numbers tell.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Iterable

import rocksdict

from geminga.errors import StorageError
from geminga.limits import MIB
from geminga.storage.descriptor_wait import SHORTAGES, OutOfDescriptors
from geminga.storage.disk import RealDisk
from geminga.storage.disk_errors import DiskFull, storage_error
from geminga.storage.rocksdb_errors import shortage, translated
from geminga.storage.rocksdb_files import LiveFiles
from geminga.storage.rocksdb_log_format import synced_marker
from geminga.storage.rocksdb_logs import check_logs, cut_logs
from geminga.storage.rocksdb_options import database_options

log = logging.getLogger("geminga.storage")

OPENING_BYTES = MIB
"""What an opening for writing takes beside the tables: a manifest, options, a log."""
OPENING_FILES = 16
_NOT_COPIED = frozenset({"LOCK", "LOG"})
"""RocksDB's lock and diary."""
_BINDING_FILE = "rocksdict-config.json"
"""Beside RocksDB's files; whatever its content, it is rewritten at each opening."""


class BlockCache:
    """Memory for blocks read from disk, bounded, to be shared by all databases of a process."""

    def __init__(self, capacity_bytes: int) -> None:
        self._cache = rocksdict.Cache(capacity_bytes)

    def usage_bytes(self) -> int:
        return self._cache.get_usage()


class Scan:
    """One pass over rows. Holds its RocksDB iterator, so that it can be taken from a scan that was never
    finished.
    """

    __slots__ = ("__weakref__", "_options", "iterator", "last", "sequence", "start")

    def __init__(self, start: bytes, end: bytes) -> None:
        self.start = start
        self._options = rocksdict.ReadOptions()
        # Without it, the step behind the last row passes over all deleted rows that follow: 44 ms over
        # 150,000 of them.
        self._options.set_iterate_upper_bound(end)
        self.iterator: rocksdict.RdictIter | None = None
        """At `last`, or at the first row. None: to be made."""
        self.last: bytes | None = None
        """The key that was returned last."""
        self.sequence = 0
        """That of the last write that the scan sees."""

    def make_iterator(self, db: rocksdict.Rdict) -> rocksdict.RdictIter:
        return db.iter(self._options)

    def end(self) -> None:
        """Release what the iterator holds: tables and the directory's lock."""
        self.iterator = None


class Database:
    """Created if absent. Raises as `RocksKeyValue` says at the opening, and what RocksDB raises after that:
    `shortage` and `translate` tell what it means. One call at a time.
    """

    def __init__(self, path: str, cache: BlockCache, write_buffer_bytes: int, *, read_only: bool) -> None:
        self._path = path
        self._block_cache = cache
        self._write_buffer_bytes = write_buffer_bytes
        # Weak: a scan that its caller dropped must not keep its iterator, which pins tables and the
        # directory's lock.
        self._scans: weakref.WeakSet[Scan] = weakref.WeakSet()
        self._no_sync = rocksdict.WriteOptions()
        self._ended = False
        self._lacking = ""
        """Why the database is closed while it is being replaced; "" at any other time."""
        self._sequence = 0
        """Up to where it was written when it was closed for that."""
        self._links = contextlib.ExitStack()
        """Removes the links that `_opened_by_links` makes."""
        _check_name(path)
        self._db = self._opened(read_only=read_only)

    def get(self, key: bytes) -> bytes | None:
        return self._db.get(key)

    def apply(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes]) -> None:
        """One batch, puts first: all of it or nothing. Not synced."""
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in puts:
            batch.put(key, value)
        for key in deletes:
            batch.delete(key)
        # A caller may only want to sync what was written before.
        if len(batch):
            self._db.write(batch, self._no_sync)

    def sequence(self) -> int:
        """The number of the last operation that was applied."""
        return self._db.latest_sequence_number()

    def sync(self) -> int:
        """All that was applied survives a power cut on return. Returns the number of its last operation."""
        sequence = self._db.latest_sequence_number()
        self._db.flush_wal(True)
        # Unsynced: the next sync carries it. A marker that a crash loses proves less, never anything wrong.
        self._db.delete(synced_marker(sequence), self._no_sync)
        return sequence

    def next_row(self, scan: Scan) -> tuple[bytes, bytes] | None:
        """The row after the one that the scan returned last, or its first one. None: it was the last one, and
        no block on the way was damaged.
        """
        iterator = scan.iterator
        try:
            if iterator is None:
                self._seek(scan)
                iterator = scan.iterator
                assert iterator is not None
            if scan.last is not None:
                iterator.next()
            if iterator.valid():
                key: bytes = iterator.key()
                row = key, iterator.value()
                # Set only with a row in hand: a retry after a shortage goes on behind what the caller has
                # got.
                scan.last = key
                return row
            iterator.status()
        except Exception:
            scan.end()
            raise
        finally:
            iterator = None
        return None

    def _seek(self, scan: Scan) -> None:
        """Make a new iterator for the scan, at the row that it has reached."""
        if self._ended:
            raise StorageError(f"{self._path}: closed{'' if scan.last is None else ' during a scan'}")
        while True:
            sequence = self._db.latest_sequence_number()
            iterator: rocksdict.RdictIter | None = scan.make_iterator(self._db)
            # A write between the two calls would give an iterator whose sequence number we do not know.
            if self._db.latest_sequence_number() == sequence:
                break
        if scan.last is not None and scan.sequence != sequence:
            iterator = None  # a traceback keeps this frame, and a live iterator the directory's lock
            raise OutOfDescriptors(
                f"{self._path}: cannot go on with a scan: what it reads was changed while nothing could be "
                "opened; try again"
            )
        self._scans.add(scan)
        scan.iterator, scan.sequence = iterator, sequence
        try:
            assert iterator is not None
            iterator.seek(scan.start if scan.last is None else scan.last)
            if scan.last is not None:
                iterator.status()
        finally:
            iterator = None

    def last_before(self, end: bytes, start: bytes) -> tuple[bytes, bytes] | None:
        """The row with the greatest key in [start, end), or None."""
        iterator: rocksdict.RdictIter | None = self._db.iter()
        try:
            assert iterator is not None
            iterator.seek_for_prev(end)
            # `seek_for_prev` stops at the key itself if it is there; the range excludes it.
            if iterator.valid() and iterator.key() >= end:
                iterator.prev()
            iterator.status()
            if not iterator.valid():
                return None
            key: bytes = iterator.key()
            return (key, iterator.value()) if key >= start else None
        finally:
            iterator = None  # a traceback may keep this frame

    def checkpoint(self, path: str) -> None:
        """See `RocksKeyValue.checkpoint`."""
        rocksdict.Checkpoint(self._db).create_checkpoint(path)

    def copy_files(self, path: str) -> None:
        """Copy all files into a new directory, durable on return; only after `go_back`, when none of them
        changes. StorageError.
        """
        disk = RealDisk()
        disk.make_directory(path)
        for name in disk.list(self._path):
            if name in _NOT_COPIED or not os.path.isfile(f"{self._path}/{name}"):
                continue  # RocksDB has no directories in its own
            copy = disk.create(f"{path}/{name}")
            try:
                for piece in disk.read_pieces(f"{self._path}/{name}", MIB):
                    copy.append(piece)
                copy.sync()
            finally:
                copy.close()
        disk.sync_directory(path)

    def memory_bytes(self) -> int:
        """Write buffers, table readers and the whole block cache (shared or not), as RocksDB counts."""
        names = ("rocksdb.cur-size-all-mem-tables", "rocksdb.estimate-table-readers-mem")
        counts = [0 if self._lacking else self._db.property_int_value(name) or 0 for name in names]
        return sum(counts) + self._block_cache.usage_bytes()

    def live_files(self) -> LiveFiles | None:
        """The files that the database needs now; None while it is closed."""
        if self._lacking or self._ended:
            return None
        tables = frozenset(str(table["name"]).lstrip("/") for table in self._db.live_files())
        # RocksDB's own words: the smallest number of a write-ahead log that still has to be kept.
        oldest_log = int(self._db.property_value("rocksdb.min-log-number-to-keep") or 0)
        return LiveFiles(tables, oldest_log)

    def begin_log(self) -> None:
        """Make tables of all that was written, and begin a new log, also if nothing was written since the
        last one was begun. Durable on return.
        """
        self.sync()  # its marker is a write, and without any RocksDB flushes nothing and keeps its log
        self._db.flush(True)

    def cut(self, sequence: int) -> None:
        """After `freeze`: remove every write behind `sequence` from the logs, durable on return."""
        cut_logs(RealDisk(), self._path, sequence)

    def freeze(self) -> None:
        """Change no file from now on. Waits for flushes and merges that are under way; closing flushes
        nothing.
        """
        self._db.cancel_all_background(True)

    # ---- closing, and opening again

    def end_scans(self) -> None:
        """Take the iterators from all scans, which get a StorageError if they go on; before `close`."""
        self._ended = True
        self._lacking = ""
        for scan in list(self._scans):
            scan.end()

    def flush_tables(self) -> None:
        """Tables are checksummed block by block, the log's tail is not: leave no log behind if possible."""
        try:
            self._db.flush(True)
        except Exception as error:
            reason = self.shortage(error)
            if not reason:
                raise
            log.warning("%s: closed with what was written last in its log: %s", self._path, reason)
            self._db.flush_wal(True)

    def close(self) -> None:
        with self._links:
            self._db.close()

    def replace(self, reason: str) -> None:
        """Close it and open it again, with all that was written. OutOfDescriptors leaves it closed; `reason`
        is what `shortage` says meanwhile.

        What was synced is in the log or in tables, and what was not is at least in the system's cache: each
        write put it there. Opening makes synced tables of it all and a new log. A batch is one record of the
        log, so that of the failed write is there completely or not at all.
        """
        # Already closed by an earlier attempt that could not open it.
        if not self._lacking:
            self._sequence = self._db.latest_sequence_number()
            # Their iterators would keep the lock of the directory, and the opening below would fail.
            for scan in list(self._scans):
                scan.end()
            self._lacking = reason
            try:
                self._db.close()
            except Exception as error:
                if not self.shortage(error):
                    raise translate(error, "close", self._path) from None
        database = self._opened(read_only=False)
        found = database.latest_sequence_number()
        # Counted, because RocksDB recovers up to the first record that it cannot read and reports success.
        if found < self._sequence:
            database.close()
            # RocksDB has cut its log shorter than what it had confirmed: that is damage, not to be hidden.
            raise StorageError(f"{self._path}: opened again, it has {found} of {self._sequence} writes")
        self._db = database
        self._lacking = ""
        self._continue_scans(found)

    def go_back(self, sequence: int) -> None:
        """Close it, remove every write behind `sequence`, and open it for reading only, which needs no space.

        Raises StorageError if the database does not have exactly the writes up to `sequence` then. It is
        closed after an error.
        """
        self._close_for_good()
        # RocksDB keeps a batch whose sync has failed, and shows it: as the failure was reported, the batch
        # must not be there after the next opening, nor before it.
        cut_logs(RealDisk(), self._path, sequence)
        self._open_at(sequence, read_only=True)

    def open_for_writing(self, sequence: int) -> None:
        """Undo `go_back`, once there is space. Errors as there; DiskFull leaves it as `go_back` did."""
        self._close_for_good()
        try:
            self._open_at(sequence, read_only=False)
        except DiskFull:
            # The opening has at most put the content of the logs into tables, too.
            self._open_at(sequence, read_only=True)
            raise

    def _close_for_good(self) -> None:
        for scan in list(self._scans):
            scan.end()
        # Without it, `close` flushes what is in memory, also a batch whose sync has failed. All that was
        # confirmed is in the log.
        self._db.cancel_all_background(True)
        # The flush that did not happen, and the full disk once more.
        with contextlib.suppress(Exception):
            self._db.close()

    def _open_at(self, sequence: int, *, read_only: bool) -> None:
        database = self._opened(read_only=read_only)
        found = database.latest_sequence_number()
        # More: RocksDB has found space, and a failed write is in a table. Less: a confirmed write is lost.
        if found != sequence:
            database.close()
            raise StorageError(
                f"{self._path}: opened after a full disk, it has {found} writes, not {sequence}"
            )
        self._db = database
        self._continue_scans(found)

    def _continue_scans(self, sequence: int) -> None:
        for scan in list(self._scans):
            if scan.last is not None and scan.sequence == sequence:
                # Now, before the next write. If it cannot be done the scan retries by itself.
                try:
                    self._seek(scan)
                except Exception:
                    scan.end()

    def has_room_to_open(self) -> bool:
        """Whether there is space to open it for writing: that makes tables of all that is in the logs."""
        disk = RealDisk()
        logs = sum(
            disk.size_of(f"{self._path}/{name}") for name in disk.list(self._path) if name.endswith(".log")
        )
        inodes = disk.free_inodes(self._path)
        return disk.free_bytes(self._path) >= 2 * logs + OPENING_BYTES and (
            inodes is None or inodes >= OPENING_FILES
        )

    def give_up(self) -> None:
        """It will not be opened again: what comes now finds it closed, and does not wait."""
        self._lacking = ""

    def shortage(self, error: Exception) -> str:
        """The system's words if this comes from a want of descriptors or memory, or ""."""
        if isinstance(error, rocksdict.DbClosedError):
            return self._lacking
        # By its text: the binding has no error codes.
        return shortage(str(error)) if type(error) is Exception else ""

    def _opened(self, *, read_only: bool) -> rocksdict.Rdict:
        # Before RocksDB opens them: a flipped bit in a length makes it drop all later writes in silence, and
        # one in a type makes it loop for ever.
        check_logs(self._path)
        if not read_only:
            _make_private_files()
        options = database_options(self._block_cache._cache, self._write_buffer_bytes)
        try:
            try:
                return rocksdict.Rdict(self._path, options, access_type=_access(read_only))
            except OSError:
                # Asked of the file system: the binding's errors have no `errno`.
                if not (
                    read_only and sys.platform != "win32" and os.statvfs(self._path).f_flag & os.ST_RDONLY
                ):
                    raise
                return self._opened_by_links(options)
        except Exception as error:
            raise translate(error, "open", self._path) from None

    def _opened_by_links(self, options: rocksdict.Options) -> rocksdict.Rdict:
        """On a read-only file system, where the binding cannot rewrite its file: in a directory elsewhere,
        with links to all others.
        """
        elsewhere = self._links.enter_context(tempfile.TemporaryDirectory(prefix="geminga-"))
        for name in os.listdir(self._path):
            if name == _BINDING_FILE:
                shutil.copyfile(f"{self._path}/{name}", f"{elsewhere}/{name}")
            elif name not in _NOT_COPIED:
                os.symlink(f"{os.path.abspath(self._path)}/{name}", f"{elsewhere}/{name}")
        return rocksdict.Rdict(elsewhere, options, access_type=_access(True))


def is_closed(error: Exception) -> bool:
    """Whether the binding says that the database is closed."""
    return isinstance(error, rocksdict.DbClosedError)


def translate(error: Exception, doing: str, path: str) -> Exception:
    """Ours for RocksDB's. An error that RocksDB did not raise (a TypeError, say) is a bug and is returned."""
    if isinstance(error, rocksdict.DbClosedError):
        return StorageError(f"{path}: closed")
    if isinstance(error, OSError):  # from the binding, about the file where it keeps its own settings
        if error.errno in SHORTAGES:
            return _out_of_descriptors(os.strerror(error.errno), doing, path)
        return storage_error(error, doing, os.path.join(path, _BINDING_FILE))
    if type(error) is not Exception:
        return error
    reason = shortage(str(error))
    return _out_of_descriptors(reason, doing, path) if reason else translated(str(error), doing, path)


def _out_of_descriptors(reason: str, doing: str, path: str) -> OutOfDescriptors:
    return OutOfDescriptors(f"{path}: cannot {doing} now: {reason}; try again")


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise StorageError(
            f"{path}: the name is not UTF-8, and RocksDB takes no other; rename the directory"
        ) from None


def _make_private_files() -> None:
    """RocksDB makes files at any time, on threads of its own, with the mode that the process' mask leaves.
    From now on that is the owner's part of it.
    """
    # For the process and for good, since RocksDB makes files on its own threads at times that are not ours.
    os.umask(os.umask(0o077) | 0o077)


def destroy(path: str) -> None:
    """Delete a database that is not open anywhere, damaged or not, and its directory. StorageError."""
    try:
        rocksdict.Rdict.destroy(path)
    except Exception as error:
        raise StorageError(f"{path}: cannot delete: {error}") from None


def _access(read_only: bool) -> rocksdict.AccessType:
    return rocksdict.AccessType.read_only() if read_only else rocksdict.AccessType.read_write()
