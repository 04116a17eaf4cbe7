"""`geminga bookie ledgers`, `entry-logs`, `journals`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from geminga.bookie.file_names import entry_log_path
from geminga.bookie.index_format import DELETED, FENCED
from geminga.bookie.inspection import journal_files, log_contents, unflushed
from geminga.bookie.ledger_index import LedgerIndex
from geminga.cli.bookie_directory import (
    LedgerRecords,
    StoppedBookie,
    add_data_dir,
    add_json,
    directory_of,
    topic_text,
)
from geminga.cli.main import EXIT_OK, Parser

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
        index, names = stopped.load_index(), stopped.ledger_records()
        rows = _ledger_rows(stopped, index, names)
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


def _ledger_rows(stopped: StoppedBookie, index: LedgerIndex, names: LedgerRecords) -> list[dict[str, Any]]:
    journal_entries: dict[int, int] = {}
    for _, segment in unflushed(stopped.disk, stopped.journals, index):
        journal_entries[segment.ledger_id] = journal_entries.get(segment.ledger_id, 0) + len(segment.ends)
    logs: dict[int, list[int]] = {}
    entries: dict[int, int] = {}
    sizes: dict[int, int] = {}
    for log_id in sorted(index.usage):
        for ledger_id, usage in index.usage[log_id].items():
            logs.setdefault(ledger_id, []).append(log_id)
            entries[ledger_id] = entries.get(ledger_id, 0) + usage.entries
            sizes[ledger_id] = sizes.get(ledger_id, 0) + usage.bytes
    rows = []
    for ledger_id in sorted({*logs, *journal_entries, *index.states, *names.ids()}):
        record = names.get(ledger_id)
        recorded = record.state if record is not None else "no record" if names.is_there else "-"
        rows.append(
            {
                "ledger": ledger_id,
                "topic": topic_text(record),
                "purpose": record.purpose if record is not None else "",
                "state": _state(index, ledger_id, recorded),
                "entries": entries.get(ledger_id, 0),
                "bytes": sizes.get(ledger_id, 0),
                "journal_entries": journal_entries.get(ledger_id, 0),
                "entry_logs": logs.get(ledger_id, []),
            }
        )
    return rows


def _state(index: LedgerIndex, ledger_id: int, recorded: str) -> str:
    state = index.states.get(ledger_id)
    if state is None:
        return recorded
    return {DELETED: "deleted", FENCED: f"{recorded}, fenced"}[state.kind]


def entry_logs(parser: Parser, arguments: Sequence[str]) -> int:
    add_data_dir(parser)
    add_json(parser)
    flags = parser.parse_strictly(arguments)
    with directory_of(flags) as stopped:
        index = stopped.load_index()
        deleted = {ledger_id for ledger_id, state in index.states.items() if state.kind == DELETED}
        if not flags.json:
            print(_LOG.format("LOG", "CLOSED", "RECORDS", "LEDGERS", "ALIVE", "SHARE", "LEDGER IDS"))
        for log_id in _log_ids(stopped):
            contents = log_contents(stopped.disk, stopped.entry_logs, log_id)
            usage = index.usage.get(log_id, {})
            alive = {ledger_id: of for ledger_id, of in usage.items() if ledger_id not in deleted}
            live_bytes = sum(of.bytes for of in alive.values())
            share = live_bytes / contents.record_bytes if contents.record_bytes else 0.0
            if flags.json:
                row = {
                    "log": log_id,
                    "path": entry_log_path(stopped.entry_logs, log_id),
                    "closed": contents.closed,
                    "record_bytes": contents.record_bytes,
                    "live_bytes": live_bytes,
                    "live_share": round(share, 4),
                    "ledgers": sorted(contents.ledgers),
                    "live_ledgers": sorted(alive),
                }
                print(json.dumps(row))
            else:
                ids = [f"{id_}{'' if id_ in alive else ' (dead)'}" for id_ in sorted(contents.ledgers)]
                print(
                    _LOG.format(
                        log_id,
                        "yes" if contents.closed else "no",
                        size_text(contents.record_bytes),
                        len(ids),
                        len(alive),
                        f"{share:.0%}",
                        ", ".join(ids[:6]) + (f", and {len(ids) - 6} more" if len(ids) > 6 else ""),
                    )
                )
    return EXIT_OK


def _log_ids(stopped: StoppedBookie) -> list[int]:
    from geminga.bookie.inspection import entry_log_ids

    return entry_log_ids(stopped.disk, stopped.entry_logs)


def journals(parser: Parser, arguments: Sequence[str]) -> int:
    add_data_dir(parser)
    add_json(parser)
    flags = parser.parse_strictly(arguments)
    with directory_of(flags) as stopped:
        mark = stopped.load_index().mark
        if not flags.json:
            print(_JOURNAL.format("JOURNAL", "FILE", "FOLLOWS", "STATE"))
        for journal in journal_files(stopped.disk, stopped.journals):
            header = journal.header
            if header is None:
                state = "never written"
            elif journal.journal_id < mark.journal_id:
                state = "not needed any more"
            elif journal.journal_id == mark.journal_id:
                state = f"replayed from offset {max(mark.offset, header.first_group)}"
            else:
                state = "replayed"
            if flags.json:
                row = {
                    "journal": journal.journal_id,
                    "path": journal.path,
                    "bytes": journal.bytes,
                    "written": header is not None,
                    "needed": header is not None and journal.journal_id >= mark.journal_id,
                    "previous": [header.previous_id, header.previous_end] if header is not None else None,
                }
                print(json.dumps(row))
                continue
            after = (
                f"{header.previous_id} up to {header.previous_end}" if header and header.previous_id else "-"
            )
            print(_JOURNAL.format(journal.journal_id, size_text(journal.bytes), after, state))
        if not flags.json:
            print(f"\nmark: journal {mark.journal_id}, offset {mark.offset}")
    return EXIT_OK


COMMANDS: dict[str, Callable[[Parser, Sequence[str]], int]] = {
    "ledgers": ledgers,
    "entry-logs": entry_logs,
    "journals": journals,
}
