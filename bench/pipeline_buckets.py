"""Buckets of the delayed index for many messages: built on Spark, loaded, checked, damaged, repaired, served.

    python bench/pipeline_buckets.py --messages 100000000
    python bench/pipeline_buckets.py --messages 2000000 --master local[1]

The backlog is generated (8 messages in each millisecond, 50,000 to a ledger, due after 4 to 28 hours, each
message's own number says when); everything else is real: the data directory of a stopped broker, its bookie
and metadata. At the end an index opens the buckets as a broker's start does, at a time when deliveries are
in full swing, and what it gives as due is compared with what the numbers say.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import trio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from delayed_100m import FIRST_LEDGER, PATH, START_MS, HandClock, opened
from pipeline_audit import Memory, mixed, tree_cpu_s

from geminga.bookie.inspection import LogRecord, walk_records
from geminga.bookie_places import open_bookie
from geminga.cli.stopped_topic import opened_topic
from geminga.clock import RealClock
from geminga.config import Config
from geminga.disk import RealDisk
from geminga.key_value import BlockCache, RocksKeyValue
from geminga.managed_ledger.managed_ledger import ManagedLedger
from geminga.managed_ledger.tail_cache import TailCache
from geminga.metadata import records
from geminga.metadata.instance import check_instance
from geminga.metadata.ledger_ids import LedgerIds
from geminga.metadata.store import MetadataStore
from geminga.pipeline.buckets import Encoded, Range, row_shares
from geminga.pipeline.buckets_backlog import Backlog, Share, Source, stored_sources
from geminga.pipeline.buckets_store import backlog_of, load
from geminga.tracker.bucket_owner import CursorOwner
from geminga.tracker.bucket_settings import BucketSettings
from geminga.tracker.rows import ENTRY_BITS, Rows

BENCH = Path(__file__).resolve().parent
PER_MS = 8
ENTRIES_PER_LEDGER = 50_000
HOUR_MS = 3_600_000
SETTINGS = BucketSettings()
TOPIC = str(records.topic_of(PATH))
SAMPLE = 200_000


def due_ms(numbers: np.ndarray) -> np.ndarray:
    delays = 4 * HOUR_MS + mixed(numbers) % np.uint64(24 * HOUR_MS)
    return START_MS + numbers // PER_MS + delays.astype(np.int64)


class Generated(NamedTuple):
    """The messages of some ledgers."""

    first: int
    last: int

    def rows(self) -> Rows:
        numbers = np.arange(self.first * ENTRIES_PER_LEDGER, self.last * ENTRIES_PER_LEDGER)
        ledgers = FIRST_LEDGER + numbers // ENTRIES_PER_LEDGER
        return Rows(due_ms(numbers), (ledgers << ENTRY_BITS) | numbers % ENTRIES_PER_LEDGER)

    def shares(self, ranges: Sequence[Range]) -> Iterator[Share]:
        yield from row_shares(self.rows(), ranges)


async def make(directory: Path) -> None:
    """An empty topic with a subscription."""
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
            bookie, indexes = await open_bookie(
                Config(), disk, str(directory), metadata, instance, cache, held
            )
            for index in indexes:
                await nursery.start(index.run)
            await nursery.start(bookie.run)
            ids, tail = LedgerIds(metadata), TailCache(1 << 20)
            topic = await ManagedLedger.open(PATH, bookie, metadata, ids, RealClock(), tail_cache=tail)
            await nursery.start(topic.run)
            await topic.open_cursor("sub", initial="earliest")
            await topic.close()
            await bookie.close()
            nursery.cancel_scope.cancel()


async def look(directory: Path) -> Backlog:
    async with opened_topic(str(directory), TOPIC, "sub") as found:
        backlog = backlog_of(found.topic, found.cursor, CursorOwner(found.cursor), 0)
        return backlog._replace(ledgers=frozenset())


async def put(directory: Path, buckets: Iterator[Encoded]) -> int:
    async with opened_topic(str(directory), TOPIC, "sub") as found:
        return await load(found.topic, CursorOwner(found.cursor), buckets)


def damage(directory: Path, ledger_id: int) -> None:
    """Flip a bit in an entry of this ledger."""
    for path in sorted(directory.rglob("*.log")):
        file = RealDisk().open(str(path))
        for record in walk_records(file, 64, file.size()):
            if isinstance(record, LogRecord) and record.ledger_id == ledger_id:
                with path.open("r+b") as raw:
                    raw.seek(record.end - 10)
                    byte = raw.read(1)[0]
                    raw.seek(record.end - 10)
                    raw.write(bytes((byte ^ 1,)))
                return
        file.close()
    raise SystemExit(f"ledger {ledger_id} is in no entry log")


def sample(directory: Path, messages: int) -> None:
    """In a process of its own, which dies with the stores open, as the broker's may."""

    async def main() -> None:
        clock = HandClock(START_MS + messages // PER_MS + 5 * HOUR_MS)
        began = time.perf_counter()
        async with opened(directory, clock, SETTINGS) as world, trio.open_nursery() as nursery:
            nursery.start_soon(world.recovery.run)
            taken: list[int] = []
            while len(taken) < min(SAMPLE, messages // 100):
                taken += world.view.take_due(500).tolist()
                await trio.lowlevel.checkpoint()
            codes = np.array(taken)
            ledgers, entries = codes >> ENTRY_BITS, codes & ((1 << ENTRY_BITS) - 1)
            numbers = (ledgers - FIRST_LEDGER) * ENTRIES_PER_LEDGER + entries
            late = int((due_ms(numbers) > clock.ms).sum())
            print(
                f"served: {len(taken):,} due positions in {time.perf_counter() - began:.1f} s, "
                f"{len(np.unique(numbers)):,} different, {late} not due yet",
                flush=True,
            )
            os._exit(0 if not late and len(np.unique(numbers)) == len(taken) else 1)

    trio.run(main)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp/geminga-buckets"))
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    directory: Path = options.directory
    shutil.rmtree(directory, ignore_errors=True)
    trio.run(make, directory)

    from geminga.pipeline.spark.buckets import build, ranges_of, verify
    from geminga.pipeline.spark.pieces import started

    # Workers need this program's own modules.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(BENCH), str(BENCH.parent)])
    memory, spark = Memory(), started(options.master)
    ledgers = options.messages // ENTRIES_PER_LEDGER
    generated: list[Source] = [Generated(at, min(at + 20, ledgers)) for at in range(0, ledgers, 20)]

    def timed(what: str, began: float, cpu_s: float) -> None:
        spent = tree_cpu_s(os.getpid()) - cpu_s
        print(f"{what}: {time.perf_counter() - began:.1f} s, {spent:.0f} CPU s", flush=True)

    began, cpu_s = time.perf_counter(), tree_cpu_s(os.getpid())
    ranges = ranges_of(spark, generated, SETTINGS)
    loaded = trio.run(put, directory, build(spark, generated, ranges, SETTINGS))
    timed(f"{loaded} buckets of {options.messages:,} messages built and loaded", began, cpu_s)
    size_bytes = sum(path.stat().st_size for path in directory.rglob("*.log"))
    print(f"{size_bytes / 2**20:,.0f} MiB in entry logs, {size_bytes / options.messages:.2f} bytes a message")

    def check(text: str, only: list[Range] | None = None) -> list[Range]:
        began, cpu_s = time.perf_counter(), tree_cpu_s(os.getpid())
        backlog = trio.run(look, directory)
        named = only or sorted(backlog.buckets.values())
        faults = verify(spark, [*generated, *stored_sources([str(directory)], backlog)], named)
        timed(f"{text}: {len(named)} buckets checked, {len(faults)} faults", began, cpu_s)
        for fault in faults:
            print(f"  {named[fault.range]}: {fault.fault}, {fault.positions:,}")
        return [named[fault.range] for fault in faults]

    backlog = trio.run(look, directory)
    hit = sorted(backlog.buckets)[len(backlog.buckets) // 2]
    damage(directory, hit)
    wrong = check("one of them damaged")
    right = wrong == [backlog.buckets[hit]]
    trio.run(put, directory, build(spark, generated, wrong, SETTINGS))
    right &= not check("repaired", wrong)
    print(f"{memory.end() / 2**30:.2f} GiB at most")
    spark.stop()
    process = multiprocessing.get_context("spawn").Process(target=sample, args=(directory, options.messages))
    process.start()
    process.join()
    return 0 if right and process.exitcode == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
