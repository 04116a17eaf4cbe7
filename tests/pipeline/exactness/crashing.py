"""The data source as `pulsar-crashing`: its writer dies with SIGKILL at a chosen step of the protocol, once
for each micro batch. Which one is said in files of the directory that CRASHES names: plan-BATCH holds the
step, crashed-BATCH appears when it happened, attempt-BATCH-TASK-NUMBER with each attempt of a task.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from geminga.pipeline.client.producing import Producer
from geminga.pipeline.spark.sink import StreamWriter
from geminga.pipeline.spark.source import PulsarSource
from geminga.pipeline.topics.options import parse_options
from geminga.pipeline.writing import task_writer

CRASHES = "GEMINGA_TEST_CRASHES"
SENT_BEFORE = 3
"""How many batches of a task are on their way when `sending` comes."""
TASK_STEPS = ("begun", "registered", "sending", "sent", "flushed", "checked", "closed")
"""Where a task can die: before it does anything; its producer is registered; some batches are on their way;
all; all are confirmed; the broker was asked what it knows; the producer is closed, Spark was not told.
"""
DRIVER_STEPS = ("committing", "committed")
"""Where the sink's part of the driver can die: each task has reported, before and after its commit."""
WAITS = {"waiting": 60.0, "slow": 4.0}
"""Steps that sleep instead, at the place of `sending`."""


def reached(step: str, batch_id: int) -> None:
    directory = Path(os.environ[CRASHES])
    try:
        wanted = (directory / f"plan-{batch_id}").read_text()
    except FileNotFoundError:
        return
    if wanted != step and not (wanted in WAITS and step == "sending"):
        return
    try:
        (directory / f"crashed-{batch_id}").touch(exist_ok=False)
    except FileExistsError:
        return
    if wanted in WAITS:
        threading.Event().wait(WAITS[wanted])
    else:
        os.kill(os.getpid(), signal.SIGKILL)


class _Producer(Producer):
    batch_id = 0
    sends = 0

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        reached("registered", self.batch_id)

    def send(self, sequence_id: int, frame: bytes, *more: Any, **named: Any) -> None:
        super().send(sequence_id, frame, *more, **named)
        _Producer.sends += 1
        if self.sends == SENT_BEFORE:
            reached("sending", self.batch_id)

    def flush(self) -> None:
        reached("sent", self.batch_id)
        super().flush()
        reached("flushed", self.batch_id)

    def known_sequence_id(self) -> int:
        found = super().known_sequence_id()
        reached("checked", self.batch_id)
        return found


class CrashingWriter(StreamWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Any:
        context = TaskContext.get()
        assert context is not None
        _Producer.batch_id = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        _Producer.sends = 0
        task_writer.Producer = _Producer  # type: ignore[attr-defined]
        attempt = f"attempt-{_Producer.batch_id}-{context.partitionId()}-{context.attemptNumber()}"
        Path(os.environ[CRASHES], attempt).touch()
        reached("begun", _Producer.batch_id)
        try:
            done = super().write(iterator)
        finally:
            task_writer.Producer = Producer  # type: ignore[attr-defined]
        reached("closed", _Producer.batch_id)
        return done

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        reached("committing", batchId)
        super().commit(messages, batchId)
        reached("committed", batchId)


class CrashingSource(PulsarSource):
    @classmethod
    def name(cls) -> str:
        return "pulsar-crashing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return CrashingWriter(parse_options(self.options), schema)
