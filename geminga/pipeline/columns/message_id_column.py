"""Message ids as bytes (MessageIdData), as the clients of C++ and Python give them, a column at once. Java
says more of messages that are in no batch, or in chunks.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from geminga.pipeline.columns.batches import Messages
from geminga.pipeline.columns.entries import NO_BATCH
from geminga.pipeline.columns.protobuf_columns import Bytes, Ints
from geminga.pipeline.columns.varint_columns import varints
from geminga.wire.varint import varint

_LEDGER, _ENTRY, _PARTITION, _BATCH_INDEX, _BATCH_SIZE = b"\x08", b"\x10", b"\x18", b"\x20", b"\x30"
_UINT64_MAX = 2**64 - 1
_LARGE_BATCH = 100


def message_ids(messages: Messages) -> pa.BinaryArray:
    """ledger id, entry id, partition if it has one; batch index and size if it was in a batch."""
    if len(messages) <= _LARGE_BATCH * len(messages.entries):
        return _of_small_batches(messages)
    return _of_large_batches(messages)


def _of_small_batches(messages: Messages) -> pa.BinaryArray:
    """A few steps for all messages, each of which costs something for every message."""
    entries = messages.entries
    parts = [varints(_LEDGER, entries.ledger_id), varints(_ENTRY, entries.entry_id)]
    partition = varints(_PARTITION, np.maximum(entries.partition, 0))
    parts.append(pc.if_else(pa.array(entries.partition >= 0), partition, b""))
    entry = pa.array(messages.entry)
    prefix = pc.binary_join_element_wise(*parts, b"").take(entry)
    suffix = varints(_BATCH_SIZE, np.maximum(entries.batch_messages, 0)).take(entry)
    index = varints(_BATCH_INDEX, np.maximum(messages.batch_index, 0))
    if (messages.batch_index == NO_BATCH).any():
        batched = pa.array(messages.batch_index != NO_BATCH)
        index, suffix = pc.if_else(batched, index, b""), pc.if_else(batched, suffix, b"")
    return pc.binary_join_element_wise(prefix, index, suffix, b"")


def _of_large_batches(messages: Messages) -> pa.BinaryArray:
    """A few steps for each batch, which cost next to nothing for a message."""
    count = len(messages)
    entries = messages.entries
    sizes = np.empty(count, np.int64)
    tables: list[Bytes] = []
    changes = np.flatnonzero(np.diff(messages.entry)) + 1
    firsts = [0, *changes.tolist()] if count else []
    for first, last in zip(firsts, [*firsts[1:], count], strict=True):
        row = int(messages.entry[first])
        prefix = _prefix(int(entries.ledger_id[row]), int(entries.entry_id[row]), int(entries.partition[row]))
        suffix = _BATCH_SIZE + varint(max(int(entries.batch_messages[row]), 0))
        at = first
        while at < last:
            # messages of an entry whose batch indexes take the same number of bytes have ids of one size
            index = int(messages.batch_index[at])
            if index == NO_BATCH:
                until, table = at + 1, np.frombuffer(prefix, np.uint8)
            else:
                width = len(varint(index))
                bound = np.searchsorted(messages.batch_index[at:last], 1 << (7 * width))
                until = at + int(bound)
                table = _table(prefix, messages.batch_index[at:until], width, suffix)
            sizes[at:until] = table.size // (until - at)
            tables.append(table.reshape(-1))
            at = until
    offsets = np.zeros(count + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    data = np.concatenate(tables) if tables else np.zeros(0, np.uint8)
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _prefix(ledger_id: int, entry_id: int, partition: int) -> bytes:
    parts = [_LEDGER, varint(ledger_id & _UINT64_MAX), _ENTRY, varint(entry_id & _UINT64_MAX)]
    if partition >= 0:
        parts += [_PARTITION, varint(partition)]
    return b"".join(parts)


def _table(prefix: bytes, batch_indexes: Ints, width: int, suffix: bytes) -> Bytes:
    """One id a row: the prefix, the tag, the index in `width` bytes, and the suffix."""
    start = len(prefix)
    table = np.empty((len(batch_indexes), start + 1 + width + len(suffix)), np.uint8)
    table[:, :start] = np.frombuffer(prefix, np.uint8)
    table[:, start] = _BATCH_INDEX[0]
    table[:, start + 1 + width :] = np.frombuffer(suffix, np.uint8)
    for byte in range(width):
        more = 0x80 if byte < width - 1 else 0
        table[:, start + 1 + byte] = (batch_indexes >> (7 * byte)) & 0x7F | more
    return table
