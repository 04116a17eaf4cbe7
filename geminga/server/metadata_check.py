"""Checks that the metadata belongs to the bookie, before the first byte is written.

RocksDB rewrites its log and manifest when it opens a directory for writing, and a file that is restored
after that is useless. So both databases are first opened read-only. A start that is refused here has written
nothing but its process id into the lock's file, and restoring the right files is enough.

The check costs two openings of RocksDB, the rows of the index that a start keeps in memory anyway, the list
of ledgers, and the tables of the journals' groups behind the marks. A new data directory has none of these.
The directory's lock is held, so the start opens the files that were checked.
"""

from __future__ import annotations

import contextlib
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from geminga.bookie.index.database import NOTE
from geminga.bookie.offline.held_ledgers import HeldLedgers, StoppedLedgerFiles, held_ledgers
from geminga.bookie.records.file_names import entry_log_directory, journal_directory
from geminga.bookie.records.ledger_name import LedgerName
from geminga.bookie.running.directory_cookies import (
    check_index,
    check_owners,
    claimed_by,
    has_bookie_files,
    index_directory,
    owner_in,
    refuse_living_neighbours,
)
from geminga.bookie.running.directory_lists import DEFAULT, DirectoryLists, absolute
from geminga.bookie.running.foreign_files import check_headers, instance_in
from geminga.errors import CorruptData, StorageError
from geminga.managed_ledger.unrecorded import Comparison, compare, deleted_by_topic, ledgers_by_topic
from geminga.metadata.bookie_directories import recorded_directories
from geminga.metadata.change_note import History, lacking_changes, read_note
from geminga.metadata.instance import starts_of
from geminga.metadata.records import InstanceRecord, LedgerRecord, decode, ledger_path
from geminga.metadata.store import MetadataStore
from geminga.storage.disk import Disk
from geminga.storage.key_value import RocksKeyValue
from geminga.storage.rocksdb import BlockCache

if TYPE_CHECKING:
    from geminga.bookie.running.bookie import Bookie

_CACHE_BYTES = 1 << 20
METADATA = "metadata"


class MetadataBehind(StorageError):
    """The bookie has ledgers that the metadata does not know, or the metadata lacks changes that it had.
    Nothing was written.
    """


class PartedHistories(StorageError):
    """The metadata and the bookie's files are of two copies of one data directory that both ran on. Nothing
    was written.
    """


class Directories(NamedTuple):
    """A data directory, opened read-only."""

    lists: DirectoryLists
    held: HeldLedgers
    comparison: Comparison
    lost_instance: str
    """The instance in the directories' cookies or files, if the metadata has no record of an instance: that
    record is durable before the first of them is written. "" if the metadata has one, or nothing says.
    """
    is_restoring: bool
    """Whether a command that was to complete the metadata was interrupted."""


def check_metadata(disk: Disk, data_dir: str, wanted: DirectoryLists, *, cluster: str) -> None:
    """Raise MetadataBehind if the metadata has no record of ledgers that the bookie has, or lacks changes
    that it had. The text names ledgers, topics and entries, and the next step. `wanted` and `cluster` are
    configured values, used if the metadata has none. Blocking; the caller holds the data directory's lock.
    Raises CorruptData if the metadata is damaged, DirectoryInUse if a directory of the bookie is in use by
    another process.
    """
    if not (
        disk.exists(os.path.join(data_dir, METADATA))
        or claimed_by(disk, data_dir, wanted)
        or has_bookie_files(disk, absolute(data_dir, DEFAULT))
    ):
        return  # new: `server.py` refuses any other directory without it
    refuse_living_neighbours(disk, data_dir, wanted)
    try:
        # A ledger's record is durable before its first entry, and is removed after its deletion is synced. So
        # no crash makes a ledger without a record: what is found here was copied, or lost, by hand.
        seen = look_at(disk, data_dir, wanted)
        if seen.comparison.is_behind or seen.lost_instance:
            raise MetadataBehind(refusal(disk, data_dir, seen, cluster=cluster))
    except StorageError:
        # Another broker may have claimed a directory since the first look. It is a neighbour's then, and the
        # advice for one that is lost would be wrong.
        refuse_living_neighbours(disk, data_dir, wanted)
        raise


def look_at(disk: Disk, data_dir: str, wanted: DirectoryLists) -> Directories:
    """Blocking. Raises ForeignLists if the metadata is of another instance than a directory; CorruptData if
    it is damaged; PartedHistories; ForeignFiles; MisnamedLogs; ForeignIndex.
    """
    with contextlib.ExitStack() as opened:
        values = _metadata_values(disk, os.path.join(data_dir, METADATA), opened)
        metadata = MetadataStore(values) if values is not None else None
        lists = _lists(disk, data_dir, metadata, wanted)
        missing, is_restoring = 0, False
        instance = metadata.get(InstanceRecord.path) if metadata is not None else None
        lost = instance_in(disk, data_dir, lists) if instance is None else ""
        instance_id = lost
        if instance is not None:
            instance_id = decode(InstanceRecord, instance.value, InstanceRecord.path).instance_id
            # First: with metadata of another instance every ledger looks unrecorded, and the advice for that
            # would mix the topics of two data directories.
            check_owners(disk, data_dir, lists, instance_id)
            assert values is not None
            missing, is_restoring = changes_missing(disk, data_dir, lists, instance_id, values)
        # Before any record of theirs is read: they may be another broker's, or all at wrong places.
        check_headers(disk, data_dir, lists, instance_id)
        cache = BlockCache(_CACHE_BYTES)
        # Before ledgers are compared, as above.
        ledgers = [
            StoppedLedgerFiles(
                absolute(data_dir, name), _index(disk, data_dir, lists, name, instance_id, cache, opened)
            )
            for name in lists.ledgers
        ]
        held = held_ledgers(disk, [absolute(data_dir, name) for name in lists.journals], ledgers)
        found = compare(held, metadata)._replace(changes_missing=missing)
        # Metadata of a copy that ran on may have too few changes to be told by the note, and what is advised
        # for older metadata would serve its ledgers under wrong topics.
        names = names_of(disk, data_dir, lists) if found.is_behind else {}
        if metadata is not None and _records_other_topics(metadata, names):
            raise PartedHistories(_parted_text(disk, data_dir, lists))
        return Directories(lists, held, found, lost, is_restoring)


def _records_other_topics(metadata: MetadataStore, names: Mapping[int, LedgerName]) -> bool:
    """Whether a ledger has another topic by its record than by the bookie's files."""
    for ledger_id, name in names.items():
        path = ledger_path(ledger_id)
        stored = metadata.get(path) if name.topic else None
        if stored is not None and decode(LedgerRecord, stored.value, path).topic != name.topic:
            return True
    return False


def changes_missing(
    disk: Disk, data_dir: str, lists: DirectoryLists, instance_id: str, metadata: RocksKeyValue
) -> tuple[int, bool]:
    """How many changes the metadata lacks by the change note, and whether a command that was to complete it
    was interrupted. Raises PartedHistories.
    """
    noted = read_note(disk, absolute(data_dir, lists.journals[0]))
    if noted is None or noted.instance_id != instance_id:
        return 0, False
    starts = starts_of(MetadataStore(metadata))
    lacking = lacking_changes(noted, History(metadata.found_changes, starts))
    if lacking is None:
        raise PartedHistories(_parted_text(disk, data_dir, lists))
    return lacking, noted.restoring in {start.id for start in starts}


def _metadata_values(disk: Disk, path: str, opened: contextlib.ExitStack) -> RocksKeyValue | None:
    if not disk.exists(os.path.join(path, "CURRENT")):
        return None
    values = RocksKeyValue(path, block_cache=BlockCache(_CACHE_BYTES), read_only=True)
    opened.callback(values.close)
    return values


def _lists(
    disk: Disk, data_dir: str, metadata: MetadataStore | None, wanted: DirectoryLists
) -> DirectoryLists:
    record = recorded_directories(metadata) if metadata is not None else None
    if record is not None:
        return DirectoryLists(tuple(record.journals), tuple(record.ledgers))
    return DirectoryLists() if disk.exists(absolute(data_dir, DEFAULT)) else wanted


def _index(
    disk: Disk,
    data_dir: str,
    lists: DirectoryLists,
    directory: str,
    instance_id: str,
    cache: BlockCache,
    opened: contextlib.ExitStack,
) -> RocksKeyValue | None:
    """The index; None if the start will rebuild it."""
    path = index_directory(data_dir, directory)
    if not disk.exists(os.path.join(path, "CURRENT")):
        return None
    # A damaged index is no reason to refuse: the start rebuilds it from the entry logs.
    try:
        values = RocksKeyValue(path, block_cache=cache, read_only=True)
        opened.callback(values.close)
        check_index(values, data_dir, lists, directory, owner_in(lists, directory, instance_id))
    except CorruptData:
        return None
    # Looked at with a note as well: the start takes fences and deletions over from such an index.
    return values if not disk.exists(path + NOTE) else None


# ---- what is said


def names_of(disk: Disk, data_dir: str, lists: DirectoryLists) -> dict[int, LedgerName]:
    """The owner of each ledger, from the bookie's own files; unreadable files are skipped. Blocking."""
    from geminga.bookie.offline.ledger_names import ledger_names

    names: dict[int, LedgerName] = {}
    with contextlib.suppress(StorageError):
        names = ledger_names(
            disk,
            [journal_directory(absolute(data_dir, name)) for name in lists.journals],
            [entry_log_directory(absolute(data_dir, name)) for name in lists.ledgers],
        )
    return names


def refusal(disk: Disk, data_dir: str, seen: Directories, *, cluster: str) -> str:
    """The text of a refused start, with the next step; several lines."""
    flags = f"--data-dir {shlex.quote(data_dir)}"
    if seen.lost_instance:
        flags += _lost_flags(data_dir, seen.lists, cluster)
    found = seen.comparison
    lines = [f"{os.path.join(data_dir, METADATA)}: the metadata is behind the bookie's files."]
    if seen.lost_instance:
        lines.append(
            f"It is gone or empty, and the bookie's directories are those of instance {seen.lost_instance}."
        )
    if found.changes_missing:
        lines.append(
            f"It lacks its last {found.changes_missing} changes, by the note beside the journals. "
            "Subscriptions, policies and requests to compact may be among them, and messages that they keep "
            "would be deleted."
        )
        if seen.is_restoring:
            lines.append("A command that was to complete it was interrupted: repeat it, as said below.")
    if found.unrecorded:
        lines.append("It has no record of ledgers that the bookie holds:")
        by_topic = ledgers_by_topic(found.unrecorded, seen.held.held, names_of(disk, data_dir, seen.lists))
        lines += [f"  {line}" for line in by_topic]
    if found.deleted:
        lines.append("It names ledgers that the bookie's index has marked as deleted:")
        lines += [f"  {line}" for line in deleted_by_topic(found.deleted)]
    if found.last_id >= found.next_id:
        lines.append(
            f"The bookie has seen ledger {found.last_id}, and by the metadata "
            + (f"only ids below {found.next_id} were given" if found.next_id else "no id was ever given")
            + ": ids would be used twice."
        )
    lines.append(
        "A crash never leaves files like this. The metadata is an older copy, was copied while a broker "
        "ran, or has lost the end of its write-ahead log; or the index is older, and the ledgers were "
        "deleted since. Nothing was written. Put back the files that "
        "belong together, and start again; if there are none, run this, and start again:"
    )
    # One command, the one that brings most back. A ledger that only the index has deleted comes back with a
    # new index; `restore` would take it out of its topic.
    if found.deleted:
        lines.append(
            f"  geminga bookie rebuild-index --data-dir {shlex.quote(data_dir)}  makes a new index out of "
            "the entry logs, where these ledgers may be"
        )
    else:
        what = (
            "gives each topic a subscription that keeps what it has"
            if found.changes_missing and not found.unrecorded
            else "brings the ledgers back under their topics"
        )
        lines.append(f"  geminga bookie unrecorded restore {flags}  {what}")
    return "\n".join(lines)


def _lost_flags(data_dir: str, lists: DirectoryLists, cluster: str) -> str:
    """The flags of the command that the metadata would have made unnecessary."""
    flags = f" --cluster {shlex.quote(cluster)}" if cluster != "standalone" else ""
    if lists != DirectoryLists():
        for name, paths in zip(("journal", "ledger"), lists, strict=True):
            given = ",".join(absolute(data_dir, path) for path in paths)
            flags += f" --{name}-directories {shlex.quote(given)}"
    return flags


def _parted_text(disk: Disk, data_dir: str, lists: DirectoryLists) -> str:
    metadata, journals = os.path.join(data_dir, METADATA), absolute(data_dir, lists.journals[0])
    kept = f"{metadata}.old-1"
    saved = f" ({kept} is from before a command that changed it)" if disk.exists(kept) else ""
    return (
        f"{metadata} and {journals} are of two copies of one data directory that both ran on: by the note "
        "beside the journals, or by the topics that ledgers have in each, they parted. One ledger id may "
        "have different messages in them, which would be served under wrong topics. Nothing was written. "
        f"Put back the directory that was exchanged{saved}, and start again. Only if the right metadata is "
        f"lost, move {metadata} to another place, and start again: the broker names the command that brings "
        "the messages back under their topics, without their subscriptions and policies"
    )


def aside_text(disk: Disk, data_dir: str, lists: DirectoryLists, bookie: Bookie, aside: Sequence[int]) -> str:
    """The start's message about ledgers that it has set aside; several lines. Blocking."""
    flags = f"--data-dir {shlex.quote(data_dir)}"
    by_topic = ledgers_by_topic(aside, bookie.inventory.usage(), names_of(disk, data_dir, lists))
    return "\n".join(
        [
            "the index was rebuilt, or is older than the entry logs, and ledgers have no record: they were "
            "deleted, or the metadata is behind. They are set aside, neither served nor deleted:",
            *(f"  {line}" for line in by_topic),
            f"with the broker stopped, 'geminga bookie unrecorded restore {flags}' brings them back under "
            f"their topics, and 'geminga bookie unrecorded delete --all {flags}' deletes all that are set "
            "aside",
        ]
    )
