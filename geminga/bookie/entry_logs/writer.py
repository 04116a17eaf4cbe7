"""Writes entry logs: one at a time, closed with a footer once long enough.

Blocking; for one thread at a time.
"""

from __future__ import annotations

from typing import NamedTuple

from geminga.bookie.entry_logs.entry_log_format import (
    HEADER_BYTES,
    FooterLedger,
    encode_footer,
    encode_header,
)
from geminga.bookie.index.index_format import LogPosition, Row, Usage
from geminga.bookie.index.ledger_index import LedgerRow
from geminga.bookie.records.file_names import entry_log_path
from geminga.bookie.records.ledger_name import META_ENTRY_ID, NAMELESS, LedgerName, encode_name
from geminga.bookie.records.owner import Owner
from geminga.bookie.records.records import Segment, compact, pack_records
from geminga.bookie.records.segment_map import SegmentMap
from geminga.bookie.records.settings import BookieSettings
from geminga.errors import StorageError
from geminga.storage.disk import Disk, File
from geminga.storage.removed_files import is_cut, write_again

# One system call for thousands of records; more would only add to the memory that a flush holds.
WRITE_BYTES = 1 << 20
"""Records are written to the file in parts of about this size."""
ROW_BYTES_MAX = 1 << 30
"""The limit of a row's length: its record ends are u32, counted from its start."""


class _NamedLog(NamedTuple):
    """The current log's file, as it was found by its name when it was made."""

    path: str
    identity: tuple[int, int] | None
    file: File


class EntryLogWriter:
    """Writes flushed caches. Begins a new log at its first use: a log that a crash left open is not
    continued.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        settings: BookieSettings,
        *,
        next_log_id: int,
        owner: Owner | None = None,
    ) -> None:
        """`owner` goes into the header of each log; None if it is not known."""
        self._disk = disk
        self._directory = directory
        self._settings = settings
        self._next_log_id = next_log_id
        self._owner = owner
        self.closed_bytes: dict[int, int] = {}
        """The lengths of the logs that this object has closed; its owner adds and removes others."""
        self._file: File | None = None
        self._named: _NamedLog | None = None
        self._log_id = 0
        self._end = 0
        self._synced = 0
        self._rows: list[LedgerRow] = []
        self._names: dict[int, LedgerName] = {}
        """The names of the ledgers in the current log."""
        self._known_names: dict[int, LedgerName] = {}
        self._parts: list[memoryview] = []
        self._parts_bytes = 0

    @property
    def log_id(self) -> int | None:
        """The id of the log that is being written, which must not be deleted."""
        return self._log_id if self._file is not None else None

    @property
    def position(self) -> LogPosition:
        """Where the next record goes; the beginning of the next log if none is being written."""
        if self._file is None:
            return LogPosition(self._next_log_id, 0)
        return LogPosition(self._log_id, self._end)

    def write(self, cache: SegmentMap, names: dict[int, LedgerName]) -> list[LedgerRow]:
        """Write all entries of the cache, ledger by ledger in entry order. Durable on return. Returns the
        index rows.

        `names` are the known names of ledgers. After a StorageError the log may have records that no row
        names; they only cost space.
        """
        rows: list[LedgerRow] = []
        self._known_names = names
        # Sorted by ledger, as BookKeeper's DbLedgerStorage does at a flush: entries of one topic arrive
        # between those of all others, and a consumer that catches up reads them in long runs only if they lie
        # side by side.
        for ledger_id, segments in cache.sorted_segments():
            self._write_ledger(ledger_id, segments, rows)
        if self._file is not None:
            self._write_parts()
            self._file.sync()
            self._synced = self._end
        return rows

    def finish(self) -> None:
        """Close the current log with its footer. Durable on return. Does nothing without a current log.
        Raises StorageError if something else has removed the log, which stays open then.
        """
        file = self._file
        if file is None:
            return
        # The last moment at which such a log can be saved: nothing else may have it open.
        if self.gone():
            raise StorageError(
                f"{file.path}: removed, moved, replaced or cut short while it was being written"
            )
        self._write_parts()
        if self._synced < self._end:
            # A crash may keep the footer and lose the records that it describes, and a start trusts a footer.
            file.sync()
        ledgers: dict[int, FooterLedger] = {}
        for ledger_id, row in self._rows:
            entries, record_bytes = ledgers[ledger_id].usage if ledger_id in ledgers else (0, 0)
            usage = Usage(entries + len(row.ends), record_bytes + row.ends[-1])
            ledgers[ledger_id] = FooterLedger(usage, self._names.get(ledger_id, NAMELESS))
        file.append(encode_footer(self._end, ledgers, self._rows))
        file.sync()
        self.close()
        self._rows = []
        self._names = {}

    def abandon(self) -> None:
        """A write has failed for lack of space: continue in another log. If the index names the log, it is
        kept; otherwise it is dead.
        """
        self.close()
        self._rows = []
        self._names = {}
        self._parts = []
        self._parts_bytes = 0

    def gone(self) -> list[str]:
        """The path of the current log if something else has removed, moved, replaced or cut it. Call on any
        thread.
        """
        named = self._named
        if named is None:
            return []
        is_changed = not self._has_its_name(named) or is_cut(self._disk, named.path, named.file.size())
        # Nothing of ours removes the current log, so it must still be the current one after the look.
        return [named.path] if is_changed and self._named is named else []

    def _has_its_name(self, named: _NamedLog) -> bool:
        # None: it was removed between its creation and the first look.
        return self._disk.identity(named.path) == named.identity is not None

    def write_again(self) -> None:
        """Write the current log again if it has been removed; durable on return. Only `abandon` and `close`
        may follow. Raises StorageError.
        """
        # What was cut off is in no open file either.
        if self._named is not None and not self._has_its_name(self._named):
            write_again(self._disk, self._named.file, self._named.path)

    def close(self) -> None:
        """Close the file without a footer."""
        if self._file is not None:
            self.closed_bytes[self._log_id] = self._file.size()
            self._file.close()
            self._file = None
        self._named = None

    def _write_ledger(self, ledger_id: int, segments: list[Segment], rows: list[LedgerRow]) -> None:
        # Many ledgers with little traffic make segments of one entry: this loop is the flush's cost then.
        entries_max = self._settings.row_entries_max
        row: _OpenRow | None = None
        for segment in segments:
            count = len(segment.ends)
            if row is None or segment.first != row.next_entry or row.entries + count > entries_max:
                self._close_row(row, rows)
                while count > entries_max:
                    piece = segment.part(segment.first, segment.first + entries_max - 1)
                    row = self._open_row(ledger_id, segment.first)
                    self._put(piece, row)
                    self._close_row(row, rows)
                    segment = segment.part(piece.last + 1, segment.last)
                    count -= entries_max
                row = self._open_row(ledger_id, segment.first)
            self._put(segment, row)
            if row.bytes > ROW_BYTES_MAX:
                self._close_row(row, rows)
                row = None
        self._close_row(row, rows)

    def _open_row(self, ledger_id: int, first: int) -> _OpenRow:
        # Only between rows: a row names one log, so a ledger's run must not be torn in two by a full one.
        if self._file is not None and self._end >= self._settings.entry_log_bytes:
            self.finish()
        if self._file is None:
            self._open_log()
        # With its first row: the log may be closed before the ledger's last, and it may never be closed.
        if ledger_id in self._known_names and ledger_id not in self._names:
            self._write_name(ledger_id, self._known_names[ledger_id])
        return _OpenRow(ledger_id, first, self._log_id, self._end)

    def _write_name(self, ledger_id: int, name: LedgerName) -> None:
        self._names[ledger_id] = name
        if body := encode_name(name):
            parts: list[bytes] = []
            pack_records(ledger_id, META_ENTRY_ID, [body], parts)
            record = b"".join(parts)
            length = len(record)
            self._parts.append(memoryview(record))
            self._end += length
            self._parts_bytes += length

    def _close_row(self, row: _OpenRow | None, rows: list[LedgerRow]) -> None:
        if row is not None:
            closed = LedgerRow(row.ledger_id, Row(row.first, row.log_id, row.offset, compact(row.ends)))
            rows.append(closed)
            self._rows.append(closed)

    def _open_log(self) -> None:
        self._log_id = self._next_log_id
        self._next_log_id += 1
        self._file = self._disk.create(entry_log_path(self._directory, self._log_id))
        # Now, not with the first flush's sync: rows that name this log may become durable before the next
        # sync of the directory, and a crash would leave them without a file.
        self._disk.sync_directory(self._directory)
        path = self._file.path
        self._named = _NamedLog(path, self._disk.identity(path), self._file)
        self._file.append(encode_header(self._log_id, self._owner))
        self._end = self._synced = HEADER_BYTES

    def _put(self, segment: Segment, row: _OpenRow) -> None:
        start, ends = segment.start, segment.ends
        length = ends[-1]
        self._parts.append(memoryview(segment.buffer)[start : start + length])
        begin = row.bytes
        if len(ends) == 1:
            row.ends.append(begin + length)
        else:
            row.ends += [begin + end for end in ends]
        row.bytes = begin + length
        row.entries += len(ends)
        row.next_entry += len(ends)
        self._end += length
        self._parts_bytes += length
        if self._parts_bytes >= WRITE_BYTES:
            self._write_parts()

    def _write_parts(self) -> None:
        if not self._parts:
            return
        file = self._file
        assert file is not None
        # Behind a cut the write would leave a hole, and the file its old length: no later look could tell.
        if is_cut(self._disk, file.path, file.size()):
            raise StorageError(f"{file.path}: cut while it was being written")
        file.append_many(self._parts)
        self._parts = []
        self._parts_bytes = 0
        if self._end - self._synced >= self._settings.entry_log_sync_bytes:
            file.sync()
            # What was flushed was read from the write cache until now and mostly has been consumed. The pages
            # of older logs, which slow consumers read, should stay.
            file.drop_cache(self._synced, self._end - self._synced)
            self._synced = self._end


class _OpenRow:
    """A row that still grows."""

    __slots__ = ("bytes", "ends", "entries", "first", "ledger_id", "log_id", "next_entry", "offset")

    def __init__(self, ledger_id: int, first: int, log_id: int, offset: int) -> None:
        self.ledger_id = ledger_id
        self.first = self.next_entry = first
        self.log_id = log_id
        self.offset = offset
        self.ends: list[int] = []
        self.entries = self.bytes = 0
