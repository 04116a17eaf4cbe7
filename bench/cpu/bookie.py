"""What the bookie costs: CPU per entry on the loop and in the journal's thread, rates, memory, reads, replay.

    python bench/cpu/bookie.py [--entries 2000000] [--size 1024] [--ledgers 10] [--directory DIR]

Entries arrive in bursts, as from a socket's receive, and publishers wait for room. Then the process reads all
of them back as a consumer far behind would, the page cache dropped, and last a crash is replayed.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from geminga.bookie.journal.journal import Journal
from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.running.bookie import Bookie
from geminga.errors import StorageError
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import RocksKeyValue

BURST = 200


class ThreadTime:
    """CPU that the journal's thread spends in a group."""

    def __init__(self) -> None:
        self.seconds = 0.0
        real = Journal._write_group

        def timed(journal: Journal) -> None:
            started = time.thread_time()
            try:
                real(journal)
            finally:
                self.seconds += time.thread_time() - started

        Journal._write_group = timed  # type: ignore[method-assign]


def resident_mb() -> float:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def row(label: str, text: str) -> None:
    print(f"{label:28}{text}")


def fail(error: StorageError) -> None:
    raise error


async def write(bookie: Bookie, options: argparse.Namespace, journal: ThreadTime) -> None:
    durable = dict.fromkeys(range(1, options.ledgers + 1), -1)

    def teller(ledger_id: int) -> Callable[[int], None]:
        def on_durable(last: int) -> None:
            durable[ledger_id] = last

        return on_durable

    appends = [
        bookie.create_ledger(ledger_id, on_durable=teller(ledger_id), on_failed=fail).append
        for ledger_id in durable
    ]
    payload = os.urandom(options.size)
    loop_cpu = 0.0
    peak = resident_mb()
    written = 0
    cpu, wall, thread, loop = time.process_time(), time.perf_counter(), journal.seconds, time.thread_time()
    while written < options.entries:
        burst = [payload[:8] + payload[8:] for _ in range(BURST)]  # fresh objects, as from a socket
        started = time.thread_time()
        for at, body in enumerate(burst):
            appends[(written + at) % options.ledgers](body)
        loop_cpu += time.thread_time() - started
        written += BURST
        del burst, body
        if bookie.has_room():
            await trio.lowlevel.checkpoint()
        else:
            await bookie.wait_room()
        if written % 20_000 == 0:
            peak = max(peak, resident_mb())
    while sum(durable.values()) + options.ledgers < written:
        await trio.lowlevel.checkpoint()
    wall = time.perf_counter() - wall
    cpu = time.process_time() - cpu
    us = 1e6 / written
    statistics = bookie.statistics()
    row("append on the loop", f"{loop_cpu * us:6.2f} us per entry")
    row("loop, bench included", f"{(time.thread_time() - loop) * us:6.2f} us per entry")
    row("journal thread", f"{(journal.seconds - thread) * us:6.2f} us per entry")
    row("process", f"{cpu * us:6.2f} us per entry")
    row("written", f"{written / wall / 1000:6.1f} k/s, {written * options.size / wall / 1e6:.0f} MB/s")
    groups = statistics.journal_groups
    sync_ms = statistics.journal_sync_s / groups * 1e3
    row("groups", f"{groups}, {written / groups:.0f} entries and {sync_ms:.2f} ms of sync each")
    factor = (statistics.journal_bytes + statistics.flushed_bytes) / (written * options.size)
    row("bytes written per byte", f"{factor:.2f}")
    row("resident", f"{peak:.0f} MB at most, {resident_mb():.0f} MB after, {statistics.flushes} flushes")


async def latency(bookie: Bookie) -> None:
    told = trio.Event()
    ledger = bookie.create_ledger(10**6, on_durable=lambda last: told.set(), on_failed=fail)
    times = []
    for _ in range(500):
        told = trio.Event()
        started = time.perf_counter()
        ledger.append(bytes(1024))
        await told.wait()
        times.append(time.perf_counter() - started)
    times.sort()
    row("alone, append to durable", f"{times[250] * 1e6:6.0f} us p50, {times[495] * 1e6:.0f} us p99")


async def read(bookie: Bookie, options: argparse.Namespace) -> None:
    wall, cpu = time.perf_counter(), time.process_time()
    count = peak = 0
    for ledger_id in range(1, options.ledgers + 1):
        last = bookie.last_entry_id(ledger_id)
        at = 0
        while at <= last:
            bodies = bookie.read_cached(ledger_id, at, min(last, at + 99))
            if not bodies:
                bodies = await bookie.read(ledger_id, at, min(last, at + 99), bytes_max=1 << 20)
            at += len(bodies)
            count += len(bodies)
            await trio.lowlevel.checkpoint()  # as a dispatcher does between batches
            if count % 1000 < 10:
                peak = max(peak, resident_mb())
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    statistics = bookie.statistics()
    found = statistics.reads_from_memory / (statistics.reads_from_memory + statistics.reads_from_log)
    row(
        "catch-up read", f"{count * options.size / wall / 1e6:.0f} MB/s, {cpu / count * 1e6:.2f} us per entry"
    )
    row("  from read-ahead", f"{found:.1%}, {peak:.0f} MB resident")


def drop_page_cache(directory: Path) -> None:
    for path in directory.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


async def main(options: argparse.Namespace, directory: Path) -> None:
    journal = ThreadTime()
    index = RocksKeyValue(str(directory / "index"))
    settings = BookieSettings()
    bookie = await Bookie.open(RealDisk(), index, str(directory / "bookie"), settings)
    row("resident at the start", f"{resident_mb():6.0f} MB")
    async with trio.open_nursery() as nursery:
        await nursery.start(bookie.run)
        await latency(bookie)
        await write(bookie, options, journal)
        await bookie.close()
    index.close()
    await trio.to_thread.run_sync(drop_page_cache, directory)
    index = RocksKeyValue(str(directory / "index"))
    bookie = await Bookie.open(RealDisk(), index, str(directory / "bookie"), settings)
    assert bookie.recovery.clean
    async with trio.open_nursery() as nursery:
        await nursery.start(bookie.run)
        await read(bookie, options)
        await leave_a_journal(bookie)
        nursery.cancel_scope.cancel()
    index.close()
    started = time.perf_counter()
    index = RocksKeyValue(str(directory / "index"))
    bookie = await Bookie.open(RealDisk(), index, str(directory / "bookie"), settings)
    report = bookie.recovery
    seconds = time.perf_counter() - started
    row("replay", f"{seconds:.2f} s for {report.entries_replayed} entries")
    row("resident at most", f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3:6.0f} MB")
    index.close()


async def leave_a_journal(bookie: Bookie) -> None:
    """Entries that are never flushed."""
    ledger = bookie.create_ledger(10**6 + 1, on_durable=lambda last: None, on_failed=fail)
    for _ in range(20_000):
        ledger.append(os.urandom(1024))
        if not bookie.has_room():
            await bookie.wait_room()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--entries", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--ledgers", type=int, default=10)
    parser.add_argument("--directory", type=Path, default=None)
    arguments = parser.parse_args()
    where = Path(tempfile.mkdtemp(dir=arguments.directory))
    try:
        trio.run(main, arguments, where)
    finally:
        shutil.rmtree(where)
