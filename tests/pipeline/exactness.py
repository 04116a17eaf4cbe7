"""Millions of messages of every kind, read while workers, executors, the broker are killed: none is lost.

    python -m tests.pipeline.exactness                        5,000,000 messages, every step
    python -m tests.pipeline.exactness --messages 200000 --steps batch,stream

Steps: `batch` and `stream` on local[2], a Python worker killed every few seconds; `write` copies a topic
exactly once meanwhile; `restart` reads while the broker is killed with SIGKILL and started again; `executors`
on local-cluster[2,1,1024], executors killed. Each checks the count, the number of distinct messages, and
every content. Killed are only processes below our own.

The messages: a fifth in batches of 1,000 for each codec, in topics of four partitions, keyed; and beside them
chunked messages, one in a thousand.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import pyarrow as pa

from geminga.pipeline.encoding import send_frame
from geminga.pipeline.options import parse_options
from geminga.pipeline.producing import Producer
from geminga.pipeline.spark import make_session
from geminga.pipeline.writing import Task, TaskWriter
from geminga.wire import pulsar_pb2 as pb
from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess

NAMESPACE = "persistent://public/default"
SETTINGS = {
    "brokerDeleteInactiveTopicsEnabled": "false",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}
"""Nobody subscribes: the topics and what is in them have to stay all the same, after a restart too."""
CODECS = ("none", "lz4", "zlib", "zstd", "snappy")
PARTITIONS = 4
FILL_ROWS = 50_000
CHUNK_BYTES = 400
CHUNKED_SHARE = 1000
KILL_SECONDS = (3.0, 8.0)
KILLS_MAX = 20
PADDING = "x" * 80
CONTENT = "concat(cast(id as string), '|', repeat('x', cast(id % 80 as int)))"
"""What a value must be, in SQL; `value_of` says the same."""


def value_of(number: int) -> bytes:
    return b"%d|%s" % (number, PADDING[: number % 80].encode())


def fill(service_url: str, admin: Admin, messages: int) -> list[str]:
    """All topics with numbers [0, messages), each once."""
    topics = []
    chunked = messages // CHUNKED_SHARE
    each = (messages - chunked) // len(CODECS)
    begin = chunked
    for codec in CODECS:
        topic = f"{NAMESPACE}/exact-{codec}"
        admin.create_partitions(topic, PARTITIONS)
        end = messages if codec == CODECS[-1] else begin + each
        options = parse_options({"service.url": service_url, "topic": topic, "compression": codec})
        writer = TaskWriter(options, Task("fill", 0, 0))
        try:
            writer.write(_batches(begin, end))
        finally:
            writer.close()
        topics.append(topic)
        begin = end
    topics.append(f"{NAMESPACE}/exact-chunked")
    _fill_chunked(service_url, topics[-1], chunked)
    return topics


def _batches(begin: int, end: int) -> Iterator[pa.RecordBatch]:
    for at in range(begin, end, FILL_ROWS):
        numbers = range(at, min(at + FILL_ROWS, end))
        yield pa.RecordBatch.from_pydict(
            {
                "value": pa.array([value_of(number) for number in numbers], pa.binary()),
                "__key": [str(number % 997) for number in numbers],
            }
        )


def _fill_chunked(service_url: str, topic: str, messages: int) -> None:
    """Each message in chunks, those of two messages interleaved."""
    producer = Producer(
        parse_options({"service.url": service_url}).access, topic, None, pending_max=1000, send_timeout_s=30
    )
    sequence_id = 0
    for number in range(0, messages, 2):
        parts = []
        for one in range(number, min(number + 2, messages)):
            value = value_of(one) + b"#" * 1000
            pieces = [value[at : at + CHUNK_BYTES] for at in range(0, len(value), CHUNK_BYTES)]
            parts.append([(one, index, len(pieces), len(value), piece) for index, piece in enumerate(pieces)])
        for chunk in sorted((chunk for message in parts for chunk in message), key=lambda c: c[1]):
            one, index, count, size, piece = chunk
            assert producer.name is not None
            metadata = pb.MessageMetadata(
                producer_name=producer.name,
                sequence_id=sequence_id,
                publish_time=time.time_ns() // 1_000_000,
                uuid=f"m{one}",
                chunk_id=index,
                num_chunks_from_msg=count,
                total_chunk_msg_size=size,
            )
            producer.send(sequence_id, send_frame(1, metadata, piece, pb.NONE))
            sequence_id += 1
    producer.flush()
    producer.close()


def check(frame: Any, messages: int, step: str) -> None:
    """Count, distinct, and content of a DataFrame with a column `value`."""
    found = (
        frame.selectExpr("cast(value as string) v")
        .selectExpr("cast(split_part(v, '|', 1) as bigint) id", "trim(TRAILING '#' FROM v) v")
        .selectExpr(
            "count(*) n", "count(distinct id) d", "min(id) a", "max(id) b", f"count_if(v = {CONTENT}) good"
        )
        .first()
    )
    expected = (messages, messages, 0, messages - 1, messages)
    assert tuple(found) == expected, f"{step}: {found} instead of {expected}"
    print(f"{step}: {messages} messages, each once, every content as it was", flush=True)


def below(root: int) -> dict[int, tuple[int, str]]:
    """Every process under `root`: its parent and its command line."""
    parents: dict[int, tuple[int, str]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parent = int(Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[1])
                command = (
                    Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
            except OSError:
                continue
            parents[int(name)] = (parent, command)
    found: dict[int, tuple[int, str]] = {}
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        for child, (parent, command) in parents.items():
            if parent == pid:
                found[child] = (parent, command)
                waiting.append(child)
    return found


def python_workers(root: int) -> list[int]:
    """Forked workers: children of a `pyspark.daemon` that run its command line themselves."""
    family = below(root)
    daemons = {pid for pid, (_, command) in family.items() if "pyspark.daemon" in command}
    return [pid for pid in daemons if family[pid][0] in daemons]


def executors(root: int) -> list[int]:
    return [pid for pid, (_, command) in below(root).items() if "CoarseGrainedExecutorBackend" in command]


@contextmanager
def killing(
    spark: Any, victims: Callable[[int], list[int]], seconds: tuple[float, float]
) -> Iterator[list[int]]:
    """Kill one of them now and then while a stage runs."""
    root = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    stop, killed, source = threading.Event(), [], random.Random(1)
    status = spark.sparkContext.statusTracker()

    def run() -> None:
        while len(killed) < KILLS_MAX and not stop.wait(source.uniform(*seconds)):
            if status.getActiveStageIds() and (found := victims(root)):
                pid = source.choice(found)
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                killed.append(pid)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()


def reading(reader: Any, service_url: str, topics: list[str]) -> Any:
    return (
        reader.format("pulsar")
        .option("service.url", service_url)
        .option("topics", ",".join(topics))
        .option("splitsPerPartition", "2")
    )


def batch(spark: Any, service_url: str, topics: list[str], messages: int, _: Path) -> None:
    with killing(spark, python_workers, KILL_SECONDS) as killed:
        check(reading(spark.read, service_url, topics).load(), messages, "batch")
    print(f"  with {len(killed)} Python workers killed", flush=True)


def stream(spark: Any, service_url: str, topics: list[str], messages: int, directory: Path) -> None:
    out, checkpoint = directory / "out", directory / "checkpoint"
    with killing(spark, python_workers, KILL_SECONDS) as killed:
        for _ in range(20):  # a kill that meets the driver's own planner ends the query: it is started again
            source = reading(spark.readStream, service_url, topics).option("startingOffsets", "earliest")
            query = (
                source.option("maxRowsPerTrigger", str(max(messages // 8, 1000)))
                .option("predefinedSubscription", "exactness")
                .load()
                .writeStream.format("parquet")
                .option("path", str(out))
                .option("checkpointLocation", str(checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            try:
                query.awaitTermination()
                break
            except Exception as error:
                print(f"  started again after: {str(error)[:200]}", flush=True)
    check(spark.read.parquet(str(out)), messages, "stream")
    print(f"  with {len(killed)} Python workers killed", flush=True)


def write(spark: Any, service_url: str, topics: list[str], messages: int, directory: Path) -> None:
    """A topic into another, exactly once: workers killed, the query stopped and started, micro batches run
    again.
    """
    del messages
    source, sink = topics[0], "persistent://public/once/copy"
    expected = reading(spark.read, service_url, [source]).load().count()
    checkpoint = directory / "write"
    again = 0
    with killing(spark, python_workers, KILL_SECONDS) as killed:
        for attempt in range(30):
            stream = reading(spark.readStream, service_url, [source]).option("startingOffsets", "earliest")
            query = (
                stream.option("maxRowsPerTrigger", str(max(expected // 6, 1000)))
                .load()
                .select("value", "__key")
                .writeStream.format("pulsar")
                .option("service.url", service_url)
                .option("topic", sink)
                .option("exactlyOnce", "true")
                .option("batchRows", "200")
                .option("checkpointLocation", str(checkpoint))
                .trigger(availableNow=True)
                .start()
            )
            try:
                if attempt % 2 == 0:  # stopped wherever it is
                    query.awaitTermination(15)
                    query.stop()
                elif query.awaitTermination(600):
                    break
            except Exception as error:
                print(f"  started again after: {str(error)[:200]}", flush=True)
            again += forget_last_commit(checkpoint)
    found = (
        reading(spark.read, service_url, [sink])
        .load()
        .selectExpr("count(*)", "count(distinct value)")
        .first()
    )
    assert tuple(found) == (expected, expected), f"write: {found} instead of {expected}"
    print(f"write: {expected} messages, each once", flush=True)
    print(f"  with {len(killed)} Python workers killed and {again} micro batches run again", flush=True)


def forget_last_commit(checkpoint: Path) -> int:
    """As if the driver had died before it noted that its last micro batch was done."""
    done = sorted((int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")), reverse=True)
    for number in done[:1]:
        (checkpoint / "commits" / str(number)).unlink()
        (checkpoint / "commits" / f".{number}.crc").unlink(missing_ok=True)
    return len(done[:1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--steps", default="batch,stream,write,restart,executors")
    arguments = parser.parse_args()
    steps = arguments.steps.split(",")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        process = BrokerProcess(directory / "data", settings=SETTINGS)
        endpoints = process.start()
        try:
            once = Admin(endpoints.web_url)
            assert once.put("/admin/v2/namespaces/public/once", {}).status == 204
            assert once.post("/admin/v2/namespaces/public/once/deduplication", True).status == 204
            once.create_partitions("persistent://public/once/copy", 2)
            topics = fill(endpoints.service_url, Admin(endpoints.web_url), arguments.messages)
            print(f"{arguments.messages} messages in {len(topics)} topics", flush=True)
            run_steps(steps, process, topics, arguments.messages, directory)
        finally:
            process.stop()


def run_steps(
    steps: list[str], process: BrokerProcess, topics: list[str], messages: int, directory: Path
) -> None:
    service_url = process.endpoints.service_url
    # the second number: how often a task may fail
    spark = make_session("exactness", master="local[2,100]", settings={"spark.driver.memory": "2g"})
    spark.sparkContext.setLogLevel("OFF")
    for step, act in (("batch", batch), ("stream", stream), ("write", write)):
        if step in steps:
            act(spark, service_url, topics, messages, directory)
    if "restart" in steps:
        timer = threading.Timer(3.0, lambda: (process.kill(), process.start()))
        timer.start()
        check(reading(spark.read, service_url, topics).load(), messages, "restart")
        timer.join()
        print("  with the broker killed and started again", flush=True)
    spark.stop()
    if "executors" in steps:
        settings = {"spark.task.maxFailures": "100", "spark.deploy.maxExecutorRetries": "-1"}
        spark = make_session("exactness", master="local-cluster[2,1,1024]", settings=settings)
        spark.sparkContext.setLogLevel("OFF")
        with killing(spark, executors, (4.0, 8.0)) as killed:
            check(reading(spark.read, service_url, topics).load(), messages, "executors")
        print(f"  with {len(killed)} executors killed", flush=True)
        spark.stop()


if __name__ == "__main__":
    main()
