"""Spark clusters of two hosts on one machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.pipeline.exactness.killing import below


@contextmanager
def two_hosts(directory: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """A standalone cluster of two workers at different addresses, because no second attempt of a task runs on
    the host of the first: its URL, and settings of a session that speculates. Workers run this Python.
    """
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.pyspark.python": sys.executable,
        "spark.speculation": "true",
        "spark.speculation.interval": "200ms",
        "spark.speculation.multiplier": "1.1",
        "spark.speculation.quantile": "0.3",
        "spark.speculation.minTaskRuntime": "500ms",
    }
    with standalone_cluster(directory, dict(os.environ)) as (master, _):
        yield master, settings


@contextmanager
def standalone_cluster(
    directory: Path, environment: dict[str, str], user: str | None = None
) -> Iterator[tuple[str, list[int]]]:
    """A master and two workers of one core, in this environment, of this user (who needs `directory`): the
    master's URL, and the processes of the workers.
    """
    port = free_port()
    home = Path(pyspark.__file__).parent
    run = str(home / "bin" / "spark-class")
    master = f"spark://127.0.0.1:{port}"
    place = "org.apache.spark.deploy."
    commands = [[place + "master.Master", "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]]
    resources = ["--cores", "1", "--memory", "1g", "--webui-port", "0"]
    resources += ["--work-dir", str(directory / "cluster")]
    for host in ("127.0.0.1", "127.0.0.2"):
        commands.append([place + "worker.Worker", "--host", host, *resources, master])  # noqa: PERF401
    running = [
        subprocess.Popen(
            [run, *command],
            env=environment | {"SPARK_DAEMON_MEMORY": "256m", "SPARK_HOME": str(home)},
            cwd=directory,
            user=user,
            umask=0,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for command in commands
    ]
    try:
        yield master, [process.pid for process in running[1:]]
    finally:
        for process in reversed(running):
            for pid in [*below(process.pid), process.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
