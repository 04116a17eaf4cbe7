"""A broker of Kafka in a process of its own, from a directory of published jars."""

from __future__ import annotations

import base64
import contextlib
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

START_SECONDS_MAX = 120
_SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={directory}/logs
num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


class NoKafka(Exception):
    """What is missing, in a sentence."""


@contextlib.contextmanager
def kafka(jars: Path, directory: Path) -> Iterator[str]:
    """Its address. One partition for each topic, which is made when a producer names it."""
    if not list(jars.glob("kafka_*.jar")):
        raise NoKafka(f"{jars} has no jar of Kafka's broker")
    java = shutil.which("java")
    if java is None:
        raise NoKafka("no java in the path")
    directory.mkdir(parents=True)
    port, controller = _free_ports()
    settings = directory / "server.properties"
    settings.write_text(_SETTINGS.format(port=port, controller=controller, directory=directory))
    run = [java, "-Xmx1g", "-cp", f"{jars}/*"]
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    with (directory / "log").open("wb") as log:
        format_it = [*run, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(settings)]
        if subprocess.run(format_it, stdout=log, stderr=log).returncode:
            raise NoKafka(f"its storage tool failed: {_end_of(directory / 'log')}")
        process = subprocess.Popen([*run, "kafka.Kafka", str(settings)], stdout=log, stderr=log)
    try:
        _await(process, port, directory / "log")
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def source_jars(jars: Path) -> str:
    """Those of Spark's source for Kafka and of its functions for AVRO, as `spark.jars` has them."""
    found = sorted(jars.glob("*.jar"))
    if not any(each.name.startswith("spark-sql-kafka") for each in found):
        raise NoKafka(f"{jars} has no jar of Spark's source for Kafka")
    return ",".join(map(str, found))


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def _await(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + START_SECONDS_MAX
    while time.monotonic() < end and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.2)
    raise NoKafka(f"the broker does not answer: {_end_of(log)}")


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]
