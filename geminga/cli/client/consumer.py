"""Receiving over a connection of our own client."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import trio

from geminga.cli.client.connection import Connection
from geminga.cli.client.errors import ClientError
from geminga.wire import client_commands
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import position_of
from geminga.wire.decoder import Delivery
from geminga.wire.message_metadata import peek


class Consumer:
    """Deliveries wait in a queue; permits for as many as leave it are given back."""

    def __init__(self, connection: Connection, queue_messages: int) -> None:
        self._connection = connection
        self._queue_messages = queue_messages
        self._deliveries: deque[Delivery] = deque()
        self._taken = 0
        self._arrived = trio.lowlevel.ParkingLot()
        self._error: ClientError | None = None
        self.reached_end = False
        self.consumer_id = connection.attach(consumer=self)

    @classmethod
    async def open(
        cls,
        connection: Connection,
        topic: str,
        subscription: str,
        *,
        sub_type: pb.CommandSubscribe.SubType,
        earliest: bool,
        start: tuple[int, int] | None,
        queue_messages: int,
        durable: bool | None = None,
        read_compacted: bool = False,
        create_topic: bool = True,
    ) -> Consumer:
        """`durable` None: unless it has a `start`. Raises `Refused`."""
        made = cls(connection, queue_messages)
        await connection.request(
            lambda number: client_commands.subscribe(
                number,
                made.consumer_id,
                topic,
                subscription,
                sub_type=sub_type,
                earliest=earliest,
                durable=start is None if durable is None else durable,
                start=start,
                read_compacted=read_compacted,
                create_topic=create_topic,
            )
        )
        connection.write(client_commands.flow(made.consumer_id, queue_messages))
        return made

    async def receive(self) -> Delivery:
        """The next entry. Raises `ClientError` when there will be none."""
        while not self._deliveries:
            if self._error is not None:
                raise self._error
            await self._arrived.park()
        delivery = self._deliveries.popleft()
        self.took(peek(delivery.headers_and_payload).num_messages_in_batch)
        return delivery

    def took(self, messages: int) -> None:
        """Give back permits for messages that left the queue, half a queue at a time."""
        self._taken += messages
        if self._taken * 2 >= self._queue_messages:
            self._connection.write(client_commands.flow(self.consumer_id, self._taken))
            self._taken = 0

    def acknowledge(self, positions: Sequence[tuple[int, int]]) -> None:
        self._connection.write(client_commands.ack(self.consumer_id, positions))

    def acknowledge_part(self, position: tuple[int, int], remaining: Sequence[int], size: int) -> None:
        """Acknowledge a batch of `size` messages but for those at the indexes that remain."""
        self._connection.write(client_commands.ack_part(self.consumer_id, position, remaining, size))

    async def last_position(self) -> tuple[int, int]:
        """Of the topic's last message; an entry id of -1 if there is none."""
        answer = await self._connection.request(
            lambda number: client_commands.last_message_id(number, self.consumer_id)
        )
        return position_of(answer.last_message_id)

    async def close(self) -> None:
        await self._connection.request(
            lambda number: client_commands.close_consumer(number, self.consumer_id)
        )

    def on_command(self, command: Any) -> None:
        if isinstance(command, Delivery):
            self._deliveries.append(command)
        elif isinstance(command, pb.CommandReachedEndOfTopic):
            self.reached_end = True
        elif isinstance(command, pb.CommandCloseConsumer):
            self._error = ClientError("the broker closed the consumer")
        elif isinstance(command, ClientError):
            self._error = command
        self._arrived.unpark_all()
