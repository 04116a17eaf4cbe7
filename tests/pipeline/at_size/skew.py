"""Partitions of very different sizes, messages of very different sizes: how even the tasks become."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from tests.pipeline.at_size.one_partition import shares
from tests.pipeline.at_size.rig import NAMESPACE, Rig, expected, sums

PARTITIONS = 16
SPLITS = 32
LARGE_SHARE = 0.95
LARGE_BYTES = 1_000_000
LARGE_EVERY = 5_000
"""One row of so many is large."""


def run(rig: Rig, rows: int) -> None:
    topic = f"{NAMESPACE}/skewed"
    rig.admin.create_partitions(topic, PARTITIONS)
    rig.write(_skewed(rows), topic=topic, valueSchema="none", partitioning="partition", batchRows="100")
    for name, more in (("by entries", {}), ("by bytes, admin.url", {"admin.url": rig.endpoints.web_url})):
        _compare(rig, f"skew, {name}", rows, topic=topic, minPartitions=str(SPLITS), **more)
    told: list[str] = []

    def note(frame: Any, _: int) -> None:
        counts = shares(frame)
        told.append(f"{sum(counts):,} rows: {len(counts)} tasks of {min(counts):,} to {max(counts):,}")

    (
        rig.stream(topic=topic, minPartitions=str(SPLITS), maxRowsPerTrigger=str(rows // 4))
        .writeStream.foreachBatch(note)
        .option("checkpointLocation", str(rig.directory / "skewed"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    for number, each in enumerate(told):
        rig.figures.row(f"skew: micro-batch {number}", each)
    _mixed(rig, rows // 10)


def _skewed(rows: int) -> Iterator[pa.RecordBatch]:
    numbers = np.arange(rows)
    large = int(rows * LARGE_SHARE)
    partitions = np.where(numbers < large, 3, numbers % PARTITIONS)
    for at in range(0, rows, 100_000):
        some = numbers[at : at + 100_000]
        yield pa.RecordBatch.from_pydict(
            {
                "value": pa.array(some).cast(pa.string()),
                "__partition": pa.array(partitions[at : at + 100_000], pa.int32()),
            }
        )


def _mixed(rig: Rig, rows: int) -> None:
    """Numbers, some of them with a megabyte of leading zeros, all in the first half of the topic."""
    topic = f"{NAMESPACE}/mixed"

    def batches() -> Iterator[pa.RecordBatch]:
        for at in range(0, rows, LARGE_EVERY // 10):
            numbers = range(at, min(at + LARGE_EVERY // 10, rows))
            values = [str(number) for number in numbers]
            if at < rows // 2:
                values[0] = values[0].zfill(LARGE_BYTES)
            yield pa.RecordBatch.from_pydict({"value": values})

    rig.write(batches(), topic=topic, valueSchema="none", batchRows="10")
    for name, more in (("by entries", {}), ("by bytes, admin.url", {"admin.url": rig.endpoints.web_url})):
        _compare(rig, f"mixed sizes, {name}", rows, topic=topic, minPartitions="8", **more)


def _compare(rig: Rig, what: str, rows: int, **given: str) -> None:
    frame = rig.read(**given)
    with rig.figures.measured(what, rig.processes):
        rig.figures.check(what, sums(frame), expected(rows))
    found = (
        frame.selectExpr("spark_partition_id() as split", "length(value) as size")
        .groupBy("split")
        .agg({"*": "count", "size": "sum"})
        .collect()
    )
    counts = [row["count(1)"] for row in found]
    sizes = [row["sum(size)"] / 1e6 for row in found]
    rig.figures.row(
        f"{what}: {len(found)} tasks",
        f"{min(counts):,} to {max(counts):,} rows",
        f"{min(sizes):.2f} to {max(sizes):.2f} MB of values",
    )
