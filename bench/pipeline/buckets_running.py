"""Buckets for many delayed messages, brought to a broker that runs: how long that takes, how long the
broker's loop stands still for it, and whether the messages then come exactly.

    python bench/pipeline/buckets_running.py --messages 1000000
    python bench/pipeline/buckets_running.py --messages 10000000 --owner subscription

The broker is `geminga.server.server` in this process, so that its loop can be watched; whoever builds the
buckets, from the same stored messages as in `buckets.py`, and Pulsar's client are a process of their own.
"step" is the longest CPU time that one task took between two checkpoints, by the clock of the loop's thread;
"gap" the wall time between two ticks of a task that does nothing but tick, which has other programs in it.
A sample of the messages is due once all is taken in. Exits with 1 if a step takes more than 10 ms or the
client gets anything else than the sample.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import shutil
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.delayed.stall import STEP_MS_MAX, ticking, watched
from bench.pipeline.buckets import BROKER, DAY_MS, WINDOW_MS, mixed, receive
from geminga.config.file import Property
from geminga.config.loading import load
from geminga.pipeline.buckets.backlog import Backlog, stored_sources
from geminga.pipeline.buckets.here import build, ranges_of
from geminga.pipeline.buckets.served import Adopted, ServedIndex
from geminga.pipeline.errors import Access
from geminga.server.server import serve
from geminga.tracker.buckets.bucket_settings import BucketSettings
from tests.pipeline.buckets.stored_backlog import (
    ENTRIES_PER_LEDGER,
    FIRST_LEDGER,
    SUBSCRIPTION,
    TOPIC,
    write_backlog,
)

SETTINGS = BucketSettings()
IDLE_S = 3.0


class Plan(NamedTuple):
    """Every `step`-th message is due soon, by number; the others in days."""

    step: int
    start_ms: int
    sample_ms: int

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        draw = mixed(numbers)
        due = self.start_ms + 3 * DAY_MS + (draw % np.uint64(27 * DAY_MS)).astype(np.int64)
        soon = self.sample_ms + (draw % np.uint64(WINDOW_MS)).astype(np.int64)
        return np.where(numbers % self.step == 3, soon, due)


def bring(pipe: Connection, directory: str, messages: int, plan: Plan) -> None:
    """In a process of its own: build, tell, wait for the broker's addresses, bring, tell, receive, tell."""
    began = time.perf_counter()
    ledgers = frozenset(range(FIRST_LEDGER, FIRST_LEDGER + messages // ENTRIES_PER_LEDGER))
    sources = stored_sources([directory], Backlog(ledgers, (-1, -1), {}, {}, 0))
    buckets = list(build(sources, ranges_of(sources, SETTINGS), SETTINGS))
    pipe.send((len(buckets), time.perf_counter() - began))
    service_url, admin_url = pipe.recv()
    index = ServedIndex(Access(service_url), admin_url, TOPIC, SUBSCRIPTION)
    began, done, requests = time.perf_counter(), Adopted(), 0
    for adopted in index.adopt(buckets):
        done, requests = done.plus(adopted), requests + 1
    pipe.send((done, requests, time.perf_counter() - began))
    pipe.recv()
    numbers = np.arange(3, messages, plan.step)
    due = dict(zip(numbers.tolist(), plan(numbers).tolist(), strict=True))
    came, _ = receive(service_url, due)
    early = sum(at_ms < due[number] for number, at_ms in came if number in due)
    pipe.send((len(due), len(came), len({n for n, _ in came} ^ set(due)), early))


async def take_in(pipe: Connection, directory: Path, settings: dict[str, str], messages: int) -> bool:
    async def told() -> Any:
        return await trio.to_thread.run_sync(pipe.recv)

    config = load(environment={}, flags=[Property(key, value, key) for key, value in settings.items()]).config
    async with trio.open_nursery() as nursery:
        addresses = await nursery.start(functools.partial(serve, config, data_dir=str(directory)))
        idle = await ticking(IDLE_S)
        urls = f"pulsar://127.0.0.1:{addresses.binary_port}", f"http://127.0.0.1:{addresses.web_port}"
        found: list[Any] = []

        async def take() -> None:
            pipe.send(urls)
            found.append(await told())

        with watched() as steps:
            busy = await ticking(take)
        ((done, requests, seconds),) = found
        print(
            f"{done.buckets} buckets of {done.messages:,} messages taken in by {requests} requests in "
            f"{seconds:.1f} s; {done.indexed:,} were new to the index, {len(done.refused)} refused"
        )
        longest = sorted(steps.longest_ms.items(), key=lambda item: -item[1])[:3]
        print("longest steps: " + ", ".join(f"{ms:.1f} ms {name}" for name, ms in longest))
        print(f"gaps, idle     {idle.told()} ms\ngaps, meanwhile {busy.told()} ms")
        pipe.send("go on")
        due, came, wrong, early = await told()
        print(f"{came:,} of a sample of {due:,} came, {wrong} missing or others, {early} early", flush=True)
        nursery.cancel_scope.cancel()
    return (
        longest[0][1] <= STEP_MS_MAX and came == due and not wrong and not early and done.indexed == messages
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--sample", type=int, default=5_000)
    parser.add_argument("--owner", choices=("shared", "subscription"), default="shared")
    parser.add_argument("--lead", type=float, help="seconds until the sample is due")
    parser.add_argument("--directory", help="where the data go; they are deleted in the end")
    options = parser.parse_args()
    messages = max(ENTRIES_PER_LEDGER, options.messages - options.messages % ENTRIES_PER_LEDGER)
    work = Path(tempfile.mkdtemp(prefix="geminga-buckets-", dir=options.directory or "/var/tmp"))
    start_ms = time.time_ns() // 1_000_000
    lead_s = options.lead or 30 + messages / 1_000_000 * 4
    plan = Plan(max(8, messages // options.sample), start_ms, start_ms + int(1000 * lead_s))
    settings = BROKER | {
        "delayedDeliverySharedIndexEnabled": str(options.owner == "shared").lower(),
        "brokerServicePort": "0",
        "webServicePort": "0",
    }
    ours, theirs = multiprocessing.Pipe()
    try:
        (work / "data").mkdir()
        write_backlog(work / "data", messages, plan, start_ms)
        arguments = theirs, str(work / "data"), messages, plan
        process = multiprocessing.get_context("spawn").Process(target=bring, args=arguments)
        process.start()
        buckets, seconds = ours.recv()
        print(
            f"{buckets} buckets of {messages:,} messages built in {seconds:.1f} s, without Spark", flush=True
        )
        right = trio.run(take_in, ours, work / "data", settings, messages)
        process.join()
        return 0 if right else 1
    finally:
        shutil.rmtree(work, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
