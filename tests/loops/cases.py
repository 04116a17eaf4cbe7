"""Arguments for the loops: real frames, and what is left of them after cuts, flips and wrong numbers."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

from fastcrc.crc32 import iscsi as crc_32c

from geminga.wire import client_commands, encoder
from geminga.wire.message_metadata import stamp, virtual_stamp

NOW_MS = 1_785_500_000_000
U64 = 2**64 - 1
PAYLOADS = tuple(Random(n).randbytes(n) for n in (0, 1, 7, 100, 335, 336, 1007, 1008, 1009, 1024, 2100, 5000))
MAGIC_NUMBERS = (0, 1, 0x7F, 0x80, 0x3FFF, 0x4000, 2**28 - 1, 2**31 - 1, 2**31, 2**63 - 1, 2**63, U64)
MORE_FIELDS = (b"\x40\x05", b"\x48\x80\x80\x80\x80\x10", b"\x58", b"\x60\x01", b"\x40\x01\x40\x00")
"""Of metadata: values beyond their range, a cut one, one that few messages have, one twice."""

Arguments = tuple[Any, ...]


def a_number(random: Random) -> int:
    """Of any length in bits; often at a border between two lengths of a varint."""
    return (
        random.choice(MAGIC_NUMBERS) if random.random() < 0.2 else random.getrandbits(random.randint(0, 64))
    )


def varint(number: int, longer: int = 0) -> bytes:
    """As protobuf writes it; `longer`: so many needless groups behind it, which readers accept."""
    groups = []
    while number >= 0x80:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    return (
        bytes([*groups, number]) if not longer else bytes([*groups, number | 0x80, *[0x80] * (longer - 1), 0])
    )


def any_varint(random: Random, number: int) -> bytes:
    return varint(number, random.choice((0, 0, 0, 0, 1, 2, 8)) if random.random() < 0.1 else 0)


def frame(command: bytes, rest: bytes = b"") -> bytes:
    return struct.pack(">II", 4 + len(command) + len(rest), len(command)) + command + rest


def an_entry(random: Random) -> bytes:
    """Magic, checksum, metadata and payload, as a producer sends them."""
    metadata = client_commands.metadata("standalone-0-12", random.getrandbits(20), NOW_MS).SerializeToString()
    metadata_size = len(metadata)
    if random.random() < 0.05:
        metadata_size = random.choice((0, len(metadata) + 1, 2**31, 2**32 - 1, random.getrandbits(32)))
    rest = struct.pack(">I", metadata_size) + metadata + random.choice(PAYLOADS)
    checksum = crc_32c(rest) ^ (random.random() < 0.05)
    return struct.pack(">HI", 0x0E01 if random.random() < 0.97 else 0x0E00, checksum) + rest


def send_frame(random: Random, producer_id: int) -> bytes:
    """A SEND; some have an unusual shape."""
    fields = b"\x08" + any_varint(random, producer_id) + b"\x10" + any_varint(random, a_number(random))
    if random.random() < 0.3:
        fields += b"\x18" + any_varint(random, random.choice((0, 1, 10, 2**31 - 1, 2**31, a_number(random))))
    if random.random() < 0.2:
        fields += b"\x30" + any_varint(random, a_number(random))
    if random.random() < 0.03:
        fields += random.choice((b"\x20\x01", b"\x18\x01", b"\x10\x05", b"\x30", b"\x33\x00", bytes(200)))
    size = len(fields) if random.random() < 0.97 else random.getrandbits(8)
    return frame(b"\x08\x06\x32" + varint(size) + fields, an_entry(random))


def mutated(random: Random, data: bytes, heads: int) -> bytes:
    """With a few bytes changed, mostly among the first `heads`, or cut."""
    changed = bytearray(data)
    for _ in range(random.randint(1, 3)):
        if not changed:
            break
        at = random.randrange(min(heads, len(changed)) if random.random() < 0.8 else len(changed))
        way = random.randrange(6)
        if way == 0:
            changed[at] ^= 1 << random.randrange(8)
        elif way == 1:
            changed[at] = random.choice((0, 1, 0x7F, 0x80, 0xFF))
        elif way == 2:
            changed.insert(at, random.choice((0, 0x80, 0xFF, random.getrandbits(8))))
        elif way == 3:
            del changed[at]
        elif way == 4:
            changed[at : at + 10] = b"\xff" * random.randint(1, 12)
        else:
            del changed[random.randrange(len(changed) + 1) :]
    return bytes(changed)


def sends(random: Random) -> tuple[Arguments, int]:
    """Arguments of `scan_sends`, and how many frames they have."""
    producer_id = random.choice((0, 3, 0x7F, 0x80, 300, 0x3FFF, 0x4000, a_number(random)))
    frames = []
    for _ in range(random.choice((1, 2, 3, 20))):
        other = random.random()
        if other < 0.02:
            frames.append(encoder.ping())
        elif other < 0.08:
            frames.append(send_frame(random, random.choice((3, 4, 0x7F, 300, a_number(random)))))
        else:
            frames.append(send_frame(random, producer_id))
    if random.random() < 0.3:
        number = random.randrange(len(frames))
        frames[number] = mutated(random, frames[number], 40)
    before = random.choice((b"", b"", b"\0" * random.randint(1, 9)))
    data = before + b"".join(frames)
    if random.random() < 0.2:
        data = data[: random.randint(len(before), len(data))]
    frame_bytes_max = random.choice((5 << 20, 5 << 20, 5 << 20, 1000, 20))
    entries_max = random.choice((1000, 1000, 2, 1, 0))
    prefix = random.choice((b"", b"stamp", bytes(64)))
    return (data, len(before), frame_bytes_max, entries_max, prefix), len(frames)


def acks(random: Random) -> tuple[Arguments, int]:
    """Arguments of `scan_ack`."""
    ledger_id = a_number(random)
    ids = b""
    count = random.choice((0, 1, 1, 1, 2, 5, 50))
    for _ in range(count):
        if random.random() < 0.1:
            ledger_id = a_number(random)
        fields = b"\x08" + any_varint(random, ledger_id) + b"\x10" + any_varint(random, a_number(random))
        if random.random() < 0.2:
            fields += b"\x18" + random.choice((varint(U64), any_varint(random, 3), b"\x80" * 10 + b"\1"))
        if random.random() < 0.1:
            fields += b"\x20" + any_varint(random, a_number(random))
        if random.random() < 0.02:
            fields += random.choice((b"\x28\x01", b"\x18\x01", b"\x20", bytes(120)))
        size = len(fields) if random.random() < 0.98 else random.getrandbits(8)
        ids += b"\x1a" + varint(size) + fields
    body = random.choice((b"\0", b"\0", b"\0", b"\1", b"\2", b"\x80\0")) + ids
    if random.random() < 0.3:
        body += b"\x40" + any_varint(random, a_number(random))
    if random.random() < 0.3:
        body = mutated(random, body, len(body))
    before, behind = (
        bytes(random.choice((0, 15))),
        random.choice((b"", b"\0\0\0\x09", b"\x1a\x04\x08\1\x10\1")),
    )
    data = before + body + behind
    end = len(before) + len(body)
    if random.random() < 0.1:
        end = random.randint(len(before), len(data))
    return (data, len(before), end), 1


def receipts(random: Random) -> tuple[Arguments, int]:
    """Arguments of `receipts`, with ids in place of the fields' bytes."""
    count = random.choice((0, 1, 2, 50))
    first = min(a_number(random), U64 - count)
    highest = [0 if random.random() < 0.8 else a_number(random) for _ in range(count)]
    return (
        a_number(random),
        a_number(random),
        [a_number(random) for _ in range(count)],
        highest,
        first,
    ), count


def a_stored_entry(random: Random) -> bytes:
    way = random.random()
    if way < 0.5:
        return b"\x0e\x02\x00\x00\x00\x07\x08" + varint(NOW_MS) + an_entry(random)
    if way < 0.7:
        return an_entry(random)
    stamp = bytes(random.randint(0, 20))
    size = len(stamp) if random.random() < 0.7 else random.choice((0, 2**32 - 1, len(stamp) + 5000, 2**31))
    stored = b"\x0e\x02" + struct.pack(">I", size) + stamp + random.choice(PAYLOADS)
    return stored[: random.randrange(len(stored) + 1)] if random.random() < 0.3 else stored


def messages(random: Random) -> tuple[Arguments, int]:
    """Arguments of `messages`, with the consumer id and the partition (-1: none) in place of their bytes."""
    count = random.choice((0, 1, 2, 20))
    ledger_id = a_number(random)
    positions = [
        (ledger_id if random.random() < 0.9 else a_number(random), a_number(random)) for _ in range(count)
    ]
    partition = -1 if random.random() < 0.5 else random.getrandbits(random.randint(1, 31))
    bodies = [a_stored_entry(random) for _ in range(count)]
    keep_stamp, body_bytes_max = random.random() < 0.3, random.choice((2048, 1 << 20, 1 << 20))
    return (a_number(random), partition, positions, bodies, keep_stamp, body_bytes_max), count


def groups(random: Random) -> tuple[Arguments, int]:
    """Arguments of `pack_records`."""
    batches = []
    for _ in range(random.choice((0, 1, 1, 2, 5))):
        count = random.choice((1, 1, 2, 30))
        if random.random() < 0.5:
            bodies = [random.choice(PAYLOADS)] * count
        else:
            bodies = [random.choice(PAYLOADS)[: random.randint(0, 5000)] for _ in range(count)]
        batches.append((a_number(random), min(a_number(random), U64 - count), bodies))
    if random.random() < 0.02:
        batches.append((7, U64, [bytes(200_000)]))
    return (bytes(random.choice((0, 60, 4000))), batches), sum(len(batch[2]) for batch in batches)


def entries(random: Random) -> tuple[Arguments, int]:
    """Arguments of `peek_entries`: bodies as stored, most of them with metadata that many messages have."""
    bodies = []
    for _ in range(random.choice((1, 2, 10, 30))):
        metadata = client_commands.metadata(
            "p" * random.choice((0, 1, 12, 127, 128)), a_number(random), NOW_MS
        )
        if random.random() < 0.5:
            metadata.num_messages_in_batch = random.choice((0, 1, 100, 2**31 - 1, -1))
        if random.random() < 0.5:
            metadata.compression = random.choice((0, 1, 2, 3, 4))
        if random.random() < 0.5:
            metadata.uncompressed_size = random.choice((0, 100, 2**32 - 1))
        if random.random() < 0.1:
            metadata.partition_key = "key"
        if random.random() < 0.1:
            metadata.deliver_at_time = NOW_MS + 1000
        head = metadata.SerializeToString()
        if random.random() < 0.1:
            head += random.choice(MORE_FIELDS)
        body = stamp(NOW_MS) + struct.pack(">HII", 0x0E01, 0, len(head)) + head + random.choice(PAYLOADS)
        if random.random() < 0.2:
            body = mutated(random, body, 23 + len(head))
        if random.random() < 0.05:
            # a name that is longer than the metadata, and behind them nothing
            head = b"\x0a" + bytes([random.randint(2, 127)]) + b"p" * random.randint(0, 3)
            body = stamp(NOW_MS) + struct.pack(">HII", 0x0E01, 0, len(head)) + head
        bodies.append(body if random.random() < 0.95 else virtual_stamp(NOW_MS) + body[13:])
    return (bodies,), len(bodies)
