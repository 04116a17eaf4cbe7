"""The columns of a DataFrame that is written, into what producers send."""

from __future__ import annotations

import base64

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from geminga.pipeline.columns.columns import (
    BATCH_INDEX,
    BROKER_TIME,
    DELIVER_AT_TIME,
    ENTRY_ID,
    EVENT_TIME,
    HEADERS,
    KEY,
    KEY_BASE64,
    LEDGER_ID,
    MESSAGE_ID,
    ORDERING_KEY,
    PARTITION,
    PRODUCER_NAME,
    PROPERTIES,
    PUBLISH_TIME,
    REDELIVERY_COUNT,
    SCHEMA_VERSION,
    SEQUENCE_ID,
    TOPIC,
    UNDECRYPTED,
    VALUE,
)
from geminga.pipeline.columns.encoding import Rows
from geminga.pipeline.columns.entries import Flags
from geminga.pipeline.values.avro_writing import BadColumns, check_names

WRITTEN_COLUMNS = (
    VALUE,
    KEY,
    TOPIC,
    EVENT_TIME,
    PROPERTIES,
    HEADERS,
    DELIVER_AT_TIME,
    ORDERING_KEY,
    KEY_BASE64,
    PARTITION,
)
READ_ONLY_COLUMNS = frozenset(
    (
        MESSAGE_ID,
        PUBLISH_TIME,
        BROKER_TIME,
        REDELIVERY_COUNT,
        LEDGER_ID,
        ENTRY_ID,
        BATCH_INDEX,
        SEQUENCE_ID,
        PRODUCER_NAME,
        SCHEMA_VERSION,
        UNDECRYPTED,
    )
)
"""What a DataFrame that was read has beside; it is left out."""


def check_columns(schema: pa.Schema) -> None:
    """That each has a name of its own, and those beside the value. Raises `BadColumns`, in words."""
    names = schema.names
    check_names(names)
    for name in (KEY, ORDERING_KEY):
        if name in names and not _is_bytes(schema.field(name).type):
            raise BadColumns(f"column {name!r} is {schema.field(name).type}; expected binary or string")
    for name in (EVENT_TIME, DELIVER_AT_TIME):
        if name in names and not (
            pa.types.is_timestamp(schema.field(name).type) or pa.types.is_int64(schema.field(name).type)
        ):
            raise BadColumns(
                f"column {name!r} is {schema.field(name).type}; expected a timestamp, or milliseconds "
                "since 1970 as bigint"
            )
    if TOPIC in names and not pa.types.is_string(schema.field(TOPIC).type):
        raise BadColumns(f"column {TOPIC!r} is {schema.field(TOPIC).type}; expected string")
    if KEY_BASE64 in names and not pa.types.is_boolean(schema.field(KEY_BASE64).type):
        raise BadColumns(f"column {KEY_BASE64!r} is {schema.field(KEY_BASE64).type}; expected boolean")
    if PROPERTIES in names and not _are_texts(schema.field(PROPERTIES).type):
        raise BadColumns(
            f"column {PROPERTIES!r} is {schema.field(PROPERTIES).type}; expected map<string,string>: cast it"
        )
    if HEADERS in names and not _are_headers(schema.field(HEADERS).type):
        raise BadColumns(
            f"column {HEADERS!r} is {schema.field(HEADERS).type}; expected "
            "array<struct<key: string, value: binary>>"
        )


def _are_texts(kind: pa.DataType) -> bool:
    """Numbers are none: zero would be sent as an empty text. A map without any pair may have no types."""
    return bool(pa.types.is_map(kind)) and all(
        _is_string(each) or pa.types.is_null(each) for each in (kind.key_type, kind.item_type)
    )


def _are_headers(kind: pa.DataType) -> bool:
    if not (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
        return False
    item = kind.value_type
    fields = {each.name: each.type for each in item} if pa.types.is_struct(item) else {}
    return fields.keys() == {"key", "value"} and all(_is_bytes(each) for each in fields.values())


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
                or pa.types.is_large_binary(kind))  # fmt: skip


def rows_of(
    batch: pa.RecordBatch, value: pa.BinaryArray | None = None, pair_key: pa.BinaryArray | None = None
) -> Rows:
    """`value` None: the column of that name. `pair_key`: the keys of separated pairs, which travel as
    bytes instead of the column `__key`.
    """
    names = set(batch.schema.names)

    def column(name: str) -> pa.Array | None:
        return batch.column(name) if name in names else None

    if pair_key is None:
        key, key_base64 = _keys(column(KEY), column(KEY_BASE64))
    else:
        key, key_base64 = _keys(pair_key, pa.repeat(pa.scalar(True), len(pair_key)))
    return Rows(
        value=_binary(batch.column(VALUE)) if value is None else value,
        key=key,
        event_time_ms=_ms(column(EVENT_TIME)),
        properties=_texts(column(PROPERTIES)) if HEADERS not in names else _properties(batch.column(HEADERS)),
        ordering_key=_binary(column(ORDERING_KEY)),
        deliver_at_ms=_ms(column(DELIVER_AT_TIME)),
        key_base64=key_base64,
    )


def _texts(column: pa.MapArray | None) -> pa.MapArray | None:
    if column is None or not (
        pa.types.is_null(column.type.key_type) or pa.types.is_null(column.type.item_type)
    ):
        return column
    return column.cast(pa.map_(pa.string(), pa.string()))


def _properties(headers: pa.ListArray) -> pa.MapArray:
    """A map that may have a key several times, as a message may. Raises `BadColumns`."""
    counts = pc.list_value_length(headers).fill_null(0)
    offsets = np.zeros(len(headers) + 1, np.int32)
    np.cumsum(np.asarray(counts), out=offsets[1:])
    pairs = headers.flatten()
    try:
        keys, values = (pairs.field(name).cast(pa.string()) for name in ("key", "value"))
    except pa.ArrowInvalid:
        raise BadColumns(
            f"column {HEADERS!r} has bytes that are not UTF-8; properties of Pulsar are text: encode them"
        ) from None
    if pairs.null_count or keys.null_count:
        raise BadColumns(f"column {HEADERS!r} has an item without a key")
    return pa.MapArray.from_arrays(pa.array(offsets), keys, values)


def _binary(column: pa.Array | None) -> pa.BinaryArray | None:
    return column if column is None or column.type == pa.binary() else column.cast(pa.binary())


def _keys(
    column: pa.Array | None, are_bytes: pa.BooleanArray | None
) -> tuple[pa.BinaryArray | None, pa.BooleanArray | None]:
    """What is sent as the key of each row, and which are in base64: a key is text in the protocol, so one of
    bytes goes in base64, under a flag. Those are the ones that `are_bytes`, and all that are no UTF-8.
    """
    if column is None or column.null_count == len(column):
        return None, None
    keys: pa.BinaryArray = _binary(column)
    said: Flags | None = None
    if are_bytes is not None:
        said = np.asarray(are_bytes.fill_null(False)) & np.asarray(keys.is_valid())
    if (said is None or not said.any()) and (_is_string(column.type) or _are_text(keys)):
        return keys, None
    known = keys.dictionary_encode()
    values = known.dictionary.to_pylist()
    are_no_text: Flags = np.array([not _is_text(value) for value in values], np.bool_)
    encoded: Flags = are_no_text[np.asarray(known.indices.fill_null(0))] & np.asarray(keys.is_valid())
    if said is not None:
        encoded |= said
    if not encoded.any():
        return keys, None
    flags = pa.array(encoded)
    in_base64 = pa.array([base64.b64encode(value) for value in values], pa.binary())
    return pc.if_else(flags, in_base64.take(known.indices), keys), flags


def _is_string(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _are_text(keys: pa.BinaryArray) -> bool:
    try:
        keys.cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True


def _is_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return False
    return True


def _ms(column: pa.Array | None) -> pa.Int64Array | None:
    if column is None or column.null_count == len(column):
        return None
    if pa.types.is_timestamp(column.type):
        return (
            pc.floor_temporal(column, unit="millisecond")
            .cast(pa.timestamp("ms", tz=column.type.tz))
            .cast(pa.int64())
        )
    return column
