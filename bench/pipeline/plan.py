"""What planning costs in the driver: seconds, CPU, descriptors and bytes received, for many partitions.

    python bench/pipeline/plan.py                         1,000 partitions, 10 batches of 100 messages in each
    python bench/pipeline/plan.py --partitions 100 --subscription

A batch plan, the begin of a stream, and five triggers with maxRowsPerTrigger, as Spark's driver would have
them planned; no Spark here. Bytes are those that came over sockets.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.pipeline.rig import broker
from geminga.pipeline.topics.options import parse_options
from geminga.pipeline.topics.planning import plan_batch
from geminga.pipeline.topics.streaming import StreamPlan
from geminga.pipeline.writing.task_writer import Task, TaskWriter
from tests.e2e.admin_http import Admin

TOPIC = "persistent://public/default/pipeline-plan"
BATCH_ROWS, BATCHES, VALUE_BYTES = 100, 10, 100


class Counting(socket.socket):
    """Counts what sockets of this process receive."""

    received_bytes = 0

    def recv(self, *arguments: Any) -> bytes:
        data = super().recv(*arguments)
        Counting.received_bytes += len(data)
        return data

    def recv_into(self, *arguments: Any) -> int:
        size = super().recv_into(*arguments)
        Counting.received_bytes += size
        return size


@contextmanager
def measured(what: str) -> Iterator[None]:
    files = len(os.listdir("/proc/self/fd"))
    received, cpu, wall = Counting.received_bytes, time.process_time(), time.perf_counter()
    yield
    print(
        f"{what:20} {time.perf_counter() - wall:6.2f} s  {time.process_time() - cpu:6.2f} CPU-s  "
        f"{len(os.listdir('/proc/self/fd')) - files:+4} descriptors  "
        f"{Counting.received_bytes - received:10,} bytes",
        flush=True,
    )


def fill(service_url: str, partitions: int) -> None:
    options = parse_options(
        {
            "service.url": service_url,
            "topic": TOPIC,
            "partitioning": "partition",
            "batchRows": str(BATCH_ROWS),
        }
    )
    values = pa.array([os.urandom(VALUE_BYTES)] * (BATCH_ROWS * BATCHES), pa.binary())
    writer = TaskWriter(options, Task("fill", 0, 0))
    try:
        writer.write(
            pa.RecordBatch.from_pydict({"value": values, "__partition": [number] * len(values)})
            for number in range(partitions)
        )
    finally:
        writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--partitions", type=int, default=1000)
    parser.add_argument("--rows-per-trigger", type=int, default=500_000)
    parser.add_argument("--admin", action="store_true", help="give admin.url")
    parser.add_argument("--subscription", action="store_true", help="acknowledge on a subscription")
    arguments = parser.parse_args()
    socket.socket = Counting  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as name, broker(Path(name)) as endpoints:
        Admin(endpoints.web_url).create_partitions(TOPIC, arguments.partitions)
        fill(endpoints.service_url, arguments.partitions)
        given = {"service.url": endpoints.service_url, "topic": TOPIC}
        if arguments.admin:
            given["admin.url"] = endpoints.web_url
        with measured("batch plan"):
            found = plan_batch(parse_options(given))
        assert len(found) >= arguments.partitions
        given |= {"startingOffsets": "earliest", "maxRowsPerTrigger": str(arguments.rows_per_trigger)}
        if arguments.subscription:
            given["predefinedSubscription"] = "bench"
        plan = StreamPlan(parse_options(given))
        with measured("begin of a stream"):
            offsets = plan.initial()
        for number in range(5):
            with measured(f"trigger {number + 1}"):
                end = plan.latest(offsets, limited=True)
                plan.ranges(offsets, end)
            offsets = end
            with measured("  its report"):
                print(plan.report()["behind"])  # type: ignore[index]
        plan.close()


if __name__ == "__main__":
    main()
