"""The only way to RocksDB: an ordered map from bytes to bytes with atomic batches.

`rocksdb.py` has the database itself, and facts about its binding. Here a call that fails for lack of
descriptors or memory is retried if that is allowed, a write that finds the disk full is taken back, and any
other failed write is final.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Protocol, TypeVar

from geminga.errors import StorageError
from geminga.limits import MIB
from geminga.storage.descriptor_wait import Attempts, DescriptorWait, OutOfDescriptors, can_open
from geminga.storage.disk_errors import DiskFull
from geminga.storage.rocksdb import BlockCache, Database, Scan, is_closed, translate
from geminga.storage.rocksdb_files import DatabaseFiles, LiveFiles

T = TypeVar("T")
log = logging.getLogger("geminga.storage")

REOPENING_FILES = 4
"""The files that opening a database again needs beside the descriptors that closing it has released."""


class KeyValue(Protocol):
    """An ordered map. Keys compare as unsigned bytes. One writer thread at a time; readers on any thread."""

    def get(self, key: bytes) -> bytes | None:
        """The value or None. Sees each earlier `write`, synced or not. Raises CorruptData if its block is
        damaged.
        """
        ...

    def write(
        self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = (), *, sync: bool
    ) -> None:
        """Apply a batch, puts first: all or nothing.

        With `sync`, this and all earlier writes are durable on return. Without it, a crash may lose the
        write, but never an earlier one without this one.

        Raises DiskFull if there is no space: the batch is not in the map then, nor after any restart, and
        writes succeed again once there is space. After any other failure the map refuses every further write
        with StorageError, because the state of the failed one on disk is unknown.
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
        """Make all earlier writes durable and release the directory. Open scans raise StorageError
        afterwards.
        """
        ...


class RocksKeyValue:
    """A RocksDB directory, created if absent. RocksDB syncs its content; the caller syncs the directory's
    own entry in its parent (`Disk.make_directory`).

    Raises StorageError if another process has the directory open. Raises CorruptData if a file that the
    database names is missing, or if its write-ahead log or manifest is damaged. A torn last record is no
    damage, because it was never acknowledged.

    `get` and short scans may read from disk. `write(sync=True)`, `flush` and `close` wait for the disk and
    belong on a thread. `write` and `flush` let other threads run while they sync.

    If RocksDB lacks descriptors or memory to open a file, `descriptors` decides whether to wait. Reads are
    retried. Writes are retried after the database was closed and opened again: nothing is confirmed before,
    and reads wait meanwhile. Without waiting, calls raise OutOfDescriptors; for a write that is final, like
    any failure. A scan that was under way raises it, too, if it cannot continue with the state of its start.

    On a full disk a write raises DiskFull, and reads go on. Each further write looks for space first, raises
    DiskFull at once if there is too little, and otherwise opens the database for writing again.

    With `read_only` no byte of the directory changes: the write-ahead log is read into memory, and writes
    raise StorageError. The directory must exist, and the caller ensures that no process writes to it
    meanwhile.
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
        self._descriptors = descriptors or DescriptorWait()
        self._failed: StorageError | None = None
        # The first failure is kept for good. What a failed write or sync left on the disk is unknown, and a
        # later sync may report success for pages that the kernel has dropped.
        self._full: DiskFull | None = None
        """Why the database is open for reading only until there is space."""
        self._is_behind = False
        """Whether the log may have a batch that was reported as failed."""
        self._closed = False
        self._writing = threading.Lock()
        """Held by every call that may have to open the database again."""
        self._gate = threading.Lock()
        """Held by each read, which keeps the interpreter lock anyway, and while the database is replaced."""
        cache = block_cache or BlockCache(block_cache_bytes)
        self._database = Database(path, cache, write_buffer_bytes, read_only=read_only)
        self._files = None if read_only else DatabaseFiles(path, self._live_files)
        self._confirmed = self._database.sequence()
        """The sequence number of the last write that has succeeded."""
        self.found_changes: Final = self._confirmed
        """How many changes it had when it was opened, by RocksDB's sequence numbers: they grow with each row
        that is written or deleted, and with each sync.
        """
        self.synced_changes = 0
        """Up to which of them all is durable, by the last sync since it was opened; 0 before the first."""

    def get(self, key: bytes) -> bytes | None:
        return self._read(lambda: self._database.get(key))

    def write(
        self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = (), *, sync: bool
    ) -> None:
        # A retry applies the batch to another database, and RocksDB takes a batch once.
        puts, deletes = list(puts), list(deletes)

        def apply() -> None:
            self._database.apply(puts, deletes)
            if sync:
                self._sync()

        with self._writing:
            self._check_writable()
            self._find_space()
            self._change(apply, "write")

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        scan = Scan(start, end)
        attempts: Attempts | None = None
        try:
            while True:
                try:
                    with self._gate:
                        row = self._database.next_row(scan)
                except Exception as error:
                    attempts = self._read_failed(error, "scan", attempts)
                    continue
                if attempts is not None:
                    attempts.succeeded()
                    attempts = None
                if row is None:
                    return
                yield row
        finally:
            # Also for the sake of a traceback that keeps this frame.
            scan.end()

    def last_before(self, end: bytes, start: bytes) -> tuple[bytes, bytes] | None:
        return self._read(lambda: self._database.last_before(end, start))

    def flush(self) -> None:
        with self._writing:
            self._check_writable()
            self._find_space()
            # With the writer's lock, although it writes nothing of its own: the database may have to be
            # opened again.
            self._change(self._sync, "sync")

    def _sync(self) -> None:
        self.synced_changes = self._database.sync()

    def checkpoint(self, path: str) -> None:
        """Create a database at `path` with everything that was written so far, durable on return. The caller
        syncs the entry in its parent.

        Tables are linked, not copied, if that is the same disk. Blocking: waits for a flush, and writes wait
        for this. Raises StorageError if `path` exists.
        """
        with self._writing:
            self._check_writable()
            if self._full is None:
                # Not final: a copy that fails says nothing about the database, and the disk of the copy may
                # be another one.
                try:
                    return self._change(
                        lambda: self._database.checkpoint(path), f"copy to {path}", is_final=False
                    )
                except DiskFull:
                    if self._full is None:
                        raise
            # RocksDB cannot flush its log into a table on the full disk. Its files do not change then.
            self._database.copy_files(path)

    def memory_bytes(self) -> int:
        """Bytes of write buffers, table readers and the database's whole block cache (shared or not), as
        RocksDB counts them.
        """
        # The gate, since the database may be closed for a moment while it is replaced.
        with self._gate:
            return self._database.memory_bytes()

    # ---- files that something else has removed

    def gone_files(self) -> list[str]:
        """The paths of files that the database needs and that do not exist, or that of its directory if it is
        another one than at the start; RocksDB itself goes on without them. For one thread at a time. Raises
        StorageError if the directory cannot be listed.
        """
        assert self._files is not None, "read-only"
        return self._files.gone()

    def write_files_again(self) -> list[str]:
        """Bring all that was written into files that have names, durable on return, and refuse further
        writes. Returns the paths of needed files that are still gone: nothing has them open. Blocking.
        """
        assert self._files is not None, "read-only"
        with self._writing:
            if self._failed is None and self._full is None and not self._closed and self._files.is_in_place:
                try:
                    self._database.begin_log()
                except Exception as error:
                    # The log then keeps what it has, and is copied like any other file.
                    log.warning("%s", translate(error, "flush", self.path))
            # Before the copies: a merge that ends later would write to the removed manifest that its tables
            # are gone, and delete them.
            if not self._closed:
                self._database.freeze()
            self._failed = self._failed or StorageError(f"{self.path}: files were removed")
            still = self._files.write_again()
            if self._is_behind and not still:
                # The log has the batch whose failure was reported.
                self._database.cut(self._confirmed)
            return still

    def _live_files(self) -> LiveFiles | None:
        with self._gate:
            try:
                return None if self._closed else self._database.live_files()
            except Exception as error:
                raise self._translate(error, "look") from None

    def close(self) -> None:
        with self._writing:
            if self._closed:
                return
            with self._gate:
                # Under the gate: a scan on another thread is between two rows then, and finds its iterator
                # gone, not freed beneath it.
                self._closed = True
                self._database.end_scans()
            try:
                # After a failure nothing is flushed: RocksDB's state may be ahead of what is on the disk.
                if self._failed is None and self._full is None and not self._read_only:
                    self._database.flush_tables()
            except Exception as error:
                failure = self._fail(error, "flush")
                if not isinstance(failure, DiskFull):
                    raise failure from None
                # Each write was synced into the log, or may be lost: the next opening reads it from there.
                log.warning("%s: closed with what was written last in its log: %s", self.path, failure)
            finally:
                self._close_database()
                if self._files is not None:
                    self._files.move_on()

    def _close_database(self) -> None:
        try:
            self._database.close()
        except Exception as error:
            # After a failed write RocksDB reports it here once more; its waiters were told already.
            if self._failed is None and not self._database.shortage(error):
                raise self._translate(error, "close") from None

    # ---- when nothing can be opened

    def _read(self, call: Callable[[], T]) -> T:
        """Make the call, and repeat it until it finds its tables and the database open."""
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
        """Return when the read may be retried; raise the error otherwise."""
        reason = self._database.shortage(error)
        if not reason:
            raise self._translate(error, doing) from None
        attempts = attempts or Attempts(self._descriptors, self.path, doing)
        attempts.failed(reason)
        return attempts

    def _change(self, call: Callable[[], None], doing: str, *, is_final: bool = True) -> None:
        """Make the call, and repeat it after opening the database again. If the call fails for another
        reason than a shortage, or if waiting is not allowed, and `is_final` is set, the database refuses
        writes from then on.
        """
        attempts: Attempts | None = None
        while True:
            try:
                call()
            except Exception as error:
                reason = self._database.shortage(error)
                if not reason:
                    failure = self._translate(error, doing)
                    # A checkpoint names the disk of the copy instead.
                    if isinstance(failure, DiskFull) and (is_final or f"{self.path}/" in str(error)):
                        self._go_back(failure)
                    elif is_final and isinstance(failure, StorageError):
                        self._failed = failure
                    raise failure from None
            else:
                if attempts is not None:
                    attempts.succeeded()
                self._confirmed = self._database.sequence()
                return
            attempts = attempts or Attempts(self._descriptors, self.path, doing)
            try:
                self._open_again(reason, attempts)
            except StorageError as error:
                with self._gate:
                    # Final, as any failed write: the batch is not in the database, and later writes without
                    # it would break the order that callers rely on.
                    self._failed = error
                    self._database.give_up()
                raise

    def _open_again(self, reason: str, attempts: Attempts) -> None:
        """Blocking. Unless it can probably be opened again, the database stays open for readers."""
        attempts.failed(reason)
        # Closed too early, it could not be opened again, and readers would lose what they still can read.
        while not can_open(REOPENING_FILES):
            attempts.failed(reason)
        while True:
            try:
                with self._gate:
                    self._database.replace(reason)
            except OutOfDescriptors:
                attempts.failed(reason)
            else:
                return

    # ---- on a full disk

    def _go_back(self, full: DiskFull) -> None:
        """Make the state before the failed write the only one, in memory and on disk."""
        self._check_in_place()
        log.error("%s: changes are refused until there is space: %s", self.path, full)
        try:
            with self._gate:
                self._database.go_back(self._confirmed)
                if self._files is not None:
                    self._files.stand_still()
        except StorageError as error:
            self._failed = error
            raise
        self._full = full

    def _check_in_place(self) -> None:
        """Before the database is closed to be opened again: it would close the only descriptors of removed
        files. Raises StorageError, which is final.
        """
        if self._files is not None and (gone := self._files.gone()):
            self._failed = StorageError(f"{gone[0]}: removed, moved, replaced or cut short")
            self._is_behind = True
            raise self._failed

    def _find_space(self) -> None:
        """Open the database for writing again after a full disk. Raises DiskFull if there is no space."""
        if self._full is None:
            return
        if not self._database.has_room_to_open():
            raise DiskFull(str(self._full))
        assert self._files is not None, "read-only"
        # An opening would take a log that is gone for empty, and forget that it was there.
        if gone := self._files.gone():
            raise DiskFull(f"{gone[0]}: removed, moved, replaced or cut short; before that: {self._full}")
        try:
            with self._gate:
                self._files.move_on()
                try:
                    self._database.open_for_writing(self._confirmed)
                except DiskFull:
                    self._files.stand_still()
                    raise
        except DiskFull:
            raise
        except StorageError as error:
            self._failed = error
            raise
        log.warning("%s: there is space, changes are written again", self.path)
        self._full = None

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

    def _translate(self, error: Exception, doing: str) -> Exception:
        # A database that could not be opened again says only that it is closed; the failure says why.
        if self._failed is not None and is_closed(error):
            return self._refusal(self._failed)
        return translate(error, doing, self.path)
