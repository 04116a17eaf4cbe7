"""What of JSON is a value of its schema: what Jackson 2.16 takes as Pulsar's Java client sets it up, and it
refuses the rest. Each in columns as far as they go, and row by row.
"""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from geminga.pipeline.errors import Access
from geminga.pipeline.values.avro_shapes import BadValue, shape_of
from geminga.pipeline.values.decoding import ValueDecoder, json_values
from geminga.pipeline.values.schemas import TopicSchema
from geminga.wire import pulsar_pb2 as pb

ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
DATE = {"type": "int", "logicalType": "date"}
INTS = {"type": "array", "items": "int"}
MAP = {"type": "map", "values": "double"}
RECORD = {"type": "record", "name": "S", "fields": [{"name": "n", "type": "int"}]}


def record(kind: Any) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]}


def read(definition: Any, *docs: str, rows: bool = False, kind: pa.DataType | None = None) -> list[Any]:
    """`rows`: a map beside, which nothing in columns reads, makes it row by row."""
    if rows:
        more = {"name": "more", "type": ["null", {"type": "map", "values": "int"}]}
        definition = {**definition, "fields": [*definition["fields"], more]}
    shape = shape_of(definition)
    kind = kind or pa.struct([each for each in shape.arrow if each.name != "more"])
    raw = pa.array([doc.encode() for doc in docs], pa.binary())
    found: list[Any] = json_values(raw, kind, shape).to_pylist()
    return found


BY_ROW = pytest.mark.parametrize("rows", [False, True])


@BY_ROW
@pytest.mark.parametrize(
    ("doc", "found"),
    [
        ("[]", "an array"),
        ('""', "the text ''"),
        ("5", "the number 5"),
        ("false", "false"),
        ('[["a", 1]]', "an array"),
    ],
)
def test_what_is_no_object_is_no_record(doc: str, found: str, rows: bool) -> None:
    with pytest.raises(BadValue, match=f"it is {found.replace('[', '.')}, and the schema says record") as bad:
        read(record(["null", "int"]), '{"a": 1}', doc, '{"a": 2}', doc, rows=rows)
    assert bad.value.rows is not None
    assert bad.value.rows.tolist() == [1, 3]


@BY_ROW
@pytest.mark.parametrize(
    ("kind", "value", "says"),
    [
        ("double", "true", "field 'a' is true, and the schema says double"),
        ("float", "false", "field 'a' is false, and the schema says float"),
        (["float", "double"], "true", "field 'a' is true, and the schema says double"),
        ("int", "true", "field 'a' is true, and the schema says int"),
        ("long", "[]", "field 'a' is an array, and the schema says long"),
        ("boolean", '"x"', "field 'a' is the text 'x', and the schema says boolean"),
        ("string", "{}", "field 'a' is an object, and the schema says string"),
        (RECORD, "[]", "field 'a' is an array, and the schema says record"),
        (RECORD, '""', "field 'a' is the text '', and the schema says record"),
        (RECORD, '{"n": true}', "field 'a.n' is true, and the schema says int"),
        ({"type": "array", "items": RECORD}, "[[]]", "field 'a' is an array, and the schema says record"),
        ({"type": "array", "items": "double"}, "[true]", "field 'a' is true, and the schema says double"),
        (INTS, '""', "field 'a' is the text '', and the schema says array"),
        (INTS, "{}", "field 'a' is an object, and the schema says array"),
        (MAP, "[]", "field 'a' is an array, and the schema says map"),
        (MAP, '[["k", 1]]', "field 'a' is an array, and the schema says map"),
        (MAP, '{"k": true}', "field 'a' is true, and the schema says double"),
        (ENUM, '"C"', "field 'a' is the text 'C', and the schema says a symbol of the enum E"),
        (ENUM, "1", "field 'a' is the number 1, and the schema says a symbol of the enum E"),
        ({"type": "array", "items": ENUM}, '["A", "C"]', "field 'a' is the text 'C'"),
        (["int", "string"], "[]", "field 'a' is an array, and the schema says one of int, string"),
        (
            {"type": "int", "logicalType": "date"},
            '"x"',
            "field 'a' is the text 'x', and the schema says date",
        ),
        ("int", "3000000000", "field 'a' does not fit the column type int32"),
    ],
)
def test_values_of_other_types_are_bad(kind: Any, value: str, says: str, rows: bool) -> None:
    optional = kind if isinstance(kind, list) else ["null", kind]
    for of in (kind, optional):
        with pytest.raises(BadValue, match=says):
            read(record(of), '{"a": null}', f'{{"a": {value}}}', rows=rows)


@BY_ROW
@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        ("int", "1.9", 1),
        ("long", "-1.9", -1),
        (["int", "long"], "3000000000", 3_000_000_000),
        (["long", "int"], "3000000000", 3_000_000_000),
        ("float", "1e300", float("inf")),
        ("double", '"Infinity"', float("inf")),
        ("double", "1", 1.0),
        ("string", "1.50", "1.50"),
        (ENUM, '"B"', "B"),
        (INTS, "[1, 2.7]", [1, 2]),
        (INTS, "[]", []),
        (RECORD, "{}", {"n": None}),
        (RECORD, '{"n": 1, "unknown": []}', {"n": 1}),
        ("int", "null", None),
    ],
)
def test_what_jackson_takes_is_taken(kind: Any, value: str, wanted: Any, rows: bool) -> None:
    assert read(record(kind), f'{{"a": {value}, "unknown": true}}', rows=rows) == [{"a": wanted}]


def test_a_field_that_is_not_asked_for_is_not_looked_at() -> None:
    """As in columns, where the compiled reader leaves it out."""
    definition = record("int")
    definition["fields"].append({"name": "b", "type": RECORD})
    definition["fields"].append({"name": "c", "type": "int", "default": 7})
    doc = '{"a": %s, "b": {"n": []}}'
    kind = pa.struct([("a", pa.int32()), ("c", pa.int32())])
    for rows, value in ((False, "1"), (False, "1.5"), (True, "1")):
        assert read(definition, doc % value, kind=kind, rows=rows) == [{"a": 1, "c": 7}]


def test_a_default_that_is_not_of_its_type_is_left_as_it_is() -> None:
    """Of a definition of another client."""
    definition = record("long")
    definition["fields"].append({"name": "b", "type": "long", "default": 3.0})
    assert read(definition, '{"a": 1}') == [{"a": 1, "b": 3}]


def test_an_unknown_symbol_may_be_the_text_of_a_union() -> None:
    found = read(record([ENUM, "string"]), '{"a": "A"}', '{"a": "C"}')
    assert [each["a"] for each in found] == [
        {"member0": "A", "member1": None},
        {"member0": None, "member1": "C"},
    ]


def test_errors_of_avro_that_is_read_row_by_row_are_in_words() -> None:
    """They had the text of the decoder, with the address of an object."""
    definition = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "s", "type": "string"}, {"name": "n", "type": "double"}],
    }
    schema = TopicSchema(pb.Schema.Type.Avro, json.dumps(definition).encode())
    shape = shape_of(definition)
    decoder = ValueDecoder(Access("pulsar://unused:1"), "t", schema, pa.schema(list(shape.arrow)))
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, definition, {"s": "text", "n": 1.5})
    good = stream.getvalue()
    for wrong, says in (
        (good[:-1], "it ends too early"),
        (good[:3], "it ends too early"),
        (b"\x02\xff" + bytes(8), "text that is not UTF-8"),
    ):
        with pytest.raises(BadValue) as bad:
            decoder._avro(schema, pa.array([wrong], pa.binary()), shape.arrow, [(None, [0])])
        assert str(bad.value) == says
