"""How long the event loop stands still while delayed messages are indexed, sealed and written to a bookie.

    python bench/delayed/stall.py                       20 buckets of 50,000, random and fixed delays
    python bench/delayed/stall.py --rows 500000 --seals 5

Everything is real but the messages themselves, as in `hundred_million.py`: 100 positions at a time are added
as from a dispatcher's reads, and with each full ledger a bucket is cut off, encoded in a thread, written to
the bookie, named in the metadata and taken over by the index. A third of the messages are due within the
minute, so their segments are kept loaded.

Two figures. "step" is the longest CPU time that one task took between two checkpoints, by the clock of the
loop's thread: what other programs do to this machine is not in it. "gap" is the longest wall time between two
ticks of a task that does nothing but tick, which has that, and waits for the interpreter's lock, in it too;
beside it the same without any sealing. Exits with 1 if a step takes more than 10 ms.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.delayed.hundred_million import BATCH, FIRST_LEDGER, START_MS, HandClock, World, opened
from geminga.tracker.buckets.bucket_settings import BucketSettings

STEP_MS_MAX = 10.0
IDLE_S = 2.0
TICK_S = 0.0005


class Steps(trio.abc.Instrument):
    """The CPU time of each task's longest step."""

    def __init__(self) -> None:
        self.longest_ms: dict[str, float] = {}
        self._began_s = time.thread_time()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began_s = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        taken_ms = (time.thread_time() - self._began_s) * 1000
        name = task.name.rpartition("geminga.")[2]
        if taken_ms > self.longest_ms.get(name, 0.0):
            self.longest_ms[name] = taken_ms


class Ticks:
    """Wall times between ticks, in ms."""

    def __init__(self) -> None:
        self.gaps_ms: list[float] = []

    async def run(self) -> None:
        before = time.perf_counter()
        while True:
            await trio.sleep(TICK_S)
            now = time.perf_counter()
            self.gaps_ms.append((now - before - TICK_S) * 1000)
            before = now

    def told(self) -> str:
        p50, p99 = np.percentile(self.gaps_ms, (50, 99))
        return f"p50 {p50:5.2f}  p99 {p99:5.2f}  max {max(self.gaps_ms):6.2f}"


@contextmanager
def watched() -> Iterator[Steps]:
    steps = Steps()
    trio.lowlevel.add_instrument(steps)
    try:
        yield steps
    finally:
        trio.lowlevel.remove_instrument(steps)


async def ticking(seconds_or_work: Any) -> Ticks:
    ticks = Ticks()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ticks.run)
        if callable(seconds_or_work):
            await seconds_or_work()
        else:
            await trio.sleep(seconds_or_work)
        nursery.cancel_scope.cancel()
    return ticks


def due_times(delays: str, rows: int, seals: int) -> list[list[int]]:
    """For each ledger."""
    draw = np.random.default_rng(1)
    times = START_MS + np.arange(rows) // 8
    delay = [draw.integers(1000, 180_000, rows) if delays == "random" else 60_000 for _ in range(seals)]
    return [(times + delay[number]).tolist() for number in range(seals)]


async def seal(world: World, times_ms: list[list[int]]) -> None:
    """Fill one ledger after the other; a bucket is cut off with the first entry of the next one."""
    await trio.lowlevel.checkpoint()
    for ledger_id, listed in enumerate(times_ms, FIRST_LEDGER):
        for at in range(0, len(listed), BATCH):
            part = listed[at : at + BATCH]
            world.view.add_many(ledger_id, list(range(at, at + len(part))), part)
            await trio.lowlevel.checkpoint()
    world.index.feed.freeze_all()
    while world.buckets.frozen:  # noqa: ASYNC110
        await trio.sleep(0.002)


async def measure(delays: str, rows: int, seals: int) -> float:
    settings = BucketSettings(indexes_min=rows)
    with tempfile.TemporaryDirectory() as directory:
        async with opened(Path(directory), HandClock(START_MS), settings) as world:
            await seal(world, due_times(delays, 100, 1))
            world.index.clear()
            await world.buckets.clear()
            idle = await ticking(IDLE_S)
            times_ms = due_times(delays, rows, seals)
            await trio.lowlevel.checkpoint()
            with watched() as steps:
                busy = await ticking(lambda: seal(world, times_ms))
            created = world.buckets.operations.counts["create"]
            assert (created.succeeded, created.failed) == (seals + 1, 0)
            print(f"{delays}: {seals} buckets of {rows:,}, each in {created.total_ms / (seals + 1):.0f} ms")
            print(f"  gap between ticks, idle     {idle.told()} ms")
            print(f"  gap between ticks, sealing  {busy.told()} ms")
            longest = sorted(steps.longest_ms.items(), key=lambda item: -item[1])
            for name, taken_ms in longest[:5]:
                print(f"  longest step, CPU           {taken_ms:6.2f} ms  {name}")
            raise Finished(longest[0][1])


class Finished(Exception):
    """The stores are not closed: nothing in here is kept."""

    def __init__(self, step_ms: float) -> None:
        self.step_ms = step_ms


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--seals", type=int, default=20)
    options = parser.parse_args()
    worst_ms = 0.0
    for delays in ("random", "fixed"):
        try:
            trio.run(measure, delays, options.rows, options.seals)
        except* Finished as finished:
            worst_ms = max(worst_ms, _first(finished).step_ms)
    print(f"{'ok' if worst_ms <= STEP_MS_MAX else 'FAIL'}: the longest step took {worst_ms:.2f} ms of CPU")
    return 0 if worst_ms <= STEP_MS_MAX else 1


def _first(group: BaseException) -> Finished:
    while isinstance(group, BaseExceptionGroup):
        group = group.exceptions[0]
    assert isinstance(group, Finished)
    return group


if __name__ == "__main__":
    sys.exit(main())
