"""An audit of many deliveries on Spark: time, memory, and whether it finds what was planted.

    python bench/pipeline/audit.py --deliveries 100000000 --directory /var/tmp/audit-log
    python bench/pipeline/audit.py --deliveries 2000000 --plain        # the kernels alone, without Spark

The log (Parquet, written once into the directory) has a publication and a delivery of each message, 20,000 a
second in ledgers of 50,000 entries; one message in five is delayed by up to ten minutes, two consumers take
turns. Faults are planted at places that follow from the message's number, and the report has to name exactly
those.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from geminga.pipeline.audit.audit import audit_logs
from geminga.pipeline.audit.logs import Log
from geminga.pipeline.audit.report import WRONG, Report

TOPIC = "persistent://public/default/audited"
START_MS = 1_700_000_040_000
PER_MS = 20
ENTRIES_PER_LEDGER = 50_000
DELAY_MAX_MS = 600_000
CHUNK = 2_000_000
FAULT_EVERY = 100_003
FAULTS = ("lost", "duplicated", "early", "late", "reordered")
LATE_MS = 5_000


def mixed(numbers: np.ndarray) -> np.ndarray:
    """Numbers that look random, from each message's own."""
    x = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    x ^= x >> np.uint64(29)
    x *= np.uint64(0xBF58476D1CE4E5B9)
    return x ^ (x >> np.uint64(32))


def delays_ms(numbers: np.ndarray) -> np.ndarray:
    """0 for four messages in five."""
    x = mixed(numbers)
    return np.where(x % 5 == 0, 1_000 + ((x >> np.uint64(8)) % DELAY_MAX_MS), 0).astype(np.int64)


def faults(numbers: np.ndarray) -> np.ndarray:
    """0 for nearly all, else 1 + the place in FAULTS."""
    kind = numbers // FAULT_EVERY % len(FAULTS)
    there = numbers % FAULT_EVERY == 5_003
    delayed = delays_ms(numbers) > 0
    fits = np.where((kind == 2) | (kind == 3), delayed, ~delayed) | (kind == 0)
    return np.where(there & fits, kind + 1, 0)


def planted(messages: int) -> dict[str, set[tuple[int, int]]]:
    numbers = np.arange(5_003, messages, FAULT_EVERY)
    found = faults(numbers)
    return {
        name: {divmod(n, ENTRIES_PER_LEDGER) for n in numbers[found == place + 1].tolist()}
        for place, name in enumerate(FAULTS)
    }


def chunks(messages: int) -> Iterator[tuple[pa.Table, pa.Table]]:
    """Publications, and deliveries up to the same time, in the order of time."""
    waiting = np.zeros((3, 0), np.int64)
    for first in range(0, messages, CHUNK):
        numbers = np.arange(first, min(first + CHUNK, messages))
        published_ms = START_MS + numbers // PER_MS
        delay = delays_ms(numbers)
        due = published_ms + delay
        fault = faults(numbers)
        at = due + 3 + np.where(delay > 0, mixed(numbers + 7) % np.uint64(200), 0).astype(np.int64)
        at = np.select([fault == 3, fault == 4, fault == 5], [due - 50, due + LATE_MS + 1, at + 20], at)
        given = [np.vstack([numbers, at, np.zeros_like(at)])[:, fault != 1]]
        twice = fault == 2
        given.append(np.vstack([numbers, at + 3_000, np.zeros_like(at)])[:, twice])
        again = mixed(numbers + 11) % np.uint64(1000) == 0
        given.append(np.vstack([numbers, at + 2_000, np.ones_like(at)])[:, again & (fault == 0)])
        waiting = np.concatenate([waiting, *given], axis=1)
        last = first + CHUNK >= messages
        horizon = np.iinfo(np.int64).max if last else int(published_ms[-1])
        now = waiting[:, waiting[1] <= horizon]
        waiting = waiting[:, waiting[1] > horizon]
        now = now[:, np.argsort(now[1], kind="stable")]
        yield publications(numbers), deliveries(*now)


def columns(kind: str, numbers: np.ndarray, times: np.ndarray) -> dict[str, pa.Array]:
    delay = delays_ms(numbers)
    published_ms = START_MS + numbers // PER_MS
    return {
        "kind": constant(kind, len(numbers)),
        "time_ms": times,
        "topic": constant(TOPIC, len(numbers)),
        "ledger_id": numbers // ENTRIES_PER_LEDGER,
        "entry_id": numbers % ENTRIES_PER_LEDGER,
        "deliver_at_ms": pa.array(published_ms + delay, mask=delay == 0),
        "publish_time_ms": published_ms,
    }


def constant(text: str, rows: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [text])


def publications(numbers: np.ndarray) -> pa.Table:
    return pa.table(columns("published", numbers, START_MS + numbers // PER_MS))


def deliveries(numbers: np.ndarray, times: np.ndarray, again: np.ndarray) -> pa.Table:
    clients = pa.DictionaryArray.from_arrays((numbers % 2).astype(np.int32), ["a", "b"])
    more = {"subscription": constant("s", len(numbers)), "client": clients}
    more["redelivery_count"] = again.astype(np.int32)
    return pa.table(columns("dispatched", numbers, times) | more)


def write(directory: Path, messages: int) -> None:
    for part in ("published", "dispatched"):
        (directory / part).mkdir(parents=True, exist_ok=True)
    for number, tables in enumerate(chunks(messages)):
        for part, table in zip(("published", "dispatched"), tables, strict=True):
            path = directory / part / f"{number:05d}.parquet"
            pq.write_table(
                table, path, row_group_size=CHUNK // 2, compression="zstd", write_page_checksum=True
            )


class Memory:
    """The greatest memory of this process and all below it, sampled: the sum of proportional set sizes."""

    def __init__(self) -> None:
        self.most_bytes = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.5):
            self.most_bytes = max(self.most_bytes, tree_bytes(os.getpid()))

    def end(self) -> int:
        self._ended.set()
        self._thread.join()
        return self.most_bytes


def tree(root: int) -> Iterator[int]:
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            parents[int(entry)] = int(stat.rpartition(")")[2].split()[1])
    for pid in parents:
        above = pid
        while above not in (root, 0, 1):
            above = parents.get(above, 0)
        if above == root:
            yield pid


def tree_bytes(root: int) -> int:
    total = 0
    for pid in tree(root):
        try:
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
        except OSError:
            continue
    return total


def tree_cpu_s(root: int) -> float:
    """Of this process and all below it, those that have ended included."""
    ticks = 0
    for pid in tree(root):
        try:
            ticks += sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:15]))
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def check(report: Report, messages: int) -> bool:
    expected = planted(messages)
    right = True
    for what in WRONG:
        places = {place[2:4] for place in report.positions(what)}
        wanted = expected.get(what, set())
        missed, invented = len(wanted - places), len(places - wanted)
        right &= not missed and not invented
        print(f"  {what:<11} planted {len(wanted):>6}  found {len(places):>6}", end="")
        print(f"  missed {missed}  invented {invented}")
    return right


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--deliveries", type=int, default=2_000_000)
    parser.add_argument("--directory", type=Path, default=Path("/var/tmp/geminga-audit-log"))
    parser.add_argument("--plain", action="store_true", help="without Spark, in one process")
    parser.add_argument("--write-only", action="store_true", help="write the log, and end")
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--driver-memory", default="1g")
    options = parser.parse_args()
    directory = options.directory / str(options.deliveries)
    if not directory.exists():
        began = time.perf_counter()
        write(directory.with_suffix(".part"), options.deliveries)
        directory.with_suffix(".part").rename(directory)
        print(f"log written in {time.perf_counter() - began:.0f} s")
    if options.write_only:
        return 0
    memory = Memory()
    began = time.perf_counter()
    if options.plain:
        report = audit_logs([Log(str(directory / part)) for part in ("published", "dispatched")])
        started = began
    else:
        from pyspark.sql import SparkSession

        from geminga.pipeline.spark.audit import audit

        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
        builder = SparkSession.builder.master(options.master).config("spark.ui.enabled", "false")
        builder = builder.config("spark.driver.memory", options.driver_memory)
        spark = builder.config("spark.sql.shuffle.partitions", "8").getOrCreate()
        started = time.perf_counter()
        print(f"session after {started - began:.1f} s")
        paths = [str(directory / part) for part in ("published", "dispatched")]
        report = audit(
            spark, paths, progress=lambda text: print(f"{time.perf_counter() - started:6.1f} s {text}")
        )
    ended = time.perf_counter()
    cpu_s = tree_cpu_s(os.getpid())
    most = memory.end()
    if not options.plain:
        spark.stop()
    print(f"{options.deliveries:,} deliveries: {ended - started:.1f} s", end="")
    print(f" ({ended - began:.1f} s with the session),")
    print(f"  {cpu_s:.0f} CPU s in all, {most / 2**30:.2f} GiB at most")
    print(report.totals.to_pylist())
    return 0 if check(report, options.deliveries) else 1


if __name__ == "__main__":
    sys.exit(main())
