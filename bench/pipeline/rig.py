"""What the benches of the pipeline share: a broker, topics filled quickly, the CPU of Spark and its
workers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.pipeline.cpu import cpu_seconds, measured
from geminga.pipeline.topics.options import parse_options
from geminga.pipeline.writing.task_writer import Task, TaskWriter
from tests.e2e.broker_process import BrokerProcess, Endpoints

__all__ = ["ROW_BYTES", "broker", "cpu_seconds", "fill", "jvm_pid", "measured"]

ROW_BYTES = 100
FILL_ROWS = 100_000


@contextmanager
def broker(directory: Path, service_url: str | None = None) -> Iterator[Endpoints]:
    """A Geminga in a process of its own, or whatever answers at `service_url`."""
    if service_url is not None:
        yield Endpoints(service_url, "", is_geminga=False)
        return
    settings = {"brokerDeleteInactiveTopicsEnabled": "false"}
    with BrokerProcess(directory / "data", settings=settings) as process:
        yield process.endpoints


def fill(
    service_url: str, topic: str, rows: int, *, compression: str = "none", batch_rows: int = 1000
) -> None:
    """`rows` messages of 100 random bytes."""
    options = parse_options(
        {
            "service.url": service_url,
            "topic": topic,
            "compression": compression,
            "batchRows": str(batch_rows),
        }
    )
    data = os.urandom(ROW_BYTES * FILL_ROWS)
    values = pa.array([data[at : at + ROW_BYTES] for at in range(0, len(data), ROW_BYTES)], pa.binary())
    batch = pa.RecordBatch.from_pydict({"value": values})
    writer = TaskWriter(options, Task("fill", 0, 0))
    try:
        writer.write(batch.slice(0, min(FILL_ROWS, rows - done)) for done in range(0, rows, FILL_ROWS))
    finally:
        writer.close()


def jvm_pid(spark: Any) -> int:
    return int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
