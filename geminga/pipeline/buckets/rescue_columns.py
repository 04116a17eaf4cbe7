"""Rescued entries as columns: where each lay, its bytes, and what its metadata says if it is a message."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from geminga.errors import ProtocolError
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import signed
from geminga.wire.message_metadata import broker_timestamp_ms, peek
from geminga.wire.stored_entry import is_virtual, metadata_range, parse_metadata, raw_text, stamp_bytes

ENTRIES: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("ledger_id", pa.int64()),
        ("entry_id", pa.int64()),
        ("path", pa.string()),
        ("offset", pa.int64()),
        ("is_message", pa.bool_()),
        ("broker_time_ms", pa.int64()),
        ("publish_time_ms", pa.int64()),
        ("event_time_ms", pa.int64()),
        ("deliver_at_ms", pa.int64()),
        ("producer", pa.string()),
        ("sequence_id", pa.int64()),
        ("key", pa.binary()),
        ("messages", pa.int32()),
        ("compression", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("body", pa.binary()),
        ("payload_at", pa.int32()),
    ]
)
"""`body` is the entry as it was stored; from `payload_at` on is what the client sent, compressed and with all
messages of a batch. If a property occurs twice, the last one counts. `topic` is null where no file names the
ledger. Entries that are not messages (states of cursors, buckets of the delayed index) have only position and
bytes.
"""
_COMPRESSIONS: Final = ("NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY")


class EntryColumns:
    """Collects entries of one file."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._rows: list[dict[str, Any]] = []
        self.body_bytes = 0

    @property
    def rows(self) -> int:
        return len(self._rows)

    def add(self, topic: str | None, ledger_id: int, entry_id: int, offset: int, body: bytes) -> None:
        found_at = {"topic": topic, "ledger_id": ledger_id, "entry_id": entry_id, "path": self._path}
        self._rows.append({**found_at, "offset": offset, "body": body, **said_by(body)})
        self.body_bytes += len(body)

    def take(self) -> pa.RecordBatch:
        """All rows since the last call."""
        batch = pa.RecordBatch.from_pylist(self._rows, ENTRIES)
        self._rows, self.body_bytes = [], 0
        return batch


def said_by(body: bytes) -> dict[str, Any]:
    """What an entry says of itself; nothing but `is_message` if it is no message."""
    try:
        begin, end = metadata_range(body)
        metadata = parse_metadata(body, begin, end)
        stamp_ms = broker_timestamp_ms(body) if stamp_bytes(body) else None
    except ProtocolError:
        return {"is_message": False}
    if not metadata.IsInitialized():
        return {"is_message": False}
    key = metadata.partition_key if metadata.HasField("partition_key") else None
    return {
        "is_message": True,
        "broker_time_ms": signed(stamp_ms) if stamp_ms is not None else None,
        "publish_time_ms": signed(metadata.publish_time),
        "event_time_ms": signed(metadata.event_time) or None,
        "deliver_at_ms": _due_ms(body, metadata),
        "producer": _text(metadata.producer_name),
        "sequence_id": signed(metadata.sequence_id),
        "key": raw_text(key) if key is not None else None,
        "messages": metadata.num_messages_in_batch,
        "compression": _COMPRESSIONS[metadata.compression] if metadata.compression < 5 else None,
        "properties": list({_text(pair.key): _text(pair.value) for pair in metadata.properties}.items()),
        "payload_at": end,
    }


def _due_ms(body: bytes, metadata: pb.MessageMetadata) -> int | None:
    """When the broker delivers it: under a virtual clock not when the client wrote."""
    if not metadata.HasField("deliver_at_time"):
        return None
    return peek(body).deliver_at_ms if is_virtual(body) else metadata.deliver_at_time


def _text(given: str | bytes) -> str:
    """What is not UTF-8 becomes U+FFFD."""
    return raw_text(given).decode(errors="replace")
