"""The data source `pulsar`: Spark's side of reading and writing topics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from geminga.pipeline.columns import VALUE, ColumnMaker, column_names
from geminga.pipeline.options import Options, parse_options
from geminga.pipeline.planning import narrowed, plan_batch
from geminga.pipeline.reading import Range
from geminga.pipeline.rows import read_range

NAME = "pulsar"


class Split(InputPartition):
    """One range for one task."""

    def __init__(self, wanted: Range | None) -> None:
        super().__init__(wanted)
        self.wanted = wanted


class PulsarSource(DataSource):
    """`spark.read.format("pulsar")` and its three siblings; docs/pipeline.md tells the options."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        options = parse_options(self.options)
        fields = {VALUE: pa.binary()} | column_names(options.more_columns)
        return from_arrow_schema(pa.schema(list(fields.items())))

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(parse_options(self.options), schema)


def read_split(options: Options, schema: StructType, wanted: Range | None) -> Iterator[pa.RecordBatch]:
    if wanted is None:
        return
    maker = ColumnMaker(wanted.topic, to_arrow_schema(schema, timezone="UTC"))
    yield from read_range(options.access, wanted, maker, poll_timeout_s=options.poll_timeout_s)


class BatchReader(DataSourceReader):
    def __init__(self, options: Options, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        splits = [Split(wanted) for wanted in plan_batch(self._options)]
        self._options = narrowed(self._options)
        return splits or [Split(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Split)
        return read_split(self._options, self._schema, partition.wanted)
