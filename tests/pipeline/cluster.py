"""A standalone cluster whose workers have neither this package nor what it imports: everything runs there.

    python -m tests.pipeline.cluster                  as this user
    python -m tests.pipeline.cluster --user nobody    workers of another user, who cannot see this one's files
    python -m tests.pipeline.cluster --python /usr/bin/python3.11    another build of the workers' Python

A broker, a master and two workers on this machine. The workers run in a directory of their own with a Python
that has no packages and no PYTHONPATH. A session of `make_session` writes a topic, reads it, streams it into
another one exactly once, exports it and sends the export again; executors are killed in each of these steps,
and everything is compared: each value once. An audit on the cluster finds what one in this process finds.
Then the lines that `geminga pipeline package` prints: `ship` in a session that was started without, and
spark-submit.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import SparkSession

from geminga.cli.main import main as geminga
from geminga.pipeline.audit.audit import audit_logs
from geminga.pipeline.audit.events import SCHEMA
from geminga.pipeline.audit.logs import Log
from geminga.pipeline.audit.report import WRONG
from geminga.pipeline.audit.settings import AuditSettings
from geminga.pipeline.spark import make_session, ship
from geminga.pipeline.spark.archive import FOLDER, python_name
from geminga.pipeline.spark.audit import audit
from geminga.pipeline.spark.export import export_topics
from geminga.pipeline.spark.replay import replay
from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess
from tests.pipeline.exactness.killing import executors, killing
from tests.pipeline.spark.two_hosts import standalone_cluster

NAMESPACE = "public/cluster"
TOPIC, COPY, AGAIN = (f"persistent://{NAMESPACE}/{name}" for name in ("orders", "copy", "orders-again"))
STEPS = "write,read,stream,export,audit,ship,submit"
KILL_SECONDS = (3.0, 6.0)
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.memory": "512m",
    "spark.sql.shuffle.partitions": "4",
    "spark.task.maxFailures": "100",
    "spark.deploy.maxExecutorRetries": "-1",
    "spark.hadoop.fs.permissions.umask-mode": "000",
}
"""Workers of another user write into directories that the driver makes: the last one is for them."""
BROKER = {
    "brokerDeduplicationEnabled": "true",
    "brokerDeleteInactiveTopicsEnabled": "false",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}
PROGRAM = """
import sys
from pyspark.sql import SparkSession
from geminga.pipeline.spark import register

spark = register(SparkSession.builder.getOrCreate())
frame = spark.read.format("pulsar").option("service.url", sys.argv[1]).option("topic", sys.argv[2]).load()
print("rows:", frame.selectExpr("cast(value as string)").distinct().count())
spark.stop()
"""


class Trip:
    """The steps in one session on the cluster, each with executors killed meanwhile."""

    def __init__(
        self, spark: Any, service_url: str, workers: list[int], rows: int, kills: int, directory: Path
    ) -> None:
        self.spark, self.service_url, self.rows, self.directory = spark, service_url, rows, directory
        self._workers, self._kills = workers, kills
        self.killed = 0

    @contextmanager
    def killing(self) -> Iterator[None]:
        def victims(_: int) -> list[int]:
            return [pid for worker in self._workers for pid in executors(worker)]

        with killing(self.spark, victims, KILL_SECONDS, kills_max=self._kills) as killed:
            yield
        self.killed += len(killed)
        print(f"  with {len(killed)} executors killed", flush=True)

    def at(self, topic: str) -> dict[str, str]:
        return {"service.url": self.service_url, "topic": topic}

    def check(self, topic: str) -> None:
        """Each value once, under its key."""
        frame = self.spark.read.format("pulsar").options(**self.at(topic), splitsPerPartition="4").load()
        found = frame.selectExpr("cast(cast(value as string) as long) v", "cast(__key as string) k")
        got = found.selectExpr(
            "count(*) rows",
            "count(distinct v) values",
            "min(v) low",
            "max(v) high",
            "count_if(k <> v % 97) other",
        ).first()
        assert tuple(got) == (self.rows, self.rows, 0, self.rows - 1, 0), f"{topic}: {got}"

    def write(self) -> None:
        frame = self.spark.range(self.rows, numPartitions=8)
        frame = frame.selectExpr("cast(id as string) value", "cast(id % 97 as string) __key")
        sink = frame.write.format("pulsar").options(**self.at(TOPIC))
        sink = sink.option("exactlyOnce", "true").option("producerNamePrefix", "cluster")
        with self.killing():
            sink.mode("append").save()

    def read(self) -> None:
        with self.killing():
            self.check(TOPIC)

    def stream(self) -> None:
        source = self.spark.readStream.format("pulsar").options(**self.at(TOPIC))
        source = source.option("startingOffsets", "earliest").option("predefinedSubscription", "cluster")
        source = source.option("maxRowsPerTrigger", str(self.rows // 4))
        sink = (
            source.load().writeStream.format("pulsar").options(**self.at(COPY)).option("exactlyOnce", "true")
        )
        with self.killing():
            query = sink.option("checkpointLocation", str(self.directory / "checkpoint"))
            query = query.trigger(availableNow=True).start()
            query.awaitTermination()
        assert query.exception() is None
        self.check(COPY)

    def export(self) -> None:
        out = str(self.directory / "export")
        with self.killing():
            assert export_topics(self.spark, out, self.at(TOPIC)).rows == self.rows
            replay(self.spark, out, {"service.url": self.service_url}, rename={TOPIC: AGAIN})
        self.check(AGAIN)

    def audit(self) -> None:
        log, settings = self.directory / "log.parquet", AuditSettings(settle_ms=0)
        pq.write_table(deliveries(self.rows), log, row_group_size=self.rows // 8)
        with self.killing():
            report = audit(self.spark, [str(log)], settings)
        plain = audit_logs([Log(str(log))], settings)
        assert report.totals.equals(plain.totals)
        for what in WRONG:
            assert list(report.positions(what)) == list(plain.positions(what)), what
        assert len(list(report.positions("lost"))) == self.rows // 100


def deliveries(rows: int) -> pa.Table:
    """Everything published, all but every hundredth delivered."""
    events: list[dict[str, Any]] = []
    for i in range(rows):
        row = {"time_ms": 1_700_000_040_000 + i, "topic": TOPIC, "ledger_id": i // 5000, "entry_id": i % 5000}
        events.append(row | {"kind": "published"})
        if i % 100:
            events.append(
                row | {"kind": "dispatched", "subscription": "s", "publish_time_ms": row["time_ms"]}
            )
    return pa.Table.from_pylist(events, SCHEMA)


def import_paths(spark: Any, folder: str) -> None:
    """Workers import from the archive, with their own Python."""

    def where(_: Any) -> Iterator[tuple[str, str, str]]:
        import numpy

        import geminga

        yield geminga.__file__, numpy.__file__, sys.prefix

    for own, theirs, prefix in spark.sparkContext.parallelize(range(4), 4).mapPartitions(where).collect():
        assert FOLDER in own, own
        assert FOLDER in theirs, theirs
        assert prefix == folder, prefix


def shipped(master: str, archive: str, service_url: str) -> int:
    """Rows that are read by a session which was started without the archive."""
    builder = SparkSession.builder.master(master)
    for setting in SETTINGS.items():
        builder = builder.config(*setting)
    os.environ["PYSPARK_PYTHON"] = python_name()
    spark = ship(builder.getOrCreate(), archive)
    try:
        at = {"service.url": service_url, "topic": TOPIC}
        frame = spark.read.format("pulsar").options(**at).load()
        return int(frame.selectExpr("cast(value as string)").distinct().count())
    finally:
        spark.stop()


def submitted(master: str, archive: str, service_url: str, directory: Path) -> int:
    """Rows that are read by a program of spark-submit, started as `geminga pipeline package` says."""
    program = directory / "program.py"
    program.write_text(PROGRAM)
    command = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", master]
    command += ["--archives", f"{archive}#{FOLDER}", "--conf", f"spark.executorEnv.PYTHONPATH=./{FOLDER}"]
    for name, value in SETTINGS.items():
        command += ["--conf", f"{name}={value}"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "PYSPARK_PYTHON": python_name()}
    run = subprocess.run(
        [*command, str(program), service_url, TOPIC], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    (line,) = (line for line in run.stdout.splitlines() if line.startswith("rows:"))
    return int(line.partition(":")[2])


def timed(name: str, step: Callable[[], None]) -> None:
    begun = time.monotonic()
    step()
    print(f"{name}: exact, {time.monotonic() - begun:.0f} s", flush=True)


def bare_environment(python: str, directory: Path) -> dict[str, str]:
    """Of the workers: a Python without packages, and no word of this checkout."""
    bare = directory / "bare"
    subprocess.run([python, "-m", "venv", "--without-pip", str(bare)], check=True)
    kept = {name: os.environ[name] for name in ("JAVA_HOME", "GEMINGA_JAVA") if name in os.environ}
    return {"PATH": os.pathsep.join([str(bare / "bin"), "/usr/bin", "/bin"]), **kept}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--steps", default=STEPS, help=f"{STEPS}; the first is always done")
    parser.add_argument("--kills", type=int, default=2, help="of executors in each step, at most (2)")
    parser.add_argument("--user", help="whose processes the workers are (needs root)")
    parser.add_argument("--python", default=sys.executable, help="what the workers' Python is made from")
    arguments = parser.parse_args()
    os.umask(0)  # Workers of another user write into directories that the driver makes.
    directory = Path(tempfile.mkdtemp(prefix="cluster-"))
    theirs = directory / "workers"
    theirs.mkdir()
    directory.chmod(0o755)
    theirs.chmod(0o777)
    try:
        environment = bare_environment(arguments.python, directory)
        with (
            BrokerProcess(directory / "data", settings=BROKER) as broker,
            standalone_cluster(theirs, environment, arguments.user) as (master, workers),
        ):
            everything(broker, master, workers, arguments, directory)
    finally:
        shutil.rmtree(directory)


def everything(
    broker: BrokerProcess, master: str, workers: list[int], arguments: argparse.Namespace, directory: Path
) -> None:
    rows: int = arguments.rows
    service_url = broker.endpoints.service_url
    admin = Admin(broker.endpoints.web_url)
    assert admin.put(f"/admin/v2/namespaces/{NAMESPACE}", {}).status == 204
    for topic in (TOPIC, COPY, AGAIN):
        admin.create_partitions(topic, 4)
    begun = time.monotonic()
    spark = make_session("cluster", master=master, settings=SETTINGS)
    print(f"session, archive made: {time.monotonic() - begun:.0f} s", flush=True)
    spark.sparkContext.setLogLevel("OFF")
    trip = Trip(spark, service_url, workers, rows, arguments.kills, directory)
    timed("imports", lambda: import_paths(spark, str(directory / "bare")))
    steps = {"write", *arguments.steps.split(",")}
    for step in STEPS.split(","):
        if step in steps and hasattr(trip, step):
            timed(step, getattr(trip, step))
    spark.stop()
    assert trip.killed, "no executor was killed: give more --rows"
    archive = str(directory / "workers.zip")
    if steps & {"ship", "submit"}:
        assert geminga(["pipeline", "package", "--output", archive]) == 0
    if "ship" in steps:
        assert shipped(master, archive, service_url) == rows
        print("ship: exact", flush=True)
    if "submit" in steps:
        assert submitted(master, archive, service_url, directory) == rows
        print("spark-submit: exact", flush=True)


if __name__ == "__main__":
    main()
