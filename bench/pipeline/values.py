"""Rows per CPU-second of values alone: records of five fields into columns and back, without a broker.

    python bench/pipeline/values.py                   AVRO and JSON, in batches of 1,000 and 30,000 rows
    python bench/pipeline/values.py --rows 100 --seconds 1

Beside each is the path row by row, which takes what the columns do not support.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from geminga.pipeline.errors import Access
from geminga.pipeline.values.avro_shapes import shape_of
from geminga.pipeline.values.avro_writing import _avro_row_by_row, avro_rows, record_definition
from geminga.pipeline.values.decoding import ValueDecoder, json_values
from geminga.pipeline.values.json_writing import _json_struct, json_rows
from geminga.pipeline.values.schemas import TopicSchema
from geminga.wire import pulsar_pb2 as pb

FIELDS: list[Any] = [
    {"name": "id", "type": "long"},
    {"name": "name", "type": ["null", "string"]},
    {"name": "price", "type": "double"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "ok", "type": "boolean"},
]


def records(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(
        {
            "id": pa.array(np.arange(rows) * 7919),
            "name": [None if row % 10 == 0 else f"customer {row}" for row in range(rows)],
            "price": np.arange(rows) * 0.37,
            "at": pa.array(1_700_000_000_000_000 + np.arange(rows) * 1000).cast(pa.timestamp("us", "UTC")),
            "ok": pa.array(np.arange(rows) % 3 == 0),
        }
    )


def rate(work: Callable[[], object], rows: int, seconds: float) -> float:
    """In thousands of rows per CPU-second."""
    work()
    done, began = 0, time.process_time()
    while time.process_time() - began < seconds:
        work()
        done += rows
    return done / (time.process_time() - began) / 1000


def avro(batch: pa.RecordBatch, seconds: float) -> None:
    rows, definition = batch.num_rows, record_definition(batch.schema)
    schema = TopicSchema(pb.Schema.Type.Avro, json.dumps(definition).encode())
    kind = shape_of(definition).arrow
    decoder = ValueDecoder(Access("pulsar://nowhere"), "bench", schema, pa.schema(list(kind)))
    raw, all_rows = avro_rows(batch, definition), np.arange(rows)
    latest, reader, shape = decoder._reader(schema, kind)

    def one_by_one() -> object:
        return decoder._row_by_row(raw, latest, reader, shape, kind)

    show("AVRO read", rate(lambda: decoder._avro(schema, raw, kind, [(None, all_rows)]), rows, seconds),
         rate(one_by_one, rows, seconds))  # fmt: skip
    show("AVRO write", rate(lambda: avro_rows(batch, definition), rows, seconds),
         rate(lambda: _avro_row_by_row(batch, definition), rows, seconds))  # fmt: skip


def in_json(batch: pa.RecordBatch, seconds: float) -> None:
    rows, text = batch.num_rows, _json_struct(list(batch.schema))
    shape = shape_of({"type": "record", "name": "R", "fields": FIELDS})
    raw = json_rows(batch)
    # a number with a point makes every row go one by one
    odd = pa.concat_arrays([raw, pa.array([b'{"id": 1.0}'])])

    def one_by_one() -> object:
        found = batch.to_pylist(maps_as_pydicts="strict")
        return pa.array([text(row).encode() for row in found], pa.binary())

    show("JSON read", rate(lambda: json_values(raw, shape.arrow, "bench", shape), rows, seconds),
         rate(lambda: json_values(odd, shape.arrow, "bench", shape), rows, seconds))  # fmt: skip
    show("JSON write", rate(lambda: json_rows(batch), rows, seconds), rate(one_by_one, rows, seconds))


def show(what: str, columns: float, rows: float) -> None:
    print(f"  {what:12} {columns:7.0f} k rows per CPU-second   row by row {rows:7.0f} k", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=[1000, 30_000])
    parser.add_argument("--seconds", type=float, default=2.0, help="of CPU for each figure")
    arguments = parser.parse_args()
    for rows in arguments.rows:
        print(f"batches of {rows:,} rows")
        batch = records(rows)
        avro(batch, arguments.seconds)
        in_json(batch, arguments.seconds)


if __name__ == "__main__":
    main()
