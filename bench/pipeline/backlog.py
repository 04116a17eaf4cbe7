"""The catch-up of a stream: a backlog in one partition, read by as many tasks as there are cores.

    python bench/pipeline/backlog.py                      20,000,000 messages of 100 bytes (2.2 GB on disk)
    python bench/pipeline/backlog.py --rows 1000000 --splits 8

The topic has ledgers of 1,000 entries of 1,000 messages. One run with availableNow into `noop`. Printed are
rows, seconds, CPU seconds of Spark, and how many cores Spark and the broker kept busy, by a look each half
second: the median over the run, its begin and end (a process that plans starts, the last task ends) included.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.pipeline.rig import cpu_seconds, fill, jvm_pid, measured
from geminga.pipeline.spark import make_session
from tests.e2e.broker_process import BrokerProcess

TOPIC = "persistent://public/default/pipeline-backlog"
LOOK_SECONDS = 0.5
SETTINGS = {
    "brokerDeleteInactiveTopicsEnabled": "false",
    "managedLedgerMaxEntriesPerLedger": "1000",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}


@contextmanager
def busy(roots: Sequence[int]) -> Iterator[list[float]]:
    """Fills in how many cores these processes, and all below them, kept busy in each interval."""
    found: list[float] = []
    ended = threading.Event()

    def look() -> None:
        before_s, cpu = time.perf_counter(), sum(map(cpu_seconds, roots))
        while not ended.wait(LOOK_SECONDS):
            now_s, now_cpu = time.perf_counter(), sum(map(cpu_seconds, roots))
            found.append((now_cpu - cpu) / (now_s - before_s))
            before_s, cpu = now_s, now_cpu

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--splits", type=int, default=0)
    parser.add_argument("--rows-per-trigger", type=int)
    arguments = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        BrokerProcess(Path(name) / "data", settings=SETTINGS) as process,
    ):
        service_url = process.endpoints.service_url
        fill(service_url, TOPIC, arguments.rows)
        spark = make_session(
            master="local[2]", settings={"spark.driver.memory": "1g", "spark.ui.enabled": "false"}
        )
        stream = (
            spark.readStream.format("pulsar")
            .option("service.url", service_url)
            .option("topic", TOPIC)
            .option("startingOffsets", "earliest")
            .option("splitsPerPartition", str(arguments.splits))
        )
        if arguments.rows_per_trigger is not None:
            stream = stream.option("maxRowsPerTrigger", str(arguments.rows_per_trigger))
        roots = [jvm_pid(spark), process.pid]
        with measured(roots[0]) as used, busy(roots) as cores:
            query = (
                stream.load()
                .writeStream.format("noop")
                .trigger(availableNow=True)
                .option("checkpointLocation", str(Path(name) / "checkpoint"))
                .start()
            )
            query.awaitTermination()
        rows = sum(progress.numInputRows for progress in query.recentProgress)
        print(
            f"{rows:,} rows in {len(query.recentProgress)} micro-batches: {used['wall']:.1f} s, "
            f"{used['cpu']:.1f} CPU-s, {rows / used['cpu'] / 1000:.0f} k rows per CPU-second; "
            f"{statistics.median(cores):.2f} cores busy with the broker "
            f"({' '.join(f'{busy_cores:.1f}' for busy_cores in cores)})"
        )
        assert rows == arguments.rows
        spark.stop()


if __name__ == "__main__":
    main()
