"""The rows of `bench.pipeline.beside`: five fields, for Arrow, for Spark's SQL, and in AVRO."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

BYTES, AVRO, JSON = "bytes", "AVRO", "JSON"
FORMATS = (BYTES, AVRO, JSON)
READ, WRITE = "read", "write"
FIELDS = ("id", "name", "price", "at", "ok")
ROW_BYTES = 100
FIRST_US = 1_700_000_000_000_000


def definition(*, times: bool) -> dict[str, Any]:
    """As the source and the sink of this project make it of these columns."""
    at: Any = {"type": "long", "logicalType": "timestamp-micros"} if times else "long"
    kinds = dict(zip(FIELDS, ("long", "string", "double", at, "boolean"), strict=True))
    fields = [{"name": name, "type": [kind, "null"]} for name, kind in kinds.items()]
    return {"type": "record", "name": "topLevelRecord", "fields": fields}


def columns(shape: str, *, times: bool) -> list[str]:
    """SQL of `id`, the number of the row."""
    if shape == BYTES:
        return [f"cast(rpad(cast(id as string), {ROW_BYTES}, 'x') as binary) as value"]
    at = f"{FIRST_US} + id * 1000"
    return [
        "id * 7919 as id",
        "if(id % 10 = 0, null, concat('customer ', id)) as name",
        "id * cast(0.37 as double) as price",
        f"{f'timestamp_micros({at})' if times else at} as at",
        "id % 3 = 0 as ok",
    ]


def fields_in_sql(*, times: bool) -> str:
    return f"id bigint, name string, price double, at {'timestamp' if times else 'bigint'}, ok boolean"


def batch(shape: str, rows: int, *, times: bool) -> pa.RecordBatch:
    if shape == BYTES:
        values = [str(row).ljust(ROW_BYTES, "x").encode() for row in range(rows)]
        return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
    numbers = np.arange(rows)
    at = pa.array(FIRST_US + numbers * 1000)
    return pa.RecordBatch.from_pydict(
        {
            "id": pa.array(numbers * 7919),
            "name": [None if row % 10 == 0 else f"customer {row}" for row in range(rows)],
            "price": numbers * 0.37,
            "at": at.cast(pa.timestamp("us", "UTC")) if times else at,
            "ok": pa.array(numbers % 3 == 0),
        }
    )


def check_of(shape: str) -> str:
    """SQL of the number that `expected` tells, beside the count."""
    return "sum(length(value))" if shape == BYTES else "sum(id + if(name is null, 1, 0))"


def expected(shape: str, rows: int) -> tuple[int, int]:
    if shape == BYTES:
        return rows, ROW_BYTES * rows
    return rows, 7919 * (rows * (rows - 1) // 2) + (rows + 9) // 10
