"""What compaction costs those who publish meanwhile, and how much space comes back.

    python bench/storage/compaction.py [--mebibytes 300] [--seconds 8] [--rate 2000] [--directory DIR]

Many ledgers are written in turn and nine of ten deleted. Then single entries of 1 KiB are published at a
steady rate, first alone, then while all logs are compacted.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.running.bookie import Bookie
from geminga.errors import StorageError
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import RocksKeyValue

LEDGERS = 1000
BODY = os.urandom(1024)


def fail(error: StorageError) -> None:
    raise error


def log_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in (directory / "bookie" / "entry-logs").iterdir())


async def fill(bookie: Bookie, mebibytes: int) -> None:
    writers = [
        bookie.create_ledger(ledger_id, on_durable=lambda last: None, on_failed=fail)
        for ledger_id in range(1, LEDGERS + 1)
    ]
    for number in range(mebibytes * 1024):
        if not bookie.has_room():
            await bookie.wait_room()
        writers[number % LEDGERS].append(BODY)
    for writer in writers:
        writer.close()
    while bookie.statistics().queued_bytes:  # noqa: ASYNC110
        await trio.sleep(0.05)
    await bookie.flush()


async def publish(bookie: Bookie, ledger_id: int, seconds: float, rate: int) -> list[float]:
    """Seconds from append to durable, of every entry, sorted."""
    sent: list[float] = []
    taken: list[float] = []

    def on_durable(last: int) -> None:
        now = trio.current_time()
        taken.extend(now - at for at in sent[len(taken) : last + 1])

    writer = bookie.create_ledger(ledger_id, on_durable=on_durable, on_failed=fail)
    start = trio.current_time()
    for number in range(int(seconds * rate)):
        await trio.sleep_until(start + number / rate)
        sent.append(trio.current_time())
        writer.append(BODY)
    while len(taken) < len(sent):  # noqa: ASYNC110
        await trio.sleep(0.01)
    return sorted(taken)


def show(label: str, taken: list[float]) -> None:
    p50, p99, worst = (taken[int(len(taken) * share)] * 1000 for share in (0.5, 0.99, 0.9999))
    print(f"{label:24}{p50:.2f} ms p50, {p99:.2f} ms p99, {worst:.1f} ms p99.99")


async def main(directory: Path, arguments: argparse.Namespace) -> None:
    index = RocksKeyValue(str(directory / "index"))
    settings = BookieSettings(entry_log_bytes=64 << 20)
    bookie = await Bookie.open(RealDisk(), index, str(directory / "bookie"), settings)
    async with trio.open_nursery() as nursery:
        await nursery.start(bookie.run)
        await fill(bookie, arguments.mebibytes)
        for ledger_id in range(1, LEDGERS + 1):
            if ledger_id % 10:
                await bookie.delete_ledger(ledger_id)
        await bookie.collect_garbage()
        before = log_bytes(directory)
        show("alone", await publish(bookie, LEDGERS + 1, arguments.seconds, arguments.rate))
        async with trio.open_nursery() as compaction:
            compaction.start_soon(bookie.compact, 0.2)
            show("while compacting", await publish(bookie, LEDGERS + 2, arguments.seconds, arguments.rate))
            started = bookie.statistics()
            print(
                f"{'copied meanwhile':24}{started.compacted_bytes >> 20} MiB, {started.logs_compacted} logs"
            )
        print(f"{'entry logs':24}{before >> 20} MiB before, {log_bytes(directory) >> 20} MiB after")
        await bookie.close()
        nursery.cancel_scope.cancel()
    index.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--mebibytes", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--rate", type=int, default=2000)
    parser.add_argument("--directory")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        trio.run(main, Path(name), options)
