"""An audit in this process: the same parts as on Spark, one after the other. docs/pipeline-audit.md."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

import pyarrow as pa

from geminga.pipeline.audit.events import Events
from geminga.pipeline.audit.ledger import FOUND, judged, parts_in
from geminga.pipeline.audit.order import Resume
from geminga.pipeline.audit.partials import parts_of, second_look
from geminga.pipeline.audit.pieces import (
    CHUNK_BITS,
    AnyLog,
    plan_all,
    scan_footer,
    scan_piece,
    whole_chunks,
)
from geminga.pipeline.audit.report import Report, report_of
from geminga.pipeline.audit.settings import AuditSettings, Facts, Scanned, facts_of, scan
from geminga.pipeline.columns.allocation import keep_freed_memory

Numbered = Iterator[tuple[int, Events]]


def audit_logs(logs: Iterable[AnyLog], settings: AuditSettings | None = None) -> Report:
    """Audit files and topics without Spark.

    Raises `WrongLog` and `CorruptData`, which name the file or topic, and `PipelineError`.
    """
    pieces = plan_all(logs)
    scanned: list[Scanned] = []
    for number, piece in enumerate(pieces):
        footer = scan_footer(piece)
        scanned += scan_piece(piece, number) if footer is None else [footer]
    facts = facts_of(settings or AuditSettings(), scanned)

    def every() -> Numbered:
        for number, piece in enumerate(pieces):
            yield from whole_chunks(piece, number, facts)

    def again(number: int) -> Numbered:
        return whole_chunks(pieces[number], number, facts)

    return _audit(every(), facts, again)


def audit_events(pieces: Sequence[Events], settings: AuditSettings | None = None) -> Report:
    """Audit what is in memory; each piece continues the one before."""
    numbered = {number << CHUNK_BITS: events for number, events in enumerate(pieces)}
    scanned = (scan(events, number) for number, events in numbered.items())
    facts = facts_of(settings or AuditSettings(), scanned)

    def again(number: int) -> Numbered:
        yield number << CHUNK_BITS, pieces[number]

    return _audit(numbered.items(), facts, again)


def _audit(pieces: Iterable[tuple[int, Events]], facts: Facts, again: Callable[[int], Numbered]) -> Report:
    keep_freed_memory()
    parts = (part for chunk, events in pieces for part in parts_in(parts_of(events, facts, chunk)))
    found = judged(parts, facts)
    for number, resumes in resumes_in(found).items():
        found += looked_again(again(number), facts, resumes)
    return report_of(pa.Table.from_batches(found, FOUND), facts)


def resumes_in(found: Iterable[pa.RecordBatch]) -> dict[int, dict[int, list[Resume]]]:
    """Which pieces have to be read again, and from where the lanes of which chunk go on."""
    pieces: dict[int, dict[int, list[Resume]]] = defaultdict(lambda: defaultdict(list))
    for batch in found:
        for part in parts_in(batch):
            if part.what == "resume":
                resume = Resume.unpacked(part.topic, part.subscription, part.session, part.data)
                pieces[part.session >> CHUNK_BITS][part.session].append(resume)
    return {number: dict(chunks) for number, chunks in pieces.items()}


def looked_again(
    numbered: Numbered, facts: Facts, resumes: dict[int, list[Resume]]
) -> Iterator[pa.RecordBatch]:
    """What is out of order in one piece only by what came before its chunks."""
    last = max(resumes)
    for chunk, events in numbered:
        if chunk in resumes:
            yield second_look(events, facts, chunk, resumes[chunk])
        if chunk >= last:
            return
