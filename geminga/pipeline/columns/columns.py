"""Messages into Arrow columns, in the shapes that Spark expects."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from geminga.errors import ProtocolError
from geminga.names import TopicName
from geminga.pipeline.columns.batches import Messages, select
from geminga.pipeline.columns.entries import NO_BATCH, Flags
from geminga.pipeline.columns.message_id_column import message_ids
from geminga.pipeline.columns.protobuf_columns import Bytes, Ints, Spans, scan
from geminga.pipeline.errors import BadOption

_PAIR_KEY, _PAIR_VALUE = 1, 2
_US_PER_MS = 1000
_TIME_MS_MAX = (2**63 - 1) // _US_PER_MS

VALUE = "value"
KEY, TOPIC, MESSAGE_ID = "__key", "__topic", "__messageId"
PUBLISH_TIME, EVENT_TIME, PROPERTIES = "__publishTime", "__eventTime", "__messageProperties"
DELIVER_AT_TIME, BROKER_TIME, REDELIVERY_COUNT = "__deliverAtTime", "__brokerTime", "__redeliveryCount"
LEDGER_ID, ENTRY_ID, BATCH_INDEX = "__ledgerId", "__entryId", "__batchIndex"
SEQUENCE_ID, PRODUCER_NAME, ORDERING_KEY = "__sequenceId", "__producerName", "__orderingKey"
SCHEMA_VERSION, KEY_BASE64, PARTITION = "__schemaVersion", "__keyBase64", "__partition"
UNDECRYPTED, HEADERS = "__undecrypted", "__headers"

_TIME = pa.timestamp("us", tz="UTC")

METADATA_COLUMNS = {
    KEY: pa.binary(),
    TOPIC: pa.string(),
    MESSAGE_ID: pa.binary(),
    PUBLISH_TIME: _TIME,
    EVENT_TIME: _TIME,
    PROPERTIES: pa.map_(pa.string(), pa.string()),
}
"""What the JVM connector has beside the value, in its order."""
MORE_COLUMNS = {
    DELIVER_AT_TIME: _TIME,
    BROKER_TIME: _TIME,
    REDELIVERY_COUNT: pa.int32(),
    LEDGER_ID: pa.int64(),
    ENTRY_ID: pa.int64(),
    BATCH_INDEX: pa.int32(),
    SEQUENCE_ID: pa.int64(),
    PRODUCER_NAME: pa.string(),
    ORDERING_KEY: pa.binary(),
    SCHEMA_VERSION: pa.binary(),
    KEY_BASE64: pa.bool_(),
    PARTITION: pa.int32(),
    UNDECRYPTED: pa.bool_(),
    HEADERS: pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
}
"""What it lacks; asked for one by one."""


def gather(data: Bytes, spans: Spans) -> pa.BinaryArray:
    """The bytes of each span, copied; null where a span is absent."""
    present = spans.present
    whole = bool(present.all())
    at = spans.at if whole else spans.at[present]
    size = spans.size if whole else spans.size[present]
    count = len(at)
    if count == 0:
        return pa.nulls(len(present), pa.binary())
    rank = np.arange(count)
    if count > 1 and (at[1:] < at[:-1]).any():
        order = np.argsort(at, kind="stable")
        rank[order] = np.arange(count)
        at, size = at[order], size[order]
    # an array of gap, span, gap, span...; the spans are then taken from it by compiled code
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[0] = at[0]
    bounds[1::2] = at
    bounds[2::2] = at + size
    source = pa.BinaryArray.from_buffers(
        pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(data)]
    )
    wanted = pa.array(2 * rank + 1)
    if not whole:
        rows = np.full(len(present), 0, np.int64)
        rows[present] = 2 * rank + 1
        wanted = pa.array(rows, mask=~present)
    return source.take(wanted)


def text(values: pa.BinaryArray) -> pa.StringArray:
    """As UTF-8; what is not becomes U+FFFD."""
    try:
        return values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array(
            [None if v is None else v.decode(errors="replace") for v in values.to_pylist()], pa.string()
        )


def times(values_ms: Ints, absent: Flags | None = None) -> pa.TimestampArray:
    """A time that no microseconds can say, as "never" is written, becomes the last that they can."""
    values_ms = np.clip(values_ms, -_TIME_MS_MAX, _TIME_MS_MAX)
    mask = None if absent is None or not absent.any() else absent
    return pa.array(values_ms * _US_PER_MS, pa.int64(), mask=mask).cast(_TIME)


class Values(NamedTuple):
    """The value's own columns, of the messages that are kept."""

    columns: dict[str, pa.Array]
    kept: Flags | None = None
    """None: all are."""


class ColumnMaker:
    """Makes the named columns for messages of one topic.

    `value`: makes the value's own columns of a `Messages`; they come first. With `leaves_out` it may leave
    out messages, and is asked even if no column of it is wanted.
    """

    def __init__(
        self,
        topic: str,
        schema: pa.Schema,
        value: Callable[[Messages], Values] | None = None,
        *,
        leaves_out: bool = False,
    ) -> None:
        self._topic = topic
        self._schema = schema
        self._value = value if value is not None else raw_value
        self._leaves_out = leaves_out
        self._topics: pa.Array = pa.array([], pa.string())
        index = TopicName.parse(topic).partition_index
        self._partition = pa.scalar(index if index >= 0 else None, pa.int32())
        self._makers: dict[str, Callable[[Messages], pa.Array]] = {
            KEY: decoded_keys,
            TOPIC: self._topic_column,
            MESSAGE_ID: message_ids,
            PUBLISH_TIME: lambda m: times(m.entries.publish_time_ms[m.entry]),
            EVENT_TIME: lambda m: times(m.event_time_ms, m.event_time_ms <= 0),
            PROPERTIES: properties,
            DELIVER_AT_TIME: lambda m: _entry_time(m, m.entries.deliver_at_ms),
            BROKER_TIME: lambda m: _entry_time(m, m.entries.broker_time_ms),
            REDELIVERY_COUNT: lambda m: _int32(m.entries.redelivery_count[m.entry]),
            LEDGER_ID: lambda m: pa.array(m.entries.ledger_id[m.entry]),
            ENTRY_ID: lambda m: pa.array(m.entries.entry_id[m.entry]),
            BATCH_INDEX: lambda m: _int32(m.batch_index),
            SEQUENCE_ID: _sequence_ids,
            PRODUCER_NAME: lambda m: text(gather(m.entries.data, _of_entries(m, m.entries.producer))),
            ORDERING_KEY: lambda m: gather(m.data, m.ordering_key),
            SCHEMA_VERSION: lambda m: gather(m.entries.data, _of_entries(m, m.entries.schema_version)),
            KEY_BASE64: lambda m: pa.array(m.key_base64 & m.key.present),
            PARTITION: lambda m: pa.repeat(self._partition, len(m)),
            UNDECRYPTED: lambda m: pa.array(m.entries.undecrypted[m.entry]),
            HEADERS: headers,
        }

    def batch(self, messages: Messages) -> pa.RecordBatch:
        """Exactly the schema's columns. An unknown name is a bug of ours."""
        values: dict[str, pa.Array] = {}
        if self._leaves_out or any(each.name not in self._makers for each in self._schema):
            values, kept = self._value(messages)
            if kept is not None:
                messages = select(messages, kept)
        columns: list[pa.Array] = []
        for wanted in self._schema:
            maker = self._makers.get(wanted.name)
            column = maker(messages) if maker is not None else values[wanted.name]
            columns.append(column if column.type == wanted.type else _cast(column, wanted))
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _topic_column(self, messages: Messages) -> pa.Array:
        if len(self._topics) < len(messages):
            self._topics = pa.repeat(pa.scalar(self._topic), len(messages))
        return self._topics.slice(0, len(messages))


def _cast(column: pa.Array, wanted: pa.Field) -> pa.Array:
    """To the type of a schema of the user's own."""
    try:
        return column.cast(wanted.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise BadOption(
            f"schema(...) has {wanted.name!r} as {wanted.type}, and the topic has {column.type}, of which "
            f"one does not fit ({error}): read it as {column.type}, and cast it in the query"
        ) from None


def decoded_keys(messages: Messages) -> pa.BinaryArray:
    """The keys, those that are bytes out of their base64 (if it is any); null where there is none."""
    keys = gather(messages.data, messages.key)
    encoded = messages.key_base64 & messages.key.present
    if not encoded.any():
        return keys
    plain = keys.to_pylist()
    for row in np.flatnonzero(encoded).tolist():
        plain[row] = _unpacked(plain[row])
    return pa.array(plain, pa.binary())


def _unpacked(key: bytes) -> bytes:
    try:
        return base64.b64decode(key, validate=True)
    except binascii.Error:
        return key


def raw_value(messages: Messages) -> Values:
    """The payloads as they are; null where the producer sent none."""
    return Values({VALUE: payloads(messages)})


def payloads(messages: Messages) -> pa.BinaryArray:
    at = messages.payload_at
    if messages.null_value.any():
        at = np.where(messages.null_value, -1, at)
    return gather(messages.data, Spans(at, messages.payload_bytes))


class _Pairs(NamedTuple):
    """The properties of all messages, in the order of the wire."""

    message: Ints
    """In order."""
    keys: pa.StringArray
    values: pa.BinaryArray

    def offsets(self, count: int) -> Ints:
        """Where those of each of `count` messages begin, and where the last ones end."""
        return np.searchsorted(self.message, np.arange(count + 1)).astype(np.int32)


def _pairs(messages: Messages) -> _Pairs:
    pairs = messages.properties
    order = np.lexsort((pairs.at, pairs.message))
    message, at, size = pairs.message[order], pairs.at[order], pairs.size[order]
    found = scan(messages.data, at, at + size, numbers={}, spans=(_PAIR_KEY, _PAIR_VALUE))
    if not found.spans[_PAIR_KEY].present.all():
        raise ProtocolError("a property without a key")
    keys = text(gather(messages.data, found.spans[_PAIR_KEY]))
    return _Pairs(message, keys, gather(messages.data, found.spans[_PAIR_VALUE]))


def properties(messages: Messages) -> pa.MapArray:
    """A property that is given twice counts once, with its last value: Spark refuses a map with a key
    twice.
    """
    pairs = _pairs(messages)
    message, keys = pairs.message, pairs.keys
    if len(message) > 1 and (message[1:] == message[:-1]).any():
        last = {
            (row, key): index for index, (row, key) in enumerate(zip(message, keys.to_pylist(), strict=True))
        }
        if len(last) < len(message):
            chosen = np.array(sorted(last.values()))
            taken = pa.array(chosen)
            pairs = _Pairs(message[chosen], keys.take(taken), pairs.values.take(taken))
    offsets = pa.array(pairs.offsets(len(messages)))
    return pa.MapArray.from_arrays(offsets, pairs.keys, text(pairs.values))


def headers(messages: Messages) -> pa.ListArray:
    """All properties, in order and with repeated keys. Null, as Spark's Kafka source has it, for a message
    without any.
    """
    pairs = _pairs(messages)
    offsets = pairs.offsets(len(messages))
    structs = pa.StructArray.from_arrays([pairs.keys, pairs.values], ["key", "value"])
    mask = pa.array(np.diff(offsets) == 0)
    return pa.ListArray.from_arrays(pa.array(offsets), structs, mask=mask)


def _of_entries(messages: Messages, spans: Spans) -> Spans:
    return Spans(spans.at[messages.entry], spans.size[messages.entry])


def _entry_time(messages: Messages, values_ms: Ints) -> pa.Array:
    values = values_ms[messages.entry]
    return times(values, values < 0)


def _int32(values: Ints) -> pa.Array:
    return pa.array(values.astype(np.int32))


def _sequence_ids(messages: Messages) -> pa.Array:
    """Its own if it says one, else that of the entry for its first message, counted on from there."""
    index = np.where(messages.batch_index == NO_BATCH, 0, messages.batch_index)
    counted = messages.entries.sequence_id[messages.entry] + index
    return pa.array(np.where(messages.sequence_id < 0, counted, messages.sequence_id))


def column_names(more: Sequence[str]) -> dict[str, pa.DataType]:
    """The metadata columns with those that were asked for."""
    return METADATA_COLUMNS | {name: MORE_COLUMNS[name] for name in more}
