"""The data source `pulsar`: Spark's side of reading and writing topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.types import StructType

from geminga.pipeline.arrow.table import check_wanted, table_schema, values_of
from geminga.pipeline.errors import SET_RAW_VALUE, BadOption, PipelineError
from geminga.pipeline.spark.api import arrow_schema, spark_schema
from geminga.pipeline.spark.failures import in_own_words
from geminga.pipeline.spark.scans.provider import PUSHES_FILTERS
from geminga.pipeline.spark.scans.pushdown import condition_of
from geminga.pipeline.spark.sink import BatchWriter, StreamWriter
from geminga.pipeline.spark.splits import Split, read_split
from geminga.pipeline.spark.stream import StreamReader
from geminga.pipeline.topics.options import Options, parse_options
from geminga.pipeline.topics.planning import narrowed, plan_batch
from geminga.pipeline.topics.pruning import EVERYTHING, Pruning
from geminga.pipeline.values.avro_shapes import SchemaMismatch
from geminga.pipeline.values.schemas import TopicSchema

NAME = "pulsar"


class PulsarSource(DataSource):
    """`spark.read.format("pulsar")` and its three siblings; docs/pipeline.md tells the options."""

    @classmethod
    def name(cls) -> str:
        return NAME

    @in_own_words
    def schema(self) -> StructType:
        options = parse_options(self.options)
        found = table_schema(options, values_of(options))
        _check_names(found)
        return spark_schema(found)

    @in_own_words
    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_options(self.options)
        values = values_of(options)
        check_wanted(options, arrow_schema(schema), values)
        pushes = self.options.get(PUSHES_FILTERS) == "true"
        return (FilteringReader if pushes else BatchReader)(options, values, schema)

    @in_own_words
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse_options(self.options)
        if options.is_bounded:
            raise BadOption("endingOffsets and endingTime are for batch queries: a stream has no end")
        values = values_of(options)
        check_wanted(options, arrow_schema(schema), values)
        return StreamReader(options, values, schema)

    @in_own_words
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Refuses `overwrite`: messages of a topic cannot be replaced, only appended to."""
        if overwrite:
            raise PipelineError("a topic cannot be overwritten; use mode('append')")
        return BatchWriter(parse_options(self.options), schema)

    @in_own_words
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return StreamWriter(parse_options(self.options), schema)


class BatchReader(DataSourceReader):
    def __init__(self, options: Options, values: TopicSchema, schema: StructType) -> None:
        self._options = options
        self._values = values
        self._schema = schema
        self._pruning = EVERYTHING

    @in_own_words
    def partitions(self) -> Sequence[InputPartition]:
        return [Split(wanted) for wanted in plan_batch(self._options, self._pruning)] or [Split(None)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Split)
        return read_split(narrowed(self._options), self._values, self._schema, partition.wanted)


class FilteringReader(BatchReader):
    """Leaves out what the filters of the query exclude. Only where no other scan reads by the same plan:
    Spark refuses it otherwise unless told not to, and would then give wrong results.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterator[Filter]:
        """Those that Spark has to evaluate."""
        found = [(each, condition_of(each)) for each in filters]
        self._pruning = Pruning.of(
            [condition for _, condition in found if condition is not None],
            self._options.publish_times_apart_ms,
        )
        return iter([each for each, condition in found if condition is None or not condition.is_exact])


def _check_names(fields: Iterable[pa.Field], inside: str = "") -> None:
    """Raises `SchemaMismatch` for two names that Spark takes for one, since it ignores their case."""
    known: dict[str, str] = {}
    for each in fields:
        name = f"{inside}{each.name}"
        other = known.setdefault(each.name.lower(), name)
        if other != name:
            raise SchemaMismatch(
                f"fields {other} and {name} differ by case alone, which Spark cannot tell apart: name the "
                "one that you need with .schema(...), or ",
                SET_RAW_VALUE,
                " to get bytes",
            )
        kind = each.type
        while pa.types.is_list(kind) or pa.types.is_map(kind):
            kind = kind.value_type if pa.types.is_list(kind) else kind.item_type
        if pa.types.is_struct(kind):
            _check_names(kind, f"{name}.")
