"""The parts of the oracle that need no Java: what it draws, the form of values, what it calls different."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
from fastavro.schema import parse_schema

from tests.pipeline.oracle.canonical import canonical, comparable_id, differences
from tests.pipeline.oracle.plans import plans

TIME = dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)


def definitions(version: dict[str, Any]) -> list[Any]:
    parts = [version, version.get("key", {}), version.get("value", {})]
    return [part["definition"] for part in parts if "definition" in part]


def test_what_is_drawn_follows_from_the_seed_and_is_avro() -> None:
    drawn = plans(7, 60, "public/default")
    assert drawn == plans(7, 60, "public/default")
    assert drawn[:10] == plans(7, 10, "public/default")
    assert drawn != plans(8, 60, "public/default")
    kinds = {version["kind"] for plan in drawn for version in plan["versions"]}
    assert {"AVRO", "JSON", "KEY_VALUE"} < kinds
    assert max(len(plan["versions"]) for plan in drawn) == 4
    for plan in drawn:
        texts = [json.dumps(version) for version in plan["versions"]]
        assert len(set(texts)) == len(texts)
        assert len(plan["rows"]) == len(texts)


def test_definitions_without_names_from_outside_a_namespace_are_read_by_fastavro() -> None:
    checked = 0
    for plan in plans(7, 60, "public/default"):
        for version in plan["versions"]:
            for definition in definitions(version):
                if "namespace" not in json.dumps(definition):
                    parse_schema(definition)
                    checked += 1
    assert checked > 30


def test_values_have_the_form_of_the_java_program() -> None:
    inner = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])
    for kind, values, expected in (
        (pa.float32(), [0.1, -0.0, None], ["f3dcccccd ", "f80000000 ", None]),
        (pa.float64(), [0.5, float("nan")], ["d3fe0000000000000 ", "d7ff8000000000000 "]),
    ):
        for found, start in zip(canonical(pa.array(values, kind)), expected, strict=True):
            assert found == start or str(found).startswith(str(start))
    assert canonical(pa.array([b"\xff", None])) == ["ff", None]
    assert canonical(pa.array([Decimal("1.50")], pa.decimal128(38, 2))) == ["1.50"]
    assert canonical(pa.array([TIME], pa.timestamp("us", tz="UTC"))) == [1_000_000]
    assert canonical(pa.array([TIME.date()])) == [0]
    assert canonical(pa.array([{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}], inner)) == [
        {"a": 1, "b": ["x"]},
        None,
        {"a": None, "b": None},
    ]
    maps = pa.array([[("z", 1), ("a", None)], None, []], pa.map_(pa.string(), pa.int64()))
    assert canonical(maps) == [[["a", None], ["z", 1]], None, []]
    assert canonical(maps.slice(1)) == [None, []]
    assert canonical(pa.array([[1], [2, 3]]).slice(1)) == [[2, 3]]


def test_what_java_says_more_of_an_id_is_left_out() -> None:
    assert comparable_id("080610001801") == "080610001801"
    assert comparable_id("0806100018013000") == "080610001801"
    assert comparable_id("0826100630003a06082610043000") == "08261006"
    assert comparable_id("0820100020013005") == "0820100020013005"


def test_differences_name_the_message_and_both_values() -> None:
    row = {"id": "08011002", "value": {"x": [1, 2], "y": "d0 0.0"}}
    same = {"id": "08011002", "value": {"x": [1, 2], "y": "d0 0"}}
    other = {"id": "08011002", "value": {"x": [1, True], "y": None}}
    place = (1, 2, -1, -1)
    assert list(differences({place: row}, {place: same})) == []
    found = sorted(differences({place: row}, {place: other}))
    assert found == [
        "(1, 2, -1, -1) id 08011002 .value.x[1]: Java 2, here true",
        '(1, 2, -1, -1) id 08011002 .value.y: Java "d0 0.0", here null',
    ]
    assert len(list(differences({place: row}, {}))) == 1
    assert len(list(differences({}, {place: row}))) == 1
