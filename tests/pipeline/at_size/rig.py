"""What the steps share: one broker, one Spark session, rows in and rows out."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from bench.pipeline.rig import jvm_pid
from geminga.pipeline.spark import make_session
from geminga.pipeline.topics.options import parse_options
from geminga.pipeline.writing.task_writer import Task, TaskWriter
from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess, Endpoints
from tests.pipeline.at_size.figures import Figures, Processes

SETTINGS = {"brokerDeleteInactiveTopicsEnabled": "false"}
NAMESPACE = "persistent://public/default"
ROOT = Path(__file__).resolve().parents[3]


class Rig(NamedTuple):
    spark: Any
    endpoints: Endpoints
    admin: Admin
    processes: Processes
    figures: Figures
    directory: Path

    def options(self, **more: str) -> dict[str, str]:
        return {"service.url": self.endpoints.service_url, **more}

    def read(self, **more: str) -> Any:
        return self.spark.read.format("pulsar").options(**self.options(**more)).load()

    def stream(self, **more: str) -> Any:
        given = self.options(startingOffsets="earliest", **more)
        return self.spark.readStream.format("pulsar").options(**given).load()

    def write(self, batches: Iterator[pa.RecordBatch], **more: str) -> int:
        """Without Spark; the rows that were written."""
        writer = TaskWriter(parse_options(self.options(**more)), Task("fill", 0, 0))
        try:
            return writer.write(batches).rows
        finally:
            writer.close()


@contextmanager
def rig(service_url: str | None, web_url: str | None, figures: Figures) -> Iterator[Rig]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        if service_url and web_url:
            yield from _rig(Endpoints(service_url, web_url, is_geminga=False), 0, directory, figures)
            return
        with BrokerProcess(directory / "data", settings=SETTINGS) as broker:
            yield from _rig(broker.endpoints, broker.pid, directory, figures)


def _rig(endpoints: Endpoints, broker: int, directory: Path, figures: Figures) -> Iterator[Rig]:
    spark = make_session(
        "at-size", master="local[2]", settings={"spark.driver.memory": "1g", "spark.ui.enabled": "false"}
    )
    try:
        processes = Processes(jvm_pid(spark), broker)
        yield Rig(spark, endpoints, Admin(endpoints.web_url), processes, figures, directory)
    finally:
        spark.stop()


def sums(frame: Any) -> tuple[int, int]:
    """The rows, and the sum of their numbers."""
    found = frame.selectExpr("count(*)", "sum(cast(cast(value as string) as bigint))").first()
    return found[0], found[1] or 0


def expected(rows: int) -> tuple[int, int]:
    """Of the numbers [0, rows)."""
    return rows, rows * (rows - 1) // 2
