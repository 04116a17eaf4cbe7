"""Values into typed columns: the official client's own encoders say what they should be."""

from __future__ import annotations

import datetime as dt
import io
import json
import struct
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from geminga.pipeline.values.avro_checks import Check
from geminga.pipeline.values.avro_shapes import SchemaMismatch, shape_of
from geminga.pipeline.values.decoding import Readable, json_values
from geminga.pipeline.values.primitive_values import primitives
from geminga.pipeline.values.schemas import TopicSchema, value_fields
from geminga.wire import pulsar_pb2 as pb
from tests.pipeline.values.avro_subset import in_numbers

TYPE = pb.Schema.Type
INNER = {"type": "record", "name": "In", "fields": [{"name": "x", "type": "bytes"}]}
RECORD = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "number", "type": ["null", "int"]},
        {"name": "colour", "type": {"type": "enum", "name": "Colour", "symbols": ["red", "blue"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "sizes", "type": {"type": "map", "values": "double"}},
        {"name": "when", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "inner", "type": ["null", INNER]},
    ],
}


@pytest.mark.parametrize(
    ("kind", "encoded", "value"),
    [
        (TYPE.String, "grün".encode(), "grün"),
        (TYPE.Bool, b"\x01", True),
        (TYPE.Int8, struct.pack(">b", -5), -5),
        (TYPE.Int16, struct.pack(">h", -500), -500),
        (TYPE.Int32, struct.pack(">i", -70_000), -70_000),
        (TYPE.Int64, struct.pack(">q", 1 << 40), 1 << 40),
        (TYPE.Float, struct.pack(">f", 0.5), 0.5),
        (TYPE.Double, struct.pack(">d", 0.1), 0.1),
        (TYPE.Timestamp, struct.pack(">q", 1500), dt.datetime(1970, 1, 1, 0, 0, 1, 500_000, dt.UTC)),
        (TYPE.Date, struct.pack(">q", -1), dt.date(1969, 12, 31)),
        (TYPE.Time, struct.pack(">q", 1500), 1500),
        (TYPE.LocalTime, struct.pack(">q", 7), 7),
        (TYPE.LocalDate, struct.pack(">q", 20_000), dt.date(2024, 10, 4)),
        (TYPE.Instant, struct.pack(">qi", 1, 7000), dt.datetime(1970, 1, 1, 0, 0, 1, 7, dt.UTC)),
        (TYPE.Instant, struct.pack(">qi", -1, 7000), dt.datetime(1969, 12, 31, 23, 59, 59, 7, dt.UTC)),
        (TYPE.LocalDateTime, struct.pack(">qq", 1, 7000), dt.datetime(1970, 1, 2, 0, 0, 0, 7)),
        (TYPE.LocalDateTime, struct.pack(">qq", -1, 7000), dt.datetime(1969, 12, 31, 0, 0, 0, 7)),
    ],
)
def test_primitives(kind: int, encoded: bytes, value: Any) -> None:
    column = primitives(kind, pa.array([encoded, None, encoded], pa.binary()))
    assert column.to_pylist() == [value, None, value]
    assert {"value": column.type} == value_fields(TopicSchema(kind))


def test_a_number_of_a_wrong_size_is_refused() -> None:
    with pytest.raises(SchemaMismatch, match="a value of 1 bytes where the schema says 4"):
        primitives(TYPE.Int32, pa.array([b"\0\0\0\1", b"\1"], pa.binary()))


def test_a_record_has_a_column_for_each_field() -> None:
    fields = value_fields(TopicSchema(TYPE.Avro, json.dumps(RECORD).encode()))
    assert fields == {
        "number": pa.int32(),
        "colour": pa.string(),
        "tags": pa.list_(pa.string()),
        "sizes": pa.map_(pa.string(), pa.float64()),
        "when": pa.timestamp("us", tz="UTC"),
        "inner": pa.struct([("x", pa.binary())]),
    }


def test_what_has_no_column_type_is_refused() -> None:
    recursive = {"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]}
    for definition in (recursive, "Unknown", {"type": "record", "name": "R"}):
        with pytest.raises(SchemaMismatch, match="rawValue=true"):
            shape_of(definition)
    wide = {"type": "bytes", "logicalType": "decimal", "precision": 39}
    with pytest.raises(SchemaMismatch, match="39 digits"):
        shape_of(wide)


def test_json_records_with_missing_and_more_fields() -> None:
    kind = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])
    raw = pa.array([b'{"a": 1,\n "b": ["x"]}', b'{"c": {"d": 2}}', b'{"a": null}'], pa.binary())
    assert json_values(raw, kind).to_pylist() == [
        {"a": 1, "b": ["x"]}, {"a": None, "b": None}, {"a": None, "b": None}
    ]  # fmt: skip
    with_null = pa.array([b'{"a": 1}', None], pa.binary())
    assert json_values(with_null, kind).to_pylist() == [{"a": 1, "b": None}, None]
    for wrong in (b"nonsense", b'{"a": "text"}'):
        with pytest.raises(SchemaMismatch):
            json_values(pa.array([b'{"a": 1}', wrong], pa.binary()), kind)


def test_avro_of_an_older_schema_is_resolved() -> None:
    from geminga.pipeline.errors import Access
    from geminga.pipeline.values.decoding import ValueDecoder

    schema = TopicSchema(TYPE.Avro, json.dumps(RECORD).encode())
    older = {
        "type": "record",
        "name": "Order",
        "fields": [f for f in RECORD["fields"] if f["name"] != "number"],
    }  # type: ignore[index]
    newer = json.loads(json.dumps(RECORD))
    newer["fields"][0]["default"] = None
    schema = TopicSchema(TYPE.Avro, json.dumps(newer).encode())
    when = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    row = {"colour": "blue", "tags": ["a"], "sizes": {"s": 1.5}, "when": when, "inner": {"x": b"y"}}
    encoded = [io.BytesIO(), io.BytesIO()]
    fastavro.schemaless_writer(encoded[0], fastavro.parse_schema(older), row)
    fastavro.schemaless_writer(encoded[1], fastavro.parse_schema(newer), row | {"number": 7})
    decoder = ValueDecoder(
        Access("pulsar://nowhere"), "t", schema, pa.schema(list(value_fields(schema).items()))
    )
    parsed = fastavro.parse_schema(older)
    decoder._writers[b"v0", None] = Readable(parsed, parsed, Check(parsed))
    kind = pa.struct(list(value_fields(schema).items()))
    raw = pa.array([each.getvalue() for each in encoded], pa.binary())
    found = decoder._avro(schema, raw, kind, [(b"v0", np.array([0])), (None, np.array([1]))]).to_pylist()
    assert [each["number"] for each in found] == [None, 7]
    assert found[0]["inner"] == {"x": b"y"}
    with pytest.raises(SchemaMismatch, match="it ends too early"):
        decoder._avro(schema, pa.array([b"\x00"], pa.binary()), kind, [(None, np.array([0]))])


def test_a_pair_has_two_schemas() -> None:
    definition = (
        struct.pack(">i", 0) + struct.pack(">i", len(json.dumps(RECORD))) + json.dumps(RECORD).encode()
    )
    properties = {"key.schema.type": "INT32", "value.schema.type": "AVRO", "kv.encoding.type": "SEPARATED"}
    schema = TopicSchema(TYPE.KeyValue, definition, properties)
    assert schema.separated
    fields = value_fields(schema)
    assert list(fields) == ["key", "value"]
    assert fields["key"] == pa.int32()
    assert fields["value"].num_fields == 6


def times_in_json(kind: Any, *values: str) -> list[Any]:
    """In one column, and each in a column of its own, which is not read by rows of another form."""
    definition = {"type": "record", "name": "R", "fields": [{"name": "f", "type": ["null", kind]}]}
    shape = shape_of(definition)
    docs = [f'{{"f": {value}}}'.encode() for value in values]
    together = in_numbers(json_values(pa.array(docs, pa.binary()), shape.arrow, shape))
    alone = [in_numbers(json_values(pa.array([doc]), shape.arrow, shape)) for doc in docs]
    assert [[each] for each in together] == alone
    return [row["f"] for row in together]


def test_times_in_json_are_read_in_columns_as_row_by_row() -> None:
    texts = [
        *('"2023-11-14T22:13:20.001+00:00"', '"2023-11-14T22:13:20.001Z"', '"2023-11-15T00:13:20.001+02:00"'),
        *('"2023-11-14T22:13:20.001"', "null", '"20231114T221320.001Z"'),
    ]
    when = 1_700_000_000_001_000
    for unit, number in (("millis", "1700000000001"), ("micros", "1700000000001000")):
        kind = {"type": "long", "logicalType": f"timestamp-{unit}"}
        assert times_in_json(kind, *texts[:5]) == [when] * 4 + [None]
        assert times_in_json(kind, *texts, number) == [when] * 4 + [None, when, when]
        assert times_in_json(kind, "null", number, f"{number}.0") == [None, when, when]
        assert times_in_json(kind, number, "null", number) == [when, None, when]
        factor = 1000 if unit == "millis" else 1
        assert times_in_json(kind, "253402300800000", number) == [253402300800000 * factor, when]
        last = (2**63 - 1) // factor * factor
        assert times_in_json(kind, "9223372036854775807", number) == [last, when]
        with pytest.raises(SchemaMismatch):
            times_in_json(kind, '"0000-01-01T00:00:00Z"')
    day = {"type": "int", "logicalType": "date"}
    assert times_in_json(day, '"2024-05-06"', "null", '"0001-01-01"') == [
        19_849,
        None,
        -719_162,
    ]
    assert times_in_json(day, "19849", '"2024-05-06"', '"20240506"', "2932897") == [*[19_849] * 3, 2_932_897]
    with pytest.raises(SchemaMismatch):
        times_in_json(day, "2147483648")


def test_json_that_one_parser_refuses_is_left_to_the_other() -> None:
    shape = shape_of({"type": "record", "name": "R", "fields": [{"name": "m", "type": {"type": "map",
                      "values": "double"}}]})  # fmt: skip
    raw = pa.array([b'{"m": {"a": 1e400, "b": 2, "c": 0.1}}', b'\xef\xbb\xbf{"m": {}}', b'{"m": {"a": NaN}}'])
    first, second, third = json_values(raw, shape.arrow, shape).to_pylist()
    assert first == {"m": [("a", float("inf")), ("b", 2.0), ("c", 0.1)]}
    assert second == {"m": []}
    assert third["m"][0][1] != third["m"][0][1]
