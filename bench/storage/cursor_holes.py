"""A million acknowledged entries, none next to another: each ack, what is written, what comes back.

    python bench/storage/cursor_holes.py                   1,000,000 of 2,000,000 entries in ledgers of 50,000
    python bench/storage/cursor_holes.py --holes 100000

A process of its own acknowledges every other entry one by one, in random order within a window of a thousand
as consumers would, writes the cursor down, and is killed. This one opens it again and compares. The entries
themselves are not there: only the topic's record says so.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.figures import add_options, measured, show
from geminga.bookie.running.bookie import Bookie
from geminga.clock import RealClock
from geminga.managed_ledger.chain.tail_cache import TailCache
from geminga.managed_ledger.cursor.cursor import Cursor
from geminga.managed_ledger.managed_ledger import ManagedLedger
from geminga.metadata import records
from geminga.metadata.ledger_ids import LedgerIds
from geminga.metadata.records import LedgerInfo, ManagedLedgerRecord
from geminga.metadata.store import MUST_NOT_EXIST, MetadataStore
from geminga.names import TopicName
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import RocksKeyValue

TOPIC = TopicName.parse("persistent://public/default/holes")
WINDOW = 1000


@asynccontextmanager
async def opened(directory: Path, ledgers: int, entries: int) -> AsyncIterator[ManagedLedger]:
    """The topic's managed ledger; new, it has so many ledgers with so many entries each, by its record."""
    tree, index = RocksKeyValue(str(directory / "metadata")), RocksKeyValue(str(directory / "index"))
    async with trio.open_nursery() as nursery:
        metadata = MetadataStore(tree)
        await nursery.start(metadata.run)
        bookie = await Bookie.open(RealDisk(), index, str(directory / "bookie"))
        await nursery.start(bookie.run)
        path = records.managed_ledger_path(TOPIC)
        ledger_ids = LedgerIds(metadata)
        if metadata.get(path) is None:
            ids = [await ledger_ids.next() for _ in range(ledgers)]
            infos = [
                LedgerInfo(ledger_id=id_, entries=entries, size_bytes=entries, closed_ms=1) for id_ in ids
            ]
            record = ManagedLedgerRecord(ledgers=infos)
            await metadata.put(path, records.encode(record), MUST_NOT_EXIST)
        ledger = await ManagedLedger.open(
            path, bookie, metadata, ledger_ids, RealClock(), tail_cache=TailCache(), create=False
        )
        ledger.life.run_in(nursery)
        yield ledger
        nursery.cancel_scope.cancel()
    index.close()
    tree.close()


def positions(ledger: ManagedLedger, holes: int) -> list[tuple[int, int]]:
    """Every other entry, shuffled a little; always the same."""
    pick = random.Random(1)
    found = [(info.ledger_id, entry) for info in ledger.ledgers for entry in range(1, info.entries, 2)][
        :holes
    ]
    for first in range(0, len(found), WINDOW):
        window = found[first : first + WINDOW]
        pick.shuffle(window)
        found[first : first + WINDOW] = window
    return found


async def acknowledge(directory: Path, options: argparse.Namespace) -> None:
    """Never returns."""
    async with opened(directory, options.ledgers, options.entries) as ledger:
        cursor = await ledger.open_cursor("s", initial="earliest")
        places = positions(ledger, options.holes)
        before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        each_us = []
        tenth = len(places) // 10
        for first in range(0, len(places), tenth):
            some = places[first : first + tenth]
            since_s = time.process_time()
            for place in some:
                cursor.acknowledge((place,))
            each_us.append((time.process_time() - since_s) / len(some) * 1e6)
        since_s = time.perf_counter()
        await cursor.persist()
        persist_ms = (time.perf_counter() - since_s) * 1000
        figures = {
            "ack_us": sum(each_us) / len(each_us),
            "first_ack_us": each_us[0],
            "last_ack_us": each_us[-1],
            "persist_ms": persist_ms,
            "left_out": cursor.left_out,
            "grown_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / 1024,
        }
        print(json.dumps(figures), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)


async def compare(directory: Path, options: argparse.Namespace) -> dict[str, float]:
    began_s = time.perf_counter()
    async with opened(directory, options.ledgers, options.entries) as ledger:
        cursor = await ledger.open_cursor("s", initial="earliest")
        figures = {"open_ms": (time.perf_counter() - began_s) * 1000}
        places = positions(ledger, options.holes)
        told = [place for place in places if cursor.is_acknowledged(place)]
        figures["restored"] = len(told)
        figures["not_acknowledged"] = cursor.backlog_entries()
        figures["expected_backlog"] = options.ledgers * options.entries - len(places)
        figures["state_bytes"] = await state_bytes(ledger, cursor)
    return figures


async def state_bytes(ledger: ManagedLedger, cursor: Cursor) -> int:
    assert cursor.cursor_ledger is not None
    cursor_ledger_id = cursor.cursor_ledger.record.cursor_ledger_id
    last = cursor.cursor_ledger.last_entry_id
    (state,) = await ledger.storage.bookie.read(cursor_ledger_id, last, last, bytes_max=1)
    return len(state)


def measure(options: argparse.Namespace, directory: Path) -> dict[str, float]:
    numbers = [f"--{name}={getattr(options, name)}" for name in ("holes", "ledgers", "entries")]
    command = [sys.executable, __file__, *numbers, f"--child={directory}"]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    assert ended.returncode == -signal.SIGKILL, ended
    figures: dict[str, float] = json.loads(ended.stdout)
    return figures | trio.run(compare, directory, options)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--holes", type=int, default=1_000_000)
    parser.add_argument("--ledgers", type=int, default=40)
    parser.add_argument("--entries", type=int, default=50_000, help="of each ledger")
    add_options(parser)
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        trio.run(acknowledge, options.child, options)
    show(measured("cursor-holes", options, lambda directory: measure(options, Path(directory))))


if __name__ == "__main__":
    main()
