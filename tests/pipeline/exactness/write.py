"""The writing steps of the exactness command: a topic copied exactly once, whatever dies meanwhile."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from geminga.pipeline.columns.columns import ColumnMaker
from geminga.pipeline.topics.options import parse_options
from geminga.pipeline.topics.planning import plan_batch
from geminga.pipeline.topics.rows import read_range
from geminga.pipeline.writing.task_writer import Task, TaskWriter
from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import Endpoints
from tests.pipeline.exactness.crashing import CRASHES, DRIVER_STEPS, TASK_STEPS, CrashingSource
from tests.pipeline.exactness.killing import below, executors, killing

SOURCE = "persistent://public/default/exact-source"
NAMESPACE = "public/once"
BATCH_ROWS = 100
KEYS = 997
STARTS_MAX = 60
WAIT_SECONDS = 600
ROOT = Path(__file__).resolve().parents[3]


class Copying:
    """The source topic, filled when first needed, and what a query over it needs."""

    def __init__(self, endpoints: Endpoints, rows: int, directory: Path) -> None:
        self.service_url, self.rows = endpoints.service_url, rows
        self.admin = Admin(endpoints.web_url)
        self.directory = directory
        self.crashes = directory / "crashes"
        os.environ[CRASHES] = str(self.crashes)
        self._filled = False

    def fill(self) -> None:
        if self._filled:
            return
        self._filled = True
        assert self.admin.put(f"/admin/v2/namespaces/{NAMESPACE}", {}).status == 204
        assert self.admin.post(f"/admin/v2/namespaces/{NAMESPACE}/deduplication", True).status == 204
        self.admin.create_partitions(SOURCE, 2)
        options = parse_options({"service.url": self.service_url, "topic": SOURCE, "batchRows": "500"})
        writer = TaskWriter(options, Task("fill", 0, 0))
        numbers = [b"%d" % number for number in range(self.rows)]
        keys = [b"%d" % (number % KEYS) for number in range(self.rows)]
        try:
            writer.write([pa.RecordBatch.from_pydict({"value": numbers, "__key": keys})])
        finally:
            writer.close()

    def sink(self, step: str, run: int, partitions: int = 2) -> str:
        """A new topic. What was to crash in the step before is forgotten."""
        self.fill()
        shutil.rmtree(self.crashes, ignore_errors=True)
        self.crashes.mkdir()
        topic = f"persistent://{NAMESPACE}/{step}-{run}"
        self.admin.create_partitions(topic, partitions)
        return topic

    def crash(self, batch_id: int, step: str) -> None:
        (self.crashes / f"plan-{batch_id}").write_text(step)

    def crashed(self) -> set[str]:
        """The steps that happened."""
        numbers = [path.name.rpartition("-")[2] for path in self.crashes.glob("crashed-*")]
        return {(self.crashes / f"plan-{number}").read_text() for number in numbers}

    def checkpoint(self, sink: str) -> Path:
        return self.directory / sink.rpartition("/")[2]

    def start(self, spark: Any, sink: str, *, batches: int, splits: int = 2) -> Any:
        """The query, in about so many micro batches."""
        spark.dataSource.register(CrashingSource)
        stream = (
            spark.readStream.format("pulsar")
            .option("service.url", self.service_url)
            .option("topic", SOURCE)
            .option("startingOffsets", "earliest")
            .option("splitsPerPartition", str(splits))
            .option("maxRowsPerTrigger", str(-(-self.rows // batches)))
            .schema("value binary, __key binary")
            .load()
        )
        return (
            stream.writeStream.format("pulsar-crashing")
            .option("service.url", self.service_url)
            .option("topic", sink)
            .option("exactlyOnce", "true")
            .option("batchRows", str(BATCH_ROWS))
            .option("checkpointLocation", str(self.checkpoint(sink)))
            .trigger(availableNow=True)
            .start()
        )

    def finish(self, spark: Any, sink: str, **how: int) -> int:
        """Start the query until it has come to its end; how often that was."""
        for number in range(STARTS_MAX):
            query = self.start(spark, sink, **how)
            with contextlib.suppress(Exception):  # what died ends the query: it is started again
                query.awaitTermination()
                return number + 1
        raise AssertionError(f"{sink}: the query was started {STARTS_MAX} times: {query.exception()}")

    def check(self, sink: str) -> None:
        """Each number once, with its own key."""
        options = parse_options({"service.url": self.service_url, "topic": sink})
        schema = pa.schema([("value", pa.binary()), ("__key", pa.binary())])
        count, bad = np.zeros(self.rows, np.int64), 0
        for wanted in plan_batch(options):
            for batch in read_range(
                options.access, wanted, ColumnMaker(wanted.topic, schema), poll_timeout_s=30
            ):
                value, key = (
                    np.asarray(column.cast(pa.string()).cast(pa.int64())) for column in batch.columns
                )
                count += np.bincount(value, minlength=self.rows)
                bad += int((key != value % KEYS).sum())
        lost, doubled = np.flatnonzero(count == 0), np.flatnonzero(count > 1)
        wrong = len(lost) + len(doubled) + bad
        assert not wrong, (
            f"{sink}: {len(lost)} lost {lost[:10]}, {len(doubled)} doubled {doubled[:10]}, {bad} other keys"
        )


def done(step: str, copying: Copying, text: str) -> None:
    print(f"{step}: {copying.rows} rows, each once; {text}", flush=True)


def crashes(copying: Copying, spark: Any, run: int) -> None:
    """A micro batch for each step at which a worker or the sink's part of the driver can die."""
    sink = copying.sink("crashes", run)
    steps = sorted((*TASK_STEPS, *DRIVER_STEPS), key=lambda step: step != "checked")
    # first of all: only producers that are new to the broker are asked for
    for number, step in enumerate(steps):
        copying.crash(number, step)
    starts = copying.finish(spark, sink, batches=len(steps))
    again = forget_last_commit(copying.checkpoint(sink))
    starts += copying.finish(spark, sink, batches=len(steps))
    copying.check(sink)
    assert copying.crashed() == set(steps), f"happened: {copying.crashed()}"
    done("crashes", copying, f"died at {', '.join(steps)}; {again} run again whole; {starts} starts")


def driver(copying: Copying, spark: Any, run: int) -> None:
    """The whole driver is killed while a micro batch is half written, and another goes on."""
    sink = copying.sink("driver", run)
    copying.crash(1, "waiting")
    code = (
        "import sys; from tests.pipeline.exactness.exactness import session;"
        "from tests.pipeline.exactness.write import Copying; from tests.e2e.broker_process import Endpoints;"
        "from pathlib import Path;"
        f"c = Copying(Endpoints({copying.service_url!r}, 'http://127.0.0.1:1'), {copying.rows}, "
        f"Path({str(copying.directory)!r}))\n"
        f"with session('local[2]') as s: c.start(s, {sink!r}, batches=3).awaitTermination()"
    )
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: (copying.crashes / "crashed-1").exists(), "the driver did not come to the place")
    finally:
        for pid in [process.pid, *below(process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
    starts = copying.finish(spark, sink, batches=3)
    copying.check(sink)
    done("driver", copying, f"the driver killed in the midst of a micro batch; {starts} starts after it")


def partitions(copying: Copying, spark: Any, run: int) -> None:
    """Between crash and restart the sink gets more partitions, and the source is cut into other tasks."""
    sink = copying.sink("partitions", run)
    changes = ((2, 3), (3, 5), (1, 8))
    for number, (splits, partitions_then) in enumerate(changes):
        copying.crash(number, "waiting")
        query = copying.start(spark, sink, batches=4, splits=splits)
        came = (copying.crashes / f"crashed-{number}").exists
        wait_for(lambda: came() or not query.isActive, "no micro batch came to the place")  # noqa: B023
        assert came(), f"{sink}: the query ended before it came to the place: {query.exception()}"
        query.stop()
        answer = copying.admin.post(partitions_path(sink), partitions_then)
        assert answer.status == 204, answer
    starts = copying.finish(spark, sink, batches=4, splits=4)
    copying.check(sink)
    text = f"{len(changes)} stops in the midst of a micro batch, 2 to {changes[-1][1]} partitions"
    done("partitions", copying, f"{text}; {starts} starts after them")


def partitions_path(topic: str) -> str:
    return f"/admin/v2/persistent/{topic.removeprefix('persistent://')}/partitions"


def killed(copying: Copying, spark: Any, run: int) -> None:
    """Executors are killed."""
    sink = copying.sink("killed", run)
    with killing(spark, executors, (1.0, 3.0)) as pids:
        starts = copying.finish(spark, sink, batches=3)
    copying.check(sink)
    done("killed", copying, f"{len(pids)} executors killed; {starts} starts")


def speculation(copying: Copying, spark: Any, run: int) -> None:
    """A task of each micro batch is slow, so that a second attempt runs beside it."""
    sink = copying.sink("speculation", run)
    for number in range(3):
        copying.crash(number, "slow")
    starts = copying.finish(spark, sink, batches=3)
    copying.check(sink)
    second = len(list(copying.crashes.glob("attempt-*-1")))
    assert second, "no task was attempted twice"
    done("speculation", copying, f"{second} tasks attempted twice; {starts} starts")


def wait_for(came: Callable[[], bool], otherwise: str) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not came():
        assert time.monotonic() < until, otherwise
        threading.Event().wait(0.05)


def forget_last_commit(checkpoint: Path) -> int:
    """As if the driver had died before it noted that its last micro batch was done."""
    done = sorted((int(path.name) for path in (checkpoint / "commits").glob("[0-9]*")), reverse=True)
    for number in done[:1]:
        (checkpoint / "commits" / str(number)).unlink()
        (checkpoint / "commits" / f".{number}.crc").unlink(missing_ok=True)
    return len(done[:1])
