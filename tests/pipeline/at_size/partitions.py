"""Many partitions, or many topics of a pattern, with a few rows in each."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from bench.pipeline.rig import cpu_seconds
from geminga.pipeline.topics.options import parse_options
from geminga.pipeline.topics.planning import plan_batch
from tests.pipeline.at_size import driver
from tests.pipeline.at_size.rig import NAMESPACE, Rig, expected, sums

ROWS_EACH = 5
IDLE_SECONDS = 30


def run(rig: Rig, partitions: int) -> None:
    topic = f"{NAMESPACE}/many"
    rig.admin.create_partitions(topic, partitions)
    rows = partitions * ROWS_EACH
    with rig.figures.measured(f"write {rows:,} rows to {partitions:,} partitions", rig.processes):
        (
            rig.spark.range(rows)
            .selectExpr("cast(id as string) as value", f"cast(id % {partitions} as int) as __partition")
            .write.format("pulsar")
            .options(**rig.options(topic=topic, partitioning="partition"))
            .mode("append")
            .save()
        )
    _read(rig, f"{partitions:,} partitions", rows, topic=topic)
    least = {"minPartitions": str(partitions + partitions // 4)}
    with rig.figures.measured(f"{partitions:,} partitions, batch, {_told(least)}", rig.processes):
        rig.figures.check(_told(least), sums(rig.read(topic=topic, **least)), expected(rows))
    for more in (least, {"splitsPerPartition": "2"}, {"maxRecordsPerPartition": "2"}):
        splits = len(plan_batch(parse_options(rig.options(topic=topic, **more))))
        rig.figures.row(f"{partitions:,} partitions, {_told(more)}", f"{splits:,} splits")


def _told(given: dict[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in given.items())


def run_pattern(rig: Rig, topics: int) -> None:
    rows = topics * ROWS_EACH

    def batches() -> Iterator[pa.RecordBatch]:
        names = [f"{NAMESPACE}/pattern-{number % topics}" for number in range(rows)]
        yield pa.RecordBatch.from_pydict({"value": list(map(str, range(rows))), "__topic": names})

    rig.write(batches())
    _read(rig, f"{topics:,} topics of a pattern", rows, topicsPattern="pattern-.*")


def _read(rig: Rig, what: str, rows: int, **choice: str) -> None:
    figures, processes = rig.figures, rig.processes
    driver.run(rig, what, rows, **choice)
    _idle(rig, what, choice)
    with figures.measured(f"{what}: batch", processes):
        figures.check("batch", sums(rig.read(**choice)), expected(rows))
    admin = {"admin.url": rig.endpoints.web_url}
    for name, more in (("all, admin.url", admin), ("bounded", {"maxRowsPerTrigger": str(rows // 2)})):
        label = f"{what}: availableNow, {name}"
        told: list[str] = []
        with figures.measured(label, processes, told):
            query, found = _available_now(rig, choice | more, label)
            told.append(f"{len(query.recentProgress)} micro-batches")
        figures.check(label, found, expected(rows))


def _available_now(rig: Rig, given: dict[str, str], label: str) -> tuple[Any, tuple[int, int]]:
    totals = [0, 0]

    def add(frame: Any, _: int) -> None:
        count, total = sums(frame)
        totals[0] += count
        totals[1] += total

    query = (
        rig.stream(**given)
        .writeStream.foreachBatch(add)
        .trigger(availableNow=True)
        .option("checkpointLocation", str(rig.directory / label.replace(" ", "-")))
        .start()
    )
    query.awaitTermination()
    return query, (totals[0], totals[1])


def _idle(rig: Rig, what: str, choice: dict[str, str]) -> None:
    """What a stream with the default trigger costs when nothing comes."""
    query = (
        rig.stream(**choice)
        .writeStream.format("noop")
        .option("checkpointLocation", str(rig.directory / f"idle-{what.replace(' ', '-')}"))
        .start()
    )
    try:
        query.processAllAvailable()
        begun_s, jvm = time.perf_counter(), cpu_seconds(rig.processes.jvm)
        broker = cpu_seconds(rig.processes.broker) if rig.processes.broker else 0.0
        threading.Event().wait(IDLE_SECONDS)
        minutes = (time.perf_counter() - begun_s) / 60
        told = [f"Spark {(cpu_seconds(rig.processes.jvm) - jvm) / minutes:.1f} CPU-s per minute"]
        if rig.processes.broker:
            told.append(
                f"broker {(cpu_seconds(rig.processes.broker) - broker) / minutes:.1f} CPU-s per minute"
            )
        rig.figures.row(f"{what}: idle, default trigger", *told)
    finally:
        query.stop()
