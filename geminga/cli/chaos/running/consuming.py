"""A consumer that notes what arrives, acknowledges it, and comes back whatever happens to its connection."""

from __future__ import annotations

import random
from collections import deque
from itertools import count
from typing import Any, Final

import trio

from geminga.cli.chaos.checking.history import ANY_SESSION, Received, Receiving, Session
from geminga.cli.chaos.checking.load_plan import parsed
from geminga.cli.chaos.checking.scenario import Consumers
from geminga.cli.chaos.running.producing import BACK_OFF_SECONDS, wall_ms
from geminga.cli.client.client import SUBSCRIPTION_TYPES, Client, open_client
from geminga.cli.client.connection import Connection
from geminga.cli.client.errors import ClientError
from geminga.cli.client.message import messages, position
from geminga.wire import client_commands
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.decoder import Delivery

ACKED_AT_ONCE: Final = 100
"""Entries in one acknowledgement."""
ACK_SECONDS_MAX: Final = 2.0
"""So long an answer to an acknowledgement is waited for; Pulsar does not answer one of a consumer that an
unload has closed.
"""
REJOIN_SECONDS: Final = 0.05
_sessions = count(1)


class Entry:
    """An entry that waits for the consumer, with a note for each of its messages."""

    __slots__ = ("notes", "position")

    def __init__(self, place: tuple[int, int], notes: list[Received]) -> None:
        self.position = place
        self.notes = notes


class LoadConsumer:
    def __init__(
        self, topic: str, partition: int, number: int, seed: int, plan: Consumers, receiving: Receiving
    ) -> None:
        """On one topic or partition (-1: it has none)."""
        self._topic = topic
        self._partition = partition
        self._number = number
        self._plan = plan
        self._receiving = receiving
        self._draw = random.Random(f"{seed}/{topic}/{plan.subscription}/{number}")
        self._entries: deque[Entry] = deque()
        self._arrived = trio.Event()
        self._error: ClientError | None = None
        self._acking = False
        self._session = ANY_SESSION

    @property
    def is_idle(self) -> bool:
        """Whether all that arrived is acknowledged or given back."""
        return not (self._entries or self._acking)

    async def run(self, url: str, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled; subscribed when the task status says so."""
        is_started = False
        while True:
            try:
                async with open_client(url) as client:
                    connection, consumer_id = await self._subscribe(client)
                    if not is_started:
                        is_started = True
                        task_status.started()
                    await self._stay(connection, consumer_id)
            except (ClientError, OSError):
                self._entries.clear()
                self._acking = False
                await trio.sleep(BACK_OFF_SECONDS)

    async def _subscribe(self, client: Client) -> tuple[Connection, int]:
        connection = await client.owner(self._topic)
        self._error = None
        self._entries.clear()
        self._session = Session(next(_sessions), wall_ms())
        consumer_id = connection.attach(consumer=self)
        await connection.request(
            lambda number: client_commands.subscribe(
                number,
                consumer_id,
                self._topic,
                self._plan.subscription,
                sub_type=SUBSCRIPTION_TYPES[self._plan.type.lower()],
                name=f"c{self._number}",
                earliest=True,
            )
        )
        connection.write(client_commands.flow(consumer_id, self._plan.queue))
        return connection, consumer_id

    async def _stay(self, connection: Connection, consumer_id: int) -> None:
        if not self._plan.leaves_every:
            await self._work(connection, consumer_id)
        # Some time around it, so that the consumers of a subscription do not leave all at once.
        stays_s = self._plan.leaves_every / 1000 * self._draw.uniform(0.5, 1.5)
        with trio.move_on_after(stays_s):
            await self._work(connection, consumer_id)
        self._acking = False
        with trio.move_on_after(ACK_SECONDS_MAX):
            await connection.request(lambda number: client_commands.close_consumer(number, consumer_id))
        await trio.sleep(REJOIN_SECONDS)

    async def _work(self, connection: Connection, consumer_id: int) -> None:
        """Until the consumer is closed, which raises `ClientError`."""
        while True:
            while not self._entries:
                if self._error is not None:
                    raise self._error
                arrived = self._arrived
                await arrived.wait()
            if self._error is not None:
                # What came before the broker closed the consumer goes to another one by now.
                raise self._error
            taken = [self._entries.popleft() for _ in range(min(len(self._entries), ACKED_AT_ONCE))]
            self._acking = True
            if self._plan.work:
                await trio.sleep(self._plan.work * len(taken) / 1000)
            await self._settle(connection, consumer_id, taken)
            self._acking = False

    async def _settle(self, connection: Connection, consumer_id: int, taken: list[Entry]) -> None:
        nacked = [entry for entry in taken if self._is_nacked(entry)]
        acked = [entry for entry in taken if entry not in nacked] if nacked else taken
        count = sum(len(entry.notes) for entry in taken)
        if nacked:
            connection.write(client_commands.redeliver(consumer_id, [entry.position for entry in nacked]))
        connection.write(client_commands.flow(consumer_id, count))
        if not acked:
            return
        positions = [entry.position for entry in acked]
        with trio.move_on_after(ACK_SECONDS_MAX) as limit:
            await connection.request(
                lambda number: client_commands.ack(consumer_id, positions, request_id=number)
            )
        if limit.cancelled_caught:
            return
        at_ms = wall_ms()
        for entry in acked:
            for note in entry.notes:
                note.acknowledge(at_ms)

    def _is_nacked(self, entry: Entry) -> bool:
        first = entry.notes[0].redeliveries == 0
        return first and self._plan.nack > 0 and self._draw.random() < self._plan.nack

    def on_command(self, command: Any) -> None:
        if isinstance(command, Delivery):
            self._note(command)
        elif isinstance(command, pb.CommandCloseConsumer):
            self._error = ClientError("the broker closed the consumer")
        elif isinstance(command, ClientError):
            self._error = command
        self._arrived.set()
        self._arrived = trio.Event()

    def _note(self, delivery: Delivery) -> None:
        at_ms = wall_ms()
        place = position(delivery)
        notes = []
        for message in messages(delivery):
            found = parsed(message.payload)
            producer, number = found or (-1, -1)
            message_id = (self._partition, message.ledger_id, message.entry_id, message.batch_index)
            notes.append(
                Received(
                    producer,
                    number,
                    at_ms,
                    message_id,
                    self._session,
                    message.redelivery_count,
                    is_whole=found is not None,
                )
            )
        self._receiving.add(notes)
        self._entries.append(Entry(place, notes))
