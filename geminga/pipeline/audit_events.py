"""What an audit reads: events of producers, broker and consumers, as columns. docs/pipeline-audit.md is the
page for people.

An event table has the columns of `SCHEMA`. Only `kind`, `time_ms` and `topic` have to be there, and
`ledger_id` and `entry_id` for every event of a message; what is missing or null is absent. Kinds are those of
docs/formats/delivery-log.md, by name, and one more:

    released   a consumer left, or gave back all that it had not acknowledged: that may come again

A producer's log has `published` events (`time_ms`: when the receipt came), a consumer's `dispatched` ones
(`time_ms`: when the message arrived), a broker's all of them. `dispatched` events carry `deliver_at_ms` and
`publish_time_ms` too, from which early and late are told without looking for the publication.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from geminga.errors import GemingaError

Integers = NDArray[np.int64]

KINDS: Final = {
    "opened": 1,
    "published": 2,
    "dispatched": 3,
    "acked": 4,
    "acked_up_to": 5,
    "skipped_up_to": 6,
    "subscribed": 7,
    "unsubscribed": 8,
    "sought": 9,
    "duplicate": 10,
    "missed": 11,
    "closed": 12,
    "released": 13,
}
"""As numbers: those of the broker's delivery log."""
PUBLISHED: Final = KINDS["published"]
DISPATCHED: Final = KINDS["dispatched"]
ACKED: Final = KINDS["acked"]
ACKED_UP_TO: Final = KINDS["acked_up_to"]

SCHEMA: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("time_ms", pa.int64()),
        ("topic", pa.string()),
        ("subscription", pa.string()),
        ("client", pa.string()),
        ("ledger_id", pa.int64()),
        ("entry_id", pa.int64()),
        ("batch_index", pa.int32()),
        ("batch_size", pa.int32()),
        ("redelivery_count", pa.int32()),
        ("deliver_at_ms", pa.int64()),
        ("publish_time_ms", pa.int64()),
        ("key", pa.string()),
    ]
)
REQUIRED: Final = ("kind", "time_ms", "topic")
NAMES: Final = ("topic", "subscription", "client")
"""Columns that are held as places in a table of names; -1 is absent."""
ABSENT: Final = {"batch_index": -1, "ledger_id": -1, "entry_id": -1}
"""What absent numbers are; 0 for all others."""
NO_KEY: Final = 0


class WrongLog(GemingaError):
    """A log that cannot be audited: the message names it, and says what it would have to have."""


class Events(NamedTuple):
    """Columns of one length. `topic`, `subscription` and `client` are places in the tables, -1: absent."""

    kind: NDArray[np.int64]
    time_ms: Integers
    topic: Integers
    subscription: Integers
    client: Integers
    ledger_id: Integers
    entry_id: Integers
    batch_index: Integers
    batch_size: Integers
    redelivery_count: Integers
    deliver_at_ms: Integers
    publish_time_ms: Integers
    key: Integers
    """64 bits of a digest; 0: no key."""
    topics: list[str]
    subscriptions: list[str]
    clients: list[str]

    @property
    def length(self) -> int:
        return len(self.kind)


def from_arrow(table: pa.Table, *, name: str, kind: str | None = None, checked: bool = True) -> Events:
    """`name` is what an error calls the table; `kind` is that of every event if there is no such column.
    `checked` is False where columns were left out on purpose.

    Raises `WrongLog` for a column that is missing or of a wrong type, or a kind that is not known.
    """
    have = set(table.column_names)
    missing = [column for column in REQUIRED if column not in have and not (column == "kind" and kind)]
    if checked and missing:
        raise WrongLog(f"{name}: no column {', '.join(missing)}; it has {', '.join(table.column_names)}")
    rows = table.num_rows
    found: dict[str, Any] = {}
    tables: dict[str, list[str]] = {}
    for column in SCHEMA.names:
        if column not in have:
            found[column] = np.full(rows, -1 if column in NAMES else ABSENT.get(column, 0), np.int64)
            tables[column] = []
            continue
        try:
            if column in NAMES:
                found[column], tables[column] = _names(table[column])
            elif column == "kind":
                found[column] = _kinds(*_names(table[column]), name)
            elif column == "key":
                found[column] = _digests(table[column])
            else:
                found[column] = _numbers(table[column], ABSENT.get(column, 0))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise WrongLog(f"{name}: column {column} of type {table[column].type}: {error}") from None
    if "kind" not in have and kind:
        found["kind"] = np.full(rows, KINDS[kind], np.int64)
    events = Events(
        **found, topics=tables["topic"], subscriptions=tables["subscription"], clients=tables["client"]
    )
    if checked:
        _check(events, name)
    return events


def _check(events: Events, name: str) -> None:
    placed = (events.kind >= PUBLISHED) & (events.kind <= ACKED)
    if np.any(placed & (events.topic < 0)):
        raise WrongLog(f"{name}: an event of a message without a topic")
    if np.any(placed & ((events.ledger_id < 0) | (events.entry_id < 0))):
        raise WrongLog(f"{name}: an event of a message without ledger_id and entry_id")
    if np.any(placed & (events.kind != PUBLISHED) & (events.subscription < 0)):
        raise WrongLog(f"{name}: a delivery or acknowledgement without a subscription")


def _numbers(column: pa.ChunkedArray, absent: int) -> Integers:
    whole = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    if pa.types.is_timestamp(whole.type):
        whole = whole.cast(pa.timestamp("ms"), safe=False)
    if whole.null_count:
        whole = pc.fill_null(whole.cast(pa.int64()), absent)
    numbers: Integers = np.asarray(whole.cast(pa.int64()))
    return numbers


def _names(column: pa.ChunkedArray) -> tuple[Integers, list[str]]:
    if not pa.types.is_dictionary(column.type):
        column = column.cast(pa.string()).dictionary_encode()
    column = column.unify_dictionaries()
    if not column.num_chunks:
        return np.zeros(0, np.int64), []
    indices = pa.chunked_array([chunk.indices for chunk in column.chunks])
    return _numbers(indices, -1), column.chunk(0).dictionary.cast(pa.string()).to_pylist()


def _kinds(places: Integers, names: Sequence[str], log: str) -> Integers:
    unknown = [name for name in names if name not in KINDS]
    if unknown:
        raise WrongLog(f"{log}: unknown kind {unknown[0]!r}; known are {', '.join(KINDS)}")
    if np.any(places < 0):
        raise WrongLog(f"{log}: an event without a kind")
    numbers: Integers = np.array([*(KINDS[name] for name in names), 0], np.int64)[places]
    return numbers


def _digests(column: pa.ChunkedArray) -> Integers:
    if not (pa.types.is_dictionary(column.type)):
        column = column.dictionary_encode()
    column = column.unify_dictionaries()
    if not column.num_chunks:
        return np.zeros(0, np.int64)
    keys = column.chunk(0).dictionary.to_pylist()
    digests = np.array([*(digest_of(key) for key in keys), NO_KEY], np.int64)
    places = _numbers(pa.chunked_array([chunk.indices for chunk in column.chunks]), -1)
    chosen: Integers = digests[places]
    return chosen


def digest_of(key: str | bytes) -> int:
    """64 bits of a key, the same on every machine; never `NO_KEY`."""
    data = key.encode() if isinstance(key, str) else key
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True) or 1


def joined(parts: Sequence[Events]) -> Events:
    """One after the other, with tables of names that all share."""
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, Any] = {}
    for name, table in zip(NAMES, ("topics", "subscriptions", "clients"), strict=True):
        places: dict[str, int] = {}
        moved = []
        for part in parts:
            here = [places.setdefault(text, len(places)) for text in getattr(part, table)]
            moved.append(np.array([*here, -1], np.int64)[getattr(part, name)])
        columns[name] = np.concatenate(moved)
        columns[table] = list(places)
    for name in Events._fields:
        if name not in columns:
            columns[name] = np.concatenate([getattr(part, name) for part in parts])
    return Events(**columns)


def chosen(events: Events, mask: NDArray[np.bool_]) -> Events:
    """Those events only, with the same tables."""
    columns = {
        name: getattr(events, name)[mask]
        for name in Events._fields
        if name not in ("topics", "subscriptions", "clients")
    }
    return Events(**columns, topics=events.topics, subscriptions=events.subscriptions, clients=events.clients)
