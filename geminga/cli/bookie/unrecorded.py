"""`geminga bookie unrecorded`: ledgers that the bookie holds and the metadata does not know, listed, set
aside, brought back under their topics, or deleted.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio

from geminga.bookie.index.database import IndexDatabase, opened_with
from geminga.bookie.index.index_format import OWNER_KEY, decode_owner
from geminga.bookie.offline.held_ledgers import held_by
from geminga.bookie.records.ledger_name import LedgerName
from geminga.bookie.running.bookie import Bookie, LedgerFiles
from geminga.bookie.running.directory_lists import DirectoryLists, absolute, lists_from
from geminga.cli.arguments.data_directory import default_data_dir
from geminga.cli.arguments.parser import EXIT_FAILED, EXIT_OK, Parser
from geminga.cli.bookie.directory import StoppedBookie, add_data_dir, add_json, directory_of
from geminga.cli.bookie.lists import size_text
from geminga.clock import RealClock
from geminga.errors import LedgerNotFound, StorageError
from geminga.managed_ledger.cursor import cursor_state_format
from geminga.managed_ledger.restore import Merged, Restorer, StoredLedgers, topic_of
from geminga.managed_ledger.unrecorded import TOPICS_NAMED_MAX, Comparison, compare, ranges_text, topic_text
from geminga.metadata import records
from geminga.metadata.bookie_directories import record_directories, recorded_directories
from geminga.metadata.change_note import History, Noted, read_note, replace_note
from geminga.metadata.instance import (
    check_instance,
    new_start_id,
    record_starts,
    starts_of,
    with_new_start,
)
from geminga.metadata.records import BookieDirectoriesRecord
from geminga.metadata.store import MetadataStore
from geminga.server.failure import storage_error
from geminga.server.metadata_check import METADATA, look_at, names_of
from geminga.storage.key_value import RocksKeyValue
from geminga.storage.rocksdb import BlockCache
from geminga.wire.stored_entry import STAMP_MAGIC

_ROW = "{:>10} {:>10} {:>12}  {:8} {:14} {}"
_CACHE_BYTES = 8 << 20
_PEEK_BYTES = 1 << 16
DEFAULT_CLUSTER = "standalone"
UNFINISHED = ".unfinished"
ACTIONS = ("list", "set-aside", "restore", "delete")


def unrecorded(parser: Parser, arguments: Sequence[str]) -> int:
    parser.add_argument("action", choices=ACTIONS, help="what to do with them; list writes nothing")
    parser.add_argument("ledgers", metavar="LEDGER", nargs="*", type=int, help="only these (default: all)")
    parser.add_argument("--topic", help="restore: where ledgers go whose topic no file names")
    parser.add_argument("--all", action="store_true", help="delete: every ledger that is set aside")
    parser.add_argument("--cluster", help="clusterName, if the metadata is lost (default: standalone)")
    for key in ("journal", "ledger"):
        parser.add_argument(
            f"--{key}-directories", metavar="DIR,...", default="", help=f"{key}Directories, if it is lost"
        )
    add_data_dir(parser)
    add_json(parser)
    flags = parser.parse_strictly(arguments)
    if flags.topic and (flags.action != "restore" or not flags.ledgers):
        parser.error("--topic goes with restore and the ids of the ledgers")
    if flags.action == "delete" and flags.all == bool(flags.ledgers):
        parser.error("delete: name the ledgers, or give --all")
    with directory_of(flags, _given_lists(flags)) as stopped:
        if stopped.metadata_damage:
            raise StorageError(f"{stopped.metadata_damage}; without it there is nothing to compare")
        lists = stopped.lists
        seen = look_at(stopped.disk, stopped.data_dir, lists)
        names = names_of(stopped.disk, stopped.data_dir, lists)
        if flags.action == "list":
            return _list(seen.held.held, seen.comparison, names, as_json=flags.json)
        stopped.close_metadata()
        try:
            return trio.run(_change, stopped, flags, names, seen.comparison.changes_missing)
        except BaseExceptionGroup as group:
            if group.subgroup(KeyboardInterrupt) is not None:
                raise KeyboardInterrupt from None
            # The metadata may fail in its own task and in the caller alike: one line tells it.
            error = storage_error(group)
            if error is None:
                raise
            failure = error
        raise failure


def _given_lists(flags: argparse.Namespace) -> DirectoryLists:
    data_dir = flags.data_dir or default_data_dir()
    given = (flags.journal_directories, flags.ledger_directories)
    return lists_from(
        data_dir, *([path.strip() for path in each.split(",") if path.strip()] for each in given)
    )


# ---- list


def _list(held: object, found: Comparison, names: dict[int, LedgerName], *, as_json: bool) -> int:
    assert isinstance(held, dict)
    states = dict.fromkeys(found.unrecorded, "no record")
    states |= dict.fromkeys(found.doubtful, "to be aside") | dict.fromkeys(found.aside, "set aside")
    named = {each: topic for topic, of_topic in found.deleted.items() for each in of_topic}
    states |= dict.fromkeys(named, "deleted, named")
    if not as_json:
        print(_ROW.format("LEDGER", "ENTRIES", "BYTES", "PURPOSE", "STATE", "TOPIC"))
    for ledger_id, state in sorted(states.items()):
        name = names.get(ledger_id, LedgerName("", named.get(ledger_id, "")))
        entries, size = held.get(ledger_id, (0, 0))
        row = {
            "ledger": ledger_id,
            "entries": entries,
            "bytes": size,
            "purpose": name.purpose,
            "state": state,
            "topic": topic_text(name.topic),
        }
        if as_json:
            print(json.dumps(row))
        else:
            texts = [ledger_id, entries, size_text(size), name.purpose or "-", state, row["topic"] or "-"]
            print(_ROW.format(*texts))
    if not as_json:
        print(f"\n{len(states)} ledgers")
        if found.changes_missing:
            print(f"the metadata lacks its last {found.changes_missing} changes")
        if found.is_behind:
            print("a start is refused until the right metadata is back, or they are restored or set aside")
    return EXIT_OK


# ---- what writes


class _Open(NamedTuple):
    """A stopped bookie, recovered, and the metadata beside it."""

    bookie: Bookie
    store: MetadataStore
    found: Comparison
    last_id: int
    cluster: str
    accept_metadata: Callable[[], None]
    """Blocking: from now on a start takes the metadata as it is for complete."""

    @property
    def unknown(self) -> list[int]:
        return sorted({*self.found.unrecorded, *self.found.doubtful, *self.found.aside})


class _Command(NamedTuple):
    """A command that changes the metadata."""

    id: str
    """As that of a start."""
    before: History | None
    """What the note said of the metadata before any such command."""


@asynccontextmanager
async def _opened(
    stopped: StoppedBookie, cluster: str | None, command: _Command | None = None
) -> AsyncIterator[_Open]:
    """Everything that waits in the journals is in entry logs. A lost record of the instance or of its
    directories is there again; `cluster` is None for the one that is recorded, or the default. `command` is
    what changes the metadata.
    """
    disk = stopped.disk
    metadata_path = os.path.join(stopped.data_dir, METADATA)
    with contextlib.ExitStack() as held:
        cache = BlockCache(_CACHE_BYTES)
        disk.make_directory(metadata_path)
        values = RocksKeyValue(metadata_path, block_cache=cache)
        held.callback(values.close)
        indexes = []
        for place in stopped.ledgers:
            disk.make_directory(place.index_path.rpartition("/")[0])
            indexes.append(IndexDatabase(disk, place.index_path, block_cache=cache, owner=place.owner))
            held.callback(indexes[-1].close)
        places = [
            LedgerFiles(place.path, index) for place, index in zip(stopped.ledgers, indexes, strict=True)
        ]
        async with trio.open_nursery() as nursery:
            store = MetadataStore(values)
            await nursery.start(store.run)
            instance = await check_instance(
                store,
                cluster=cluster or _recorded_cluster(store) or DEFAULT_CLUSTER,
                clock="real",
                now_ms=RealClock().now_ms(),
                new_id=stopped.instance_id or _instance_in(indexes),
            )
            if command is not None:
                await _record_command(store, command.id, values.found_changes)
            if stopped.lists != DirectoryLists() and recorded_directories(store) is None:
                made = BookieDirectoriesRecord(
                    journals=list(stopped.lists.journals), ledgers=list(stopped.lists.ledgers)
                )
                await record_directories(store, made)
            bookie = await opened_with(
                disk,
                indexes,
                lambda: Bookie.open_directories(
                    disk, stopped.journal_directories, places, instance_id=instance.instance_id
                ),
            )
            everything = held_by([directory.storage.index for directory in bookie.directories])

            def accept_metadata() -> None:
                values.flush()
                history = History(values.synced_changes, starts_of(store))
                noted = Noted(instance.instance_id, history, before=command.before if command else None)
                replace_note(disk, _note_directory(stopped), noted)

            found = compare(everything, store)
            yield _Open(bookie, store, found, everything.last_id, instance.cluster, accept_metadata)
            await bookie.close()
            nursery.cancel_scope.cancel()


async def _record_command(store: MetadataStore, id_: str, found_changes: int) -> None:
    """So that a start tells what the command has changed from what it was."""
    starts = starts_of(store)
    if id_ not in {start.id for start in starts}:  # else an interrupted command is repeated
        await record_starts(store, with_new_start(starts, id_, found_changes))


def _instance_in(indexes: Sequence[IndexDatabase]) -> str | None:
    """The instance that the indexes say they are of; None if none says."""
    owners = (index.get(OWNER_KEY) for index in indexes)
    return next((decode_owner(owner).instance_id for owner in owners if owner is not None), None)


def _recorded_cluster(store: MetadataStore) -> str:
    path = records.InstanceRecord.path
    stored = store.get(path)
    return records.decode(records.InstanceRecord, stored.value, path).cluster if stored is not None else ""


async def _change(
    stopped: StoppedBookie, flags: argparse.Namespace, names: dict[int, LedgerName], changes_missing: int
) -> int:
    command = None
    if flags.action != "delete":
        kept = await stopped.disk.run(_copy_metadata, stopped)
        print(f"the metadata as it was is kept in {kept}; delete it when all is well")
        command = await stopped.disk.run(_begin, stopped)
    async with _opened(stopped, flags.cluster, command) as opened:
        wanted = sorted({*opened.unknown} & {*flags.ledgers}) if flags.ledgers else opened.unknown
        if flags.action == "delete":
            return await _delete(opened, wanted)
        restorer = Restorer(
            opened.store, _stored(opened.bookie), cluster=opened.cluster, now_ms=RealClock().now_ms()
        )
        await restorer.give_ids_behind(max(opened.last_id, *names, -1))
        placed: dict[str, list[int]] = {}
        lost: set[str] = set()
        if flags.action == "restore":
            cursors = (names[each] for each in opened.found.unrecorded if each in names)
            lost = {name.topic for name in cursors if name.purpose == "cursor"}
            for ledger_id in wanted:
                name = names.get(ledger_id, LedgerName("", flags.topic or ""))
                topic = topic_of(name.topic)
                purpose = name.purpose or await _purpose(opened.bookie, ledger_id)
                if topic is not None and topic.is_persistent and purpose == "data":
                    placed.setdefault(records.managed_ledger_path(topic), []).append(ledger_id)
        results = {
            path: await restorer.restore(
                path,
                placed.get(path, []),
                opened.found.deleted.get(path, []),
                is_cursor_lost=path in lost,
                lacks_changes=changes_missing > 0,
            )
            for path in sorted({*restorer.topics(), *placed, *opened.found.deleted})
        }
        # The index may name entries, in logs that are missing, of ledgers that no topic has any more.
        dropped = {each for result in results.values() if result is not None for each in result.dropped}
        placed = {path: [each for each in ids if each not in dropped] for path, ids in placed.items()}
        back = {each for of_topic in placed.values() for each in of_topic}
        held = opened.bookie.inventory.ledgers() | opened.bookie.inventory.aside()
        aside = sorted(({*opened.unknown} | dropped) & held - back)
        await opened.bookie.inventory.set_aside(aside, lift=back & opened.bookie.inventory.aside())
        usage = opened.bookie.inventory.usage()
        # Last: a command that is interrupted is still asked for by the next start, and repeated.
        await stopped.disk.run(opened.accept_metadata)
    if changes_missing:
        print(
            f"the metadata lacks {changes_missing} changes: subscriptions, policies and requests to compact "
            "of that time are gone; start the broker and set them again"
        )
    for path, ids in sorted((path, ids) for path, ids in placed.items() if ids):
        entries = sum(usage[each].entries for each in ids)
        what = "ledger" if len(ids) == 1 else "ledgers"
        print(f"{topic_text(path)}: {what} {ranges_text(ids)} restored, {entries} entries")
    is_short = _tell_missing(results)
    if back or opened.found.deleted or changes_missing:
        print("subscriptions go back to what the metadata leads to: some messages may be delivered again")
    _tell_holders(results)
    if aside:
        print(
            f"set aside, neither served nor deleted: ledgers {ranges_text(aside)}; see '... unrecorded list'"
        )
        nameless = [each for each in aside if each not in names or not names[each].topic]
        if nameless:
            print(
                f"no file names the topic of {ranges_text(nameless)}: those that hold messages go back with "
                "'geminga bookie unrecorded restore LEDGER... --topic TOPIC --data-dir "
                f"{shlex.quote(stopped.data_dir)}'"
            )
    if not (back or aside or is_short or changes_missing):
        print("every ledger of the bookie has a record")
    return EXIT_FAILED if is_short else EXIT_OK


def _tell_holders(results: dict[str, Merged | None]) -> None:
    holders = [(topic_text(path), result.holder) for path, result in results.items() if result is not None]
    holders = [(topic, holder) for topic, holder in holders if holder]
    if not holders:
        return
    print(
        "subscriptions may be lost; until you delete them, new ones keep all entries of these topics, from "
        "the first on, whatever the others acknowledge:"
    )
    for topic, holder in holders[:TOPICS_NAMED_MAX]:
        print(f"  {topic}: {holder}")
    if len(holders) > TOPICS_NAMED_MAX:
        print(f"  ... and {len(holders) - TOPICS_NAMED_MAX} more topics")


def _tell_missing(results: dict[str, Merged | None]) -> bool:
    is_short = False
    for path, result in results.items():
        for missing in result.missing if result is not None else ():
            is_short = True
            count = missing.last - missing.first + 1
            print(f"{topic_text(path)}: {count} confirmed entries are not here, {missing}")
    return is_short


async def _delete(opened: _Open, wanted: Collection[int]) -> int:
    deletable = sorted(set(wanted) & opened.bookie.inventory.aside())
    for ledger_id in deletable:
        await opened.bookie.delete_ledger(ledger_id)
    print(f"deleted: {ranges_text(deletable) or 'nothing: only ledgers that are set aside can be deleted'}")
    return EXIT_OK if deletable else EXIT_FAILED


def _stored(bookie: Bookie) -> StoredLedgers:
    usage = bookie.inventory.usage()

    def entries(ledger_id: int) -> int:
        """Up to the last one that is there: a log may be missing that the index names."""
        count = bookie.last_entry_id(ledger_id) + 1
        missing = bookie.inventory.missing(ledger_id, count)
        return missing[-1][0] if missing and missing[-1][1] == count - 1 else count

    return StoredLedgers(
        entries,
        bookie.last_entry_id,
        lambda ledger_id: usage[ledger_id].bytes if ledger_id in usage else 0,
        bookie.inventory.missing,
    )


async def _purpose(bookie: Bookie, ledger_id: int) -> str:
    """By what the first of its entries that is there looks like: every message has the broker's stamp. "" if
    that cannot be told.
    """
    was_aside = ledger_id in bookie.inventory.aside()
    if was_aside:
        await bookie.inventory.set_aside([], lift=[ledger_id])
    try:
        missing = bookie.inventory.missing(ledger_id, bookie.last_entry_id(ledger_id) + 1)
        first = missing[0][1] + 1 if missing and missing[0][0] == 0 else 0
        [body, *_] = await bookie.read(ledger_id, first, first, bytes_max=_PEEK_BYTES)
    except (StorageError, LedgerNotFound):
        return ""
    if body.startswith(STAMP_MAGIC):
        return "data"
    with contextlib.suppress(StorageError, ValueError):
        cursor_state_format.decode(body)
        return "cursor"
    return ""


def _begin(stopped: StoppedBookie) -> _Command:
    """Before the first change: without a note the changes of a command that was interrupted would pass for
    those that are missing, and the next start would serve topics that nothing keeps yet.
    """
    directory = _note_directory(stopped)
    noted = read_note(stopped.disk, directory)
    if noted is None or noted.instance_id != stopped.instance_id:
        return _Command(new_start_id(), None)
    command = _Command(noted.restoring or new_start_id(), noted.before or noted.history)
    replace_note(stopped.disk, directory, noted._replace(restoring=command.id))
    return command


def _note_directory(stopped: StoppedBookie) -> str:
    return absolute(stopped.data_dir, stopped.lists.journals[0])


def _copy_metadata(stopped: StoppedBookie) -> str:
    """All files of the metadata beside it; durable on return, and its path."""
    disk, source = stopped.disk, os.path.join(stopped.data_dir, METADATA)
    number = 1
    while disk.exists(copy := f"{source}.old-{number}"):
        number += 1
    # Renamed when it is whole: a part, left by a full disk, would pass for the metadata as it was.
    unfinished = copy + UNFINISHED
    if disk.exists(unfinished):
        disk.remove_tree(unfinished)
    try:
        disk.make_directory(unfinished)
        for name in disk.list(source) if disk.exists(source) else ():
            if name != "LOCK":
                disk.replace_file(os.path.join(unfinished, name), disk.read_file(os.path.join(source, name)))
        disk.rename(unfinished, copy)
        disk.sync_directory(stopped.data_dir)
    except StorageError:
        if disk.exists(unfinished):
            disk.remove_tree(unfinished)
        raise
    return copy


COMMANDS: dict[str, Callable[[Parser, Sequence[str]], int]] = {"unrecorded": unrecorded}
