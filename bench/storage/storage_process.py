"""What the storage benches share: filling a bookie's directory, and what a process used meanwhile."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.running.bookie import Bookie
from geminga.errors import StorageError
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import RocksKeyValue

BURST = 200


def fail(error: StorageError) -> None:
    raise error


def open_index(directory: Path) -> RocksKeyValue:
    return RocksKeyValue(str(directory / "index"))


async def open_bookie(directory: Path, index: RocksKeyValue, settings: BookieSettings) -> Bookie:
    return await Bookie.open(RealDisk(), index, str(directory / "bookie"), settings)


async def fill(bookie: Bookie, *, entries: int, size: int, ledgers: int, first_ledger: int = 1) -> None:
    """Entries of `size` bytes that do not compress, in bursts over the ledgers in turn; back when durable."""
    durable = dict.fromkeys(range(first_ledger, first_ledger + ledgers), -1)
    appends = [
        bookie.create_ledger(
            ledger_id, on_durable=lambda last, id_=ledger_id: durable.update({id_: last}), on_failed=fail
        ).append
        for ledger_id in durable
    ]
    noise = random.Random(1).randbytes(size * 64)
    for written in range(0, entries, BURST):
        for at in range(written, min(written + BURST, entries)):
            begin = at % 63 * size
            appends[at % ledgers](at.to_bytes(8, "big") + noise[begin + 8 : begin + size])
        if bookie.has_room():
            await trio.lowlevel.checkpoint()
        else:
            await bookie.wait_room()
    while sum(durable.values()) + ledgers < entries:  # noqa: ASYNC110
        await trio.sleep(0.001)


def disk_writes_bytes() -> int:
    """What this process has caused to be written to storage so far, as the kernel counts it."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def drop_page_cache(directory: Path) -> int:
    """Ask the kernel to forget every page of every file; returns their bytes."""
    total = 0
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
            total += path.stat().st_size
    return total
