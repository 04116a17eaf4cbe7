"""A data directory that no broker runs on, held for as long as somebody looks into it."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable
from typing import Any

from geminga.bookie.file_names import entry_log_directory, journal_directory
from geminga.bookie.ledger_index import LedgerIndex
from geminga.cli.data_directory import default_data_dir
from geminga.cli.main import Parser
from geminga.disk import DirectoryInUse, RealDisk
from geminga.errors import StorageError
from geminga.key_value import RocksKeyValue
from geminga.metadata import records
from geminga.metadata.records import LedgerRecord
from geminga.metadata.store import MetadataStore
from geminga.server import BOOKIE, INDEX, METADATA


class NoDirectory(StorageError):
    """Not a data directory, or one that is in use."""


def add_data_dir(parser: Parser) -> None:
    parser.add_argument(
        "--data-dir", metavar="DIR", help=f"the stopped broker's directory (default: {default_data_dir()})"
    )


def add_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


class StoppedBookie:
    """The bookie's files in a data directory, locked until `close`."""

    def __init__(self, data_dir: str) -> None:
        """NoDirectory if there is no bookie, or a broker runs on it."""
        self.disk = RealDisk()
        self.data_dir = os.path.abspath(data_dir)
        self.bookie = os.path.join(self.data_dir, BOOKIE)
        self.entry_logs = entry_log_directory(self.bookie)
        self.journals = journal_directory(self.bookie)
        self.index_path = os.path.join(self.data_dir, INDEX)
        self._held = contextlib.ExitStack()
        if not self.disk.exists(self.bookie):
            raise NoDirectory(f"{self.data_dir} is not a data directory of Geminga (it has no {BOOKIE!r})")
        try:
            self._held.callback(self.disk.lock(self.data_dir).release)
        except DirectoryInUse as error:
            raise NoDirectory(f"{error}; stop the broker first") from None

    def __enter__(self) -> StoppedBookie:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    @property
    def has_index(self) -> bool:
        return self.disk.exists(os.path.join(self.index_path, "CURRENT"))

    def open_index(self) -> RocksKeyValue:
        """CorruptData if RocksDB cannot read it; StorageError if it is not there."""
        if not self.has_index:
            raise StorageError(
                f"{self.index_path}: there is no index; 'geminga bookie rebuild-index' makes it anew"
            )
        return self._open(self.index_path)

    def load_index(self) -> LedgerIndex:
        index = LedgerIndex(self.open_index())
        index.load()
        return index

    def _open(self, path: str) -> RocksKeyValue:
        values = RocksKeyValue(path)
        self._held.callback(values.close)
        return values

    def ledger_records(self) -> LedgerRecords:
        """Whose the ledgers are, by the metadata. Call once."""
        path = os.path.join(self.data_dir, METADATA)
        there = self.disk.exists(os.path.join(path, "CURRENT"))
        return LedgerRecords(MetadataStore(self._open(path)) if there else None)


class LedgerRecords:
    """The metadata's view of the ledgers; empty if there is no metadata."""

    def __init__(self, store: MetadataStore | None) -> None:
        self._store = store

    @property
    def is_there(self) -> bool:
        return self._store is not None

    def get(self, ledger_id: int) -> LedgerRecord | None:
        path = records.ledger_path(ledger_id)
        stored = self._store.get(path) if self._store is not None else None
        return records.decode(LedgerRecord, stored.value, path) if stored is not None else None

    def ids(self) -> list[int]:
        names = self._store.children(records.LEDGERS) if self._store is not None else []
        return [records.ledger_id_of(name) for name in names]


def topic_text(record: LedgerRecord | None) -> str:
    """The topic's name as users know it."""
    if record is None:
        return ""
    if record.topic.startswith(f"{records.MANAGED_LEDGERS}/"):
        return str(records.topic_of(record.topic))
    return record.topic


def directory_of(flags: argparse.Namespace) -> StoppedBookie:
    return StoppedBookie(flags.data_dir or default_data_dir())


def file_in(flags: argparse.Namespace, directory: Callable[[StoppedBookie], str], held: Any) -> str:
    """The path that `flags.file` stands for: a number is one of the data directory's files. Takes the lock
    of the data directory that the file lies in, if it lies in one.
    """
    given: str = flags.file
    if given.isascii() and given.isdigit():
        stopped = held.enter_context(directory_of(flags))
        return directory(stopped)
    path = os.path.abspath(given)
    data_dir = os.path.dirname(os.path.dirname(os.path.dirname(path)))
    if os.path.basename(os.path.dirname(os.path.dirname(path))) == BOOKIE and RealDisk().exists(
        os.path.join(data_dir, METADATA)
    ):
        held.enter_context(StoppedBookie(data_dir))
    return path
