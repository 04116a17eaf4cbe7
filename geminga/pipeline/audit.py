"""An audit in this process: the same parts as on Spark, one after the other. docs/pipeline-audit.md."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import pyarrow as pa

from geminga.pipeline.allocation import keep_freed_memory
from geminga.pipeline.audit_events import Events
from geminga.pipeline.audit_ledger import FOUND, judged, parts_in
from geminga.pipeline.audit_logs import Log, Piece, extremes, plan, read
from geminga.pipeline.audit_order import Resume
from geminga.pipeline.audit_partials import parts_of, second_look
from geminga.pipeline.audit_report import Report, report_of
from geminga.pipeline.audit_settings import (
    MESSAGE_KINDS,
    SCANNED_COLUMNS,
    AuditSettings,
    Facts,
    Scanned,
    columns_of,
    facts_of,
    has_controls,
    scan,
)


def scan_piece(piece: Piece, number: int) -> Scanned:
    """A first look at a piece: reads few columns, and all of them only if there are events to act upon."""
    events = read(piece, SCANNED_COLUMNS)
    return scan(read(piece) if has_controls(events) else events, number)


def scan_footer(piece: Piece) -> Scanned | None:
    """The same from a Parquet footer, if all events are of one kind that is about messages."""
    found = extremes(piece)
    if found is None or found.kinds[0] != found.kinds[1] or found.kinds[0] not in MESSAGE_KINDS:
        return None
    if found.batch_size_max > 1:
        return None
    return Scanned(found.last_ms, found.batch_index_max, [])


def read_whole(piece: Piece, facts: Facts) -> Events:
    """A piece with all columns that the audit asks for."""
    found = extremes(piece)
    kind = found.kinds[0] if found is not None and found.kinds[0] == found.kinds[1] else ""
    return read(piece, columns_of(kind, facts))


def audit_logs(logs: Iterable[Log], settings: AuditSettings | None = None) -> Report:
    """Audit files without Spark. Raises `WrongLog` and `CorruptData`, which name the file."""
    pieces = plan(logs)
    scanned = (scan_footer(piece) or scan_piece(piece, i) for i, piece in enumerate(pieces))
    facts = facts_of(settings or AuditSettings(), scanned)
    return _audit(
        (read_whole(piece, facts) for piece in pieces),
        facts,
        lambda number: read_whole(pieces[number], facts),
    )


def audit_events(pieces: Sequence[Events], settings: AuditSettings | None = None) -> Report:
    """Audit what is in memory; each piece continues the one before."""
    facts = facts_of(settings or AuditSettings(), (scan(events, i) for i, events in enumerate(pieces)))
    return _audit(pieces, facts, pieces.__getitem__)


def _audit(pieces: Iterable[Events], facts: Facts, again: object) -> Report:
    keep_freed_memory()
    parts = (
        part for number, events in enumerate(pieces) for part in parts_in(parts_of(events, facts, number))
    )
    found = judged(parts, facts)
    assert callable(again)
    for number, resumes in resumes_in(found).items():
        found.append(second_look(again(number), facts, number, resumes))
    return report_of(pa.Table.from_batches(found, FOUND), facts)


def resumes_in(found: Iterable[pa.RecordBatch]) -> dict[int, list[Resume]]:
    """Which pieces have to be read again, and from where their lanes go on."""
    pieces: dict[int, list[Resume]] = defaultdict(list)
    for batch in found:
        for part in parts_in(batch):
            if part.what == "resume":
                resume = Resume.unpacked(part.topic, part.subscription, part.session, part.data)
                pieces[part.session].append(resume)
    return dict(pieces)
