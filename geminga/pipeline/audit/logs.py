"""Logs on disk, cut into pieces that tasks read in parallel: Parquet files and the broker's delivery log.

The driver sends a task only the description of a piece; the task reads it with pyarrow or numpy.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from geminga.delivery_log.log_format import (
    COLUMNS,
    FILE_HEAD_BYTES,
    Segment,
    decode_file_head,
    decode_segment,
    file_name,
    file_number,
    scan,
)
from geminga.errors import CorruptData
from geminga.pipeline.audit.events import (
    ABSENT,
    NAMES,
    SCHEMA,
    Events,
    WrongLog,
    constant,
    from_arrow,
    joined,
)
from geminga.pipeline.files.locations import FILE, parse
from geminga.storage.disk import RealDisk

ROWS_PER_PIECE: Final = 1_000_000
_ADVICE: Final = "; take it from a copy, or leave it out"
_DICTIONARIES: Final = ["kind", "topic", "subscription", "client", "key"]
POSITION_COLUMNS: Final = ("kind", "topic", "subscription", "ledger_id", "entry_id")
"""What is checked of each event, where it is read."""


class Log(NamedTuple):
    """A file or directory of events; `kind` is that of all of them, "" if the events say it."""

    path: str
    kind: str = ""
    leaves_out: bool = False
    """Whether malformed events are left out, and told; else they end the audit."""


class Piece(NamedTuple):
    """Row groups `first` to `last` - 1 of a Parquet file, or the bytes from `first` to `last` of a delivery
    log.
    """

    path: str
    kind: str
    first: int
    last: int
    events: int
    leaves_out: bool = False


def plan(
    logs: Iterable[Log], *, rows_max: int = ROWS_PER_PIECE, needed: Sequence[str] = ("time_ms", "topic")
) -> list[Piece]:
    """All pieces, in the order of the logs, the files' names, and the events in them. Reads footers and heads
    only.

    Raises `WrongLog` for a path that is not there, holds no log, or lacks a column; `CorruptData` for a file
    whose footer or head is damaged. Both name the file.
    """
    pieces: list[Piece] = []
    for log in logs:
        for path in _files(log.path):
            if file_number(os.path.basename(path)) is not None:
                pieces += _delivery_log_pieces(path, rows_max)
            else:
                found = _parquet_pieces(path, log.kind, rows_max, needed)
                pieces += [piece._replace(leaves_out=log.leaves_out) for piece in found]
    return pieces


def _files(path: str) -> list[str]:
    if parse(path).scheme != FILE:
        raise WrongLog(
            f"{path}: logs are read by path, here and on every worker; mount the store, or copy them first"
        )
    if os.path.isfile(path):
        return [path]
    if not os.path.isdir(path):
        raise WrongLog(f"{path}: there is no such file or directory")
    names = sorted(name for name in os.listdir(path) if not name.startswith((".", "_")))
    files = [os.path.join(path, n) for n in names if n.endswith(".parquet") or file_number(n) is not None]
    if not files:
        raise WrongLog(f"{path}: holds no *.parquet and no {file_name(1)}")
    return files


def _parquet_pieces(path: str, kind: str, rows_max: int, needed: Sequence[str]) -> list[Piece]:
    with _opened(path) as file:
        have = file.schema_arrow.names
        missing = [c for c in (*needed, *(() if kind else ("kind",))) if c not in have]
        if missing:
            raise WrongLog(f"{path}: no column {', '.join(missing)}; it has {', '.join(have)}")
        counts = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
    pieces: list[Piece] = []
    first = rows = 0
    for group, count in enumerate(counts):
        if rows and rows + count > rows_max:
            pieces.append(Piece(path, kind, first, group, rows))
            first, rows = group, 0
        rows += count
    if rows:
        pieces.append(Piece(path, kind, first, len(counts), rows))
    return pieces


def _opened(path: str) -> pq.ParquetFile:
    try:
        names = pq.read_schema(path, memory_map=True).names
        return pq.ParquetFile(
            path,
            read_dictionary=[name for name in _DICTIONARIES if name in names],
            page_checksum_verification=True,
            memory_map=True,
        )
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptData(f"{path}: not a whole Parquet file: {error}{_ADVICE}") from None


def _delivery_log_pieces(path: str, rows_max: int) -> list[Piece]:
    data = RealDisk().read_file(path)
    try:
        decode_file_head(data[:FILE_HEAD_BYTES])
        found = scan(data)
    except CorruptData as error:
        raise CorruptData(f"{path}: {error}") from None
    if found.damage:
        raise CorruptData(f"{path}: {found.damage[0]}")
    pieces: list[Piece] = []
    for number, head in enumerate(found.segments):
        if head.number != number:
            raise CorruptData(f"{path}: offset {head.offset}: segment {head.number} where {number} should be")
        if pieces and pieces[-1].events + head.events <= rows_max:
            pieces[-1] = pieces[-1]._replace(last=head.end, events=pieces[-1].events + head.events)
        else:
            pieces.append(Piece(path, "", head.offset, head.end, head.events))
    return pieces


def read(piece: Piece, columns: Sequence[str] | None = None) -> Events:
    """The events of a piece in the order in which they stand; with `columns`, all others absent.

    Events of messages are checked to have a position, unless columns are left out that say it. Raises
    `CorruptData` or `WrongLog`, which name the file.
    """
    if file_number(os.path.basename(piece.path)) is not None:
        return _read_delivery_log(piece, columns or [name for name in COLUMNS if name in SCHEMA.names])
    with _opened(piece.path) as file:
        have = file.schema_arrow.names
        wanted = [name for name in columns or SCHEMA.names if name in have]
        known = _constants(file, piece, wanted)
        left = [name for name in wanted if name not in known]
        try:
            table = file.read_row_groups(range(piece.first, piece.last), columns=left, use_threads=False)
        except (pa.ArrowException, OSError) as error:
            raise CorruptData(f"{piece.path}: damaged: {error}{_ADVICE}") from None
    checked = columns is None or set(columns) >= set(POSITION_COLUMNS)
    return from_arrow(
        table,
        name=piece.path,
        kind=piece.kind or None,
        checked=checked,
        constants=known,
        rows=piece.events,
        first_row=sum(file.metadata.row_group(group).num_rows for group in range(piece.first)),
        leaves_out=piece.leaves_out,
    )


def _statistics(file: pq.ParquetFile, piece: Piece, name: str) -> list[Any]:
    """Of a column, in each row group; None where there are none."""
    first = file.metadata.row_group(piece.first)
    at = [first.column(i).path_in_schema for i in range(first.num_columns)].index(name)
    groups = range(piece.first, piece.last)
    return [file.metadata.row_group(group).column(at).statistics for group in groups]


def _constants(file: pq.ParquetFile, piece: Piece, names: Iterable[str]) -> dict[str, Any]:
    """The columns of which the footer says that they have the same value throughout, None if it is absent."""
    found: dict[str, Any] = {}
    for name in names:
        statistics = _statistics(file, piece, name)
        if any(one is None or not one.has_null_count for one in statistics):
            continue
        if all(one.num_values == 0 and one.null_count for one in statistics):
            found[name] = None
            continue
        if any(one.null_count or not one.has_min_max for one in statistics):
            continue
        values = {value for one in statistics for value in (one.min, one.max)}
        if len(values) == 1 and type(value := values.pop()) in (int, str):
            found[name] = value
    return found


class Extremes(NamedTuple):
    """What a Parquet footer says of a piece."""

    kinds: tuple[str, str]
    last_ms: int
    batch_index_max: int
    batch_size_max: int


def extremes(piece: Piece) -> Extremes | None:
    """None if the file's footer does not say it all."""
    if file_number(os.path.basename(piece.path)) is not None:
        return None
    with _opened(piece.path) as file:
        names = file.schema_arrow.names
        found: dict[str, list[Any]] = {}
        for name in ("kind", "time_ms", "batch_index", "batch_size"):
            if name not in names:
                continue
            found[name] = []
            for statistics in _statistics(file, piece, name):
                if statistics is None or not statistics.has_min_max:
                    return None
                found[name] += [statistics.min, statistics.max]
    kinds = (min(found["kind"]), max(found["kind"])) if "kind" in found else (piece.kind, piece.kind)
    greatest = [max(found.get(name, [-1])) for name in ("time_ms", "batch_index", "batch_size")]
    return Extremes(kinds, *greatest) if all(isinstance(number, int) for number in greatest) else None


def _read_delivery_log(piece: Piece, columns: Sequence[str]) -> Events:
    file = RealDisk().open(piece.path)
    try:
        data = file.pread(piece.first, piece.last - piece.first)
    finally:
        file.close()
    parts: list[Events] = []
    at = 0
    while at < len(data):
        try:
            segment = decode_segment(data, at, at=piece.first, columns=columns)
        except CorruptData as error:
            raise CorruptData(f"{piece.path}: {error}") from None
        parts.append(events_of_segment(segment))
        at += segment.head.size_bytes
    if not parts:
        raise CorruptData(f"{piece.path}: offset {piece.first}: nothing there to be read")
    return joined(parts)


def events_of_segment(segment: Segment) -> Events:
    """One segment of a broker's delivery log; columns that were not decoded are absent."""
    count = segment.head.events
    columns: dict[str, Any] = {
        name: segment.columns[name].astype(np.int64, copy=False)
        if name in segment.columns
        else constant(-1 if name in NAMES else ABSENT.get(name, 0), count)
        for name in SCHEMA.names
    }
    return Events(
        **(columns | {"key": constant(-1, count)}),
        topics=segment.topics,
        subscriptions=segment.subscriptions,
        clients=segment.clients,
        keys=[],
    )
