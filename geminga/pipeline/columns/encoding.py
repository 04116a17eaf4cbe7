"""Arrow columns into batches as producers send them; the inverse of batches.py, and as much in columns."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from fastcrc.crc32 import iscsi as crc_32c

from geminga.pipeline.columns.protobuf_columns import Ints
from geminga.pipeline.columns.varint_columns import varints
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.varint import varint

_KEY_TAG, _PAYLOAD_SIZE_TAG, _EVENT_TIME_TAG = b"\x12", b"\x18", b"\x28"
_PROPERTIES_TAG, _NULL_VALUE, _KEY_BASE64 = b"\x0a", b"\x48\x01", b"\x30\x01"
_SIZES = struct.Struct(">II")
_CHECKSUM = struct.Struct(">HI")
_CHECKSUM_MAGIC = 0x0E01

COMPRESSIONS = {"none": pb.NONE, "lz4": pb.LZ4, "zlib": pb.ZLIB, "zstd": pb.ZSTD, "snappy": pb.SNAPPY}


def _by_codec(name: str) -> Callable[[bytes], bytes]:
    codec = pa.Codec(name)
    return lambda payload: bytes(codec.compress(payload, asbytes=True))


_DEFLATE: dict[int, Callable[[bytes], bytes]] = {
    pb.LZ4: _by_codec("lz4_raw"),
    pb.ZLIB: zlib.compress,
    pb.ZSTD: _by_codec("zstd"),
    pb.SNAPPY: _by_codec("snappy"),
}


def deflate(compression: int, payload: bytes) -> bytes:
    return payload if compression == pb.NONE else _DEFLATE[compression](payload)


@dataclass
class Rows:
    """Messages to send, a column each. Null: it has none (a null value is sent as such)."""

    value: pa.BinaryArray
    key: pa.BinaryArray | None = None
    event_time_ms: pa.Int64Array | None = None
    properties: pa.MapArray | None = None
    ordering_key: pa.BinaryArray | None = None
    deliver_at_ms: pa.Int64Array | None = None
    key_base64: pa.BooleanArray | None = None
    """Of each row, whether `key` is bytes in base64; None: of no row."""

    def __len__(self) -> int:
        return len(self.value)

    @property
    def content_bytes(self) -> int:
        """Of values, keys and properties: less than they take in an entry, and about what they take here."""
        found = _content_bytes(self.value) + _content_bytes(self.key) + _content_bytes(self.ordering_key)
        if self.properties is not None and len(self):
            begin, end = self.properties.offsets[0].as_py(), self.properties.offsets[len(self)].as_py()
            for texts in (self.properties.keys, self.properties.items):
                found += _content_bytes(texts.slice(begin, end - begin))
        return found

    def slice(self, at: int, count: int) -> Rows:
        return self._each(lambda column: column.slice(at, count))

    def take(self, rows: Ints) -> Rows:
        wanted = pa.array(rows)
        return self._each(lambda column: column.take(wanted))

    def _each(self, change: Callable[[pa.Array], pa.Array]) -> Rows:
        def each(column: pa.Array | None) -> pa.Array | None:
            return None if column is None else change(column)

        return Rows(
            change(self.value),
            each(self.key),
            each(self.event_time_ms),
            each(self.properties),
            each(self.ordering_key),
            each(self.deliver_at_ms),
            each(self.key_base64),
        )


def _content_bytes(column: pa.Array | None) -> int:
    """Of a column of bytes or text."""
    if column is None or len(column) == 0:
        return 0
    ends = np.frombuffer(column.buffers()[1], np.int32)
    return int(ends[column.offset + len(column)] - ends[column.offset])


def concatenate(parts: list[Rows]) -> Rows:
    """A column that only some of them have is null in the rows of the others."""
    if len(parts) == 1:
        return parts[0]

    def joined(columns: list[pa.Array | None]) -> pa.Array | None:
        known = [column for column in columns if column is not None]
        if len(known) < len(columns):
            if not known:
                return None
            known = [
                pa.nulls(len(part), known[0].type) if column is None else column
                for part, column in zip(parts, columns, strict=True)
            ]
        return pa.concat_arrays(known)

    return Rows(
        pa.concat_arrays([part.value for part in parts]),
        joined([part.key for part in parts]),
        joined([part.event_time_ms for part in parts]),
        joined([part.properties for part in parts]),
        joined([part.ordering_key for part in parts]),
        joined([part.deliver_at_ms for part in parts]),
        joined([part.key_base64 for part in parts]),
    )


def batch_payload(rows: Rows) -> bytes:
    """The rows as the payload of one batch entry, not compressed."""
    count = len(rows)
    value = rows.value
    sizes = _lengths(value)
    after = [varints(_PAYLOAD_SIZE_TAG, sizes)]
    if rows.event_time_ms is not None:
        after.append(_optional_varints(_EVENT_TIME_TAG, rows.event_time_ms))
    if value.null_count:
        after.append(pc.if_else(value.is_null(), pa.scalar(_NULL_VALUE), pa.scalar(b"")))
        value = value.fill_null(b"")
    before = []
    if rows.properties is not None:
        before.append(_properties(rows.properties))
    if rows.key is not None and rows.key.null_count < count:
        key = rows.key.fill_null(b"")
        head = varints(_KEY_TAG, _lengths(key))
        if rows.key.null_count:
            head = pc.if_else(rows.key.is_null(), pa.scalar(b""), head)
        before += [head, key]
        if rows.key_base64 is not None:
            flags = rows.key_base64.fill_null(False)
            after.append(pc.if_else(flags, pa.scalar(_KEY_BASE64), pa.scalar(b"")))
    if rows.ordering_key is not None and rows.ordering_key.null_count < count:
        key = rows.ordering_key.fill_null(b"")
        head = pc.if_else(rows.ordering_key.is_null(), pa.scalar(b""), varints(b"\x3a", _lengths(key)))
        after += [head, key]
    metadata_bytes = sum((_lengths(part) for part in (*before, *after)), np.zeros(count, np.int64))
    pieces = [_u32s(metadata_bytes), *before, *after, value]
    joined = pc.binary_join_element_wise(*pieces, b"")
    assert isinstance(joined, pa.Array)
    bounds = _bounds(joined)
    return bytes(memoryview(joined.buffers()[2])[int(bounds[0]) : int(bounds[-1])])


def _lengths(column: pa.BinaryArray) -> Ints:
    if column.null_count:
        return np.asarray(pc.binary_length(column).fill_null(0), np.int64)
    # Three calls of Arrow for each batch of a thousand rows cost as much as encoding these.
    return np.diff(_bounds(column)).astype(np.int64)


def _bounds(column: pa.BinaryArray) -> npt.NDArray[np.int32]:
    """Where each value begins in the array's data, and where the last one ends."""
    return np.frombuffer(column.buffers()[1], np.int32)[column.offset : column.offset + len(column) + 1]


def _u32s(values: Ints) -> pa.BinaryArray:
    count = len(values)
    data = values.astype(">u4").tobytes()
    offsets = np.arange(0, 4 * count + 1, 4, dtype=np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _optional_varints(tag: bytes, values: pa.Int64Array) -> pa.BinaryArray:
    found = varints(tag, np.asarray(values.fill_null(0), np.int64))
    if values.null_count:
        found = pc.if_else(values.is_null(), pa.scalar(b""), found)
    return found


def _properties(column: pa.MapArray) -> pa.BinaryArray:
    found = []
    for pairs in column.to_pylist():
        parts = []
        for key, value in pairs or ():
            pair = pb.KeyValue(key=key, value=value or "").SerializeToString()
            parts += [_PROPERTIES_TAG, varint(len(pair)), pair]
        found.append(b"".join(parts))
    return pa.array(found, pa.binary())


def batch_metadata(
    producer: str, sequence_id: int, highest_sequence_id: int, publish_time_ms: int, rows: Rows
) -> pb.MessageMetadata:
    metadata = pb.MessageMetadata(
        producer_name=producer,
        sequence_id=sequence_id,
        publish_time=publish_time_ms,
        num_messages_in_batch=len(rows),
        highest_sequence_id=highest_sequence_id,
    )
    _first_keys(metadata, rows)
    return metadata


def single_metadata(producer: str, sequence_id: int, publish_time_ms: int, row: Rows) -> pb.MessageMetadata:
    """For a message that travels alone, as one with a delivery time does."""
    metadata = pb.MessageMetadata(
        producer_name=producer, sequence_id=sequence_id, publish_time=publish_time_ms
    )
    _first_keys(metadata, row)
    if row.event_time_ms is not None and row.event_time_ms[0].is_valid:
        metadata.event_time = row.event_time_ms[0].as_py()
    if row.deliver_at_ms is not None and row.deliver_at_ms[0].is_valid:
        metadata.deliver_at_time = row.deliver_at_ms[0].as_py()
    if row.properties is not None:
        for key, value in row.properties[0].as_py() or ():
            metadata.properties.add(key=key, value=value or "")
    if not row.value[0].is_valid:
        metadata.null_value = True
    return metadata


def _first_keys(metadata: pb.MessageMetadata, rows: Rows) -> None:
    """The key of an entry is that of its first message."""
    if rows.key is not None and rows.key[0].is_valid:
        metadata.partition_key = rows.key[0].as_py().decode()
        if rows.key_base64 is not None and rows.key_base64[0].as_py():
            metadata.partition_key_b64_encoded = True
    if rows.ordering_key is not None and rows.ordering_key[0].is_valid:
        metadata.ordering_key = rows.ordering_key[0].as_py()


def send_frame(producer_id: int, metadata: pb.MessageMetadata, payload: bytes, compression: int) -> bytes:
    """A whole SEND, its payload compressed and its checksum computed."""
    if compression != pb.NONE:
        metadata.compression = pb.CompressionType.ValueType(compression)  # type: ignore[assignment]
        metadata.uncompressed_size = len(payload)
        payload = deflate(compression, payload)
    head = metadata.SerializeToString()
    size = len(head).to_bytes(4, "big")
    checksum = crc_32c(payload, crc_32c(size + head))
    send = pb.CommandSend(
        producer_id=producer_id,
        sequence_id=metadata.sequence_id,
        num_messages=metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else None,
        highest_sequence_id=metadata.highest_sequence_id
        if metadata.HasField("highest_sequence_id")
        else None,
        is_chunk=True if metadata.HasField("chunk_id") else None,
    )
    command = pb.BaseCommand(type=pb.BaseCommand.Type.SEND, send=send).SerializeToString()
    after = _CHECKSUM.pack(_CHECKSUM_MAGIC, checksum) + size + head
    sizes = _SIZES.pack(4 + len(command) + len(after) + len(payload), len(command))
    return b"".join((sizes, command, after, payload))
