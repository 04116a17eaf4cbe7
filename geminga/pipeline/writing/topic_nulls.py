"""Which columns of a record may be null: what the topic's schema says, if it has one."""

from __future__ import annotations

import pyarrow as pa

from geminga.pipeline.client.connection import Connection
from geminga.pipeline.topics.options import Options
from geminga.pipeline.values.avro_shapes import SchemaMismatch, shape_of
from geminga.pipeline.values.avro_writing import BadColumns, with_nulls_of
from geminga.pipeline.values.schemas import definition_of, fetch_schema
from geminga.pipeline.values.value_encoding import ValueEncoder, value_encoder


def as_topic_has(options: Options, columns: pa.Schema) -> pa.Schema:
    """The columns of a record for one topic, with nulls where the topic's schema has them. Others are as they
    were: rows that choose their topics, pairs, a topic without a schema or with one of another kind, and
    `exactlyOnce`, whose rows have to be the same bytes when they are written again, whatever the topic has by
    then. Raises `PipelineError`.
    """
    topics = options.topics
    if options.exactly_once or options.key_value_encoding is not None or topics is None:
        return columns
    encoder: ValueEncoder = value_encoder(columns, options.value_schema)
    if encoder.definition is None or topics.pattern is not None or len(topics.names) != 1:
        return columns
    try:
        with Connection.open(options.access) as connection:
            schema = fetch_schema(connection, topics.names[0])
        if schema.kind != encoder.kind:
            return columns
        return with_nulls_of(columns, shape_of(definition_of(schema)))
    except SchemaMismatch:
        return columns  # it has what Spark cannot read; the registry decides whether this may be written


def in_columns(batch: pa.RecordBatch, columns: pa.Schema) -> pa.RecordBatch:
    """Raises `BadColumns` for a null deeper in a column where there is none in `columns`."""
    for column, field in zip(batch.columns, columns, strict=True):
        _check_inside(column, field.type, field.name)
    found = [column.cast(field.type) for column, field in zip(batch.columns, columns, strict=True)]
    return pa.RecordBatch.from_arrays(found, schema=columns)


def _check_inside(column: pa.Array, kind: pa.DataType, name: str) -> None:
    """Arrow's own cast does not look into lists and maps."""
    if not pa.types.is_nested(kind):
        return
    present = column.drop_null() if column.null_count else column
    if pa.types.is_struct(kind):
        parts = list(zip(present.flatten(), kind, strict=True))
    elif pa.types.is_map(kind):
        first, last = present.offsets[0].as_py(), present.offsets[len(present)].as_py()
        parts = [(present.items.slice(first, last - first), kind.item_field)]
    else:
        parts = [(present.flatten(), kind.value_field)]
    for part, field in parts:
        if part.null_count and not field.nullable:
            raise BadColumns(
                f"column {name!r} has a null in {field.name!r}, for which the topic's schema has no place; "
                "fill it, for example with coalesce"
            )
        _check_inside(part, field.type, name)
