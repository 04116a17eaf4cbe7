"""A stored message as an answer, whatever its size and however slowly its peer reads.

Small ones are answered at once. Of large ones only the headers are made at first; the payload is read again,
inflated and sent in parts once there is memory for it, which all large answers share. Without that, a few
peers that ask for a message of 65 KB, which inflates to 64 MiB, and do not read would take a GiB.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Final

import trio

from geminga.admin.http.router import NotFound, Response
from geminga.admin.messages.http_message import http_message
from geminga.admin.messages.inflate import check_size
from geminga.errors import PeerError
from geminga.limits import KIB, MIB

if TYPE_CHECKING:
    from geminga.broker.operator.messages import StoredMessage
    from geminga.names import TopicName
    from geminga.position import Position

SMALL_BYTES_MAX: Final = 128 * KIB
"""Of a payload once inflated; the whole of it may wait for its peer."""
LARGE_BYTES_MAX: Final = 64 * MIB
"""Of the payloads of all large answers under way; one alone may be larger."""
PART_BYTES: Final = 256 * KIB
LOOKS_MAX: Final = 4
"""Entries that are read at a time to see what they are."""
WAIT_S: Final = 5.0
SEND_S: Final = 60.0
"""How long the answer of a large message may take, from when it has its memory."""

Find = Callable[[], Awaitable["StoredMessage | None"]]


class TooManyMessages(PeerError):
    http_status = 503

    def __init__(self) -> None:
        super().__init__("other large messages are being read; try again")


class TooSlow(PeerError):
    """The peer reads too slowly to keep the memory of its answer."""


class ShownMessages:
    """All answers of one port that hold a message."""

    def __init__(self, at: Callable[[TopicName, Position], Awaitable[StoredMessage | None]]) -> None:
        """`at` reads the message at a place."""
        self._at = at
        self._looks = trio.CapacityLimiter(LOOKS_MAX)
        self._changed = trio.lowlevel.ParkingLot()
        self.held_bytes = 0
        """Of large payloads that are inflated or being sent."""

    async def answer(self, topic: TopicName, find: Find, missing: str) -> Response:
        """The message that `find` finds. Raises `NotFound` with `missing`, `BadPayload`, `NoDecoder`; a large
        one may raise them, and `TooManyMessages`, when its first part is drawn.
        """
        async with self._looks:
            found = await find()
            if found is None:
                raise NotFound(missing)
            message = http_message(found.position, found.body)
            payload = await message.payload() if message.size_bytes <= SMALL_BYTES_MAX else None
        # Pulsar says JSON of any payload.
        if payload is not None:
            return Response(200, bytes(payload), "application/json", message.headers)
        check_size(message.size_bytes)
        parts = self._parts(topic, found.position, message.size_bytes, missing)
        return Response(200, b"", "application/json", message.headers, parts)

    async def _parts(
        self, topic: TopicName, place: Position, size_bytes: int, missing: str
    ) -> AsyncGenerator[bytes, None]:
        await self._hold(size_bytes)
        try:
            ends_s = trio.current_time() + SEND_S
            found = await self._at(topic, place)
            if found is None:
                raise NotFound(missing)
            payload = memoryview(await http_message(found.position, found.body).payload())
            del found
            for start in range(0, len(payload), PART_BYTES):
                if trio.current_time() > ends_s:
                    raise TooSlow(f"a message of {size_bytes} bytes was not read within {SEND_S:.0f} s")
                yield bytes(payload[start : start + PART_BYTES])
        finally:
            self.held_bytes -= size_bytes
            self._changed.unpark_all()

    async def _hold(self, size_bytes: int) -> None:
        with trio.move_on_after(WAIT_S):
            while self.held_bytes and self.held_bytes + size_bytes > LARGE_BYTES_MAX:
                await self._changed.park()
        if self.held_bytes and self.held_bytes + size_bytes > LARGE_BYTES_MAX:
            raise TooManyMessages
        self.held_bytes += size_bytes
