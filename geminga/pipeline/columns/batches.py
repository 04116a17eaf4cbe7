"""From entries to messages: batches are taken apart, one row a message, without a Python step for each.

batch := message...                      message := size u32 | SingleMessageMetadata | payload

The metadata says how long the payload is, so the messages of a batch are a chain that can only be followed
from its begin. But often many neighbours have the same sizes; a run of those is recognised at once: if
message i is where we think, and its size fields are those of message 0, then message i+1 is where we think.
`chains` finds those whose sizes differ.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from google.protobuf.message import DecodeError

from geminga.errors import ProtocolError
from geminga.limits import MIB
from geminga.pipeline.columns.chains import chain
from geminga.pipeline.columns.entries import NO_BATCH, Entries, Flags
from geminga.pipeline.columns.protobuf_columns import Bytes, Ints, Repeated, Spans, scan
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.varint import scan_varint

# fields of SingleMessageMetadata
_PROPERTIES, _KEY, _PAYLOAD_SIZE, _COMPACTED_OUT, _EVENT_TIME, _KEY_BASE64 = 1, 2, 3, 4, 5, 6
_ORDERING_KEY, _SEQUENCE_ID, _NULL_VALUE = 7, 8, 9

_PAYLOAD_SIZE_TAG = _PAYLOAD_SIZE << 3
_LENGTH_TAGS = (_PROPERTIES << 3 | 2, _KEY << 3 | 2)
_RUN_MIN = 8
"""Shorter runs are not worth a numpy call."""
_CHAIN_MIN = 32
"""With fewer messages left, following them one by one is faster."""
_LOOK_BYTES = 1 * MIB
"""Of a batch, in which chains are looked for at once: that takes some thirty times as much memory."""
ROWS_AT_ONCE = 1 << 17
"""What is split together: each takes 150 bytes, and ten thousand fit into ten bytes that were packed well."""
_U32 = struct.Struct(">I")


@dataclass
class Messages:
    """Columns of messages, in the order of their entries. All offsets are into `data`."""

    data: Bytes
    entries: Entries
    entry: Ints
    """The row of each message's entry."""
    batch_index: Ints
    """NO_BATCH: it was alone in its entry."""
    payload_at: Ints
    payload_bytes: Ints
    key: Spans
    key_base64: Flags
    ordering_key: Spans
    event_time_ms: Ints
    sequence_id: Ints
    """-1: it says none of its own."""
    null_value: Flags
    properties: Repeated
    """`message` is a row here."""

    def __len__(self) -> int:
        return len(self.entry)


@dataclass
class Payload:
    """Where the (by now uncompressed) payloads of entries are: one buffer, an interval for each entry
    kept.
    """

    data: Bytes
    """Begins with the buffer of the entries, so that offsets into that are offsets here."""
    entry: Ints
    at: Ints
    end: Ints


def split(entries: Entries, payload: Payload) -> Iterator[Messages]:
    """All messages of the entries, so many at a time that they fit into memory; a batch may go on in the next
    portion. Raises `ProtocolError` if a batch is not what its metadata says.
    """
    batch_messages = entries.batch_messages[payload.entry]
    counts = np.where(batch_messages != NO_BATCH, batch_messages, 1)
    _check_counts(counts, payload)
    ends = np.cumsum(counts)
    total = int(counts.sum())
    if 0 < total <= ROWS_AT_ONCE:
        yield _split(entries, payload, counts, 0)[0]
        return
    at = payload.at.copy()
    for begin in range(0, total, ROWS_AT_ONCE):
        end = min(begin + ROWS_AT_ONCE, total)
        first, last = np.searchsorted(ends, (begin, end - 1), side="right").tolist()
        rows = slice(first, last + 1)
        known = begin - int(ends[first] - counts[first])
        ours = counts[rows].copy()
        ours[0] -= known
        ours[-1] -= int(ends[last]) - end
        part = Payload(payload.data, payload.entry[rows], at[rows], payload.end[rows])
        messages, at[last] = _split(entries, part, ours, known)
        yield messages


def _split(entries: Entries, payload: Payload, counts: Ints, known: int) -> tuple[Messages, int]:
    """So many messages of each, of the first those behind `known` others; and where the last one ends."""
    kept = payload.entry
    batched = entries.batch_messages[kept] != NO_BATCH
    total = int(counts.sum())
    head_at = np.zeros(total, np.int64)
    head_end = np.zeros(total, np.int64)
    payload_at = np.zeros(total, np.int64)
    payload_bytes = np.zeros(total, np.int64)
    first = np.cumsum(counts) - counts
    alone = first[~batched]
    payload_at[alone] = payload.at[~batched]
    payload_bytes[alone] = payload.end[~batched] - payload.at[~batched]
    raw = memoryview(payload.data.data).cast("B")
    after = 0
    for row in np.flatnonzero(batched):
        begin, count = int(first[row]), int(counts[row])
        after = _follow(raw, payload.data, int(payload.at[row]), int(payload.end[row]), begin, count, head_at,
                        head_end, payload_at, payload_bytes)  # fmt: skip
    rows_batched = np.repeat(batched, counts)
    entry = np.repeat(kept, counts)
    batch_index = np.arange(total) - np.repeat(first, counts)
    batch_index[: int(counts[0])] += known
    batch_index[~rows_batched] = NO_BATCH
    found = scan(
        payload.data,
        head_at,
        head_end,
        numbers={_COMPACTED_OUT: 0, _EVENT_TIME: 0, _KEY_BASE64: 0, _SEQUENCE_ID: -1, _NULL_VALUE: 0},
        spans=(_KEY, _ORDERING_KEY),
        repeated=(_PROPERTIES,),
    )
    messages = Messages(
        data=payload.data,
        entries=entries,
        entry=entry,
        batch_index=batch_index,
        payload_at=payload_at,
        payload_bytes=payload_bytes,
        key=found.spans[_KEY],
        key_base64=found.numbers[_KEY_BASE64] > 0,
        ordering_key=found.spans[_ORDERING_KEY],
        event_time_ms=found.numbers[_EVENT_TIME],
        sequence_id=found.numbers[_SEQUENCE_ID],
        null_value=found.numbers[_NULL_VALUE] > 0,
        properties=found.repeated[_PROPERTIES],
    )
    if len(alone):
        _adopt(messages, alone)
    compacted = found.numbers[_COMPACTED_OUT] > 0
    return (select(messages, ~compacted) if compacted.any() else messages), after


def _check_counts(counts: Ints, payload: Payload) -> None:
    """Every message of a batch takes at least six bytes: do not allocate for more."""
    impossible = (counts > 1) & (counts * 6 > payload.end - payload.at)
    if impossible.any() or (counts < 0).any():
        raise ProtocolError("a batch that is too short for its messages")


def _adopt(messages: Messages, alone: Ints) -> None:
    """What the metadata of an entry says holds for a message that is alone in it."""
    entries = messages.entries
    source = messages.entry[alone]
    for own, of_entry in ((messages.key, entries.key), (messages.ordering_key, entries.ordering_key)):
        own.at[alone], own.size[alone] = of_entry.at[source], of_entry.size[source]
    messages.key_base64[alone] = entries.key_base64[source]
    messages.event_time_ms[alone] = entries.event_time_ms[source]
    messages.null_value[alone] = entries.null_value[source]
    pairs = entries.properties
    if len(pairs.message):
        row_of_entry = np.full(len(entries), -1, np.int64)
        row_of_entry[source] = alone
        rows = row_of_entry[pairs.message]
        ours = rows >= 0
        old = messages.properties
        messages.properties = Repeated(
            np.concatenate((old.message, rows[ours])),
            np.concatenate((old.at, pairs.at[ours])),
            np.concatenate((old.size, pairs.size[ours])),
        )


def select(messages: Messages, chosen: Flags) -> Messages:
    """The chosen rows alone."""
    new_row = np.cumsum(chosen) - 1
    pairs = messages.properties
    kept = chosen[pairs.message]
    return Messages(
        data=messages.data,
        entries=messages.entries,
        entry=messages.entry[chosen],
        batch_index=messages.batch_index[chosen],
        payload_at=messages.payload_at[chosen],
        payload_bytes=messages.payload_bytes[chosen],
        key=Spans(messages.key.at[chosen], messages.key.size[chosen]),
        key_base64=messages.key_base64[chosen],
        ordering_key=Spans(messages.ordering_key.at[chosen], messages.ordering_key.size[chosen]),
        event_time_ms=messages.event_time_ms[chosen],
        sequence_id=messages.sequence_id[chosen],
        null_value=messages.null_value[chosen],
        properties=Repeated(new_row[pairs.message[kept]], pairs.at[kept], pairs.size[kept]),
    )


def _follow(
    raw: memoryview,
    data: Bytes,
    at: int,
    end: int,
    row: int,
    count: int,
    head_at: Ints,
    head_end: Ints,
    payload_at: Ints,
    payload_bytes: Ints,
) -> int:
    """Find the first `count` messages of raw[at:end]; they become the rows from `row` on. Returns where the
    last one ends.
    """
    unpack = _U32.unpack_from
    last = row + count
    looks_for_chains = True
    while row < last:
        if end - at < 6:
            raise ProtocolError("a batch that ends before its last message")
        (head,) = unpack(raw, at)
        body = at + 4
        payload = body + head
        if payload > end:
            raise ProtocolError("a batch that ends inside a message's metadata")
        # the usual metadata begins with the payload's size; how many bytes of it are sizes
        if raw[body] == _PAYLOAD_SIZE_TAG:
            size = raw[body + 1]
            fixed = 6
            if size >= 0x80:
                size, after = scan_varint(raw, body + 1)  # type: ignore[arg-type]
                fixed = after - at
        else:
            size, fixed = _payload_size(raw, body, payload), 0
        after = payload + size
        if size < 0 or after > end:
            raise ProtocolError("a batch that ends inside a message")
        if fixed > payload - at:
            raise ProtocolError("a message's metadata that ends inside its payload's size")
        stride = after - at
        left = min(last - row, (end - at) // stride)
        run = 1
        if left >= _RUN_MIN:
            far = at + stride * (_RUN_MIN - 1)
            if fixed == 0:
                run = _run_of_fields(raw, data, at, stride, left, body, payload)
            elif raw[at : at + fixed] == raw[far : far + fixed] == raw[after : after + fixed]:
                table = data[at : at + left * stride].reshape(left, stride)[:, :fixed]
                run = _same_rows(table)
        if run == 1:
            head_at[row], head_end[row], payload_at[row], payload_bytes[row] = body, payload, payload, size
        else:
            steps = np.arange(run) * stride
            rows = slice(row, row + run)
            head_at[rows] = steps + body
            head_end[rows] = payload_at[rows] = steps + payload
            payload_bytes[rows] = size
        row += run
        at += run * stride
        if run < left and fixed and looks_for_chains and last - row >= _CHAIN_MIN:
            window = min(end, at + _LOOK_BYTES)
            found = chain(data, at, window, last - row, _PAYLOAD_SIZE_TAG)
            length = 0 if found is None else len(found.at)
            # A look costs as much as there is to look at: few of them may end early.
            looks_for_chains = found is not None and 2 * (found.end - at) >= window - at
            if found is not None:
                rows = slice(row, row + length)
                head_at[rows] = found.at + 4
                head_end[rows] = payload_at[rows] = found.payload_at
                payload_bytes[rows] = found.payload_bytes
                row += length
                at = found.end
    return at


def _same_rows(table: Bytes) -> int:
    """How many rows from the first on are like it."""
    different = (table != table[0]).any(axis=1)
    first = int(different.argmax())
    return first if different[first] else len(table)


def _run_of_fields(
    raw: memoryview, data: Bytes, at: int, stride: int, left: int, body: int, payload: int
) -> int:
    """As above where keys or properties stand before the payload's size: what they say may differ, but where
    they end may not.
    """
    columns = [0, 1, 2, 3]
    offset = body
    while offset < payload and raw[offset] in _LENGTH_TAGS:
        size, after = scan_varint(raw, offset + 1)  # type: ignore[arg-type]
        if size < 0:
            return 1
        columns.extend(range(offset - at, after - at))
        offset = after + size
    if offset >= payload or raw[offset] != _PAYLOAD_SIZE_TAG:
        return 1
    _, after = scan_varint(raw, offset + 1)  # type: ignore[arg-type]
    columns.extend(range(offset - at, after - at))
    if any(
        raw[at + column] != raw[at + stride * step + column]
        for step in (1, _RUN_MIN - 1)
        for column in columns
    ):
        return 1
    return _same_rows(data[at : at + left * stride].reshape(left, stride)[:, columns])


def _payload_size(raw: memoryview, at: int, end: int) -> int:
    """Of any metadata, by protobuf if it is unusual."""
    offset = at
    while offset < end and raw[offset] in _LENGTH_TAGS:
        size, offset = scan_varint(raw, offset + 1)  # type: ignore[arg-type]
        if size < 0:
            break
        offset += size
    if offset < end and raw[offset] == _PAYLOAD_SIZE_TAG:
        size, _ = scan_varint(raw, offset + 1)  # type: ignore[arg-type]
        return size
    try:
        metadata = pb.SingleMessageMetadata.FromString(bytes(raw[at:end]))
    except DecodeError as error:
        raise ProtocolError(f"not a message's metadata: {error}") from error
    if not metadata.HasField("payload_size"):
        raise ProtocolError("a message's metadata without its payload's size")
    return metadata.payload_size
