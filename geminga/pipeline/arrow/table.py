"""The columns of a topic, and the batches of a range of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa

from geminga.pipeline.columns.columns import METADATA_COLUMNS, MORE_COLUMNS, VALUE, ColumnMaker, column_names
from geminga.pipeline.errors import SET_RAW_VALUE, BadOption
from geminga.pipeline.topics.options import Options
from geminga.pipeline.topics.planning import partitions, topics_of
from geminga.pipeline.topics.ranges import Range
from geminga.pipeline.topics.rows import read_range
from geminga.pipeline.values.avro_shapes import SchemaMismatch
from geminga.pipeline.values.decoding import ValueDecoder
from geminga.pipeline.values.rules import CORRUPT_RECORD
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
    """The columns of the values, with the one of bad records if it is named, the metadata, and those of the
    option `columns`. Raises `SchemaMismatch` if two have one name.
    """
    fields = value_fields(values)
    corrupt = options.rules.corrupt_column
    beside = ({} if corrupt is None else {corrupt: pa.binary()}) | column_names(options.more_columns)
    if fields.keys() & beside.keys():
        raise SchemaMismatch(
            f"fields of the values have the names {', '.join(fields.keys() & beside.keys())}, which "
            "columns beside them have too; ",
            SET_RAW_VALUE,
            " to get bytes",
        )
    return pa.schema(list((fields | beside).items()))


def chosen_schema(options: Options, names: Sequence[str], values: TopicSchema) -> pa.Schema:
    """Only these columns, in this order. Raises `BadOption`."""
    corrupt = options.rules.corrupt_column
    known = value_fields(values) | METADATA_COLUMNS | MORE_COLUMNS
    known |= {} if corrupt is None else {corrupt: pa.binary()}
    if not names:  # Arrow loses the number of rows of a batch without columns
        raise BadOption("columns names none; leave it out for all, or name one of " + ", ".join(known))
    for name in names:
        if name not in known:
            raise BadOption(f"columns: {name!r} is unknown; the topic has {', '.join(known)}")
    return pa.schema([(name, known[name]) for name in dict.fromkeys(names)])


def check_wanted(options: Options, wanted: pa.Schema, values: TopicSchema) -> None:
    """Raises `BadOption` if the user's own schema has unknown columns, or whole numbers for fractions."""
    known = value_fields(values) | METADATA_COLUMNS | MORE_COLUMNS
    for field in wanted:
        if field.name in known:
            cut = _cut(field.name, known[field.name], field.type)
            if cut is not None:
                name, there, here = cut
                raise BadOption(
                    f"schema(...) has {name} as {here}, and the topic has {there}, whose fractions would be "
                    f"lost: read it as {there}, and cast it in the query"
                )
        elif field.name not in (VALUE, _corrupt_column(options)):
            raise BadOption(f"schema(...) has the column {field.name!r}; a topic here has {', '.join(known)}")


def _cut(name: str, there: pa.DataType, here: pa.DataType) -> tuple[str, pa.DataType, pa.DataType] | None:
    """The first number in a column that has a fraction there, and none here: Arrow cuts it without a word."""
    if pa.types.is_struct(there) and pa.types.is_struct(here):
        for field in here:
            index = there.get_field_index(field.name)
            found = None if index < 0 else _cut(f"{name}.{field.name}", there.field(index).type, field.type)
            if found is not None:
                return found
        return None
    if pa.types.is_list(there) and pa.types.is_list(here):
        return _cut(f"{name}.element", there.value_type, here.value_type)
    if pa.types.is_map(there) and pa.types.is_map(here):
        return _cut(f"{name}.value", there.item_type, here.item_type)
    return (name, there, here) if pa.types.is_floating(there) and pa.types.is_integer(here) else None


def range_batches(
    options: Options, values: TopicSchema, schema: pa.Schema, wanted: Range
) -> Iterator[pa.RecordBatch]:
    """The messages of a range, in order, as batches of exactly this schema; nothing is decoded for columns
    that it lacks. Raises `PipelineError`.
    """
    rules = replace(options.rules, corrupt_column=_corrupt_column(options))
    if values.is_raw and rules.corrupt_column not in schema.names:
        maker = ColumnMaker(wanted.topic, schema)
    else:
        decoder = ValueDecoder(options.access, wanted.topic, values, schema, rules)
        maker = ColumnMaker(wanted.topic, schema, decoder, leaves_out=decoder.leaves_out)
    yield from read_range(options.access, wanted, maker, poll_timeout_s=options.poll_timeout_s)


def _corrupt_column(options: Options) -> str:
    """As in Spark's own sources, a schema of the user's may have it without the option."""
    return options.rules.corrupt_column or CORRUPT_RECORD
