"""Verifies all files of a stopped bookie, byte by byte where checksums exist.

Checks every record of every entry log, footers against records, every group and record of every journal,
every row of the index against its records, and the sums in the index. Writes nothing.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from geminga.bookie.entry_logs.entry_log_format import HEADER_BYTES, Footer
from geminga.bookie.entry_logs.reader import EntryLogs
from geminga.bookie.index.index_format import Row, Usage, decode_row, split_key
from geminga.bookie.index.ledger_index import LedgerIndex, LedgerRow
from geminga.bookie.journal.headers import HeaderState
from geminga.bookie.journal.inventory import JournalInventory, MisnamedJournals
from geminga.bookie.journal.scan import JournalScan
from geminga.bookie.offline.findings import (
    ALL_ROWS,
    Finding,
    Promised,
    damaged_entries,
    entries_text,
    gap_text,
    promised_ends,
    rows_in,
)
from geminga.bookie.offline.inspection import (
    BadBytes,
    JournalFile,
    entry_log_ids,
    footer_of,
    journal_files,
    log_id_in_header,
    walk_records,
)
from geminga.bookie.records.entry_ranges import runs_of
from geminga.bookie.records.file_names import entry_log_path, journal_path
from geminga.bookie.records.journal_position import JournalPosition
from geminga.errors import CorruptData, StorageError
from geminga.storage.disk import Disk, File
from geminga.storage.key_value import KeyValue

BAD_RECORDS_KEPT_MAX = 100_000
RUNS_NAMED_MAX = 5
"""The limit of runs of entries that one finding names."""
LOAD_BYTES_MAX = 4 << 20
"""The record bytes that are checked against the index at once."""


@dataclass(slots=True)
class Counts:
    """Counts of what was checked."""

    entry_logs: int = 0
    log_records: int = 0
    log_bytes: int = 0
    unfinished_bytes: int = 0
    """Bytes behind the last whole record of logs that were never closed, which no row of the index names."""
    journals: int = 0
    journals_unused: int = 0
    """Journals that were prepared and never written."""
    journal_groups: int = 0
    journal_records: int = 0
    torn_bytes: int = 0
    """Bytes of incomplete last groups that nothing proves to be synced: a crash cut them short, or the very
    end is damaged.
    """
    index_rows: int = 0
    index_entries: int = 0
    findings: int = 0


class Verification:
    """One verification. Calls `report` with each finding at once; `counts` grows meanwhile."""

    def __init__(
        self, disk: Disk, report: Callable[[Finding], None], topic_of: Callable[[int], str] = lambda _: ""
    ) -> None:
        """`topic_of(ledger_id)` is used in the texts of findings; "" if unknown."""
        self.counts = Counts()
        self._topic_of = topic_of
        self.disk = disk
        self._report = report
        self._bad_records: set[tuple[str, int]] = set()
        """(path, offset) of records that were reported already, so that a row that names one is not reported
        again.
        """

    def add(self, finding: Finding) -> None:
        """Count and report a finding of another check."""
        self.counts.findings += 1
        self._report(finding)

    def _found(self, path: str, offset: int | None, text: str) -> None:
        self.add(Finding(path, offset, text))

    # ---- entry logs

    def check_logs(self, directory: str, key_value: KeyValue | None) -> None:
        """Check all entry logs. `key_value` is the index, if it can be read; it states how far a log that
        was not closed must reach.
        """
        promised = promised_ends(key_value) if key_value is not None else {}
        for log_id in entry_log_ids(self.disk, directory):
            path = entry_log_path(directory, log_id)
            file = self.disk.open(path)
            try:
                self._check_log(path, file, log_id, promised.get(log_id), key_value)
            except StorageError as error:
                self._found(path, None, str(error))
            finally:
                file.close()

    def _check_log(
        self, path: str, file: File, log_id: int, promised: Promised | None, key_value: KeyValue | None
    ) -> None:
        counts = self.counts
        is_dead = key_value is not None and promised is None
        promised = promised or Promised()
        counts.entry_logs += 1
        counts.log_bytes += file.size()
        footer, bad = footer_of(file)
        if (named := log_id_in_header(file)) != log_id:
            if is_dead and footer is None and bad is None:
                counts.unfinished_bytes += file.size()  # a crash came before the header was on the disk
                return
            is_of = f", but of entry log {named}: the file was renamed" if named is not None else ""
            self._found(path, 0, f"the header is not that of entry log {log_id}{is_of}")
        end = file.size()
        if bad is not None:
            self._found(path, bad.offset, f"the footer ({bad.length} bytes) is damaged")
            end = bad.offset
        resume, sure_end = promised.starts, promised.end
        if footer is not None:
            resume = array("Q", sorted(row.offset for _, row in footer.rows))
            sure_end = end = max((row.offset + row.ends[-1] for _, row in footer.rows), default=HEADER_BYTES)
        seen: dict[int, Usage] = {}
        bad_runs: list[BadBytes] = []
        for record in walk_records(file, HEADER_BYTES, end, resume=array("Q", sorted(resume))):
            if isinstance(record, BadBytes):
                if record.offset >= sure_end:
                    if bad is None:
                        counts.unfinished_bytes += end - record.offset
                    break
                self._remember(path, record.offset)
                if bad_runs and bad_runs[-1].offset + bad_runs[-1].length == record.offset:
                    record = BadBytes(bad_runs[-1].offset, bad_runs.pop().length + record.length)
                bad_runs.append(record)
                continue
            if record.is_name:
                continue
            counts.log_records += 1
            before = seen.get(record.ledger_id, Usage(0, 0))
            seen[record.ledger_id] = Usage(before.entries + 1, before.bytes + record.end - record.offset)
        if bad_runs:
            rows = rows_in(log_id, key_value) if footer is None else [LedgerRow(*row) for row in footer.rows]
            for run in bad_runs:
                text = f"{run.length} bytes are not a valid record{self._entries_in(file, run, rows)}"
                self._found(path, run.offset, text)
        elif footer is not None:
            self._compare_footer(path, footer, seen)

    def _entries_in(self, file: File, bad: BadBytes, rows: Sequence[LedgerRow]) -> str:
        """Name the ledgers whose entries are damaged there, by the rows of footer or index."""
        names: list[str] = []
        for ledger_id, damaged in sorted(damaged_entries(file, bad, rows).items()):
            for offset in damaged.values():
                self._remember(file.path, offset)
            names += [
                f"{entries_text(*run)} of {self._ledger(ledger_id)}" for run in runs_of(sorted(damaged))
            ]
        if len(names) > RUNS_NAMED_MAX:
            names[RUNS_NAMED_MAX:] = [f"{len(names) - RUNS_NAMED_MAX} more"]
        return f"; {', '.join(names)} should be there" if names else ""

    def _remember(self, path: str, offset: int) -> None:
        if len(self._bad_records) < BAD_RECORDS_KEPT_MAX:
            self._bad_records.add((path, offset))

    def _ledger(self, ledger_id: int) -> str:
        topic = self._topic_of(ledger_id)
        return f"ledger {ledger_id}" + (f" ({topic})" if topic else "")

    def _compare_footer(self, path: str, footer: Footer, seen: dict[int, Usage]) -> None:
        stated = {ledger_id: ledger.usage for ledger_id, ledger in footer.ledgers.items()}
        for ledger_id in sorted(stated.keys() | seen.keys()):
            if stated.get(ledger_id) != seen.get(ledger_id):
                said, is_there = stated.get(ledger_id), seen.get(ledger_id)
                self._found(path, None, f"the footer says {said} of ledger {ledger_id}; there is {is_there}")

    # ---- journals

    def check_journals(self, directory: str, mark: JournalPosition | None) -> None:
        """Check a journal. `mark` is the earliest mark that a ledger directory has in it; None
        if unknown.
        """
        journals = journal_files(self.disk, directory)
        if mark is not None:
            try:
                JournalInventory(self.disk, directory).check_names(mark)
            except MisnamedJournals as error:
                self._found(directory, None, str(error).removeprefix(f"{directory}: "))
        if mark is not None and mark.offset and mark.journal_id not in {each.journal_id for each in journals}:
            path = journal_path(directory, mark.journal_id)
            self._found(path, None, "the journal in which the index's mark lies is not there")
        for journal in journals:
            try:
                self._check_journal(journal, mark)
            except StorageError as error:
                self._found(journal.path, None, str(error))

    def _check_journal(self, journal: JournalFile, mark: JournalPosition | None) -> None:
        counts = self.counts
        header, state = journal.header, journal.state
        marked = mark is not None and mark.offset > 0 and mark.journal_id == journal.journal_id
        if (marked or journal.synced_end is not None) and state is HeaderState.UNUSED:
            self._found(journal.path, 0, "nothing is left of the file header and of the groups")
        elif state not in (HeaderState.WHOLE, HeaderState.UNUSED):
            self._found(journal.path, 0, f"the file header is damaged{state.value}")
        if header is None:
            counts.journals_unused += not journal.begun
            return
        counts.journals += 1
        file = self.disk.open(journal.path)
        try:
            scan = JournalScan(file, header, synced_end=journal.synced_end)
            for group in scan.groups(0):
                counts.journal_groups += 1
                counts.journal_records += sum(len(segment.ends) for segment in group.segments)
        finally:
            file.close()
        counts.torn_bytes += scan.torn_bytes
        needed = mark is None or journal.journal_id >= mark.journal_id
        for damage in scan.damages:
            lost = sum(run.entries for run in damage.lost)
            text = f"{damage.length} bytes are damaged" + (f", with {lost} entries" if lost else "")
            old = "" if needed else " (of an old journal that is not needed any more)"
            self._found(damage.path, damage.offset, text + old)

    # ---- the index

    def check_index(self, path: str, key_value: KeyValue, directory: str, *, journals: int) -> None:
        """Check every row against the records in `directory`, the entry logs' own."""
        index = LedgerIndex(key_value, journals=journals)
        logs = EntryLogs(self.disk, directory)
        present = set(logs.ids()) if self.disk.exists(directory) else set()
        usage: dict[int, dict[int, list[int]]] = {}
        ledger_id, following = -1, 0
        try:
            index.load()
            if not index.marks[0].journal_id and present:
                self._found(path, None, "there is no mark: the next start rebuilds the index")
            for key, value in key_value.scan(*ALL_ROWS):
                self.counts.index_rows += 1
                row_ledger, first = split_key(key)
                row = decode_row(first, value)
                if row_ledger != ledger_id:
                    ledger_id, following = row_ledger, 0
                if row.first != following:
                    self._found(path, None, gap_text(ledger_id, following, row.first))
                following = row.last + 1
                self._check_row(path, logs, present, ledger_id, row)
                if not row.lost:
                    of_ledger = usage.setdefault(row.log_id, {}).setdefault(ledger_id, [0, 0])
                    of_ledger[0] += len(row.ends)
                    of_ledger[1] += row.ends[-1]
            self._compare_usage(path, index, usage)
        except CorruptData as error:
            self._found(path, None, str(error))
        finally:
            logs.close()

    def _check_row(self, path: str, logs: EntryLogs, present: set[int], ledger_id: int, row: Row) -> None:
        entries = f"entries {row.first} to {row.last} of {self._ledger(ledger_id)}"
        if row.lost:
            self._found(path, None, f"{entries} are lost: {row.lost}")
            return
        self.counts.index_entries += len(row.ends)
        if row.log_id not in present:
            self._found(path, None, f"{entries} are in entry log {row.log_id}, which is not there")
            return
        log_path = entry_log_path(logs.directory, row.log_id)
        bad: list[int] = []
        first = row.first
        while first <= row.last:
            at = first - row.first
            begin = row.ends[at - 1] if at else 0
            last = first
            while last < row.last and row.ends[last + 1 - row.first] - begin <= LOAD_BYTES_MAX:
                last += 1
            try:
                first = logs.load(ledger_id, row, first, last).last + 1
            except CorruptData:
                if (log_path, row.offset + begin) not in self._bad_records:
                    bad.append(first)
                first += 1
        for begin, last in runs_of(bad):
            at = row.offset + (row.ends[begin - row.first - 1] if begin > row.first else 0)
            text = f"not {entries_text(begin, last)} of {self._ledger(ledger_id)}, as the index has it"
            self._found(log_path, at, text)

    def _compare_usage(self, path: str, index: LedgerIndex, usage: dict[int, dict[int, list[int]]]) -> None:
        for log_id in sorted(usage.keys() | index.usage.keys()):
            stated = {id_: list(of) for id_, of in index.usage.get(log_id, {}).items()}
            if stated != usage.get(log_id, {}):
                self._found(path, None, f"the sums for entry log {log_id} are not those of its rows")
