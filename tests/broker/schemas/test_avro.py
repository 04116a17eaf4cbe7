"""Avro schemas: what was recorded of a real broker for pairs of types, and the text that goes round."""

from __future__ import annotations

import json
from typing import Any

import pytest

from geminga.broker.schemas.avro import BRANCHES_MAX, SchemaParseError, are_equal, parse, pretty, to_json
from geminga.broker.schemas.resolution import can_read
from tests.e2e.operators.schema_recording import CASES, ENUM, FIXED, RECORDING, SCHEMAS, record

RECORDED = RECORDING.read().cases
AFTER = [name for name in CASES if name.startswith("after ")]


@pytest.mark.parametrize("case", AFTER)
def test_what_reads_what_is_as_recorded(case: str) -> None:
    texts = {one[1]: name for name, one in SCHEMAS.items() if one and one[0] == "Avro"}
    writer = parse(SCHEMAS[case.removeprefix("after ")][1])
    for step, (status, shown) in zip(CASES[case][2:], RECORDED[case][2:], strict=True):
        readable = status == 202 and shown["compatibility"]
        reader = step[2]["schema"]
        assert can_read(writer, parse(reader)) is readable, f"{case}: {texts[reader]}"


def test_a_recursive_record_reads_itself_and_what_grew_out_of_it() -> None:
    tree = {"name": "next", "type": ["null", "n.T"]}
    old = parse(record(tree, {"name": "v", "type": "int"}, name="T"))
    new = parse(
        record(tree, {"name": "v", "type": "long"}, {"name": "w", "type": "int", "default": 1}, name="T")
    )
    assert can_read(old, old)
    assert can_read(old, new)
    assert not can_read(new, old)


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ({"type": "int"}, "int", True),
        ({"type": "int", "logicalType": "date"}, "int", False),
        (ENUM, {**ENUM, "symbols": ["Y", "X"]}, False),
        ({**ENUM, "namespace": "n"}, {**ENUM, "name": "n.E"}, True),
        (["null", "int"], ["int", "null"], False),
        (FIXED, {**FIXED, "doc": "x"}, True),
    ],
)
def test_when_two_texts_are_one_schema(one: Any, other: Any, equal: bool) -> None:
    assert are_equal(parse(json.dumps(one)), parse(json.dumps(other))) is equal


def test_a_schema_is_printed_as_it_was_read() -> None:
    for _, text, *_ in (one for one in SCHEMAS.values() if one and one[0] == "Avro"):
        try:
            schema = parse(text)
        except SchemaParseError:
            continue
        assert are_equal(parse(json.dumps(to_json(schema))), schema)
        assert json.loads(pretty(schema)) == to_json(schema)
    assert pretty(parse(record())) == (
        '{\n  "type" : "record",\n  "name" : "R",\n  "namespace" : "n",\n  "fields" : [ ]\n}'
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "7",
        '{"type":"record","name":"R"}',
        '{"type":"record","name":"R","fields":[{"name":"a"}]}',
        '{"type":"record","name":"R","fields":[{"name":"a","type":"int"},{"name":"a","type":"int"}]}',
        '{"type":"array"}',
        '{"type":"fixed","name":"F"}',
        '{"type":"enum","name":"E"}',
        '["int","int"]',
        '["int",["null"]]',
        '"Unknown"',
        "[" * 5000,
        '{"type":"array","items":' * 200 + '"int"' + "}" * 200,
    ],
)
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(SchemaParseError):
        parse(text)


def test_a_long_chain_of_types_against_one_that_recurs_is_unreadable() -> None:
    def link(number: int) -> Any:
        fields = [{"name": "next", "type": f"L{number - 1}"}] if number else []
        return {"name": f"f{number}", "type": {"type": "record", "name": f"L{number}", "fields": fields}}

    chain = {"type": "record", "name": "R", "fields": [link(number) for number in range(1500)]}
    loop = {"name": "next", "type": ["null", "Q"], "default": None}
    inner = {"type": "record", "name": "Q", "fields": [loop]}
    reader = {"type": "record", "name": "R", "fields": [{"name": "f1499", "type": inner}]}
    assert not can_read(parse(json.dumps(chain)), parse(json.dumps(reader)))


def test_a_union_has_no_more_types_than_can_be_compared_in_no_time() -> None:
    def union(types: int) -> str:
        return json.dumps([{"type": "fixed", "name": f"F{n}", "size": 1} for n in range(types)])

    assert len(parse(union(BRANCHES_MAX)).branches) == BRANCHES_MAX
    with pytest.raises(SchemaParseError, match="1001"):
        parse(union(BRANCHES_MAX + 1))
