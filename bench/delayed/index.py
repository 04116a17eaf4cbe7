"""How fast delayed messages go in and out of the index, and how much memory and disk each of them takes.

    python bench/delayed/index.py                           2 million messages a row, two or three minutes
    python bench/delayed/index.py --messages 10000000       the published size
    python bench/delayed/index.py --rows seed --chart x.png  the published table of the time-bucket structure
    python bench/delayed/index.py --rows large              100 million with one delay, tick 32768 ms
    python bench/delayed/index.py --java DIR                Pulsar's own classes too; its jars are in DIR

Messages come x = 8 for each millisecond, 50,000 entries in each ledger, tick 1024 ms unless the row says
otherwise. "fixed" is one delay; "random" is even over the time that all messages take to come; "mix2" two
delays by turns; "alt" every other message delayed; "jitter" one delay and 0..5 s.

Each row runs in a process of its own and says which tracker it measures: "memory" is the tracker in memory,
"sealed" the one with buckets, which are encoded as on the bookie and kept in a file (what the bookie itself
costs is not in here), "merged" the same with at most 50 buckets, "one view" a topic's shared index in memory
with one subscription, fed as messages are stored, "default" the same with buckets, the broker's default,
"shared" one in memory with 100 subscriptions of which each has acknowledged every other message early;
"in-memory" and "bucket" are Pulsar's. All goes through the
view that a dispatcher holds.

Rates are CPU time of the one thread, in millions of messages a second: "add"; "drain" out of the tracker, as
many at once as that column says (a dispatcher takes up to 100, Pulsar's classes are asked for 500); "+ set"
the same and into the dispatcher's redelivery set; "seal" encoding and merging, which the broker gives to
another thread. "stall" is the longest call on the loop when a bucket was sealed or merged, of Pulsar the
longest sealing. Bytes a message: the growth of resident memory after the allocator returned what it could,
with the code already warm (of Pulsar the live heap and direct memory); what the index says of itself; what is
on disk. "written": bytes that were ever written for each that was written first.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.delayed.java_trackers.java_rows import (
    NEWER,
    ROW_SECONDS_MAX,
    WORKLOADS,
    GivenUp,
    Row,
    Workload,
    each_java_row,
    fetched,
    is_java_here,
    version_of,
)
from geminga.broker.dispatch.redelivery import RedeliverySet
from geminga.position import Position
from geminga.tracker.buckets.merge_plan import choose_merge
from geminga.tracker.buckets.merging import Merger
from geminga.tracker.format.bucket_format import EncodedBucket, decode_directory, encode_bucket
from geminga.tracker.format.stored_bucket import StoredBucket
from geminga.tracker.index.index import DelayedIndex, IndexSettings
from geminga.tracker.index.part import Frozen
from geminga.tracker.index.view import View

ENTRIES_PER_LEDGER = 50_000
FIRST_LEDGER = 10_000
START_MS = 1_700_000_000_000
DELAY_MS = 3_600_000
BATCH = 100
BLOCK = 10_000
"""Messages are made this many at a time, outside the clocked part."""
DRAIN_COUNT = 500
VIEWS = 100
BUCKETS_MAX = 50

# name -> (tracker, delays, messages per ms, bits of the tick, how they are added)
TABLE: dict[str, tuple[str, str, int, int, str]] = {
    "fixed": ("memory", "fixed", 8, 10, "batches"),
    "random": ("memory", "random", 8, 10, "batches"),
    "mix2": ("memory", "mix2", 8, 10, "batches"),
    "alt": ("memory", "alt", 8, 10, "batches"),
    "jitter": ("memory", "jitter", 8, 10, "batches"),
    "fixed-32768": ("memory", "fixed", 8, 15, "batches"),
    "fixed-singly": ("memory", "fixed", 8, 10, "singly"),
    "random-singly": ("memory", "random", 8, 10, "singly"),
    "fixed-sealed": ("sealed", "fixed", 8, 10, "batches"),
    "random-sealed": ("sealed", "random", 8, 10, "batches"),
    "fixed-merged": ("merged", "fixed", 8, 10, "batches"),
    "random-merged": ("merged", "random", 8, 10, "batches"),
    "fixed-one-view": ("one view", "fixed", 8, 10, "singly"),
    "random-one-view": ("one view", "random", 8, 10, "singly"),
    "fixed-default": ("default", "fixed", 8, 0, "singly"),
    "random-default": ("default", "random", 8, 0, "singly"),
    "fixed-shared": ("shared", "fixed", 8, 10, "singly"),
    "random-shared": ("shared", "random", 8, 10, "singly"),
}
SEED = {
    "x1-10": ("memory", "fixed", 1, 10, "batches"),
    "x4-10": ("memory", "fixed", 4, 10, "batches"),
    "x8-10": ("memory", "fixed", 8, 10, "batches"),
    "x8-15": ("memory", "fixed", 8, 15, "batches"),
}
SEED_MIB = {"x1-10": 25.0, "x4-10": 20.48, "x8-10": 11.0, "x8-15": 2.25}
"""Published for 10 million; the queue of triples before it took 240."""
LEGACY_BYTES = 24


class HandClock:
    """Time that is set by hand. A look at it is part of the rates."""

    def __init__(self) -> None:
        self.ms = START_MS - 10

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


def blocks(
    delays: str, per_ms: int, messages: int
) -> Iterator[tuple[int, int, list[list[int]], list[list[int]]]]:
    """(ledger, step between entries, entry ids of each batch, delivery times of each batch)."""
    rng = np.random.default_rng(1)
    step = 2 if delays == "alt" else 1
    for first in range(0, messages, BLOCK):
        numbers = np.arange(first, first + BLOCK)
        times = START_MS + DELAY_MS + numbers // per_ms
        if delays == "random":
            times = START_MS + DELAY_MS + rng.integers(max(messages // per_ms, 1), size=BLOCK)
        elif delays == "mix2":
            times += (numbers % 2) * (DELAY_MS // 2)
        elif delays == "jitter":
            times += rng.integers(5000, size=BLOCK)
        ledger_id, entry_id = divmod(first * step, ENTRIES_PER_LEDGER)
        starts = range(entry_id, entry_id + BLOCK * step, BATCH * step)
        ids = [list(range(start, start + BATCH * step, step)) for start in starts]
        yield FIRST_LEDGER + ledger_id, step, ids, times.reshape(-1, BATCH).tolist()


class SealedFile:
    """Encodes what is frozen, as those who seal buckets do, and has it in a file; with a bound, merges."""

    def __init__(self, folder: Path, buckets_max: int = -1) -> None:
        self._file = (folder / "buckets").open("w+b")
        self._places: dict[tuple[StoredBucket, int], tuple[int, int]] = {}
        self._buckets_max = buckets_max
        self._buckets: list[StoredBucket] = []
        self.frozen: list[Frozen] = []
        self.seal_s = self.stall_s = 0.0
        self.bytes = 0
        """All that was ever written."""
        self.sealed_bytes = 0
        """Of it, what was not written by merges."""

    @property
    def live_bytes(self) -> int:
        return sum(bucket.bytes for bucket in self._buckets)

    def seal(self, index: DelayedIndex) -> None:
        for frozen in self.frozen:
            started = time.thread_time()
            encoded = encode_bucket(frozen.start_ledger, frozen.end_ledger, frozen.rows, 300_000, 5000)
            stored = self._write(encoded)
            self.seal_s += time.thread_time() - started
            self.sealed_bytes += stored.bytes
            self._buckets.append(stored)
            started = time.thread_time()
            index.sealed(frozen, stored)
            self.stall_s = max(self.stall_s, time.thread_time() - started)
            self._merge(index)
        self.frozen.clear()

    def _write(self, encoded: EncodedBucket) -> StoredBucket:
        size_bytes = sum(map(len, encoded.segments)) + sum(map(len, encoded.directory))
        stored = StoredBucket(len(self._places), decode_directory(encoded.directory), size_bytes)
        self._file.seek(self.bytes)
        for number, entry in enumerate(encoded.segments):
            self._places[stored, number] = (self.bytes, len(entry))
            self._file.write(entry)
            self.bytes += len(entry)
        self.bytes += sum(map(len, encoded.directory))
        return stored

    def _merge(self, index: DelayedIndex) -> None:
        while window := choose_merge([b.directory.rows for b in self._buckets], self._buckets_max):
            old = self._buckets[slice(*window)]
            started = time.thread_time()
            live = index.members.between(old[0].first_code, old[-1].last_code)
            merger = Merger([bucket.directory for bucket in old], live, 300_000, 5000)
            segments = []
            while wanted := merger.wanted():
                segments += merger.step({n: [self._read(old[n], segment)] for n, segment in wanted})
            rest = merger.finish()
            stored = self._write(EncodedBucket(segments + rest.segments, rest.directory))
            self.seal_s += time.thread_time() - started
            self._buckets[slice(*window)] = [stored]
            started = time.thread_time()
            index.swap(old, stored)
            self.stall_s = max(self.stall_s, time.thread_time() - started)

    def _read(self, stored: StoredBucket, number: int) -> bytes:
        at, size = self._places[stored, number]
        self._file.seek(at)
        return self._file.read(size)

    def load(self, index: DelayedIndex, now_ms: int) -> None:
        for stored, number in index.wanted(now_ms):
            index.segment_loaded(stored, number, self._read(stored, number))


def open_tracker(
    tracker: str, clock: HandClock, bits: int, sealed: SealedFile
) -> tuple[DelayedIndex, list[View]]:
    has_buckets = tracker in ("sealed", "merged", "default")
    is_shared = tracker in ("shared", "one view", "default")
    settings = IndexSettings(1 << bits, strict=False, exact=has_buckets, is_shared=is_shared)
    index = DelayedIndex(clock, settings, sealed.frozen.append if has_buckets else None)
    return index, [View(index) for _ in range(VIEWS if tracker == "shared" else 1)]


def fill(
    index: DelayedIndex,
    view: View,
    how: str,
    delays: str,
    per_ms: int,
    messages: int,
    sealed: SealedFile,
) -> float:
    """CPU seconds of the adds."""
    spent = 0.0
    for ledger_id, _, ids, times in blocks(delays, per_ms, messages):
        if how == "batches":
            add_many = view.add_many
            started = time.thread_time()
            for batch_ids, batch_times in zip(ids, times, strict=True):
                add_many(ledger_id, batch_ids, batch_times)
            spent += time.thread_time() - started
        else:
            rows = [
                (Position(ledger_id, e), ms)
                for es, mss in zip(ids, times, strict=True)
                for e, ms in zip(es, mss, strict=True)
            ]
            if index.settings.is_shared:
                append = index.append
                started = time.thread_time()
                for (ledger, entry), ms in rows:
                    append(ledger, entry, ms)
                spent += time.thread_time() - started
            else:
                add = view.add
                started = time.thread_time()
                for position, ms in rows:
                    add(position, ms)
                spent += time.thread_time() - started
        if sealed.frozen:
            sealed.seal(index)
    return spent


def drain(
    index: DelayedIndex, view: View, clock: HandClock, sealed: SealedFile, count: int
) -> tuple[int, float, float]:
    """How many came, `count` at a time; CPU seconds, reading and checking segments included, in which the
    tracker gave them, and in which the dispatcher's redelivery set took them.
    """
    drained, spent, put_s = 0, 0.0, 0.0
    redelivery = RedeliverySet()
    while True:
        started = time.thread_time()
        taken = view.take_due(count)
        ended = time.thread_time()
        spent += ended - started
        if taken:
            redelivery.add_all(taken)
            put_s += time.thread_time() - ended
            drained += len(taken)
            redelivery.clear()
        if index.buckets and len(taken) < count:
            started = time.thread_time()
            sealed.load(index, clock.ms)
            has_due = view.has_due()
            spent += time.thread_time() - started
            if not taken and not has_due:
                break
        elif not taken:
            break
    return drained, spent, put_s


def measure(
    tracker: str, delays: str, per_ms: int, bits: int, how: str, messages: int, drain_count: int
) -> dict[str, Any]:
    """`drain_count` 0: without draining."""
    with tempfile.TemporaryDirectory() as folder:
        return _measure(tracker, delays, per_ms, bits, how, messages, drain_count, Path(folder))


def _measure(
    tracker: str,
    delays: str,
    per_ms: int,
    bits: int,
    how: str,
    messages: int,
    drain_count: int,
    folder: Path,
) -> dict[str, Any]:
    buckets_max = BUCKETS_MAX if tracker == "merged" else -1
    for _ in range(2):
        clock, sealed = HandClock(), SealedFile(folder, buckets_max)
        index, views = open_tracker(tracker, clock, bits, sealed)
        fill(index, views[0], how, delays, per_ms, 200_000, sealed)
        clock.ms += 10**10
        drain(index, views[0], clock, sealed, DRAIN_COUNT)
    del index, views
    clock, sealed = HandClock(), SealedFile(folder, buckets_max)
    before_bytes = resident_bytes()
    index, views = open_tracker(tracker, clock, bits, sealed)
    empty_bytes = resident_bytes() if len(views) > 1 else before_bytes
    add_s = fill(index, views[0], how, delays, per_ms, messages, sealed)
    held_bytes = resident_bytes() - before_bytes
    assert [len(view) for view in views] == [messages] * len(views), "the counter is wrong"
    row: dict[str, Any] = {
        "tracker": tracker,
        "delays": delays,
        "per_ms": per_ms,
        "tick_ms": 1 << bits,
        "added": how,
        "messages": messages,
        "add_millions_per_s": messages / add_s / 1e6,
        "held_bytes_per_message": held_bytes / messages,
        "own_bytes_per_message": index.memory_bytes() / messages,
        "empty_views_bytes": empty_bytes - before_bytes,
    }
    if sealed.bytes:
        row["disk_bytes_per_message"] = sealed.live_bytes / messages
        row["written_per_byte"] = sealed.bytes / sealed.sealed_bytes
        row["seal_millions_per_s"] = messages / sealed.seal_s / 1e6
        row["stall_ms"] = sealed.stall_s * 1e3
    if tracker == "shared":
        row["views_bytes_per_message_and_view"] = _acknowledge_half(views, messages)
    if drain_count:
        clock.ms += 10**10
        drained, drain_s, put_s = drain(index, views[0], clock, sealed, drain_count)
        assert drained == messages - (messages // 2 if tracker == "shared" else 0), "one was lost"
        row["drained_at_once"] = drain_count
        row["drain_millions_per_s"] = drained / drain_s / 1e6
        row["drain_into_set_millions_per_s"] = drained / (drain_s + put_s) / 1e6
    return row


def _acknowledge_half(views: list[View], messages: int) -> float:
    """Every view passes every other message before its time: the most that a view can take."""
    before_bytes = resident_bytes()
    for view in views:
        for first in range(0, messages, ENTRIES_PER_LEDGER):
            ledger_id = FIRST_LEDGER + first // ENTRIES_PER_LEDGER
            count = min(ENTRIES_PER_LEDGER, messages - first)
            view.pass_positions([(ledger_id, entry_id) for entry_id in range(0, count, 2)])
    assert len(views[-1]) == messages - messages // 2
    return (resident_bytes() - before_bytes) / messages / len(views)


def in_own_process(arguments: tuple[Any, ...]) -> dict[str, Any]:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found: dict[str, Any] = pool.apply(measure, arguments)
        return found


HEAD = (
    f"{'row':<20}{'tracker':<10}{'M':>6}{'add M/s':>8}{'drain M/s':>10}{'+ set':>7}{'at once':>8}"
    f"{'RSS B/m':>9}{'own B/m':>9}{'disk B':>8}{'written':>8}{'seal':>7}{'stall ms':>9}{'B/m+view':>9}"
)


def print_row(name: str, row: dict[str, Any]) -> None:
    def figure(key: str, digits: int = 2) -> str:
        return f"{row[key]:.{digits}f}" if key in row else "-"

    print(
        f"{name:<20}{row['tracker']:<10}{row['messages'] / 1e6:>6.1f}{figure('add_millions_per_s'):>8}"
        f"{figure('drain_millions_per_s'):>10}{figure('drain_into_set_millions_per_s'):>7}"
        f"{figure('drained_at_once', 0):>8}{figure('held_bytes_per_message', 4):>9}"
        f"{figure('own_bytes_per_message', 4):>9}{figure('disk_bytes_per_message', 3):>8}"
        f"{figure('written_per_byte'):>8}{figure('seal_millions_per_s'):>7}{figure('stall_ms'):>9}"
        f"{figure('views_bytes_per_message_and_view', 3):>9}",
        flush=True,
    )


def java_table(options: argparse.Namespace, messages: int) -> dict[str, Any]:
    """Rows of Pulsar's own classes; none, with a word about why, where they cannot be had."""
    rows: dict[str, Any] = {}
    if not is_java_here():
        print("no rows of Pulsar's own classes: there is no Java (java and javac) on this machine")
        return rows
    if version_of(options.java) is None:
        print(
            f"no rows of Pulsar's own classes: no jar of a broker in {options.java}; --java DIR names a place"
        )
        return rows
    for newer in (None, *fetched(options.fetch)):
        written_bytes: dict[str, int] = {}
        for java in each_java_row(options.java, WORKLOADS, messages, newer, options.java_seconds):
            if isinstance(java, GivenUp):
                print(f"{java_name(java.version, java.workload):<20}{java.why}", flush=True)
                continue
            name = java_name(java.version, java.workload)
            rows[name] = row = java_row(java)
            if java.stored_bytes:
                # Without a bound nothing is merged, and everything is written once.
                once_bytes = written_bytes.setdefault(java.delays, java.written_bytes)
                row["written_per_byte"] = java.written_bytes / once_bytes
            print_row(name, row)
    return rows


def java_name(version: str, workload: Workload) -> str:
    kind = {"memory": "", "bucket": "-sealed" if workload.buckets_max < 0 else "-merged"}[workload.tracker]
    rate = "" if workload.per_ms == 8 else f"-x{workload.per_ms}"
    tick = "" if workload.tick_ms == 1 << 10 else f"-{workload.tick_ms}"
    return f"{version} {workload.delays}{rate}{tick}{kind}"


def java_row(java: Row) -> dict[str, Any]:
    row: dict[str, Any] = {
        "tracker": java.workload.tracker.replace("memory", "in-memory"),
        "messages": java.delayed,
        "add_millions_per_s": java.add_millions_per_s,
        "drain_millions_per_s": java.drain_millions_per_s,
        "drained_at_once": DRAIN_COUNT,
        "held_bytes_per_message": java.bytes_per_message,
        "own_bytes_per_message": java.reported_bytes / max(1, java.delayed),
        "drained": java.drained,
    }
    if java.stored_bytes:
        row["disk_bytes_per_message"] = java.stored_bytes_per_message
        row["stall_ms"] = java.longest_seal_ms
    return row


def theory_bytes(per_ms: int, bits: int) -> float:
    """Bytes a message of the time-bucket structure by its own analysis."""
    per_bucket = per_ms << bits
    if per_bucket <= 4096:
        return 2.0
    return max(8192 / per_bucket, 8192 / ENTRIES_PER_LEDGER)


def seed_table(messages: int, chart: Path | None) -> dict[str, Any]:
    """The published table: the queue of triples, theory, published figures, ours; in MiB for 10 million."""
    print(f"MiB for 10 million, measured with {messages:,}\nx y      legacy   theory  published   Geminga")
    mib = 10_000_000 / (1 << 20)
    rows: dict[str, Any] = {}
    for name, (tracker, delays, per_ms, bits, how) in SEED.items():
        row = in_own_process((tracker, delays, per_ms, bits, how, messages, 0))
        row |= {"theory_mib": theory_bytes(per_ms, bits) * mib, "published_mib": SEED_MIB[name]}
        row["mib"] = row["held_bytes_per_message"] * mib
        rows[name] = row
        legacy = 240.0 if name == "x1-10" else LEGACY_BYTES * mib
        figures = f"{legacy:>10.1f}{row['theory_mib']:>9.2f}{row['published_mib']:>11.2f}{row['mib']:>10.3f}"
        print(f"{per_ms} {bits:<4}{figures}", flush=True)
    widest = 60 / np.log10(240 / 0.01)
    bars = [("queue of triples", 240.0)]
    for name, row in rows.items():
        bars += [(f"{name} published", row["published_mib"]), (f"{name} Geminga", row["mib"])]
    for label, value in bars:
        print(f"{label:<18}{'#' * max(1, int(widest * np.log10(max(value, 0.011) / 0.01)))} {value:.3f}")
    if chart is not None:
        draw(bars, chart)
    return rows


def draw(bars: list[tuple[str, float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4))
    axes.barh([label for label, _ in bars][::-1], [value for _, value in bars][::-1])
    axes.set_xscale("log")
    axes.set_xlabel("MiB for 10 million delayed messages")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument(
        "--rows", default="table", help="table, seed, large, or names of rows with commas between"
    )
    parser.add_argument("--chart", type=Path, help="draw the published table as a picture (needs matplotlib)")
    parser.add_argument("--json", type=Path, help="write the rows here too")
    parser.add_argument("--at-once", type=int, default=DRAIN_COUNT, help="so many are taken at once")
    parser.add_argument(
        "--java",
        type=Path,
        nargs="?",
        const=Path(os.environ.get("PULSAR_JARS", "jars")),
        metavar="DIR",
        help="Pulsar's own classes too; DIR, or $PULSAR_JARS, has the jars of a broker and all it needs",
    )
    parser.add_argument(
        "--java-seconds",
        type=float,
        default=ROW_SECONDS_MAX,
        help=f"with --java: a row that takes longer is given up ({ROW_SECONDS_MAX})",
    )
    parser.add_argument("--fetch", type=Path, metavar="CACHE", help=f"with --java: Pulsar {NEWER} too")
    arguments = parser.parse_args()
    messages = max(arguments.messages - arguments.messages % ENTRIES_PER_LEDGER, ENTRIES_PER_LEDGER)
    rows: dict[str, Any] = {}
    if arguments.rows == "seed":
        rows = seed_table(messages, arguments.chart)
    else:
        names = list(TABLE) if arguments.rows == "table" else arguments.rows.split(",")
        print(HEAD)
        for name in names:
            if name == "large":
                arguments_of_row = ("memory", "fixed", 8, 15, "batches", 100_000_000, 0)
            else:
                count = min(messages, 1_000_000) if TABLE[name][0] == "shared" else messages
                arguments_of_row = (*TABLE[name], count, arguments.at_once)
            rows[name] = in_own_process(arguments_of_row)
            print_row(name, rows[name])
        if arguments.java is not None:
            rows |= java_table(arguments, messages)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
