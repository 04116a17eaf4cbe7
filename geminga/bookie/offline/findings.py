"""The findings of a verification, and texts that name the ledgers and entries in them."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Sequence
from typing import NamedTuple

from geminga.bookie.entry_logs.scan import record_at
from geminga.bookie.index.index_format import LEDGER_ID_MAX, decode_row, entry_key, split_key
from geminga.bookie.index.ledger_index import LedgerRow
from geminga.bookie.offline.inspection import BadBytes
from geminga.errors import CorruptData
from geminga.storage.disk import File
from geminga.storage.key_value import KeyValue

ALL_ROWS = entry_key(0, 0), entry_key(LEDGER_ID_MAX, 2**64 - 1)


class Finding(NamedTuple):
    """Bytes that are not as they were written. `offset` is None for a finding about a whole file."""

    path: str
    offset: int | None
    text: str

    def __str__(self) -> str:
        return f"{self.path}{'' if self.offset is None else f': offset {self.offset}'}: {self.text}"


class Promised(NamedTuple):
    """How far a log must reach according to the index, and where its rows begin."""

    end: int = 0
    starts: array[int] = array("Q")


def promised_ends(key_value: KeyValue) -> dict[int, Promised]:
    found: dict[int, Promised] = {}
    try:
        for key, value in key_value.scan(*ALL_ROWS):
            row = decode_row(split_key(key)[1], value)
            if not row.lost:
                end, starts = found.get(row.log_id) or (0, array("Q"))
                starts.append(row.offset)
                found[row.log_id] = Promised(max(end, row.offset + row.ends[-1]), starts)
    except CorruptData:
        pass  # `check_index` reports it
    return found


def rows_in(log_id: int, key_value: KeyValue | None) -> list[LedgerRow]:
    """The index's rows in a log, as far as the index can be read."""
    found: list[LedgerRow] = []
    with contextlib.suppress(CorruptData):  # `check_index` reports it
        for key, value in key_value.scan(*ALL_ROWS) if key_value is not None else ():
            ledger_id, first = split_key(key)
            row = decode_row(first, value)
            if row.log_id == log_id and not row.lost:
                found.append(LedgerRow(ledger_id, row))
    return found


def entries_text(first: int, last: int) -> str:
    return f"entry {first}" if first == last else f"entries {first} to {last}"


def gap_text(ledger_id: int, expected: int, found: int) -> str:
    if found < expected:
        return f"rows of ledger {ledger_id} overlap at entry {found}"
    return f"entries {expected} to {found - 1} of ledger {ledger_id} have no row"


def damaged_entries(file: File, bad: BadBytes, rows: Sequence[LedgerRow]) -> dict[int, dict[int, int]]:
    """By ledger, the entries of these rows whose records are in the bad bytes, with their offsets."""
    found: dict[int, dict[int, int]] = {}
    bad_end = bad.offset + bad.length
    for ledger_id, row in rows:
        if row.offset + row.ends[-1] <= bad.offset or row.offset >= bad_end:
            continue
        begin = row.offset
        for entry_id, length in enumerate(row.ends, row.first):
            end = row.offset + length
            wanted = ledger_id, entry_id, end - begin
            is_inside = begin < bad_end and end > bad.offset
            if is_inside and record_at(file.pread(begin, end - begin), 0) != wanted:
                found.setdefault(ledger_id, {})[entry_id] = begin
            begin = end
    return found
