"""The loops in Python with the arguments and results of those in C, from what runs without C."""

from __future__ import annotations

from typing import Any

from geminga.bookie.journal.journal_format import join_records
from geminga.errors import ProtocolError
from geminga.managed_ledger.chain.entry import Entry
from geminga.position import Position
from geminga.wire import decoder
from geminga.wire.hot_encoder import MessageEncoder, ReceiptEncoder
from geminga.wire.message_metadata import peek
from geminga.wire.peek import Peek
from geminga.wire.scan_ack import scan_ack as scan_ack_in_python
from geminga.wire.stored_entry import CHECKSUM_MAGIC, USUAL_STAMP
from geminga.wire.varint import scan_varint, skip_varint, varint


def scan_sends(
    data: bytes, at: int, frame_bytes_max: int, entries_max: int, prefix: bytes
) -> tuple[Any, ...] | None:
    view = memoryview(data)
    found: list[tuple[int, int, int, int]] = []
    bodies: list[bytes] = []
    while len(found) < entries_max and len(data) - at >= decoder._HEAD_BYTES:
        total, command_size, head, id_field, tag = decoder._HEAD.unpack_from(data, at)
        end = at + 4 + total
        if total > frame_bytes_max or command_size > total - 4 or end > len(data):
            break
        if head - command_size != decoder._SEND_HEAD:
            break
        send = decoder._scan_send(data, view, at + 8 + command_size, end, id_field, tag, at + 15)
        if send is None or (found and found[0][0] != send[0]):
            break
        found.append(send)
        bodies.append(prefix + data[at + 8 + command_size : end])
        at = end
    if not found:
        return None
    producer_ids, *columns = map(list, zip(*found, strict=True))
    return (at, producer_ids[0], *columns, bodies)


def scan_ack(data: bytes, at: int, end: int) -> tuple[Any, ...] | None:
    found = scan_ack_in_python(data, 5, at, end)
    return None if found is None else (found.cumulative, found.positions, found.request_id)


def receipts(
    producer_id: int, ledger_id: int, sequence_ids: list[int], highest_ids: list[int], first_entry_id: int
) -> bytes:
    encode = ReceiptEncoder(producer_id).encode
    ids = enumerate(zip(sequence_ids, highest_ids, strict=True), first_entry_id)
    return b"".join(encode(sequence_id, highest, ledger_id, n) for n, (sequence_id, highest) in ids)


def messages(
    consumer_id: int,
    partition: int,
    positions: list[tuple[int, int]],
    bodies: list[bytes],
    keep_stamp: bool,
    body_bytes_max: int,
) -> tuple[bytes, int] | None:
    encode = MessageEncoder(consumer_id, partition, keep_stamp=keep_stamp).encode
    frames: list[bytes | memoryview] = []
    for (ledger_id, entry_id), body in zip(positions, bodies, strict=True):
        if len(body) >= body_bytes_max:
            return None
        try:
            encode(frames, ledger_id, entry_id, 0, None, None, body)
        except (ProtocolError, OverflowError):
            # a size below zero: the usual stamp's first bytes, and nothing behind them
            return None
        if body.startswith(b"\x0e\x02\x00\x00\x00\x07\x08") and len(body) < 13 and not keep_stamp:
            return None
    return b"".join(frames), sum(map(len, frames[1::2]))


def pack_records(head: bytes, batches: list[tuple[int, int, list[bytes]]]) -> bytes:
    return join_records(head, batches)


def peek_entries(bodies: list[bytes]) -> list[Peek | None]:
    """The `peek` that each entry has afterwards."""
    return [_peek(body) for body in bodies]


def _peek(body: bytes) -> Peek | None:
    end = 23 + int.from_bytes(body[19:23], "big")
    if not body.startswith(USUAL_STAMP) or body[13:15] != CHECKSUM_MAGIC or not 23 < end <= len(body):
        return None
    metadata = body[23:end]
    num_messages, is_batch, compression, uncompressed = 1, False, 0, 0
    try:
        at = 2 + metadata[1]
        if metadata[0] != 0x0A or metadata[1] > 0x7F or metadata[at] != 0x10:
            return None
        at = skip_varint(metadata, at + 1)
        if metadata[at] != 0x18:
            return None
        publish_ms, at = scan_varint(metadata, at + 1)
        while at < len(metadata):
            tag = metadata[at]
            value, at = scan_varint(metadata, at + 1)
            if tag == 0x40 and 0 <= value <= 4:
                compression = value
            elif tag == 0x48 and 0 <= value < 2**32:
                uncompressed = value
            elif tag == 0x58 and 0 <= value < 2**31:
                num_messages, is_batch = value, True
            else:
                return None
    except IndexError:
        return None
    if publish_ms < 0:
        return None
    found = Peek(body, publish_ms, None, None, 0, num_messages, is_batch, compression, uncompressed)
    # what the broker runs without C agrees
    assert found == peek(body)
    return found


def fields(name: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments as the loop in C takes them, from those that have ids in place of fields."""
    if name == "receipts":
        producer_id, ledger_id, *rest = arguments
        return (b"\x08" + varint(producer_id) + b"\x10", b"\x08" + varint(ledger_id) + b"\x10", *rest)
    if name == "messages":
        consumer_id, partition, *rest = arguments
        return (b"\x08" + varint(consumer_id), b"\x18" + varint(partition) if partition >= 0 else b"", *rest)
    if name == "peek_entries":
        return ([Entry(Position(1, n), body) for n, body in enumerate(arguments[0])], Peek)
    return arguments
