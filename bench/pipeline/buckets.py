"""Buckets of the delayed index for many messages: built on Spark from what a stopped broker has stored,
loaded, served by a broker, damaged, found, repaired, served again.

    python bench/pipeline/buckets.py --messages 100000000
    python bench/pipeline/buckets.py --messages 1000000 --sample 2000 --owner subscription

The backlog is an entry of 83 bytes for each message in entry logs, due in 3 to 30 days, but for two samples
of `--sample` messages each, spread over all ledgers. The first one falls due after `--lead` seconds, about
when the buckets are ready and the broker is up; the second one `--second` seconds later, when a bucket has
been broken and repaired. The broker is `geminga standalone`, strict, the client Pulsar's own: it has to get
exactly the sample, each message once and none before its time. The broker's counter of entries read shows
that it did not look for them in the backlog.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pulsar
import trio

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.pipeline.audit import Memory, mixed, tree_cpu_s
from geminga.bookie.offline.inspection import LogRecord, walk_records
from geminga.cli.pipeline.stopped_topic import StoppedTopic, opened_topic
from geminga.pipeline.buckets.backlog import Backlog, stored_sources
from geminga.pipeline.buckets.buckets import Encoded, apart, text_of
from geminga.pipeline.buckets.store import backlog_of, load
from geminga.storage.disk import RealDisk
from geminga.tracker.buckets.bucket_settings import BucketSettings
from geminga.tracker.buckets.bucket_store import BucketOwner, CursorOwner, TopicOwner
from geminga.tracker.format.stored_bucket import KeyRange
from tests.e2e.broker_process import BrokerProcess
from tests.pipeline.buckets.stored_backlog import ENTRIES_PER_LEDGER, SUBSCRIPTION, TOPIC, write_backlog

ROOT = str(Path(__file__).resolve().parents[2])
SETTINGS = BucketSettings()
DAY_MS = 86_400_000
WINDOW_MS = 10_000
"""A sample falls due within so long."""
QUIET_S = 5.0
FACTORY = "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"
BROKER = {
    "delayedDeliveryTrackerFactoryClassName": FACTORY,
    "isDelayedDeliveryDeliverAtTimeStrict": "true",
    "brokerDeleteInactiveTopicsEnabled": "false",
}


class Plan(NamedTuple):
    """When the messages are due, by number."""

    messages: int
    sample: int
    start_ms: int
    first_ms: int
    second_ms: int

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        draw = mixed(numbers)
        due = self.start_ms + 3 * DAY_MS + (draw % np.uint64(27 * DAY_MS)).astype(np.int64)
        soon = (draw % np.uint64(WINDOW_MS)).astype(np.int64)
        place = numbers % (self.messages // self.sample)
        due = np.where(place == 3, self.first_ms + soon, due)
        return np.where(place == 7, self.second_ms + soon, due)

    def chosen(self, second: bool) -> np.ndarray:
        step = self.messages // self.sample
        return np.arange(7 if second else 3, self.messages, step)


def owner_of(found: StoppedTopic, shared: bool) -> BucketOwner:
    return TopicOwner(found.topic) if shared else CursorOwner(found.cursor)


async def look(directory: Path, shared: bool) -> Backlog:
    async with opened_topic(str(directory), TOPIC, SUBSCRIPTION) as found:
        now_ms = time.time_ns() // 1_000_000
        return backlog_of(found.topic, found.cursor, owner_of(found, shared), now_ms)


async def put(directory: Path, shared: bool, buckets: Iterator[Encoded], old: Collection[int]) -> int:
    async with opened_topic(str(directory), TOPIC, SUBSCRIPTION) as found:
        return await load(found.topic, owner_of(found, shared), buckets, old)


def damage(directory: Path, ledger_id: int) -> None:
    """Flip a bit in an entry of this ledger."""
    for path in sorted(directory.rglob("*.log"), reverse=True):
        file = RealDisk().open(str(path))
        for record in walk_records(file, 64, file.size()):
            if not isinstance(record, LogRecord) or record.is_name or record.ledger_id != ledger_id:
                continue
            with path.open("r+b") as raw:
                raw.seek(record.end - 10)
                byte = raw.read(1)[0]
                raw.seek(record.end - 10)
                raw.write(bytes((byte ^ 1,)))
            return
        file.close()
    raise SystemExit(f"ledger {ledger_id} is in no entry log")


def entries_read(web_url: str) -> int:
    with urllib.request.urlopen(f"{web_url.rstrip('/')}/metrics/", timeout=30) as response:
        text = response.read().decode()
    found = re.findall(r'^bookkeeper_server_READ_ENTRY_count\{[^}]*success="true"[^}]*\} (\S+)', text, re.M)
    return int(float(found[0])) if found else -1


def receive(url: str, due: dict[int, int]) -> tuple[list[tuple[int, float]], float]:
    """Numbers and times of all that comes until the last is due and then nothing comes for a while; and when
    this began.
    """
    quiet = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    client = pulsar.Client(url, logger=quiet, operation_timeout_seconds=120)
    began = time.time() * 1000
    consumer = client.subscribe(TOPIC, SUBSCRIPTION, pulsar.ConsumerType.Shared)
    last_ms, came, last_s = max(due.values()), [], time.monotonic()
    while True:
        try:
            message = consumer.receive(200)
        except pulsar.Timeout:
            overdue = time.time() * 1000 > last_ms + 1000 * QUIET_S
            patience_s = QUIET_S if len(came) >= len(due) else 60
            if overdue and time.monotonic() - last_s > patience_s:
                break
            continue
        came.append((int.from_bytes(message.data(), "big"), time.time() * 1000))
        consumer.acknowledge(message)
        last_s = time.monotonic()
    client.close()
    return came, began


def serve(directory: Path, settings: dict[str, str], due: dict[int, int], text: str) -> bool:
    """Whether a broker on the directory delivers exactly these messages, by number, each at its time."""
    process = BrokerProcess(directory, settings=settings, log_path=directory.with_suffix(".log"))
    log_before = process.log_path.stat().st_size if process.log_path.exists() else 0
    began = time.monotonic()
    with process:
        up_s = time.monotonic() - began
        endpoints = process.endpoints
        read_before = entries_read(endpoints.web_url)
        came, attached_ms = receive(endpoints.service_url, due)
        read = entries_read(endpoints.web_url) - read_before
        resident_mib = _resident_mib(process.pid)
    log = process.log_path.read_bytes()[log_before:].decode(errors="replace")
    numbers = [number for number, _ in came]
    wrong = set(numbers) ^ set(due)
    late_ms = sorted(at_ms - due[n] for n, at_ms in came if n in due)
    future_ms = sorted(at_ms - due[n] for n, at_ms in came if n in due and due[n] > attached_ms)
    print(
        f"{text}: the broker was up after {up_s:.1f} s ({resident_mib:.0f} MiB); {len(came):,} came, "
        f"{len(set(numbers)):,} different, {len(wrong)} missing or others; {read:,} entries read in all"
    )
    if future_ms:
        print(
            f"  {len(future_ms):,} were due after the client came: {future_ms[0]:.1f} ms after their time at "
            f"least, {future_ms[len(future_ms) // 2]:.0f} in the middle, {future_ms[-1]:.0f} at most"
        )
    if "is lost" in log:
        print("  the broker lost a bucket: " + next(line for line in log.splitlines() if "is lost" in line))
    exact = not wrong and len(numbers) == len(set(numbers)) == len(due)
    sys.stdout.flush()
    return exact and late_ms[0] >= 0 and "is lost" not in log


def _resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--sample", type=int, default=10_000)
    parser.add_argument("--owner", choices=("shared", "subscription"), default="shared")
    parser.add_argument("--lead", type=float, help="seconds; by default what the machine of the docs takes")
    parser.add_argument("--second", type=float, help="seconds from the first sample to the second one")
    parser.add_argument("--directory", type=Path, help="where the data go; it is deleted in the end")
    parser.add_argument("--master", default="local[2]")
    options = parser.parse_args()
    messages = max(ENTRIES_PER_LEDGER, options.messages - options.messages % ENTRIES_PER_LEDGER)
    sample = min(options.sample, messages // 10)
    lead_s = options.lead or 25 + messages / 1_000_000 * 2.3
    second_s = options.second or 30 + messages / 1_000_000 * 1.4
    work = Path(tempfile.mkdtemp(prefix="geminga-buckets-", dir=options.directory or "/var/tmp"))
    start_ms = time.time_ns() // 1_000_000
    first_ms = start_ms + int(1000 * lead_s)
    plan = Plan(messages, sample, start_ms, first_ms, first_ms + int(1000 * second_s))
    try:
        return 0 if run(options, work / "data", plan) else 1
    finally:
        shutil.rmtree(work, ignore_errors=True)


def run(options: argparse.Namespace, directory: Path, plan: Plan) -> bool:
    from geminga.pipeline.spark.buckets import build, ranges_of, verify
    from geminga.pipeline.spark.pieces import started

    shared = options.owner == "shared"
    settings = BROKER | {"delayedDeliverySharedIndexEnabled": str(shared).lower()}
    memory, began, cpu_s = Memory(), time.perf_counter(), tree_cpu_s(os.getpid())

    def timed(what: str) -> None:
        nonlocal began, cpu_s
        now_s, now_cpu_s = time.perf_counter(), tree_cpu_s(os.getpid())
        print(f"{what}: {now_s - began:.1f} s, {now_cpu_s - cpu_s:.0f} CPU s", flush=True)
        began, cpu_s = now_s, now_cpu_s

    directory.mkdir()
    size_bytes = write_backlog(directory, plan.messages, plan, plan.start_ms)
    timed(f"{plan.messages:,} messages stored, {size_bytes / 2**30:.2f} GiB")
    # Workers need this program's own modules.
    os.environ["PYTHONPATH"] = ROOT
    spark = started(options.master)
    backlog = trio.run(look, directory, shared)
    sources = stored_sources([str(directory)], backlog)
    timed("the index of the bookie made, Spark started")
    ranges = ranges_of(spark, sources, SETTINGS)
    timed(f"{len(ranges)} ranges, by reading an eighth of it")
    loaded = trio.run(put, directory, shared, build(spark, sources, ranges, SETTINGS), ())
    timed(f"{loaded} buckets of {plan.messages:,} messages built and loaded")

    def due(second: bool) -> dict[int, int]:
        numbers = plan.chosen(second)
        return dict(zip(numbers.tolist(), plan(numbers).tolist(), strict=True))

    right = serve(directory, settings, due(second=False), "the first sample")
    timed("served")

    def check(text: str, named: Mapping[int, KeyRange]) -> list[int]:
        backlog = trio.run(look, directory, shared)
        faults = verify(spark, stored_sources([str(directory)], backlog), named)
        faults = [fault for fault in faults if not fault.is_harmless]
        timed(f"{text}: {len(named)} buckets checked, {len(faults)} faults")
        for fault in faults:
            print(f"  {text_of(named[fault.bucket])}: {fault.fault}, {fault.positions:,}")
        return [fault.bucket for fault in faults]

    backlog = trio.run(look, directory, shared)
    hit = sorted(backlog.buckets)[len(backlog.buckets) // 2]
    damage(directory, hit)
    timed("a bit of a bucket flipped")
    before = backlog.buckets
    right &= check("damaged", before) == [hit]
    sources = stored_sources([str(directory)], trio.run(look, directory, shared))
    trio.run(put, directory, shared, build(spark, sources, apart([before[hit]]), SETTINGS), [hit])
    timed("repaired")
    after = trio.run(look, directory, shared).buckets
    new = {ledger_id: after[ledger_id] for ledger_id in after.keys() - before.keys()}
    right &= len(new) == 1 and not check("repaired", new)
    right &= serve(directory, settings, due(second=True), "the second sample")
    timed("served")
    print(f"{memory.end() / 2**30:.2f} GiB of memory at most; {'exact' if right else 'NOT exact'}")
    spark.stop()
    return right


if __name__ == "__main__":
    sys.exit(main())
