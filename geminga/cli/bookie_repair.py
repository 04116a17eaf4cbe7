"""`geminga bookie verify`, `rebuild-index`."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Sequence

from geminga.bookie.bookie import Bookie
from geminga.bookie.index_format import DELETED, State
from geminga.bookie.ledger_index import LedgerIndex
from geminga.bookie.recovery import RecoveryReport
from geminga.bookie.verification import Finding, Verification
from geminga.cli.bookie_directory import LedgerRecords, StoppedBookie, add_data_dir, add_json, directory_of
from geminga.cli.main import EXIT_FAILED, EXIT_OK, Parser
from geminga.errors import StorageError
from geminga.key_value import RocksKeyValue

FINDINGS_SHOWN_MAX = 1000


def verify(parser: Parser, arguments: Sequence[str]) -> int:
    add_data_dir(parser)
    add_json(parser)
    flags = parser.parse_strictly(arguments)
    shown = 0

    def show(finding: Finding) -> None:
        nonlocal shown
        shown += 1
        if flags.json:
            print(json.dumps(finding._asdict()))
        elif shown <= FINDINGS_SHOWN_MAX:
            print(finding)
        elif shown == FINDINGS_SHOWN_MAX + 1:
            print("... more are counted only")

    with directory_of(flags) as stopped:
        verification = Verification(stopped.disk, show)
        values, index = _readable_index(stopped, verification)
        verification.check_logs(stopped.entry_logs, values)
        if values is not None:
            verification.check_index(stopped.index_path, values, stopped.entry_logs)
        verification.check_journals(stopped.journals, index)
    counts = verification.counts
    if flags.json:
        print(json.dumps({"counts": dataclasses.asdict(counts)}))
    else:
        print(
            f"entry logs  {counts.entry_logs}, {counts.log_records} records, {counts.log_bytes} bytes\n"
            f"journals    {counts.journals}, {counts.journal_groups} groups,"
            f" {counts.journal_records} records\n"
            f"index       {counts.index_rows} rows, {counts.index_entries} entries"
        )
        if counts.unfinished_bytes or counts.torn_bytes:
            print(
                f"unfinished  {counts.unfinished_bytes} bytes in entry logs, {counts.torn_bytes} in journals;"
                " a crash left them, they were promised to nobody"
            )
        print(f"damage      {counts.findings or 'none'}")
    return EXIT_FAILED if counts.findings else EXIT_OK


def _readable_index(
    stopped: StoppedBookie, verification: Verification
) -> tuple[RocksKeyValue | None, LedgerIndex | None]:
    try:
        values = stopped.open_index()
    except StorageError as error:
        verification.add(Finding(stopped.index_path, None, str(error)))
        return None, None
    index = LedgerIndex(values)
    try:
        index.load()
    except StorageError:
        return values, None  # `check_index` reports it
    return values, index


def rebuild_index(parser: Parser, arguments: Sequence[str]) -> int:
    add_data_dir(parser)
    flags = parser.parse_strictly(arguments)
    with directory_of(flags) as stopped:
        names = stopped.ledger_records()
        states, aside = _put_aside(stopped)
        report, dropped = _rebuild(stopped, states or {}, names)
    print(f"{report.entries_indexed} entries found in entry logs, {report.entries_replayed} in the journal")
    if dropped:
        print(f"{dropped} ledgers left out: the metadata has no record of them, so they were deleted")
    if states is None and aside is not None:
        print("the old index could not be read: fences, and deletions under way, are forgotten")
    if aside is not None:
        print(f"the old index is kept in {aside}; delete it when all is well")
    for damage in report.damages:
        print(damage)
    return EXIT_FAILED if report.damages else EXIT_OK


def _put_aside(stopped: StoppedBookie) -> tuple[dict[int, State] | None, str | None]:
    """What only the old index knows (None if it cannot be read), and where its files are now."""
    if not stopped.has_index:
        return None, None
    states: dict[int, State] | None
    try:
        values = RocksKeyValue(stopped.index_path)
        try:
            index = LedgerIndex(values)
            index.load()
            states = index.states
        finally:
            values.close()
    except StorageError:
        states = None
    number = 1
    while stopped.disk.exists(aside := f"{stopped.index_path}.old-{number}"):
        number += 1
    stopped.disk.rename(stopped.index_path, aside)
    stopped.disk.sync_directory(stopped.data_dir)
    return states, os.path.abspath(aside)


def _rebuild(
    stopped: StoppedBookie, states: dict[int, State], names: LedgerRecords
) -> tuple[RecoveryReport, int]:
    """A start of the bookie without an index: it makes it from the logs, and replays the journal. Then what
    is known to be deleted is deleted again. Returns how many ledgers the metadata does not have, too.
    """
    import trio

    async def recover() -> RecoveryReport:
        bookie = await Bookie.open(stopped.disk, values, stopped.bookie)
        await bookie.close()
        return bookie.recovery

    stopped.disk.make_directory(stopped.index_path)
    values = RocksKeyValue(stopped.index_path)
    try:
        report = trio.run(recover)
        index = LedgerIndex(values)
        index.load()
        for ledger_id, state in states.items():
            index.set_state(ledger_id, state)
        # Records are synced before the first entry. If there are none at all it is the metadata that is lost.
        recorded = set(names.ids())
        dropped = index.ledgers() - recorded if recorded else set()
        for ledger_id in dropped:
            index.set_state(ledger_id, State(DELETED, index.mark))
        index.purge()
        return report, len(dropped)
    finally:
        values.close()


COMMANDS: dict[str, Callable[[Parser, Sequence[str]], int]] = {
    "verify": verify,
    "rebuild-index": rebuild_index,
}
