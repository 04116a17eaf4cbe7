"""The broker is killed with SIGKILL under running queries and away for a minute, on its ports and data."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from geminga.pipeline.spark import failure_of
from geminga.pipeline.topics.options import parse_options
from geminga.pipeline.writing.task_writer import Task, TaskWriter
from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess, Endpoints

NAMESPACE = "public/away"
BUSY, COPIED, QUIET, COUNTED = (
    f"persistent://{NAMESPACE}/{name}" for name in ("busy", "copied", "quiet", "counted")
)
SETTINGS = {"brokerDeleteInactiveTopicsEnabled": "false"}
ROW_BYTES = 200
PAUSE_SECONDS = 0.1
WAIT_SECONDS = 300.0
STARTS_MAX = 30
TOO_LATE = "Python worker failed to connect back"
"""What Spark says on a machine that is too busy."""


def write(endpoints: Endpoints, topic: str, first: int, rows: int) -> None:
    """Rows that no buffer of a socket holds, numbered from `first` on."""
    options = parse_options({"service.url": endpoints.service_url, "topic": topic, "batchRows": "100"})
    writer = TaskWriter(options, Task("fill", 0, 0))
    values = [b"%d " % number + os.urandom(ROW_BYTES) for number in range(first, first + rows)]
    try:
        writer.write([pa.RecordBatch.from_pydict({"value": values})])
    finally:
        writer.close()


def gate(directory: Path) -> Any:
    """A function for `mapInArrow`: after the first batch of a task it waits until the broker is dead."""

    def pass_through(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield batch
            (directory / "within").touch()
            while not (directory / "killed").exists():
                threading.Event().wait(PAUSE_SECONDS)

    return pass_through


class Queries:
    """Three of them: one in the middle of a micro-batch, one that has nothing to read, one that only writes.
    Their checkpoints stay, so that they are started again where they ended.
    """

    def __init__(self, spark: Any, endpoints: Endpoints, directory: Path, options: dict[str, str]) -> None:
        self._spark, self._directory = spark, directory
        self._options = {"service.url": endpoints.service_url, **options}

    def start(self, name: str) -> Any:
        return getattr(self, f"_{name}")()

    def _stream(self, topic: str) -> Any:
        return (
            self._spark.readStream.format("pulsar")
            .options(**self._options, topic=topic, startingOffsets="earliest", splitsPerPartition="1")
            .schema("value binary")
            .load()
        )

    def _to_topic(self, frame: Any, name: str, topic: str) -> Any:
        return (
            frame.writeStream.format("pulsar")
            .options(**self._options, topic=topic, exactlyOnce="true")
            .option("checkpointLocation", str(self._directory / name))
            .queryName(name)
            .trigger(processingTime="1 second")
            .start()
        )

    def _busy(self) -> Any:
        gated = self._stream(BUSY).mapInArrow(gate(self._directory), "value binary")
        return self._to_topic(gated, "busy", COPIED)

    def _quiet(self) -> Any:
        return (
            self._stream(QUIET)
            .writeStream.format("parquet")
            .option("path", str(self._directory / "quiet-rows"))
            .option("checkpointLocation", str(self._directory / "quiet"))
            .queryName("quiet")
            .trigger(processingTime="1 second")
            .start()
        )

    def _counted(self) -> Any:
        rate = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", "100").load()
        return self._to_topic(rate.selectExpr("cast(value as string) as value"), "counted", COUNTED)


def away(
    spark: Any, directory: Path, *, seconds: float = 60.0, rows: int = 100_000, options: dict[str, str]
) -> None:
    """What the queries say, and that nothing is lost or doubled."""
    with BrokerProcess(directory / "data", settings=SETTINGS) as process:
        endpoints, admin = process.endpoints, Admin(process.endpoints.web_url)
        assert admin.put(f"/admin/v2/namespaces/{NAMESPACE}", {}).status == 204
        assert admin.post(f"/admin/v2/namespaces/{NAMESPACE}/deduplication", True).status == 204
        for topic in (BUSY, COPIED):
            admin.create_partitions(topic, 2)
        write(endpoints, BUSY, 0, rows)
        write(endpoints, QUIET, 0, 1000)
        names = ("busy", "quiet", "counted")
        queries = Queries(spark, endpoints, directory, options)
        running: dict[str, Any] = {}
        for name in names:  # one after the other: Spark gives a planner's process 10 s to come up
            running[name] = _started(queries, name, directory)
        process.kill()
        (directory / "killed").touch()
        threading.Event().wait(seconds)
        process.start()
        write(endpoints, QUIET, 1000, 1000)
        begun = time.monotonic()
        ended: set[str] = set()
        again = 0
        for name in names:
            while True:
                try:
                    _finish(running[name])
                    break
                except Exception as error:
                    said = str(failure_of(error) or error)
                    again += 1
                    if again == STARTS_MAX:
                        raise AssertionError(f"{name} does not come on") from error
                    print(f"  {name} has ended: {said}", flush=True)
                    ended.add(name)
                    running[name] = queries.start(name)
        for name, query in running.items():
            query.stop()
            if name not in ended:
                print(f"  {name}: the same query went on", flush=True)
        took = time.monotonic() - begun
        print(f"  everything read and written {took:.0f} s after the broker was back", flush=True)
        _check(spark, endpoints, directory, rows)


def _started(queries: Queries, name: str, directory: Path) -> Any:
    """The query once it has come on; started again if Spark's process for it came up too late."""
    for _ in range(STARTS_MAX):
        query = queries.start(name)

        def has_come(query: Any = query) -> bool:
            came = (directory / "within").exists() if name == "busy" else len(query.recentProgress) > 0
            return came or not query.isActive

        _until(has_come, f"{name} did not come on")
        if query.isActive:
            return query
        if TOO_LATE not in str(query.exception()):
            raise query.exception()
        print(f"  {name}: {TOO_LATE}; started again", flush=True)
    raise AssertionError(f"{name} does not come on")


def _finish(query: Any) -> None:
    """Until it has done everything that there is now; the one that counts never ends."""
    if query.name == "counted":
        after = query.lastProgress["batchId"] + 3 if query.lastProgress else 3
        _until(
            lambda: not query.isActive or (query.lastProgress or {}).get("batchId", 0) >= after,
            "counted does not come on",
        )
    else:
        query.processAllAvailable()
    if not query.isActive:
        raise query.exception() or AssertionError(f"{query.name} has ended")


def _check(spark: Any, endpoints: Endpoints, directory: Path, rows: int) -> None:
    def numbers(frame: Any) -> list[int]:
        found = frame.selectExpr("cast(split(cast(value as string), ' ')[0] as bigint) as n")
        return sorted(row.n for row in found.collect())

    def topic(name: str) -> Any:
        given = {"service.url": endpoints.service_url, "topic": name}
        return spark.read.format("pulsar").options(**given).load()

    assert numbers(topic(COPIED)) == list(range(rows)), "rows of the busy query are lost or doubled"
    quiet = spark.read.parquet(str(directory / "quiet-rows"))
    assert numbers(quiet) == list(range(2000)), "rows of the quiet query are lost or doubled"
    counted = numbers(topic(COUNTED))
    assert counted == list(range(len(counted))), "rows of the writing query are lost or doubled"
    print(f"  {rows} + 2000 + {len(counted)} rows, each once", flush=True)


def _until(came: Any, otherwise: str) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not came():
        assert time.monotonic() < end, otherwise
        threading.Event().wait(PAUSE_SECONDS)
