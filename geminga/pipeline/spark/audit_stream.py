"""An audit as a stream on Spark, beside the workload that it looks at. docs/pipeline-audit.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StructField, StructType

from geminga.pipeline.audit_events import SCHEMA, from_arrow
from geminga.pipeline.audit_settings import AuditSettings
from geminga.pipeline.audit_stream import DELTAS, TopicAudit, delta_table
from geminga.pipeline.spark.pieces import spark_schema

IDLE_MS = 5_000
"""How often a topic without events looks whether something is overdue."""


def event_schema() -> StructType:
    """What a stream of events has to have; for `readStream.schema(...)`."""
    return spark_schema(SCHEMA)


def audit_stream(
    events: DataFrame, settings: AuditSettings | None = None, *, batch_index_max: int = 1023
) -> DataFrame:
    """What is wrong as it becomes known, as rows of `audit_stream.DELTAS` (append mode).

    `events` is a stream with the columns of `event_schema`, in which the events of a topic come in the order
    in which they happened, each micro-batch in that of `time_ms`. Topics are audited side by side; events
    without one (`opened`: a broker's start) are left out, so repeated deliveries after a restart count as
    duplicates unless `released` events tell of it. The state of a topic is its bitmaps. Timers
    by the clock keep the query going: it ends by being stopped, also with the trigger availableNow.
    """
    bits = batch_index_max.bit_length()
    keyed = events.where("topic is not null").groupBy("topic")
    return keyed.transformWithStateInPandas(
        statefulProcessor=_Processor(settings or AuditSettings(), bits),
        outputStructType=spark_schema(DELTAS),
        outputMode="Append",
        timeMode="ProcessingTime",
    )


class _Processor(StatefulProcessor):
    def __init__(self, settings: AuditSettings, batch_bits: int) -> None:
        self._settings = settings
        self._batch_bits = batch_bits

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("audit", StructType([StructField("data", BinaryType())]))

    def _audit(self) -> TopicAudit:
        if not self._state.exists():
            return TopicAudit(self._settings, self._batch_bits)
        return TopicAudit.from_bytes(bytes(self._state.get()[0]))

    def handleInputRows(
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803 - Spark's names
    ) -> Iterator[pd.DataFrame]:
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        frame = pd.concat(list(rows)).sort_values("time_ms", kind="stable")
        table = pa.Table.from_pandas(frame, schema=SCHEMA, preserve_index=False)
        audit = self._audit()
        deltas = audit.take(from_arrow(table, name="the stream"), now_ms)
        self._keep(audit, now_ms)
        yield delta_table(key[0], deltas, self._batch_bits).to_pandas()

    def handleExpiredTimer(
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        audit = self._audit()
        deltas = audit.pass_time(now_ms)
        self._keep(audit, now_ms)
        yield delta_table(key[0], deltas, self._batch_bits).to_pandas()

    def _keep(self, audit: TopicAudit, now_ms: int) -> None:
        self._state.update((audit.to_bytes(),))
        for timer_ms in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer_ms)
        if audit.has_open:
            self._handle.registerTimer(now_ms + IDLE_MS)

    def close(self) -> None:
        pass
