"""Parses MESSAGE frames of one consumer into columns, one row an entry: its bounds, its metadata."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from geminga.errors import ProtocolError
from geminga.pipeline.columns.protobuf_columns import Bytes, Ints, Repeated, Spans, scan
from geminga.wire.message_metadata import FAR_AHEAD_MS, NEARLY_BROKERS_MS

Flags = npt.NDArray[np.bool_]

NO_BATCH = -1
_NOT_SAID = -(1 << 63)
"""What no int32 is: that a batch has -1 messages is another thing."""

# fields of CommandMessage and MessageIdData
_MESSAGE_ID, _REDELIVERY_COUNT = 2, 3
_LEDGER_ID, _ENTRY_ID, _PARTITION = 1, 2, 3

# fields of MessageMetadata
_PRODUCER, _SEQUENCE_ID, _PUBLISH_TIME, _PROPERTIES, _KEY = 1, 2, 3, 4, 6
_COMPRESSION, _UNCOMPRESSED_SIZE, _NUM_MESSAGES, _EVENT_TIME, _ENCRYPTION_KEYS = 8, 9, 11, 12, 13
_SCHEMA_VERSION, _KEY_BASE64, _ORDERING_KEY, _DELIVER_AT, _MARKER = 16, 17, 18, 19, 20
_NULL_VALUE, _UUID, _NUM_CHUNKS, _CHUNK_ID = 25, 26, 27, 29

_BROKER_TIME, _VIRTUAL_CLOCK = 1, 100
_INT32_MAX = 2**31 - 1


@dataclass
class Entries:
    """Columns of the entries in one buffer, in the order of arrival. Times in ms since 1970; -1: not set."""

    data: Bytes
    ledger_id: Ints
    entry_id: Ints
    partition: Ints
    redelivery_count: Ints
    broker_time_ms: Ints
    publish_time_ms: Ints
    event_time_ms: Ints
    """0: not set."""
    deliver_at_ms: Ints
    """As the client wrote it: `due_ms` is when the broker delivers."""
    is_virtual: Flags
    """Whether the broker's clock is a virtual one."""
    compression: Ints
    uncompressed_bytes: Ints
    batch_messages: Ints
    """NO_BATCH: a single message."""
    encrypted: Flags
    marker: Flags
    null_value: Flags
    key_base64: Flags
    sequence_id: Ints
    chunk_id: Ints
    """-1: not a chunk."""
    chunks: Ints
    producer: Spans
    key: Spans
    ordering_key: Spans
    schema_version: Spans
    uuid: Spans
    properties: Repeated
    metadata_at: Ints
    payload_at: Ints
    payload_end: Ints
    undecrypted: Flags
    """Whether its messages are null because no key opens it."""

    def __len__(self) -> int:
        return len(self.ledger_id)

    @property
    def messages(self) -> Ints:
        """How many messages each entry holds; a chunk counts as one."""
        return np.maximum(self.batch_messages, 1)

    @property
    def due_ms(self) -> Ints:
        """When the broker delivers, as `wire.message_metadata.peek` says: under a virtual clock mostly by the
        delay from its stamp. -1: at once.
        """
        ahead_ms = self.broker_time_ms - self.publish_time_ms
        counts_from_stamp = self.is_virtual & (self.broker_time_ms >= 0) & (self.deliver_at_ms >= 0)
        counts_from_stamp &= (ahead_ms < FAR_AHEAD_MS) | (
            self.deliver_at_ms < self.broker_time_ms - NEARLY_BROKERS_MS
        )
        return np.where(counts_from_stamp, np.maximum(self.deliver_at_ms + ahead_ms, 1), self.deliver_at_ms)

    def uuid_of(self, row: int) -> bytes:
        """Of the chunked message that a chunk belongs to. Raises `ProtocolError` if it says none."""
        at = int(self.uuid.at[row])
        if at < 0:
            raise ProtocolError("a chunk without the uuid of its message")
        return self.data[at : at + int(self.uuid.size[row])].tobytes()

    def once(self) -> Entries:
        """Without entries that do not stand behind all before them: what a broker sends again counts once."""
        step = np.diff(self.ledger_id)
        if ((step > 0) | ((step == 0) & (np.diff(self.entry_id) > 0))).all():
            return self
        rows, last = [], (-2, -2)
        for row, entry in enumerate(zip(self.ledger_id.tolist(), self.entry_id.tolist(), strict=True)):
            if entry > last:
                rows.append(row)
                last = entry
        return self.select(np.array(rows, np.int64))

    def select(self, rows: Ints) -> Entries:
        """These rows alone; same buffer."""
        new_row = np.full(len(self), -1, np.int64)
        new_row[rows] = np.arange(len(rows))
        columns: dict[str, Any] = {}
        for column in fields(self):
            value = getattr(self, column.name)
            if isinstance(value, Spans):
                value = Spans(value.at[rows], value.size[rows])
            elif isinstance(value, Repeated):
                message = new_row[value.message]
                kept = message >= 0
                value = Repeated(message[kept], value.at[kept], value.size[kept])
            elif column.name != "data":
                value = value[rows]
            columns[column.name] = value
        return Entries(**columns)


def read_entries(data: Bytes, bounds: Ints) -> Entries:
    """`bounds`: one row of `frames.BOUNDS` for each MESSAGE frame. Raises `ProtocolError`."""
    command_at, command_end, stamp_at, stamp_end, metadata_at, metadata_end, end = bounds.T.copy()
    command = scan(data, command_at, command_end, numbers={_REDELIVERY_COUNT: 0}, spans=(_MESSAGE_ID,))
    position = command.spans[_MESSAGE_ID]
    if not position.present.all():
        raise ProtocolError("a MESSAGE without a message id")
    message_id = scan(
        data,
        position.at,
        position.at + position.size,
        numbers={_LEDGER_ID: -1, _ENTRY_ID: -1, _PARTITION: -1},
    ).numbers
    stamp = scan(data, stamp_at, stamp_end, numbers={_BROKER_TIME: -1, _VIRTUAL_CLOCK: 0}).numbers
    metadata = scan(
        data,
        metadata_at,
        metadata_end,
        numbers={
            _SEQUENCE_ID: -1,
            _PUBLISH_TIME: -1,
            _COMPRESSION: 0,
            _UNCOMPRESSED_SIZE: 0,
            _NUM_MESSAGES: _NOT_SAID,
            _EVENT_TIME: 0,
            _KEY_BASE64: 0,
            _DELIVER_AT: -1,
            _MARKER: -1,
            _NULL_VALUE: 0,
            _NUM_CHUNKS: 0,
            _CHUNK_ID: -1,
        },
        spans=(_PRODUCER, _KEY, _ENCRYPTION_KEYS, _SCHEMA_VERSION, _ORDERING_KEY, _UUID),
        repeated=(_PROPERTIES,),
    )
    numbers, spans = metadata.numbers, metadata.spans
    if (numbers[_PUBLISH_TIME] < 0).any():
        raise ProtocolError("metadata without a publish time")
    batch_messages = numbers[_NUM_MESSAGES]
    if (batch_messages > _INT32_MAX).any():
        raise ProtocolError("a batch of more than 2^31 messages")
    is_said = batch_messages != _NOT_SAID
    if ((batch_messages < 0) & is_said).any():
        raise ProtocolError("a batch of fewer messages than none")
    in_chunks = numbers[_NUM_CHUNKS] > 1
    return Entries(
        data=data,
        ledger_id=message_id[_LEDGER_ID],
        entry_id=message_id[_ENTRY_ID],
        partition=message_id[_PARTITION],
        redelivery_count=command.numbers[_REDELIVERY_COUNT],
        broker_time_ms=stamp[_BROKER_TIME],
        publish_time_ms=numbers[_PUBLISH_TIME],
        event_time_ms=numbers[_EVENT_TIME],
        deliver_at_ms=numbers[_DELIVER_AT],
        is_virtual=stamp[_VIRTUAL_CLOCK] == 1,
        compression=numbers[_COMPRESSION],
        uncompressed_bytes=numbers[_UNCOMPRESSED_SIZE],
        batch_messages=np.where(is_said, batch_messages, NO_BATCH),
        encrypted=spans[_ENCRYPTION_KEYS].present,
        marker=numbers[_MARKER] >= 0,
        null_value=numbers[_NULL_VALUE] > 0,
        key_base64=numbers[_KEY_BASE64] > 0,
        sequence_id=numbers[_SEQUENCE_ID],
        chunk_id=np.where(in_chunks, numbers[_CHUNK_ID], -1),
        chunks=numbers[_NUM_CHUNKS],
        producer=spans[_PRODUCER],
        key=spans[_KEY],
        ordering_key=spans[_ORDERING_KEY],
        schema_version=spans[_SCHEMA_VERSION],
        uuid=spans[_UUID],
        properties=metadata.repeated[_PROPERTIES],
        metadata_at=metadata_at,
        payload_at=metadata_end,
        payload_end=end,
        undecrypted=np.zeros(len(end), bool),
    )
