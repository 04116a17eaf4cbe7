"""Names the ledgers of a stopped bookie from its files alone, without metadata and index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from geminga.bookie.entry_logs.scan import read_names
from geminga.bookie.journal.scan import JournalScan
from geminga.bookie.offline.inspection import JournalFile, entry_log_ids, journal_files
from geminga.bookie.records.file_names import entry_log_path
from geminga.bookie.records.ledger_name import LedgerName, more_telling
from geminga.errors import GemingaError
from geminga.names import TopicName
from geminga.storage.disk import Disk

MANAGED_LEDGERS: Final = "/managed-ledgers"
"""The path below which the metadata has its topics (`metadata/records.py`)."""

__all__ = ["LedgerName", "ledger_names"]


def ledger_names(disk: Disk, journals: Sequence[str], entry_logs: Sequence[str]) -> dict[int, LedgerName]:
    """Every ledger that a journal or an entry log names, including deleted ones as long as their files
    exist. `journals` are the directories with the journal files, `entry_logs` those with the entry logs.

    Blocking; one footer, one group or one window of a file is in memory at a time. Damaged bytes only lose
    the names in them. Raises StorageError if a file cannot be read at all.
    """
    names: dict[int, LedgerName] = {}
    for directory in journals:
        for journal in journal_files(disk, directory):
            for ledger_id, name in _names_in_journal(disk, journal):
                names[ledger_id] = more_telling(names.get(ledger_id), name)
    for directory in entry_logs:
        for log_id in entry_log_ids(disk, directory):
            for ledger_id, name in _names_in_log(disk, directory, log_id):
                names[ledger_id] = more_telling(names.get(ledger_id), name)
    return names


def _names_in_journal(disk: Disk, journal: JournalFile) -> Iterator[tuple[int, LedgerName]]:
    if journal.header is None:
        return
    file = disk.open(journal.path)
    try:
        for group in JournalScan(file, journal.header, synced_end=journal.synced_end).groups(0):
            yield from group.names.items()
    finally:
        file.close()


def _names_in_log(disk: Disk, directory: str, log_id: int) -> Iterator[tuple[int, LedgerName]]:
    file = disk.open(entry_log_path(directory, log_id))
    try:
        for ledger_id, name in read_names(file, log_id).items():
            yield ledger_id, name._replace(topic=_path_of(name.topic))
    finally:
        file.close()


def _path_of(topic: str) -> str:
    """The topic's path. Entry logs of version 1 have the topic's name or a path."""
    try:
        return f"{MANAGED_LEDGERS}/{TopicName.parse(topic).path}" if "://" in topic else topic
    except GemingaError:
        return topic
