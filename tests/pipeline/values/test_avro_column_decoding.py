"""AVRO in columns gives what fastavro gives row by row; what one refuses, the other does."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from geminga.pipeline.values.avro_columns import column_decoder
from geminga.pipeline.values.avro_cursor import (
    LEFT_OVER,
    LONG_NUMBER,
    NO_BRANCH,
    NO_SYMBOL,
    NO_TEXT,
    TOO_LARGE,
    TOO_MANY,
)
from geminga.pipeline.values.avro_shapes import SchemaMismatch
from geminga.pipeline.values.schemas import TopicSchema
from geminga.wire import pulsar_pb2 as pb
from tests.pipeline.values.avro_subset import Pair, Subset, bits, encoded, in_numbers, pair


@pytest.mark.parametrize("evolves", [False, True])
@pytest.mark.parametrize("seed", range(150))
def test_columns_are_what_rows_are(seed: int, evolves: bool) -> None:
    source = Subset(seed, evolves=evolves)
    made = source.record(3)
    values: list[bytes | None] = list(encoded(made.writer, [made.make() for _ in range(60)]))
    values[source.random.randrange(60)] = None
    raw = pa.concat_arrays([pa.array([b"other"], pa.binary()), pa.array(values, pa.binary())]).slice(1)
    names = [each["name"] for each in made.reader["fields"]]
    for wanted in (None, frozenset(source.random.sample(names, len(names) // 2))):
        both = pair(made.writer, made.reader, wanted)
        found, expected = both.columns(raw), both.rows(*values)
        assert not found.codes.any()
        assert found.column.type == expected.type
        assert bits(found.column.to_pylist()) == bits(expected.to_pylist())
        gone = values.index(None)
        assert all(
            found.column.field(index)[gone].as_py() is None for index in range(found.column.type.num_fields)
        )


@pytest.mark.parametrize("seed", range(100))
def test_whole_values_are_columns_too(seed: int) -> None:
    source = Subset(seed, evolves=seed % 2 == 0)
    made = source.any(2)
    values = encoded(made.writer, [made.make() for _ in range(40)])
    both = pair(made.writer, made.reader)
    found = both.columns(pa.array(values, pa.binary()))
    assert not found.codes.any()
    assert bits(found.column.to_pylist()) == bits(both.rows(*values).to_pylist())


OURS_ALONE = (LONG_NUMBER, NO_BRANCH, NO_SYMBOL, TOO_MANY)
"""fastavro takes a number of any length, counts from the end for negative indices, and knows no bombs."""


def damaged(source: random.Random, value: bytes) -> list[bytes]:
    found = [value[:end] for end in range(len(value))] + [value + b"\0", value + value]
    for _ in range(60):
        at = source.randrange(len(value)) if value else 0
        odd = source.choice((0x00, 0x01, 0x7F, 0x80, 0xFF, source.randrange(256)))
        found.append(value[:at] + bytes([odd]) + value[at + 1 :])
    return found


@pytest.mark.parametrize("seed", range(80))
def test_damage_is_refused_by_both_or_none(seed: int) -> None:
    source = Subset(seed, evolves=False, empty_items=False)  # fastavro would count bombs of them
    made = source.record(2)
    values = encoded(made.writer, [made.make() for _ in range(4)])
    rows = [each for value in values for each in damaged(source.random, value[:400])]
    both = pair(made.writer, made.reader)
    found = both.columns(pa.array(rows, pa.binary()))
    values_of = in_numbers(found.column)
    for row, code, value in zip(rows, found.codes.tolist(), values_of, strict=True):
        expected, error = row_by_row(both, row)
        if expected is None:
            assert code, (row, error)
        elif code not in OURS_ALONE:
            assert not code, (row, code)
            assert bits(value) == bits(expected)


def row_by_row(both: Pair, row: bytes) -> tuple[Any, str]:
    """The value, or None and why there is none."""
    try:
        return in_numbers(both.rows(row))[0], ""
    except SchemaMismatch as error:
        return None, str(error)


@pytest.mark.parametrize("seed", range(40))
def test_what_is_skipped_is_checked_no_less(seed: int) -> None:
    """A row is bad whatever fields are asked for, but for their texts and sizes of numbers."""
    source = Subset(seed, evolves=False, empty_items=False)  # fastavro would count bombs of them
    made = source.record(2)
    values = encoded(made.writer, [made.make() for _ in range(4)])
    rows = pa.array([each for value in values for each in damaged(source.random, value[:400])], pa.binary())
    whole, none = pair(made.writer, made.reader), pair(made.writer, made.reader, frozenset())
    found, skipped = whole.columns(rows).codes, none.columns(rows).codes
    for code, other in zip(found.tolist(), skipped.tolist(), strict=True):
        assert not other or code
        assert not code or other or code in (NO_TEXT, TOO_LARGE)


def record(*fields: Any) -> Any:
    made = [{"name": f"f{index}", "type": kind} for index, kind in enumerate(fields)]
    return {"type": "record", "name": "R", "fields": made}


NOTHING = {"type": "record", "name": "Nothing", "fields": []}
BOMB = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
"""The number 2^63 - 1."""


@pytest.mark.parametrize(
    "items", ["null", NOTHING, {"type": "fixed", "name": "F", "size": 0}, "int", "string"]
)
@pytest.mark.parametrize("head", [BOMB, BOMB[:9] + b"\x00", b"\x82\x10"])
def test_a_bomb_is_refused_and_its_neighbours_are_not(items: Any, head: bytes) -> None:
    schema = record({"type": "array", "items": items}, "int")
    fine = b"\x00\x02"
    found = pair(schema, schema).columns(pa.array([fine, head + b"\x00\x02", fine], pa.binary()))
    assert [code != 0 for code in found.codes.tolist()] == [False, True, False]
    row = {"f0": [], "f1": 1}
    assert found.column.to_pylist() == [row, None, row]


def test_nested_arrays_of_nothing_are_counted_together() -> None:
    schema = record({"type": "array", "items": {"type": "array", "items": "null"}})
    inner = encoded({"type": "array", "items": "null"}, [[None] * 1000])[0]
    some, many = b"\x02" + inner + b"\0", b"\x04" + inner * 2 + b"\0"
    found = pair(schema, schema).columns(pa.array([some, many, b"\0"], pa.binary()))
    assert found.codes.tolist() == [0, TOO_MANY, 0]


def test_a_long_array_among_short_ones() -> None:
    schema = record({"type": "array", "items": "string"}, {"type": "array", "items": "double"}, "int")
    values = [{"f0": ["a"], "f1": [0.5], "f2": 1}] * 30
    values[7] = {"f0": ["é" * (n % 5) for n in range(3000)], "f1": [float(n) for n in range(3000)], "f2": 2}
    raw = pa.array(encoded(schema, values), pa.binary())
    found = pair(schema, schema).columns(raw)
    assert not found.codes.any()
    assert found.column.to_pylist() == values


def test_a_batch_has_so_many_items_of_nothing_at_most() -> None:
    schema = record({"type": "array", "items": "null"})
    row = encoded(schema, [{"f0": [None] * 1024}])[0]
    found = pair(schema, schema).columns(pa.array([row] * 5000, pa.binary()))
    assert found.codes.tolist() == [0] * 4096 + [TOO_MANY] * 904


def test_an_array_in_many_blocks_is_what_it_is_in_one() -> None:
    schema = record({"type": "array", "items": "string"}, "int")
    rows = [b"\x00\x02"] * 60
    rows[5] = b"\x02\x02x" * 5000 + b"\x00\x04"
    found = pair(schema, schema).columns(pa.array(rows, pa.binary())).column.to_pylist()
    assert found[5] == {"f0": ["x"] * 5000, "f1": 2}
    assert found[:5] + found[6:] == [{"f0": [], "f1": 1}] * 59


def test_blocks_may_have_their_size() -> None:
    schema = record({"type": "array", "items": "int"}, {"type": "map", "values": "int"}, "int")
    rows = [b"\x03\x04\x02\x04\x02\x06\x00" + b"\x01\x06\x02a\x02\x00" + b"\x0a", b"\x00\x00\x00"]
    both = pair(schema, schema)
    found = both.columns(pa.array(rows, pa.binary()))
    assert found.column.to_pylist() == [
        {"f0": [1, 2, 3], "f1": [("a", 1)], "f2": 5},
        {"f0": [], "f1": [], "f2": 0},
    ]
    assert found.column.to_pylist() == both.rows(*rows).to_pylist()


def test_a_key_that_is_twice_in_a_map_has_its_last_value() -> None:
    schema = {"type": "map", "values": "int"}
    rows = [b"\x06\x02a\x02\x02b\x04\x02a\x06\x00", b"\x02\x02a\x08\x00", b"\x00"]
    both = pair(schema, schema)
    assert both.columns(pa.array(rows, pa.binary())).column.to_pylist() == [
        [("a", 3), ("b", 2)],
        [("a", 4)],
        [],
    ]


def test_times_beyond_what_python_has() -> None:
    millis, micros = ({"type": "long", "logicalType": f"timestamp-{unit}"} for unit in ("millis", "micros"))
    schema = record(millis, micros)
    plain = record("long", "long")
    edge = ((1 << 63) - 1) // 1000
    values = [(edge, (1 << 63) - 1), (-edge, -(1 << 63)), (edge + 1, 0), (-edge - 1, 0), (-(1 << 63), 0)]
    raw = pa.array(encoded(plain, [{"f0": one, "f1": two} for one, two in values]), pa.binary())
    both, last = pair(schema, schema), edge * 1000
    found = both.columns(raw, "error")
    assert found.codes.tolist() == [0, 0, TOO_LARGE, TOO_LARGE, TOO_LARGE]
    for rule, first in (
        ("clamp", [last, -last, last, -last, -last]),
        ("null", [last, -last, None, None, None]),
    ):
        found = both.columns(raw, rule)
        assert not found.codes.any()
        assert found.column.field(0).cast(pa.int64()).to_pylist() == first
        assert found.column.field(1).cast(pa.int64()).to_pylist() == [two for _, two in values]


def test_leftover_bytes_are_refused_by_both() -> None:
    both = pair(record("int"), record("int"))
    found = both.columns(pa.array([b"\x02", b"\x02\x00", b"\x04"], pa.binary()))
    assert found.codes.tolist() == [0, LEFT_OVER, 0]
    assert found.column.to_pylist() == [{"f0": 1}, None, {"f0": 2}]
    with pytest.raises(SchemaMismatch, match="left over"):
        both.rows(b"\x02\x00")


def test_what_is_not_supported_is_said_beforehand() -> None:
    def decides(writer: Any, reader: Any) -> bool:
        both = pair(writer, reader)
        return column_decoder(both.writer.in_columns, both.reader.in_columns, both.kind) is not None

    assert decides(record("int"), record("int"))
    assert decides(record(["int", "string"]), record(["int", "string"]))
    assert not decides(record("string"), record("int"))
    assert not decides(record("int"), record({"type": "long", "logicalType": "timestamp-millis"}))
    both = pair(record("int"), record("int"))
    assert (
        column_decoder(both.writer.in_columns, both.reader.in_columns, pa.struct([("f0", pa.string())]))
        is None
    )
    # a union that is skipped may be of any types, but no record may be in itself
    union = {"type": "record", "name": "R", "fields": [{"name": "u", "type": ["int", "string", NOTHING]},
                                                       {"name": "f0", "type": "int"}]}  # fmt: skip
    assert decides(union, record("int"))
    rows = encoded(union, [{"u": "x", "f0": 1}, {"u": 300, "f0": 2}, {"u": {}, "f0": 3}])
    found = pair(union, record("int")).columns(pa.array([*rows, b"\x06\x02"], pa.binary()))
    assert found.codes.tolist() == [0, 0, 0, NO_BRANCH]
    assert found.column.field(0).to_pylist() == [1, 2, 3, None]
    itself = {"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "R"]},
                                                        {"name": "f0", "type": "int"}]}  # fmt: skip
    assert not decides(itself, record("int"))


def test_rows_of_two_versions_and_none_come_back_in_order() -> None:
    older, latest = record("int", "string"), record("long", "string", ["null", "int"])
    both = pair(older, latest)
    both.decoder._writers[b"v", None] = both.writer
    of_older = np.arange(300) % 3 == 1
    values: list[bytes | None] = [
        encoded(older, [{"f0": n, "f1": f"older{n}"}])[0]
        if of_older[n]
        else encoded(latest, [{"f0": n << 40, "f1": f"{n}", "f2": n}])[0]
        for n in range(300)
    ]
    values[5] = values[4] = None
    groups = [(None, np.flatnonzero(~of_older)), (b"v", np.flatnonzero(of_older))]
    schema = TopicSchema(pb.Schema.Type.Avro, json.dumps(latest).encode())
    found = both.decoder._avro(schema, pa.array(values, pa.binary()), both.kind, groups).to_pylist()
    assert found[:6] == [
        {"f0": 0, "f1": "0", "f2": 0},
        {"f0": 1, "f1": "older1", "f2": None},
        {"f0": 2 << 40, "f1": "2", "f2": 2},
        {"f0": 3 << 40, "f1": "3", "f2": 3},
        None,
        None,
    ]
    assert [row["f2"] for row in found[6:]] == [None if n % 3 == 1 else n for n in range(6, 300)]
    values[200] = b"\x00"
    with pytest.raises(SchemaMismatch, match="it ends too early"):
        both.decoder._avro(schema, pa.array(values, pa.binary()), both.kind, groups)
