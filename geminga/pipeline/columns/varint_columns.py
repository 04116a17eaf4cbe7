"""Varints of many numbers at once."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from geminga.pipeline.columns.protobuf_columns import Bytes, Ints

_VARINT_BYTES_MAX = 10


def varints(tag: bytes, values: Ints) -> pa.BinaryArray:
    """`tag`, then the number as a varint, for each."""
    count = len(values)
    width = 1
    top = int(values.max(initial=0))
    while top >= 1 << (7 * width) and width < _VARINT_BYTES_MAX:
        width += 1
    table: Bytes = np.empty((count, len(tag) + width), np.uint8)
    table[:, : len(tag)] = np.frombuffer(tag, np.uint8)
    sizes = np.ones(count, np.int64)
    for byte in range(width):
        rest = values >> (7 * byte)
        table[:, len(tag) + byte] = rest & 0x7F
        longer = rest >= 0x80
        table[longer, len(tag) + byte] |= 0x80
        sizes += longer
    return _ragged(table, sizes + len(tag))


def _ragged(table: Bytes, sizes: Ints) -> pa.BinaryArray:
    """The first sizes[i] bytes of each row."""
    count, width = table.shape
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    data = table.reshape(-1) if offsets[-1] == count * width else table[np.arange(width) < sizes[:, None]]
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
