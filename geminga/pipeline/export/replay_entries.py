"""One entry of a replay: the messages that travel together, with what their metadata says."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from geminga.pipeline.columns.columns import EVENT_TIME, KEY, KEY_BASE64, ORDERING_KEY, PROPERTIES, VALUE
from geminga.pipeline.columns.encoding import Rows, deflate, send_frame
from geminga.pipeline.columns.protobuf_columns import Ints
from geminga.pipeline.values.row_columns import rows_of
from geminga.wire import pulsar_pb2 as pb

_SENT = (VALUE, KEY, KEY_BASE64, ORDERING_KEY, EVENT_TIME, PROPERTIES)


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


def rows_to_send(batch: pa.RecordBatch) -> Rows:
    """What is sent of the rows, keys in the form that their producer gave them."""
    return rows_of(batch.select([name for name in batch.schema.names if name in _SENT]))
