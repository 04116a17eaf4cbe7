"""What the tests of the pipeline share: one broker, one Spark session, topics of their own."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from geminga.cli.main import main
from geminga.pipeline.columns.columns import ColumnMaker, column_names
from geminga.pipeline.topics.options import parse_options
from geminga.pipeline.topics.planning import plan_batch
from geminga.pipeline.topics.ranges import Range
from geminga.pipeline.topics.rows import read_range
from geminga.pipeline.topics.streaming import Offsets, StreamPlan
from geminga.pipeline.writing.task_writer import Task, TaskWriter, Written
from tests.e2e.broker_process import BrokerProcess, Endpoints
from tests.e2e.conftest import (
    SERVICE_URL_KEY,
    SETTINGS,
    WEB_URL_KEY,
    admin,
    client,
    is_external,
    is_geminga,
    make_client,
    topic,
)

__all__ = ["admin", "client", "make_client", "topic"]

POLL_TIMEOUT_S = 10
SHORT_LIVED = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
"""A session that ends before code pays off that a JVM compiles with much care."""
Call = Callable[..., tuple[int, str, str]]
"""A command of `geminga pipeline`; its exit code, and what it prints on both streams."""


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    """A broker that keeps topics which nobody uses: Spark takes a while to come back to them."""
    if is_external():
        yield Endpoints(os.environ[SERVICE_URL_KEY], os.environ[WEB_URL_KEY], is_geminga())
        return
    settings = SETTINGS | {
        "brokerDeleteInactiveTopicsEnabled": "false",
        "activeConsumerFailoverDelayTimeMillis": "50",
    }
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings=settings) as process:
        yield process.endpoints


@pytest.fixture(scope="session")
def spark_stderr(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the JVM of the session `spark` writes its standard error."""
    return tmp_path_factory.mktemp("spark") / "stderr"


@pytest.fixture(scope="session")
def spark_start_log(spark: Any, spark_stderr: Path) -> str:
    """What the JVM of the session `spark` wrote to its standard error while the session was started."""
    return spark_stderr.with_name("start").read_text()


@pytest.fixture(scope="session")
def spark(spark_stderr: Path) -> Iterator[Any]:
    """The one session of all Spark tests, started as commands start theirs: most of the tests' time."""
    from geminga.pipeline.spark.pieces import started

    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        "spark.sql.warehouse.dir": str(spark_stderr.with_name("warehouse")),
    } | SHORT_LIVED
    with warnings.catch_warnings(), stderr_of_children(spark_stderr):
        warnings.simplefilter("ignore")  # pyspark's own, while it starts
        session = started("local[2]", settings)
    spark_stderr.with_name("start").write_bytes(spark_stderr.read_bytes())
    yield session
    session.stop()


@contextmanager
def stderr_of_children(path: Path) -> Iterator[None]:
    """Processes that are started meanwhile write their standard error to `path`, for good."""
    kept = os.dup(2)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class Topics:
    """Kernels on the broker: write columns to a topic, read it back as a table."""

    def __init__(self, endpoints: Endpoints) -> None:
        self.endpoints = endpoints

    def options(self, topic: str, **more: str) -> Any:
        return parse_options({"service.url": self.endpoints.service_url, "topic": topic, **more})

    def write(self, topic: str, columns: dict[str, Any], *, task: Task | None = None, **more: str) -> Written:
        return self.write_batch(topic, pa.RecordBatch.from_pydict(columns), task=task, **more)

    def write_batch(
        self, topic: str, batch: pa.RecordBatch, *, task: Task | None = None, **more: str
    ) -> Written:
        writer = TaskWriter(self.options(topic, **more), task or Task("test", 0, 0))
        try:
            return writer.write([batch])
        finally:
            writer.close()

    def read(self, topic: str, *names: str, **more: str) -> list[dict[str, Any]]:
        """All rows, split by split; with these columns beside those that are always there."""
        options = self.options(topic, columns=",".join(names), **more)
        fields = {"value": pa.binary()} | column_names(options.more_columns)
        schema = pa.schema(list(fields.items()))
        rows: list[dict[str, Any]] = []
        for wanted in plan_batch(options):
            maker = ColumnMaker(wanted.topic, schema)
            for batch in read_range(options.access, wanted, maker, poll_timeout_s=POLL_TIMEOUT_S):
                rows += batch.to_pylist()
        return rows

    def values(self, topic: str, **more: str) -> list[bytes | None]:
        return [row["value"] for row in self.read(topic, **more)]


def triggers(plan: StreamPlan, offsets: Offsets) -> Iterator[list[Range]]:
    """What a stream reads in each micro-batch, from `offsets` on until nothing is left."""
    while (end := plan.latest(offsets, limited=True)) != offsets:
        yield plan.ranges(offsets, end)
        offsets = end


@pytest.fixture
def topics(broker: Endpoints) -> Topics:
    return Topics(broker)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["pipeline", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


@pytest.fixture
def on_spark(spark: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The commands take the session that is there, and leave it."""
    for module in ("jobs", "pieces"):
        monkeypatch.setattr(f"geminga.pipeline.spark.{module}.started", lambda master: spark)
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    return spark
