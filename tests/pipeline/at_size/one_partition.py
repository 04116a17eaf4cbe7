"""Very many rows in one partition: a batch query in splits, a limited stream that is killed and goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.errors import PySparkException

from geminga.pipeline.spark import failure_of
from tests.e2e.waiting import eventually
from tests.pipeline.at_size.rig import NAMESPACE, ROOT, Rig, expected, sums

TOPIC = f"{NAMESPACE}/one"
FILL_ROWS = 100_000
SPLITS = 8
TRIGGERS = 10
KILLED_AFTER = 3
"""Micro-batches."""
STREAM_SECONDS = 600.0


def run(rig: Rig, rows: int) -> None:
    figures, processes = rig.figures, rig.processes

    def batches() -> Iterator[pa.RecordBatch]:
        for at in range(0, rows, FILL_ROWS):
            numbers = np.arange(at, min(at + FILL_ROWS, rows))
            yield pa.RecordBatch.from_pydict({"value": pa.array(numbers).cast(pa.string())})

    with figures.measured(f"one partition: {rows:,} rows written without Spark", processes):
        figures.check("written", rig.write(batches(), topic=TOPIC, valueSchema="none"), rows)
    frame = rig.read(topic=TOPIC, minPartitions=str(SPLITS))
    with figures.measured(f"one partition: batch, minPartitions={SPLITS}", processes):
        figures.check("count and sum", sums(frame), expected(rows))
    counts = shares(frame)
    figures.row(
        "one partition: rows of its splits", f"{min(counts):,} to {max(counts):,}", f"{len(counts)} splits"
    )
    figures.check("splits", (len(counts), sum(counts)), (SPLITS, rows))
    for name, value in (("minPartitions", 10**9), ("maxRecordsPerPartition", 1)):
        with figures.measured(f"one partition: {name}={value}", processes):
            try:
                told = f"{rig.read(topic=TOPIC, **{name: str(value)}).rdd.getNumPartitions():,} splits"
            except PySparkException as error:
                told = str(failure_of(error))
        figures.row("  is told", told)
    _killed_stream(rig, rows)


def shares(frame: Any) -> list[int]:
    """The rows of each split that has any."""
    found = frame.selectExpr("spark_partition_id() as split").groupBy("split").count().collect()
    return [row["count"] for row in found]


def _killed_stream(rig: Rig, rows: int) -> None:
    """Its output is counted by micro-batch, so that one that runs again counts once."""
    checkpoint, output = rig.directory / "one-checkpoint", rig.directory / "one-output"
    command = [
        *(sys.executable, "-m", "tests.pipeline.at_size.one_partition"),
        *(rig.endpoints.service_url, str(rows // TRIGGERS), str(checkpoint), str(output)),
    ]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as process:
        eventually(
            lambda: process.poll() is not None or len(_commits(checkpoint)) >= KILLED_AFTER,
            STREAM_SECONDS,
            what="micro-batches",
        )
        rig.figures.check("the stream runs", process.poll(), None)
        os.killpg(process.pid, signal.SIGKILL)  # its JVM too, which would write on
    done = len(_commits(checkpoint))
    with rig.figures.measured(
        f"one partition: stream of {TRIGGERS} micro-batches, killed after {done}", rig.processes
    ):
        stream(rig.spark, rig.endpoints.service_url, rows // TRIGGERS, checkpoint, output)
    found = (
        rig.spark.read.parquet(str(output))
        .selectExpr("count(*)", "sum(value)", "count(distinct value)")
        .first()
    )
    rig.figures.check("the stream's count, sum, values", tuple(found), (*expected(rows), rows))


def _commits(checkpoint: Path) -> list[str]:
    folder = checkpoint / "commits"
    return [each.name for each in folder.iterdir() if each.name.isdigit()] if folder.is_dir() else []


def stream(spark: Any, service_url: str, rows_max: int, checkpoint: Path, output: Path) -> None:
    """Until all rows that are there now are read."""
    (
        spark.readStream.format("pulsar")
        .option("service.url", service_url)
        .option("topic", TOPIC)
        .option("startingOffsets", "earliest")
        .option("maxRowsPerTrigger", str(rows_max))
        .load()
        .selectExpr("cast(cast(value as string) as bigint) as value")
        .writeStream.format("parquet")
        .option("path", str(output))
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )


if __name__ == "__main__":
    from geminga.pipeline.spark import make_session

    url, limit, *folders = sys.argv[1:]
    session = make_session(
        "at-size-killed",
        master="local[2]",
        settings={"spark.driver.memory": "1g", "spark.ui.enabled": "false"},
    )
    stream(session, url, int(limit), *map(Path, folders))
