"""A consumer far behind: how fast the bookie gives back what it stored, after a restart, from disk.

    python bench/storage/catch_up.py                      1 GiB in entries of 1 KiB, one ledger
    python bench/storage/catch_up.py --ledgers 10 --mib 256 --directory /somewhere/on/the/disk

The bookie is filled and closed, every page of its files is dropped from the page cache (posix_fadvise
DONTNEED; the fraction that is still resident afterwards is printed where `fincore` is present), opened anew,
and read in order, 100 entries a call, as a dispatcher does. Every record's CRC is checked on the way. Also
printed: bytes written to disk per byte of payload while it was filled.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.storage import storage_process as storage
from geminga.bookie.records.settings import BookieSettings

MIB = 1 << 20
READ_ENTRIES = 100


async def write(directory: Path, options: argparse.Namespace) -> dict[str, float]:
    index = storage.open_index(directory)
    bookie = await storage.open_bookie(directory, index, BookieSettings())
    payload = options.entries * options.bytes
    before, started = storage.disk_writes_bytes(), time.perf_counter()
    async with trio.open_nursery() as nursery:
        await nursery.start(bookie.run)
        await storage.fill(bookie, entries=options.entries, size=options.bytes, ledgers=options.ledgers)
        filled_s = time.perf_counter() - started
        await bookie.close()
    index.close()
    counts = bookie.statistics()
    return {
        "write_mb_per_s": payload / filled_s / 1e6,
        "journal_amplification": counts.journal_bytes / payload,
        "entry_log_amplification": counts.flushed_bytes / payload,
        "write_amplification": (storage.disk_writes_bytes() - before) / payload,
    }


async def read(directory: Path, options: argparse.Namespace) -> dict[str, float]:
    started = time.perf_counter()
    index = storage.open_index(directory)
    bookie = await storage.open_bookie(directory, index, BookieSettings())
    open_s = time.perf_counter() - started
    assert bookie.recovery.clean, bookie.recovery
    count = peak = 0
    started, cpu = time.perf_counter(), time.process_time()
    async with trio.open_nursery() as nursery:
        await nursery.start(bookie.run)
        for ledger_id in range(1, options.ledgers + 1):
            at, last = 0, bookie.last_entry_id(ledger_id)
            while at <= last:
                until = min(last, at + READ_ENTRIES - 1)
                bodies = bookie.read_cached(ledger_id, at, until)
                if not bodies:
                    bodies = await bookie.read(ledger_id, at, until, bytes_max=MIB)
                else:
                    await trio.lowlevel.checkpoint()  # as a dispatcher does between batches
                at += len(bodies)
                count += len(bodies)
            peak = max(peak, storage.resident_bytes())
        seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
        counts = bookie.statistics()
        await bookie.close()
    index.close()
    assert count == options.entries, (count, options.entries)
    return {
        "open_s": open_s,
        "read_mb_per_s": count * options.bytes / seconds / 1e6,
        "read_cpu_us_per_entry": cpu / count * 1e6,
        "read_ahead_hits": counts.reads_from_memory / count,
        "log_bytes_per_byte": counts.read_log_bytes / (count * options.bytes),
        "resident_mib": peak / MIB,
    }


def cached_share(directory: Path) -> str:
    """How much of the files is in the page cache, by `fincore`."""
    try:
        output = subprocess.run(
            ["fincore", "--bytes", "--noheadings", "--output", "RES,SIZE"]
            + [str(path) for path in directory.rglob("*.log")],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        return "not measured"
    rows = [line.split() for line in output.splitlines()]
    return f"{sum(int(row[0]) for row in rows) / sum(int(row[1]) for row in rows):.1%}"


def measure(options: argparse.Namespace, directory: Path) -> dict[str, float]:
    figures = trio.run(write, directory, options)
    on_disk = storage.drop_page_cache(directory)
    print(
        f"{options.entries} entries of {options.bytes} bytes in {options.ledgers} ledgers;"
        f" {on_disk / MIB:.0f} MiB on disk;"
        f" page cache dropped, entry logs still resident: {cached_share(directory)}"
    )
    return {**figures, **trio.run(read, directory, options)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--ledgers", type=int, default=1)
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.entries = options.mib * MIB // options.bytes
    directory = Path(tempfile.mkdtemp(prefix="bench-", dir=options.directory))
    try:
        figures = measure(options, directory)
    finally:
        shutil.rmtree(directory)
    for name, value in figures.items():
        print(f"{name:26}{value:10.3f}")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
