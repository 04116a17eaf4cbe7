"""The data directory of a stopped broker with a topic of any number of delayed messages, made in a minute: an
entry of 83 bytes each, as a client sent and a broker stored it, in closed entry logs. Only the way in is
short.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import trio

from geminga.bookie.entry_logs.entry_log_format import FooterLedger, encode_footer, encode_header
from geminga.bookie.index.index_format import Row, Usage
from geminga.bookie.records.file_names import entry_log_path
from geminga.bookie.records.ledger_name import LedgerName
from geminga.bookie.records.records import RECORD_PREFIX_BYTES
from geminga.cli.arguments.parser import EXIT_OK
from geminga.cli.main import main
from geminga.clock import RealClock
from geminga.config.config import Config
from geminga.managed_ledger.chain.tail_cache import TailCache
from geminga.managed_ledger.managed_ledger import ManagedLedger
from geminga.metadata import records
from geminga.metadata.instance import check_instance
from geminga.metadata.ledger_ids import LedgerIds
from geminga.metadata.records import LedgerIdsRecord, LedgerInfo, LedgerRecord, ManagedLedgerRecord
from geminga.metadata.store import MUST_NOT_EXIST, MetadataStore, Put
from geminga.names import TopicName
from geminga.pipeline.buckets.record_columns import Table, checksums, likeness
from geminga.server.bookie_opening import open_bookie
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import RocksKeyValue
from geminga.storage.rocksdb import BlockCache
from geminga.wire.message_metadata import stamp

TOPIC = "persistent://public/default/backlog"
SUBSCRIPTION = "sub"
PATH = records.managed_ledger_path(TopicName.parse(TOPIC))
ENTRIES_PER_LEDGER = 50_000
LEDGERS_PER_LOG = 60
ROW_ENTRIES = 1000
FIRST_LEDGER = 1000

Times = Callable[[np.ndarray], np.ndarray]
"""When the messages with these numbers are due, ms since 1970. A function of a module, to be pickled."""


class Part(NamedTuple):
    """One entry log: the messages of ledgers `first` to `last`, without the latter, counted from 0."""

    directory: str
    log_id: int
    first: int
    last: int
    published_ms: int
    due_ms: Times
    ledger_entries: int


def _varint(table: Table, at: int, values: np.ndarray, width: int) -> None:
    """Numbers that take just so many bytes."""
    for byte in range(width):
        more = 0x80 if byte < width - 1 else 0
        table[:, at + byte] = ((values >> (7 * byte)) & 0x7F) | more


def _big_endian(table: Table, at: int, values: np.ndarray, kind: str) -> None:
    width = np.dtype(kind).itemsize
    table[:, at : at + width] = values.astype(kind).reshape(-1, 1).view(np.uint8)


def ledger_records(number: int, published_ms: int, due_ms: Times, count: int) -> Table:
    """The records of one ledger of so many entries; the payload is the message's number."""
    numbers = np.arange(number * count, (number + 1) * count)
    stamped, name = stamp(published_ms), b"\x0a\x05bench"
    metadata_bytes = len(name) + (1 + 5) + (1 + 6) + (2 + 6)
    size_at = RECORD_PREFIX_BYTES + len(stamped) + 6
    at = size_at + 4
    width = at + metadata_bytes + 8
    table = np.zeros((count, width), np.uint8)
    _big_endian(table, 0, np.full(count, width - RECORD_PREFIX_BYTES), ">u4")
    _big_endian(table, 4, np.full(count, FIRST_LEDGER + number), ">u8")
    _big_endian(table, 12, np.arange(count), ">u8")
    table[:, RECORD_PREFIX_BYTES : size_at - 4] = np.frombuffer(stamped + b"\x0e\x01", np.uint8)
    _big_endian(table, size_at, np.full(count, metadata_bytes), ">u4")
    table[:, at : at + len(name)] = np.frombuffer(name, np.uint8)
    at += len(name)
    table[:, at] = 0x10
    _varint(table, at + 1, numbers + (1 << 28), 5)
    table[:, at + 6] = 0x18
    _varint(table, at + 7, np.full(count, published_ms), 6)
    table[:, at + 13 : at + 15] = (0x98, 0x01)
    _varint(table, at + 15, due_ms(numbers), 6)
    _big_endian(table, at + 21, numbers, ">u8")
    like = likeness(table)
    _big_endian(table, size_at - 4, checksums(table, like, ((size_at, width),)), ">u4")
    like = likeness(table)
    crc = checksums(table, like, ((0, 20), (RECORD_PREFIX_BYTES, width)))
    _big_endian(table, 20, crc, ">u4")
    return table


def write_log(part: Part) -> int:
    """Its length."""
    rows: list[tuple[int, Row]] = []
    ledgers = {}
    with open(entry_log_path(part.directory, part.log_id), "wb") as file:
        file.write(encode_header(part.log_id))
        place = file.tell()
        for number in range(part.first, part.last):
            table = ledger_records(number, part.published_ms, part.due_ms, part.ledger_entries)
            count, width = table.shape
            for first in range(0, count, ROW_ENTRIES):
                ends = range(width, width * ROW_ENTRIES + 1, width)
                rows.append((FIRST_LEDGER + number, Row(first, part.log_id, place + first * width, ends)))
            file.write(table.data)
            place += table.size
            ledgers[FIRST_LEDGER + number] = FooterLedger(Usage(count, table.size), LedgerName("data", PATH))
        file.write(encode_footer(place, ledgers, rows))
        return file.tell()


@contextlib.asynccontextmanager
async def stores(directory: Path) -> AsyncIterator[tuple[Any, MetadataStore, trio.Nursery]]:
    """What a broker stores in, open and running, without the broker. Closed on leaving."""
    disk = RealDisk()
    with contextlib.ExitStack() as held:
        async with trio.open_nursery() as nursery:
            disk.make_directory(str(directory / "metadata"))
            values = RocksKeyValue(str(directory / "metadata"))
            held.callback(values.close)
            metadata = MetadataStore(values)
            await nursery.start(metadata.run)
            instance = await check_instance(metadata, cluster="standalone", clock="real", now_ms=1)
            cache = BlockCache(1 << 20)
            bookie, indexes, _ = await open_bookie(
                Config(), disk, str(directory), metadata, instance, cache, held
            )
            for index in indexes:
                await nursery.start(index.run)
            await nursery.start(bookie.run)
            yield bookie, metadata, nursery
            await bookie.close()
            nursery.cancel_scope.cancel()


async def _make(directory: Path, ledgers: int, ledger_entries: int, published_ms: int) -> None:
    """A topic with a subscription, and what metadata say of its ledgers."""
    async with stores(directory) as (bookie, metadata, nursery):
        ids, tail = LedgerIds(metadata), TailCache(1 << 20)
        topic = await ManagedLedger.open(PATH, bookie, metadata, ids, RealClock(), tail_cache=tail)
        topic.life.run_in(nursery)
        await topic.open_cursor(SUBSCRIPTION, initial="earliest")
        await topic.life.close()
        width = ledger_records(0, published_ms, lambda numbers: numbers + published_ms, 1).shape[1]
        size = ledger_entries * (width - RECORD_PREFIX_BYTES)
        numbers = range(FIRST_LEDGER, FIRST_LEDGER + ledgers)
        record = LedgerRecord(topic=PATH, purpose="data", created_ms=published_ms, state="closed")
        for first in numbers[::500]:
            some = numbers[first - FIRST_LEDGER : first - FIRST_LEDGER + 500]
            puts = [Put(records.ledger_path(n), records.encode(record), MUST_NOT_EXIST) for n in some]
            await metadata.transact(puts)
        stored, counter = metadata.get(PATH), metadata.get(LedgerIdsRecord.path)
        assert stored is not None
        chain = [
            LedgerInfo(ledger_id=n, entries=ledger_entries, size_bytes=size, closed_ms=published_ms)
            for n in numbers
        ]
        whole = ManagedLedgerRecord(ledgers=chain, created_ms=published_ms)
        next_id = records.encode(LedgerIdsRecord(next_id=FIRST_LEDGER + ledgers))
        await metadata.transact(
            [
                Put(PATH, records.encode(whole), stored.version),
                Put(LedgerIdsRecord.path, next_id, MUST_NOT_EXIST if counter is None else counter.version),
            ]
        )


def write_backlog(
    directory: Path,
    messages: int,
    due_ms: Times,
    published_ms: int,
    ledger_entries: int = ENTRIES_PER_LEDGER,
) -> int:
    """How many bytes of entry logs. `messages` is a multiple of `ledger_entries`, this of `ROW_ENTRIES`."""
    ledgers = messages // ledger_entries
    trio.run(_make, directory, ledgers, ledger_entries, published_ms)
    logs = directory / "bookie" / "entry-logs"
    first_log = 1 + max((int(path.stem) for path in logs.glob("*.log")), default=0)

    def parts() -> Iterator[Part]:
        for log, first in enumerate(range(0, ledgers, LEDGERS_PER_LOG), first_log):
            last = min(first + LEDGERS_PER_LOG, ledgers)
            yield Part(str(logs), log, first, last, published_ms, due_ms, ledger_entries)

    if ledgers <= LEDGERS_PER_LOG:
        size = sum(map(write_log, parts()))
    else:
        with multiprocessing.get_context("spawn").Pool(2) as pool:
            size = sum(pool.imap_unordered(write_log, parts()))
    # From what is in the logs' footers.
    shutil.rmtree(directory / "index")
    assert main(["bookie", "rebuild-index", "--data-dir", str(directory)]) == EXIT_OK
    return size
