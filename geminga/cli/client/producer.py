"""Publishing over a connection of our own client: many messages under way, each confirmed by its receipt."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import trio

from geminga.cli.client.connection import Connection
from geminga.cli.client.errors import ClientError, Refused
from geminga.clock import RealClock
from geminga.wire import client_commands
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import position_of

OnReceipt = Callable[[tuple[int, int]], None]


class Producer:
    """Sends without waiting for receipts, up to `pending_max` entries; receipts come in order."""

    def __init__(self, connection: Connection, topic: str, pending_max: int) -> None:
        self.topic = topic
        self.name = ""
        self._connection = connection
        self._pending_max = pending_max
        self._pending: deque[tuple[int, OnReceipt | None]] = deque()
        self._moved = trio.lowlevel.ParkingLot()
        self._sequence_id = -1
        self._error: ClientError | None = None
        self._clock = RealClock()
        self._producer_id = connection.attach(producer=self)

    @classmethod
    async def open(cls, connection: Connection, topic: str, pending_max: int) -> Producer:
        """Raises `Refused`."""
        made = cls(connection, topic, pending_max)
        answer = await connection.request(
            lambda number: client_commands.producer(number, made._producer_id, topic)
        )
        made.name = answer.producer_name
        made._sequence_id = answer.last_sequence_id
        return made

    @property
    def pending(self) -> int:
        """Entries without a receipt."""
        return len(self._pending)

    async def send(
        self,
        payload: bytes,
        *,
        key: str | None = None,
        properties: Mapping[str, str] | None = None,
        deliver_at_ms: int | None = None,
        on_receipt: OnReceipt | None = None,
    ) -> None:
        """Queue one message, after waiting for room. `on_receipt` gets (ledger, entry) once it is durable."""
        self._check_size(len(payload))
        await self._wait_room()
        self._sequence_id += 1
        metadata = client_commands.metadata(
            self.name,
            self._sequence_id,
            self._clock.now_ms(),
            key=key,
            properties=properties,
            deliver_at_ms=deliver_at_ms,
        )
        self._write(client_commands.entry(metadata, payload), 1, on_receipt)

    async def send_batch(self, payloads: Sequence[bytes], *, on_receipt: OnReceipt | None = None) -> None:
        """Queue several messages as one entry."""
        self._check_size(sum(map(len, payloads)))
        await self._wait_room()
        self._sequence_id += 1
        metadata = client_commands.metadata(self.name, self._sequence_id, self._clock.now_ms())
        metadata.num_messages_in_batch = len(payloads)
        parts = []
        for payload in payloads:
            single = pb.SingleMessageMetadata(payload_size=len(payload)).SerializeToString()
            parts += [len(single).to_bytes(4, "big"), single, payload]
        self._write(client_commands.entry(metadata, b"".join(parts)), len(payloads), on_receipt)

    def _write(self, entry: bytes, messages: int, on_receipt: OnReceipt | None) -> None:
        self._pending.append((self._sequence_id, on_receipt))
        self._connection.write(
            client_commands.send(self._producer_id, self._sequence_id, entry, num_messages=messages)
        )

    def _check_size(self, size_bytes: int) -> None:
        """The broker would hang up on a larger entry without saying why."""
        allowed = self._connection.message_bytes_max
        if size_bytes > allowed:
            raise ClientError(f"{size_bytes} bytes in one entry; the broker takes at most {allowed}")

    async def _wait_room(self) -> None:
        while len(self._pending) >= self._pending_max and self._error is None:
            await self._moved.park()
        if self._error is not None:
            raise self._error
        await self._connection.wait_room()

    async def flush(self) -> None:
        """Return once everything that was sent has its receipt. Raises what a send failed with."""
        while self._pending and self._error is None:
            await self._moved.park()
        if self._error is not None:
            raise self._error

    async def close(self) -> None:
        await self.flush()
        await self._connection.request(
            lambda number: client_commands.close_producer(number, self._producer_id)
        )

    def on_command(self, command: Any) -> None:
        if isinstance(command, pb.CommandSendReceipt):
            if not self._pending or self._pending[0][0] != command.sequence_id:
                return
            _, on_receipt = self._pending.popleft()
            if on_receipt is not None:
                on_receipt(position_of(command.message_id))
        elif isinstance(command, pb.CommandSendError):
            self._error = Refused(command.error, command.message)
        elif isinstance(command, pb.CommandCloseProducer):
            self._error = ClientError(f"{self.topic}: the broker closed the producer")
        elif isinstance(command, ClientError):
            self._error = command
        self._moved.unpark_all()
