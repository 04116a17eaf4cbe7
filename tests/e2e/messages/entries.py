"""Entries of every shape that the admin API shows, written byte by byte: the same on each broker.

The compressed payloads are stored in the form that the official clients write: an LZ4 block, a zlib stream, a
Zstandard frame, a Snappy block.
"""

from __future__ import annotations

import zlib
from typing import NamedTuple

import pyarrow as pa

from geminga.wire import pulsar_pb2 as pb
from tests.e2e.binary_session import BinarySession, message_bytes

PUBLISHED_MS = 1_700_000_000_123
TEXT = b"a payload that can be compressed, " * 30


class Written(NamedTuple):
    metadata: pb.MessageMetadata
    payload: bytes
    messages: int = 1


def _metadata(number: int, **fields: object) -> pb.MessageMetadata:
    return pb.MessageMetadata(
        producer_name="raw", sequence_id=number, publish_time=PUBLISHED_MS + 1000 * number, **fields
    )


def _batch(*payloads: bytes) -> bytes:
    parts = []
    for number, payload in enumerate(payloads):
        single = pb.SingleMessageMetadata(payload_size=len(payload), partition_key=f"k{number}")
        single.properties.add(key="in-batch", value=str(number))
        encoded = single.SerializeToString()
        parts.append(len(encoded).to_bytes(4, "big") + encoded + payload)
    return b"".join(parts)


def _compressed(kind: int, payload: bytes) -> bytes:
    if kind == pb.ZLIB:
        return zlib.compress(payload)
    codec = {pb.LZ4: "lz4_raw", pb.ZSTD: "zstd", pb.SNAPPY: "snappy"}[kind]
    return bytes(pa.Codec(codec).compress(payload, asbytes=True))


def entries() -> list[Written]:
    """In the order in which they are published; of each kind one."""
    made: list[Written] = []

    def add(payload: bytes, messages: int = 1, **fields: object) -> pb.MessageMetadata:
        made.append(Written(_metadata(len(made), **fields), payload, messages))
        return made[-1].metadata

    add(b"plain")
    rich = add(
        b"rich",
        partition_key="key",
        ordering_key=b"order\xff",
        event_time=PUBLISHED_MS - 7,
        schema_version=b"\x00\x00\x00\x00\x00\x00\x00\x01",
        replicated_from="far",
        replicate_to=["east", "west"],
        deliver_at_time=PUBLISHED_MS + 5,
        uuid="u-1",
        highest_sequence_id=9,
    )
    for key, value in (("a", "1"), ("b", "two <words> & 'more' = \"quoted\""), ("é", "ü\n"), ("a", "again")):
        rich.properties.add(key=key, value=value)
    add(b"binary key", partition_key="AAEC", partition_key_b64_encoded=True, null_partition_key=False)
    add(b"", null_value=True)
    batch = _batch(b"one", b"", b"three")
    add(batch, 3, num_messages_in_batch=3)
    add(_batch(b"single"), num_messages_in_batch=1)
    for kind in (pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY):
        add(_compressed(kind, TEXT), compression=kind, uncompressed_size=len(TEXT))
    add(
        _compressed(pb.LZ4, batch),
        3,
        num_messages_in_batch=3,
        compression=pb.LZ4,
        uncompressed_size=len(batch),
    )
    sealed = add(
        b"sealed",
        encryption_algo="AES/GCM/NoPadding",
        encryption_param=b"\x01\x02\x03",
        compression=pb.LZ4,
        uncompressed_size=99,
    )
    sealed.encryption_keys.add(key="k1", value=b"\x05\x06")
    for chunk in range(2):
        add(
            b"chunk%d" % chunk,
            uuid="chunked",
            num_chunks_from_msg=2,
            chunk_id=chunk,
            total_chunk_msg_size=12,
        )
    add(b"broken lines", partition_key="two\r\nlines: x", replicated_from="zw\tölf")
    add(b"last")
    return made


def publish(address: tuple[str, int], topic: str, written: list[Written]) -> int:
    """All of them, one after the other; returns the ledger of the first."""
    ledger_id = -1
    with BinarySession(address) as session:
        session.connect()
        session.create_producer(topic)
        for number, (metadata, payload, messages) in enumerate(written):
            session.send(
                pb.CommandSend(producer_id=1, sequence_id=number, num_messages=messages),
                message_bytes(metadata, payload),
            )
            receipt = session.expect(pb.CommandSendReceipt)
            if ledger_id < 0:
                ledger_id = receipt.message_id.ledgerId
    return ledger_id
