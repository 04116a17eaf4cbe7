"""What an audit reads: events of producers, broker and consumers, as columns. docs/pipeline-audit.md is the
page for people.

An event table has the columns of `SCHEMA`. Only `kind`, `time_ms` and `topic` have to be there, and
`ledger_id` and `entry_id` for every event of a message; what is missing or null is absent. Kinds are those of
docs/formats/delivery-log.md, by name, and one more:

    released   a consumer left, or gave back all that it had not acknowledged: that may come again

A producer's log has `published` events (`time_ms`: when the receipt came), a consumer's `dispatched` ones
(`time_ms`: when the message arrived), a broker's all of them. `dispatched` events carry `deliver_at_ms` and
`publish_time_ms` too, from which early and late are told without looking for the publication, and
`early_ms` if the broker promised less than that no message is early (-1: it promised nothing). `step_ms` is
the length of the step of a virtual clock after which it was sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from geminga.errors import GemingaError

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]

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
DUPLICATE: Final = KINDS["duplicate"]
MALFORMED: Final = 0
"""The kind of an event that is left out."""

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
        ("early_ms", pa.int64()),
        ("step_ms", pa.int64()),
    ]
)
REQUIRED: Final = ("kind", "time_ms", "topic")
NAMES: Final = ("topic", "subscription", "client")
"""Columns that are held as indexes of a table of names; -1 is absent."""
TABLES: Final = ("topics", "subscriptions", "clients", "keys")
"""Their tables, and that of `key`."""
ABSENT: Final = {"batch_index": -1, "ledger_id": -2, "entry_id": -2}
"""What absent numbers are; 0 for all others."""
NOWHERE: Final = -1
"""Ledger and entry of a receipt for what the broker had already: it was not stored again."""


LEAVES_OUT_ADVICE: Final = "--leave-out-malformed audits the other events"


class WrongLog(GemingaError):
    """A log that cannot be audited: the message names it, and says what it would have to have."""


class LeftOut(NamedTuple):
    """Events that are malformed, in a part of one log."""

    events: int
    first: str
    """Position of the first of them in the log, and what is wrong with it."""


class Events(NamedTuple):
    """Columns of one length. `topic`, `subscription`, `client` and `key` are indexes of the tables, -1 where
    absent.

    A column with one value throughout may be `constant`: it takes no memory, and a caller that checks
    `is_constant` can skip the rows.
    """

    kind: Integers
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
    early_ms: Integers
    step_ms: Integers
    topics: list[str]
    subscriptions: list[str]
    clients: list[str]
    keys: list[int]
    """64 bits of a digest of each key."""
    left_out: tuple[LeftOut, ...] = ()

    @property
    def length(self) -> int:
        return len(self.kind)


def constant(value: int, rows: int) -> Integers:
    """A column with this value in each row, of which there is one in memory. Not to be written to."""
    return np.broadcast_to(np.int64(value), rows)


def is_constant(column: Integers) -> bool:
    """Whether a column is known to have the same value in each row. At least one row."""
    return column.strides == (0,) or len(column) == 1


def where_is(column: Integers, value: int) -> Mask:
    """Which rows have this value."""
    if len(column) and is_constant(column):
        return np.broadcast_to(column[0] == value, len(column))
    mask: Mask = column == value
    return mask


def from_arrow(
    table: pa.Table,
    *,
    name: str,
    kind: str | None = None,
    checked: bool = True,
    constants: Mapping[str, Any] = MappingProxyType({}),
    rows: int | None = None,
    first_row: int = 0,
    leaves_out: bool = False,
) -> Events:
    """`name` is what an error calls the table; `kind` is that of every event if there is no such column.
    `checked` is False where columns were left out on purpose. `constants` are columns that the table need not
    have: their one value, None if it is absent throughout; then `rows` says how many there are. `first_row`
    is the number of the first row in the log.

    A receipt of -1:-1 is a `duplicate`: the broker had stored the message before. With `leaves_out` what is
    malformed becomes an event of no kind and is told in `left_out`.

    Raises `WrongLog` for a column that is missing or of a wrong type, and for a malformed event.
    """
    have = set(table.column_names)
    missing = [
        column
        for column in REQUIRED
        if column not in have and column not in constants and not (column == "kind" and kind)
    ]
    if checked and missing:
        raise WrongLog(f"{name}: no column {', '.join(missing)}; it has {', '.join(table.column_names)}")
    rows = table.num_rows if rows is None else rows
    found: dict[str, Any] = {}
    tables: dict[str, list[Any]] = {}
    for column in SCHEMA.names:
        if column in constants or column not in have:
            found[column], tables[column] = _constant(column, constants.get(column), rows)
            continue
        try:
            if column in NAMES:
                found[column], tables[column] = _names(table[column])
            elif column == "kind":
                found[column] = _kinds(*_names(table[column]))
            elif column == "key":
                found[column], keys = _indexes(table[column])
                tables[column] = [digest_of(key) for key in keys]
            else:
                found[column] = _numbers(table[column], ABSENT.get(column, 0))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
            raise WrongLog(f"{name}: column {column} of type {table[column].type}: {error}") from None
    if "kind" not in have and "kind" not in constants and kind:
        found["kind"] = constant(KINDS[kind], rows)
    events = Events(
        **found,
        topics=tables["topic"],
        subscriptions=tables["subscription"],
        clients=tables["client"],
        keys=tables["key"],
    )
    wrong = _malformed(events, checked=checked)
    if not wrong:
        return _told_duplicates(events)
    count = int(np.count_nonzero(np.logical_or.reduce([mask for mask, _ in wrong])))
    row, said = min((int(np.argmax(mask)), said) for mask, said in wrong)
    if said == _UNKNOWN_KIND and row < table.num_rows and "kind" in have:
        said = f"{said} {table['kind'][row].as_py()!r}; known are {', '.join(KINDS)}"
    first = f"{name}: row {first_row + row}, counted from 0: {said}"
    if not leaves_out:
        raise WrongLog(f"{first}; {LEAVES_OUT_ADVICE}")
    kinds = np.array(events.kind)
    for mask, _ in wrong:
        kinds[mask] = MALFORMED
    return _told_duplicates(events._replace(kind=kinds, left_out=(LeftOut(count, first),)))


def no_event(said: str) -> Events:
    """Events without rows that count one item of a log which is no event, and is left out."""
    columns: dict[str, Any] = {name: _constant(name, None, 1)[0] for name in SCHEMA.names}
    return Events(**columns, topics=[], subscriptions=[], clients=[], keys=[], left_out=(LeftOut(1, said),))


def _constant(column: str, value: Any, rows: int) -> tuple[Integers, list[Any]]:
    if column == "kind":
        return constant(KINDS.get(value, MALFORMED), rows), []
    if column in NAMES or column == "key":
        if value is None:
            return constant(-1, rows), []
        return constant(0, rows), [digest_of(value) if column == "key" else value]
    return constant(ABSENT.get(column, 0) if value is None else value, rows), []


_UNKNOWN_KIND: Final = "unknown kind"


def _malformed(events: Events, *, checked: bool) -> list[tuple[Mask, str]]:
    """Which events cannot be audited, and what is wrong with those. `checked`: all columns are there that say
    it.
    """
    found = [(where_is(events.kind, MALFORMED), _UNKNOWN_KIND)]
    if checked:
        placed = (events.kind >= PUBLISHED) & (events.kind <= ACKED)
        is_made = where_is(events.kind, PUBLISHED)
        found.append((_below_zero(events.topic, placed), "an event of a message without a topic"))
        without = _below_zero(events.ledger_id, placed) | _below_zero(events.entry_id, placed)
        if without.any():
            without = without & ~_is_nowhere(events)
        found.append((without, "an event of a message without ledger_id and entry_id"))
        found.append((where_is(events.time_ms, 0) & placed, "an event of a message without time_ms"))
        subscribed = _below_zero(events.subscription, placed & ~is_made)
        found.append((subscribed, "a delivery or acknowledgement without a subscription"))
    return [(mask, said) for mask, said in found if mask.any()]


def _is_nowhere(events: Events) -> Mask:
    """Receipts for what was not stored again."""
    at_none = where_is(events.ledger_id, NOWHERE) & where_is(events.entry_id, NOWHERE)
    return at_none & where_is(events.kind, PUBLISHED)


def _told_duplicates(events: Events) -> Events:
    """Those receipts are `duplicate`s."""
    if not _below_zero(events.ledger_id, where_is(events.kind, PUBLISHED)).any():
        return events
    nowhere = _is_nowhere(events)
    return events._replace(kind=np.where(nowhere, DUPLICATE, events.kind)) if nowhere.any() else events


def _below_zero(column: Integers, mask: Mask) -> Mask:
    least = 0 if not len(column) else column[0] if is_constant(column) else column.min()
    below: Mask = mask & (column < 0) if least < 0 else np.broadcast_to(np.False_, len(column))
    return below


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
        column = column.cast(pa.string())
    indexes, names = _indexes(column)
    return indexes, pa.array(names).cast(pa.string()).to_pylist()


def _indexes(column: pa.ChunkedArray) -> tuple[Integers, list[Any]]:
    """Each row's index in the table of values that comes with them, -1 for null."""
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    column = column.unify_dictionaries()
    if not column.num_chunks:
        return np.zeros(0, np.int64), []
    indices = pa.chunked_array([chunk.indices for chunk in column.chunks])
    values = column.chunk(0).dictionary.to_pylist()
    if len(values) == 1 and not indices.null_count:
        return constant(0, len(indices)), values
    return _numbers(indices, -1), values


def _kinds(indexes: Integers, names: Sequence[str]) -> Integers:
    """`MALFORMED` where a kind is not known, or absent."""
    known = [KINDS.get(name, MALFORMED) for name in names]
    if len(names) == 1 and is_constant(indexes) and (not len(indexes) or indexes[0] == 0):
        return constant(known[0], len(indexes))
    numbers: Integers = np.array([*known, MALFORMED], np.int64)[indexes]
    return numbers


def digest_of(key: str | bytes) -> int:
    """64 bits of a key, the same on every machine; never 0."""
    data = key.encode() if isinstance(key, str) else key
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little", signed=True) or 1


def to_arrow(events: Events) -> pa.RecordBatch:
    """As rows of `SCHEMA`. Keys are left out: there are digests of them only."""
    kinds = pa.array([None, *KINDS])
    columns: dict[str, pa.Array] = {"kind": kinds.take(pa.array(events.kind))}
    for name, table in zip(NAMES, TABLES, strict=False):
        names = pa.array([*getattr(events, table), None], pa.string())
        indexes = getattr(events, name)
        columns[name] = names.take(pa.array(np.where(indexes < 0, len(names) - 1, indexes)))
    columns["key"] = pa.nulls(events.length, pa.string())
    for field in SCHEMA:
        if field.name not in columns:
            numbers = np.asarray(getattr(events, field.name))
            columns[field.name] = pa.array(numbers, mask=numbers == ABSENT.get(field.name)).cast(field.type)
    return pa.RecordBatch.from_arrays([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def joined(parts: Sequence[Events]) -> Events:
    """One after the other, with tables of names that all share."""
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, Any] = {}
    for name, table in zip((*NAMES, "key"), TABLES, strict=True):
        indexes: dict[Any, int] = {}
        moved = []
        for part in parts:
            here = [indexes.setdefault(text, len(indexes)) for text in getattr(part, table)]
            moved.append(np.array([*here, -1], np.int64)[getattr(part, name)])
        columns[name] = np.concatenate(moved)
        columns[table] = list(indexes)
    for name in SCHEMA.names:
        if name not in columns:
            columns[name] = _concatenated([getattr(part, name) for part in parts])
    return Events(**columns, left_out=tuple(one for part in parts for one in part.left_out))


def _concatenated(columns: Sequence[Integers]) -> Integers:
    filled = [column for column in columns if len(column)]
    if filled and all(is_constant(column) and column[0] == filled[0][0] for column in filled):
        return constant(int(filled[0][0]), sum(map(len, filled)))
    return np.concatenate(columns)


def chosen(events: Events, mask: Mask) -> Events:
    """Those events only, with the same tables; the same events if it is all of them."""
    if not events.length:
        return events
    rows = int(np.count_nonzero(mask))
    if rows == events.length:
        return events
    columns: dict[str, Any] = {name: picked(getattr(events, name), mask, rows) for name in SCHEMA.names}
    return events._replace(**columns)


def sliced(events: Events, begin: int, end: int) -> Events:
    """Those from `begin` up to, not including, `end`, with the same tables."""
    columns: dict[str, Any] = {name: getattr(events, name)[begin:end] for name in SCHEMA.names}
    return events._replace(**columns)


def taken(events: Events, rows: Integers) -> Events:
    """These rows in this order, with the same tables."""
    columns: dict[str, Any] = {name: getattr(events, name)[rows] for name in SCHEMA.names}
    return events._replace(**columns)


def picked(column: Integers, mask: Mask, rows: int) -> Integers:
    """The `rows` values of a column that a mask has."""
    if is_constant(column):
        return constant(int(column[0]), rows)
    found: Integers = column[mask]
    return found
