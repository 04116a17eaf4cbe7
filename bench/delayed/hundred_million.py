"""A hundred million delayed messages in the index with buckets, on a real bookie: memory, disk, restart.

    python bench/delayed/hundred_million.py                               100 million, random and fixed delays
    python bench/delayed/hundred_million.py --messages 5000000 --delays random

Everything is real but the messages themselves: an index learns their positions and delivery times, 100 at a
time as from a dispatcher's reads, and its buckets seals, merges and loads buckets on a bookie with the
broker's default settings. 8 messages are published in each millisecond of message time, 50,000 to a ledger.
Random delays are drawn evenly from 4 to 28 hours; the fixed one is 16 hours. Nothing is due while they are
added.

"add" is CPU time of the thread that adds; "all" is CPU time of all threads, with encoding, journal, flushes
and merges. Resident memory is the whole process: Python, numpy, RocksDB and the bookie's caches included.
When all is sealed the process is killed. Another one opens the directory with the time at which deliveries
are in full swing, and takes what is due: the first position counts from before the stores are opened.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import trio

from geminga.tracker.buckets.tasks import run_buckets

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from geminga.bookie.index.database import IndexDatabase
from geminga.bookie.running.bookie import Bookie
from geminga.config.config import Config
from geminga.config.memory_budget import memory_parts
from geminga.managed_ledger.chain.tail_cache import TailCache
from geminga.managed_ledger.managed_ledger import ManagedLedger
from geminga.managed_ledger.orphans import existing_ledgers, sweep_orphan_ledgers
from geminga.metadata.ledger_ids import LedgerIds
from geminga.metadata.store import MetadataStore
from geminga.server.room_settings import bookie_settings, ledger_settings
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import RocksKeyValue
from geminga.storage.rocksdb import BlockCache
from geminga.tracker.buckets.bucket_settings import BUCKETS_MAX, BucketSettings
from geminga.tracker.buckets.bucket_store import BucketStore, BucketWriter, CursorOwner
from geminga.tracker.buckets.buckets import Buckets
from geminga.tracker.buckets.merge_task import merged_above
from geminga.tracker.buckets.recovery import Recovery, unacknowledged
from geminga.tracker.index.index import IndexSettings
from geminga.tracker.index.membership import LEDGER_BYTES
from geminga.tracker.index.sources import SEGMENT_BYTES, STORED_BYTES
from geminga.tracker.index.view import View

MIB = 1 << 20
HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000
PER_MS = 8
ENTRIES_PER_LEDGER = 50_000
BATCH = 100
FIRST_LEDGER = 1_000_000
PATH = "/managed-ledgers/public/default/persistent/orders"
SEALING_MAX = 4
"""So many buckets may wait to be sealed before adding waits for them."""
RESIDENT_LIMIT_MIB = 512
BITMAP_BYTES = 8192
"""As the index accounts for them; for each ledger `LEDGER_BYTES` come on top, and a bitmap while some but not
all of its entries have been delivered.
"""
TAKEN_MAX = 2_000_000
TAKEN_AT_ONCE = 500


class HandClock:
    """Message time is set by hand."""

    is_virtual = False

    def __init__(self, ms: int) -> None:
        self.ms = ms

    def now_ms(self) -> int:
        return self.ms

    async def sleep_until_ms(self, due_ms: int) -> None:
        raise NotImplementedError

    def monotonic_s(self) -> float:
        return time.monotonic()

    def worker(self, name: str) -> None:
        return None


class Process:
    """What this process uses, looked at ten times a second. The gaps between looks are stalls of the loop,
    the machine's included.
    """

    def __init__(self) -> None:
        self.resident_max_mib = 0.0
        self.gap_max_ms = 0.0
        self.started_s = time.perf_counter()
        self.cpu_s = time.process_time()

    async def watch(self) -> None:
        while True:
            self.resident_max_mib = max(self.resident_max_mib, status_mib("VmRSS"))
            before = time.perf_counter()
            await trio.sleep(0.1)
            self.gap_max_ms = max(self.gap_max_ms, (time.perf_counter() - before) * 1000 - 100)

    def figures(self) -> dict[str, float]:
        return {
            "wall_s": time.perf_counter() - self.started_s,
            "all_cpu_s": time.process_time() - self.cpu_s,
            "resident_now_mib": status_mib("VmRSS"),
            "resident_sampled_max_mib": self.resident_max_mib,
            "resident_peak_mib": status_mib("VmHWM"),
            "loop_gap_max_ms": self.gap_max_ms,
        }


def status_mib(name: str) -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    raise SystemExit("this bench reads /proc, so it runs on Linux only")


def allocated_bytes(directory: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*"))


class CountingStore(BucketStore):
    """Knows how many bytes of buckets were written, those included that were merged away since."""

    written_bytes = 0

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[BucketWriter]:
        async with super().writing() as writer:
            yield writer
        self.written_bytes += writer.bytes


class World:
    """The stores, one topic with one subscription, and the index of it with its buckets."""

    def __init__(self, topic: ManagedLedger, cursor: Any, clock: HandClock, settings: BucketSettings) -> None:
        self.clock = clock
        self.store = CountingStore(topic.storage)
        index_settings = IndexSettings(strict=True, exact=True, indexes_min=settings.indexes_min)
        self.buckets = Buckets(self.store, CursorOwner(cursor), clock, index_settings, settings)
        self.index = self.buckets.index
        self.view = View(self.index, reread=lambda first, last: sys.exit("a bucket was lost"))
        self.recovery = Recovery(
            self.buckets,
            wanted=lambda members: unacknowledged([cursor], members),
            on_known=lambda first, last: None,
        )
        self.buckets_max = merged_above(settings)

    def is_settled(self) -> bool:
        buckets = self.buckets
        return not (buckets.frozen or buckets.dying or len(buckets.stored) > self.buckets_max)


@contextlib.asynccontextmanager
async def opened(directory: Path, clock: HandClock, settings: BucketSettings) -> AsyncIterator[World]:
    """As the broker opens them. Nothing is closed at the end: the process dies."""
    config, disk = Config(), RealDisk()
    parts = memory_parts(config)
    block_cache = BlockCache(parts.block_cache)
    metadata = MetadataStore(RocksKeyValue(str(directory / "metadata"), block_cache=block_cache))
    rows = IndexDatabase(disk, str(directory / "index"), block_cache=block_cache)
    async with trio.open_nursery() as nursery:
        await nursery.start(metadata.run)
        bookie = await Bookie.open(
            disk,
            rows,
            str(directory / "bookie"),
            bookie_settings(config),
            existing_ledgers=functools.partial(existing_ledgers, metadata),
        )
        await nursery.start(rows.run)
        await nursery.start(bookie.run)
        await sweep_orphan_ledgers(bookie, metadata)
        topic = await ManagedLedger.open(
            PATH,
            bookie,
            metadata,
            LedgerIds(metadata),
            clock,
            ledger_settings(config),
            tail_cache=TailCache(parts.tail_cache),
        )
        topic.life.run_in(nursery)
        cursor = await topic.open_cursor("sub", initial="earliest")
        world = World(topic, cursor, clock, settings)
        await nursery.start(run_buckets, world.buckets)
        yield world


# -- adding ----------------------------------------------------------------------------------------------


def published_ms(message: int) -> int:
    return START_MS + message // PER_MS


def batches(first: int, delays: str, draw: np.random.Generator) -> Iterator[tuple[list[int], list[int]]]:
    """Entry ids and delivery times of one ledger, as they come out of reads; `first` is its first message."""
    times = START_MS + np.arange(first, first + ENTRIES_PER_LEDGER) // PER_MS
    if delays == "random":
        times += draw.integers(4 * HOUR_MS, 28 * HOUR_MS, ENTRIES_PER_LEDGER)
    else:
        times += 16 * HOUR_MS
    listed = times.tolist()
    for at in range(0, ENTRIES_PER_LEDGER, BATCH):
        yield list(range(at, at + BATCH)), listed[at : at + BATCH]


async def fill(directory: Path, options: argparse.Namespace) -> None:
    """Never returns."""
    clock, draw = HandClock(START_MS), np.random.default_rng(1)
    async with opened(directory, clock, options.settings) as world, trio.open_nursery() as nursery:
        empty_mib, process, add_s, adding_mib = status_mib("VmRSS"), Process(), 0.0, []
        nursery.start_soon(process.watch)
        for first in range(0, options.messages, ENTRIES_PER_LEDGER):
            clock.ms = published_ms(first)
            ledger_id, add_many = FIRST_LEDGER + first // ENTRIES_PER_LEDGER, world.view.add_many
            read = list(batches(first, options.delays, draw))
            started = time.thread_time()
            for entry_ids, times_ms in read:
                add_many(ledger_id, entry_ids, times_ms)
            add_s += time.thread_time() - started
            await trio.lowlevel.checkpoint()
            while len(world.buckets.frozen) > SEALING_MAX:  # noqa: ASYNC110
                await trio.sleep(0.002)
            if first // ENTRIES_PER_LEDGER % max(1, options.messages // ENTRIES_PER_LEDGER // 10) == 0:
                adding_mib.append(round(status_mib("VmRSS")))
        world.index.feed.freeze_all()
        while not world.is_settled():  # noqa: ASYNC110
            await trio.sleep(0.01)
        assert len(world.view) == options.messages
        counts = world.buckets.operations.counts
        figures = {
            **process.figures(),
            "add_cpu_s": add_s,
            "resident_empty_mib": empty_mib,
            "resident_on_the_way_mib": adding_mib,
            "index_bytes": world.index.memory_bytes(),
            "buckets": len(world.buckets.serving),
            "bucket_bytes": world.buckets.stored_bytes,
            "segments": sum(bucket.directory.segments for bucket in world.buckets.stored),
            "written_bytes": world.store.written_bytes,
            "seals": counts["create"].succeeded,
            "seal_mean_ms": counts["create"].total_ms / max(1, counts["create"].succeeded),
            "merges": counts["merge"].succeeded,
            "failures": sum(count.failed for count in counts.values()),
            "directory_bytes": allocated_bytes(directory),
        }
        print(json.dumps(figures), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


# -- coming back -----------------------------------------------------------------------------------------


def swing_ms(options: argparse.Namespace) -> int:
    """Random: every bucket has had messages due for an hour. Fixed: half of all messages are due."""
    if options.delays == "random":
        return published_ms(options.messages) + 5 * HOUR_MS
    return published_ms(options.messages // 2) + 16 * HOUR_MS


async def restart(directory: Path, options: argparse.Namespace) -> None:
    """Never returns."""
    process, clock = Process(), HandClock(swing_ms(options))
    async with opened(directory, clock, options.settings) as world, trio.open_nursery() as nursery:
        figures: dict[str, Any] = {"stores_s": time.perf_counter() - process.started_s}
        process.gap_max_ms = 0
        nursery.start_soon(process.watch)

        async def recover() -> None:
            await world.recovery.run()
            figures["all_known_s"] = time.perf_counter() - process.started_s
            assert len(world.view) + taken == options.messages, "some are missing"

        taken, take_s, idle_rounds = 0, 0.0, 0
        nursery.start_soon(recover)
        while taken < TAKEN_MAX:
            started = time.thread_time()
            places = world.view.take_due(TAKEN_AT_ONCE)
            take_s += time.thread_time() - started
            if places and not taken:
                figures["first_due_s"] = time.perf_counter() - process.started_s
                figures["first_due_cpu_s"] = time.process_time() - process.cpu_s
            taken += len(places)
            if places:
                await trio.lowlevel.checkpoint()
            else:
                idle_rounds += 1
                if (
                    "all_known_s" in figures
                    and idle_rounds % 100 == 0
                    and not any(world.index.wanted(clock.ms))
                ):
                    break
                await trio.sleep(0.001)
        while "all_known_s" not in figures:  # noqa: ASYNC110
            await trio.sleep(0.01)
        figures |= {"taken": taken, "taken_s": time.perf_counter() - process.started_s, "take_cpu_s": take_s}
        figures |= {**process.figures(), "loads": world.buckets.operations.counts["load"].succeeded}
        figures |= {"failures": sum(c.failed for c in world.buckets.operations.counts.values())}
        print(json.dumps(figures), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


# -- the report ------------------------------------------------------------------------------------------


def in_process(options: argparse.Namespace, role: str, delays: str, directory: Path) -> dict[str, Any]:
    numbers = [f"--messages={options.messages}", f"--buckets-max={options.buckets_max}"]
    command = [sys.executable, __file__, *numbers, f"--role={role}", f"--delays={delays}"]
    ended = subprocess.run([*command, f"--directory={directory}"], stdout=subprocess.PIPE, text=True)
    if ended.returncode != -signal.SIGKILL:
        sys.exit(f"{role} has failed")
    figures: dict[str, Any] = json.loads(ended.stdout)
    return figures


def for_a_billion(messages: int, filled: dict[str, Any]) -> dict[str, float]:
    """Computed. The stores' caches are bounded and filled already, and there are never more than
    `BUCKETS_MAX` buckets: those that are merged cover more ledgers, but the same span of due times.
    """
    times = 1_000_000_000 / messages
    buckets = min(filled["seals"] * times, BUCKETS_MAX)
    settings = BucketSettings()
    # As large as now, or as many as there are time spans in a day, or as large as they may be.
    a_bucket = filled["segments"] / filled["buckets"]
    by_span = max(a_bucket, 24 * HOUR_MS / settings.segment_span_ms)
    by_rows = a_bucket * (1_000_000_000 / buckets) / (messages / filled["buckets"])
    segments = max(buckets * min(by_span, by_rows), 1_000_000_000 / settings.segment_indexes_max)
    ledgers = 1_000_000_000 / ENTRIES_PER_LEDGER
    index_mib = (buckets * STORED_BYTES + segments * SEGMENT_BYTES + ledgers * LEDGER_BYTES) / MIB
    return {
        "index_mib": index_mib,
        "resident_mib": filled["resident_now_mib"] - filled["index_bytes"] / MIB + index_mib,
        "with_holes_mib": ledgers * BITMAP_BYTES / MIB,
        "disk_gb": filled["bucket_bytes"] * times / 1e9,
        "written_once_min": filled["all_cpu_s"] * times / 60,
        "written": 1 if filled["seals"] * times <= BUCKETS_MAX else 2,
    }


def print_figures(delays: str, messages: int, filled: dict[str, Any], back: dict[str, Any]) -> None:
    peak_mib = max(filled["resident_peak_mib"], back["resident_peak_mib"])
    grown_bytes = (filled["resident_now_mib"] - filled["resident_empty_mib"]) * MIB
    verdict = "under" if peak_mib < RESIDENT_LIMIT_MIB else "NOT under"
    print(f"\n{messages:,} messages, {delays} delays")
    print(
        f"  add              {messages / filled['add_cpu_s'] / 1e6:8.2f} M/s of CPU time;"
        f" all threads {messages / filled['all_cpu_s'] / 1e6:.2f} M/s;"
        f" wall {messages / filled['wall_s'] / 1e6:.2f} M/s ({filled['wall_s']:.0f} s)"
    )
    print(
        f"  resident         {filled['resident_peak_mib']:8.0f} MiB at most while adding,"
        f" {back['resident_peak_mib']:.0f} after the restart: {verdict} {RESIDENT_LIMIT_MIB};"
        f" {filled['resident_empty_mib']:.0f} before the first message"
    )
    print(f"  on the way       {filled['resident_on_the_way_mib']} MiB")
    print(
        f"  index            {filled['index_bytes'] / MIB:8.1f} MiB by its own account,"
        f" {filled['index_bytes'] / messages:.3f} B/msg; resident growth {grown_bytes / messages:.3f} B/msg"
    )
    print(
        f"  buckets          {filled['buckets']:8d} in {filled['segments']:,} segments;"
        f" {filled['seals']} seals ({filled['seal_mean_ms']:.0f} ms on average), {filled['merges']} merges,"
        f" {filled['failures'] + back['failures']} failures"
    )
    print(
        f"  disk             {filled['bucket_bytes'] / MIB:8.1f} MiB of buckets,"
        f" {filled['bucket_bytes'] / messages:.3f} B/msg;"
        f" {filled['written_bytes'] / MIB:.1f} MiB written with merges;"
        f" whole directory {filled['directory_bytes'] / MIB:.0f} MiB, journals included"
    )
    print(
        f"  after a kill     {back['first_due_s']:8.2f} s to the first due position"
        f" ({back['first_due_cpu_s']:.2f} s of CPU time; stores open after {back['stores_s']:.2f} s),"
        f" {back['all_known_s']:.2f} s until all buckets are known"
    )
    print(
        f"  then             {back['taken']:8,} taken after {back['taken_s']:.1f} s with {back['loads']}"
        f" loads; {back['taken'] / max(back['take_cpu_s'], 1e-9) / 1e6:.2f} M/s of CPU time;"
        f" longest gap of the loop {back['loop_gap_max_ms']:.0f} ms"
    )
    billion = for_a_billion(messages, filled)
    print(
        f"  1,000,000,000    computed: {billion['resident_mib']:.0f} MiB resident,"
        f" {billion['index_mib']:.0f} of it the index; up to {billion['with_holes_mib']:.0f} MiB more while"
        f" they are delivered out of order; {billion['disk_gb']:.2f} GB of buckets, written"
        f" {'once' if billion['written'] == 1 else 'at most twice'};"
        f" {billion['written_once_min']:.0f} min of CPU time to add and seal"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=100_000_000, help="a multiple of 50,000")
    parser.add_argument("--delays", choices=("both", "random", "fixed"), default="both")
    parser.add_argument("--buckets-max", dest="buckets_max", type=int, default=BucketSettings().buckets_max)
    parser.add_argument("--directory", type=Path, default=None, help="where the data go, for the time being")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--role", choices=("fill", "restart"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.messages -= options.messages % ENTRIES_PER_LEDGER
    options.settings = BucketSettings(buckets_max=options.buckets_max)
    if options.role is not None:
        trio.run({"fill": fill, "restart": restart}[options.role], options.directory, options)
        return
    results = {}
    for delays in ("random", "fixed") if options.delays == "both" else (options.delays,):
        directory = Path(tempfile.mkdtemp(prefix="bench-", dir=options.directory))
        try:
            filled = in_process(options, "fill", delays, directory)
            back = in_process(options, "restart", delays, directory)
        finally:
            shutil.rmtree(directory)
        print_figures(delays, options.messages, filled, back)
        results[delays] = {"filled": filled, "back": back}
    if options.json:
        options.json.write_text(json.dumps({"messages": options.messages, **results}, indent=1))


if __name__ == "__main__":
    main()
