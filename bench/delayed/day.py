"""A day of delayed messages in some minutes: how large the topic's metadata record becomes.

    python bench/delayed/day.py                                5,000 a second, all due when the day is over
    python bench/delayed/day.py --delays 0.02 8                due within 8 hours, delivered and acknowledged
    python bench/delayed/day.py --rate 500 --scale 20 --max-entries 50000 --min-rollover-minutes 0

Nothing but time, disk and size is simulated: a topic on a bookie gets entries of one byte, its index learns
their positions, the buckets seals, merges and deletes buckets, the ledgers roll and are trimmed. The disk is
`simulation/disk`, the clock is virtual. One entry stands for `--scale` messages: rate, entries in a ledger,
and messages in a bucket are divided by it, so there are as many ledgers and buckets as on a day of the full
size. Only the entry ids in the names of buckets have fewer digits; "at full size" adds these.

Prints the record's size through the day, and what it consists of. Exits with 1 if it was larger at any time
than `--kib`.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import trio

from geminga.tracker.index.view import View

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.delayed.bucket_watch import BUCKET_PREFIX, Verdicts
from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.running.bookie import Bookie
from geminga.broker.delays.open_index import new_buckets, run_buckets
from geminga.broker.delays.settings import DelaySettings
from geminga.errors import GemingaError
from geminga.limits import KIB, MIB
from geminga.managed_ledger.chain.tail_cache import TailCache
from geminga.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerSettings
from geminga.metadata import records
from geminga.metadata.ledger_ids import LedgerIds
from geminga.metadata.records import ManagedLedgerRecord
from geminga.metadata.store import MetadataStore
from geminga.position import Position
from geminga.tracker.buckets.bucket_store import TopicOwner
from simulation.campaign.deterministic import run_deterministically
from simulation.disk.sim_disk import SimDisk
from simulation.disk.sim_key_value import SimKeyValue

PATH = "/managed-ledgers/public/default/persistent/orders"
START_MS = 1_700_000_000_000
HOUR_S = 3600
# Small files, since the simulated disk keeps two copies of each in memory.
BOOKIE = BookieSettings(
    journal_file_bytes=256 * KIB,
    journal_allocate_bytes=64 * KIB,
    write_cache_bytes=MIB,
    read_cache_bytes=256 * KIB,
    entry_log_bytes=4 * MIB,
)


class DayClock:
    """Message time goes with trio's, which is virtual."""

    is_virtual = False

    def now_ms(self) -> int:
        return START_MS + round(trio.current_time() * 1000)

    async def sleep_until_ms(self, due_ms: int) -> None:
        await trio.sleep(max(0, due_ms - self.now_ms()) / 1000)

    def monotonic_s(self) -> float:
        return trio.current_time()

    def worker(self, name: str) -> None:
        return None


class Sizes(NamedTuple):
    """Of the record."""

    bytes: int
    ledgers: int
    buckets: int
    of_ledgers_bytes: int
    of_buckets_bytes: int
    full_bytes: int
    """With as many digits in the names of buckets as at full size."""


def sizes_of(value: bytes, scale: int) -> Sizes:
    record = records.decode(ManagedLedgerRecord, value, PATH)
    named = [key for key in record.properties if key.startswith(BUCKET_PREFIX)]
    of_buckets = sum(len(key) + len(record.properties[key]) + 6 for key in named)
    ids = sum(key.count(":") for key in named)
    return Sizes(
        len(value),
        len(record.ledgers),
        len(named),
        len(value) - of_buckets,
        of_buckets,
        len(value) + ids * math.ceil(math.log10(scale)),
    )


class Day:
    """One topic with one subscription, and its index."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.clock = DayClock()
        self.draw = random.Random(1)
        self.largest: Sizes | None = None
        self.delivered = 0

    # What the ledger tells.

    def on_confirmed(self, ledger_id: int, first_entry_id: int, contexts: list[Any]) -> None:
        low, high = (round(hours * HOUR_S * 1000) for hours in self.options.delays)
        now_ms, randrange = self.clock.now_ms(), self.draw.randrange
        times = [now_ms + randrange(low, high) for _ in contexts]
        self.view.add_many(ledger_id, range(first_entry_id, first_entry_id + len(times)), times)

    def on_add_failed(self, error: GemingaError, contexts: list[Any]) -> None:
        raise AssertionError(error)

    async def run(self) -> None:
        options, scale = self.options, self.options.scale
        disk, rows, tree = SimDisk(1), SimKeyValue(1), SimKeyValue(2)
        async with trio.open_nursery() as nursery:
            metadata = self.metadata = MetadataStore(tree, threaded=False)
            await nursery.start(metadata.run)
            bookie = await Bookie.open(disk, rows, "bookie", BOOKIE, threaded=False)
            await nursery.start(bookie.run)
            ledger = await ManagedLedger.open(
                PATH,
                bookie,
                metadata,
                LedgerIds(metadata),
                self.clock,
                ManagedLedgerSettings(
                    ledger_entries_max=max(1, options.max_entries // scale),
                    rollover_min_ms=round(options.min_rollover_minutes * 60_000),
                ),
                tail_cache=TailCache(),
            )
            ledger.attach(self)
            ledger.life.run_in(nursery)
            cursor = await ledger.open_cursor("s", initial="earliest")
            settings = DelaySettings(
                keeps_buckets=True,
                strict=True,
                bucket_indexes_min=max(1, 50_000 // scale),
            )
            buckets = new_buckets(ledger, TopicOwner(ledger), settings, self.clock, off_loop=at_once)
            self.buckets, self.cursor = buckets, cursor
            self.view = View(buckets.index, reread=lost)
            nursery.start_soon(run_buckets, buckets)
            await self._publish(ledger, bookie)
            await buckets.stop()
            nursery.cancel_scope.cancel()

    async def _publish(self, ledger: ManagedLedger, bookie: Bookie) -> None:
        options = self.options
        entries = options.rate * options.step_s / options.scale
        steps, owed, shown = round(options.hours * HOUR_S / options.step_s), 0.0, -1
        for step in range(steps + 1):
            owed += entries
            for _ in range(int(owed)):
                await bookie.wait_room()
                ledger.append([b"x"], None)
            owed -= int(owed)
            await trio.sleep(options.step_s)
            self._deliver()
            self._look()
            hour = step * options.step_s // HOUR_S
            if hour > shown:
                shown = hour
                self._show(int(hour))

    def _deliver(self) -> None:
        while codes := self.view.take_due(1000):
            self.cursor.acknowledge([Position(code >> 32, code & 0xFFFFFFFF) for code in codes])
            self.delivered += len(codes)

    def _look(self) -> Sizes:
        stored = self.metadata.get(PATH)
        assert stored is not None
        if self.largest is None or len(stored.value) != self.largest.bytes:
            found = sizes_of(stored.value, self.options.scale)
            if self.largest is None or found.full_bytes > self.largest.full_bytes:
                self.largest = found
            return found
        return self.largest

    def counts(self, kind: str) -> int:
        return self.buckets.operations.counts[kind].succeeded

    def _show(self, hour: int) -> None:
        now = self._look()
        print(
            f"  {hour:3} h  record {now.bytes / KIB:7.1f} KiB (at full size {now.full_bytes / KIB:.1f})"
            f"  {now.ledgers:5} ledgers {now.buckets:5} buckets"
            f"  {self.counts('create'):6} sealed {self.counts('merge'):5} merges"
            f"  {len(self.view) * self.options.scale:13,} wait"
            f" {self.delivered * self.options.scale:13,} delivered",
            flush=True,
        )


def lost(first: int, last: int) -> None:
    raise AssertionError(f"ledgers {first} to {last} are to be read again: nothing is lost here")


async def at_once(function: Callable[..., Any], *args: Any) -> Any:
    """Instead of a thread, for which the virtual clock would not wait."""
    await trio.lowlevel.checkpoint()
    return function(*args)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    broker = ManagedLedgerSettings()
    parser.add_argument("--rate", type=float, default=5000, help="messages a second")
    parser.add_argument("--hours", type=float, default=24)
    parser.add_argument("--delays", type=float, nargs=2, default=(25.0, 49.0), metavar="HOURS", help="even")
    parser.add_argument("--max-entries", type=int, default=broker.ledger_entries_max, help="in a ledger")
    parser.add_argument("--min-rollover-minutes", type=float, default=broker.rollover_min_ms / 60_000)
    parser.add_argument("--scale", type=int, default=500, help="messages that one entry stands for")
    parser.add_argument("--step-s", type=float, default=5.0, help="what is published at once")
    parser.add_argument("--kib", type=float, default=256.0, help="that the record may have")
    options = parser.parse_args()
    day, began_s = Day(options), time.perf_counter()
    run_deterministically(1, day.run)
    verdicts, most = Verdicts(), day.largest
    assert most is not None
    line = verdicts.line
    line("the largest record, KiB", f"{most.bytes / KIB:.1f}")
    line("... at full size, KiB", f"{most.full_bytes / KIB:.1f}", met=most.full_bytes / KIB <= options.kib)
    line("... ledgers and the rest of it, KiB", f"{most.of_ledgers_bytes / KIB:.1f} ({most.ledgers} ledgers)")
    line("... names of buckets, KiB", f"{most.of_buckets_bytes / KIB:.1f} ({most.buckets} buckets)")
    line("buckets sealed", f"{day.counts('create')}")
    line("merges", f"{day.counts('merge')}")
    print(f"     {time.perf_counter() - began_s:.0f} s")
    return 0 if verdicts.all_met else 1


if __name__ == "__main__":
    sys.exit(main())
