"""Reads a journal back after a crash, and separates whole groups, a torn end, and damage.

The writer has at most one group under way, and syncs it before the next. So a group or a file that is
followed by another one was synced whole, and any error in it is damage. An error with nothing behind it is in
a group that was never confirmed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from geminga.bookie.journal.headers import SEARCH_BYTES
from geminga.bookie.journal.journal_format import (
    GROUP_HEADER,
    GROUP_MAGIC,
    GROUP_MARK,
    FileHeader,
    GroupHeader,
    Run,
    align,
    decode_group_header,
    decode_runs,
    walk_run,
)
from geminga.bookie.records.ledger_name import LedgerName, decode_name
from geminga.bookie.records.records import RECORD_PREFIX_BYTES, Segment, compact, damaged_record
from geminga.storage.disk import File


class Damage(NamedTuple):
    """Bytes of a journal that were once synced and are wrong now. `lost` are the entries known to have been
    in them.
    """

    path: str
    offset: int
    length: int
    lost: tuple[Run, ...] = ()

    def __str__(self) -> str:
        return f"{self.path}: {self.length} bytes at offset {self.offset} are damaged"


class ScannedGroup(NamedTuple):
    """The valid entries of one group, the offset of the next group, and the names of ledgers in the group."""

    segments: list[Segment]
    end: int
    names: dict[int, LedgerName]


class JournalScan:
    """One pass over a journal file from `offset`. Iterate `groups` first, then read the other attributes."""

    def __init__(self, file: File, header: FileHeader, *, synced_end: int | None) -> None:
        """`synced_end` is the end of this journal according to the next journal, if that exists: every group
        that begins before it was synced.
        """
        self._file = file
        self._header = header
        self._alignment = header.alignment
        self._synced_end = synced_end
        self.damages: list[Damage] = []
        self.torn_bytes = 0
        """Length of the group that a crash cut short, as far as its header is readable."""
        self.end = 0

    def groups(self, offset: int) -> Iterator[ScannedGroup]:
        """Every group from `offset` on (a group's start, or 0 for the first one), one in memory at a time."""
        for header, runs, end in self._walk(offset):
            names: dict[int, LedgerName] = {}
            yield ScannedGroup(self._segments(header, runs, end, names), end, names)

    def run_tables(self, offset: int) -> Iterator[tuple[list[Run], int]]:
        """As `groups`, from the tables alone: the runs of each group, and its end. Reads no record, so it
        does not notice a damaged record, or a group that is cut short behind its table.
        """
        for _, runs, end in self._walk(offset):
            yield [run for run in runs if not run.is_name], end

    def _walk(self, offset: int) -> Iterator[tuple[GroupHeader, list[Run], int]]:
        offset = max(offset, self._header.first_group)
        # Not beyond the synced end: what follows there belongs to the journal that the file was before.
        while self._synced_end is None or offset < self._synced_end:
            header, runs = self._group_at(offset)
            if header is None or runs is None:
                # Stopping at the first bad group would be simpler, and would drop every entry behind one bad
                # sector, although all of them had receipts (tests/bookie/recovery/test_damage.py).
                following = self._search(offset + self._alignment)
                if following is None:
                    break
                self.damages.append(Damage(self._file.path, offset, following - offset))
                offset = following
                continue
            end = align(header.end, self._alignment)
            yield header, runs, end
            offset = end
        self.end = offset

    def _group_at(self, offset: int) -> tuple[GroupHeader | None, list[Run] | None]:
        header = decode_group_header(
            self._file.pread(offset, GROUP_HEADER.size), self._header.journal_id, offset
        )
        if header is None or offset + header.head_bytes > self._file.size():
            return None, None
        # Its records may lead over the end of a file that was cut short: what is left of them is read.
        return header, decode_runs(self._file.pread(offset, header.head_bytes), self._header, header)

    def _search(self, offset: int) -> int | None:
        """The offset of the next group, if one was written behind bytes that are no group. Without such a
        group, the end of the file's synced part, if known.
        """
        # Without the offset, which is another one at each place; `_group_at` compares it.
        mark = GROUP_MARK.pack(GROUP_MAGIC, self._header.journal_id, 0)[:-8]
        limit = self._synced_end if self._synced_end is not None else self._file.size()
        while offset < limit:
            window = self._file.pread(offset, SEARCH_BYTES + GROUP_HEADER.size)
            # One byte is sought much faster than several, and most of what is searched was never written.
            at = window.find(mark) if mark[:1] in window else -1
            while at >= 0:
                header, runs = self._group_at(offset + at)
                if header is not None and runs is not None:
                    return offset + at
                at = window.find(mark, at + 1)
            offset += SEARCH_BYTES
        return self._synced_end

    def _segments(
        self, header: GroupHeader, runs: list[Run], end: int, names: dict[int, LedgerName]
    ) -> list[Segment]:
        """The valid entries of a group that ends at `end`; adds the group's names to `names`."""
        begin = header.offset + header.head_bytes
        buffer = self._file.pread(begin, min(header.records_bytes, self._file.size() - begin))
        segments: list[Segment] = []
        lost: list[Run] = []
        position = 0
        for run in runs:
            ends, whole = walk_run(buffer, position, run)
            good, bad = _sort_out(run, buffer, position, ends)
            if run.is_name:
                names |= {segment.ledger_id: name for segment in good if (name := _name_in(segment))}
            else:
                segments += good
            lost += bad
            if not whole:
                # A wrong length hides where the other runs begin.
                lost += runs[runs.index(run) + 1 :]
                break
            position += ends[-1]
        if not lost:
            return segments
        entries = tuple(run for run in lost if not run.is_name)
        if self._was_synced(header.offset, end):
            self.damages.append(Damage(self._file.path, header.offset, end - header.offset, entries))
        else:
            # No receipt left for this group. Of each ledger keep what comes before the first bad record: an
            # entry behind a gap would make the gap look like a loss.
            self.torn_bytes = end - header.offset
            first_lost = {run.ledger_id: run.first for run in reversed(entries)}
            segments = [s for s in segments if s.first < first_lost.get(s.ledger_id, s.last + 1)]
        return segments

    def _was_synced(self, offset: int, end: int) -> bool:
        if self._synced_end is not None:
            return offset < self._synced_end
        return self._group_at(end)[0] is not None or self._search(end) is not None


def _sort_out(run: Run, buffer: bytes, start: int, ends: list[int]) -> tuple[list[Segment], list[Run]]:
    """The valid entries of a run, and the damaged ones; `ends` may be shorter than the run."""
    good: list[Segment] = []
    bad: list[Run] = []
    first = run.first
    begin = 0
    while ends:
        # A damaged record is skipped and the next tried: the lengths were right, so the places of all others
        # are known.
        segment = Segment(run.ledger_id, first, buffer, start + begin, compact([end - begin for end in ends]))
        damaged = damaged_record(segment)
        count = len(ends) if damaged is None else damaged
        if count:
            good.append(segment.part(first, first + count - 1))
        if damaged is None:
            first += count
            break
        bad.append(Run(run.ledger_id, first + count, 1))
        begin = ends[count]
        first += count + 1
        ends = ends[count + 1 :]
    if first < run.first + run.entries:
        bad.append(Run(run.ledger_id, first, run.first + run.entries - first))
    return good, bad


def _name_in(segment: Segment) -> LedgerName | None:
    records = segment.records()
    return decode_name(bytes(records[RECORD_PREFIX_BYTES : segment.ends[0]]))
