"""One entry of a replay: the messages that travel together, with what their metadata says."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from geminga.pipeline.columns.columns import EVENT_TIME, KEY, KEY_BASE64, ORDERING_KEY, PROPERTIES, VALUE
from geminga.pipeline.columns.encoding import Rows, deflate, send_frame
from geminga.pipeline.columns.entries import Flags
from geminga.pipeline.columns.protobuf_columns import Ints
from geminga.pipeline.values.row_columns import rows_of
from geminga.wire import pulsar_pb2 as pb

_SENT = (VALUE, ORDERING_KEY, EVENT_TIME, PROPERTIES)


@dataclass
class Entry:
    rows: Rows
    sequence_ids: Ints
    deliver_at_ms: int | None
    version: bytes | None

    def mark(self, metadata: pb.MessageMetadata) -> None:
        if self.deliver_at_ms is not None:
            metadata.deliver_at_time = self.deliver_at_ms
        if self.version is not None:
            metadata.schema_version = self.version


def chunk_frames(metadata: pb.MessageMetadata, payload: bytes, compression: int, bound: int) -> list[bytes]:
    """A message that is larger than the broker takes, in parts, as the clients send it."""
    whole = deflate(compression, payload)
    if compression != pb.NONE:
        metadata.compression = pb.CompressionType.ValueType(compression)  # type: ignore[assignment]
        metadata.uncompressed_size = len(payload)
    parts = [whole[at : at + bound] for at in range(0, len(whole), bound)]
    metadata.uuid = f"{metadata.producer_name}-{metadata.sequence_id}"
    metadata.num_chunks_from_msg = len(parts)
    metadata.total_chunk_msg_size = len(whole)
    frames = []
    for number, part in enumerate(parts):
        metadata.chunk_id = number
        frames.append(send_frame(1, metadata, part, pb.NONE))
    return frames


def rows_to_send(batch: pa.RecordBatch, flags: Flags) -> Rows:
    """What is sent of the rows: their keys as text again where they are written in base64."""
    keys = batch.column(KEY)
    if flags.any():
        encoded = [
            base64.b64encode(key) if key is not None and is_bytes else key
            for key, is_bytes in zip(keys.to_pylist(), flags.tolist(), strict=True)
        ]
        keys = pa.array(encoded, pa.binary())
    wanted: dict[str, Any] = {name: batch.column(name) for name in batch.schema.names if name in _SENT}
    rows = rows_of(pa.RecordBatch.from_pydict(wanted))
    rows.key = keys if keys.null_count < len(keys) else None
    return rows


def key_flags(batch: pa.RecordBatch) -> Flags:
    """Whether the key of each row is bytes; a row without a key is as the one before. What is no text counts
    as bytes, whatever its producer said.
    """
    keys = batch.column(KEY)
    flags = np.asarray(batch.column(KEY_BASE64).fill_null(False), bool)
    try:
        keys.cast(pa.string())
    except pa.ArrowInvalid:
        flags = flags | [key is not None and not _is_text(key) for key in keys.to_pylist()]
    if not flags.any():
        return flags
    keyed = ~np.asarray(keys.is_null())
    last = np.maximum.accumulate(np.where(keyed, np.arange(len(flags)), -1))
    return np.where(last >= 0, flags[np.maximum(last, 0)], False)


def _is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True
