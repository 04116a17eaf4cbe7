"""Random AVRO schemas: what an encoder of others wrote comes out of the columns, version by version."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import math
import random
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest

from geminga.pipeline.errors import Access
from geminga.pipeline.values.avro_cursor import Cursor
from geminga.pipeline.values.avro_shapes import BadValue, SchemaMismatch, shape_of
from geminga.pipeline.values.decoding import ValueDecoder, _readable, json_values
from geminga.pipeline.values.schemas import TopicSchema, value_fields
from geminga.wire import pulsar_pb2 as pb

TYPE = pb.Schema.Type
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
Made = tuple[Any, Callable[[], tuple[Any, Any, Any]]]
"""A definition, and what makes (the value for the AVRO encoder, the same in JSON, what a column gives)."""


class Schemas:
    """Makes random definitions with values."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._names = 0

    def name(self, what: str) -> str:
        self._names += 1
        return f"{what}{self._names}"

    def any(self, depth: int) -> Made:
        simple = [self.number, self.text, self.raw, self.logical, self.enum, self.fixed, self.flag]
        if depth == 0:
            return self.random.choice(simple)()
        makers: list[Callable[[int], Made]] = [self.record, self.array, self.map, self.nullable, self.union]
        if self.random.random() < 0.4:
            return self.random.choice(simple)()
        return self.random.choice(makers)(depth - 1)

    def flag(self) -> Made:
        return "boolean", lambda: (value := self.random.random() < 0.5, value, value)

    def number(self) -> Made:
        kind = self.random.choice(["int", "long", "float", "double"])
        if kind in ("int", "long"):
            edge = 1 << (31 if kind == "int" else 63)
            some = [0, -edge, edge - 1, self.random.randrange(99)]
            return kind, lambda: (value := self.random.choice(some), value, value)
        return kind, lambda: (value := self.random.randrange(-64, 64) / 8, value, value)

    def text(self) -> Made:
        return "string", lambda: (value := "grün\n" * self.random.randrange(3), value, value)

    def raw(self) -> Made:
        def make() -> tuple[Any, Any, Any]:
            value = self.random.randbytes(self.random.randrange(9))
            return value, base64.b64encode(value).decode(), value

        return "bytes", make

    def enum(self) -> Made:
        definition = {"type": "enum", "name": self.name("Enum"), "symbols": ["red", "blue"]}
        return definition, lambda: (value := self.random.choice(["red", "blue"]), value, value)

    def fixed(self) -> Made:
        definition = {"type": "fixed", "name": self.name("Fixed"), "size": 16}
        if self.random.random() < 0.5:
            definition |= {"logicalType": "decimal", "precision": 20, "scale": 3}
            return definition, self._decimal(20, 3)
        if self.random.random() < 0.5:
            definition["logicalType"] = "uuid"  # of a fixed: its bytes
        value = uuid.UUID(int=self.random.getrandbits(128)).bytes
        return definition, lambda: (value, base64.b64encode(value).decode(), value)

    def _decimal(self, digits: int, scale: int) -> Callable[[], tuple[Any, Any, Any]]:
        def make() -> tuple[Any, Any, Any]:
            unscaled = self.random.choice([0, 1, -1, 10**digits - 1, -self.random.randrange(10**digits)])
            value = Decimal(unscaled).scaleb(-scale)
            return value, str(value), value

        return make

    def logical(self) -> Made:
        kind = self.random.choice(["date", "timestamp-millis", "timestamp-micros", "decimal", "uuid",
                                   "time-millis", "nonsense"])  # fmt: skip
        if kind == "decimal":
            definition = {"type": "bytes", "logicalType": kind, "precision": 9, "scale": 2}
            return definition, self._decimal(9, 2)
        if kind == "uuid":
            text = str(uuid.UUID(int=self.random.getrandbits(128)))
            return {"type": "string", "logicalType": kind}, lambda: (text, text, text)
        if kind == "date":
            return {"type": "int", "logicalType": kind}, lambda: (
                days := self.random.randrange(-9999, 99999), days, dt.date(1970, 1, 1) + dt.timedelta(days)
            )  # fmt: skip
        if kind.startswith("timestamp"):
            unit_us = 1000 if kind.endswith("millis") else 1
            return {"type": "long", "logicalType": kind}, lambda: (
                count := self.random.randrange(-(10**12), 10**12),
                count,
                EPOCH + dt.timedelta(microseconds=count * unit_us),
            )
        return {"type": "int", "logicalType": kind}, lambda: (
            value := self.random.randrange(999),
            value,
            value,
        )

    def array(self, depth: int) -> Made:
        part, make = self.any(depth)

        def values() -> tuple[Any, Any, Any]:
            found = [make() for _ in range(self.random.randrange(3))]
            return [each[0] for each in found], [each[1] for each in found], [each[2] for each in found]

        return {"type": "array", "items": part}, values

    def map(self, depth: int) -> Made:
        part, make = self.any(depth)

        def values() -> tuple[Any, Any, Any]:
            found = {f"k{index}": make() for index in range(self.random.randrange(3))}
            plain, as_json = ({key: each[side] for key, each in found.items()} for side in (0, 1))
            return plain, as_json, [(key, each[2]) for key, each in found.items()]

        return {"type": "map", "values": part}, values

    def nullable(self, depth: int) -> Made:
        part, make = self.any(depth)
        while isinstance(part, list):
            part, make = self.any(depth)
        definition = ["null", part] if self.random.random() < 0.5 else [part, "null"]
        return definition, lambda: (None, None, None) if self.random.random() < 0.3 else make()

    def union(self, depth: int) -> Made:
        """Of types that a value tells apart; in JSON too."""
        choices = [self.flag(), self.text(), ("long", self.any_long), self.array(depth), self.record(depth),
                   self.record(depth)]  # fmt: skip
        branches = self.random.sample(choices, self.random.randrange(2, 5))
        definition: list[Any] = [branch for branch, _ in branches]
        with_null = self.random.random() < 0.5
        if with_null:
            definition.insert(self.random.randrange(len(definition) + 1), "null")

        def make() -> tuple[Any, Any, Any]:
            if with_null and self.random.random() < 0.3:
                return None, None, None
            index = self.random.randrange(len(branches))
            branch, value = branches[index]
            plain, as_json, column = value()
            if isinstance(branch, dict) and branch["type"] == "record":
                plain = (branch["name"], plain)
            members = {f"member{number}": None for number in range(len(branches))}
            return plain, as_json, members | {f"member{index}": column}

        return definition, make

    def any_long(self) -> tuple[Any, Any, Any]:
        value = self.random.randrange(-(1 << 40), 1 << 40)
        return value, value, value

    def record(self, depth: int) -> Made:
        fields = [(f"f{index}", *self.any(depth)) for index in range(self.random.randrange(1, 4))]
        definition = {
            "type": "record",
            "name": self.name("Record"),
            "fields": [{"name": name, "type": kind} for name, kind, _ in fields],
        }

        def make() -> tuple[Any, Any, Any]:
            found = {name: value() for name, _, value in fields}
            plain, as_json, column = ({name: each[side] for name, each in found.items()} for side in range(3))
            return plain, as_json, column

        return definition, make


def decoded(definition: Any, values: list[bytes], *, of_version: Any = None) -> list[Any]:
    """By our decoder, from bytes; `of_version` is the schema that they were written with, if another."""
    schema = TopicSchema(TYPE.Avro, json.dumps(definition).encode())
    decoder = ValueDecoder(Access("pulsar://nowhere"), "t", schema, pa.schema([]))
    if of_version is not None:
        older = TopicSchema(TYPE.Avro, json.dumps(of_version).encode())
        decoder._writers[b"v", None] = decoder._of_version(older, _readable(schema), None)
    kind = shape_of(definition).arrow
    version = None if of_version is None else b"v"
    found: list[Any] = decoder._avro(
        schema, pa.array(values, pa.binary()), kind, [(version, np.arange(len(values)))]
    ).to_pylist()
    return found


def encoded(definition: Any, value: Any) -> bytes:
    """By fastavro, plain values for logical types that it would rather have as objects."""
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(definition), value)
    return buffer.getvalue()


@pytest.mark.parametrize("seed", range(150))
def test_random_schemas_and_values(seed: int) -> None:
    definition, make = Schemas(seed).record(3)
    values = [make() for _ in range(8)]
    assert decoded(definition, [encoded(definition, plain) for plain, _, _ in values]) == [
        column for _, _, column in values
    ]


@pytest.mark.parametrize("seed", range(150))
def test_random_records_in_json(seed: int) -> None:
    made = Schemas(seed)
    made.union = made.nullable  # type: ignore[method-assign]  # JSON does not tell records apart
    definition, make = made.record(3)
    values = [make() for _ in range(8)]
    raw = pa.array([json.dumps(as_json).encode() for _, as_json, _ in values], pa.binary())
    shape = shape_of(definition)
    assert json_values(raw, shape.arrow, shape).to_pylist() == [column for _, _, column in values]


def test_unions_have_the_columns_of_the_jvm_connector() -> None:
    inner = {"type": "record", "name": "In", "fields": [{"name": "x", "type": "int"}]}
    member = pa.struct([("member0", pa.string()), ("member1", pa.struct([("x", pa.int32())]))])
    for definition, expected in (
        (["int", "long"], pa.int64()),
        (["null", "float", "double"], pa.float64()),
        (["string", "null", inner], member),
        (["null"], pa.null()),
    ):
        assert shape_of(definition).arrow == expected
    wide = {"type": "record", "name": "R", "fields": [{"name": "f", "type": ["int", "null", "long"]}]}
    values = [encoded(wide, {"f": value}) for value in (1, None, 1 << 40)]
    assert [row["f"] for row in decoded(wide, values)] == [1, None, 1 << 40]


def in_union(branch: int, kind: Any, value: Any = None) -> bytes:
    """As it is encoded; an encoder chooses the branch itself."""
    return encoded("int", branch) + (b"" if kind == "null" else encoded(kind, value))


@pytest.mark.parametrize("rows", [1, 60])
def test_a_value_of_a_union_is_of_the_type_that_its_writer_chose(rows: int) -> None:
    enum = {"type": "enum", "name": "E", "symbols": ["a", "b"]}
    items = {"type": "array", "items": "int"}
    union = ["float", "double", "int", "null", "long", enum, items, "string"]
    definition = {"type": "record", "name": "R", "fields": [{"name": "f", "type": union}, *TAIL]}
    cases = [
        (0, "float", 1.5, {"member0": 1.5}),
        (1, "double", 1.5, {"member1": 1.5}),
        (2, "int", 7, {"member2": 7}),
        (3, "null", None, None),
        (4, "long", 7, {"member3": 7}),
        (5, enum, "b", {"member4": "b"}),
        (6, items, [1, 2], {"member5": [1, 2]}),
        (7, "string", "a", {"member6": "a"}),
    ] * rows
    values = [
        in_union(branch, kind, value) + encoded("int", n) for n, (branch, kind, value, _) in enumerate(cases)
    ]
    nothing = dict.fromkeys(f"member{index}" for index in range(7))
    expected = [None if wanted is None else nothing | wanted for *_, wanted in cases]
    assert decoded(definition, values) == [{"f": each, "n": n} for n, each in enumerate(expected)]
    with pytest.raises(SchemaMismatch, match="a union has no such type"):
        decoded(definition, [*values, in_union(8, "null") + encoded("int", 0)])


TAIL = [{"name": "n", "type": "int"}]


def as_kind(definition: Any, kind: pa.DataType, value: bytes) -> Any:
    """The field `f` of one message, of a type that the user's own schema asks for."""
    schema = TopicSchema(TYPE.Avro, json.dumps(definition).encode())
    decoder = ValueDecoder(Access("pulsar://nowhere"), "t", schema, pa.schema([]))
    found = decoder._avro(schema, pa.array([value]), pa.struct([("f", kind)]), [(None, np.arange(1))])
    return found.to_pylist()[0]["f"]


def test_members_of_a_union_that_the_users_schema_leaves_out() -> None:
    definition = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "f", "type": ["float", "double", "string"]}],
    }
    kind = pa.struct([("member2", pa.string()), ("member1", pa.float64())])
    for branch, type_of, value, wanted in (
        (0, "float", 0.5, {"member1": None, "member2": None}),
        (1, "double", 0.1, {"member1": 0.1, "member2": None}),
        (2, "string", "a", {"member1": None, "member2": "a"}),
    ):
        assert as_kind(definition, kind, in_union(branch, type_of, value)) == wanted


def test_numbers_of_a_union_that_do_not_fit_a_type_of_the_users_are_bad_values() -> None:
    def union(*kinds: str) -> Any:
        return {"type": "record", "name": "R", "fields": [{"name": "f", "type": list(kinds)}]}

    assert as_kind(union("int", "long"), pa.int32(), in_union(1, "long", 7)) == 7
    assert as_kind(union("int", "long"), pa.float64(), in_union(1, "long", 7)) == 7.0
    for kind in (pa.int32(), pa.string(), pa.bool_()):
        with pytest.raises(BadValue, match="does not fit the column type"):
            as_kind(union("int", "long"), kind, in_union(1, "long", 1 << 40))


def test_a_later_union_takes_the_same_type_before_a_wider_one() -> None:
    def read(writer: Any, reader: Any, *values: bytes) -> Any:
        old, new = (
            {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}, *TAIL]}
            for kind in (writer, reader)
        )
        found = decoded(new, [each + encoded("int", 5) for each in values], of_version=old)
        assert [each["n"] for each in found] == [5] * len(values)
        return [each["f"] for each in found]

    long = encoded("long", 7)
    assert read("long", ["double", "long"], long) == [{"member0": None, "member1": 7}]
    assert read("long", ["float", "null", "double", "string"], long) == [
        {"member0": 7.0, "member1": None, "member2": None}
    ]
    narrow = [in_union(0, "int", 1), in_union(1, "string", "x"), in_union(2, "null")]
    assert read(["int", "string", "null"], ["null", "string", "long"], *narrow) == [
        {"member0": None, "member1": 1},
        {"member0": "x", "member1": None},
        None,
    ]
    # The reader has one type, or none for one of them.
    assert read(["int", "long"], "long", in_union(0, "int", 1), in_union(1, "long", 2)) == [1, 2]
    assert read(["int", "float"], ["double", "float"], in_union(0, "int", 1), in_union(1, "float", 0.5)) == [
        1.0,
        0.5,
    ]
    assert read(["int", "string"], ["null", "int"], in_union(0, "int", 1)) == [1]
    with pytest.raises(SchemaMismatch, match="no such type|not found in"):
        read(["int", "string"], ["null", "int"], in_union(0, "int", 1), in_union(1, "string", "x"))
    records = [
        {"type": "record", "name": name, "fields": [{"name": "x", "type": "int"}]} for name in ("A", "B")
    ]
    assert read(records, records[::-1], in_union(0, records[0], {"x": 1})) == [
        {"member0": None, "member1": {"x": 1}}
    ]


def test_a_type_of_a_union_that_cannot_be_read_any_more_matters_where_it_is_written() -> None:
    def record(*kinds: Any) -> Any:
        return {"type": "record", "name": "R", "fields": [{"name": "f", "type": ["float", "double", *kinds]}]}

    x, y = ({"name": name, "type": "int"} for name in "xy")
    old = {"type": "record", "name": "In", "fields": [x]}
    new = {"type": "record", "name": "In", "fields": [x, y]}  # y has no default
    for before, after, value in (
        (old, new, {"x": 1}),
        ({"type": "array", "items": "string"}, {"type": "array", "items": "int"}, ["a"]),
        ({"type": "map", "values": [old]}, {"type": "map", "values": new}, {"k": {"x": 1}}),
    ):
        found = decoded(record(after), [in_union(1, "double", 0.1)], of_version=record(before))
        assert found == [{"f": {"member0": None, "member1": 0.1, "member2": None}}]
        with pytest.raises(BadValue, match="no such type"):
            decoded(record(after), [in_union(2, before, value)], of_version=record(before))


@pytest.mark.parametrize("rows", [1, 60])
def test_bytes_that_became_text_are_shown_as_far_as_they_are_text(rows: int) -> None:
    old, new = (
        {"type": "record", "name": "R", "fields": [{"name": "f", "type": ["null", kind]}, *TAIL]}
        for kind in ("bytes", "string")
    )
    # As Java replaces what is no UTF-8: half of a surrogate pair is one piece.
    cases = {
        b"a\xffb": "a\ufffdb",
        b"\xed\xa0\x80x": "\ufffdx",
        b"\xed\xa0x": "\ufffdx",
        b"\xed\xbf": "\ufffd",
        b"\xed": "\ufffd",
        b"\xedx": "\ufffdx",
        b"\xe2\x82": "\ufffd",
        b"\xf0\x9f\x98x": "\ufffdx",
        "grün".encode(): "grün",
    }
    values = [encoded(old, {"f": value, "n": 1}) for value in (*cases, None)] * rows
    assert [each["f"] for each in decoded(new, values, of_version=old)] == [*cases.values(), None] * rows
    with pytest.raises(SchemaMismatch, match="UTF-8|utf-8"):
        decoded(new, values[:1] * rows)


def test_unions_in_an_array_that_is_longer_than_others() -> None:
    """Rows so unlike the rest are decoded alone, if their types are told from their values."""
    items = {"type": "array", "items": ["float", "double"]}
    several = {"type": "array", "items": ["float", "double", "int"]}
    definition = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "f", "type": several}, {"name": "g", "type": items}],
    }
    long = b"".join(in_union(1, "double", n / 2) for n in range(300))
    values = [b"\0\0"] * 100 + [encoded("long", 300) + long + b"\0\0"]
    found = decoded(definition, values)
    nothing = {"member0": None, "member1": None, "member2": None}
    assert found[:100] == [{"f": [], "g": []}] * 100
    assert found[100] == {"f": [nothing | {"member1": n / 2} for n in range(300)], "g": []}


PAIR = {
    "type": "record",
    "name": "In",
    "fields": [{"name": "x", "type": "double"}, {"name": "y", "type": "int"}],
}
LONG_ARRAYS: list[tuple[Any, bytes, Any]] = [
    ("string", b"\x02a", "a"),
    ({"type": "enum", "name": "E", "symbols": ["a", "b"]}, b"\x02", "b"),
    ({"type": "array", "items": "long"}, b"\x02\x80\x01\x00", [64]),
    ({"type": "map", "values": "bytes"}, b"\x01\x08\x02k\x02v\x00", [("k", b"v")]),
    (PAIR, bytes(8) + b"\x02", {"x": 0.0, "y": 1}),
    (["null", "string", "long"], b"\x04\x02", {"member0": None, "member1": 1}),
]


@pytest.mark.parametrize("others", [0, 40])
@pytest.mark.parametrize("blocks", [1, 3000])
@pytest.mark.parametrize(("items", "item", "value"), LONG_ARRAYS)
def test_a_long_array_beside_a_union_takes_no_step_for_each_item(
    others: int, blocks: int, items: Any, item: bytes, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = [
        {"name": "u", "type": ["int", "string"]},
        {"name": "a", "type": {"type": "array", "items": items}},
    ]
    definition = {"type": "record", "name": "R", "fields": fields}
    block = encoded("long", 3000 // blocks) + item * (3000 // blocks)
    steps = 0
    settle = Cursor._settle

    def counted(cursor: Cursor) -> None:
        nonlocal steps
        steps += 1
        settle(cursor)

    monkeypatch.setattr(Cursor, "_settle", counted)
    whole = in_union(0, "int", 5) + block * blocks + b"\0"
    found = decoded(definition, [in_union(0, "int", 1) + b"\0"] * others + [whole])
    assert found[-1] == {"u": {"member0": 5, "member1": None}, "a": [value] * 3000}
    assert steps < 3000
    for cut in (1, len(item), len(whole) // 2):
        with pytest.raises(BadValue, match="ends too early"):
            decoded(definition, [whole[:-cut]])


@pytest.mark.parametrize("seed", range(20))
def test_damaged_arrays_are_refused_alike_alone_and_among_others(seed: int) -> None:
    source = random.Random(seed)
    for items, item, _ in LONG_ARRAYS:
        fields = [
            {"name": "u", "type": ["int", "string"]},
            {"name": "a", "type": {"type": "array", "items": items}},
        ]
        definition = {"type": "record", "name": "R", "fields": fields}
        value = bytearray(in_union(0, "int", 5) + encoded("long", 5) + item * 5 + b"\0")
        for _ in range(source.randint(1, 3)):
            value[source.randrange(len(value))] = source.randrange(256)
        answers = []
        for rows in (1, 20):
            try:
                answers.append(repr(decoded(definition, [bytes(value)] * rows)[0]))
            except BadValue:
                answers.append("bad")
        assert answers[0] == answers[1]


@pytest.mark.parametrize("rows", [1, 60])
def test_a_default_of_a_union_is_of_its_first_type(rows: int) -> None:
    old = {"type": "record", "name": "R", "fields": TAIL}
    time = {"type": "long", "logicalType": "timestamp-millis"}
    added = [
        {"name": "a", "type": ["int", "long", "string"], "default": -1},
        {"name": "b", "type": ["null", "long", "string"], "default": None},
        {"name": "c", "type": ["string", time], "default": "x"},
        {"name": "d", "type": [time, "string"], "default": 1000},
        {"name": "e", "type": ["float", "double"], "default": 0.1},
    ]
    found = decoded({**old, "fields": [*TAIL, *added]}, [encoded("int", 5)] * rows, of_version=old)
    assert (
        found
        == [
            {
                "n": 5,
                "a": {"member0": -1, "member1": None, "member2": None},
                "b": None,
                "c": {"member0": "x", "member1": None},
                "d": {"member0": EPOCH + dt.timedelta(seconds=1), "member1": None},
                "e": 0.10000000149011612,
            }
        ]
        * rows
    )


@pytest.mark.parametrize("rows", [1, 60])
def test_logical_types_that_changed_are_those_of_the_latest_version(rows: int) -> None:
    """And a union beside them has the types that were written."""

    def record(kind: Any) -> Any:
        fields = [{"name": "f", "type": kind}, {"name": "u", "type": ["float", "double", "int"]}]
        return {"type": "record", "name": "R", "fields": fields}

    def long(logical: str | None) -> Any:
        return {"type": "long", "logicalType": logical} if logical else "long"

    def decimal(digits: int) -> Any:
        return {"type": "bytes", "logicalType": "decimal", "precision": digits, "scale": 2}

    us = dt.timedelta(microseconds=1)
    for old, new, value, wanted in (
        (None, "timestamp-millis", 5000, EPOCH + 5_000_000 * us),
        ("timestamp-millis", None, 5000, 5000),
        # As in Java: the number is not converted.
        ("timestamp-micros", "timestamp-millis", 5000, EPOCH + 5_000_000 * us),
        ("timestamp-millis", "timestamp-micros", 5000, EPOCH + 5000 * us),
    ):
        number = encoded("long", value) + in_union(1, "double", 0.1)
        found = decoded(record(long(new)), [number] * rows, of_version=record(long(old)))
        assert found == [{"f": wanted, "u": {"member0": None, "member1": 0.1, "member2": None}}] * rows
    price = encoded("bytes", b"\x01\x00") + in_union(1, "double", 0.1)
    found = decoded(record(decimal(12)), [price] * rows, of_version=record(decimal(10)))
    assert found == [{"f": Decimal("2.56"), "u": {"member0": None, "member1": 0.1, "member2": None}}] * rows


@pytest.mark.parametrize("rows", [1, 60])
def test_times_in_a_default_are_of_the_unit_that_is_named(rows: int) -> None:
    time = {"type": "long", "logicalType": "timestamp-millis"}
    inner = {"type": "record", "name": "In", "fields": [{"name": "t", "type": time}]}
    added = [
        {"name": "a", "type": inner, "default": {"t": 1000}},
        {"name": "b", "type": {"type": "array", "items": time}, "default": [1000]},
        {"name": "c", "type": {"type": "map", "values": ["null", time]}, "default": {"k": 1000}},
        {"name": "d", "type": ["In", "string"], "default": {"t": 1000}},
    ]
    old = {"type": "record", "name": "R", "fields": TAIL}
    found = decoded({**old, "fields": [*TAIL, *added]}, [encoded("int", 5)] * rows, of_version=old)
    at = EPOCH + dt.timedelta(seconds=1)
    d = {"member0": {"t": at}, "member1": None}
    assert found == [{"n": 5, "a": {"t": at}, "b": [at], "c": [("k", at)], "d": d}] * rows


def test_names_are_resolved_in_their_namespace() -> None:
    inner = {"type": "record", "name": "In", "fields": [{"name": "x", "type": "int"}]}
    outer = {
        "type": "record",
        "name": "Out",
        "namespace": "com.shop",
        "fields": [
            {"name": "a", "type": inner},
            {"name": "b", "type": "In"},
            {"name": "c", "type": ["null", "com.shop.In"]},
            {"name": "d", "type": {"type": "array", "items": "com.shop.In"}},
        ],
    }
    x = {"x": 1}
    value = {"a": x, "b": x, "c": x, "d": [x]}
    assert decoded(outer, [encoded(outer, value)]) == [value]


@pytest.mark.parametrize("rows", [1, 60])
def test_a_name_without_a_namespace_is_found_within_one(rows: int) -> None:
    """As Java writes a class of no package that is used in one of a package."""
    enum = {"type": "enum", "name": "E", "namespace": "", "symbols": ["a", "b"]}
    inner = {"type": "record", "name": "In", "fields": [{"name": "x", "type": "E"}]}
    outer = {
        "type": "record",
        "name": "Out",
        "namespace": "com.shop",
        "fields": [
            {"name": "a", "type": enum},
            {"name": "b", "type": ["null", "E"]},
            {"name": "c", "type": inner},
            {"name": "d", "type": {"type": "map", "values": "In"}},
        ],
    }
    # Indices of enums, and of the union.
    row = b"\x02" + b"\x02\x00" + b"\x02" + b"\x02" + b"\x02k" + b"\x00" + b"\x00"
    assert (
        decoded(outer, [row] * rows)
        == [{"a": "b", "b": "a", "c": {"x": "b"}, "d": [("k", {"x": "a"})]}] * rows
    )


def test_every_message_is_read_with_its_version_into_the_latest() -> None:
    def record(*fields: Any) -> Any:
        return {"type": "record", "name": "R", "fields": list(fields)}

    number = {"name": "n", "type": "int"}
    gone = {"name": "gone", "type": "string"}
    later = {"name": "later", "type": ["null", "string"]}  # no default: older values have none
    given = {"name": "given", "type": "string", "default": "d"}
    first, latest = record(number, gone), record({"name": "n", "type": "long"}, later, given)
    row = encoded(first, {"n": 5, "gone": "x"})
    assert decoded(latest, [row], of_version=first) == [{"n": 5, "later": None, "given": "d"}]
    required = record(number, {"name": "must", "type": "string"})
    with pytest.raises(SchemaMismatch, match="cannot be read as the latest one|ends too early"):
        decoded(required, [row], of_version=first)


@pytest.mark.parametrize("rows", [1, 100], ids=["by-row", "in-columns"])
def test_defaults_of_bytes_have_a_character_for_each(rows: int) -> None:
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 1}
    old = {"type": "record", "name": "R", "fields": [{"name": "n", "type": "int"}]}
    latest = {
        "type": "record",
        "name": "R",
        "fields": [
            *old["fields"],  # type: ignore[misc]
            {"name": "b", "type": "bytes", "default": "\u00ff\u0000a"},
            {"name": "f", "type": {"type": "fixed", "name": "F", "size": 1}, "default": "\u00fe"},
            {"name": "d", "type": decimal, "default": "\u0005"},
            {"name": "m", "type": {"type": "array", "items": "bytes"}, "default": ["\u00ff"]},
        ],
    }
    found = decoded(latest, [encoded(old, {"n": 5})] * rows, of_version=old)
    assert found == [{"n": 5, "b": b"\xff\x00a", "f": b"\xfe", "d": Decimal("0.5"), "m": [b"\xff"]}] * rows


def test_an_instant_in_json_is_seconds_with_nine_decimals() -> None:
    """As Java's client writes `java.time.Instant`, whatever unit the definition names."""
    for unit in ("timestamp-millis", "timestamp-micros"):
        kind = {"type": "long", "logicalType": unit}
        shape = shape_of({"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]})
        values = ("1.005000000", "1.000000000", "-1.123456789", "1700000000")
        raw = pa.array([f'{{"f": {value}}}'.encode() for value in values], pa.binary())
        column = json_values(raw, shape.arrow, shape).field("f").cast(pa.int64()).to_pylist()
        assert column[:3] == [1_005_000, 1_000_000, -1_000_000 + 123_456]
        assert column[3] == 1_700_000_000 * (1000 if unit == "timestamp-millis" else 1)


def test_json_of_other_clients() -> None:
    def column(kind: Any, *values: str) -> list[Any]:
        definition = {"type": "record", "name": "R", "fields": [{"name": "f", "type": kind}]}
        raw = pa.array([f'{{"f": {value}}}'.encode() for value in values], pa.binary())
        shape = shape_of(definition)
        return [row["f"] for row in json_values(raw, shape.arrow, shape).to_pylist()]

    nan, infinite = column("double", '"NaN"', '"-Infinity"')
    assert math.isnan(nan)
    assert infinite == float("-inf")
    assert column("bytes", '"AQI="', '"not base64"') == [b"\x01\x02", b"not base64"]
    time = {"type": "long", "logicalType": "timestamp-millis"}
    at = dt.datetime(2024, 5, 6, 7, 8, 9, 250_000, tzinfo=dt.UTC)
    assert column(time, "1714979289250", '"2024-05-06T07:08:09.250Z"') == [at, at]
    assert column({"type": "int", "logicalType": "date"}, "19849", '"2024-05-06"') == [at.date()] * 2
    decimal = {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}
    assert column(decimal, "1.5", '"1.50"', "2", "null") == [
        Decimal("1.50"),
        Decimal("1.50"),
        Decimal(2),
        None,
    ]
    # What Jackson makes of classes of java.time, and of BigDecimal.
    assert column({"type": "int", "logicalType": "date"}, "[2024,5,6]") == [at.date()]
    time_of_day = {"type": "int", "logicalType": "time-millis"}
    assert column(time_of_day, "[1,2]", "[1,2,3]", "[1,2,3,4999999]", "5") == [
        3_720_000,
        3_723_000,
        3_723_004,
        5,
    ]
    assert column({"type": "long", "logicalType": "time-micros"}, "[0,0,0,1999]") == [1]
    local = {"type": "long", "logicalType": "local-timestamp-millis"}
    assert column(local, "[1970,1,2,0,0]", "[1969,12,31,23,59,59,999000000]") == [86_400_000, -1]
    assert column("string", "12.50", "7", '"x"') == ["12.50", "7", "x"]
    for kind, value in ((time_of_day, "[25,0]"), (local, "[1970,1,2]"), ("int", "[1,2]"), ("string", "[1]")):
        with pytest.raises(SchemaMismatch):
            column(kind, value)
    with pytest.raises(SchemaMismatch):
        column("int", '"text"')


def test_lines_are_not_taken_for_values() -> None:
    kind = value_fields(TopicSchema(TYPE.Json, b'{"type": "record", "name": "R", "fields": [{"name": "a",'
                                               b' "type": "int"}]}'))  # fmt: skip
    raw = pa.array([b'{"a": 1}\n{"a": 2}', b" "], pa.binary())
    with pytest.raises(SchemaMismatch):
        json_values(raw, pa.struct(list(kind.items())))
