"""Finds the entries of an entry log without the index: from its footer, or record by record if
it has none.
"""

from __future__ import annotations

from collections.abc import Iterator

from geminga.bookie.entry_logs.entry_log_format import (
    HEADER_BYTES,
    TRAILER_BYTES,
    Footer,
    FooterBytes,
    decode_footer,
    decode_header,
    decode_trailer,
    read_footer_piecewise,
)
from geminga.bookie.index.index_format import Row
from geminga.bookie.index.ledger_index import LedgerRow
from geminga.bookie.records.ledger_name import META_ENTRY_ID, LedgerName, decode_name
from geminga.bookie.records.records import RECORD_CRC, RECORD_HEAD, RECORD_PREFIX_BYTES, compact, crc32c
from geminga.limits import ENTRY_BYTES_MAX
from geminga.storage.disk import File

# One window at a time: a log (256 MiB by default) is larger than the default memory budget of the whole
# broker.
SCAN_BYTES = 8 << 20
assert SCAN_BYTES > ENTRY_BYTES_MAX + RECORD_PREFIX_BYTES, "every record fits into a window"


def read_footer(file: File) -> Footer | None:
    """The footer; None if the log was not closed, or its footer is damaged. `scan_rows` finds the records
    then.
    """
    footer = read_footer_bytes(file)
    return decode_footer(footer) if footer is not None else None


def records_bytes(file: File) -> int:
    """The total length of the log's entries; for a log that was not closed, of all its records."""
    footer = read_footer_bytes(file)
    if footer is None:
        return max(0, file.size() - HEADER_BYTES)
    # Without the names: they live as long as their log, and a log of short ledgers has as many of them.
    return sum(ledger.usage.bytes for ledger in read_footer_piecewise(footer)[0].values())


def read_footer_bytes(file: File) -> FooterBytes | None:
    size = file.size()
    trailer = decode_trailer(file.pread(max(0, size - TRAILER_BYTES), TRAILER_BYTES))
    if trailer is None:
        return None
    if trailer.offset + trailer.length + TRAILER_BYTES != size:
        return None
    footer = file.pread(trailer.offset, trailer.length)
    # A damaged footer is no reason to fail: all it says can be had from the records.
    is_right = len(footer) == trailer.length and crc32c(footer) == trailer.crc
    return FooterBytes(trailer.version, footer) if is_right else None


def read_rows(file: File, log_id: int, *, row_entries_max: int) -> list[LedgerRow]:
    """The rows of all entries of the log, in order of offset."""
    footer = read_footer(file)
    if footer is not None:
        return [LedgerRow(ledger_id, row) for ledger_id, row in footer.rows]
    return scan_rows(file, log_id, row_entries_max=row_entries_max)


def scan_rows(
    file: File,
    log_id: int,
    *,
    row_entries_max: int,
    holes: list[int] | None = None,
    start: int = HEADER_BYTES,
) -> list[LedgerRow]:
    """The rows, found from the records alone, up to the first record that is not whole. The bytes behind
    that record are the rest of a flush that a crash cut short, or a footer.

    With `holes`, continues behind a damaged record whose length leads to a valid one, and adds the offsets
    of such records to `holes`. Records before `start`, where a record begins or the log ends, are left out.
    """
    rows: list[LedgerRow] = []
    ends: list[int] = []
    ledger_id = first = begin = -1

    def close_row() -> None:
        if ends:
            rows.append(LedgerRow(ledger_id, Row(first, log_id, begin, compact(ends))))

    following = 0
    for position, record_ledger, entry_id, length in _records(file, log_id, holes, start):
        if entry_id == META_ENTRY_ID:
            continue
        # Rows describe records side by side. A ledger's next flush may continue its ids at another place in
        # the log.
        is_next = record_ledger == ledger_id and entry_id == first + len(ends) and position == following
        if not is_next or len(ends) == row_entries_max:
            close_row()
            ledger_id, first, begin, ends = record_ledger, entry_id, position, []
        following = position + length
        ends.append(following - begin)
    close_row()
    return rows


def read_names(file: File, log_id: int) -> dict[int, LedgerName]:
    """The names of the ledgers in a log: from its footer, else from its records."""
    footer = read_footer_bytes(file)
    if footer is not None:
        return {id_: each.name for id_, each in read_footer_piecewise(footer)[0].items() if each.name.topic}
    names = {}
    for position, ledger_id, entry_id, length in _records(file, log_id, []):
        if entry_id == META_ENTRY_ID:
            body = file.pread(position + RECORD_PREFIX_BYTES, length - RECORD_PREFIX_BYTES)
            if (name := decode_name(body)) is not None:
                names[ledger_id] = name
    return names


def _records(
    file: File, log_id: int, holes: list[int] | None, start: int = HEADER_BYTES
) -> Iterator[tuple[int, int, int, int]]:
    """(offset, ledger id, entry id, length with its prefix) of each valid record; see `scan_rows`."""
    # A header that is damaged does not matter, one of another log does.
    header = decode_header(file.pread(0, HEADER_BYTES))
    if header is not None and header.log_id != log_id:
        return
    position = max(HEADER_BYTES, start)
    window, window_start = file.pread(position, SCAN_BYTES), position
    while True:
        record = record_at(window, position - window_start)
        # The record may only lead over the window's end. Tried once more from its own start before it counts
        # as damaged.
        if record is None and window_start != position:
            window, window_start = file.pread(position, SCAN_BYTES), position
            record = record_at(window, 0)
        if record is not None:
            yield (position, *record)
            position += record[2]
        elif holes is not None and (following := _following(file, position)):
            holes.append(position)
            position = following
        else:
            return


def _following(file: File, position: int) -> int:
    """The offset of the next record, if the damaged one's length leads to a valid one; else 0."""
    head = file.pread(position, RECORD_HEAD.size)
    if len(head) < RECORD_HEAD.size:
        return 0
    length = RECORD_HEAD.unpack(head)[0]
    # The length is one of the damaged bytes, perhaps: believed only if a whole record with a right checksum
    # stands where it leads.
    if length > ENTRY_BYTES_MAX:
        return 0
    following: int = position + RECORD_PREFIX_BYTES + length
    return following if record_at(file.pread(following, SCAN_BYTES), 0) is not None else 0


def record_at(window: bytes, position: int) -> tuple[int, int, int] | None:
    """(ledger id, entry id, length with its prefix) of the record at this offset; None if no valid record is
    there in full.
    """
    body = position + RECORD_PREFIX_BYTES
    if body > len(window):
        return None
    length, ledger_id, entry_id = RECORD_HEAD.unpack_from(window, position)
    if body + length > len(window):
        return None
    head_end = position + RECORD_HEAD.size
    crc = crc32c(memoryview(window)[body : body + length], crc32c(window[position:head_end]))
    if crc != RECORD_CRC.unpack_from(window, head_end)[0]:
        return None
    return ledger_id, entry_id, body + length - position
