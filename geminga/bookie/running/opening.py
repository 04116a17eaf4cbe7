"""Opens a bookie's directories: recovers everything, and starts nothing. Blocking."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

from geminga.bookie.entry_logs.reader import EntryLogs
from geminga.bookie.entry_logs.writer import EntryLogWriter
from geminga.bookie.index.ledger_index import LedgerIndex
from geminga.bookie.journal.files import JournalFiles
from geminga.bookie.records.file_names import entry_log_directory, journal_directory
from geminga.bookie.records.owner import Owner
from geminga.bookie.records.records import Run
from geminga.bookie.records.settings import BookieSettings, journal_share, ledger_directory_share
from geminga.bookie.recovery.directory_replay import DirectoryReplay
from geminga.bookie.recovery.recovery import Recovery
from geminga.bookie.recovery.report import RecoveryReport
from geminga.bookie.running.storage import LedgerStorage
from geminga.storage.disk import Disk
from geminga.storage.key_value import KeyValue


class LedgerFiles(NamedTuple):
    """A ledger directory: entry logs are below `directory`; `key_value` is their index, which the caller
    opened.
    """

    directory: str
    key_value: KeyValue


class Opened(NamedTuple):
    """A recovered bookie's parts, one for each directory, in the order of the lists."""

    disk: Disk
    journal_directories: Sequence[str]
    ledger_directories: Sequence[str]
    journals: list[JournalFiles]
    storages: list[LedgerStorage]
    report: RecoveryReport
    missing: list[list[Run]]
    """For each ledger directory, the entries that the index has and that are in no file."""
    skipped: tuple[tuple[int, int], ...]
    """See `Recovery.skipped`."""


def open_all(
    disk: Disk,
    journals: Sequence[str],
    ledgers: Sequence[LedgerFiles],
    settings: BookieSettings,
    instance_id: str,
) -> Opened:
    """See `Bookie.open_directories`. If it raises, no file is left open."""
    assert journals
    assert ledgers
    with contextlib.ExitStack() as files:
        opened = _open_all(disk, journals, ledgers, settings, instance_id, files)
        files.pop_all()
    return opened


def _open_all(
    disk: Disk,
    journals: Sequence[str],
    ledgers: Sequence[LedgerFiles],
    settings: BookieSettings,
    instance_id: str,
    files: contextlib.ExitStack,
) -> Opened:
    share = ledger_directory_share(settings, len(ledgers))
    replays, storages = [], []
    for directory in map(journal_directory, journals):
        disk.make_directory(directory)
        disk.close_to_others(directory)
    for position, ledger in enumerate(ledgers, 1):
        directory = entry_log_directory(ledger.directory)
        disk.make_directory(directory)
        disk.close_to_others(directory)
        index = LedgerIndex(ledger.key_value, journals=len(journals))
        # Before recovery, which decides by the marks whether this index is trusted.
        index.load()
        logs = EntryLogs(disk, directory)
        # A log that is lost stays missing: a new one of its id would be taken for it. So would it by an old
        # copy of the index, if the log was deleted.
        next_log_id = max(index.next_log_id, 1 + max((*logs.ids(), *index.usage), default=0))
        writer = EntryLogWriter(
            disk, directory, share, next_log_id=next_log_id, owner=Owner(instance_id, position)
        )
        # A start that fails is tried again in the same process (`opened_with`), so no descriptor may be left.
        files.callback(logs.close)
        files.callback(writer.close)
        replays.append(DirectoryReplay(disk, share, index, logs, writer))
        storages.append(LedgerStorage(disk, share, index, logs, writer))
    paths = [journal_directory(directory) for directory in journals]
    recovery = Recovery(disk, paths, journal_share(settings, len(journals)), replays, instance_id)
    journal_files = recovery.run()
    for storage, replay in zip(storages, replays, strict=True):
        storage.overlook_missing(replay.lengths)
    return Opened(
        disk,
        journals,
        [ledger.directory for ledger in ledgers],
        journal_files,
        storages,
        recovery.report,
        recovery.missing,
        recovery.skipped,
    )
