"""The columns of a topic, and the batches of a range of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from geminga.pipeline.columns.columns import METADATA_COLUMNS, MORE_COLUMNS, VALUE, ColumnMaker, column_names
from geminga.pipeline.errors import SET_RAW_VALUE, BadOption
from geminga.pipeline.topics.options import Options
from geminga.pipeline.topics.planning import partitions, topics_of
from geminga.pipeline.topics.reading import Range
from geminga.pipeline.topics.rows import read_range
from geminga.pipeline.values.avro_shapes import SchemaMismatch
from geminga.pipeline.values.decoding import ValueDecoder
from geminga.pipeline.values.schemas import TopicSchema, schema_of, value_fields


def values_of(options: Options) -> TopicSchema:
    """The types of a topic's values, from the schema registry; waits for topics if the options say so.
    Raises `PipelineError`.
    """
    if options.raw_value or options.allow_different_schemas:
        return TopicSchema()
    if options.wait_for_topic:
        partitions(options)  # a topic that is not there yet has no schema yet
    return schema_of(options.access, topics_of(options))


def table_schema(options: Options, values: TopicSchema) -> pa.Schema:
    """The columns of the values, the metadata, and those of the option `columns`. Raises `SchemaMismatch` if
    two have one name.
    """
    fields = value_fields(values)
    beside = column_names(options.more_columns)
    if fields.keys() & beside.keys():
        raise SchemaMismatch(
            f"fields of the values have the names {', '.join(fields.keys() & beside.keys())}, which "
            "columns beside them have too; ",
            SET_RAW_VALUE,
            " to get bytes",
        )
    return pa.schema(list((fields | beside).items()))


def chosen_schema(names: Sequence[str], values: TopicSchema) -> pa.Schema:
    """Only these columns, in this order. Raises `BadOption`."""
    known = value_fields(values) | METADATA_COLUMNS | MORE_COLUMNS
    if not names:  # Arrow loses the number of rows of a batch without columns
        raise BadOption("columns names none; leave it out for all, or name one of " + ", ".join(known))
    for name in names:
        if name not in known:
            raise BadOption(f"columns: {name!r} is unknown; the topic has {', '.join(known)}")
    return pa.schema([(name, known[name]) for name in dict.fromkeys(names)])


def check_wanted(names: Sequence[str], values: TopicSchema) -> None:
    """Raises `BadOption` if the user's own schema has unknown columns."""
    known = [*value_fields(values), *METADATA_COLUMNS, *MORE_COLUMNS]
    others = [name for name in names if name not in known and name != VALUE]
    if others:
        raise BadOption(f"schema(...) has the column {others[0]!r}; a topic here has {', '.join(known)}")


def range_batches(
    options: Options, values: TopicSchema, schema: pa.Schema, wanted: Range
) -> Iterator[pa.RecordBatch]:
    """The messages of a range, in order, as batches of exactly this schema; nothing is decoded for columns
    that it lacks. Raises `PipelineError`.
    """
    decoder = None if values.is_raw else ValueDecoder(options.access, wanted.topic, values, schema)
    maker = ColumnMaker(wanted.topic, schema, decoder)
    yield from read_range(options.access, wanted, maker, poll_timeout_s=options.poll_timeout_s)
