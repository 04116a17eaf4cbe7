"""The topic to which the delivery log is shipped, and the broker's own producer of that topic."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import trio

from geminga import limits
from geminga.broker.flow.outbox import Outbox
from geminga.broker.topic.producer import Producer
from geminga.delivery_log.log_reader import LogPosition
from geminga.errors import CorruptData, GemingaError, LedgerNotFound, ProtocolError, ServiceNotReady
from geminga.names import TopicName
from geminga.wire import client_commands
from geminga.wire.commands import Send
from geminga.wire.stored_entry import metadata_range, parse_metadata

if TYPE_CHECKING:
    from geminga.broker.topic.rooms import Rooms
    from geminga.broker.topic.topic import Topic
    from geminga.broker.topic.topics import Topics

PRODUCER_NAME: Final = "geminga-delivery-log"
POSITION_PROPERTY: Final = "geminga-delivery-log-place"
"""The property of a message that has its segment's position in the log."""
METADATA_BYTES_MAX: Final = 1024
DURABLE_S_MAX: Final = 60.0
LOOKED_AT_MAX: Final = 10
"""The number of messages at the end of the topic that are searched for the position, because other producers
may publish there, too.
"""


class _OwnProducer(Producer):
    """Sends one entry at a time; `error` has the result once `done` is set."""

    __slots__ = ("_wait_until_s", "done", "error", "sequence_id", "topic")

    def __init__(self, topic: Topic, rooms: Rooms) -> None:
        outbox = Outbox(rooms.send_memory)
        outbox.close()
        super().__init__(
            0,
            PRODUCER_NAME,
            outbox,
            message_bytes_max=rooms.settings.message_bytes_max,
            user_provided_name=True,
            connected_since_ms=rooms.clock.now_ms(),
            throttle=self._wait_until,
        )
        self.topic = topic
        self._wait_until_s = 0.0
        self.sequence_id = topic.dedup.last_sequence_id(PRODUCER_NAME)
        self.done = trio.Event()
        self.error: GemingaError | None = None

    async def publish_one(self, entry: bytes) -> None:
        """Publish one entry, durable on return. After a GemingaError the entry may still be in the topic.
        Waits as long as its limits require.
        """
        await trio.sleep(max(0.0, self._wait_until_s - self.topic.clock.monotonic_s()))
        self.done, self.error = trio.Event(), None
        self.topic.publishing.publish(self, Send(0, self.sequence_id, 1, 0, entry, True))
        with trio.move_on_after(DURABLE_S_MAX):
            await self.done.wait()
        if not self.done.is_set():
            raise ServiceNotReady(f"{self.topic.name}: not durable after {DURABLE_S_MAX:g} s")
        if self.error is not None:
            raise self.error

    def confirm(
        self, sequence_ids: list[int], highest_sequence_ids: list[int], ledger_id: int, first_entry_id: int
    ) -> None:
        super().confirm(sequence_ids, highest_sequence_ids, ledger_id, first_entry_id)
        self.done.set()

    def confirm_duplicate(self, send: Send) -> None:
        super().confirm_duplicate(send)
        self.done.set()

    def write_error(self, sequence_id: int, error: GemingaError) -> None:
        self.error = error
        self.done.set()

    def _wait_until(self, until_s: float) -> None:
        self._wait_until_s = until_s


class DeliveryLogTopic:
    """Implements `delivery_log.shipping.LogTopic`. Creates the topic if it does not exist, whatever the
    policy for clients is, because the operator has named it.
    """

    def __init__(self, name: str, rooms: Rooms, topics: Topics) -> None:
        self._name = TopicName.parse(name)
        self._rooms = rooms
        self._topics = topics
        self._producer: _OwnProducer | None = None

    @property
    def segment_bytes_max(self) -> int:
        return self._rooms.settings.message_bytes_max - METADATA_BYTES_MAX

    async def last_position(self) -> LogPosition | None:
        topic = await self._topics.get(self._name, create=True)
        position = topic.ledger.last_position()
        for _ in range(LOOKED_AT_MAX):
            if position is None or position.entry_id < 0:
                return None
            with contextlib.suppress(CorruptData, ProtocolError, LedgerNotFound):
                entries = await topic.ledger.read(position, 1, limits.MIB)
                if entries and (found := _position_in(entries[0].body)) is not None:
                    return found
            position = topic.ledger.previous_position(position)
        return None

    async def append(self, segment: bytes, position: LogPosition) -> None:
        producer = self._producer
        if producer is None or producer.closed or producer.topic.closing or producer.given_up:
            producer = self._producer = await self._joined()
        producer.sequence_id += 1
        metadata = client_commands.metadata(
            PRODUCER_NAME,
            producer.sequence_id,
            self._rooms.clock.now_ms(),
            properties={POSITION_PROPERTY: position.encode().decode()},
        )
        await producer.publish_one(client_commands.entry(metadata, segment))

    async def _joined(self) -> _OwnProducer:
        topic = await self._topics.get(self._name, create=True)
        for former in topic.producers:
            if former is self._producer:
                topic.producers.remove(former)
        producer = _OwnProducer(topic, self._rooms)
        await topic.add_producer(producer, None)
        return producer


def _position_in(body: bytes) -> LogPosition | None:
    for pair in parse_metadata(body, *metadata_range(body)).properties:
        if pair.key == POSITION_PROPERTY:
            return LogPosition.decode(pair.value)
    return None
