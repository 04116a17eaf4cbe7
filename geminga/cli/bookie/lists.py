"""`geminga bookie ledgers`, `entry-logs`, `journals`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from geminga.bookie.index.index_format import ASIDE, DELETED, FENCED, State
from geminga.bookie.index.ledger_index import LedgerIndex
from geminga.bookie.journal.headers import HeaderState
from geminga.bookie.offline.inspection import (
    JournalFile,
    LogContents,
    entry_log_ids,
    journal_files,
    log_contents,
    unflushed,
)
from geminga.bookie.records.file_names import entry_log_path
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.ledger_mapping import needed_from
from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, Parser
from geminga.cli.bookie.directory import (
    LedgerRecords,
    StoppedBookie,
    StoppedLedgers,
    add_data_dir,
    add_json,
    directory_of,
)

_LEDGER = "{:>10} {:>10} {:>14} {:>9}  {:8} {:18} {:14} {}"
_LOG = "{:>8} {:7} {:>14} {:>9} {:>8} {:>6}  {}"
_JOURNAL = "{:>8} {:>12} {:>20} {}"


def size_text(count: int) -> str:
    """Bytes with three digits, for people."""
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1000:
            break
        size, unit = size / 1024, larger
    return f"{count} B" if unit == "B" else f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"


def ledgers(parser: Parser, arguments: Sequence[str]) -> int:
    add_data_dir(parser)
    add_json(parser)
    flags = parser.parse_strictly(arguments)
    with directory_of(flags) as stopped:
        indexes, names = stopped.load_indexes(), stopped.ledger_records()
        rows = _ledger_rows(stopped, indexes, names)
        if flags.json:
            for row in rows:
                print(json.dumps(row))
            return EXIT_OK
        print(
            _LEDGER.format("LEDGER", "ENTRIES", "BYTES", "JOURNAL", "PURPOSE", "STATE", "ENTRY LOGS", "TOPIC")
        )
        for row in rows:
            logs = row["entry_logs"]
            print(
                _LEDGER.format(
                    row["ledger"],
                    row["entries"],
                    size_text(row["bytes"]),
                    row["journal_entries"] or "-",
                    row["purpose"] or "-",
                    row["state"],
                    ",".join(map(str, logs[:3])) + (f",+{len(logs) - 3}" if len(logs) > 3 else "") or "-",
                    row["topic"] or "-",
                )
            )
        print(f"\n{len(rows)} ledgers, {sum(row['entries'] for row in rows)} entries in entry logs")
        waiting = sum(row["journal_entries"] for row in rows)
        if waiting:
            print(f"{waiting} entries are in the journal only (JOURNAL): the next start moves them")
    return EXIT_OK


def _ledger_rows(
    stopped: StoppedBookie, indexes: Sequence[LedgerIndex], names: LedgerRecords
) -> list[dict[str, Any]]:
    journal_entries: dict[int, int] = {}
    for _, segment in unflushed(stopped.disk, stopped.journals, indexes):
        journal_entries[segment.ledger_id] = journal_entries.get(segment.ledger_id, 0) + len(segment.ends)
    logs: dict[int, list[int]] = {}
    entries: dict[int, int] = {}
    sizes: dict[int, int] = {}
    in_logs = [(log_id, of) for index in indexes for log_id, of in sorted(index.usage.items())]
    for log_id, of_log in in_logs:
        for ledger_id, usage in of_log.items():
            logs.setdefault(ledger_id, []).append(log_id)
            entries[ledger_id] = entries.get(ledger_id, 0) + usage.entries
            sizes[ledger_id] = sizes.get(ledger_id, 0) + usage.bytes
    rows = []
    states = {ledger_id: state for index in indexes for ledger_id, state in index.states.items()}
    for ledger_id in sorted({*logs, *journal_entries, *states, *names.ids()}):
        record = names.get(ledger_id)
        name = names.name(ledger_id)
        recorded = record.state if record is not None else "no record" if names.is_there else "-"
        rows.append(
            {
                "ledger": ledger_id,
                "topic": name.topic,
                "purpose": name.purpose,
                "state": _state(states.get(ledger_id), recorded),
                "entries": entries.get(ledger_id, 0),
                "bytes": sizes.get(ledger_id, 0),
                "journal_entries": journal_entries.get(ledger_id, 0),
                "entry_logs": logs.get(ledger_id, []),
            }
        )
    return rows


def _state(state: State | None, recorded: str) -> str:
    if state is None:
        return recorded
    return {DELETED: "deleted", ASIDE: "set aside", FENCED: f"{recorded}, fenced"}[state.kind]


def entry_logs(parser: Parser, arguments: Sequence[str]) -> int:
    add_data_dir(parser)
    add_json(parser)
    flags = parser.parse_strictly(arguments)
    with directory_of(flags) as stopped:
        indexes = stopped.readable_indexes()
        for number, (place, index) in enumerate(zip(stopped.ledgers, indexes, strict=True)):
            if not flags.json:
                _print_heading(number, place.entry_logs, len(stopped.ledgers))
                print(_LOG.format("LOG", "CLOSED", "RECORDS", "LEDGERS", "ALIVE", "SHARE", "LEDGER IDS"))
            for log_id in entry_log_ids(stopped.disk, place.entry_logs):
                contents = log_contents(stopped.disk, place.entry_logs, log_id)
                row = _log_row(place, index, log_id, contents)
                print(json.dumps(row) if flags.json else _log_text(row))
    return EXIT_FAILED if None in indexes else EXIT_OK


def _print_heading(number: int, directory: str, count: int) -> None:
    """Only where there are several directories."""
    if count > 1:
        print("\n" * (number > 0) + f"{directory}:")


def _log_row(
    place: StoppedLedgers, index: LedgerIndex | None, log_id: int, contents: LogContents
) -> dict[str, Any]:
    """What lives in it is None without an index."""
    facts = {
        "log": log_id,
        "path": entry_log_path(place.entry_logs, log_id),
        "closed": contents.closed,
        "record_bytes": contents.record_bytes,
        "ledgers": sorted(contents.ledgers),
    }
    if index is None:
        return {**facts, "live_bytes": None, "live_share": None, "live_ledgers": None}
    deleted = {ledger_id for ledger_id, state in index.states.items() if state.kind == DELETED}
    usage = index.usage.get(log_id, {})
    alive = {ledger_id: of for ledger_id, of in usage.items() if ledger_id not in deleted}
    live_bytes = sum(of.bytes for of in alive.values())
    share = live_bytes / contents.record_bytes if contents.record_bytes else 0.0
    return {
        **facts,
        "live_bytes": live_bytes,
        "live_share": round(share, 4),
        "live_ledgers": sorted(alive),
    }


def _log_text(row: dict[str, Any]) -> str:
    alive = row["live_ledgers"]
    ids = [f"{id_}{'' if alive is None or id_ in alive else ' (dead)'}" for id_ in row["ledgers"]]
    return _LOG.format(
        row["log"],
        "yes" if row["closed"] else "no",
        size_text(row["record_bytes"]),
        len(ids),
        "?" if alive is None else len(alive),
        "?" if alive is None else f"{row['live_share']:.0%}",
        ", ".join(ids[:6]) + (f", and {len(ids) - 6} more" if len(ids) > 6 else ""),
    )


def journals(parser: Parser, arguments: Sequence[str]) -> int:
    add_data_dir(parser)
    add_json(parser)
    flags = parser.parse_strictly(arguments)
    with directory_of(flags) as stopped:
        indexes = stopped.readable_indexes()
        known = [index.marks for index in indexes if index is not None]
        # If an index is missing, its marks are unknown, so a start replays the journals from their beginning.
        is_known = len(known) == len(indexes)
        nowhere = JournalPosition(0, 0)
        marks = needed_from(known) if is_known else (nowhere,) * len(stopped.journals)
        for number, (directory, mark) in enumerate(zip(stopped.journals, marks, strict=True)):
            if not flags.json:
                _print_heading(number, directory, len(marks))
                print(_JOURNAL.format("JOURNAL", "FILE", "FOLLOWS", "STATE"))
            for journal in journal_files(stopped.disk, directory):
                print(json.dumps(_journal_row(journal, mark)) if flags.json else _journal_text(journal, mark))
            if not flags.json:
                text = f"journal {mark.journal_id}, offset {mark.offset}" if is_known else "not known"
                print(f"\nmark: {text}")
    return EXIT_OK if is_known else EXIT_FAILED


def _journal_row(journal: JournalFile, mark: JournalPosition) -> dict[str, Any]:
    header = journal.header
    return {
        "journal": journal.journal_id,
        "path": journal.path,
        "bytes": journal.bytes,
        "written": journal.begun,
        "header": journal.state.name.lower() if journal.begun else "unused",
        "needed": journal.begun and journal.journal_id >= mark.journal_id,
        "previous": [header.previous_id, header.previous_end] if header is not None else None,
    }


def _journal_text(journal: JournalFile, mark: JournalPosition) -> str:
    header = journal.header
    if not journal.begun:
        state = "never written"
    elif header is None:
        state = "damaged: neither its headers nor its groups can be read"
    elif journal.journal_id < mark.journal_id:
        state = "not needed any more"
    elif journal.journal_id == mark.journal_id:
        state = f"replayed from offset {max(mark.offset, header.first_group)}"
    else:
        state = "replayed"
    if header is not None and journal.state is not HeaderState.WHOLE:
        state += f" (the file header is damaged{journal.state.value})"
    after = f"{header.previous_id} up to {header.previous_end}" if header and header.previous_id else "-"
    return _JOURNAL.format(journal.journal_id, size_text(journal.bytes), after, state)


COMMANDS: dict[str, Callable[[Parser, Sequence[str]], int]] = {
    "ledgers": ledgers,
    "entry-logs": entry_logs,
    "journals": journals,
}
