"""Large messages share bounded memory, however many peers ask for them and however slowly they read."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator

import pytest
from trio.testing import MockClock

from geminga.admin.http.router import NotFound, Response
from geminga.admin.messages.shown_message import (
    LARGE_BYTES_MAX,
    PART_BYTES,
    SEND_S,
    SMALL_BYTES_MAX,
    WAIT_S,
    ShownMessages,
    TooManyMessages,
    TooSlow,
)
from geminga.broker.operator.messages import StoredMessage
from geminga.limits import MIB
from geminga.names import TopicName
from geminga.position import Position
from geminga.wire import pulsar_pb2 as pb

PLACE = Position(3, 4)
TOPIC = TopicName.parse("persistent://public/default/shown")


def entry(payload: bytes, size_bytes: int) -> bytes:
    head = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, compression=pb.ZLIB, uncompressed_size=size_bytes
    ).SerializeToString()
    return b"\x0e\x01\0\0\0\0" + len(head).to_bytes(4, "big") + head + payload


class Ledger:
    """One message, which may be gone when it is read again."""

    def __init__(self, size_bytes: int) -> None:
        self.payload = bytes(range(256)) * (size_bytes // 256)
        self.stored: StoredMessage | None = StoredMessage(
            PLACE, entry(zlib.compress(self.payload, 1), len(self.payload))
        )

    async def at(self, topic: TopicName, place: Position) -> StoredMessage | None:
        return self.stored

    async def find(self) -> StoredMessage | None:
        return self.stored


async def asked(ledger: Ledger, shown: ShownMessages) -> Response:
    return await shown.answer(TOPIC, ledger.find, "Message not found")


async def parts_of(ledger: Ledger, shown: ShownMessages) -> AsyncGenerator[bytes, None]:
    parts = (await asked(ledger, shown)).parts
    assert parts is not None
    return parts


async def test_a_small_message_is_answered_at_once() -> None:
    ledger = Ledger(SMALL_BYTES_MAX)
    answer = await asked(ledger, ShownMessages(ledger.at))
    assert (answer.body, answer.parts) == (ledger.payload, None)


async def test_a_large_message_comes_in_parts() -> None:
    ledger = Ledger(2 * MIB + 256)
    shown = ShownMessages(ledger.at)
    parts = [part async for part in await parts_of(ledger, shown)]
    assert b"".join(parts) == ledger.payload
    assert max(map(len, parts)) == PART_BYTES
    assert shown.held_bytes == 0


async def test_large_messages_wait_for_each_other_and_not_for_ever(autojump_clock: MockClock) -> None:
    """Eight peers that asked for 64 MiB of zeros, in a message of 65 KB, took 1.2 GiB."""
    ledger = Ledger(LARGE_BYTES_MAX // 2)
    shown = ShownMessages(ledger.at)
    slow = [await parts_of(ledger, shown) for _ in range(2)]
    for parts in slow:
        assert await anext(parts)
    assert shown.held_bytes == LARGE_BYTES_MAX
    began_s = autojump_clock.current_time()
    with pytest.raises(TooManyMessages):
        await anext(await parts_of(ledger, shown))
    assert autojump_clock.current_time() - began_s == pytest.approx(WAIT_S)
    await slow[0].aclose()
    third = await parts_of(ledger, shown)
    assert len(await anext(third)) == PART_BYTES
    autojump_clock.jump(SEND_S + 1)
    for parts in (slow[1], third):
        with pytest.raises(TooSlow):
            await anext(parts)
    assert shown.held_bytes == 0


async def test_a_message_that_is_gone_meanwhile_is_not_found() -> None:
    ledger = Ledger(MIB)
    shown = ShownMessages(ledger.at)
    parts = await parts_of(ledger, shown)
    ledger.stored = None
    with pytest.raises(NotFound, match="Message not found"):
        await anext(parts)
    with pytest.raises(NotFound):
        await asked(ledger, shown)
    assert shown.held_bytes == 0
