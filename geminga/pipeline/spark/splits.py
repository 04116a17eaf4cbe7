"""What a task gets to read, and how it reads it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from geminga.pipeline.arrow.table import range_batches
from geminga.pipeline.columns.allocation import freeze_imports
from geminga.pipeline.spark.api import arrow_schema
from geminga.pipeline.spark.failures import in_own_words
from geminga.pipeline.topics.options import Options
from geminga.pipeline.topics.ranges import Range
from geminga.pipeline.values.schemas import TopicSchema


class Split(InputPartition):
    """One range for one task; None reads nothing."""

    def __init__(self, wanted: Range | None) -> None:
        super().__init__(wanted)
        self.wanted = wanted


@in_own_words
def read_split(
    options: Options, values: TopicSchema, schema: StructType, wanted: Range | None
) -> Iterator[pa.RecordBatch]:
    """Its messages as Arrow batches of exactly this schema; `values` is that of the topic's values."""
    if wanted is not None:
        yield from range_batches(options, values, arrow_schema(schema), wanted)
    freeze_imports("task")
