"""A data directory with several bookie directories, filled the way the server opens it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from geminga.bookie.running.bookie import Bookie
from geminga.config.config import Config
from geminga.limits import MIB
from geminga.metadata import records
from geminga.metadata.instance import check_instance
from geminga.metadata.records import LedgerIdsRecord, LedgerRecord, encode
from geminga.metadata.store import MetadataStore
from geminga.server.bookie_opening import open_bookie, open_database
from geminga.storage.disk import RealDisk
from geminga.storage.rocksdb import BlockCache

TOPIC_PATH = "/managed-ledgers/public/default/persistent/orders"


@asynccontextmanager
async def opened(data_dir: Path, config: Config) -> AsyncIterator[tuple[Bookie, MetadataStore]]:
    """Running; on a clean exit it is closed in order."""
    disk, cache = RealDisk(), BlockCache(MIB)
    disk.make_directory(str(data_dir))
    with contextlib.ExitStack() as held:
        held.callback(disk.lock(str(data_dir)).release)
        values = open_database(disk, os.path.join(data_dir, "metadata"), cache, held)
        async with trio.open_nursery() as nursery:
            store = MetadataStore(values)
            await nursery.start(store.run)
            instance = await check_instance(store, cluster="standalone", clock="real", now_ms=7)
            bookie, indexes, _ = await open_bookie(config, disk, str(data_dir), store, instance, cache, held)
            for index in indexes:
                nursery.start_soon(index.run)
            await nursery.start(bookie.run)
            yield bookie, store
            await bookie.close()
            nursery.cancel_scope.cancel()


async def add_entries(
    bookie: Bookie, store: MetadataStore, ledger_ids: list[int], count: int, *, flush: bool = True
) -> None:
    """Durable on return; ledger `id` has the bodies `<id>-<entry>`."""
    durable: dict[int, int] = {}
    await store.put(LedgerIdsRecord.path, encode(LedgerIdsRecord(next_id=max(ledger_ids) + 1)))
    for ledger_id in ledger_ids:
        record = LedgerRecord(topic=TOPIC_PATH, purpose="data", created_ms=1)
        await store.put(records.ledger_path(ledger_id), encode(record))
        writer = bookie.create_ledger(
            ledger_id,
            on_durable=lambda last, id_=ledger_id: durable.update({id_: last}),  # type: ignore[misc]
            on_failed=lambda error: None,
            topic=TOPIC_PATH,
        )
        for entry in range(count):
            writer.append(b"%d-%d" % (ledger_id, entry))
    while len(durable) < len(ledger_ids) or min(durable.values()) < count - 1:
        await trio.lowlevel.checkpoint()
    if flush:
        await bookie.flush()
