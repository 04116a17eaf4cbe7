"""Opens the bookie: claims the directories that the first start has recorded, and opens its indexes and
journals.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from typing import NamedTuple, Protocol

from geminga.bookie.index.database import IndexDatabase, opened_with
from geminga.bookie.records.file_names import entry_log_directory, journal_directory
from geminga.bookie.records.owner import Owner
from geminga.bookie.running.bookie import Bookie, LedgerFiles
from geminga.bookie.running.directory_cookies import (
    claim_default_directory,
    claim_directories,
    index_directory,
    lock_folders,
    owner_in,
    what_is_gone,
)
from geminga.bookie.running.directory_lists import (
    DEFAULT,
    DirectoryLists,
    ForeignLists,
    absolute,
    check_lists,
    lists_from,
)
from geminga.config.config import Config
from geminga.managed_ledger.orphans import existing_ledgers
from geminga.metadata import records
from geminga.metadata.bookie_directories import record_directories, recorded_directories
from geminga.metadata.ledger_topics import topic_of_ledger
from geminga.metadata.records import BookieDirectoriesRecord, InstanceRecord
from geminga.metadata.store import MetadataStore
from geminga.server.metadata_check import METADATA
from geminga.server.room_settings import bookie_settings
from geminga.storage.disk import Disk
from geminga.storage.key_value import RocksKeyValue
from geminga.storage.rocksdb import BlockCache


class IndexOf(Protocol):
    """Opens the database of one index: `IndexDatabase`, or a class that extends it."""

    def __call__(
        self,
        disk: Disk,
        path: str,
        *,
        block_cache: BlockCache | None = None,
        owner: Owner | None = None,
    ) -> IndexDatabase: ...


class OpenBookie(NamedTuple):
    """Recovered, and not running yet. The caller must run the indexes, too."""

    bookie: Bookie
    indexes: list[IndexDatabase]
    paths: list[str]
    """All directories of the bookie's files."""


async def open_bookie(
    config: Config,
    disk: Disk,
    data_dir: str,
    metadata: MetadataStore,
    instance: InstanceRecord,
    block_cache: BlockCache,
    held: contextlib.ExitStack,
    index_of: IndexOf = IndexDatabase,
) -> OpenBookie:
    """Open the bookie; `held` closes indexes and releases directories. `metadata.run` must be running,
    because a first start with other directories than the default records them. `index_of` opens one index.
    Raises StorageError, including ForeignLists.
    """
    # An unmounted disk leaves an empty directory behind. A start once began an empty bookie there, beside
    # metadata that knew ledgers.
    instance_id = instance.instance_id
    lists = await _claimed_lists(config, disk, data_dir, metadata, instance, held)
    journals, ledgers = ([absolute(data_dir, name) for name in names] for names in lists)
    gone = await disk.run(what_is_gone, disk, data_dir, lists)
    if gone and metadata.children(records.LEDGERS):
        raise ForeignLists(gone)
    await disk.run(claim_default_directory, disk, data_dir, lists, instance_id, held)
    for path in (*map(journal_directory, journals), *map(entry_log_directory, ledgers)):
        await disk.run(disk.make_directory, path)  # so that a first start locks it, too
    await disk.run(lock_folders, disk, data_dir, lists, held)
    indexes = [
        await disk.run(
            _open_index,
            functools.partial(index_of, block_cache=block_cache, owner=owner_in(lists, name, instance_id)),
            disk,
            index_directory(data_dir, name),
            held,
        )
        for name in lists.ledgers
    ]
    open_all = functools.partial(
        Bookie.open_directories,
        disk,
        journals,
        [LedgerFiles(path, index) for path, index in zip(ledgers, indexes, strict=True)],
        bookie_settings(config),
        instance_id=instance_id,
        existing_ledgers=functools.partial(existing_ledgers, metadata),
        # Each may be a disk of its own. Without space for metadata or an index, entries are of no use.
        watched=[data_dir, os.path.join(data_dir, METADATA), *(index.path for index in indexes)],
        topic_of=functools.partial(topic_of_ledger, metadata),
    )
    bookie = await opened_with(disk, indexes, open_all)
    return OpenBookie(bookie, indexes, _paths_of(data_dir, lists))


def _paths_of(data_dir: str, lists: DirectoryLists) -> list[str]:
    return [
        *(journal_directory(absolute(data_dir, name)) for name in lists.journals),
        *(entry_log_directory(absolute(data_dir, name)) for name in lists.ledgers),
        *(index_directory(data_dir, name) for name in lists.ledgers),
    ]


def _open_index(
    open_it: Callable[[Disk, str], IndexDatabase], disk: Disk, path: str, held: contextlib.ExitStack
) -> IndexDatabase:
    disk.make_directory(path.rpartition("/")[0])
    index = open_it(disk, path)
    held.callback(index.close)
    return index


def open_database(disk: Disk, path: str, cache: BlockCache, held: contextlib.ExitStack) -> RocksKeyValue:
    """Open a database, created if absent; `held` closes it. Blocking. Raises CorruptData if it
    is damaged.
    """
    disk.make_directory(path)
    disk.close_to_others(path)
    values = RocksKeyValue(path, block_cache=cache, descriptors=disk.descriptors)
    held.callback(values.close)
    return values


async def _claimed_lists(
    config: Config,
    disk: Disk,
    data_dir: str,
    metadata: MetadataStore,
    instance: InstanceRecord,
    held: contextlib.ExitStack,
) -> DirectoryLists:
    """The configured directories, after a check that they are those of the first start, all exist, and
    belong to this instance.
    """
    # A ledger belongs to a directory by its id modulo their number. With another list, or another order,
    # entries would be looked for where they are not.
    wanted = lists_from(data_dir, config.journal_directories, config.ledger_directories)
    claim = functools.partial(claim_directories, disk, data_dir, wanted, instance.instance_id, held)
    record = recorded_directories(metadata)
    if record is not None:
        recorded = DirectoryLists(tuple(record.journals), tuple(record.ledgers))
    elif wanted == DirectoryLists() or await disk.run(disk.exists, absolute(data_dir, DEFAULT)):
        recorded = DirectoryLists()
    else:
        # Claimed before they are recorded: a crash in between leaves cookies of this instance, which the next
        # start accepts. A record without cookies would look like disks that are gone.
        await disk.run(functools.partial(claim, first=True))
        made = BookieDirectoriesRecord(journals=list(wanted.journals), ledgers=list(wanted.ledgers))
        await record_directories(metadata, made)
        return wanted
    check_lists(recorded, wanted)
    await disk.run(functools.partial(claim, first=False))
    return wanted
