"""What each producer sends: drawn from the seed, so that the same seed sends the same messages."""

from __future__ import annotations

import random
import struct
import zlib
from typing import Final

from geminga.cli.chaos.checking.history import Sent
from geminga.cli.chaos.checking.scenario import Load

TRACE: Final = "trace"
"""The name of each message's only property."""
_HEAD: Final = struct.Struct(">III")
"""Producer, number, and CRC-32 of all that follows and of these two."""


def planned(load: Load, seed: int, producer: int) -> list[Sent]:
    """The messages of one producer, in order."""
    draw = random.Random(f"{seed}/{producer}")
    found = []
    for number in range(load.messages):
        key = f"k{draw.randrange(load.keys)}" if load.keys else ""
        is_delayed = draw.random() < load.delayed
        delay_ms = draw.randint(load.delay[0], load.delay[1]) if is_delayed else 0
        trace = f"{producer}/{number}/{draw.getrandbits(32):08x}"
        found.append(Sent(producer=producer, number=number, key=key, trace=trace, delay_ms=delay_ms))
    return found


def payload(sent: Sent, size_bytes: int) -> bytes:
    """The body of a message; `size_bytes` of at least 16."""
    filler = random.Random(sent.producer << 32 | sent.number).randbytes(max(0, size_bytes - _HEAD.size))
    return _HEAD.pack(sent.producer, sent.number, _crc(sent.producer, sent.number, filler)) + filler


def parsed(body: bytes) -> tuple[int, int] | None:
    """The producer and number of a message that is whole; None: it is not as it was sent."""
    if len(body) < _HEAD.size:
        return None
    producer, number, crc = _HEAD.unpack_from(body)
    return (producer, number) if crc == _crc(producer, number, body[_HEAD.size :]) else None


def _crc(producer: int, number: int, filler: bytes) -> int:
    return zlib.crc32(filler, zlib.crc32(struct.pack(">II", producer, number)))
