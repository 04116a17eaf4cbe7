"""The only door to RocksDB: an ordered map from bytes to bytes with atomic batches.

Facts about `rocksdict` that the shape of this file comes from, each held by a test:

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
  the write is applied again: see `_replace_database`.
- An iterator that could not open a table stays failed, and one of a `snapshot()` sees later writes. So a scan
  goes on with a new iterator, and only if nothing was written since it began: sequence numbers tell.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol, TypeVar

import rocksdict

from geminga.errors import StorageError
from geminga.limits import MIB
from geminga.storage.descriptor_wait import SHORTAGES, Attempts, DescriptorWait, OutOfDescriptors, can_open
from geminga.storage.disk_errors import storage_error
from geminga.storage.rocksdb_errors import shortage, translated
from geminga.storage.rocksdb_log_format import synced_marker
from geminga.storage.rocksdb_logs import check_logs
from geminga.storage.rocksdb_options import database_options

T = TypeVar("T")
log = logging.getLogger("geminga.storage")

_BINDING_FILE = "rocksdict-config.json"
"""Beside RocksDB's files; whatever its content, it is rewritten at each opening."""
REOPENING_FILES = 4
"""What opening a database again needs beside the descriptors that closing it released."""


class KeyValue(Protocol):
    """An ordered map. Keys compare as unsigned bytes. One writer thread at a time; readers on any thread."""

    def get(self, key: bytes) -> bytes | None:
        """The value or None. Sees each earlier `write`, synced or not. CorruptData: its block is damaged."""
        ...

    def write(
        self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = (), *, sync: bool
    ) -> None:
        """Apply all or nothing, puts first. With `sync` this and all earlier writes survive a power cut on
        return.

        Without it a crash may forget the write, but never an earlier one without this one. After a failure
        the map refuses every further write with StorageError: what the failed one left on disk is unknown.
        """
        ...

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Rows of [start, end) in key order, as of the call to the first `next`.

        Raises CorruptData (or StorageError) where a row cannot be read: a scan that ends by itself is
        complete.
        """
        ...

    def last_before(self, end: bytes, start: bytes) -> tuple[bytes, bytes] | None:
        """The row with the greatest key in [start, end), or None."""
        ...

    def flush(self) -> None:
        """All earlier writes survive a power cut on return."""
        ...

    def memory_bytes(self) -> int: ...

    def close(self) -> None:
        """Make all earlier writes durable and let the directory go. Scans still open raise StorageError."""
        ...


class BlockCache:
    """Memory for blocks read from disk, bounded, to be shared by all databases of a process."""

    def __init__(self, capacity_bytes: int) -> None:
        self._cache = rocksdict.Cache(capacity_bytes)

    def usage_bytes(self) -> int:
        return self._cache.get_usage()


class _Cursor:
    """A scan. Holds its RocksDB iterator, so that it can be taken from a scan that was never finished."""

    __slots__ = ("__weakref__", "iterator", "last", "sequence")

    def __init__(self) -> None:
        self.iterator: rocksdict.RdictIter | None = None
        """At `last`, or at the first row. None: to be made."""
        self.last: bytes | None = None
        """The key that was given last."""
        self.sequence = 0
        """That of the last write that the scan sees."""


class RocksKeyValue:
    """A RocksDB directory, created if absent. RocksDB syncs what is inside it; the directory's own entry in
    its parent is for the caller to sync (`Disk.make_directory`).

    Raises StorageError if another process has the directory open, CorruptData if a file that it names is
    missing or its write-ahead log or manifest is damaged (a torn last record is no damage: it was never
    acknowledged). `get` and short scans
    may read from disk; `write(sync=True)`, `flush` and `close` wait for it and belong on a thread. `write`
    and `flush` let other threads run while they sync.

    Where RocksDB lacks descriptors or memory to open a file, `descriptors` says whether to wait. Reads are
    tried again. So are writes, after the database was closed and opened in its place: nothing is confirmed
    before, and reads wait meanwhile. OutOfDescriptors if there is no waiting; for a write that is final, as
    any failure. A scan that was under way gets it, too, if it cannot go on as of its start.

    With `read_only` no byte of the directory changes: what is in the write-ahead log is read into memory,
    and writes raise StorageError. It must be there, and the caller sees to it that nothing writes meanwhile.
    """

    def __init__(
        self,
        path: str,
        *,
        block_cache: BlockCache | None = None,
        block_cache_bytes: int = 8 * MIB,
        write_buffer_bytes: int = 4 * MIB,
        descriptors: DescriptorWait | None = None,
        read_only: bool = False,
    ) -> None:
        self.path: Final = path
        self._read_only = read_only
        self._cache = block_cache or BlockCache(block_cache_bytes)
        self._write_buffer_bytes = write_buffer_bytes
        self._descriptors = descriptors or DescriptorWait()
        # Weak: a scan that its caller dropped must not keep its iterator, which pins tables and the
        # directory's lock.
        self._cursors: weakref.WeakSet[_Cursor] = weakref.WeakSet()
        self._failed: StorageError | None = None
        self._closed = False
        self._no_sync = rocksdict.WriteOptions()
        self._writing = threading.Lock()
        """Held by every call that may find that the database has to be opened again."""
        self._gate = threading.Lock()
        """Held by each read, which keeps the interpreter lock anyway, and while `_db` is replaced."""
        self._lacking = ""
        """Why the database is closed while it is being replaced; "" at any other time."""
        self._sequence = 0
        """Up to where it was written when it was closed for that."""
        _check_name(path)
        self._db = self._opened()

    def get(self, key: bytes) -> bytes | None:
        return self._read(lambda: self._db.get(key))

    def write(
        self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = (), *, sync: bool
    ) -> None:
        puts, deletes = list(puts), list(deletes)  # RocksDB takes a batch once

        def apply() -> None:
            batch = rocksdict.WriteBatch(raw_mode=True)
            for key, value in puts:
                batch.put(key, value)
            for key in deletes:
                batch.delete(key)
            if len(batch):
                self._db.write(batch, self._no_sync)
            if sync:
                self._sync()

        with self._writing:
            self._check_writable()
            self._change(apply, "write")

    def _sync(self) -> None:
        sequence = self._db.latest_sequence_number()
        self._db.flush_wal(True)
        # Unsynced: the next sync carries it. A marker that a crash loses proves less, never anything wrong.
        self._db.delete(synced_marker(sequence), self._no_sync)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        cursor = _Cursor()
        attempts: Attempts | None = None
        try:
            while True:
                try:
                    with self._gate:
                        row = self._next_row(cursor, start)
                except Exception as error:
                    attempts = self._read_failed(error, "scan", attempts)
                    continue
                if attempts is not None:
                    attempts.succeeded()
                    attempts = None
                if row is None or row[0] >= end:
                    return
                yield row
        finally:
            # Also for the sake of a traceback that keeps this frame.
            cursor.iterator = None

    def _next_row(self, cursor: _Cursor, start: bytes) -> tuple[bytes, bytes] | None:
        iterator = cursor.iterator
        try:
            if iterator is None:
                self._place(cursor, start)
                iterator = cursor.iterator
                assert iterator is not None
            if cursor.last is not None:
                iterator.next()
            if iterator.valid():
                key: bytes = iterator.key()
                row = key, iterator.value()
                # Set only with a row in hand: a retry after a shortage goes on behind what the caller has
                # got.
                cursor.last = key
                return row
            iterator.status()
        except Exception:
            cursor.iterator = None
            raise
        finally:
            iterator = None
        return None

    def _place(self, cursor: _Cursor, start: bytes) -> None:
        """Give it a new iterator, where the scan is."""
        if self._closed:
            raise StorageError(f"{self.path}: closed{'' if cursor.last is None else ' during a scan'}")
        while True:
            sequence = self._db.latest_sequence_number()
            iterator: rocksdict.RdictIter | None = self._db.iter()
            # A write between the two calls would give an iterator whose sequence number we do not know.
            if self._db.latest_sequence_number() == sequence:
                break
        if cursor.last is not None and cursor.sequence != sequence:
            iterator = None  # a traceback keeps this frame, and a live iterator the directory's lock
            raise OutOfDescriptors(
                f"{self.path}: cannot go on with a scan: what it reads was changed while nothing could be "
                "opened; try again"
            )
        self._cursors.add(cursor)
        cursor.iterator, cursor.sequence = iterator, sequence
        try:
            assert iterator is not None
            iterator.seek(start if cursor.last is None else cursor.last)
            if cursor.last is not None:
                iterator.status()
        finally:
            iterator = None

    def last_before(self, end: bytes, start: bytes) -> tuple[bytes, bytes] | None:
        return self._read(lambda: self._last_before(end, start))

    def _last_before(self, end: bytes, start: bytes) -> tuple[bytes, bytes] | None:
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

    def flush(self) -> None:
        with self._writing:
            self._check_writable()
            # By `flush_wal`, which gives up the interpreter while it syncs.
            self._change(self._sync, "sync")

    def checkpoint(self, path: str) -> None:
        """Make `path` a database with everything that was written so far, durable on return; its parent's
        entry is for the caller to sync. Tables are linked, not copied, where that is the same disk.

        Blocking: it waits for a flush, and writes wait for it. StorageError if `path` exists.
        """

        def copy() -> None:
            rocksdict.Checkpoint(self._db).create_checkpoint(path)

        with self._writing:
            self._check_writable()
            self._change(copy, f"copy to {path}", is_final=False)

    def memory_bytes(self) -> int:
        """Write buffers, table readers and this database's whole block cache (shared or not), as RocksDB
        counts.
        """
        names = ("rocksdb.cur-size-all-mem-tables", "rocksdb.estimate-table-readers-mem")
        with self._gate:
            counts = [0 if self._lacking else self._db.property_int_value(name) or 0 for name in names]
        return sum(counts) + self._cache.usage_bytes()

    def close(self) -> None:
        with self._writing:
            if self._closed:
                return
            with self._gate:
                self._closed = True
                self._lacking = ""
                for cursor in list(self._cursors):
                    cursor.iterator = None
            try:
                # After a failure nothing is flushed: RocksDB's state may be ahead of what is on the disk.
                if self._failed is None and not self._read_only:
                    self._flush_tables()
            except Exception as error:
                raise self._fail(error, "flush") from None
            finally:
                self._close_database()

    def _flush_tables(self) -> None:
        """Tables are checksummed block by block, the log's tail is not: leave no log behind if possible."""
        try:
            self._db.flush(True)
        except Exception as error:
            reason = self._shortage(error)
            if not reason:
                raise
            log.warning("%s: closed with what was written last in its log: %s", self.path, reason)
            self._db.flush_wal(True)

    def _close_database(self) -> None:
        try:
            self._db.close()
        except Exception as error:
            # After a failed write RocksDB reports it here once more; its waiters were told already.
            if self._failed is None and not self._shortage(error):
                raise self._translate(error, "close") from None

    # ---- when nothing can be opened

    def _read(self, call: Callable[[], T]) -> T:
        """Call it until it finds its tables and the database open."""
        attempts: Attempts | None = None
        while True:
            try:
                with self._gate:
                    result = call()
            except Exception as error:
                attempts = self._read_failed(error, "read", attempts)
            else:
                if attempts is not None:
                    attempts.succeeded()
                return result

    def _read_failed(self, error: Exception, doing: str, attempts: Attempts | None) -> Attempts:
        """Return when it may be tried again; raise if not."""
        reason = self._shortage(error)
        if not reason:
            raise self._translate(error, doing) from None
        attempts = attempts or Attempts(self._descriptors, self.path, doing)
        attempts.failed(reason)
        return attempts

    def _change(self, call: Callable[[], None], doing: str, *, is_final: bool = True) -> None:
        """Call it, with the database opened again before each retry. What failed for any other reason than a
        shortage, or must not be waited for, leaves it refusing writes if `is_final`.
        """
        attempts: Attempts | None = None
        while True:
            try:
                call()
            except Exception as error:
                reason = self._shortage(error)
                if not reason:
                    raise (self._fail if is_final else self._translate)(error, doing) from None
            else:
                if attempts is not None:
                    attempts.succeeded()
                return
            attempts = attempts or Attempts(self._descriptors, self.path, doing)
            try:
                self._open_again(reason, attempts)
            except StorageError as error:
                with self._gate:
                    self._failed, self._lacking = error, ""
                raise

    def _open_again(self, reason: str, attempts: Attempts) -> None:
        """Blocking. While there is no hope of opening it again, it stays open for readers."""
        attempts.failed(reason)
        # Closed too early, it could not be opened again, and readers would lose what they still can read.
        while not can_open(REOPENING_FILES):
            attempts.failed(reason)
        while True:
            try:
                with self._gate:
                    self._replace_database(reason)
            except OutOfDescriptors:
                attempts.failed(reason)
            else:
                return

    def _replace_database(self, reason: str) -> None:
        """Close it and open it again, with all that was written. OutOfDescriptors leaves it closed.

        What was synced is in the log or in tables, and what was not is at least in the system's cache: each
        write put it there. Opening makes synced tables of it all and a new log. A batch is one record of the
        log, so that of the failed write is there completely or not at all.
        """
        # Already closed by an earlier try that could not open it.
        if not self._lacking:
            self._sequence = self._db.latest_sequence_number()
            for cursor in list(self._cursors):
                cursor.iterator = None
            self._lacking = reason
            try:
                self._db.close()
            except Exception as error:
                if not self._shortage(error):
                    raise self._translate(error, "close") from None
        database = self._opened()
        found = database.latest_sequence_number()
        if found < self._sequence:
            database.close()
            # RocksDB has cut its log shorter than what it had confirmed: that is damage, not to be hidden.
            raise StorageError(f"{self.path}: opened again, it has {found} of {self._sequence} writes")
        self._db = database
        self._lacking = ""
        for cursor in list(self._cursors):
            if cursor.last is not None and cursor.sequence == found:
                # Now, before the next write. If it cannot be done the scan tries again itself.
                try:
                    self._place(cursor, b"")
                except Exception:
                    cursor.iterator = None

    def _shortage(self, error: Exception) -> str:
        """The system's words if this comes from a want of descriptors or memory, or ""."""
        if isinstance(error, rocksdict.DbClosedError):
            return self._lacking
        # By its text: the binding has no error codes.
        return shortage(str(error)) if type(error) is Exception else ""

    def _opened(self) -> rocksdict.Rdict:
        # Before RocksDB opens them: a flipped bit in a length makes it drop all later writes in silence, and
        # one in a type makes it loop for ever.
        check_logs(self.path)
        if not self._read_only:
            _make_private_files()
        options = database_options(self._cache._cache, self._write_buffer_bytes)
        try:
            return rocksdict.Rdict(self.path, options, access_type=_access(self._read_only))
        except Exception as error:
            raise self._translate(error, "open") from None

    def _check_writable(self) -> None:
        if self._failed is not None:
            raise self._refusal(self._failed) from self._failed
        if self._closed:
            raise StorageError(f"{self.path}: closed")
        if self._read_only:
            raise StorageError(f"{self.path}: opened for reading only")

    def _fail(self, error: Exception, doing: str) -> Exception:
        translated = self._translate(error, doing)
        if isinstance(translated, StorageError):
            self._failed = translated
        return translated

    def _refusal(self, failure: StorageError) -> StorageError:
        return StorageError(f"{self.path}: refused after an earlier failure: {failure}")

    def _out_of_descriptors(self, reason: str, doing: str) -> OutOfDescriptors:
        return OutOfDescriptors(f"{self.path}: cannot {doing} now: {reason}; try again")

    def _translate(self, error: Exception, doing: str) -> Exception:
        """Ours for RocksDB's. Anything that RocksDB did not raise (a TypeError, say) is a bug and stays as it
        is.
        """
        if isinstance(error, rocksdict.DbClosedError):
            if self._failed is not None:
                return self._refusal(self._failed)
            return StorageError(f"{self.path}: closed")
        if isinstance(error, OSError):  # from the binding, about the file where it keeps its own settings
            if error.errno in SHORTAGES:
                return self._out_of_descriptors(os.strerror(error.errno), doing)
            return storage_error(error, doing, os.path.join(self.path, _BINDING_FILE))
        if type(error) is not Exception:
            return error
        reason = shortage(str(error))
        return self._out_of_descriptors(reason, doing) if reason else translated(str(error), doing, self.path)


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
