"""An audit as a stream on Spark, beside the workload that it looks at. docs/pipeline-audit.md."""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from geminga.pipeline.audit.events import SCHEMA, WrongLog, from_arrow, taken
from geminga.pipeline.audit.settings import AuditSettings
from geminga.pipeline.audit.stream import DELTAS, Delta, delta_table
from geminga.pipeline.audit.stream_topics import Shared, TopicsAudit
from geminga.pipeline.audit.topics import is_segment, segment_events
from geminga.pipeline.spark.api import spark_schema

IDLE_MS = 5_000
"""How often topics without events are looked at whether something is overdue."""
BUCKETS = 16
_BYTES = StructType([StructField("data", BinaryType())])


def event_schema() -> StructType:
    """What a stream of events has to have; for `readStream.schema(...)`."""
    return spark_schema(SCHEMA)


def topic_events(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    """A stream of the events in topics whose schema says so, or without a schema: in JSON, or the delivery
    log that a broker ships.

    `options` are those of the data source `pulsar`. Raises what it raises, and `WrongLog`.
    """
    stream = spark.readStream.format("pulsar").options(**options).load()
    if "time_ms" not in stream.columns:
        stream = _of_values(stream, options.get("topic", "the topics"))
    return _with_all_columns(stream)


def _of_values(stream: DataFrame, name: str) -> DataFrame:
    """Segments of a delivery log as their events, all else as JSON; what is neither has no kind."""

    def of_segment(value: bytes) -> pa.RecordBatch:
        try:
            return segment_events(value, name)
        except WrongLog:
            return pa.RecordBatch.from_arrays([pa.nulls(1, field.type) for field in SCHEMA], schema=SCHEMA)

    def events(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            values = batch["value"]
            for value, whole in zip(values, is_segment(values).tolist(), strict=True):
                if whole:
                    found = of_segment(value.as_py())
                    yield found.append_column("json", pa.nulls(found.num_rows, pa.binary()))
                else:
                    nothing = [pa.nulls(1, field.type) for field in SCHEMA]
                    columns = [*nothing, pa.array([value.as_py()], pa.binary())]
                    yield pa.RecordBatch.from_arrays(columns, names=[*SCHEMA.names, "json"])

    both = stream.select("value").mapInArrow(
        events, spark_schema(SCHEMA.append(pa.field("json", pa.binary())))
    )
    parsed = both.withColumn("e", functions.from_json(both["json"].cast("string"), event_schema()))
    return parsed.select(
        *(functions.coalesce(parsed[name], parsed[f"e.{name}"]).alias(name) for name in SCHEMA.names)
    )


def _with_all_columns(stream: DataFrame) -> DataFrame:
    """Those of events, absent where the stream does not have them, and no other."""
    return stream.select(
        *(
            stream[field.name].cast(field.dataType)
            if field.name in stream.columns
            else functions.lit(None).cast(field.dataType).alias(field.name)
            for field in event_schema()
        )
    )


def audit_stream(
    events: DataFrame,
    settings: AuditSettings | None = None,
    *,
    batch_index_max: int = 1023,
    buckets: int = BUCKETS,
) -> DataFrame:
    """What is wrong as it becomes known, as rows of `audit.stream.DELTAS` (append mode).

    `events` is a stream with the columns of `event_schema`, in which the events of a topic come in the order
    in which they happened, each micro-batch in that of `time_ms`. Topics are audited side by side, in
    `buckets` shares, each of which is told of every start of the broker (`opened`); the number stays the
    same as long as the checkpoint does. The state of a topic is its bitmaps. What is no event, or a malformed
    one, is left out and counted as `malformed`, in the minute of the clock. Timers by the clock keep the
    query going: it ends by being stopped, also with the trigger availableNow.
    """
    bits = batch_index_max.bit_length()
    everywhere = functions.sequence(functions.lit(0), functions.lit(buckets - 1))
    own = functions.array(functions.pmod(functions.hash("topic"), functions.lit(buckets)))
    where = (
        functions.when(functions.col("topic").isNotNull(), own)
        .when(functions.col("kind") == "opened", everywhere)
        .when(functions.col("kind") == "closed", None)
        .otherwise(functions.array(functions.lit(0)))
    )
    keyed = _with_all_columns(events).withColumn("bucket", functions.explode(where)).groupBy("bucket")
    return keyed.transformWithStateInPandas(
        statefulProcessor=_Processor(settings or AuditSettings(), bits),
        outputStructType=spark_schema(DELTAS),
        outputMode="Append",
        timeMode="ProcessingTime",
    )


class _States:
    """Spark's, as `TopicStates`."""

    def __init__(self, handle: StatefulProcessorHandle) -> None:
        key = StructType([StructField("topic", StringType())])
        self._map = handle.getMapState("topics", key, _BYTES)

    def get(self, topic: str) -> bytes | None:
        if not self._map.containsKey((topic,)):
            return None
        (state,) = self._map.getValue((topic,))
        return bytes(state)

    def put(self, topic: str, state: bytes) -> None:
        self._map.updateValue((topic,), (state,))


class _Processor(StatefulProcessor):
    def __init__(self, settings: AuditSettings, batch_bits: int) -> None:
        self._settings = settings
        self._batch_bits = batch_bits

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._shared = handle.getValueState("shared", _BYTES)
        self._states = _States(handle)

    def _audit(self) -> TopicsAudit:
        shared = pickle.loads(self._shared.get()[0]) if self._shared.exists() else Shared()
        return TopicsAudit(self._settings, self._batch_bits, shared, self._states)

    def handleInputRows(
        self,
        key: Any,
        rows: Iterator[pd.DataFrame],
        timerValues: Any,  # noqa: N803 - Spark's names
    ) -> Iterator[pd.DataFrame]:
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        table = pa.Table.from_pandas(pd.concat(list(rows)), schema=SCHEMA, preserve_index=False)
        events = from_arrow(table, name="the stream", leaves_out=True)
        audit = self._audit()
        in_order = taken(events, events.time_ms.argsort(kind="stable"))
        yield self._rows(audit.take(in_order, now_ms))
        self._keep(audit, now_ms)

    def handleExpiredTimer(
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[pd.DataFrame]:
        now_ms = timerValues.getCurrentProcessingTimeInMs()
        audit = self._audit()
        yield self._rows(audit.pass_time(now_ms))
        self._keep(audit, now_ms)

    def _rows(self, found: Iterator[tuple[str, list[Delta]]]) -> pd.DataFrame:
        tables = [delta_table(topic, deltas, self._batch_bits) for topic, deltas in found]
        return pa.concat_tables([*tables, DELTAS.empty_table()]).to_pandas()

    def _keep(self, audit: TopicsAudit, now_ms: int) -> None:
        self._shared.update((pickle.dumps(audit.shared),))
        for timer_ms in list(self._handle.listTimers()):
            self._handle.deleteTimer(timer_ms)
        if audit.shared.open:
            self._handle.registerTimer(now_ms + IDLE_MS)

    def close(self) -> None:
        pass
