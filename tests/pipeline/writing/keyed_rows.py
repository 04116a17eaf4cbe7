"""Messages with every kind of key, as the Java client sends them: the Python client has text keys only."""

from __future__ import annotations

import base64
from collections.abc import Sequence

from geminga.pipeline.client.producing import Producer
from geminga.pipeline.columns.encoding import send_frame
from geminga.pipeline.columns.routing import java_string_hash
from geminga.pipeline.errors import Access
from geminga.wire import pulsar_pb2 as pb

BINARY = b"\xff\xfe no text \x00"
KEYS: tuple[tuple[bytes | None, bool], ...] = (
    (b"user-1", False),
    (b"user-1", True),  # as `keyBytes` of the Java client sends it
    (base64.b64encode(b"user-1"), False),  # a text that happens to be base64
    (BINARY, True),
    ("Zoë 鍵 🔑".encode(), False),
    (b"", False),
    (b"", True),
    (None, False),
)
"""(key as a program sees it, whether its producer said that it is bytes)."""


def wire_key(key: bytes, is_bytes: bool) -> str:
    return base64.b64encode(key).decode() if is_bytes else key.decode()


def send_as_java(service_url: str, parts: Sequence[str], rows: int) -> None:
    """Batches of ten that mix all kinds of keys, in the partitions that the Java client chooses."""
    access = Access(service_url)
    by_part: dict[str, list[tuple[int, bytes | None, bool]]] = {part: [] for part in parts}
    for row in range(rows):
        key, is_bytes = KEYS[row % len(KEYS)]
        index = row if key is None else java_string_hash(wire_key(key, is_bytes))
        by_part[parts[index % len(parts)]].append((row, key, is_bytes))
    for part, messages in by_part.items():
        producer = Producer(access, part, None, pending_max=100, send_timeout_s=10)
        assert producer.name is not None
        for at in range(0, len(messages), 10):
            ten = messages[at : at + 10]
            payload = b"".join(_single(*message) for message in ten)
            head = pb.MessageMetadata(
                producer_name=producer.name, sequence_id=at, publish_time=1, num_messages_in_batch=len(ten)
            )
            producer.send(at, send_frame(1, head, payload, pb.NONE))
        producer.flush()
        producer.close()


def _single(row: int, key: bytes | None, is_bytes: bool) -> bytes:
    value = b"%d" % row
    single = pb.SingleMessageMetadata(payload_size=len(value), event_time=row + 1)
    if key is not None:
        single.partition_key = wire_key(key, is_bytes)
        if is_bytes:
            single.partition_key_b64_encoded = True
    if row % 3 == 0:
        single.ordering_key = BINARY if row % 2 else b""
    single.properties.add(key="row", value=str(row))
    head = single.SerializeToString()
    return len(head).to_bytes(4, "big") + head + value
