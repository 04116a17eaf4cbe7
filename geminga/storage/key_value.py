"""The only door to RocksDB: an ordered map from bytes to bytes with atomic batches.

Facts about `rocksdict` that the shape of this file comes from, each held by a test:

- A block that fails its checksum makes an iterator *end*, without an exception. Only `status()` tells. So
  every scan asks for the status after its last row, and nobody else may touch an iterator.
- `write()` keeps the interpreter lock while it syncs; `flush_wal()` gives it up. So a synced write is an
  unsynced write followed by `flush_wal()`, and a slow disk does not stop the event loop.
- A live iterator keeps the database, and with it the directory's lock, open after `close()`. So iterators are
  let go by `close()` even if a half-used scan is still referenced.
- What RocksDB holds to be the torn end of a log may be damage to synced data, and some damage makes it loop
  for ever. So each sync leaves a mark in the log, and logs are checked before RocksDB reads them
  (`rocksdb_log_format`).
- It makes files with mode 0644, and has no option for another one. So opening one for writing narrows the
  mask of the process.
- All errors are plain `Exception`s that carry RocksDB's text.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import Final, Protocol

import rocksdict

from geminga.errors import CorruptData, StorageError
from geminga.limits import KIB, MIB
from geminga.storage.disk import storage_error
from geminga.storage.rocksdb_log_format import synced_marker
from geminga.storage.rocksdb_logs import check_logs

if sys.platform != "win32":
    import resource

_FILE_MISSING = "IO error: No such file or directory: While open"
"""A database that names a file which is not there."""
_BINDING_FILE = "rocksdict-config.json"
"""Beside RocksDB's files; whatever its content, it is written anew at each opening."""
OPEN_FILES_MAX, OPEN_FILES_MIN = 64, 20
"""How many files a database keeps open; RocksDB takes no less than the latter."""
UNCOUNTED_FILES = 16
"""What it opens beside them for a while: logs, the manifest, tables that are written, those of long scans."""
WAL_BYTES_MAX_FACTOR = 4
"""The write-ahead log may grow to this many write buffers before RocksDB flushes the oldest."""


def open_files_max(process_files_max: int) -> int:
    """How many files one database keeps open, in a process that may have so many open."""
    return min(OPEN_FILES_MAX, max(OPEN_FILES_MIN, process_files_max // 16))


def database_files_max(process_files_max: int) -> int:
    """The most that one database has open at any time."""
    return open_files_max(process_files_max) + UNCOUNTED_FILES


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
    """Holds a RocksDB iterator so that `close()` can take it away from a scan that nobody finished."""

    __slots__ = ("__weakref__", "iterator")

    def __init__(self, iterator: rocksdict.RdictIter) -> None:
        self.iterator: rocksdict.RdictIter | None = iterator


class RocksKeyValue:
    """A RocksDB directory, created if absent. RocksDB syncs what is inside it; the directory's own entry in
    its parent is for the caller to sync (`Disk.make_directory`).

    Raises StorageError if another process has the directory open, CorruptData if a file that it names is
    missing or its write-ahead log or manifest is damaged (a torn last record is no damage: it was never
    acknowledged). `get` and short scans
    may read from disk; `write(sync=True)`, `flush` and `close` wait for it and belong on a thread. `write`
    and `flush` let other threads run while they sync.

    With `read_only` no byte of the directory changes: what is in the write-ahead log is read into memory,
    and writes raise StorageError. It must be there, and the caller sees to it that nobody writes meanwhile.
    """

    def __init__(
        self,
        path: str,
        *,
        block_cache: BlockCache | None = None,
        block_cache_bytes: int = 8 * MIB,
        write_buffer_bytes: int = 4 * MIB,
        read_only: bool = False,
    ) -> None:
        self.path: Final = path
        self._read_only = read_only
        self._cache = block_cache or BlockCache(block_cache_bytes)
        self._cursors: weakref.WeakSet[_Cursor] = weakref.WeakSet()
        self._failed: StorageError | None = None
        self._closed = False
        self._no_sync = rocksdict.WriteOptions()
        _check_name(path)
        check_logs(path)
        if not read_only:
            _make_private_files()
        try:
            self._db = rocksdict.Rdict(
                path, _options(self._cache._cache, write_buffer_bytes), access_type=_access(read_only)
            )
        except Exception as error:
            raise self._translate(error, "open") from None

    def get(self, key: bytes) -> bytes | None:
        try:
            value: bytes | None = self._db.get(key)
        except Exception as error:
            raise self._translate(error, "read") from None
        return value

    def write(
        self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = (), *, sync: bool
    ) -> None:
        self._check_writable()
        batch = rocksdict.WriteBatch(raw_mode=True)
        for key, value in puts:
            batch.put(key, value)
        for key in deletes:
            batch.delete(key)
        try:
            if len(batch):
                self._db.write(batch, self._no_sync)
            if sync:
                self._sync()
        except Exception as error:
            raise self._fail(error, "write") from None

    def _sync(self) -> None:
        sequence = self._db.latest_sequence_number()
        self._db.flush_wal(True)
        self._db.delete(synced_marker(sequence), self._no_sync)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        cursor = self._open_cursor()
        iterator = cursor.iterator
        try:
            assert iterator is not None
            iterator.seek(start)
            while iterator.valid():
                key: bytes = iterator.key()
                if key >= end:
                    break
                row = key, iterator.value()
                # While the consumer works, close() must be able to free the iterator.
                iterator = None
                yield row
                iterator = cursor.iterator
                if iterator is None:
                    raise StorageError(f"{self.path}: closed during a scan")
                iterator.next()
            iterator.status()
        except Exception as error:
            raise self._translate(error, "scan") from None
        finally:
            # Also for the sake of a traceback that keeps this frame.
            cursor.iterator = iterator = None

    def last_before(self, end: bytes, start: bytes) -> tuple[bytes, bytes] | None:
        cursor = self._open_cursor()
        iterator = cursor.iterator
        try:
            assert iterator is not None
            iterator.seek_for_prev(end)
            if iterator.valid() and iterator.key() >= end:
                iterator.prev()
            iterator.status()
            if not iterator.valid():
                return None
            key: bytes = iterator.key()
            return (key, iterator.value()) if key >= start else None
        except Exception as error:
            raise self._translate(error, "read") from None
        finally:
            cursor.iterator = iterator = None

    def flush(self) -> None:
        self._check_writable()
        try:
            self._sync()
        except Exception as error:
            raise self._fail(error, "sync") from None

    def checkpoint(self, path: str) -> None:
        """Make `path` a database with everything that was written so far, durable on return; its parent's
        entry is for the caller to sync. Tables are linked, not copied, where that is the same disk.

        Blocking: it waits for a flush. StorageError if `path` exists.
        """
        self._check_writable()
        try:
            rocksdict.Checkpoint(self._db).create_checkpoint(path)
        except Exception as error:
            raise self._translate(error, f"copy to {path}") from None

    def memory_bytes(self) -> int:
        """Write buffers, table readers and this database's whole block cache (shared or not), as RocksDB
        counts.
        """
        names = ("rocksdb.cur-size-all-mem-tables", "rocksdb.estimate-table-readers-mem")
        return sum(self._db.property_int_value(name) or 0 for name in names) + self._cache.usage_bytes()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for cursor in list(self._cursors):
            cursor.iterator = None
        try:
            if self._failed is None and not self._read_only:
                # Tables are checksummed block by block, the log's tail is not: leave no log behind.
                self._db.flush(True)
        except Exception as error:
            raise self._fail(error, "flush") from None
        finally:
            self._close_database()

    def _close_database(self) -> None:
        try:
            self._db.close()
        except Exception as error:
            # After a failed write RocksDB reports it here once more; whoever waited was told already.
            if self._failed is None:
                raise self._translate(error, "close") from None

    def _open_cursor(self) -> _Cursor:
        try:
            cursor = _Cursor(self._db.iter())
        except Exception as error:
            raise self._translate(error, "read") from None
        self._cursors.add(cursor)
        return cursor

    def _check_writable(self) -> None:
        if self._failed is not None:
            raise StorageError(
                f"{self.path}: refused after an earlier failure: {self._failed}"
            ) from self._failed
        if self._closed:
            raise StorageError(f"{self.path}: closed")
        if self._read_only:
            raise StorageError(f"{self.path}: opened for reading only")

    def _fail(self, error: Exception, doing: str) -> Exception:
        translated = self._translate(error, doing)
        if isinstance(translated, StorageError):
            self._failed = translated
        return translated

    def _translate(self, error: Exception, doing: str) -> Exception:
        """Ours for RocksDB's. Anything that RocksDB did not raise (a TypeError, say) is a bug and stays as it
        is.
        """
        if isinstance(error, rocksdict.DbClosedError):
            return StorageError(f"{self.path}: closed")
        if isinstance(error, OSError):  # from the binding, about the file where it keeps its own settings
            return storage_error(error, doing, os.path.join(self.path, _BINDING_FILE))
        if type(error) is not Exception:
            return error
        text = str(error)
        if "/LOCK" in text and "lock" in text:
            return StorageError(
                f"{self.path}: in use by another process, or opened twice in this one ({text})"
            )
        if text.startswith("Corruption"):
            return CorruptData(f"{self.path}: damaged, cannot {doing}: {text}")
        if doing != "write" and text.startswith(_FILE_MISSING):
            return CorruptData(f"{self.path}: damaged, a file is missing, cannot {doing}: {text}")
        return StorageError(f"{self.path}: cannot {doing}: {text}")


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
    os.umask(os.umask(0o077) | 0o077)


def destroy(path: str) -> None:
    """Delete a database that nobody has open, damaged or not, and its directory. StorageError."""
    try:
        rocksdict.Rdict.destroy(path)
    except Exception as error:
        raise StorageError(f"{path}: cannot delete: {error}") from None


def _access(read_only: bool) -> rocksdict.AccessType:
    return rocksdict.AccessType.read_only() if read_only else rocksdict.AccessType.read_write()


def _process_files_max() -> int:
    if sys.platform == "win32":
        return OPEN_FILES_MAX * 16
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return OPEN_FILES_MAX * 16 if soft == resource.RLIM_INFINITY else soft


def _options(cache: rocksdict.Cache, write_buffer_bytes: int) -> rocksdict.Options:
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    # Cut the log at the first record that is not intact: by `check_logs` all behind it was never synced.
    options.set_wal_recovery_mode(rocksdict.DBRecoveryMode.point_in_time())
    options.set_paranoid_checks(True)
    options.set_write_buffer_size(write_buffer_bytes)
    options.set_max_write_buffer_number(2)
    options.set_max_total_wal_size(WAL_BYTES_MAX_FACTOR * write_buffer_bytes)
    options.set_max_open_files(open_files_max(_process_files_max()))
    options.set_max_file_opening_threads(1)
    options.set_table_cache_num_shard_bits(2)
    options.set_max_background_jobs(2)
    options.set_compression_type(rocksdict.DBCompressionType.none())
    # RocksDB's own diary: one small file, no periodic statistics.
    options.set_keep_log_file_num(1)
    options.set_max_log_file_size(MIB)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(cache)
    table.set_block_size(8 * KIB)
    table.set_bloom_filter(10, False)
    # Indexes and filters live in the bounded cache too, so that memory does not grow with the data.
    table.set_cache_index_and_filter_blocks(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    options.set_block_based_table_factory(table)
    return options
