"""The two commands that are sent once per message, SEND_RECEIPT and MESSAGE: written by hand, without
protobuf.

The constant parts are kept as bytes, per ledger and per length of the variable parts.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from geminga.limits import KIB
from geminga.loops import native
from geminga.position import Position
from geminga.wire.stored_entry import stamp_bytes
from geminga.wire.varint import MORE, SHORT, fill_tables, varint

_SIZES = struct.Struct(">II")
_U32 = struct.Struct(">I")
_NO_LEDGER = -1
# Bounded: redelivery counts and ack sets make many lengths, and a consumer's encoder lives as long as it
# does.
_PARTS_MAX = 256
# A view keeps the whole entry alive while it is in the outbox, so small payloads are copied.
_VIEW_BYTES = 2048
"""From this size on, a view of the payload is cheaper than a copy."""
_JOIN_BYTES = 16 * KIB
"""Entries below this size are copied into one buffer with their frames, where C does that."""


class ReceiptEncoder:
    """SEND_RECEIPTs for one producer.

    total size u32 | command size u32 | 08 07 | 3a size | 08 producer id | 10 sequence id
        | 1a size | 08 ledger id | 10 entry id | [20 highest sequence id]
    """

    __slots__ = ("_ledger_id", "_parts", "_producer")

    def __init__(self, producer_id: int) -> None:
        fill_tables()
        self._producer = b"\x08" + varint(producer_id) + b"\x10"
        self._ledger_id = _NO_LEDGER
        self._parts: dict[int, tuple[bytes, bytes]] = {}

    def encode(self, sequence_id: int, highest_sequence_id: int, ledger_id: int, entry_id: int) -> bytes:
        """One frame. `highest_sequence_id` 0: none."""
        if sequence_id < 0x4000:
            sequence = SHORT[sequence_id]
        elif sequence_id < 0x1000_0000:
            sequence = MORE[sequence_id & 0x3FFF] + SHORT[sequence_id >> 14]
        else:
            sequence = varint(sequence_id)
        if entry_id < 0x4000:
            entry = SHORT[entry_id]
        elif entry_id < 0x1000_0000:
            entry = MORE[entry_id & 0x3FFF] + SHORT[entry_id >> 14]
        else:
            entry = varint(entry_id)
        if ledger_id != self._ledger_id:
            self._ledger_id = ledger_id
            self._parts.clear()
        if highest_sequence_id:
            highest = b"\x20" + varint(highest_sequence_id)
            begin, middle = self._around(len(sequence), len(entry), len(highest))
            return b"".join((begin, sequence, middle, entry, highest))
        # By lengths: as long as these are the same, all bytes around the two ids are, too.
        parts = self._parts.get(len(sequence) << 4 | len(entry))
        if parts is None:
            parts = self._around(len(sequence), len(entry), 0)
            self._parts[len(sequence) << 4 | len(entry)] = parts
        return b"".join((parts[0], sequence, parts[1], entry))

    def encode_all(
        self, sequence_ids: list[int], highest_sequence_ids: list[int], ledger_id: int, first_entry_id: int
    ) -> bytes:
        """The frames of consecutive entries, one after the other."""
        if native is not None:
            ledger = b"\x08" + varint(ledger_id) + b"\x10"
            frames: bytes = native.receipts(
                self._producer, ledger, sequence_ids, highest_sequence_ids, first_entry_id
            )
            return frames
        encode, entry_ids = self.encode, range(first_entry_id, first_entry_id + len(sequence_ids))
        each = zip(sequence_ids, highest_sequence_ids, entry_ids, strict=True)
        return b"".join([encode(sequence, highest, ledger_id, entry) for sequence, highest, entry in each])

    def _around(self, sequence_bytes: int, entry_bytes: int, highest_bytes: int) -> tuple[bytes, bytes]:
        """The bytes before the sequence id, and between it and the entry id."""
        ledger = b"\x08" + varint(self._ledger_id) + b"\x10"
        middle = b"\x1a" + varint(len(ledger) + entry_bytes) + ledger
        size = len(self._producer) + sequence_bytes + len(middle) + entry_bytes + highest_bytes
        command = b"\x08\x07\x3a" + varint(size)
        command_size = len(command) + size
        return _SIZES.pack(command_size + 4, command_size) + command + self._producer, middle


class MessageEncoder:
    """MESSAGEs for one consumer.

    total size u32 | command size u32 | 08 09 | 4a size | 08 consumer id
        | 12 size | 08 ledger id | 10 entry id | [18 partition]
        | [18 redelivery count] | [20 ack set word]... | [28 consumer epoch] | the entry's own bytes
    """

    __slots__ = ("_consumer", "_keep_stamp", "_ledger_id", "_partition", "_parts")

    def __init__(self, consumer_id: int, partition_index: int = -1, *, keep_stamp: bool = False) -> None:
        """`partition_index` -1: none. `keep_stamp`: the client wants the broker entry metadata, too."""
        fill_tables()
        self._consumer = b"\x08" + varint(consumer_id)
        self._partition = b"\x18" + varint(partition_index) if partition_index >= 0 else b""
        self._keep_stamp = keep_stamp
        self._ledger_id = _NO_LEDGER
        self._parts: dict[int, tuple[int, bytes]] = {}

    def encode_plain(
        self, positions: list[Position], bodies: list[bytes]
    ) -> tuple[list[bytes | memoryview], int]:
        """One frame for each entry, without the optional fields. Returns the buffers, which together are the
        frames, and how many bytes of them are the entries' own.
        """
        if native is not None:
            found = native.messages(
                self._consumer, self._partition, positions, bodies, self._keep_stamp, _JOIN_BYTES
            )
            if found is not None:
                frames, payload_bytes = found
                return [frames], payload_bytes
        out: list[bytes | memoryview] = []
        encode = self.encode
        for position, body in zip(positions, bodies, strict=True):
            encode(out, position[0], position[1], 0, None, None, body)
        # The second buffer of each frame is what the client sent.
        return out, sum(map(len, out[1::2]))

    def encode(
        self,
        out: list[bytes | memoryview],
        ledger_id: int,
        entry_id: int,
        redelivery_count: int,
        ack_set: Sequence[int] | None,
        consumer_epoch: int | None,
        body: bytes,
    ) -> int:
        """Append one frame's buffers to `out`; returns its size in bytes.

        `body` is the entry as stored. `ack_set` has the words as on the wire, signed.
        """
        if entry_id < 0x4000:
            entry = SHORT[entry_id]
        elif entry_id < 0x1000_0000:
            entry = MORE[entry_id & 0x3FFF] + SHORT[entry_id >> 14]
        else:
            entry = varint(entry_id)
        if ledger_id != self._ledger_id:
            self._ledger_id = ledger_id
            self._parts.clear()
        end = self._partition
        key = len(entry)
        if redelivery_count or ack_set or consumer_epoch is not None:
            rest = _optional_fields(redelivery_count, ack_set, consumer_epoch)
            end += rest
            key |= len(rest) << 4
        parts = self._parts.get(key)
        if parts is None:
            if len(self._parts) >= _PARTS_MAX:
                self._parts.clear()
            parts = self._before(len(entry), len(end))
            self._parts[key] = parts
        command_bytes, begin = parts
        # Only clients that negotiated broker entry metadata (PIP-70) understand the stamp; others would see a
        # bad checksum.
        skip = 0 if self._keep_stamp else stamp_bytes(body)
        total = command_bytes + len(body) - skip
        out.append(b"".join((total.to_bytes(4, "big"), begin, entry, end)))
        out.append(body[skip:] if len(body) < _VIEW_BYTES else memoryview(body)[skip:])
        return total + 4

    def _before(self, entry_bytes: int, end_bytes: int) -> tuple[int, bytes]:
        """The bytes that the total size counts beside the payload, and those between the size and the entry
        id.
        """
        ledger = b"\x08" + varint(self._ledger_id) + b"\x10"
        message_id = b"\x12" + varint(len(ledger) + entry_bytes + len(self._partition)) + ledger
        size = len(self._consumer) + len(message_id) + entry_bytes + end_bytes
        command = b"\x08\x09\x4a" + varint(size)
        command_size = len(command) + size
        return command_size + 4, _U32.pack(command_size) + command + self._consumer + message_id


def _optional_fields(
    redelivery_count: int, ack_set: Sequence[int] | None, consumer_epoch: int | None
) -> bytes:
    fields = []
    if redelivery_count:
        fields.append(b"\x18" + varint(redelivery_count))
    if ack_set:
        fields += [b"\x20" + varint(word & 0xFFFF_FFFF_FFFF_FFFF) for word in ack_set]
    if consumer_epoch is not None:
        fields.append(b"\x28" + varint(consumer_epoch))
    return b"".join(fields)
