"""Millions of messages of every kind, read and copied while workers, executors, the broker are killed.

    python -m tests.pipeline.exactness.exactness                        5,000,000 messages, every step
    python -m tests.pipeline.exactness.exactness --messages 200000 --steps batch,stream

Reading: `batch` and `stream` on local[2], Python workers killed; `restart` reads while the broker is killed
with SIGKILL and started again; `executors` on local-cluster[2,1,1024], executors killed. Each checks the
count, the number of distinct messages, and every content.

Writing, a topic of --rows rows copied exactly once, --runs times each (`write.py`): `crashes`, one at
each step of the protocol; `driver`, killed with SIGKILL; `partitions`, more of them and other tasks between
crash and restart; `killed`, executors on local-cluster; `speculation`, with a task that is slow, on a cluster
of its own; `everything`, all of this and the broker by turns. Each compares every key and value. Killed are
only processes below our own.

    python -m tests.pipeline.exactness.exactness --rows 200000 --runs 1 --steps everything

The messages: a fifth in batches of 1,000 for each codec, in topics of four partitions, keyed; and beside them
chunked messages, one in a thousand.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from geminga.pipeline.spark import INSTALLED, make_session
from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess
from tests.pipeline.exactness import write as exactness_write
from tests.pipeline.exactness.everything import everything
from tests.pipeline.exactness.killing import executors, killing, python_workers
from tests.pipeline.exactness.topics import POSITION, check, fill
from tests.pipeline.spark.two_hosts import two_hosts

SETTINGS = {
    "brokerDeleteInactiveTopicsEnabled": "false",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}
"""Nobody subscribes: the topics and what is in them have to stay all the same, after a restart too."""
STEPS = "batch,stream,restart,crashes,driver,partitions,executors,killed,speculation,everything"
KILL_SECONDS = (0.5, 4.0)
EXECUTOR_SECONDS = (4.0, 8.0)
EXECUTORS_MAX = 6
"""Of an executor is lost what others would have fetched from it: each kill costs much."""
FAILURES_MAX = 100
"""How often a task may fail."""


def reading(reader: Any, service_url: str, topics: list[str]) -> Any:
    return (
        reader.format("pulsar")
        .option("service.url", service_url)
        .option("topics", ",".join(topics))
        .option("columns", ",".join(POSITION))
        .option("splitsPerPartition", "2")
        .schema("value binary, __topic string, __ledgerId bigint, __entryId bigint, __batchIndex int")
    )


def batch(spark: Any, service_url: str, topics: list[str], messages: int, _: Path) -> None:
    with killing(spark, python_workers, KILL_SECONDS) as killed:
        check(reading(spark.read, service_url, topics).load(), messages, "batch")
    print(f"  with {len(killed)} Python workers killed", flush=True)


def stream(spark: Any, service_url: str, topics: list[str], messages: int, directory: Path) -> None:
    out, checkpoint = directory / "out", directory / "checkpoint"
    again = 0
    with killing(spark, python_workers, KILL_SECONDS) as killed:
        while True:  # a kill that meets the driver's own planner ends the query: it is started again
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
                again += 1
                if again == FAILURES_MAX:
                    raise AssertionError("the query does not get on") from error
    check(spark.read.parquet(str(out)), messages, "stream")
    print(f"  with {len(killed)} Python workers killed, the query started again {again} times", flush=True)
    shutil.rmtree(out)
    shutil.rmtree(checkpoint)


def restart(spark: Any, process: BrokerProcess, topics: list[str], messages: int) -> None:
    timer = threading.Timer(1.0, lambda: (process.kill(), process.start()))
    timer.start()
    check(reading(spark.read, process.endpoints.service_url, topics).load(), messages, "restart")
    timer.join()
    print("  with the broker killed and started again", flush=True)


@contextmanager
def session(master: str, archive: str | None = None, **settings: str) -> Iterator[Any]:
    """A session whose workers import what they need only once."""
    more = {
        "spark.ui.enabled": "false",
        "spark.python.daemon.module": "tests.pipeline.spark.warm_daemon",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "2g",
        "spark.task.maxFailures": str(FAILURES_MAX),
        "spark.deploy.maxExecutorRetries": "-1",
    }
    spark = make_session("exactness", master=master, settings=more | settings, archive=archive)
    spark.sparkContext.setLogLevel("OFF")
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def timed(step: str) -> Iterator[None]:
    begun = time.monotonic()
    yield
    print(f"  {step}: {time.monotonic() - begun:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=5_000_000)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--read-runs", type=int, default=1)
    parser.add_argument("--steps", default=STEPS)
    parser.add_argument("--keep", type=Path, help="a directory to work in, which is not removed")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = arguments.keep or Path(name)
        directory.mkdir(exist_ok=True)
        with BrokerProcess(directory / "data", settings=SETTINGS) as process:
            endpoints = process.endpoints
            topics = []
            if {"batch", "stream", "restart", "executors"} & set(arguments.steps.split(",")):
                topics = fill(endpoints.service_url, Admin(endpoints.web_url), arguments.messages)
                print(f"{arguments.messages} messages in {len(topics)} topics", flush=True)
            run_steps(arguments, process, topics, directory)


def run_steps(
    arguments: argparse.Namespace, process: BrokerProcess, topics: list[str], directory: Path
) -> None:
    steps, messages = arguments.steps.split(","), arguments.messages
    endpoints = process.endpoints
    copying = exactness_write.Copying(endpoints, arguments.rows, directory)

    def write(step: str, spark: Any) -> None:
        for run in range(arguments.runs if step in steps else 0):
            with timed(f"{step}, run {run + 1}"):
                getattr(exactness_write, step)(copying, spark, run)

    with session(f"local[2,{FAILURES_MAX}]") as spark:
        for _ in range(arguments.read_runs):
            for step, act in (("batch", batch), ("stream", stream)):
                if step in steps:
                    with timed(step):
                        act(spark, endpoints.service_url, topics, messages, directory)
            if "restart" in steps:
                with timed("restart"):
                    restart(spark, process, topics, messages)
        for step in ("crashes", "driver", "partitions"):
            write(step, spark)
    if {"executors", "killed"} & set(steps):
        with session("local-cluster[2,1,1024]") as spark:
            for _ in range(arguments.read_runs if "executors" in steps else 0):
                dying = killing(spark, executors, EXECUTOR_SECONDS, kills_max=EXECUTORS_MAX)
                with timed("executors"), dying as killed:
                    frame = reading(spark.read, endpoints.service_url, topics).load()
                    check(frame, messages, "executors")
                print(f"  with {len(killed)} executors killed", flush=True)
            write("killed", spark)
    if "speculation" in steps:
        with two_hosts(directory) as (master, settings), session(master, INSTALLED, **settings) as spark:
            write("speculation", spark)
    for run in range(arguments.runs if "everything" in steps else 0):
        with timed(f"everything, run {run + 1}"):
            everything(copying, process, run)


if __name__ == "__main__":
    main()
