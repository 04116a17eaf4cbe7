"""A consumer that notes what arrives, acknowledges it, and comes back whatever happens to its connection."""

from __future__ import annotations

import random
import zlib
from collections import deque
from typing import Any, Final, NamedTuple

import trio

from geminga.cli.chaos.checking.history import History, Received, Receiving, Session
from geminga.cli.chaos.checking.load_plan import TRACE, parsed
from geminga.cli.chaos.checking.scenario import Consumers
from geminga.cli.chaos.running.producing import BACK_OFF_SECONDS, wall_ms
from geminga.cli.client.client import SUBSCRIPTION_TYPES, Client, open_client
from geminga.cli.client.connection import Connection
from geminga.cli.client.errors import ClientError
from geminga.cli.client.message import Message, messages, position
from geminga.wire import client_commands
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.decoder import Delivery

ACKED_AT_ONCE: Final = 100
"""Entries in one acknowledgement."""
ANSWER_SECONDS_MAX: Final = 15.0
"""So long an answer is waited for, and longer by what the scenario holds the broker up for; longer than the
checker calls unanswered.
"""
HASTY_SECONDS: Final = 0.05
"""The same once an acknowledgement got no answer: a run would take hours otherwise."""
REJOIN_SECONDS: Final = 0.05
HOLDS_SECONDS: Final = 0.1
"""So long before it leaves a consumer beside others settles nothing any more."""
ASKED_AGAIN_MAX: Final = 3
"""So often a message is asked for again at most, by its redelivery count."""


class Entry(NamedTuple):
    """An entry that waits for the consumer, with a note for each of its messages."""

    position: tuple[int, int]
    notes: list[Received]


class LoadConsumer:
    def __init__(
        self,
        topic: str,
        partition: int,
        number: int,
        seed: int,
        plan: Consumers,
        place: int,
        history: History,
        held_up_s: float = 0.0,
    ) -> None:
        """On one topic or partition (-1: it has none), for the subscription at this place of the history. An
        answer may take longer by `held_up_s`.
        """
        self._topic = topic
        self._partition = partition
        self._name = f"c{number}"
        self._plan = plan
        self._place = place
        self._history = history
        self._receiving: Receiving = history.subscriptions[place]
        self._draw = random.Random(f"{seed}/{topic}/{plan.subscription}/{number}")
        self._entries: deque[Entry] = deque()
        self._arrived = trio.Event()
        self._error: ClientError | None = None
        self._acking: trio.CancelScope | None = None
        self._answer_seconds = ANSWER_SECONDS_MAX + held_up_s
        self._session = Session(number=-1)

    @property
    def is_idle(self) -> bool:
        """Whether all that arrived is acknowledged or given back."""
        return not (self._entries or self._acking is not None)

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
                    await self._work(connection, consumer_id)
                    await self._leave(connection, consumer_id)
            except (ClientError, OSError):
                self._session.end(wall_ms())
                self._entries.clear()
                self._acking = None
                await trio.sleep(BACK_OFF_SECONDS)

    async def _subscribe(self, client: Client) -> tuple[Connection, int]:
        connection = await client.owner(self._topic)
        self._error = None
        self._entries.clear()
        self._session = self._history.session(self._place, self._name, wall_ms(), self._plan.queue)
        consumer_id = connection.attach(consumer=self)
        await connection.request(
            lambda number: client_commands.subscribe(
                number,
                consumer_id,
                self._topic,
                self._plan.subscription,
                sub_type=SUBSCRIPTION_TYPES[self._plan.type.lower()],
                name=self._name,
                earliest=True,
            )
        )
        connection.write(client_commands.flow(consumer_id, self._plan.queue))
        return connection, consumer_id

    async def _work(self, connection: Connection, consumer_id: int) -> None:
        """Until the consumer is to leave, or is closed, which raises `ClientError`."""
        leaves_s = float("inf")
        if self._plan.leaves_every:
            # Some time around it, so that the consumers of a subscription do not leave all at once.
            leaves_s = trio.current_time() + self._plan.leaves_every / 1000 * self._draw.uniform(0.5, 1.5)
        # A lone consumer has no other that could take it over, and what it left would be late.
        holds_s = HOLDS_SECONDS if self._plan.count > 1 else 0.0
        while trio.current_time() < leaves_s:
            if self._error is not None:
                # What came before the broker closed the consumer goes to another one by now.
                raise self._error
            if not self._entries or trio.current_time() >= leaves_s - holds_s:
                # What comes shortly before it leaves is left behind, or there would be nothing to give back.
                with trio.move_on_at(leaves_s):
                    await self._arrived.wait()
                continue
            taken = [self._entries.popleft() for _ in range(min(len(self._entries), ACKED_AT_ONCE))]
            with trio.CancelScope() as self._acking:
                if self._plan.work:
                    await trio.sleep(self._plan.work * len(taken) / 1000)
                await self._settle(connection, consumer_id, taken)
            self._acking = None

    async def _leave(self, connection: Connection, consumer_id: int) -> None:
        self._session.leave(wall_ms())
        with trio.move_on_after(ANSWER_SECONDS_MAX):
            await connection.request(lambda number: client_commands.close_consumer(number, consumer_id))
            self._session.end(wall_ms(), is_left=True)
        await trio.sleep(REJOIN_SECONDS)

    async def _settle(self, connection: Connection, consumer_id: int, taken: list[Entry]) -> None:
        nacked = [entry for entry in taken if self._is_nacked(entry)]
        acked = [entry for entry in taken if entry not in nacked] if nacked else taken
        at_ms = wall_ms()
        if nacked:
            connection.write(client_commands.redeliver(consumer_id, [entry.position for entry in nacked]))
            for note in _notes(nacked):
                note.nack(at_ms)
        connection.write(client_commands.flow(consumer_id, sum(len(entry.notes) for entry in taken)))
        if not acked:
            return
        positions = [entry.position for entry in acked]
        for note in _notes(acked):
            note.acknowledge(at_ms)
        with trio.move_on_after(self._answer_seconds) as limit:
            await connection.request(
                lambda number: client_commands.ack(consumer_id, positions, request_id=number)
            )
        if limit.cancelled_caught:
            self._answer_seconds = HASTY_SECONDS
            return
        at_ms = wall_ms()
        for note in _notes(acked):
            note.confirm(at_ms)

    def _is_nacked(self, entry: Entry) -> bool:
        # More than once, or a count that stays at one would pass for one that grows.
        is_asked = entry.notes[0].redeliveries < ASKED_AGAIN_MAX
        return is_asked and self._plan.nack > 0 and self._draw.random() < self._plan.nack

    def on_command(self, command: Any) -> None:
        if isinstance(command, Delivery):
            self._note(command)
        elif isinstance(command, pb.CommandActiveConsumerChange):
            if not command.is_active:
                self._session.lose_turn(wall_ms())
        elif isinstance(command, pb.CommandCloseConsumer):
            self._fail(ClientError("the broker closed the consumer"))
        elif isinstance(command, ClientError):
            self._fail(command)
        self._arrived.set()
        self._arrived = trio.Event()

    def _fail(self, error: ClientError) -> None:
        self._error = error
        self._session.end(wall_ms())
        if self._acking is not None:
            # Pulsar does not answer an acknowledgement of a consumer that an unload has closed.
            self._acking.cancel()

    def _note(self, delivery: Delivery) -> None:
        at_ms = wall_ms()
        notes = [self._noted(message, at_ms) for message in messages(delivery)]
        self._receiving.deliveries.extend(notes)
        self._entries.append(Entry(position(delivery), notes))

    def _noted(self, message: Message, at_ms: int) -> Received:
        producer, number = parsed(message.payload) or (-1, -1)
        return Received(
            subscription=self._place,
            session=self._session.number,
            producer=producer,
            number=number,
            key=message.key,
            trace=_trace(message, number),
            crc=zlib.crc32(message.payload),
            at_ms=at_ms,
            partition=self._partition,
            ledger_id=message.ledger_id,
            entry_id=message.entry_id,
            batch_index=message.batch_index,
            redeliveries=message.redelivery_count,
        )


def _trace(message: Message, number: int) -> str:
    """What was given along with the payload; of a message as it was sent that is its only property."""
    properties = message.properties
    found = properties.get(TRACE, "") if len(properties) == 1 else str(properties)
    return found if message.sequence_id == number else f"{found}, sequence id {message.sequence_id}"


def _notes(entries: list[Entry]) -> list[Received]:
    return [note for entry in entries for note in entry.notes]
