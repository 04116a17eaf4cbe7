"""Spark's writers, batch and stream, over the kernels' task writer."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from geminga.clock import RealClock
from geminga.pipeline.columns.allocation import freeze_imports
from geminga.pipeline.errors import PipelineError
from geminga.pipeline.spark.api import DataSourceStreamArrowWriter, arrow_schema, batches_of
from geminga.pipeline.spark.failures import in_own_words
from geminga.pipeline.topics.options import Options
from geminga.pipeline.writing.task_writer import Task, TaskWriter
from geminga.pipeline.writing.topic_nulls import as_topic_has, in_columns

_BATCH_ID, _QUERY_ID = "streaming.sql.batchId", "sql.streaming.queryId"
_RUN_ID = "spark.jobGroup.id"
"""A query runs its jobs in a group of the name of its run."""
_CLOCK = RealClock()


@dataclass
class Committed(WriterCommitMessage):
    """What one task wrote; everything of it is durable."""

    rows: int
    batches: int


class BatchWriter(DataSourceArrowWriter):
    """Rows are visible as soon as they are stored: there is nothing to commit, and nothing to take back."""

    def __init__(self, options: Options, schema: StructType) -> None:
        given = _checked(options, schema)
        self._columns = as_topic_has(options, given)
        self._as_given = self._columns.equals(given)
        self._options = options
        self._run = uuid.uuid4().hex[:12]
        self._began_ms = _CLOCK.now_ms()

    @in_own_words
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Committed:
        context = TaskContext.get()
        assert context is not None
        if not self._as_given:
            iterator = (in_columns(batch, self._columns) for batch in iterator)
        prefix = self._options.producer_name_prefix
        if prefix is None:  # the job's alone: nothing under it is older than the job
            task = Task(
                f"spark-{self._run}",
                context.partitionId(),
                0,
                run=self._run,
                in_order=False,
                attempt=context.attemptNumber(),
                first_run_ms=self._began_ms,
            )
        else:  # in foreachBatch each micro batch is a job
            batch_id = int(context.getLocalProperty(_BATCH_ID) or 0)
            task = Task(prefix, context.partitionId(), batch_id, run=self._run, in_order=False)
        return _write(self._options, task, self._columns, iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    """Exactly once if asked for: producers are named after the query, sequence ids after micro batch and
    row.
    """

    def __init__(self, options: Options, schema: StructType) -> None:
        self._columns = _checked(options, schema)
        self._schema = schema
        self._options = options

    @in_own_words
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Committed:
        context = TaskContext.get()
        assert context is not None
        batch_id = context.getLocalProperty(_BATCH_ID)
        query_id = context.getLocalProperty(_QUERY_ID)
        prefix = self._options.producer_name_prefix or (f"spark-{query_id}" if query_id else None)
        if self._options.exactly_once and (batch_id is None or prefix is None):
            raise PipelineError(
                "exactlyOnce: Spark does not say which micro-batch this is; set producerNamePrefix"
            )
        run = context.getLocalProperty(_RUN_ID) or ""
        task = Task(prefix or "spark", context.partitionId(), int(batch_id or 0), run=run)
        return _write(self._options, task, self._columns, batches_of(iterator, self._schema))


def _checked(options: Options, schema: StructType) -> pa.Schema:
    """Raises `BadColumns` in the driver, before anything is written."""
    columns = arrow_schema(schema)
    TaskWriter(options, Task("", 0, 0), columns)
    return columns


def _write(options: Options, task: Task, columns: pa.Schema, batches: Iterator[pa.RecordBatch]) -> Committed:
    writer = TaskWriter(options, task, columns)
    try:
        written = writer.write(batches)
    finally:
        writer.close()
    freeze_imports("task")
    return Committed(written.rows, written.batches)
