"""Receiving over a connection of our own client."""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import trio

from geminga.cli.client.connection import Connection
from geminga.cli.client.errors import ClientError
from geminga.wire import client_commands
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import position_of
from geminga.wire.decoder import Delivery
from geminga.wire.message_metadata import peek, strip

INFLATED_BYTES_MAX = 64 * 1024 * 1024


class Message(NamedTuple):
    """One message, out of its batch."""

    ledger_id: int
    entry_id: int
    batch_index: int
    """-1: it was not in a batch."""
    partition: int
    payload: bytes
    compression: str
    """Other than NONE: `payload` is still compressed (and a batch, if it was one)."""
    key: str
    properties: dict[str, str]
    publish_time_ms: int
    deliver_at_ms: int
    redelivery_count: int
    producer_name: str

    @property
    def id(self) -> str:
        suffix = f":{self.partition}" if self.partition >= 0 else ""
        return f"{self.ledger_id}:{self.entry_id}{suffix}"


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
    ) -> Consumer:
        """Raises `Refused`."""
        made = cls(connection, queue_messages)
        await connection.request(
            lambda number: client_commands.subscribe(
                number,
                made.consumer_id,
                topic,
                subscription,
                sub_type=sub_type,
                earliest=earliest,
                durable=start is None,
                start=start,
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


def position(delivery: Delivery) -> tuple[int, int]:
    return position_of(delivery.message.message_id)


def messages(delivery: Delivery) -> Iterator[Message]:
    """The messages of an entry. What is compressed with anything but zlib stays one message, as it is."""
    body = strip(delivery.headers_and_payload)
    metadata = peek(body).metadata
    payload = _payload(body)
    compression = pb.CompressionType.Name(metadata.compression)
    if metadata.compression == pb.ZLIB:
        inflater = zlib.decompressobj()
        payload = inflater.decompress(payload, INFLATED_BYTES_MAX)
        compression = "NONE"
    in_batch = metadata.HasField("num_messages_in_batch") and compression == "NONE"
    if not in_batch:
        yield _message(delivery, metadata, metadata, payload, -1, compression)
        return
    at = 0
    for index in range(metadata.num_messages_in_batch):
        size = int.from_bytes(payload[at : at + 4], "big")
        single = pb.SingleMessageMetadata.FromString(payload[at + 4 : at + 4 + size])
        at += 4 + size
        yield _message(delivery, metadata, single, payload[at : at + single.payload_size], index, compression)
        at += single.payload_size


def _message(
    delivery: Delivery,
    metadata: pb.MessageMetadata,
    own: pb.MessageMetadata | pb.SingleMessageMetadata,
    payload: bytes,
    batch_index: int,
    compression: str,
) -> Message:
    ledger_id, entry_id = position(delivery)
    return Message(
        ledger_id=ledger_id,
        entry_id=entry_id,
        batch_index=batch_index,
        partition=delivery.message.message_id.partition,
        payload=payload,
        compression=compression,
        key=own.partition_key,
        properties={pair.key: pair.value for pair in own.properties},
        publish_time_ms=metadata.publish_time,
        deliver_at_ms=metadata.deliver_at_time,
        redelivery_count=delivery.message.redelivery_count,
        producer_name=metadata.producer_name,
    )


def _payload(body: bytes) -> bytes:
    """The bytes after checksum and metadata."""
    at = 6 if body[:2] == b"\x0e\x01" else 0
    size = int.from_bytes(body[at : at + 4], "big")
    return body[at + 4 + size :]
