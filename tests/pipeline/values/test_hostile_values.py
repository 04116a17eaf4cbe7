"""Values and schemas that somebody made up: columns, or an error that says what to do; soon, in any case."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from geminga.pipeline.errors import Access
from geminga.pipeline.values.avro_shapes import BadValue, SchemaMismatch, shape_of
from geminga.pipeline.values.decoding import ValueDecoder, json_values
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
