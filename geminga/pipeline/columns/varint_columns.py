"""Varints of many numbers at once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from geminga.pipeline.columns.protobuf_columns import Bytes, Ints


def varints(tag: bytes, values: Ints) -> pa.BinaryArray:
    """`tag`, then the number as a varint, for each."""
    numbers, sizes = varint_table(values.astype(np.uint64))
    table: Bytes = np.empty((len(values), len(tag) + numbers.shape[1]), np.uint8)
    table[:, : len(tag)] = np.frombuffer(tag, np.uint8)
    table[:, len(tag) :] = numbers
    return _ragged(table, None if sizes is None else sizes + len(tag))


def varint_table(values: npt.NDArray[np.uint64]) -> tuple[Bytes, Ints | None]:
    """Each number as a varint in a row of its own, and how many bytes of the row it takes; None: all."""
    width, top = 1, int(values.max(initial=0))
    while top >= 1 << (7 * width):
        width += 1
    table: Bytes = np.empty((len(values), width), np.uint8)
    last = 7 * (width - 1)
    if width == 1 or int(values.min()) >= 1 << last:
        # Numbers that count up, times and short lengths are of one size, so that no byte is looked for.
        for byte in range(width - 1):
            table[:, byte] = (values >> (7 * byte)).astype(np.uint8) | 0x80
        table[:, width - 1] = values >> last
        return table, None
    sizes = np.ones(len(values), np.int64)
    for byte in range(width - 1):
        rest = values >> (7 * byte)
        longer = rest >= 0x80
        table[:, byte] = (rest & 0x7F) | (longer.astype(np.uint8) << 7)
        sizes += longer
    table[:, width - 1] = values >> last
    return table, sizes


def _ragged(table: Bytes, sizes: Ints | None) -> pa.BinaryArray:
    """The first sizes[i] bytes of each row; None: all."""
    count, width = table.shape
    if sizes is None:
        offsets = np.arange(0, count * width + 1, width, dtype=np.int32)
        data = table.reshape(-1)
    else:
        offsets = np.zeros(count + 1, np.int32)
        np.cumsum(sizes, out=offsets[1:])
        data = table[np.arange(width) < sizes[:, None]]
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
