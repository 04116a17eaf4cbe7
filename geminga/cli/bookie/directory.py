"""A stopped broker's data directory, locked while a command inspects it."""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

from geminga.bookie.index.database import NOTE
from geminga.bookie.index.ledger_index import LedgerIndex
from geminga.bookie.offline.held_ledgers import HeldLedgers
from geminga.bookie.offline.ledger_names import ledger_names
from geminga.bookie.records.file_names import (
    entry_log_directory,
    entry_log_path,
    journal_directory,
    journal_path,
)
from geminga.bookie.records.ledger_name import NAMELESS, LedgerName
from geminga.bookie.records.owner import Owner
from geminga.bookie.running.directory_cookies import (
    check_index,
    claim_directories,
    claimed_by,
    index_directory,
    lock_default_directory,
    lock_folders,
    owner_in,
)
from geminga.bookie.running.directory_lists import COOKIE, DirectoryLists, ForeignLists, absolute, check_lists
from geminga.bookie.running.foreign_files import instance_in
from geminga.cli.arguments.data_directory import default_data_dir, named
from geminga.cli.arguments.parser import Parser
from geminga.errors import CorruptData, InvalidName, StorageError
from geminga.managed_ledger.orphans import named_by_topic
from geminga.managed_ledger.unrecorded import Comparison, compare
from geminga.metadata import ledger_topics, records
from geminga.metadata.bookie_directories import recorded_directories
from geminga.metadata.records import InstanceRecord, LedgerRecord, ManagedLedgerRecord
from geminga.metadata.store import MetadataStore
from geminga.server.metadata_check import METADATA, changes_missing
from geminga.server.server import BOOKIE
from geminga.storage.disk import RealDisk
from geminga.storage.disk_errors import DirectoryInUse
from geminga.storage.key_value import KeyValue, RocksKeyValue


class NoDirectory(StorageError):
    """Not a data directory, or one that is in use."""


def add_data_dir(parser: Parser) -> None:
    parser.add_argument(
        "--data-dir",
        type=named,
        metavar="DIR",
        help=f"the stopped broker's directory (default: {default_data_dir()})",
    )


def add_json(parser: Parser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object a line")


class StoppedLedgers:
    """One ledger directory: where its entry logs and their index are."""

    def __init__(
        self,
        disk: RealDisk,
        path: str,
        index_path: str,
        held: contextlib.ExitStack,
        owner: Owner | None,
        check: Callable[[KeyValue], None],
    ) -> None:
        """`check` raises ForeignIndex if the index is not that of `owner`; see `check_index`."""
        self.path = path
        self.owner = owner
        self.check = check
        self.entry_logs = entry_log_directory(path)
        self.index_path = index_path
        self.damage_note = index_path + NOTE
        """The file that a broker writes when it finds damage in the index."""
        self._disk = disk
        self._held = held

    @property
    def has_index(self) -> bool:
        return self._disk.exists(os.path.join(self.index_path, "CURRENT"))

    def open_index(self) -> RocksKeyValue:
        """For reading only. CorruptData if RocksDB cannot read it; StorageError if it is not there, or is
        another directory's.
        """
        if not self.has_index:
            raise StorageError(
                f"{self.index_path}: there is no index; 'geminga bookie rebuild-index' rebuilds it"
            )
        values = RocksKeyValue(self.index_path, read_only=True)
        self._held.callback(values.close)
        self.check(values)
        return values


class StoppedBookie:
    """All files of the bookie of a data directory, locked until `close`."""

    def __init__(self, data_dir: str, given: DirectoryLists | None = None) -> None:
        """NoDirectory if there is no bookie, one of its directories is missing, or a broker runs on it.
        `given` are the lists of directories where the metadata, which records them, is lost.
        """
        self.disk = RealDisk(for_reading=True)
        self.data_dir = os.path.abspath(data_dir)
        self._given = given or DirectoryLists()
        self._held = contextlib.ExitStack()
        self._metadata: MetadataStore | None = None
        self._metadata_values: RocksKeyValue | None = None
        self.instance_id = ""
        """By the metadata, or else by the directories' cookies or files; "" if nothing says."""
        self.metadata_damage = ""
        """Why the metadata cannot be read; "" if it can, or is not there."""
        if not self._has_metadata and not claimed_by(self.disk, self.data_dir, self._given):
            self._refuse_without_bookie()
        with contextlib.ExitStack() as held:
            self._held = held
            try:
                held.callback(self.disk.lock(self.data_dir).release)
                lock_default_directory(self.disk, self.data_dir, held)
                lists = self._claimed()
                lock_folders(self.disk, self.data_dir, lists, held)
            except DirectoryInUse as error:
                raise NoDirectory(f"{error}; stop the broker first") from None
            except ForeignLists as error:
                raise NoDirectory(str(error)) from None
            self.lists = lists
            """Where its directories are, as recorded."""
            self.journal_directories = [absolute(self.data_dir, name) for name in lists.journals]
            self.journals = [journal_directory(path) for path in self.journal_directories]
            """Where the journal files are, one directory for each journal."""
            owners = {name: owner_in(lists, name, self.instance_id) for name in lists.ledgers}
            self.ledgers = [
                StoppedLedgers(
                    self.disk,
                    absolute(self.data_dir, name),
                    index_directory(self.data_dir, name),
                    held,
                    owner,
                    functools.partial(
                        check_index, data_dir=self.data_dir, lists=lists, directory=name, expected=owner
                    ),
                )
                for name, owner in owners.items()
            ]
            self._held = held.pop_all()
            for place in self.ledgers:
                place._held = self._held

    def __enter__(self) -> StoppedBookie:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    @property
    def _has_metadata(self) -> bool:
        return self.disk.exists(os.path.join(self.data_dir, METADATA, "CURRENT"))

    def _refuse_without_bookie(self) -> None:
        if not self.disk.exists(os.path.join(self.data_dir, BOOKIE)):
            raise NoDirectory(
                f"{self.data_dir} is not a data directory of Geminga: it has neither metadata nor "
                f"{BOOKIE!r}. If the broker's directories are elsewhere, 'geminga bookie unrecorded' takes "
                "--journal-directories and --ledger-directories"
            )

    def _claimed(self) -> DirectoryLists:
        """The lists as recorded, or else as given; each directory has its cookie looked at."""
        try:
            store = self._opened_metadata()
            record = recorded_directories(store) if store is not None else None
            stored = store.get(InstanceRecord.path) if store is not None else None
        except CorruptData as error:
            self.metadata_damage = str(error)
            print(f"{error}\nassuming that all files are in {self.data_dir}", file=sys.stderr)
            self.instance_id = instance_in(self.disk, self.data_dir, DirectoryLists())
            return DirectoryLists()
        lists = self._given
        if record is not None:
            lists = DirectoryLists(tuple(record.journals), tuple(record.ledgers))
            if self._given != DirectoryLists():
                check_lists(lists, self._given)
        if stored is not None:
            self.instance_id = records.decode(InstanceRecord, stored.value, InstanceRecord.path).instance_id
        else:
            self.instance_id = instance_in(self.disk, self.data_dir, lists)
        claim_directories(self.disk, self.data_dir, lists, self.instance_id, self._held, first=False)
        return lists

    def _opened_metadata(self) -> MetadataStore | None:
        if self._metadata is None and self._has_metadata:
            values = RocksKeyValue(os.path.join(self.data_dir, METADATA), read_only=True)
            self._held.callback(values.close)
            self._metadata, self._metadata_values = MetadataStore(values), values
        return self._metadata

    def changes_missing(self) -> int:
        """How many changes the metadata lacks, by the note beside the journals. Raises PartedHistories."""
        if self.metadata_damage or self._opened_metadata() is None:
            return 0
        assert self._metadata_values is not None
        return changes_missing(self.disk, self.data_dir, self.lists, self.instance_id, self._metadata_values)[
            0
        ]

    def close_metadata(self) -> None:
        """Close the read-only database, so that the caller can open it for writing."""
        if self._metadata_values is not None:
            self._metadata_values.close()
        self._metadata = self._metadata_values = None

    def load_indexes(self) -> list[LedgerIndex]:
        """One for each ledger directory."""
        indexes = [LedgerIndex(place.open_index(), journals=len(self.journals)) for place in self.ledgers]
        for index in indexes:
            index.load()
        return indexes

    def readable_indexes(self) -> list[LedgerIndex | None]:
        """As `load_indexes`, with None, told on standard error, in place of one that cannot be read."""
        indexes: list[LedgerIndex | None] = []
        for place in self.ledgers:
            try:
                index = LedgerIndex(place.open_index(), journals=len(self.journals))
                index.load()
            except StorageError as error:
                print(f"geminga bookie: {error}", file=sys.stderr)
                indexes.append(None)
            else:
                indexes.append(index)
        return indexes

    def ledger_records(self) -> LedgerRecords:
        """The owner of each ledger: from the metadata, else from the bookie's files."""
        return LedgerRecords(None if self.metadata_damage else self._opened_metadata(), self._ledger_names)

    def _ledger_names(self) -> dict[int, LedgerName]:
        return ledger_names(self.disk, self.journals, [place.entry_logs for place in self.ledgers])

    def entry_log(self, log_id: int) -> str:
        """The path of the log with this id; StorageError if that is in several directories."""
        return self._only(
            [entry_log_path(place.entry_logs, log_id) for place in self.ledgers], f"entry log {log_id}"
        )

    def journal(self, journal_id: int) -> str:
        """The path of the journal with this id; StorageError if that is in several directories."""
        return self._only(
            [journal_path(directory, journal_id) for directory in self.journals], f"journal {journal_id}"
        )

    def _only(self, paths: list[str], name: str) -> str:
        found = [path for path in paths if self.disk.exists(path)]
        if len(found) > 1:
            raise StorageError(f"{name} is in several directories; name one by its path: {', '.join(found)}")
        return found[0] if found else paths[0]


class LedgerRecords:
    """The metadata's view of the ledgers; empty if there is no metadata."""

    def __init__(
        self, store: MetadataStore | None, names_in_files: Callable[[], dict[int, LedgerName]]
    ) -> None:
        """`names_in_files` is asked once a ledger has no record."""
        self._store = store
        self._names_in_files = functools.cache(names_in_files)

    @property
    def is_there(self) -> bool:
        return self._store is not None

    def get(self, ledger_id: int) -> LedgerRecord | None:
        path = records.ledger_path(ledger_id)
        stored = self._store.get(path) if self._store is not None else None
        return records.decode(LedgerRecord, stored.value, path) if stored is not None else None

    def name(self, ledger_id: int) -> LedgerName:
        """Purpose, and the topic's name as users know it: by the metadata, else by the bookie's files; empty
        if neither says.
        """
        record = self.get(ledger_id)
        found = record if record is not None else self._names_in_files().get(ledger_id, NAMELESS)
        return LedgerName(found.purpose, topic_text(found.topic))

    def topic_of(self, ledger_id: int) -> str:
        """The topic's name as users know it; "" if nothing says."""
        try:
            return self.name(ledger_id).topic
        except StorageError:
            return ""

    def is_named(self, ledger_id: int) -> bool:
        """True if a record of its topic, or of a cursor, names the ledger."""
        record = self.get(ledger_id)
        return (
            record is not None
            and self._store is not None
            and ledger_id in named_by_topic(self._store, record.topic)
        )

    def compare(self, held: HeldLedgers) -> Comparison:
        """The ledgers of the bookie compared with the ledgers of the metadata."""
        return compare(held, self._store)

    def closed(self) -> Iterator[tuple[str, int, int]]:
        """Topic, ledger id and number of entries of each ledger that a topic names and has closed."""
        topics: dict[str, ManagedLedgerRecord | None] = {}
        for ledger_id in self.ids():
            record = self.get(ledger_id)
            if record is None or record.purpose != "data" or self._store is None:
                continue
            path = record.topic
            if path not in topics:
                stored = self._store.get(path)
                topics[path] = records.decode(ManagedLedgerRecord, stored.value, path) if stored else None
            topic = topics[path]
            for info in topic.ledgers if topic is not None else ():
                if info.ledger_id == ledger_id and info.closed_ms:
                    yield topic_text(record.topic), ledger_id, info.entries

    def ids(self) -> list[int]:
        names = self._store.children(records.LEDGERS) if self._store is not None else []
        return [records.ledger_id_of(name) for name in names]


def topic_text(path: str) -> str:
    """The topic's name as users know it; the path itself if it is none of a topic."""
    try:
        return ledger_topics.topic_text(path)
    except InvalidName:
        return path


def directory_of(flags: argparse.Namespace, given: DirectoryLists | None = None) -> StoppedBookie:
    return StoppedBookie(flags.data_dir or default_data_dir(), given)


def file_in(flags: argparse.Namespace, directory: Callable[[StoppedBookie], str], held: Any) -> str:
    """The path that `flags.file` stands for: a number is one of the data directory's files. Takes the lock
    of the data directory that the file lies in, if it lies in one.
    """
    given: str = flags.file
    if given.isascii() and given.isdigit():
        stopped = held.enter_context(directory_of(flags))
        return directory(stopped)
    path = os.path.abspath(given)
    directory_path = os.path.dirname(os.path.dirname(path))
    data_dir = os.path.dirname(directory_path)
    disk = RealDisk(for_reading=True)
    if os.path.basename(directory_path) == BOOKIE and disk.exists(os.path.join(data_dir, METADATA)):
        held.enter_context(StoppedBookie(data_dir))
    elif disk.exists(os.path.join(directory_path, COOKIE)):
        try:
            held.callback(disk.lock(directory_path).release)
        except DirectoryInUse as error:
            raise NoDirectory(f"{error}; stop the broker first") from None
    return path
