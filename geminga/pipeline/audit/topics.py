"""Logs in topics: each message is an event, or a segment of a broker's delivery log.
docs/pipeline-audit.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from geminga.delivery_log.log_format import SEGMENT_MAGICS, decode_segment
from geminga.errors import CorruptData
from geminga.pipeline.audit.events import (
    LEAVES_OUT_ADVICE,
    SCHEMA,
    Events,
    WrongLog,
    from_arrow,
    joined,
    no_event,
    sliced,
    to_arrow,
)
from geminga.pipeline.audit.logs import POSITION_COLUMNS, ROWS_PER_PIECE, events_of_segment
from geminga.pipeline.client.connection import Connection
from geminga.pipeline.columns.columns import VALUE, ColumnMaker
from geminga.pipeline.topics.options import Options, parse_options
from geminga.pipeline.topics.planning import narrowed, plan_batch
from geminga.pipeline.topics.ranges import Range
from geminga.pipeline.topics.rows import read_range
from geminga.pipeline.values.avro_shapes import SchemaMismatch
from geminga.pipeline.values.decoding import ValueDecoder, json_values
from geminga.pipeline.values.schemas import TopicSchema, fetch_schema, value_fields

NEEDED: Final = ("time_ms", "topic")


class TopicLog(NamedTuple):
    """Topics of events; `kind` is that of all of them, "" if the events say it."""

    options: Mapping[str, str]
    """Those of the data source `pulsar`: `service.url`, `topic` and so on."""
    kind: str = ""
    leaves_out: bool = False
    """Whether malformed events are left out, and told; else they end the audit."""


class TopicPiece(NamedTuple):
    """A part of one topic or partition, up to where it ended when that was planned."""

    options: Options
    values: TopicSchema
    wanted: Range
    kind: str
    leaves_out: bool = False


def plan_topics(log: TopicLog) -> list[TopicPiece]:
    """All that is in the topics now, in the order of topics, partitions, and messages.

    Raises `WrongLog` for a topic whose schema lacks a column, `PipelineError` for what the broker says.
    """
    options = parse_options(log.options)
    ranges = plan_batch(options)
    with Connection.open(options.access) as connection:
        schemas = {topic: fetch_schema(connection, topic) for topic in {one.topic for one in ranges}}
    for topic, values in schemas.items():
        if values.is_raw:
            continue
        have = list(value_fields(values))
        missing = [name for name in (*NEEDED, *(() if log.kind else ("kind",))) if name not in have]
        if missing:
            raise WrongLog(f"{topic}: no field {', '.join(missing)}; it has {', '.join(have)}")
    return [
        TopicPiece(narrowed(options), schemas[one.topic], one, log.kind, log.leaves_out) for one in ranges
    ]


def topic_chunks(
    piece: TopicPiece, columns: Sequence[str] | None = None, *, rows_max: int = ROWS_PER_PIECE
) -> Iterator[Events]:
    """The events of a piece in their stored order, in chunks of `rows_max` rows. A second read gets the same
    chunks. With `columns`, all others are absent.

    Raises `WrongLog`, which names the topic, and `PipelineError`.
    """
    waiting: list[Events] = []
    rows = 0
    for events in _decoded(piece, columns):
        waiting.append(events)
        rows += events.length
        if rows >= rows_max:
            whole = joined(waiting)
            whole_rows = rows - rows % rows_max
            for begin in range(0, whole_rows, rows_max):
                some = sliced(whole, begin, begin + rows_max)
                yield some if not begin else some._replace(left_out=())
            rows -= whole_rows
            # What was left out is told once.
            waiting = [sliced(whole, whole_rows, whole.length)._replace(left_out=())]
    if rows:
        yield joined(waiting)


def _decoded(piece: TopicPiece, columns: Sequence[str] | None) -> Iterator[Events]:
    fields = value_fields(piece.values)
    if piece.values.is_raw:
        wanted = pa.schema([(VALUE, pa.binary())])
    else:
        wanted = pa.schema([(name, fields[name]) for name in columns or SCHEMA.names if name in fields])
    access, topic = piece.options.access, piece.wanted.topic
    decoder = None if piece.values.is_raw else ValueDecoder(access, topic, piece.values, wanted)
    checked = columns is None or set(columns) >= set(POSITION_COLUMNS)
    maker = ColumnMaker(topic, wanted, decoder)
    start = piece.wanted.start
    name = f"{topic} from {start.ledger_id}:{start.entry_id} on" if start.ledger_id >= 0 else topic
    rows = 0
    for batch in read_range(access, piece.wanted, maker, poll_timeout_s=piece.options.poll_timeout_s):
        taken = _Taken(name, piece.kind or None, columns, checked, rows, piece.leaves_out)
        if piece.values.is_raw:
            yield from _of_values(batch[VALUE], taken)
        else:
            yield _of_table(pa.Table.from_batches([batch]), taken)
        rows += batch.num_rows


class _Taken(NamedTuple):
    """How messages are taken for events."""

    name: str
    kind: str | None = None
    columns: Sequence[str] | None = None
    checked: bool = True
    first_row: int = 0
    leaves_out: bool = False


def is_segment(values: pa.BinaryArray) -> NDArray[np.bool_]:
    """Which messages hold a segment of a delivery log."""
    found = [np.asarray(pc.starts_with(values, magic).fill_null(False)) for magic in SEGMENT_MAGICS]
    either: NDArray[np.bool_] = np.logical_or.reduce(found)
    return either


def segment_events(value: bytes, name: str) -> pa.RecordBatch:
    """The events of a segment as rows of `SCHEMA`; `name` is what an error calls their topic. `WrongLog`."""
    try:
        return to_arrow(events_of_segment(decode_segment(value)))
    except CorruptData as error:
        raise WrongLog(f"{name}: a damaged segment of a delivery log: {error}") from None


def _of_values(values: pa.BinaryArray, taken: _Taken) -> Iterator[Events]:
    segments = is_segment(values)
    changes = np.flatnonzero(segments[1:] != segments[:-1]) + 1
    for begin, end in pairwise([0, *changes.tolist(), len(values)]):
        some, here = values.slice(begin, end - begin), taken._replace(first_row=taken.first_row + begin)
        yield from (_of_segments if segments[begin] else _of_json)(some, here)


def _of_segments(values: pa.BinaryArray, taken: _Taken) -> Iterator[Events]:
    for row, value in enumerate(values):
        try:
            yield events_of_segment(decode_segment(value.as_buffer().to_pybytes()))
        except CorruptData as error:
            yield _no_event(taken, row, f"a damaged segment of a delivery log: {error}")


def _of_json(values: pa.BinaryArray, taken: _Taken) -> Iterator[Events]:
    """By halves where one is no event: the others are."""
    try:
        table = _json_table(values)
    except SchemaMismatch as error:
        if len(values) == 1:
            said = str(error).removeprefix(f"{taken.name}: ").partition("; ")[0]
            yield _no_event(taken, 0, f"a message that is no event in JSON: {said}")
            return
        middle = len(values) // 2
        yield from _of_json(values.slice(0, middle), taken)
        yield from _of_json(values.slice(middle), taken._replace(first_row=taken.first_row + middle))
        return
    if taken.columns is not None:
        table = table.select([name for name in taken.columns if name in table.column_names])
    yield _of_table(table, taken)


def _json_table(values: pa.BinaryArray) -> pa.Table:
    """Raises `SchemaMismatch`."""
    if values.null_count:
        raise SchemaMismatch("it has no value")
    table = pa.Table.from_struct_array(json_values(values, pa.struct(list(SCHEMA))))
    return table.drop_columns([name for name in SCHEMA.names if table[name].null_count == table.num_rows])


def _no_event(taken: _Taken, row: int, said: str) -> Events:
    first = f"{taken.name}: row {taken.first_row + row}, counted from 0: {said}"
    if not taken.leaves_out:
        raise WrongLog(f"{first}; {LEAVES_OUT_ADVICE}")
    return no_event(first)


def _of_table(table: pa.Table, taken: _Taken) -> Events:
    return from_arrow(
        table,
        name=taken.name,
        kind=taken.kind,
        checked=taken.checked,
        first_row=taken.first_row,
        leaves_out=taken.leaves_out,
    )
