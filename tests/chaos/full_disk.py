"""Fill a disk of 16 MiB and free it again, 20 times; run it in a mount namespace of its own.

    unshare -rm python tests/chaos/full_disk.py DIRECTORY

A bookie on real files and RocksDB takes entries until it says that it is read-only. What it reported durable
is read back, its ledgers are deleted, and it has to take entries again by itself. At the end it is opened
once more.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import trio
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.running.bookie import Bookie
from geminga.errors import StorageError
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import RocksKeyValue

TIMES = 20
DISK = "16m"
ENTRY = b"x" * 20_000
TURN_S_MAX = 60.0
SMALL: dict[str, Any] = {
    "journal_file_bytes": 256 << 10,
    "journal_allocate_bytes": 128 << 10,
    "write_cache_bytes": 1 << 20,
    "queue_bytes_max": 256 << 10,
    "entry_log_bytes": 1 << 20,
    "flush_interval_s": 0.2,
}
READ_ONLY: dict[str, Any] = {
    "disk_usage_threshold": 0.75,
    "disk_usage_lwm_threshold": 0.6,
    "disk_free_bytes_min": 1 << 20,
    "disk_check_interval_s": 0.1,
}


async def turn(bookie: Bookie, ledger_id: int) -> None:
    """Fill, read, free."""
    durable = -1

    def note(last: int) -> None:
        nonlocal durable
        durable = last

    writer = bookie.create_ledger(ledger_id, on_durable=note, on_failed=lambda error: None)
    bodies: list[bytes] = []
    while not bookie.read_only:  # type: ignore[attr-defined]
        if not bookie.has_room():
            await trio.sleep(0.01)
            continue
        body = b"%d/%d/" % (ledger_id, len(bodies)) + ENTRY
        try:
            writer.append(body)
        except StorageError:
            break
        bodies.append(body)
        await trio.lowlevel.checkpoint()
    await trio.sleep(0.05)
    assert durable > 100, f"turn {ledger_id}: only {durable + 1} entries fitted"
    await compare(bookie, ledger_id, bodies, durable)
    await bookie.delete_ledger(ledger_id)
    while bookie.read_only:  # type: ignore[attr-defined] # noqa: ASYNC110 - it says so on its own
        await trio.sleep(0.02)


async def compare(bookie: Bookie, ledger_id: int, bodies: list[bytes], durable: int) -> None:
    found: list[bytes] = []
    while len(found) <= durable:
        found += await bookie.read(ledger_id, len(found), durable, bytes_max=1 << 20)
    assert found == bodies[: durable + 1], f"ledger {ledger_id} has other bytes than were added"


async def main(directory: Path) -> None:
    settings = replace(BookieSettings(), **SMALL, **READ_ONLY)
    index = RocksKeyValue(str(directory / "index"), write_buffer_bytes=256 << 10)
    bookie = await Bookie.open(RealDisk(), index, str(directory / "bookie"), settings)
    async with trio.open_nursery() as nursery:
        await nursery.start(bookie.run)
        for ledger_id in range(TIMES):
            with trio.fail_after(TURN_S_MAX):
                await turn(bookie, ledger_id)
        last: list[int] = []
        writer = bookie.create_ledger(TIMES, on_durable=last.append, on_failed=print)
        writer.append(b"still here")
        await bookie.close()
        nursery.cancel_scope.cancel()
    bookie = await Bookie.open(RealDisk(), index, str(directory / "bookie"), settings)
    assert bookie.inventory.ledgers() == {TIMES}
    assert await bookie.read(TIMES, 0, 0, bytes_max=100) == [b"still here"]
    await bookie.close()
    index.close()
    print(f"filled and freed {TIMES} times")


if __name__ == "__main__":
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", sys.argv[1]], check=True)
    trio.run(main, Path(sys.argv[1]))
