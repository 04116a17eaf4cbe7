"""An audit on Spark: pieces of logs side by side, then ledgers side by side. docs/pipeline-audit.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, functions

from geminga.pipeline.allocation import keep_freed_memory
from geminga.pipeline.audit import read_whole, resumes_in, scan_footer, scan_piece
from geminga.pipeline.audit_ledger import FOUND, judged, parts_in
from geminga.pipeline.audit_logs import Log, Piece, plan
from geminga.pipeline.audit_order import Resume
from geminga.pipeline.audit_partials import PARTS, parts_of, second_look
from geminga.pipeline.audit_report import Report, report_of
from geminga.pipeline.audit_settings import AuditSettings, Facts, Scanned, facts_of
from geminga.pipeline.spark.pieces import collect_each, each, raised, spark_schema

Progress = Callable[[str], None]
BUCKETS: Final = 64
"""Of ledgers, each judged at once."""


def audit(
    spark: SparkSession,
    logs: Iterable[Log | str],
    settings: AuditSettings | None = None,
    *,
    progress: Progress = lambda text: None,
) -> Report:
    """Audit logs on disk: Parquet files with the columns of `audit_events.SCHEMA`, brokers' delivery logs.

    A path is a file or a directory; workers have to see it too. Raises `WrongLog` and `CorruptData`, which
    name the file.
    """
    pieces = plan(log if isinstance(log, Log) else Log(log) for log in logs)
    progress(f"{sum(piece.events for piece in pieces):,} events in {len(pieces)} pieces")
    facts = facts_of(settings or AuditSettings(), _scanned(spark, pieces))
    progress("known where it ends; reading all of it")

    def parts(number: int, piece: Piece) -> Iterator[pa.RecordBatch]:
        keep_freed_memory()
        yield parts_of(read_whole(piece, facts), facts, number)

    found = _judged(each(spark, pieces, parts, PARTS), facts)
    resumes = resumes_in(found.to_batches())
    if resumes:
        progress(f"looking at {len(resumes)} pieces again: something is out of order from one to the next")
        found = pa.concat_tables([found, _second(spark, pieces, resumes, facts)])
    return report_of(found, facts)


def _scanned(spark: SparkSession, pieces: list[Piece]) -> list[Scanned]:
    footers = [scan_footer(piece) for piece in pieces]
    left = [(number, pieces[number]) for number, found in enumerate(footers) if found is None]
    scanned = collect_each(spark, left, lambda _, item: scan_piece(item[1], item[0])) if left else []
    return [*(found for found in footers if found is not None), *scanned]


def _judged(parts: DataFrame, facts: Facts) -> pa.Table:
    def bucket(table: pa.Table) -> pa.Table:
        return pa.Table.from_batches(judged(parts_in(table), facts), FOUND)

    # Each group costs Spark about as much as judging a ledger does: a bucket has many of them.
    place = functions.hash("topic", "ledger_id", "slab")
    buckets = parts.groupBy(functions.pmod(place, functions.lit(BUCKETS)))
    return raised(buckets.applyInArrow(bucket, spark_schema(FOUND)).toArrow)


def _second(
    spark: SparkSession, pieces: list[Piece], resumes: dict[int, list[Resume]], facts: Facts
) -> pa.Table:
    def look(_: int, item: tuple[int, Piece, list[Resume]]) -> Iterator[pa.RecordBatch]:
        number, piece, own = item
        yield second_look(read_whole(piece, facts), facts, number, own)

    items = [(number, pieces[number], own) for number, own in sorted(resumes.items())]
    return raised(each(spark, items, look, FOUND).toArrow)
