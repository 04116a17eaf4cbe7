"""Which fields of a written record may be null is what the topic's schema says."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from geminga.pipeline.values.avro_writing import BadColumns
from geminga.pipeline.writing.topic_nulls import as_topic_has, in_columns
from tests.e2e.admin_http import Admin, topic_path
from tests.pipeline.conftest import Topics

REQUIRED_ITEMS = [
    {"name": "items", "type": {"type": "array", "items": "int"}},
    {"name": "sizes", "type": {"type": "map", "values": "int"}},
    {"name": "inner", "type": {"type": "record", "name": "I", "fields": [{"name": "n", "type": "long"}]}},
    {"name": "either", "type": ["int", "string"]},
]


def define(admin: Admin, topic: str, fields: list[dict[str, Any]]) -> None:
    schema = json.dumps({"type": "record", "name": "topLevelRecord", "fields": fields})
    path = f"/admin/v2/schemas/{topic_path(topic).partition('/')[2]}/schema"
    assert admin.post(path, {"type": "AVRO", "schema": schema, "properties": {}}).status == 200


def test_nulls_at_any_depth_are_those_of_the_topic(admin: Admin, topics: Topics, topic: str) -> None:
    define(admin, topic, REQUIRED_ITEMS)
    given = pa.schema(
        [
            ("items", pa.list_(pa.int32())),
            ("sizes", pa.map_(pa.string(), pa.int32())),
            ("inner", pa.struct([("n", pa.int64())])),
            pa.field("either", pa.int32(), nullable=False),
            ("more", pa.string()),
        ]
    )
    columns = as_topic_has(topics.options(topic), given)
    assert [field.nullable for field in columns] == [False, False, False, False, True]
    assert not columns.field("items").type.value_field.nullable
    assert not columns.field("sizes").type.item_field.nullable
    assert not columns.field("inner").type.field("n").nullable
    rows: list[dict[str, Any]] = [
        {"items": [1], "sizes": [("k", 2)], "inner": {"n": 3}, "either": 4, "more": None},
        {"items": [], "sizes": [], "inner": {"n": 5}, "either": 6, "more": "m"},
    ]
    whole = pa.RecordBatch.from_pylist(rows * 3, given)
    assert in_columns(whole.slice(1, 4), columns).to_pylist() == whole.slice(1, 4).to_pylist()
    for name, value in (("items", [1, None]), ("sizes", [("k", None)]), ("inner", {"n": None})):
        bad = pa.RecordBatch.from_pylist([*rows, rows[0] | {name: value}], given)
        with pytest.raises(BadColumns, match=f"column '{name}' has a null in .*no place"):
            in_columns(bad, columns)


def test_a_schema_that_cannot_be_read_leaves_the_columns(admin: Admin, topics: Topics, topic: str) -> None:
    again = {"name": "next", "type": ["null", "topLevelRecord"], "default": None}
    define(admin, topic, [{"name": "n", "type": "int"}, again])
    given = pa.schema([("n", pa.int32()), ("t", pa.string())])
    assert as_topic_has(topics.options(topic), given) == given
