"""A standalone cluster whose workers have neither this package nor what it imports: everything runs there.

    python -m tests.pipeline.cluster                  as this user
    python -m tests.pipeline.cluster --user nobody    workers of another user, who cannot see this one's files
    python -m tests.pipeline.cluster --python /usr/bin/python3.11    another build of the workers' Python
    python -m tests.pipeline.cluster --s3 http://127.0.0.1:5000 --jars hadoop-aws.jar:bundle.jar

A broker, a master and two workers on this machine. The workers run in a directory of their own with a Python
that has no packages and no PYTHONPATH. A session of `make_session` writes a topic, reads it, streams it into
another one exactly once, exports it and sends the export again; executors are killed in each of these steps,
and everything is compared: each value once. An audit on the cluster finds what one in this process finds.
Then a session that speculates: the first attempt of a task stands still in the midst of its rows, so that a
second one runs beside it, in a read, a write and a stream; afterwards the broker has nothing open of them.
Then the lines that `geminga pipeline package` prints: `ship` in a session that was started without, and
spark-submit; and a server of Spark Connect with that archive, whose client is `tests.pipeline.over_connect`.

With `--s3`, the address of a server (`moto_server`): an export to it is sent again, and executors are killed.
With `--jars`, the class path of hadoop-aws and what it needs, by which Spark itself reads URLs, the workers'
archive and the checkpoint of a stream are there too, and Spark's own reader reads the export.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
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
from geminga.pipeline.export.output import exported_files
from geminga.pipeline.files.files import Files
from geminga.pipeline.files.locations import without_settings
from geminga.pipeline.spark import make_session, ship
from geminga.pipeline.spark.archive import FOLDER, python_name
from geminga.pipeline.spark.audit import audit
from geminga.pipeline.spark.export import export_topics
from geminga.pipeline.spark.jobs import session_settings
from geminga.pipeline.spark.replay import replay
from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.waiting import eventually
from tests.pipeline.each_once import assert_each_once, at, keyed
from tests.pipeline.exactness.killing import below, executors, killing
from tests.pipeline.spark.two_hosts import free_port, standalone_cluster

NAMESPACE = "public/cluster"
TOPIC, COPY, AGAIN, COPY_S3, AGAIN_S3 = (
    f"persistent://{NAMESPACE}/{name}"
    for name in ("orders", "copy", "orders-again", "copy-by-s3", "orders-again-by-s3")
)
STEPS = "write,read,stream,export,audit,speculation,ship,submit,connect"
LASTING = ("cluster", "speculated")
"""Subscriptions of streams, which stay."""
CONNECT_SECONDS = 300.0
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
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.3",
    "spark.speculation.minTaskRuntime": "500ms",
    # So that a writer has sent some rows when the straggler stands still.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "500",
}
BUCKET = "cluster"
STILL_SECONDS = 20.0
"""Of a first attempt, unless Spark ends it before, as another one was faster."""
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
        return at(self.service_url, topic)

    def check(self, topic: str) -> None:
        """Each value once, under its key."""
        frame = self.spark.read.format("pulsar").options(**self.at(topic), splitsPerPartition="4").load()
        assert_each_once(frame, self.rows, topic)

    def write(self) -> None:
        sink = keyed(self.spark, self.rows).write.format("pulsar").options(**self.at(TOPIC))
        sink = sink.option("exactlyOnce", "true").option("producerNamePrefix", "cluster")
        with self.killing():
            sink.mode("append").save()

    def read(self) -> None:
        with self.killing():
            self.check(TOPIC)

    def stream(self) -> None:
        self.copy_to(COPY, str(self.directory / "checkpoint"))

    def copy_to(self, copy: str, checkpoint: str) -> None:
        source = self.spark.readStream.format("pulsar").options(**self.at(TOPIC))
        source = source.option("startingOffsets", "earliest").option("predefinedSubscription", LASTING[0])
        source = source.option("maxRowsPerTrigger", str(self.rows // 4))
        sink = source.load().writeStream.format("pulsar").options(**self.at(copy), exactlyOnce="true")
        with self.killing():
            query = sink.option("checkpointLocation", checkpoint)
            query = query.trigger(availableNow=True).start()
            query.awaitTermination()
        assert query.exception() is None
        self.check(copy)

    def export(self) -> None:
        self.export_to(str(self.directory / "export"), AGAIN)

    def export_to(self, out: str, again: str) -> None:
        with self.killing():
            assert export_topics(self.spark, out, self.at(TOPIC)).rows == self.rows
            replay(self.spark, out, {"service.url": self.service_url}, rename={TOPIC: again})
        self.check(again)

    def s3(self, out: str) -> None:
        self.export_to(out, AGAIN_S3)

    def s3_by_hadoop(self, out: str, checkpoint: str) -> None:
        """What Spark itself reads and writes there."""
        settings = session_settings(self.spark)
        frame = self.spark.read.option("basePath", out).parquet(*exported_files(out, settings))
        assert_each_once(frame, self.rows, out)
        self.copy_to(COPY_S3, checkpoint)

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


class Speculation:
    """Reads, writes and a stream in which the first attempt of a task stands still on its executor."""

    def __init__(self, spark: Any, admin: Admin, service_url: str, rows: int, directory: Path) -> None:
        self.spark, self.service_url, self.rows, self.directory = spark, service_url, rows, directory
        self._admin = admin
        self._attempts = directory / "attempts"
        self._attempts.mkdir()

    def topic(self, name: str) -> str:
        topic = f"persistent://{NAMESPACE}/{name}"
        self._admin.create_partitions(topic, 4)
        return topic

    def straggling(self, frame: Any, step: str) -> Any:
        """The frame; the first attempt at its first partition stands still with half of the first rows given.

        Attempts leave a file each.
        """
        attempts = str(self._attempts)

        def attempt(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            import threading
            from pathlib import Path

            from pyspark import TaskContext

            context = TaskContext.get()
            task, number = context.partitionId(), context.attemptNumber()
            Path(attempts, f"{step}-{context.stageId()}-{task}-{number}").touch()
            is_first = task == 0 and number == 0
            for batch in batches:
                half = batch.num_rows // 2
                yield batch.slice(0, half)
                if is_first:
                    threading.Event().wait(STILL_SECONDS)
                    is_first = False
                yield batch.slice(half)

        return frame.mapInArrow(attempt, frame.schema)

    def done(self, step: str, *topics: str) -> None:
        second = len(list(self._attempts.glob(f"{step}-*-0-1")))
        assert second, f"{step}: no task was attempted twice"
        for topic in topics:
            eventually(lambda topic=topic: not self.open_at(topic), what=f"nothing open of {topic}")
        print(f"  {step}: {second} tasks attempted twice, nothing left open at the broker", flush=True)

    def open_at(self, topic: str) -> list[str]:
        """Producers, consumers, and subscriptions but that of the stream, which is durable."""
        found: list[str] = []
        for number in range(4):
            stats = self._admin.stats(f"{topic}-partition-{number}")
            found += [one["producerName"] for one in stats["publishers"]]
            for name, subscription in stats["subscriptions"].items():
                found += [one["consumerName"] for one in subscription["consumers"]]
                if name not in LASTING:
                    found.append(name)
        return found

    def read(self) -> None:
        frame = self.spark.read.format("pulsar").options(**at(self.service_url, TOPIC))
        frame = frame.option("splitsPerPartition", "2").load().select("value", "__key")
        assert_each_once(self.straggling(frame, "read"), self.rows, TOPIC)
        self.done("read", TOPIC)

    def write(self) -> None:
        topic = self.topic("speculated")
        sink = (
            self.straggling(keyed(self.spark, self.rows), "write")
            .write.format("pulsar")
            .options(**at(self.service_url, topic))
        )
        sink.option("exactlyOnce", "true").option("batchRows", "100").mode("append").save()
        assert_each_once(self.load(topic), self.rows, topic)
        self.done("write", topic)

    def stream(self) -> None:
        topic = self.topic("speculated-copy")
        source = self.spark.readStream.format("pulsar").options(**at(self.service_url, TOPIC))
        source = source.option("startingOffsets", "earliest").option("predefinedSubscription", LASTING[1])
        source = source.option("maxRowsPerTrigger", str(self.rows // 3))
        frame = source.load().select("value", "__key")
        sink = self.straggling(frame, "stream").writeStream.format("pulsar")
        sink = sink.options(**at(self.service_url, topic), exactlyOnce="true", batchRows="100")
        query = sink.option("checkpointLocation", str(self.directory / "checkpoint-speculated"))
        query = query.trigger(availableNow=True).start()
        query.awaitTermination()
        assert query.exception() is None
        assert_each_once(self.load(topic), self.rows, topic)
        self.done("stream", TOPIC, topic)
        for number in range(4):
            assert self._admin.backlog(f"{TOPIC}-partition-{number}", LASTING[1]) == 0

    def load(self, topic: str) -> Any:
        return self.spark.read.format("pulsar").options(**at(self.service_url, topic)).load()


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


@contextmanager
def connect_server(master: str, archive: str) -> Iterator[str]:
    """Where clients find it. Its own environment has this package, and its workers have the archive."""
    port = free_port()
    home = Path(pyspark.__file__).parent
    command = [str(home / "sbin" / "start-connect-server.sh"), "--wait", "--master", master]
    command += ["--archives", f"{archive}#{FOLDER}"]
    command += ["--conf", f"spark.executorEnv.PYTHONPATH=./{FOLDER}:../{FOLDER}"]
    for name, value in {**SETTINGS, "spark.connect.grpc.binding.port": str(port)}.items():
        command += ["--conf", f"{name}={value}"]
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "PYSPARK_PYTHON": python_name(), "SPARK_HOME": str(home)}
    server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers() -> bool:
        assert server.poll() is None, "the server of Spark Connect has ended"
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    try:
        eventually(answers, CONNECT_SECONDS, what="a server of Spark Connect")
        yield f"sc://127.0.0.1:{port}"
    finally:
        for pid in [*below(server.pid), server.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        server.wait()


def over_connect(remote: str, service_url: str, rows: int, directory: Path) -> None:
    arguments = [remote, service_url, TOPIC, str(rows), str(directory)]
    subprocess.run([sys.executable, "-m", "tests.pipeline.over_connect", *arguments], check=True)


def s3_settings(endpoint: str) -> dict[str, str]:
    """Of a session; the bucket is made."""
    urllib.request.urlopen(urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT"))
    found = {"endpoint": endpoint, "endpoint.region": "us-east-1", "path.style.access": "true"}
    found |= {"access.key": "key", "secret.key": "secret"}
    return {f"spark.hadoop.fs.s3a.{name}": value for name, value in found.items()}


def timed(name: str, step: Callable[[], object]) -> None:
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
    parser.add_argument("--s3", help="address of an S3 server; without it nothing goes there")
    parser.add_argument("--jars", help="hadoop-aws and what it needs, with a colon between")
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
    for topic in (TOPIC, COPY, AGAIN, COPY_S3, AGAIN_S3):
        admin.create_partitions(topic, 4)
    begun = time.monotonic()
    settings = SETTINGS
    if arguments.jars:  # from the first session on, as all of a process have one JVM
        sides = ("driver", "executor")
        settings = SETTINGS | {f"spark.{side}.extraClassPath": arguments.jars for side in sides}
    spark = make_session("cluster", master=master, settings=settings)
    print(f"session, archive made: {time.monotonic() - begun:.0f} s", flush=True)
    spark.sparkContext.setLogLevel("OFF")
    trip = Trip(spark, service_url, workers, rows, arguments.kills, directory)
    timed("imports", lambda: import_paths(spark, str(directory / "bare")))
    steps = {"write", *arguments.steps.split(",")}
    for step in STEPS.split(","):
        if step in steps and hasattr(trip, step):
            timed(step, getattr(trip, step))
    spark.stop()
    assert trip.killed or not arguments.kills, "no executor was killed: give more --rows"
    archive = str(directory / "workers.zip")
    if steps & {"speculation", "ship", "submit", "connect"} or arguments.s3:
        assert geminga(["pipeline", "package", "--output", archive]) == 0
    if "speculation" in steps:
        spark = make_session("cluster", master=master, settings=settings | SPECULATION, archive=archive)
        spark.sparkContext.setLogLevel("OFF")
        speculation = Speculation(spark, admin, service_url, rows, directory)
        timed("speculation", lambda: [speculation.read(), speculation.write(), speculation.stream()])
        spark.stop()
    if arguments.s3:
        own = settings | s3_settings(arguments.s3)
        place = f"s3a://{BUCKET}/{Path(archive).name}"
        if arguments.jars:
            Files(without_settings(own)[1]).write(place, Path(archive).read_bytes())
        sent = place if arguments.jars else archive
        spark = make_session("cluster", master=master, settings=own, archive=sent)
        spark.sparkContext.setLogLevel("OFF")
        trip = Trip(spark, service_url, workers, rows, arguments.kills, directory)
        out = f"s3a://{BUCKET}/exports/orders"
        timed("imports", lambda: import_paths(spark, str(directory / "bare")))
        timed("s3", lambda: trip.s3(out))
        if arguments.jars:
            timed("s3 by Hadoop", lambda: trip.s3_by_hadoop(out, f"s3a://{BUCKET}/checkpoints/orders"))
        spark.stop()
    if "ship" in steps:
        assert shipped(master, archive, service_url) == rows
        print("ship: exact", flush=True)
    if "submit" in steps:
        assert submitted(master, archive, service_url, directory) == rows
        print("spark-submit: exact", flush=True)
    if "connect" in steps and find_spec("grpc_status") is None:
        print('connect: left out, as its client is not installed: pip install "pyspark[connect]"', flush=True)
    elif "connect" in steps:
        for name in ("written", "copy"):
            admin.create_partitions(f"{TOPIC}-connect-{name}", 4)
        with connect_server(master, archive) as remote:
            timed("connect", lambda: over_connect(remote, service_url, rows, directory))


if __name__ == "__main__":
    main()
