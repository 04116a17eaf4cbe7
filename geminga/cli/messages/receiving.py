"""Deliveries of several consumers, printed and acknowledged one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import trio

from geminga.cli.arguments.pace import Pace
from geminga.cli.client.consumer import Consumer
from geminga.cli.client.message import Message, Position, messages, position
from geminga.cli.messages.values import Decoded, Values
from geminga.cli.payloads.chunks import PENDING_MAX, Assembly
from geminga.wire.decoder import Delivery

QUEUE_MESSAGES = 100


class Limits(NamedTuple):
    """When to stop."""

    count_max: int = 0
    """Messages; 0: no end."""
    silence_ms: int | None = None
    """Without a message; None: no end."""
    per_second: float = 0
    chunked_max: int = PENDING_MAX


class Opened(NamedTuple):
    """A consumer or reader of one topic or partition."""

    topic: str
    consumer: Consumer
    first: Position | None = None
    """Messages up to here are left out; of a reader that begins after a message."""
    last: Position | None = None
    """Where to end; None: nowhere."""


Send = trio.MemorySendChannel[tuple[Opened, Assembly, Delivery]]


class Receiving:
    """Add what is to be received with `add`, then `run` until a limit. `accept` gets each message and says
    whether it counts.
    """

    def __init__(
        self, nursery: trio.Nursery, limits: Limits, values: Values, accept: Callable[[Decoded], bool]
    ) -> None:
        self._nursery = nursery
        self._limits = limits
        self._values = values
        self._accept = accept
        self._send, self._receive = trio.open_memory_channel[tuple[Opened, Assembly, Delivery]](0)
        self._opened: list[Opened] = []
        self._finished: set[int] = set()
        self.count = 0

    @property
    def queue_messages(self) -> int:
        """Not more in a queue than will be printed: on a shared subscription others are to get the rest."""
        return min(QUEUE_MESSAGES, self._limits.count_max or QUEUE_MESSAGES)

    def add(self, opened: Opened) -> None:
        self._opened.append(opened)
        assembly = Assembly(self._limits.chunked_max)
        self._nursery.start_soon(_forward, opened, assembly, self._send)

    async def run(self, *, acknowledges: bool) -> None:
        """Return at a limit, or where all that was added has come to its `last` message."""
        pace = Pace(self._limits.per_second)
        while not self._is_done():
            seconds = float("inf") if self._limits.silence_ms is None else self._limits.silence_ms / 1000
            with trio.move_on_after(seconds) as silence:
                opened, assembly, delivery = await self._receive.receive()
            if silence.cancelled_caught:
                return
            found = list(messages(delivery, assembly))
            taken = []
            for message in found:
                if self._limits.count_max and self.count >= self._limits.count_max:
                    break
                taken.append(message)
                if opened.first is not None and position(delivery) <= opened.first:
                    continue
                await pace.wait()
                if self._accept(await self._values.decoded(opened.topic, message)):
                    self.count += 1
            if acknowledges:
                _acknowledge(opened.consumer, position(delivery), found, taken)
            if opened.last is not None and position(delivery) >= opened.last:
                self._finished.add(opened.consumer.consumer_id)

    def _is_done(self) -> bool:
        if self._limits.count_max and self.count >= self._limits.count_max:
            return True
        return all(
            opened.last is not None and (opened.last[1] < 0 or opened.consumer.consumer_id in self._finished)
            for opened in self._opened
        ) and bool(self._opened)

    async def close(self) -> None:
        for opened in self._opened:
            await opened.consumer.close()


def _acknowledge(
    consumer: Consumer, at: Position, found: Sequence[Message], taken: Sequence[Message]
) -> None:
    if not found:
        return  # a chunk of a message that is not whole
    if len(taken) == len(found):
        consumer.acknowledge(list(found[0].positions) or [at])
    elif taken:
        remaining = [message.batch_index for message in found[len(taken) :]]
        consumer.acknowledge_part(at, remaining, found[0].batch_size)


async def _forward(opened: Opened, assembly: Assembly, send: Send) -> None:
    while True:
        await send.send((opened, assembly, await opened.consumer.receive()))
