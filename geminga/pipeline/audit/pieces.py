"""What an audit reads, whatever it is: files and topics in pieces, pieces in chunks.

A chunk has a number of its own, by which the audit knows what comes after what and finds it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from geminga.pipeline.audit.events import Events
from geminga.pipeline.audit.logs import Log, Piece, extremes, plan, read
from geminga.pipeline.audit.settings import (
    MESSAGE_KINDS,
    SCANNED_COLUMNS,
    Facts,
    Scanned,
    columns_of,
    has_controls,
    scan,
)
from geminga.pipeline.audit.topics import TopicLog, TopicPiece, plan_topics, topic_chunks

AnyLog: TypeAlias = Log | TopicLog
AnyPiece: TypeAlias = Piece | TopicPiece
CHUNK_BITS: Final = 12
"""Of the number of a chunk, below that of its piece."""


def plan_all(logs: Iterable[AnyLog]) -> list[AnyPiece]:
    """All pieces, in the order of the logs. Raises what `plan` and `plan_topics` do."""
    pieces: list[AnyPiece] = []
    for log in logs:
        pieces += plan_topics(log) if isinstance(log, TopicLog) else plan([log])
    return pieces


def chunks(
    piece: AnyPiece, number: int, columns: Sequence[str] | None = None
) -> Iterator[tuple[int, Events]]:
    """The events of piece `number` in the order in which they stand, by chunks with their numbers."""
    if isinstance(piece, Piece):
        yield number << CHUNK_BITS, read(piece, columns)
        return
    for index, events in enumerate(topic_chunks(piece, columns)):
        assert index < 1 << CHUNK_BITS
        yield number << CHUNK_BITS | index, events


def whole_chunks(piece: AnyPiece, number: int, facts: Facts) -> Iterator[tuple[int, Events]]:
    """The same with all columns that the audit asks for."""
    return chunks(piece, number, columns_of(_kind_of(piece), facts))


def _kind_of(piece: AnyPiece) -> str:
    """That of all events of a piece, as far as it is known without reading them."""
    if isinstance(piece, TopicPiece):
        return ""
    found = extremes(piece)
    return found.kinds[0] if found is not None and found.kinds[0] == found.kinds[1] else ""


def scan_piece(piece: AnyPiece, number: int) -> list[Scanned]:
    """A first look at a piece: reads few columns, and all of them only if there are events to act upon."""
    found = []
    for chunk, events in chunks(piece, number, SCANNED_COLUMNS):
        if has_controls(events):
            return [scan(whole, again) for again, whole in chunks(piece, number)]
        found.append(scan(events, chunk))
    return found


def scan_footer(piece: AnyPiece) -> Scanned | None:
    """The same from a Parquet footer, if all events are of one kind that is about messages."""
    found = extremes(piece) if isinstance(piece, Piece) else None
    if found is None or found.kinds[0] != found.kinds[1] or found.kinds[0] not in MESSAGE_KINDS:
        return None
    if found.batch_size_max > 1:
        return None
    return Scanned(found.last_ms, found.batch_index_max, [])
