"""An audit on Spark: pieces of logs side by side, then ledgers side by side. docs/pipeline-audit.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions

from geminga.pipeline.audit.audit import looked_again, resumes_in
from geminga.pipeline.audit.ledger import FOUND, judged, parts_in
from geminga.pipeline.audit.logs import Log, Piece
from geminga.pipeline.audit.order import Resume
from geminga.pipeline.audit.partials import PARTS, parts_of
from geminga.pipeline.audit.pieces import (
    AnyLog,
    AnyPiece,
    plan_all,
    scan_footer,
    scan_piece,
    whole_chunks,
)
from geminga.pipeline.audit.report import Report, report_of
from geminga.pipeline.audit.settings import AuditSettings, Facts, Scanned, facts_of
from geminga.pipeline.audit.topics import TopicPiece
from geminga.pipeline.columns.allocation import keep_freed_memory
from geminga.pipeline.spark.api import spark_schema
from geminga.pipeline.spark.pieces import collect_each, each, raised

Progress = Callable[[str], None]
BUCKETS: Final = 64
"""Of ledgers, each judged at once."""


def audit(
    spark: SparkSession,
    logs: Iterable[AnyLog | str],
    settings: AuditSettings | None = None,
    *,
    progress: Progress = lambda text: None,
) -> Report:
    """Audit logs: Parquet files with the columns of `audit.events.SCHEMA`, brokers' delivery logs, topics
    with such events.

    A path is a file or a directory; workers have to see it too. A topic is audited up to where it ends now.
    Raises `WrongLog` and `CorruptData`, which name the file or topic, and `PipelineError`.
    """
    pieces = plan_all(Log(log) if isinstance(log, str) else log for log in logs)
    progress(_amount(pieces))
    facts = facts_of(settings or AuditSettings(), _scanned(spark, pieces))
    progress("known where it ends; reading all of it")

    def parts(number: int, piece: AnyPiece) -> Iterator[pa.RecordBatch]:
        keep_freed_memory()
        for chunk, events in whole_chunks(piece, number, facts):
            yield parts_of(events, facts, chunk)

    found = _judged(each(spark, pieces, parts, PARTS), facts)
    resumes = resumes_in(found.to_batches())
    if resumes:
        progress(f"looking at {len(resumes)} pieces again: something is out of order from one to the next")
        found = pa.concat_tables([found, _second(spark, pieces, resumes, facts)])
    return report_of(found, facts)


def _amount(pieces: Sequence[AnyPiece]) -> str:
    events = sum(piece.events for piece in pieces if isinstance(piece, Piece))
    topics = len({piece.wanted.topic for piece in pieces if isinstance(piece, TopicPiece)})
    amounts = [*([f"{events:,} events"] if events else []), *([f"topics ({topics:,})"] if topics else [])]
    return f"{' and '.join(amounts) or 'no events'} in {len(pieces)} pieces"


def _scanned(spark: SparkSession, pieces: Sequence[AnyPiece]) -> list[Scanned]:
    footers = [scan_footer(piece) for piece in pieces]
    left = [(number, pieces[number]) for number, found in enumerate(footers) if found is None]
    scanned = collect_each(spark, left, lambda _, item: scan_piece(item[1], item[0])) if left else []
    return [*(found for found in footers if found is not None), *(one for some in scanned for one in some)]


def _judged(parts: DataFrame, facts: Facts) -> pa.Table:
    def bucket(table: pa.Table) -> pa.Table:
        return pa.Table.from_batches(judged(parts_in(table), facts), FOUND)

    # Each group costs Spark about as much as judging a ledger does: a bucket has many of them.
    slab = functions.hash("topic", "ledger_id", "slab")
    buckets = parts.groupBy(functions.pmod(slab, functions.lit(BUCKETS)))
    return raised(buckets.applyInArrow(bucket, spark_schema(FOUND)).toArrow)


def _second(
    spark: SparkSession,
    pieces: Sequence[AnyPiece],
    resumes: dict[int, dict[int, list[Resume]]],
    facts: Facts,
) -> pa.Table:
    def look(_: int, item: tuple[int, AnyPiece, dict[int, list[Resume]]]) -> Iterator[pa.RecordBatch]:
        number, piece, own = item
        return looked_again(whole_chunks(piece, number, facts), facts, own)

    items = [(number, pieces[number], own) for number, own in sorted(resumes.items())]
    return raised(each(spark, items, look, FOUND).toArrow)
