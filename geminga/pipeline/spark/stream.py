"""Spark's stream reader over the kernels' plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from geminga.pipeline.errors import BadOption
from geminga.pipeline.spark.api import (
    HAS_LIMITS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from geminga.pipeline.spark.failures import in_own_words
from geminga.pipeline.spark.splits import Split, read_split
from geminga.pipeline.topics.options import Options
from geminga.pipeline.topics.planning import narrowed
from geminga.pipeline.topics.streaming import Offsets, StreamPlan
from geminga.pipeline.values.schemas import TopicSchema


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver's instance plans; those of the workers only read."""

    def __init__(self, options: Options, values: TopicSchema, schema: StructType) -> None:
        limits = options.rows_per_trigger_max, options.bytes_per_trigger_max, options.rows_per_trigger_min
        if not HAS_LIMITS and any(limit is not None for limit in limits):
            raise BadOption(
                "maxRowsPerTrigger, maxBytesPerTrigger and minRowsPerTrigger need Spark 4.2 or newer; "
                "leave them out"
            )
        self._options = options
        self._values = values
        self._schema = schema
        self._plan: StreamPlan | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_options": narrowed(self._options), "_plan": None}

    @property
    def plan(self) -> StreamPlan:
        if self._plan is None:
            self._plan = StreamPlan(self._options, self._values)
        return self._plan

    @in_own_words
    def initialOffset(self) -> Offsets:
        return self.plan.initial()

    def getDefaultReadLimit(self) -> ReadLimit:
        if self._options.rows_per_trigger_max is not None:
            return ReadMaxRows(self._options.rows_per_trigger_max)
        if self._options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(self._options.bytes_per_trigger_max)
        if self._options.rows_per_trigger_min is not None:
            return ReadMinRows(self._options.rows_per_trigger_min)
        return ReadAllAvailable()

    @in_own_words
    def latestOffset(self, start: Offsets | None = None, limit: ReadLimit | None = None) -> Offsets:
        """Spark before 4.2 gives neither argument: then there is no limit but the topic's end."""
        limited = start is not None and not isinstance(limit, ReadAllAvailable)
        return self.plan.latest(start, limited=limited)

    @in_own_words
    def prepareForTriggerAvailableNow(self) -> None:
        self.plan.fix_target()

    @in_own_words
    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self.plan.report()

    @in_own_words
    def partitions(self, start: Offsets, end: Offsets) -> Sequence[InputPartition]:
        return [Split(wanted) for wanted in self.plan.ranges(start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Split)
        return read_split(self._options, self._values, self._schema, partition.wanted)

    @in_own_words
    def commit(self, end: Offsets) -> None:
        self.plan.acknowledge(end)

    def stop(self) -> None:
        if self._plan is not None:
            self._plan.close()
