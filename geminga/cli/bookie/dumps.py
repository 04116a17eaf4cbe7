"""`geminga bookie dump-log`, `dump-journal`, `entry`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from array import array
from collections.abc import Callable, Iterator, Sequence

from geminga.bookie.entry_logs.entry_log_format import HEADER_BYTES, Footer
from geminga.bookie.entry_logs.reader import EntryLogs
from geminga.bookie.journal.headers import FoundHeader, HeaderState, find_header
from geminga.bookie.journal.journal_format import FILE_HEADER_BYTES, decode_file_header
from geminga.bookie.journal.scan import JournalScan
from geminga.bookie.offline.inspection import (
    BadBytes,
    footer_of,
    log_id_in_header,
    name_at,
    records_end,
    unflushed,
    walk_records,
)
from geminga.bookie.records.file_names import ENTRY_LOG_SUFFIX, JOURNAL_SUFFIX, parse_id
from geminga.bookie.records.ledger_mapping import directory_index
from geminga.bookie.records.ledger_name import NAMELESS, LedgerName
from geminga.bookie.records.records import Segment
from geminga.cli.arguments.options import count
from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, Parser
from geminga.cli.bookie.directory import (
    StoppedBookie,
    add_data_dir,
    add_json,
    directory_of,
    file_in,
)
from geminga.errors import LedgerNotFound, ProtocolError, StorageError
from geminga.storage.disk import File, RealDisk

HEX_BYTES_MAX = 1024
_RECORD = "{:>12} {:>10} {:>10} {:>10}"


# ---- dump-log


def dump_log(parser: Parser, arguments: Sequence[str]) -> int:
    parser.add_argument("file", metavar="FILE", help="an entry log, by path or by id")
    add_data_dir(parser)
    add_json(parser)
    flags = parser.parse_strictly(arguments)
    with contextlib.ExitStack() as held:
        path = file_in(flags, lambda s: s.entry_log(int(flags.file)), held)
        file = RealDisk().open(path)
        held.callback(file.close)
        return _dump_log(file, as_json=flags.json)


def _dump_log(file: File, *, as_json: bool) -> int:
    log_id = log_id_in_header(file)
    footer, bad_footer = footer_of(file)
    if log_id is None:
        raise StorageError(f"{file.path}: offset 0: not the header of an entry log")
    if not as_json:
        closed = (
            "closed" if footer is not None else "footer damaged" if bad_footer is not None else "not closed"
        )
        print(f"entry log {log_id}, {file.size()} bytes, {closed}\n")
        print(_RECORD.format("OFFSET", "LEDGER", "ENTRY", "BYTES"))
    resume = array("Q", sorted(row.offset for _, row in footer.rows)) if footer is not None else ()
    records = bad = 0
    for record in walk_records(file, HEADER_BYTES, records_end(file), resume=resume):
        if isinstance(record, BadBytes):
            bad += 1
            if as_json:
                print(json.dumps({"offset": record.offset, "bad_bytes": record.length}))
            else:
                print(f"{record.offset:>12} {record.length} bytes that are not a valid record")
            continue
        if record.is_name:
            _print_name(record.offset, record.ledger_id, name_at(file, record), as_json=as_json)
            continue
        records += 1
        if as_json:
            print(
                json.dumps(
                    {
                        "offset": record.offset,
                        "ledger": record.ledger_id,
                        "entry": record.entry_id,
                        "bytes": record.body_bytes,
                    }
                )
            )
        else:
            print(_RECORD.format(record.offset, record.ledger_id, record.entry_id, record.body_bytes))
    if not as_json:
        print(f"\n{records} records")
        if footer is not None:
            _print_footer(footer)
    # What comes behind the last whole record of a log that was never closed is the rest of a flush.
    damaged = bad_footer is not None or (bad and footer is not None)
    return EXIT_FAILED if damaged else EXIT_OK


def _print_footer(footer: Footer) -> None:
    print(f"footer: {len(footer.ledgers)} ledgers, {len(footer.rows)} rows")
    for ledger_id, (usage, name) in sorted(footer.ledgers.items()):
        print(f"  ledger {ledger_id}: {usage.entries} entries, {usage.bytes} bytes, {_name_text(name)}")


def _name_text(name: LedgerName) -> str:
    return f"topic {name.topic or '-'}" + (f" ({name.purpose})" if name.purpose else "")


def _print_name(place: int, ledger_id: int, name: LedgerName | None, *, as_json: bool) -> None:
    name = name or NAMELESS
    if as_json:
        print(json.dumps({"offset": place, "ledger": ledger_id, **name._asdict()}))
    else:
        print(f"{place:>12} {ledger_id:>10}  {_name_text(name)}")


# ---- dump-journal


def dump_journal(parser: Parser, arguments: Sequence[str]) -> int:
    parser.add_argument("file", metavar="FILE", help="a journal, by path or by id")
    add_data_dir(parser)
    add_json(parser)
    flags = parser.parse_strictly(arguments)
    with contextlib.ExitStack() as held:
        path = file_in(flags, lambda s: s.journal(int(flags.file)), held)
        file = RealDisk().open(path)
        held.callback(file.close)
        return _dump_journal(file, as_json=flags.json)


def _dump_journal(file: File, *, as_json: bool) -> int:
    header, state = _journal_header(file)
    if state is not HeaderState.WHOLE:
        print(f"{file.path}: offset 0: the file header is damaged{state.value}", file=sys.stderr)
    if header is None:
        return EXIT_FAILED
    if not as_json:
        print(f"journal {header.journal_id}, {file.size()} bytes, groups at multiples of {header.alignment}")
        if header.previous_id:
            print(f"follows journal {header.previous_id}, which ended at offset {header.previous_end}")
        print()
        print(f"{'GROUP ENDS':>12} {'LEDGER':>10}  ENTRIES")
    scan = JournalScan(file, header, synced_end=None)
    groups = entries = 0
    for group in scan.groups(0):
        groups += 1
        for ledger_id, name in group.names.items():
            if as_json:
                print(json.dumps({"end": group.end, "ledger": ledger_id, **name._asdict()}))
            else:
                print(f"{group.end:>12} {ledger_id:>10}  {_name_text(name)}")
        for segment in group.segments:
            entries += len(segment.ends)
            if as_json:
                row = {"end": group.end, "ledger": segment.ledger_id, "first": segment.first}
                print(json.dumps({**row, "last": segment.last, "record_bytes": segment.record_bytes}))
            else:
                print(f"{group.end:>12} {segment.ledger_id:>10}  {_entries_text(segment)}")
    for damage in scan.damages:
        print(f"{damage}", file=sys.stderr)
    if not as_json:
        torn = f"; a last group of {scan.torn_bytes} bytes was not finished" if scan.torn_bytes else ""
        print(f"\n{groups} groups, {entries} entries, up to offset {scan.end}{torn}")
    return EXIT_FAILED if scan.damages or state is not HeaderState.WHOLE else EXIT_OK


def _journal_header(file: File) -> FoundHeader:
    """Of the journal that the file's name says. A file that was about to be written over still holds another
    one; whatever has no such name is the journal that its header says.
    """
    journal_id = parse_id(os.path.basename(file.path), JOURNAL_SUFFIX)
    copies = (decode_file_header(file.pread(at, FILE_HEADER_BYTES)) for at in (0, FILE_HEADER_BYTES))
    stated = next((copy.journal_id for copy in copies if copy is not None), None)
    found = find_header(file, journal_id) if journal_id is not None else None
    if stated is not None and (found is None or not found.begun):
        return find_header(file, stated)
    return found or FoundHeader(None, HeaderState.UNUSED)


def _entries_text(segment: Segment) -> str:
    ids = f"{segment.first}" if segment.first == segment.last else f"{segment.first}-{segment.last}"
    return f"{ids} ({segment.record_bytes} bytes)"


# ---- entry


def entry(parser: Parser, arguments: Sequence[str]) -> int:
    parser.add_argument("ledger", metavar="LEDGER", type=count)
    parser.add_argument("entry", metavar="ENTRY", type=count)
    add_data_dir(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--raw", action="store_true", help="write the entry's bytes to standard output")
    form.add_argument("--json", action="store_true", help="one JSON object, the bytes in hexadecimal")
    flags = parser.parse_strictly(arguments)
    with directory_of(flags) as stopped:
        place, body = _find(stopped, flags.ledger, flags.entry)
        name = stopped.ledger_records().name(flags.ledger)
    if flags.raw:
        sys.stdout.buffer.write(body)
        return EXIT_OK
    is_message = name.purpose in ("", "data")
    metadata = dict(_metadata(body)) if is_message else {}
    if flags.json:
        facts = {"ledger": flags.ledger, "entry": flags.entry, "place": place, "bytes": len(body)}
        owner = {"topic": name.topic, "purpose": name.purpose} if name.topic else {}
        print(json.dumps({**facts, **owner, "metadata": metadata, "hex": body.hex()}))
        return EXIT_OK
    print(f"entry {flags.entry} of ledger {flags.ledger}: {len(body)} bytes")
    print(f"  place     {place}")
    if name.topic:
        print(f"  topic     {name.topic}" + (f" ({name.purpose})" if name.purpose else ""))
    for field, value in metadata.items():
        print(f"  {field}: {value}")
    print()
    for line in hex_lines(body[:HEX_BYTES_MAX]):
        print(line)
    if len(body) > HEX_BYTES_MAX:
        print(f"... {len(body) - HEX_BYTES_MAX} bytes more; --raw writes all of them")
    return EXIT_OK


def _find(stopped: StoppedBookie, ledger_id: int, entry_id: int) -> tuple[str, bytes]:
    """Where the entry lies, and its body, checked."""
    indexes = stopped.load_indexes()
    number = directory_index(ledger_id, len(indexes))
    row = indexes[number].find(ledger_id, entry_id)
    if row is not None:
        if row.lost:
            raise StorageError(f"entry {entry_id} of ledger {ledger_id} is lost: {row.lost}")
        logs = EntryLogs(stopped.disk, stopped.ledgers[number].entry_logs)
        try:
            segment = logs.load(ledger_id, row, entry_id, entry_id)
        finally:
            logs.close()
        at = entry_id - row.first
        offset = row.offset + (row.ends[at - 1] if at else 0)
        name = f"{row.log_id:020d}{ENTRY_LOG_SUFFIX}"
        if len(indexes) > 1:
            name = f"{logs.directory}/{name}"
        return f"{name}, offset {offset}", segment.bodies(entry_id, entry_id)[0]
    for journal, segment in unflushed(stopped.disk, stopped.journals, indexes):
        if segment.ledger_id == ledger_id and segment.first <= entry_id <= segment.last:
            name = journal.path if len(stopped.journals) > 1 else f"{journal.journal_id:020d}.journal"
            place = f"{name} (not in an entry log yet)"
            return place, segment.bodies(entry_id, entry_id)[0]
    raise LedgerNotFound(f"ledger {ledger_id} has no entry {entry_id}")


def _metadata(body: bytes) -> Iterator[tuple[str, str]]:
    """Names and values of what the entry says about itself."""
    from geminga.wire.message_metadata import broker_timestamp_ms
    from geminga.wire.stored_entry import metadata_range, parse_metadata

    try:
        stamp_ms = broker_timestamp_ms(body)
        begin, end = metadata_range(body)
        metadata = parse_metadata(body, begin, end)
    except ProtocolError as error:
        yield "metadata", f"not a message: {error}"
        return
    if stamp_ms is not None:
        yield "broker_timestamp", str(stamp_ms)
    for field, value in metadata.ListFields():
        if field.name == "properties":
            for pair in value:
                yield f"property {pair.key}", pair.value
        else:
            yield field.name, value.hex() if isinstance(value, bytes) else " ".join(str(value).split())
    yield "payload_bytes", str(len(body) - end)


def hex_lines(data: bytes) -> Iterator[str]:
    for offset in range(0, len(data), 16):
        part = data[offset : offset + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        yield f"{offset:08x}  {part[:8].hex(' '):23}  {part[8:].hex(' '):23}  {text}"


COMMANDS: dict[str, Callable[[Parser, Sequence[str]], int]] = {
    "dump-log": dump_log,
    "dump-journal": dump_journal,
    "entry": entry,
}
