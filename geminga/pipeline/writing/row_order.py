"""A task's rows in an order that their content alone decides, whatever order a shuffle gave them."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from geminga.pipeline.columns.columns import DELIVER_AT_TIME, PARTITION, TOPIC
from geminga.pipeline.columns.encoding import Rows, batch_payload
from geminga.pipeline.columns.protobuf_columns import Ints
from geminga.pipeline.values.row_columns import rows_of
from geminga.pipeline.values.value_encoding import Encoder

_SIZE = struct.Struct(">I")
_CONTENT = "content"


def by_content(
    batches: Iterable[pa.RecordBatch], encoder_of: Callable[[pa.Schema], Encoder]
) -> list[pa.RecordBatch]:
    """All rows of the task, sorted; it holds them in memory. Rows that compare equal are written equal."""
    given = [batch for batch in batches if batch.num_rows]
    if not given:
        return []
    encode = encoder_of(given[0].schema)
    content = pa.chunked_array([encoded_rows(rows_of(batch, *encode(batch))) for batch in given])
    rows = pa.Table.from_batches(given)
    beside = [name for name in (TOPIC, PARTITION, DELIVER_AT_TIME) if name in rows.schema.names]
    keys = pa.table([content, *(rows.column(name) for name in beside)], names=[_CONTENT, *beside])
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.schema.names])
    found: list[pa.RecordBatch] = rows.take(order).to_batches(max_chunksize=given[0].num_rows)
    return found


def encoded_rows(rows: Rows) -> pa.LargeBinaryArray:
    """Each row as it is in a batch entry."""
    payload = batch_payload(rows)
    offsets = _offsets(payload, np.asarray(pc.binary_length(rows.value).fill_null(0), np.int64))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(payload)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(rows), buffers)


def _offsets(payload: bytes, value_bytes: Ints) -> Ints:
    offsets = np.zeros(len(value_bytes) + 1, np.int64)
    at = 0
    for row, size in enumerate(value_bytes.tolist()):
        at += _SIZE.size + _SIZE.unpack_from(payload, at)[0] + size
        offsets[row + 1] = at
    return offsets
