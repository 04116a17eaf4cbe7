"""How long a bookie takes to come back after a kill, and how much memory that needs.

    python bench/storage/recovery.py                        a journal of 1 GiB, entries of 1 KiB, 10 ledgers
    python bench/storage/recovery.py --mib 128 --ledgers 1000

A process of its own fills a bookie whose write caches are so large that nothing is flushed, and is killed.
Another one, with the default settings, opens the directory: that is the recovery. Its memory at most is given
beside the memory that a process has with an empty directory, and the write caches' bound.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import trio
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.storage import storage_process as storage
from geminga.bookie.records.settings import BookieSettings

MIB = 1 << 20


async def leave_a_journal(directory: Path, options: argparse.Namespace) -> None:
    """Never returns."""
    index = storage.open_index(directory)
    settings = replace(BookieSettings(), write_cache_bytes=options.mib * 8 * MIB, flush_interval_s=1e6)
    bookie = await storage.open_bookie(directory, index, settings)
    async with trio.open_nursery() as nursery:
        await nursery.start(bookie.run)
        await storage.fill(bookie, entries=options.entries, size=options.bytes, ledgers=options.ledgers)
        assert not bookie.statistics().flushes
        os.kill(os.getpid(), signal.SIGKILL)


async def recover(directory: Path) -> None:
    index = storage.open_index(directory)
    before, started = storage.disk_writes_bytes(), time.perf_counter()
    bookie = await storage.open_bookie(directory, index, BookieSettings())
    seconds = time.perf_counter() - started
    report = bookie.recovery
    figures = {
        "seconds": seconds,
        "journals": report.journals_read,
        "entries": report.entries_replayed,
        "written_mib": (storage.disk_writes_bytes() - before) / MIB,
        "largest_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    await bookie.close()
    index.close()
    print(json.dumps(figures))


def in_process(options: argparse.Namespace, role: str, directory: Path) -> subprocess.CompletedProcess[str]:
    numbers = [f"--{name}={getattr(options, name)}" for name in ("mib", "bytes", "ledgers")]
    command = [sys.executable, __file__, *numbers, f"--role={role}", f"--directory={directory}"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True)


def measure(options: argparse.Namespace, directory: Path) -> dict[str, float]:
    (directory / "empty").mkdir()
    empty = json.loads(in_process(options, "recover", directory / "empty").stdout)
    (directory / "killed").mkdir()
    ended = in_process(options, "fill", directory / "killed")
    assert ended.returncode == -signal.SIGKILL, ended
    journals = list((directory / "killed").rglob("*.journal"))
    journal_mib = sum(path.stat().st_size for path in journals) / MIB
    storage.drop_page_cache(directory)
    figures: dict[str, float] = json.loads(in_process(options, "recover", directory / "killed").stdout)
    assert figures["entries"] == options.entries, figures
    return {
        "journal_mib": journal_mib,
        **figures,
        "largest_mib_empty": empty["largest_mib"],
        "write_caches_mib": BookieSettings().write_cache_bytes / MIB,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mib", type=int, default=1024, help="payload in the journal")
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--ledgers", type=int, default=10)
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--role", choices=("fill", "recover"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.entries = options.mib * MIB // options.bytes
    if options.role == "fill":
        trio.run(leave_a_journal, options.directory, options)
    elif options.role == "recover":
        trio.run(recover, options.directory)
    else:
        directory = Path(tempfile.mkdtemp(prefix="bench-", dir=options.directory))
        try:
            figures = measure(options, directory)
        finally:
            shutil.rmtree(directory)
        for name, value in figures.items():
            print(f"{name:20}{value:12.2f}")
        if options.json:
            options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
