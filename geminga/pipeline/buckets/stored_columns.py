"""Delayed messages in closed entry logs, run by run: a footer has the offset of each record, so a run of some
hundred records is checked and parsed at once. Damaged ones are read record by record, as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from geminga.bookie.index.index_format import Row
from geminga.bookie.offline.inspection import footer_of
from geminga.pipeline.buckets.record_columns import Table, due_times_ms, likeness, right_records
from geminga.pipeline.buckets.rescue_files import Found, Slice, records_between
from geminga.storage.disk import File
from geminga.tracker.format.rows import ENTRY_BITS, Integers, Rows, concatenate

ALIKE_MIN: Final = 24
"""Fewer records of one length are looked at one by one."""


def runs_of(file: File, part: Slice) -> list[tuple[int, Row]] | None:
    """Runs of records in this slice by ledger, in the order of the file. None: unknown, because the log
    has no readable footer.
    """
    footer, _ = footer_of(file)
    if footer is None:
        return None
    return [(id_, row) for id_, row in footer.rows if part.begin <= row.offset < part.end and not row.lost]


def records_of(file: File, run: Row) -> Iterator[Found]:
    """One by one, whatever whole records stand where the run is."""
    return records_between(file, run.offset, run.offset + run.ends[-1])


def delayed_rows(file: File, ledger_id: int, run: Row) -> Rows | None:
    """All entries of the run that have a time, with their times; None: look at its records one by one."""
    count = len(run.ends)
    if count < ALIKE_MIN:
        return None
    data = np.frombuffer(file.pread(run.offset, run.ends[-1]), np.uint8)
    if len(data) != run.ends[-1]:
        return None
    entry_ids = np.arange(run.first, run.first + count, dtype=np.int64)
    if isinstance(run.ends, range):
        return _rows(data.reshape(count, -1), ledger_id, entry_ids)
    ends = np.array(run.ends, np.int64)
    begins = np.concatenate([[0], ends[:-1]])
    lengths = ends - begins
    parts = []
    for length, times in zip(*np.unique(lengths, return_counts=True), strict=True):
        if times < ALIKE_MIN:
            return None
        chosen = np.flatnonzero(lengths == length)
        table = data[begins[chosen][:, None] + np.arange(length)]
        rows = _rows(table, ledger_id, entry_ids[chosen])
        if rows is None:
            return None
        parts.append(rows)
    return concatenate(parts)


def _rows(records: Table, ledger_id: int, entry_ids: Integers) -> Rows | None:
    like = likeness(records)
    if not right_records(records, like, ledger_id, entry_ids).all():
        return None
    times_ms = due_times_ms(records, like)
    return Rows(times_ms, (ledger_id << ENTRY_BITS) | entry_ids).where(times_ms > 0)
