"""How long the admin API holds the event loop: the CPU time of every step while it answers.

    python bench/slices.py                     400,000 delayed messages in 200 buckets; 2,000 topics
    python bench/slices.py --messages 20000 --topics 200             the same, smaller
    python bench/slices.py --part topics --rounds 3
    python bench/slices.py --part many --topics 10000 --partitions 10000    changes of many at once
    python bench/slices.py --part holes --holes 1000000
    python bench/slices.py --part commands --topics 10000 --patterns 1000    binary commands
    python bench/slices.py --part machine                            arithmetic alone, to compare with

A broker runs in a thread of this process, so that each step of each task on its loop is measured by the clock
of that thread: what other programs and the client do to this machine is not in it. The messages are due
over a year, at random, 2,000 in each bucket. The topics have a subscription each; half as many partitions of
one topic come on top. Each route is asked one request after the other, the first of them not measured: it
imports and loads.

A line for each route: requests, the CPU time of all steps for one of them, how many steps, and of the steps
the median, p99, p99.9 and the longest, without the garbage collections that fell into them; these are
listed apart. Steps of other tasks that ran meanwhile count too. Exits with 1 if a p99.9 is beyond 5 ms.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pulsar
import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench import slices_commands
from bench.figures import add_options
from geminga.config.file import Property
from geminga.config.loading import load
from geminga.server.server import Addresses, serve

STEP_MS_MAX = 5.0
YEAR_MS = 365 * 86_400_000
PER_BUCKET = 2000
LATER = "persistent/public/default/later"
PARTED = "persistent/public/default/parted"
SETTINGS = {
    "keepAliveIntervalSeconds": "3600",  # clients that wait for their turn answer no PING
    "memoryMb": "512",  # by default there is room for 430 patterns; further ones are left to their clients
    "brokerServicePort": "0",
    "webServicePort": "0",
    "delayedDeliveryTrackerFactoryClassName": (
        "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
    ),
    "delayedDeliveryMinIndexCountPerBucket": str(PER_BUCKET),
    "delayedDeliveryMaxNumBuckets": "1000",
    "managedLedgerMaxEntriesPerLedger": str(PER_BUCKET),
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "maxUnackedMessagesPerConsumer": "0",
    "maxUnackedMessagesPerSubscription": "0",
}


class Stacks:
    """Where the loop's thread was, about each millisecond of its own time, of the longest step."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, str]] = []
        self.longest: list[tuple[float, str]] = []
        sys.setswitchinterval(0.0005)

    def run(self, thread: int) -> None:
        while frame := sys._current_frames().get(thread):
            names = []
            while frame is not None and "trio" not in frame.f_code.co_filename:
                file = frame.f_code.co_filename.rpartition("geminga/")[2]
                names.append(f"{file}:{frame.f_lineno} {frame.f_code.co_name}")
                frame = frame.f_back  # type: ignore[assignment]
            self.seen.append((time.clock_gettime(time.pthread_getcpuclockid(thread)), " < ".join(names[:7])))
            time.sleep(0.0007)


class Steps(trio.abc.Instrument):
    """The CPU time of each step of the loop, while it is on, and of the collections that fell into them."""

    def __init__(self, stacks: Stacks | None = None, only: str = "") -> None:
        self.is_on = False
        self.stacks = stacks
        self.only = only
        self.longest_ms = 0.0
        self.steps: list[tuple[float, str]] = []
        """ms, and the task."""
        self.collections: list[tuple[float, int]] = []
        """ms, and the generation."""
        self._began_s = 0.0
        self._collected_s = 0.0
        self._collecting_s = 0.0
        self._thread = 0

    def before_run(self) -> None:
        self._thread = threading.get_ident()
        gc.callbacks.append(self._collects)
        if self.stacks is not None:
            threading.Thread(target=self.stacks.run, args=(self._thread,), daemon=True).start()

    def after_run(self) -> None:
        gc.callbacks.remove(self._collects)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._collected_s = 0.0
        if self.stacks is not None:
            self.stacks.seen = []
        self._began_s = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        if self.is_on:
            taken_s = time.thread_time() - self._began_s - self._collected_s
            self.steps.append((taken_s * 1000, task.name.rpartition("geminga.")[2]))
            if self.stacks is not None and taken_s * 1000 > self.longest_ms:
                self.longest_ms = taken_s * 1000
                self.stacks.longest = [((at - self._began_s) * 1000, names) for at, names in self.stacks.seen]

    def _collects(self, phase: str, details: dict[str, int]) -> None:
        if threading.get_ident() != self._thread:
            return
        if phase == "start":
            self._collecting_s = time.thread_time()
            return
        taken_s = time.thread_time() - self._collecting_s
        self._collected_s += taken_s
        if self.is_on:
            self.collections.append((taken_s * 1000, details["generation"]))


@contextmanager
def broker(directory: str, steps: Steps) -> Iterator[Addresses]:
    config = load(
        environment={}, flags=[Property(key, value, "bench") for key, value in SETTINGS.items()]
    ).config
    ready = threading.Event()
    found: list[Any] = []

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            # As the command does when it is ready.
            gc.collect()
            gc.freeze()
            start = nursery.start
            addresses = await start(
                lambda task_status: serve(config, data_dir=directory, task_status=task_status)
            )
            found.extend((addresses, trio.lowlevel.current_trio_token(), nursery.cancel_scope))
            ready.set()

    thread = threading.Thread(target=lambda: trio.run(run, instruments=[steps]))
    thread.start()
    try:
        ready.wait(60)
        yield found[0]
    finally:
        trio.from_thread.run_sync(found[2].cancel, trio_token=found[1])
        thread.join()


def get(web: str, path: str) -> bytes:
    with urllib.request.urlopen(f"{web}{path}", timeout=300) as answer:
        return bytes(answer.read())


def waiting(web: str, root: str) -> int:
    return int(json.loads(get(web, root))["messages"])


def ask(web: str, method: str, path: str, body: bytes | None = None) -> bytes:
    request = urllib.request.Request(
        f"{web}{path}", body, {"Content-Type": "application/json"}, method=method
    )
    with urllib.request.urlopen(request, timeout=900) as answer:
        return bytes(answer.read())


def measure(
    web: str, steps: Steps, name: str, path: str, rounds: int, method: str = "GET", body: bytes | None = None
) -> bool:
    """Whether it kept its promise. A change is made once."""
    if steps.only not in name:
        return True
    if method == "GET":
        ask(web, method, path)
    else:
        rounds = 1
    return measure_call(steps, name, lambda: ask(web, method, path, body), rounds)


def measure_call(steps: Steps, name: str, call: Callable[[], object], rounds: int = 1) -> bool:
    steps.steps.clear()
    steps.collections.clear()
    steps.longest_ms = 0.0
    steps.is_on = True
    size_bytes = 0
    for _ in range(rounds):
        answer = call()
        size_bytes = len(answer) if isinstance(answer, bytes) else 0
    steps.is_on = False
    taken_ms = np.array([taken for taken, _ in steps.steps])
    p50, p99, p999 = np.percentile(taken_ms, (50, 99, 99.9))
    longest, task = max(steps.steps)
    whole_ms, count = taken_ms.sum() / rounds, len(taken_ms) / rounds
    print(
        f"{name:22}{size_bytes / 1000:>8.0f} kB {whole_ms:>7.1f} ms in {count:>5.0f} steps "
        f"  p50 {p50:5.2f}  p99 {p99:5.2f}  p99.9 {p999:5.2f}  max {longest:5.2f} ({task})",
        flush=True,
    )
    for generation in sorted({generation for _, generation in steps.collections}):
        found = [taken for taken, of in steps.collections if of == generation]
        print(f"{'':22}{len(found)} collections of generation {generation}: longest {max(found):.2f} ms")
    if steps.stacks is not None and longest > STEP_MS_MAX / 2:
        for names, of_names in groupby(steps.stacks.longest, lambda seen: seen[1]):
            print(f"{'':22}{next(of_names)[0]:6.2f} ms  {names}")
    return bool(p999 <= STEP_MS_MAX)


def fill_delayed(addresses: Addresses, messages: int) -> pulsar.Client:
    client = pulsar.Client(
        f"pulsar://localhost:{addresses.binary_port}",
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"),
    )
    client.subscribe(LATER.replace("/", "://", 1), "s", pulsar.ConsumerType.Shared, receiver_queue_size=100)
    producer = client.create_producer(
        LATER.replace("/", "://", 1),
        block_if_queue_full=True,
        max_pending_messages=2000,
        send_timeout_millis=0,
    )
    web = f"http://localhost:{addresses.web_port}"
    producer.send(b"first", deliver_after=timedelta(days=366))
    while not waiting(web, f"/geminga/delayed/{LATER}/subscription/s"):
        time.sleep(0.1)  # from now on the index is fed as messages are published
    chance, now_ms = random.Random(1), int(time.time() * 1000)
    for _ in range(messages):
        at_ms = now_ms + 600_000 + chance.randrange(YEAR_MS)
        producer.send_async(b"later", lambda *_: None, deliver_at=at_ms)
    producer.flush()
    return client


def fill_topics(web: str, topics: int, partitions: int | None = None) -> None:
    def put(path: str, body: bytes | None = None) -> None:
        request = urllib.request.Request(
            f"{web}{path}", body, {"Content-Type": "application/json"}, method="PUT"
        )
        urllib.request.urlopen(request, timeout=300).close()

    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(put, [f"/admin/v2/persistent/public/default/t{n}/subscription/s" for n in range(topics)])
        )
    put(f"/admin/v2/{PARTED}/partitions", b"%d" % (partitions or topics // 2))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(put, [f"/admin/v2/namespaces/public/n{n}" for n in range(200)]))


def delayed(addresses: Addresses, web: str, steps: Steps, options: argparse.Namespace) -> Iterator[bool]:
    client = fill_delayed(addresses, options.messages)
    root = f"/geminga/delayed/{LATER}/subscription/s"
    stable, before = 0, -1
    while stable < 3:
        time.sleep(1)
        buckets, messages = len(json.loads(get(web, f"{root}/buckets"))), waiting(web, root)
        is_stable = messages > options.messages and buckets == before
        stable, before = stable + 1 if is_stable else 0, buckets
    print(f"{messages} delayed messages in {buckets} buckets", flush=True)
    for name, path in (
        ("delayed histogram", f"{root}/histogram"),
        ("histogram, 1 ms", f"{root}/histogram?widthMs=1"),
        ("histogram, 1 day", f"{root}/histogram?widthMs=86400000"),
        ("delayed summary", root),
        ("delayed list", f"{root}/messages?limit=1000"),
        ("delayed buckets", f"{root}/buckets"),
        ("stats", f"/admin/v2/{LATER}/stats"),
        ("internalStats", f"/admin/v2/{LATER}/internalStats"),
        ("metrics", "/metrics"),
    ):
        yield measure(web, steps, name, path, options.rounds)
    client.close()


def topics(web: str, steps: Steps, options: argparse.Namespace) -> Iterator[bool]:
    fill_topics(web, options.topics, options.partitions)
    one = "/admin/v2/persistent/public/default/t1"
    for name, path in (
        ("topics list", "/admin/v2/persistent/public/default"),
        ("namespaces list", "/admin/v2/namespaces/public"),
        ("stats", f"{one}/stats"),
        ("internalStats", f"{one}/internalStats"),
        ("subscriptions", f"{one}/subscriptions"),
        ("partitioned-stats", f"/admin/v2/{PARTED}/partitioned-stats"),
        ("partitioned-internal", f"/admin/v2/{PARTED}/partitioned-internalStats"),
        ("subscriptions of parts", f"/admin/v2/{PARTED}/subscriptions"),
        ("metrics", "/metrics"),
    ):
        yield measure(web, steps, name, path, options.rounds)


def many(web: str, steps: Steps, options: argparse.Namespace) -> Iterator[bool]:
    """Changes of many: loaded topics, topics and partitions that are not loaded, subscriptions of one."""
    fill_topics(web, options.topics, options.partitions)
    space, root = "/admin/v2/namespaces/public/default", "/admin/v2/persistent/public/default"
    wide, parted = f"{root}/wide", f"/admin/v2/{PARTED}"
    with ThreadPoolExecutor(8) as pool:
        paths = [f"{wide}/subscription/s{number}" for number in range(options.subscriptions)]
        list(pool.map(lambda path: ask(web, "PUT", path), paths))
    for name, method, path, body in (
        ("broker-stats/topics", "GET", "/admin/v2/broker-stats/topics", None),
        ("load-report", "GET", "/admin/v2/broker-stats/load-report", None),
        ("TTL of namespace", "POST", f"{space}/messageTTL", b"77"),
        ("consumers of namespace", "POST", f"{space}/maxConsumersPerTopic", b"7"),
        ("deduplication on", "POST", f"{space}/deduplication", b"true"),
        ("deduplication off", "POST", f"{space}/deduplication", b"false"),
        ("clear, loaded", "POST", f"{space}/clearBacklog", None),
        ("unload", "PUT", f"{space}/unload", None),
        ("clear, unloaded", "POST", f"{space}/clearBacklog", None),
        ("load with subscriptions", "PUT", f"{wide}/subscription/one-more", None),
        ("stats, subscriptions", "GET", f"{wide}/stats", None),
        ("internalStats, the same", "GET", f"{wide}/internalStats", None),
        ("create on partitions", "PUT", f"{parted}/subscription/new", None),
        ("list of partitions'", "GET", f"{parted}/subscriptions", None),
        ("skip_all on partitions", "POST", f"{parted}/subscription/new/skip_all", None),
        ("unsubscribe partitions", "DELETE", f"{parted}/subscription/new", None),
        ("TTL of partitions", "POST", f"{parted}/messageTTL", b"7"),
        ("delete partitions", "DELETE", f"{parted}/partitions", None),
        ("unsubscribe, unloaded", "POST", f"{space}/unsubscribe/s", None),
    ):
        yield measure(web, steps, name, path, options.rounds, method, body)


def holes(addresses: Addresses, web: str, steps: Steps, options: argparse.Namespace) -> Iterator[bool]:
    """A subscription that has acknowledged every second message."""
    client = pulsar.Client(
        f"pulsar://localhost:{addresses.binary_port}",
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"),
    )
    topic = "persistent://public/default/holes"
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, receiver_queue_size=10_000)
    producer = client.create_producer(topic, block_if_queue_full=True, max_pending_messages=2000)
    for _ in range(2 * options.holes):
        producer.send_async(b"x", lambda *_: None)
    producer.flush()
    for number in range(2 * options.holes):
        message = consumer.receive(60_000)
        if number % 2:
            consumer.acknowledge(message)
    client.close()
    root = "/admin/v2/persistent/public/default/holes"
    for name in ("internalStats", "stats"):
        yield measure(web, steps, f"{name}, holes", f"{root}/{name}", options.rounds)


def commands(addresses: Addresses, web: str, steps: Steps, options: argparse.Namespace) -> Iterator[bool]:
    fill_topics(web, options.topics, options.partitions)
    with ThreadPoolExecutor(8) as pool:
        paths = [
            f"/admin/v2/persistent/public/default/wide/subscription/s{number}"
            for number in range(options.subscriptions)
        ]
        list(pool.map(lambda path: ask(web, "PUT", path), paths))
    backlog = "persistent://public/default/backlog"
    # It keeps the messages: what is measured before they are read takes longer than an inactive topic stays.
    ask(web, "PUT", "/admin/v2/persistent/public/default/backlog/subscription/s")
    client = pulsar.Client(
        f"pulsar://localhost:{addresses.binary_port}",
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null"),
    )
    producer = client.create_producer(backlog, block_if_queue_full=True, max_pending_messages=2000)
    for _ in range(options.unacked):
        producer.send_async(b"x", lambda *_: None)
    producer.flush()
    client.close()

    def change() -> None:
        for number in range(10):
            ask(web, "PUT", f"/admin/v2/persistent/public/default/t{number}new")

    for name, call in slices_commands.each(addresses.binary_port, options, change):
        yield measure_call(steps, name, call)


def machine(seconds: float) -> None:
    """Print how long steps of pure arithmetic take by the thread's clock, with no broker in the process. A
    virtual machine charges some of its own time to whatever runs: one step of some 100,000 took 13 ms.
    """
    steps_ms: list[float] = []
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        began_s = time.thread_time()
        sum(range(3000))
        kept = [bytes(100) for _ in range(300)]
        steps_ms.append((time.thread_time() - began_s) * 1000)
        del kept
    steps_ms.sort()
    longest, median = ", ".join(f"{each:.2f}" for each in steps_ms[-5:]), steps_ms[len(steps_ms) // 2]
    print(f"arithmetic alone: {len(steps_ms)} steps, p50 {median:.2f}, longest {longest} ms")


PARTS = ("delayed", "topics", "many", "holes", "commands")
MACHINE = "machine"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=400_000)
    parser.add_argument("--topics", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--partitions", type=int, help="default: half as many as topics")
    parser.add_argument("--subscriptions", type=int, default=2000)
    parser.add_argument("--holes", type=int, default=20_000)
    parser.add_argument("--patterns", type=int, default=1000, help="watched at once")
    parser.add_argument(
        "--clients", type=int, default=2000, help="producers, and consumers, of one connection"
    )
    parser.add_argument("--unacked", type=int, default=20_000, help="messages that one consumer holds")
    parser.add_argument("--part", choices=(*PARTS, MACHINE))
    parser.add_argument("--only", default="", help="routes that have this in their name")
    parser.add_argument("--stacks", action="store_true", help="where the longest steps beyond half of it are")
    add_options(parser)
    parser.add_argument("--seconds", type=float, default=60.0, help="of the part `machine`")
    options = parser.parse_args()
    kept: list[bool] = []
    if options.part == MACHINE:
        machine(options.seconds)
    for part in PARTS:
        if options.part in (None, part):
            steps = Steps(Stacks() if options.stacks else None, options.only)
            with (
                tempfile.TemporaryDirectory(prefix="slices-", dir=options.work_dir) as directory,
                broker(directory, steps) as addresses,
            ):
                web = f"http://localhost:{addresses.web_port}"
                if part == "delayed":
                    kept += delayed(addresses, web, steps, options)
                elif part == "commands":
                    kept += commands(addresses, web, steps, options)
                elif part == "holes":
                    kept += holes(addresses, web, steps, options)
                else:
                    kept += (topics if part == "topics" else many)(web, steps, options)
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
