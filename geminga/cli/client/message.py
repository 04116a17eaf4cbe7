"""Deliveries as messages: out of their batches, unpacked, whole. Nothing here waits."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from geminga.cli.payloads.chunks import Assembly, Chunk
from geminga.cli.payloads.compression import inflated
from geminga.cli.payloads.errors import CannotDecode
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import position_of
from geminga.wire.decoder import Delivery
from geminga.wire.message_metadata import peek, strip

Position = tuple[int, int]


class Message(NamedTuple):
    """One message, out of its batch."""

    ledger_id: int
    entry_id: int
    batch_index: int
    """-1: it was not in a batch."""
    partition: int
    payload: bytes
    compression: str
    """Other than NONE: `payload` is still compressed (and a batch, if it was one)."""
    key: str
    properties: dict[str, str]
    publish_time_ms: int
    deliver_at_ms: int
    redelivery_count: int
    producer_name: str
    event_time_ms: int = 0
    ordering_key: bytes = b""
    sequence_id: int = 0
    is_key_base64: bool = False
    is_null: bool = False
    """There is no value, not even an empty one."""
    schema_version: bytes = b""
    encrypted_with: tuple[str, ...] = ()
    """Names of the keys; `payload` is what the producer made with them."""
    problem: str = ""
    """Why `payload` is as it came."""
    positions: tuple[Position, ...] = ()
    """Of all its chunks; empty: it is one entry, or part of one."""
    batch_size: int = 1

    @property
    def id(self) -> str:
        suffix = f":{self.partition}" if self.partition >= 0 else ""
        return f"{self.ledger_id}:{self.entry_id}{suffix}"

    @property
    def has_key(self) -> bool:
        return bool(self.key) or self.is_key_base64

    @property
    def key_bytes(self) -> bytes:
        if not self.is_key_base64:
            return self.key.encode()
        try:
            return base64.b64decode(self.key, validate=True)
        except binascii.Error:
            return self.key.encode()


def position(delivery: Delivery) -> Position:
    return position_of(delivery.message.message_id)


def messages(delivery: Delivery, chunks: Assembly | None = None) -> Iterator[Message]:
    """The messages of an entry. What cannot be unpacked stays one message, as it is, with its `problem`. With
    `chunks`, a chunk is nothing until its message is whole; without, it is a message.
    """
    body = strip(delivery.headers_and_payload)
    metadata = peek(body).metadata
    payload = _payload(body)
    whole: tuple[Position, ...] = ()
    if chunks is not None and metadata.num_chunks_from_msg > 1:
        part = Chunk(metadata.chunk_id, metadata.num_chunks_from_msg, payload)
        found = chunks.add(metadata.uuid, part, position(delivery))
        if found is None:
            return
        payload, whole = found
    compression = pb.CompressionType.Name(metadata.compression)
    problem = ""
    if metadata.encryption_keys:
        problem = "encrypted"
    else:
        size = metadata.total_chunk_msg_size if whole else metadata.uncompressed_size
        try:
            payload, compression = (
                inflated(compression, payload, max(size, metadata.uncompressed_size)),
                "NONE",
            )
        except CannotDecode as error:
            problem = str(error)
    single = _message(delivery, metadata, metadata, payload)._replace(
        compression=compression, problem=problem, positions=whole
    )
    if not metadata.HasField("num_messages_in_batch") or problem:
        yield single
        return
    try:
        batch = list(in_batch(payload, metadata.num_messages_in_batch))
    except (DecodeError, CannotDecode) as error:
        yield single._replace(problem=f"not a batch of {metadata.num_messages_in_batch} messages: {error}")
        return
    remaining = _remaining(delivery.message.ack_set)
    for index, (own, part_of_batch) in enumerate(batch):
        if not own.compacted_out and (remaining is None or remaining >> index & 1):
            yield _message(delivery, metadata, own, part_of_batch)._replace(
                batch_index=index, batch_size=len(batch)
            )


def _remaining(ack_set: Iterable[int]) -> int | None:
    """The bits of a batch's messages that are not acknowledged; None: none is."""
    bits = None
    for number, word in enumerate(ack_set):
        bits = (bits or 0) | (word & 0xFFFF_FFFF_FFFF_FFFF) << 64 * number
    return bits


def in_batch(payload: bytes, count: int) -> Iterator[tuple[pb.SingleMessageMetadata, bytes]]:
    """Each message of a batch. `CannotDecode` or protobuf's `DecodeError` if it is none."""
    at = 0
    for _ in range(count):
        if at >= len(payload):
            raise CannotDecode("it ends too early")
        size = int.from_bytes(payload[at : at + 4], "big")
        single = pb.SingleMessageMetadata.FromString(payload[at + 4 : at + 4 + size])
        at += 4 + size
        yield single, payload[at : at + single.payload_size]
        at += max(single.payload_size, 0)


def _message(
    delivery: Delivery,
    metadata: pb.MessageMetadata,
    own: pb.MessageMetadata | pb.SingleMessageMetadata,
    payload: bytes,
) -> Message:
    ledger_id, entry_id = position(delivery)
    keys: Iterable[Any] = metadata.encryption_keys
    return Message(
        ledger_id=ledger_id,
        entry_id=entry_id,
        batch_index=-1,
        partition=delivery.message.message_id.partition,
        payload=payload,
        compression="NONE",
        key=own.partition_key,
        properties={pair.key: pair.value for pair in own.properties},
        publish_time_ms=metadata.publish_time,
        deliver_at_ms=metadata.deliver_at_time,
        redelivery_count=delivery.message.redelivery_count,
        producer_name=metadata.producer_name,
        event_time_ms=own.event_time,
        ordering_key=own.ordering_key,
        sequence_id=own.sequence_id or metadata.sequence_id,
        is_key_base64=own.partition_key_b64_encoded,
        is_null=own.null_value,
        schema_version=metadata.schema_version,
        encrypted_with=tuple(key.key for key in keys),
    )


def _payload(body: bytes) -> bytes:
    """The bytes after checksum and metadata."""
    at = 6 if body[:2] == b"\x0e\x01" else 0
    size = int.from_bytes(body[at : at + 4], "big")
    return body[at + 4 + size :]
