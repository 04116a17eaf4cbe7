"""A stream beside a producer: does it keep up, and how far is it behind when the producer stops?

    python bench/pipeline/stream.py                       100,000 messages/s of 100 bytes for 60 s, batches
    of 1,000
    python bench/pipeline/stream.py --rate 50000 --seconds 20 --partitions 2

The query reads all columns and throws them away (sink `noop`). Printed each second: what was sent, what the
finished micro batches have read, and the difference as seconds of the rate. The final lag is the time from
the
last confirmed message until it has been through the query.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.pipeline.rig import ROW_BYTES, broker, jvm_pid, measured
from geminga.pipeline.spark import make_session
from geminga.pipeline.topics.options import parse_options
from geminga.pipeline.writing.task_writer import Task, TaskWriter
from tests.e2e.admin_http import Admin

TOPIC = "persistent://public/default/pipeline-stream"
BATCH_ROWS = 1000


def produce(service_url: str, rate: int, seconds: int, sent: Synchronized[int], begin: float) -> None:
    """Batches at an even pace; `sent` counts what was handed to the socket."""
    options = parse_options({"service.url": service_url, "topic": TOPIC, "partitioning": "roundrobin"})
    data = os.urandom(ROW_BYTES * BATCH_ROWS)
    values = [data[at : at + ROW_BYTES] for at in range(0, len(data), ROW_BYTES)]
    batch = pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})

    def paced():  # type: ignore[no-untyped-def]
        for number in range(rate * seconds // BATCH_ROWS):
            wait = begin + number * BATCH_ROWS / rate - time.time()
            if wait > 0:
                time.sleep(wait)
            yield batch
            sent.value += BATCH_ROWS

    writer = TaskWriter(options, Task("bench", 0, 0))
    try:
        writer.write(paced())
    finally:
        writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=int, default=100_000)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--partitions", type=int, default=1)
    parser.add_argument("--trigger", default="500 milliseconds")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, broker(Path(name)) as endpoints:
        Admin(endpoints.web_url).create_partitions(TOPIC, arguments.partitions)
        spark = make_session(master="local[2]", settings={"spark.ui.enabled": "false"})
        spark.sparkContext.setLogLevel("ERROR")
        stream = (
            spark.readStream.format("pulsar")
            .option("service.url", endpoints.service_url)
            .option("topic", TOPIC)
            .option("startingOffsets", "earliest")
            .load()
        )
        query = (
            stream.writeStream.format("noop")
            .trigger(processingTime=arguments.trigger)
            .option("checkpointLocation", str(Path(name) / "checkpoint"))
            .start()
        )
        read: dict[int, int] = {}

        def total() -> int:
            for progress in query.recentProgress:
                read[progress.batchId] = max(read.get(progress.batchId, 0), progress.numInputRows)
            return sum(read.values())

        begin = time.time() + 15  # the first micro batch compiles
        sent = multiprocessing.get_context("spawn").Value("q", 0)
        context = multiprocessing.get_context("spawn")
        producer = context.Process(
            target=produce, args=(endpoints.service_url, arguments.rate, arguments.seconds, sent, begin)
        )
        producer.start()
        wanted = arguments.rate * arguments.seconds
        ended: float | None = None
        with measured(jvm_pid(spark)) as used:
            while (done := total()) < wanted:
                if query.exception() is not None or (producer.exitcode or 0) != 0:
                    raise SystemExit(f"failed: {query.exception()}")
                if ended is None and not producer.is_alive():
                    ended = time.time()
                lag = (sent.value - done) / arguments.rate
                if time.time() > begin:
                    print(
                        f"{time.time() - begin:5.1f} s  sent {sent.value:9}  read {done:9}  {lag:5.1f} "
                        "s behind",
                        flush=True,
                    )
                if ended is not None and time.time() - ended > 60:
                    raise SystemExit("still behind a minute after the last message")
                threading.Event().wait(1.0 if ended is None else 0.1)
        final = time.time() - ended if ended is not None else 0.0
        print(f"final lag {final:.1f} s; {wanted / used['cpu'] / 1000:.0f} k rows per CPU-second; "
              f"{len(read)} micro batches")  # fmt: skip
        query.stop()
        spark.stop()


if __name__ == "__main__":
    main()
