"""How much memory a delayed message takes in the tracker, and how fast it goes in and out.

    python bench/tracker_memory.py                        2 million messages for each row, about half a minute
    python bench/tracker_memory.py --messages 10000000    the published table of the time-bucket structure

The workload is the one that the structure was published with: 50,000 entries in each ledger, x messages for
each millisecond, times truncated by y bits. "fixed" gives all messages one delay; "random" draws delays
evenly over the same span. Each row runs in a process of its own. Bytes are the growth of its resident memory
after the allocator returned what it could, so they hold every object's overhead; "reported" is what the
tracker says of itself. Rates are CPU time of this one thread, positions given one at a time and drained 500
at a time.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import multiprocessing
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from geminga.position import Position
from geminga.tracker.time_buckets import TimeBucketTracker

ENTRIES_PER_LEDGER = 50_000
BLOCK = 1000
"""Positions are made this many at a time, outside the clocked part, so as to leave no trace in memory."""
DRAIN_COUNT = 500
MIB = 1024 * 1024

# (delays, x messages per ms, y bits) and MiB for 10 million in the published Java measurement, where there is
# one
ROWS: list[tuple[str, int, int, float | None]] = [
    ("fixed", 1, 10, 25.0),
    ("fixed", 4, 10, 20.48),
    ("fixed", 8, 10, 11.0),
    ("fixed", 8, 15, 2.25),
    ("random", 1, 10, None),
    ("random", 8, 10, None),
    ("random", 8, 15, None),
]


class HandClock:
    """Time that is set by hand. A look at it is part of the rates."""

    def __init__(self) -> None:
        self.ms = 0

    def now_ms(self) -> int:
        return self.ms

    async def sleep_until_ms(self, due_ms: int) -> None:
        raise NotImplementedError

    def monotonic_s(self) -> float:
        return time.monotonic()


def resident_bytes() -> int:
    gc.collect()
    if sys.platform == "linux":
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this bench reads /proc, so it runs on Linux only")


def measure(delays: str, per_ms: int, bits: int, messages: int) -> dict[str, Any]:
    clock = HandClock()
    tracker = TimeBucketTracker(clock, tick_ms=1 << bits, fixed_delay_lookahead=0)
    start_ms = 1_700_000_000_000
    span_ms = messages // per_ms
    draw = random.Random(1).randrange
    before_bytes = resident_bytes()
    add_s = 0.0
    for first in range(0, messages, BLOCK):
        ledger_id, entry_id = divmod(first, ENTRIES_PER_LEDGER)
        positions = [Position(10_000 + ledger_id, entry_id + n) for n in range(BLOCK)]
        if delays == "fixed":
            times = [start_ms + (first + n) // per_ms for n in range(BLOCK)]
        else:
            times = [start_ms + draw(span_ms) for _ in range(BLOCK)]
        add = tracker.add
        started = time.thread_time()
        for position, at_ms in zip(positions, times, strict=True):
            add(position, at_ms)
        add_s += time.thread_time() - started
    held_bytes = resident_bytes() - before_bytes
    assert len(tracker) == messages
    reported_bytes = tracker.memory_bytes()
    clock.ms = start_ms + span_ms + (2 << bits)
    drained = 0
    started = time.thread_time()
    while taken := tracker.take_due(DRAIN_COUNT):
        drained += len(taken)
    drain_s = time.thread_time() - started
    assert drained == messages, "a position was lost"
    return {
        "add_millions_per_s": messages / add_s / 1e6,
        "drain_millions_per_s": messages / drain_s / 1e6,
        "bytes_per_message": held_bytes / messages,
        "reported_bytes_per_message": reported_bytes / messages,
        "mib": held_bytes / MIB,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--json", type=Path, help="write the rows here too")
    arguments = parser.parse_args()
    arguments.messages -= arguments.messages % BLOCK
    print(f"{arguments.messages:,} messages for each row")
    print("delays   x/ms bits  add M/s  drain M/s   B/msg  reported      MiB  published MiB for 10 M")
    results = []
    for delays, per_ms, bits, published_mib in ROWS:
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            row = pool.apply(measure, (delays, per_ms, bits, arguments.messages))
        results.append({"delays": delays, "per_ms": per_ms, "bits": bits, **row})
        print(
            f"{delays:<8}{per_ms:>5}{bits:>5}{row['add_millions_per_s']:>9.2f}"
            f"{row['drain_millions_per_s']:>11.2f}{row['bytes_per_message']:>8.3f}"
            f"{row['reported_bytes_per_message']:>10.3f}{row['mib']:>9.2f}  {published_mib or '-'}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"messages": arguments.messages, "rows": results}, indent=1))


if __name__ == "__main__":
    main()
