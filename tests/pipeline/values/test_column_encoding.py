"""Columns encoded at once have the bytes of fastavro's records; what it refuses is refused."""

from __future__ import annotations

import datetime as dt
import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from geminga.pipeline.values.avro_encoding import encoded_records
from geminga.pipeline.values.avro_writing import (
    BadColumns,
    _avro_row_by_row,
    avro_rows,
    python_rows,
    record_definition,
)
from geminga.pipeline.values.json_writing import _json_struct, json_rows
from geminga.pipeline.values.value_encoding import value_encoder

SIMPLE: tuple[pa.DataType, ...] = (
    *(pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(), pa.date32()),
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.null(), pa.timestamp("us")),
    *(pa.timestamp("us", "UTC"), pa.decimal128(1, 0), pa.decimal128(18, 4), pa.decimal128(38, 38)),
)


class Columns:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def field(self, name: str, depth: int) -> pa.Field:
        kind = self.kind(depth)
        return pa.field(name, kind, nullable=pa.types.is_null(kind) or self.random.random() < 0.6)

    def kind(self, depth: int) -> pa.DataType:
        what = self.random.randrange(8) if depth else 0
        if what < 4:
            return self.random.choice(SIMPLE)
        if what == 4:
            return pa.list_(self.field("item", depth - 1))
        if what == 5:
            return pa.large_list(self.field("item", depth - 1))
        if what == 6:
            return pa.map_(pa.string(), self.field("value", depth - 1))
        return pa.struct([self.field(f"f{n}", depth - 1) for n in range(self.random.randrange(4))])

    def value(self, field: pa.Field) -> Any:
        kind, source = field.type, self.random
        if pa.types.is_null(kind) or (field.nullable and source.random() < 0.3):
            return None
        if pa.types.is_boolean(kind):
            return source.random() < 0.5
        if pa.types.is_integer(kind):
            edge = 1 << (kind.bit_width - 1)
            return source.choice((0, -1, 63, 64, -65, edge - 1, -edge, source.randrange(-edge, edge)))
        if pa.types.is_floating(kind):
            return source.choice((0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), 2.0**-130))
        if pa.types.is_date(kind):
            return dt.date(1, 1, 1) + dt.timedelta(source.choice((0, 3_652_058, source.randrange(3_652_058))))
        if pa.types.is_timestamp(kind):
            first, last = dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)
            some = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=source.randrange(-(10**16), 10**16))
            return source.choice((first, last, some)).replace(tzinfo=kind.tz and dt.UTC)
        if pa.types.is_decimal(kind):
            most = 10**kind.precision - 1
            unscaled = source.choice((0, 1, -1, most, -most, source.randrange(-most, most + 1)))
            return Decimal((int(unscaled < 0), tuple(map(int, str(abs(unscaled)))), -kind.scale))
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            return source.choice(("", "a", "grün\n", "😀" * 40, "x" * 9000))
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            return source.randbytes(source.choice((0, 1, 63, 64, 300)))
        count = source.choice((0, 1, 3, 70))
        if pa.types.is_map(kind):
            return [(f"k{n}", self.value(kind.item_field)) for n in range(count)]
        if pa.types.is_struct(kind):
            return {each.name: self.value(each) for each in kind}
        return [self.value(kind.value_field) for _ in range(count)]


@pytest.mark.parametrize("seed", range(200))
def test_bytes_are_those_of_fastavro(seed: int) -> None:
    made = Columns(seed)
    schema = pa.schema([made.field(f"c{n}", 2) for n in range(made.random.randrange(1, 5))])
    rows = [{field.name: made.value(field) for field in schema} for _ in range(20)]
    whole = pa.RecordBatch.from_pylist(rows, schema=schema)
    for batch in (whole, whole.slice(3, 11), whole.slice(7, 0)):
        found = encoded_records(batch)
        assert found is not None
        found.validate(full=True)
        assert found.to_pylist() == _avro_row_by_row(batch, record_definition(schema)).to_pylist()


@pytest.mark.parametrize("seed", range(200))
def test_json_is_that_of_the_encoder_of_rows(seed: int) -> None:
    made = Columns(seed)
    schema = pa.schema([made.field(f"c{n}", 2) for n in range(made.random.randrange(1, 5))])
    rows = [{field.name: made.value(field) for field in schema} for _ in range(20)]
    whole = pa.RecordBatch.from_pylist(rows * 2, schema=schema)
    text = _json_struct(list(schema))
    for batch in (whole, whole.slice(3, 33), whole.slice(7, 5), whole.slice(7, 0)):
        expected = [text(row) for row in python_rows(batch)]
        found = json_rows(batch)
        found.validate(full=True)
        assert [each.decode() for each in found.to_pylist()] == expected


def test_numbers_and_texts_in_json_are_as_python_writes_them() -> None:
    source = random.Random(3)
    floats = [source.uniform(-1, 1) * 10.0 ** source.randrange(-12, 20) for _ in range(3000)]
    floats += [float(round(each)) for each in floats] + [1e-4, 1e9, 999_999_999.9, 9.999e-5, 123_456.7]
    texts = [chr(each) for each in (*range(0x300), 0x2028, 0xFFFF, 0x1F600)] * 8
    batch = pa.RecordBatch.from_pydict({"f": floats[:6000], "t": texts[:6000]})
    text = _json_struct(list(batch.schema))
    found = [each.decode() for each in json_rows(batch).to_pylist()]
    assert found == [text(row) for row in batch.to_pylist()]


def test_what_a_null_has_below_it_is_not_written() -> None:
    child = pa.array([1, 2, 3], pa.int64())
    inner = pa.StructArray.from_arrays(
        [child], fields=[pa.field("x", pa.int64())], mask=pa.array([False, True, False])
    )
    items = pa.ListArray.from_arrays(
        pa.array([0, 1, 3, 3], pa.int32()), child, mask=pa.array([False, True, False])
    )
    batch = pa.RecordBatch.from_arrays([inner, items], names=["inner", "items"])
    found = encoded_records(batch)
    assert found is not None
    assert found.to_pylist() == [
        b"\x00\x00\x02\x00\x02\x00\x02\x00",
        b"\x02\x02",
        b"\x00\x00\x06\x00\x00",
    ]


@pytest.mark.parametrize("schema", ["avro", "json"])
def test_a_row_of_nulls_is_a_null_message(schema: str) -> None:
    """As one is read; also where the schema has no null, and whatever else is in the row."""
    fields = pa.schema(
        [pa.field("id", pa.int64(), nullable=False), ("t", pa.string()), ("__key", pa.string())]
    )
    columns = [pa.array([1, None, 2] * 20), pa.array(["a", None, None] * 20), pa.array(["k"] * 60)]
    batch = pa.RecordBatch.from_arrays(columns, schema=fields)
    values = value_encoder(fields, schema).values(batch).to_pylist()
    assert values[1::3] == [None] * 20
    assert None not in (*values[::3], *values[2::3])
    few = value_encoder(fields, schema).values(batch.slice(0, 3)).to_pylist()
    assert few == values[:3]
    wrong = pa.RecordBatch.from_arrays([pa.array([None]), pa.array(["x"]), pa.array(["k"])], schema=fields)
    with pytest.raises(BadColumns, match="'id' has a null, for which the topic's schema has no place"):
        value_encoder(fields, schema).values(wrong)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        (pa.field("a", pa.int64(), nullable=False), [1, None] * 20),
        (pa.field("a", pa.list_(pa.field("item", pa.int64(), nullable=False))), [[1, None]] * 20),
        (pa.field("a", pa.map_(pa.string(), pa.int64())), [[("a", 1), ("a", 2)]] * 20),
    ],
)
def test_rows_that_are_no_records_are_refused(field: pa.Field, values: list[Any]) -> None:
    schema = pa.schema([field])
    batch = pa.RecordBatch.from_arrays([pa.array(values, field.type)], schema=schema)
    with pytest.raises(BadColumns, match="no record of the schema"):
        avro_rows(batch, record_definition(schema))
