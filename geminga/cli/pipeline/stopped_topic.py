"""One topic of a stopped broker, opened as the broker opens it, alone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from typing import NamedTuple

import trio
from msgspec.structs import replace

from geminga.bookie.running.directory_lists import DirectoryLists, absolute
from geminga.clock import RealClock
from geminga.config.config import Config
from geminga.config.memory_budget import memory_parts
from geminga.errors import GemingaError, StorageError, SubscriptionNotFound
from geminga.managed_ledger.chain.tail_cache import TailCache
from geminga.managed_ledger.cursor.cursor import Cursor
from geminga.managed_ledger.managed_ledger import ManagedLedger
from geminga.metadata import records
from geminga.metadata.bookie_directories import recorded_directories
from geminga.metadata.ledger_ids import LedgerIds
from geminga.metadata.records import InstanceRecord
from geminga.metadata.store import MetadataStore
from geminga.names import TopicName
from geminga.server.bookie_opening import open_bookie, open_database
from geminga.server.metadata_check import METADATA, look_at
from geminga.server.room_settings import ledger_settings
from geminga.storage.disk import RealDisk
from geminga.storage.disk_errors import DirectoryInUse
from geminga.storage.rocksdb import BlockCache


class StoppedTopic(NamedTuple):
    topic: ManagedLedger
    cursor: Cursor
    directories: list[str]
    """All that have journals or entry logs."""


@contextlib.asynccontextmanager
async def opened_topic(data_dir: str, topic: str, subscription: str) -> AsyncIterator[StoppedTopic]:
    """The topic and a cursor of it, until the block is left: then all is flushed, and everything is in entry
    logs.

    StorageError if a broker runs there, TopicNotFound, SubscriptionNotFound.
    """
    disk = RealDisk()
    path = os.path.join(data_dir, METADATA)
    if not disk.exists(path):
        raise StorageError(f"{data_dir} is not a data directory of Geminga (it has no {METADATA!r})")
    error: GemingaError | None = None
    with contextlib.ExitStack() as held:
        try:
            held.callback(disk.lock(data_dir).release)
        except DirectoryInUse as in_use:
            raise StorageError(f"{in_use}; stop the broker first") from None
        look_at(disk, data_dir, DirectoryLists())  # as a start does: nothing is written to mixed files
        async with trio.open_nursery() as nursery, contextlib.AsyncExitStack() as opened:
            try:
                yield await _open(disk, data_dir, topic, subscription, nursery, opened, held)
            except GemingaError as failed:
                # Raised again outside: here the nursery would make a group of it.
                error = failed
            await opened.aclose()
            nursery.cancel_scope.cancel()
    if error is not None:
        raise error


async def _open(
    disk: RealDisk,
    data_dir: str,
    topic: str,
    subscription: str,
    nursery: trio.Nursery,
    opened: contextlib.AsyncExitStack,
    held: contextlib.ExitStack,
) -> StoppedTopic:
    """`opened` closes in order what runs in the nursery; `held` what comes after that."""
    config = Config()
    cache = BlockCache(memory_parts(config).block_cache)
    metadata = MetadataStore(open_database(disk, os.path.join(data_dir, METADATA), cache, held))
    await nursery.start(metadata.run)
    stored = metadata.get(InstanceRecord.path)
    if stored is None:
        raise StorageError(f"{data_dir}: no broker has ever run there")
    instance = records.decode(InstanceRecord, stored.value, InstanceRecord.path)
    record = recorded_directories(metadata)
    lists = DirectoryLists()
    if record is not None:
        lists = DirectoryLists(tuple(record.journals), tuple(record.ledgers))
    journals, ledgers = [[absolute(data_dir, name) for name in names] for names in lists]
    if record is not None:
        config = replace(config, journal_directories=tuple(journals), ledger_directories=tuple(ledgers))
    bookie, indexes, _ = await open_bookie(config, disk, data_dir, metadata, instance, cache, held)
    for index in indexes:
        await nursery.start(index.run)
    await nursery.start(bookie.run)
    opened.push_async_callback(bookie.close)
    ledger = await ManagedLedger.open(
        records.managed_ledger_path(TopicName.parse(topic)),
        bookie,
        metadata,
        LedgerIds(metadata),
        RealClock(),
        ledger_settings(config),
        tail_cache=TailCache(memory_parts(config).tail_cache),
        create=False,
    )
    ledger.life.run_in(nursery)
    opened.push_async_callback(ledger.life.close)
    if subscription not in ledger.cursors:
        raise SubscriptionNotFound(f"{topic} has no subscription {subscription!r}")
    return StoppedTopic(ledger, ledger.cursors[subscription], sorted({*journals, *ledgers}))
