"""Publishing over a connection of our own client: many messages under way, each confirmed by its receipt."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import trio

from geminga.cli.client.connection import Connection
from geminga.cli.client.errors import ClientError, Refused
from geminga.cli.payloads import chunks
from geminga.cli.payloads.compression import deflated
from geminga.clock import RealClock
from geminga.wire import client_commands
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import position_of

OnReceipt = Callable[[tuple[int, int]], None]
CHUNK_ROOM_BYTES = 256
"""For what a chunk's metadata have beyond those of its message."""
_COMPRESSIONS = {"zlib": pb.ZLIB, "lz4": pb.LZ4, "zstd": pb.ZSTD, "snappy": pb.SNAPPY}


class Attributes(NamedTuple):
    """What a message carries beside its payload."""

    key: str | None = None
    is_key_base64: bool = False
    properties: Mapping[str, str] = {}
    deliver_at_ms: int | None = None
    event_time_ms: int | None = None
    ordering_key: bytes | None = None
    compression: str = "none"
    is_null: bool = False


PLAIN = Attributes()


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
        self._schema_version = b""
        self._error: ClientError | None = None
        self._clock = RealClock()
        self._producer_id = connection.attach(producer=self)

    @classmethod
    async def open(
        cls,
        connection: Connection,
        topic: str,
        pending_max: int,
        *,
        name: str | None = None,
        schema: pb.Schema | None = None,
    ) -> Producer:
        """`name` None: the broker chooses one. `schema`: registered if the topic has none like it. Raises
        `Refused`.
        """
        made = cls(connection, topic, pending_max)
        answer = await connection.request(
            lambda number: client_commands.producer(number, made._producer_id, topic, name, schema=schema)
        )
        made.name = answer.producer_name
        made._sequence_id = answer.last_sequence_id
        if schema is not None:
            made._schema_version = answer.schema_version
        return made

    @property
    def pending(self) -> int:
        """Entries without a receipt."""
        return len(self._pending)

    async def send(
        self, payload: bytes, attributes: Attributes = PLAIN, *, on_receipt: OnReceipt | None = None
    ) -> None:
        """Queue one message, after waiting for room. `on_receipt` gets (ledger, entry) once it is durable."""
        packed = deflated(attributes.compression, payload)
        self._check_size(len(packed))
        await self._wait_room()
        metadata = self._metadata(attributes, len(payload))
        self._write(client_commands.entry(metadata, packed), 1, on_receipt)

    async def send_chunks(
        self, payload: bytes, attributes: Attributes = PLAIN, *, on_receipt: OnReceipt | None = None
    ) -> None:
        """As `send`, in as many entries as it takes. `on_receipt` gets the position of the last one."""
        packed = deflated(attributes.compression, payload)
        metadata = self._metadata(attributes, len(payload))
        room = self._connection.message_bytes_max - metadata.ByteSize() - CHUNK_ROOM_BYTES
        if len(packed) <= room:
            await self._wait_room()
            self._write(client_commands.entry(metadata, packed), 1, on_receipt)
            return
        metadata.uuid = f"{self.name}-{uuid.uuid4()}"
        metadata.total_chunk_msg_size = len(packed)
        for chunk in chunks.cut(packed, max(room, 1)):
            await self._wait_room()
            metadata.chunk_id, metadata.num_chunks_from_msg = chunk.number, chunk.of
            is_last = chunk.number == chunk.of - 1
            entry = client_commands.entry(metadata, chunk.part)
            self._write(entry, 1, on_receipt if is_last else None, is_chunk=True)

    async def send_batch(
        self,
        payloads: Sequence[bytes],
        attributes: Attributes = PLAIN,
        *,
        on_receipt: OnReceipt | None = None,
    ) -> None:
        """Queue several messages as one entry."""
        parts = []
        for payload in payloads:
            single = pb.SingleMessageMetadata(payload_size=len(payload))
            if attributes is not PLAIN:
                _set(single, attributes)
            head = single.SerializeToString()
            parts += [len(head).to_bytes(4, "big"), head, payload]
        body = b"".join(parts)
        packed = deflated(attributes.compression, body)
        self._check_size(len(packed))
        await self._wait_room()
        metadata = self._metadata(attributes, len(body))
        metadata.num_messages_in_batch = len(payloads)
        self._write(client_commands.entry(metadata, packed), len(payloads), on_receipt)

    def _metadata(self, attributes: Attributes, size_bytes: int) -> pb.MessageMetadata:
        """Of the next entry."""
        self._sequence_id += 1
        metadata = client_commands.metadata(self.name, self._sequence_id, self._clock.now_ms())
        if self._schema_version:
            metadata.schema_version = self._schema_version
        if attributes is not PLAIN:
            _set(metadata, attributes)
            if attributes.deliver_at_ms is not None:
                metadata.deliver_at_time = attributes.deliver_at_ms
            if attributes.compression != "none":
                metadata.compression = _COMPRESSIONS[attributes.compression]
                metadata.uncompressed_size = size_bytes
        return metadata

    def _write(
        self, entry: bytes, messages: int, on_receipt: OnReceipt | None, *, is_chunk: bool = False
    ) -> None:
        self._pending.append((self._sequence_id, on_receipt))
        self._connection.write(
            client_commands.send(
                self._producer_id, self._sequence_id, entry, num_messages=messages, is_chunk=is_chunk
            )
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


def _set(metadata: pb.MessageMetadata | pb.SingleMessageMetadata, attributes: Attributes) -> None:
    """What a message has by itself and within a batch."""
    if attributes.key is not None:
        metadata.partition_key = attributes.key
        if attributes.is_key_base64:
            metadata.partition_key_b64_encoded = True
    for key, value in attributes.properties.items():
        metadata.properties.append(pb.KeyValue(key=key, value=value))
    if attributes.event_time_ms is not None:
        metadata.event_time = attributes.event_time_ms
    if attributes.ordering_key is not None:
        metadata.ordering_key = attributes.ordering_key
    if attributes.is_null:
        metadata.null_value = True
