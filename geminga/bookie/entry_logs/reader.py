"""Reads entry logs, with a check of each record, and deletes logs without a living ledger.

Blocking; on any thread.
"""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator

from geminga.bookie.entry_logs.entry_log_format import FooterBytes
from geminga.bookie.entry_logs.log_ends import is_closed, other_log_in_header
from geminga.bookie.entry_logs.scan import read_footer_bytes, read_names, records_bytes
from geminga.bookie.index.index_format import Row
from geminga.bookie.records.file_names import ENTRY_LOG_SUFFIX, entry_log_path, ids_in
from geminga.bookie.records.ledger_name import LedgerName
from geminga.bookie.records.records import Segment, compact, damaged_record
from geminga.errors import CorruptData, StorageError
from geminga.storage.disk import Disk, File
from geminga.storage.removed_files import write_again

# An open costs more than a short read, and a broker with a long backlog has hundreds of logs: a descriptor
# for each would take those that connections need (`server/descriptors.py` divides them).
OPEN_LOGS_MAX = 32


class DamagedRecord(CorruptData):
    """An entry's record is not what was written there, or its log is missing."""


class _OpenLog:
    __slots__ = ("doomed", "file", "readers")

    def __init__(self, file: File) -> None:
        self.file = file
        self.readers = 0
        self.doomed = False


class EntryLogs:
    """All entry logs of a directory. A few stay open for reading, until `close`."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.directory = directory
        self._disk = disk
        # Reads run on several worker threads at once, and a deletion on another.
        self._lock = threading.Lock()
        self._open: OrderedDict[int, _OpenLog] = OrderedDict()
        self._closed = False

    def ids(self) -> list[int]:
        """The ids of the existing files. Raises StorageError if a file has an id that no bookie assigns."""
        return ids_in(self.directory, self._disk.list(self.directory), ENTRY_LOG_SUFFIX)

    def is_there(self, log_id: int) -> bool:
        return self._disk.exists(entry_log_path(self.directory, log_id))

    def load(self, ledger_id: int, row: Row, first: int, last: int) -> Segment:
        """Entries first..last of a row. Raises DamagedRecord, with file and offset, if the first entry is
        damaged or the file is missing. If a later entry is damaged, returns the entries before it.
        """
        index = first - row.first
        begin = row.ends[index - 1] if index else 0
        ends = row.ends[index : last - row.first + 1]
        try:
            with self._pinned(row.log_id) as file:
                data = file.pread(row.offset + begin, ends[-1] - begin)
        except StorageError as error:
            # Files that are gone count as damage, so that the read is healed from a journal or named once; an
            # error of the disk itself must not be mistaken for that, since it ends the bookie.
            if self.is_there(row.log_id):
                raise
            raise DamagedRecord(str(error)) from error
        segment = Segment(
            ledger_id, first, data, 0, compact([end - begin for end in ends] if begin else ends)
        )
        # On every read, although records were checked when they were written: bits flip on disks, and a
        # consumer must never get bytes that its producer did not send (BookKeeper's clients check digests for
        # the same reason).
        damaged = damaged_record(segment)
        if damaged is None:
            return segment
        if damaged == 0:
            raise DamagedRecord(
                f"{entry_log_path(self.directory, row.log_id)}: the record at offset {row.offset + begin}"
                f" is not entry {first} of ledger {ledger_id}, or damaged"
            )
        # The intact entries before it are returned: the consumer gets as far as possible, and its next read
        # begins with the damaged entry and raises.
        return segment.part(first, first + damaged - 1)

    def damaged_entries(self, ledger_id: int, row: Row) -> list[int]:
        """The damaged entries of a row; all entries if the log is missing. Reads the whole row at once.
        Raises StorageError if the file cannot be read.
        """
        if not self.is_there(row.log_id):
            return list(range(row.first, row.last + 1))
        with self._pinned(row.log_id) as file:
            data = file.pread(row.offset, row.ends[-1])
        left = Segment(ledger_id, row.first, data, 0, row.ends)
        found = []
        while (damaged := damaged_record(left)) is not None:
            entry_id = left.first + damaged
            found.append(entry_id)
            if entry_id == row.last:
                break
            left = left.part(entry_id + 1, row.last)
        return found

    def remarks(self, log_id: int) -> list[str]:
        """The damage to a log's header, footer and trailer."""
        found: list[str] = []
        with self._pinned(log_id) as file:
            is_closed(file, log_id, found, footer_bytes_max=file.size())
        return found

    def records_bytes(self, log_id: int) -> int:
        """See `scan.records_bytes`. For a log that is no longer written to."""
        with self._pinned(log_id) as file:
            return records_bytes(file)

    def footer_bytes(self, log_id: int) -> FooterBytes | None:
        """A closed log's footer; None if the log has none, or a damaged one."""
        with self._pinned(log_id) as file:
            return read_footer_bytes(file)

    def names(self, log_id: int) -> dict[int, LedgerName]:
        """The names of the ledgers in a log. Reads all of the log if it has no footer."""
        with self._pinned(log_id) as file:
            return read_names(file, log_id)

    def delete(self, log_id: int) -> int | None:
        """Unlink a log; does not disturb reads that are under way. Returns the log's length; None if the file
        is another log by its header, which is not deleted.
        """
        # By its name, and not the file that is open for reading: it may have been renamed since.
        file = self._disk.open(entry_log_path(self.directory, log_id))
        try:
            if other_log_in_header(file, log_id) is not None:
                return None
            size = file.size()
        finally:
            file.close()
        with self._lock:
            log = self._open.pop(log_id, None)
            if log is not None:
                self._doom(log)
        # The descriptor outlives the name: a read that has pinned the file gets its bytes from the unlinked
        # file.
        self._disk.unlink(entry_log_path(self.directory, log_id))
        return size

    def size_bytes(self, log_id: int) -> int:
        """The length of a log's file."""
        with self._pinned(log_id) as file:
            return file.size()

    def write_again(self, log_id: int) -> bool:
        """Write a removed log again if it is open for reading; durable on return. Returns whether it was.
        Raises StorageError.
        """
        with self._lock:
            log = self._open.get(log_id)
            if log is None:
                return False
            log.readers += 1
        try:
            write_again(self._disk, log.file, entry_log_path(self.directory, log_id))
        finally:
            self._let_go(log)
        return True

    def is_whole(self, log_id: int) -> bool:
        """Whether the log was closed, and its footer is right."""
        with self._pinned(log_id) as file:
            return read_footer_bytes(file) is not None

    def sync_directory(self) -> None:
        self._disk.sync_directory(self.directory)

    def close(self) -> None:
        """Close all files. A later read opens a file for itself alone."""
        with self._lock:
            self._closed = True
            for log in self._open.values():
                self._doom(log)
            self._open.clear()

    @contextlib.contextmanager
    def _pinned(self, log_id: int) -> Iterator[File]:
        with self._lock:
            log = self._open.get(log_id)
            if log is None:
                log = _OpenLog(self._disk.open(entry_log_path(self.directory, log_id)))
                # After `close` a read still works, and must not leave a descriptor open behind it.
                log.doomed = self._closed
                if not self._closed:
                    self._open[log_id] = log
                if len(self._open) > OPEN_LOGS_MAX:
                    self._doom(self._open.popitem(last=False)[1])
            else:
                self._open.move_to_end(log_id)
            log.readers += 1
        try:
            yield log.file
        finally:
            self._let_go(log)

    def _let_go(self, log: _OpenLog) -> None:
        with self._lock:
            log.readers -= 1
            if log.doomed and not log.readers:
                log.file.close()

    def _doom(self, log: _OpenLog) -> None:
        # A descriptor that is closed under a reader could be another file's when it reads.
        log.doomed = True
        if not log.readers:
            log.file.close()
