"""A producer that sends all that is planned, whatever happens to its connection."""

from __future__ import annotations

import zlib
from collections import deque
from typing import Any, Final

import trio

from geminga.cli.chaos.checking.history import Sent
from geminga.cli.chaos.checking.load_plan import TRACE, payload
from geminga.cli.chaos.checking.scenario import Load
from geminga.cli.client.client import Client, open_client
from geminga.cli.client.connection import Connection
from geminga.cli.client.errors import ClientError
from geminga.clock import RealClock
from geminga.wire import client_commands
from geminga.wire import pulsar_pb2 as pb

BACK_OFF_SECONDS: Final = 0.1
SLOT_SECONDS: Final = 0.01
"""A producer with a rate sends what a slot allows at once."""
ID_MAX: Final = (1 << 63) - 1
"""A receipt for a message that the broker had already has -1 instead of ids."""


wall_ms: Final = RealClock().now_ms
"""The machine's time."""


class LoadProducer:
    """Sends in order; without a receipt it sends again, under the same sequence id, after a reconnect."""

    def __init__(self, topic: str, name: str, load: Load, planned: list[Sent]) -> None:
        self._topic = topic
        self._name = name
        self._load = load
        self._unsent = deque(planned)
        self._pending: deque[Sent] = deque()
        self._moved = trio.Event()
        self._error: ClientError | None = None

    @property
    def left(self) -> int:
        """Messages without a receipt."""
        return len(self._unsent) + len(self._pending)

    async def run(self, url: str) -> None:
        """Return when every message has its receipt. Cancelled: the rest has none."""
        while self.left:
            try:
                async with open_client(url) as client:
                    await self._send_all(client)
            except (ClientError, OSError):
                await trio.sleep(BACK_OFF_SECONDS)

    async def _send_all(self, client: Client) -> None:
        connection = await client.owner(self._topic)
        self._error = None
        producer_id = connection.attach(producer=self)
        await connection.request(
            lambda number: client_commands.producer(number, producer_id, self._topic, self._name)
        )
        # In front of all else and in order, or a consumer would see them out of order.
        again, self._pending = self._pending, deque()
        for sent in again:
            self._send(connection, producer_id, sent)
        began_s, before = trio.current_time(), 0
        while self._unsent:
            await self._wait_room(connection)
            if self._load.rate:
                allowed = int((trio.current_time() - began_s) * self._load.rate) + 1 - before
                if allowed <= 0:
                    await self._wait(SLOT_SECONDS)
                    continue
            else:
                allowed = 50
            for _ in range(min(allowed, len(self._unsent), self._load.pending - len(self._pending))):
                self._send(connection, producer_id, self._unsent.popleft())
                before += 1
            await trio.lowlevel.checkpoint()
        while self._pending:
            await self._wait(1.0)
        await connection.request(lambda number: client_commands.close_producer(number, producer_id))

    async def _wait_room(self, connection: Connection) -> None:
        await connection.wait_room()
        while len(self._pending) >= self._load.pending:
            await self._wait(1.0)
        if self._error is not None:
            raise self._error

    async def _wait(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._moved.wait()
        if self._error is not None:
            raise self._error

    def _send(self, connection: Connection, producer_id: int, sent: Sent) -> None:
        at_ms = wall_ms()
        body = payload(sent, self._load.bytes)
        sent.send(at_ms, zlib.crc32(body))
        self._pending.append(sent)
        metadata = client_commands.metadata(
            self._name,
            sent.number,
            at_ms,
            key=sent.key or None,
            properties={TRACE: sent.trace},
            deliver_at_ms=at_ms + sent.delay_ms if sent.delay_ms else None,
        )
        entry = client_commands.entry(metadata, body)
        connection.write(client_commands.send(producer_id, sent.number, entry))

    def on_command(self, command: Any) -> None:
        if isinstance(command, pb.CommandSendReceipt):
            if self._pending and self._pending[0].number == command.sequence_id:
                found = command.message_id
                place = (found.ledgerId, found.entryId) if found.ledgerId <= ID_MAX else (-1, -1)
                self._pending.popleft().confirm(wall_ms(), *place)
        elif isinstance(command, pb.CommandSendError):
            self._error = ClientError(command.message)
            for sent in self._pending:
                sent.refuse()
        elif isinstance(command, pb.CommandCloseProducer):
            self._error = ClientError("the broker closed the producer")
        elif isinstance(command, ClientError):
            self._error = command
        self._moved.set()
        self._moved = trio.Event()
