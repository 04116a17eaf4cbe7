"""Values and schemas that somebody made up: columns, or an error that says what to do; soon, in any case."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from geminga.pipeline.errors import Access
from geminga.pipeline.values.avro_cursor import REASONS
from geminga.pipeline.values.avro_shapes import BadValue, SchemaMismatch, shape_of
from geminga.pipeline.values.decoding import ValueDecoder, _readable, json_values
from geminga.pipeline.values.schemas import TopicSchema, value_fields
from geminga.wire import pulsar_pb2 as pb

TYPE = pb.Schema.Type
RECORD: dict[str, Any] = {
    "type": "record",
    "name": "R",
    "namespace": "a.b",
    "fields": [
        {"name": "i", "type": ["null", "int"]},
        {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "m", "type": {"type": "map", "values": "string"}},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A"]}},
        {"name": "f", "type": {"type": "fixed", "name": "F", "size": 3}},
        {"name": "u", "type": ["null", "string", {"type": "record", "name": "S", "fields": []}]},
    ],
}


def from_json(*docs: bytes) -> list[dict[str, Any]]:
    shape = shape_of({"type": "record", "name": "R", "fields": RECORD["fields"][:2]})
    found: list[dict[str, Any]] = json_values(pa.array(docs, pa.binary()), shape.arrow, shape).to_pylist()
    return found


@pytest.mark.parametrize(
    "doc",
    [
        b'{"i":1e999999999}',
        b'{"t":-1e999999999}',
        b'{"i":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"i":"\\ud800"}',
        b"\xff\xfe",
        b"",
    ],
)
def test_json_that_no_column_takes_is_refused_at_once(doc: bytes) -> None:
    with pytest.raises(SchemaMismatch, match="not JSON of its schema|does not fit the column type"):
        from_json(b'{"i":1}', doc)


@pytest.mark.parametrize("text", [b"\xff", b"\xed\xa0\x80", b"\xc0\x80"])
def test_json_that_is_not_utf_8_is_refused(text: bytes) -> None:
    shape = shape_of({"type": "record", "name": "R", "fields": [{"name": "s", "type": "string"}]})
    for doc in (b'{"s":"%s"}' % text, b'{"s":"a","more":"%s"}' % text):
        with pytest.raises(BadValue, match="not JSON of its schema"):
            json_values(pa.array([b'{"s":"good"}', doc], pa.binary()), shape.arrow, shape)


def test_integers_may_have_a_point() -> None:
    assert [row["i"] for row in from_json(b'{"i":1.0}', b'{"i":2e2}', b'{"zz":{"i":5}}')] == [1, 200, None]


ODD: tuple[Any, ...] = (
    *(None, 1, -1, 10**9, 1.5, True, "int", "record", "nope", "decimal", "é", "R", "a.b.R", [], {}),
    *(["null"], ["int", "int"], {"type": "array"}, {"type": "fixed", "name": "Z"}),
)


def places_in(definition: Any, *path: Any) -> list[tuple[Any, ...]]:
    keys = definition.keys() if isinstance(definition, dict) else range(len(definition))
    found = []
    for key in keys:
        found.append((*path, key))
        if isinstance(definition[key], dict | list):
            found += places_in(definition[key], *path, key)
    return found


def test_definitions_that_mean_nothing_are_refused() -> None:
    source = random.Random(5)
    refused = []
    for place in places_in(RECORD):
        for odd in source.sample(ODD, 6):
            definition = json.loads(json.dumps(RECORD))
            part = definition
            for key in place[:-1]:
                part = part[key]
            part[place[-1]] = odd
            schema = TopicSchema(TYPE.Avro, json.dumps(definition).encode())
            try:
                fields = value_fields(schema)
                decoder = ValueDecoder(Access("pulsar://x"), "t", schema, pa.schema(list(fields.items())))
                values = pa.array([b"\x00\x02"], pa.binary())
                decoder._avro(schema, values, pa.struct(list(fields.items())), [(None, np.arange(1))])
            except BadValue:
                continue  # the definition means something, which these bytes are not
            except SchemaMismatch as error:
                refused.append(str(error))
    assert len(refused) > 50
    assert [text for text in refused if "rawValue" not in text] == []
    with pytest.raises(SchemaMismatch, match="rawValue"):
        value_fields(TopicSchema(TYPE.Avro, b"[" * 100_000))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "5", '{"a":1}', "[" * 100_000])
def test_properties_of_a_pair_that_are_no_texts_count_for_nothing(text: str) -> None:
    schema = TopicSchema(
        TYPE.KeyValue, b"\0\0\0\0" * 2, {"key.schema.type": "INT32", "key.schema.properties": text}
    )
    key, value = schema.parts()
    assert (key.kind, dict(key.properties), value.is_raw) == (TYPE.Int32, {}, True)


NO_BYTES: tuple[Any, ...] = (
    "null",
    {"type": "record", "name": "Empty", "fields": [{"name": "n", "type": "null"}]},
    {"type": "fixed", "name": "F", "size": 0},
)


@pytest.mark.parametrize("item", NO_BYTES)
@pytest.mark.parametrize("wanted", ["i", "many"])
def test_a_value_alone_has_no_million_items_that_take_no_bytes(item: Any, wanted: str) -> None:
    """Fastavro would make as many as the value says, also of a field that is not asked for."""
    fields = [{"name": "i", "type": "int"}, {"name": "many", "type": {"type": "array", "items": item}}]
    definition = {"type": "record", "name": "R", "fields": fields}
    schema = TopicSchema(TYPE.Avro, json.dumps(definition).encode())
    kind = pa.struct([(wanted, value_fields(schema)[wanted])])
    decoder = ValueDecoder(Access("pulsar://x"), "t", schema, pa.schema(list(kind)))

    def decoded(count: bytes) -> Any:
        values = pa.array([b"\x02" + count + b"\0"], pa.binary())
        return decoder._avro(schema, values, kind, [(None, np.arange(1))])

    with pytest.raises(BadValue, match="too many items that take no bytes"):
        decoded(b"\x80\x80\x80\x01")
    assert len(decoded(b"\x06")) == 1


def record_of(*fields: Any) -> Any:
    made = [{"name": f"f{index}", "type": kind} for index, kind in enumerate(fields)]
    return {"type": "record", "name": "R", "fields": made}


def avro(definition: Any, *values: bytes, wanted: tuple[str, ...] | None = None) -> list[Any]:
    """Values that were written by `definition`; `wanted`: fields of a record, None: all."""
    schema = TopicSchema(TYPE.Avro, json.dumps(definition).encode())
    kind = pa.struct([(n, t) for n, t in value_fields(schema).items() if wanted is None or n in wanted])
    decoder = ValueDecoder(Access("pulsar://x"), "t", schema, pa.schema(list(kind)))
    raw = pa.array(values, pa.binary())
    found: list[Any] = decoder._avro(schema, raw, kind, [(None, np.arange(len(raw)))]).to_pylist()
    return found


ELEVEN = b"\x82" + b"\x80" * 9 + b"\x00"
"""A number of eleven bytes, whose lowest bits are those of 1."""
LEAST = b"\xff" * 9 + b"\x01"
"""The number -2^63."""
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
ITEM = {"type": "record", "name": "I", "fields": [{"name": "n", "type": "null"}]}
DAMAGED: list[tuple[Any, bytes]] = [
    (ENUM, b"\x01"),  # -1
    (ENUM, b"\x04"),
    (["null", "int"], b"\x01\x02"),
    (["null", "int"], b"\x03"),  # -2
    (["null", "int", "string"], b"\x01\x02a"),
    ("int", ELEVEN),
    ("long", ELEVEN),
    ("string", ELEVEN + b"a"),
    ({"type": "array", "items": "int"}, LEAST + b"\x00\x00"),
    ({"type": "array", "items": ENUM}, b"\x02\x01\x00"),
    ({"type": "map", "values": "int"}, LEAST + b"\x00\x00"),
    ({"type": "array", "items": "null"}, b"\x80\x80\x80\x80\x80\x80\x01\x00"),  # 2^41
    ({"type": "array", "items": ITEM}, b"\x80\x80\x80\x80\x80\x80\x01\x00"),
    ({"type": "array", "items": ITEM}, b"\x80\x08" * 3 + b"\x00"),
]


@pytest.mark.parametrize("rows", [1, 5, 47, 48, 500])
@pytest.mark.parametrize("wanted", [("f0", "f1"), ("f1",)])
@pytest.mark.parametrize(("kind", "value"), DAMAGED)
def test_a_value_is_judged_alone_as_among_many(
    kind: Any, value: bytes, wanted: tuple[str, ...], rows: int
) -> None:
    """Also of a field that is not asked for."""
    with pytest.raises(BadValue) as found:
        avro(record_of(kind, "int"), *[value + b"\x02"] * rows, wanted=wanted)
    assert any(str(found.value) == reason for reason in REASONS.values())


LONG = {"type": "array", "items": ["null", ENUM]}


def test_damage_in_an_array_that_is_longer_than_others_is_found() -> None:
    long = b"\x80\x7d" + b"\x02\x00" * 7999 + b"\x02\x01" + b"\x00"
    fine = long[:-2] + b"\x00\x00"
    assert len(avro(record_of(LONG), *[b"\x00"] * 60, fine)[-1]["f0"]) == 8000
    with pytest.raises(BadValue, match="an enum has no such symbol"):
        avro(record_of(LONG), *[b"\x00"] * 60, long)
    with pytest.raises(BadValue, match="an enum has no such symbol"):
        avro(record_of(LONG), long)


TREE = {
    "type": "record",
    "name": "T",
    "fields": [{"name": "e", "type": ENUM}, {"name": "next", "type": ["null", "T"]}],
}


@pytest.mark.parametrize("rows", [1, 60])
def test_damage_in_a_record_that_contains_itself_is_found(rows: int) -> None:
    """As an older version had it: the latest has no such field, for which Spark has no type."""
    decoder, latest = older(record_of("int", TREE), record_of("int"))
    kind = pa.struct([("f0", pa.int32())])

    def decoded(tree: bytes) -> Any:
        raw = pa.array([b"\x0a" + tree] * rows, pa.binary())
        return decoder._avro(latest, raw, kind, [(b"1", np.arange(rows))]).to_pylist()

    assert decoded(b"\x00\x02" * 50 + b"\x02\x00") == [{"f0": 5}] * rows
    for tree in (b"\x00\x02\x01\x00", b"\x00\x01", b"\x00\x02\x00", b"\x00\x02" * 100_000 + b"\x00\x00"):
        with pytest.raises(BadValue, match="enum|union|too early|recursion"):
            decoded(tree)


def test_a_class_that_contains_itself_may_be_renamed() -> None:
    own = {**record_of("int", ["null", "R"]), "name": "R"}
    decoder, latest = older(own, {**record_of("int"), "name": "Renamed"})
    raw = pa.array([b"\x0a\x02\x02\x00"], pa.binary())
    found = decoder._avro(latest, raw, pa.struct([("f0", pa.int32())]), [(b"1", np.arange(1))])
    assert found.to_pylist() == [{"f0": 5}]


def older(writer: Any, reader: Any) -> tuple[ValueDecoder, TopicSchema]:
    """A decoder that knows version 1 of a topic's schema, and the latest."""
    latest = TopicSchema(TYPE.Avro, json.dumps(reader).encode())
    decoder = ValueDecoder(Access("pulsar://x"), "t", latest, pa.schema([("f0", pa.int32())]))
    known = decoder._of_version(TopicSchema(TYPE.Avro, json.dumps(writer).encode()), _readable(latest), None)
    decoder._writers[b"1", None] = known
    return decoder, latest
