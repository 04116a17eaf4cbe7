"""What a task gets to read, and how it reads it."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from geminga.pipeline.columns.columns import ColumnMaker
from geminga.pipeline.spark.api import arrow_schema
from geminga.pipeline.topics.options import Options
from geminga.pipeline.topics.reading import Range
from geminga.pipeline.topics.rows import read_range
from geminga.pipeline.values.decoding import ValueDecoder
from geminga.pipeline.values.schemas import TopicSchema


class Split(InputPartition):
    """One range for one task; None reads nothing."""

    def __init__(self, wanted: Range | None) -> None:
        super().__init__(wanted)
        self.wanted = wanted


def read_split(
    options: Options, values: TopicSchema, schema: StructType, wanted: Range | None
) -> Iterator[pa.RecordBatch]:
    """Its messages as Arrow batches of exactly this schema; `values` is that of the topic's values."""
    if wanted is None:
        return
    columns = arrow_schema(schema)
    decoder = None if values.is_raw else ValueDecoder(options.access, wanted.topic, values, columns)
    maker = ColumnMaker(wanted.topic, columns, decoder)
    yield from read_range(options.access, wanted, maker, poll_timeout_s=options.poll_timeout_s)
