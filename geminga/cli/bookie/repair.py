"""`geminga bookie verify`, `rebuild-index`, `release`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
from collections.abc import Callable, Sequence
from typing import NamedTuple

from geminga.bookie.index.database import ForeignIndex
from geminga.bookie.index.index_format import DELETED, OWNER_KEY, State, encode_owner
from geminga.bookie.index.ledger_index import LedgerIndex
from geminga.bookie.journal.inventory import JournalInventory
from geminga.bookie.offline.findings import Finding
from geminga.bookie.offline.held_ledgers import StoppedLedgerFiles, held_by, held_ledgers
from geminga.bookie.offline.inspection import entry_log_ids
from geminga.bookie.offline.verification import Verification
from geminga.bookie.records.file_names import entry_log_path, journal_path
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.ledger_mapping import directory_index, needed_from
from geminga.bookie.recovery.report import RecoveryReport, run_text
from geminga.bookie.running.bookie import Bookie, LedgerFiles
from geminga.bookie.running.foreign_files import check_headers, foreign_files
from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, Parser
from geminga.cli.bookie.directory import (
    LedgerRecords,
    NoDirectory,
    StoppedBookie,
    StoppedLedgers,
    add_data_dir,
    add_json,
    directory_of,
)
from geminga.cli.bookie.lists import size_text
from geminga.cli.bookie.losses import ShortLedger, short_ledgers
from geminga.errors import StorageError
from geminga.managed_ledger.unrecorded import ranges_text
from geminga.server.metadata_check import METADATA, PartedHistories
from geminga.storage.key_value import RocksKeyValue

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
        verification = Verification(stopped.disk, show, stopped.ledger_records().topic_of)
        if stopped.metadata_damage:
            path = os.path.join(stopped.data_dir, METADATA)
            text = f"{stopped.metadata_damage.removeprefix(path + ': ')}; only a backup has what it said"
            verification.add(Finding(path, None, text))
        _check_changes(stopped, verification)
        for path, text in foreign_files(stopped.disk, stopped.data_dir, stopped.lists, stopped.instance_id):
            verification.add(Finding(path, 0, text))
        indexes, files = [], []
        for place in stopped.ledgers:
            values, index = _readable_index(place, len(stopped.journals), verification)
            verification.check_logs(place.entry_logs, values)
            if values is not None:
                verification.check_index(
                    place.index_path, values, place.entry_logs, journals=len(stopped.journals)
                )
            if index is not None:
                indexes.append(index)
                files.append(StoppedLedgerFiles(place.path, values))
        is_whole = len(indexes) == len(stopped.ledgers)
        needed = needed_from(index.marks for index in indexes) if is_whole else None
        for number, directory in enumerate(stopped.journals):
            verification.check_journals(directory, needed[number] if needed is not None else None)
        if is_whole:
            _check_ends(stopped, indexes, verification)
            _check_covered(stopped, files, verification)
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
                " a crash cuts the last write short, and nothing shows that these were ever whole"
            )
        if any(index.kept.below for index in indexes):
            print(
                "kept        entry logs are not deleted, since a start found files of several moments; "
                f"'geminga bookie release --data-dir {shlex.quote(stopped.data_dir)}' ends that"
            )
        print(f"damage      {counts.findings or 'none'}")
    return EXIT_FAILED if counts.findings else EXIT_OK


def _check_changes(stopped: StoppedBookie, verification: Verification) -> None:
    path = os.path.join(stopped.data_dir, METADATA)
    try:
        if lacking := stopped.changes_missing():
            text = f"it lacks its last {lacking} changes, by the note beside the journals"
            verification.add(Finding(path, None, text))
    except PartedHistories as error:
        verification.add(Finding(path, None, str(error)))


def _check_ends(stopped: StoppedBookie, indexes: Sequence[LedgerIndex], verification: Verification) -> None:
    with contextlib.suppress(StorageError):  # reported already, by the check that reads all rows
        for short in short_ledgers(stopped, indexes, stopped.ledger_records()):
            path = stopped.ledgers[directory_index(short.ledger_id, len(stopped.ledgers))].path
            verification.add(Finding(path, None, str(short)))


def _check_covered(
    stopped: StoppedBookie, files: Sequence[StoppedLedgerFiles], verification: Verification
) -> None:
    """Report the entries of entry logs that neither the index nor a journal has, and each index that the
    journals have left behind.
    """
    with contextlib.suppress(StorageError):  # reported already, by the check of the file that cannot be read
        topic_of = stopped.ledger_records().topic_of
        found = held_ledgers(stopped.disk, stopped.journal_directories, files)
        for place in stopped.ledgers:
            if place.path in found.outrun:
                text = "it is older than the oldest journal; the next start rebuilds it"
                verification.add(Finding(place.index_path, None, text))
        for run in found.unindexed:
            place = stopped.ledgers[directory_index(run.ledger_id, len(stopped.ledgers))]
            text = (
                f"it is older than the entry logs and lacks {run_text(run, topic_of)}; the next start adds "
                "them"
            )
            verification.add(Finding(place.index_path, None, text))


def _readable_index(
    place: StoppedLedgers, journals: int, verification: Verification
) -> tuple[RocksKeyValue | None, LedgerIndex | None]:
    if verification.disk.exists(place.damage_note):
        noted = verification.disk.read_file(place.damage_note).decode(errors="replace").strip()
        text = f"the next start rebuilds the index: {noted or 'this file asks for it'}"
        verification.add(Finding(place.damage_note, None, text))
    try:
        values = place.open_index()
    except StorageError as error:
        text = str(error).removeprefix(f"{place.index_path}: ")
        verification.add(Finding(place.index_path, None, text))
        return None, None
    index = LedgerIndex(values, journals=journals)
    try:
        index.load()
    except StorageError:
        return values, None  # `check_index` reports it
    return values, index


def rebuild_index(parser: Parser, arguments: Sequence[str]) -> int:
    add_data_dir(parser)
    flags = parser.parse_strictly(arguments)
    with directory_of(flags) as stopped:
        _refuse_absent(stopped)
        check_headers(stopped.disk, stopped.data_dir, stopped.lists, stopped.instance_id)
        for directory in stopped.journals:
            JournalInventory(stopped.disk, directory).check_names(JournalPosition(0, 0))
        names = stopped.ledger_records()
        old = [_put_aside(stopped, place) for place in stopped.ledgers]
        made = _rebuild(stopped, old, names)
        for place in stopped.ledgers:
            _forget_damage(stopped, place)
    report = made.report
    print(f"{report.entries_indexed} entries found in entry logs, {report.entries_replayed} in the journal")
    for number, journal_id in sorted({lost for index in old for lost in index.journals}):
        path = journal_path(stopped.journals[number], journal_id)
        if not stopped.disk.exists(path):
            print(f"{path} is not there; if it is put back, the next start reads it")
    if made.back:
        print(f"ledgers that the old index had marked as deleted are back, as topics name them: {made.back}")
    if made.aside:
        print(
            f"ledgers without a metadata record are set aside, as nothing says whether they were deleted: "
            f"{made.aside}; 'geminga bookie unrecorded restore --data-dir {shlex.quote(stopped.data_dir)}' "
            "brings them back under their topics"
        )
    for index in old:
        if index.is_foreign:
            print("the old index is that of another directory: nothing was taken from it")
        elif not index.is_readable:
            print("the old index could not be read: fences and deletions under way that it had are forgotten")
        if index.aside:
            print(f"the old index is kept in {index.aside}; delete it when all is well")
    for damage in (*report.damages, *made.short):
        print(damage)
    if made.is_behind:
        print(
            "a start will be refused: the metadata is behind the bookie's files; put the right one back, or "
            f"run 'geminga bookie unrecorded restore --data-dir {shlex.quote(stopped.data_dir)}'"
        )
    return EXIT_FAILED if report.damages or made.is_behind or made.short else EXIT_OK


def _refuse_absent(stopped: StoppedBookie) -> None:
    """An index of a directory that is not there would be a new, empty bookie."""
    for path in (*stopped.journal_directories, *(place.path for place in stopped.ledgers)):
        if not stopped.disk.exists(path):
            raise NoDirectory(
                f"{path}: there is no bookie directory to make an index of. Put it back, or restore the "
                "metadata if the bookie's directories are recorded there; nothing was changed"
            )


class _OldIndex(NamedTuple):
    """The facts that only the old index has, and the path of its files now; "" if there was none. One of
    another directory has none of them.
    """

    states: dict[int, State]
    journals: tuple[tuple[int, int], ...] = ()
    """The journals that it needed and that are not there, as in `Kept`."""
    is_readable: bool = True
    is_foreign: bool = False
    aside: str = ""


def _put_aside(stopped: StoppedBookie, place: StoppedLedgers) -> _OldIndex:
    if not place.has_index:
        return _OldIndex({})
    states: dict[int, State] | None = None
    journals: set[tuple[int, int]] = set()
    is_foreign = False
    try:
        with contextlib.closing(RocksKeyValue(place.index_path, read_only=True)) as values:
            place.check(values)
            index = LedgerIndex(values, journals=len(stopped.journals))
            index.load()
            states = index.states
            journals |= {*index.kept.journals}
            for number, mark in enumerate(index.marks):
                inventory = JournalInventory(stopped.disk, stopped.journals[number])
                journals |= {(number, lost) for lost in inventory.missing(inventory.damages(mark))}
    except ForeignIndex:
        is_foreign = True  # its ledgers have the ids of others here: a deletion would take one of those
    except StorageError:
        pass
    number = 1
    while stopped.disk.exists(aside := f"{place.index_path}.old-{number}"):
        number += 1
    stopped.disk.rename(place.index_path, aside)
    stopped.disk.sync_directory(os.path.dirname(place.index_path))
    path = os.path.abspath(aside)
    return _OldIndex(states or {}, tuple(sorted(journals)), states is not None, is_foreign, path)


def _forget_damage(stopped: StoppedBookie, place: StoppedLedgers) -> None:
    """Remove the note that makes the next start rebuild the index: this command has done it."""
    if stopped.disk.exists(place.damage_note):
        stopped.disk.unlink(place.damage_note)
        stopped.disk.sync_directory(os.path.dirname(place.damage_note))


def release(parser: Parser, arguments: Sequence[str]) -> int:
    add_data_dir(parser)
    flags = parser.parse_strictly(arguments)
    with directory_of(flags) as stopped:
        _refuse_absent(stopped)
        # Of all, before the first is changed: half a release would keep the logs of some directories.
        for place in stopped.ledgers:
            if not place.has_index:
                raise StorageError(
                    f"{place.index_path}: there is no index; start the broker once, then release"
                )
            with contextlib.closing(RocksKeyValue(place.index_path, read_only=True)) as read:
                place.check(read)
        logs = size = 0
        for place in stopped.ledgers:
            values = RocksKeyValue(place.index_path)
            try:
                index = LedgerIndex(values, journals=len(stopped.journals))
                index.load()
                ids = entry_log_ids(stopped.disk, place.entry_logs)
                dead = [each for each in ids if each < index.kept.below and not index.usage.get(each)]
                logs += len(dead)
                size += sum(stopped.disk.size_of(entry_log_path(place.entry_logs, each)) for each in dead)
                if index.kept.below:
                    # A journal that was missing is read in case that it is put back later.
                    index.keep(index.kept._replace(below=0))
            finally:
                values.close()
    print(
        f"released: the broker deletes {logs} entry logs ({size_text(size)}) after its next start, and "
        "compacts others again"
    )
    return EXIT_OK


class _Made(NamedTuple):
    """The outcome of a rebuild."""

    report: RecoveryReport
    back: str
    """The ledgers that the old index called deleted and that are kept, for people."""
    aside: str
    """Those that were set aside, for people."""
    is_behind: bool
    """True if the metadata will make the broker refuse to start."""
    short: list[ShortLedger]


def _rebuild(stopped: StoppedBookie, old: Sequence[_OldIndex], names: LedgerRecords) -> _Made:
    """A start of the bookie without an index: it makes it from the logs, and replays the journals. Then what
    the old index knew is marked again: fences, and deletions of ledgers that no topic or cursor names. A mark
    "deleted" that the metadata denies came from a broker that had other metadata.
    """
    import trio

    async def recover(places: list[LedgerFiles]) -> RecoveryReport:
        bookie = await Bookie.open_directories(
            stopped.disk, stopped.journal_directories, places, instance_id=stopped.instance_id
        )
        await bookie.close()
        return bookie.recovery

    with contextlib.ExitStack() as opened:
        places = []
        for place in stopped.ledgers:
            stopped.disk.make_directory(place.index_path)
            values = RocksKeyValue(place.index_path)
            opened.callback(values.close)
            if place.owner is not None:
                values.write([(OWNER_KEY, encode_owner(place.owner))], sync=True)
            places.append(LedgerFiles(place.path, values))
        report = trio.run(recover, places)
        indexes = [LedgerIndex(made.key_value, journals=len(stopped.journals)) for made in places]
        back: list[int] = []
        for place, index, before in zip(stopped.ledgers, indexes, old, strict=True):
            index.load()
            index.keep(index.kept._replace(journals=before.journals))
            for ledger_id, state in before.states.items():
                if state.kind == DELETED and names.is_named(ledger_id):
                    back.append(ledger_id)
                else:
                    index.set_state(ledger_id, state)
            index.purge(index.covered, entry_log_ids(stopped.disk, place.entry_logs))
        found = names.compare(held_by(indexes))
        for number, index in enumerate(indexes):
            if index.unsorted:
                index.set_aside(
                    [each for each in found.doubtful if directory_index(each, len(indexes)) == number]
                )
        short = list(short_ledgers(stopped, indexes, names))
    back = sorted(each for each in back if each in held_by(indexes).held)
    return _Made(report, ranges_text(back), ranges_text(found.doubtful), found.is_behind, short)


COMMANDS: dict[str, Callable[[Parser, Sequence[str]], int]] = {
    "verify": verify,
    "rebuild-index": rebuild_index,
    "release": release,
}
