"""What the benches of the pipeline share: a broker, topics filled quickly, the CPU of Spark and its
workers.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from geminga.pipeline.topics.options import parse_options
from geminga.pipeline.writing.task_writer import Task, TaskWriter
from tests.e2e.broker_process import BrokerProcess, Endpoints

TICKS = os.sysconf("SC_CLK_TCK")
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


def cpu_seconds(root: int) -> float:
    """Of a process and all below it, those that ended included."""
    parents: dict[int, list[int]] = {}
    times: dict[int, float] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(name))
        times[int(name)] = sum(map(int, fields[11:15])) / TICKS
    total, waiting = 0.0, [root]
    while waiting:
        pid = waiting.pop()
        total += times.get(pid, 0.0)
        waiting += parents.get(pid, [])
    return total


@contextmanager
def measured(root: int) -> Iterator[dict[str, float]]:
    """Fills in `cpu` and `wall` in seconds when the block ends."""
    found: dict[str, float] = {}
    cpu, wall = cpu_seconds(root), time.perf_counter()
    yield found
    found["wall"] = time.perf_counter() - wall
    found["cpu"] = cpu_seconds(root) - cpu
