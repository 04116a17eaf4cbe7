"""Work on descriptions instead of data: each row says what to read, and the worker reads it itself."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, PythonException
from pyspark.sql import DataFrame, SparkSession

from geminga.pipeline.columns.allocation import freeze_imports
from geminga.pipeline.errors import PipelineError
from geminga.pipeline.spark.api import spark_schema
from geminga.pipeline.spark.failures import failure_of, is_ours, note_parts
from geminga.pipeline.spark.session import check_classic, make_session

T = TypeVar("T")

PICKLED: Final = pa.schema([("pickled", pa.binary())])
TASKS_PER_CORE: Final = 64
"""At most: each costs Spark some 50 ms of a core by itself."""


def started(master: str, settings: Mapping[str, str] | None = None) -> SparkSession:
    """A session for a command, which tells itself how far it is and what went wrong: it needs no UI, which
    takes a port and a second of CPU.
    """
    own = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false"}
    session = make_session(master=master, settings=own | dict(settings or {}))
    # The command reports a worker's failure in one line; Spark would log pages of traces beside it.
    session.sparkContext.setLogLevel("FATAL")
    return session


def check_runs_jobs(spark: SparkSession) -> None:
    """Raises `PipelineError` over Spark Connect, which does not tell what jobs need to know of a cluster."""
    check_classic(
        spark,
        "no job of this package runs: give it a session of make_session, or start the command of `geminga "
        "pipeline` with --master",
    )


def cores_of(spark: SparkSession) -> int:
    """Of all executors. Raises `PipelineError` over Spark Connect."""
    check_runs_jobs(spark)
    cores: int = spark.sparkContext.defaultParallelism
    return cores


def each(
    spark: SparkSession,
    items: Sequence[T],
    work: Callable[[int, T], Iterator[pa.RecordBatch]],
    schema: pa.Schema,
) -> DataFrame:
    """What `work` makes of each item and its number. Item and work have to be picklable.

    A task gets its own items and no others: one, or a few that follow each other where there are more than
    `TASKS_PER_CORE` for each core. `work` goes to all of them: it has to be small whatever the data.
    """

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for pickled in batch["pickled"].to_pylist():
                number, item = pickle.loads(pickled)
                try:
                    yield from work(number, item)
                except PipelineError as error:
                    note_parts(error)
                    raise
                freeze_imports("task")  # item, work and what they ran have brought theirs by now

    return _shared_out(spark, items).mapInArrow(run, spark_schema(schema))


def _shared_out(spark: SparkSession, items: Sequence[Any]) -> DataFrame:
    """The items with their numbers, pickled, a partition for each task."""
    pickled = [pickle.dumps(one) for one in enumerate(items)]
    table = pa.Table.from_pydict({"pickled": pickled}, PICKLED)
    tasks = min(len(pickled), TASKS_PER_CORE * cores_of(spark)) or 1
    # Spark makes one partition of each Arrow batch, unless the table is small enough to be a local relation,
    # which it splits as it likes: the threshold of 0 rules that out.
    settings = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(-(-len(pickled) // tasks) or 1),
        "spark.sql.execution.arrow.localRelationThreshold": "0",
    }
    with configured(spark, settings):
        return spark.createDataFrame(table)


@contextlib.contextmanager
def configured(spark: SparkSession, settings: Mapping[str, str]) -> Iterator[None]:
    """The session with these settings, and as it was before afterwards."""
    before = {name: spark.conf.get(name, None) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def collect_each(spark: SparkSession, items: Sequence[T], work: Callable[[int, T], Any]) -> list[Any]:
    """What `work` returns for each item and its number, in no order."""

    def run(number: int, item: T) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"pickled": [pickle.dumps(work(number, item))]}, PICKLED)

    rows = raised(lambda: each(spark, items, run, PICKLED).collect())
    return [pickle.loads(row.pickled) for row in rows]


def raised(action: Callable[[], T]) -> T:
    """What an action returns; an error of ours in a worker becomes that error here, without Spark's pages. A
    bug in a worker is raised with all that is known of it.
    """
    try:
        return action()
    except (PySparkException, Py4JJavaError) as error:
        if isinstance(error, PythonException) and not is_ours(error):
            raise
        raise failure_of(error) from None
