"""Buckets of the delayed index on Spark, ranges of ledgers side by side. docs/rebuild.md."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from geminga.pipeline.buckets.backlog import Source
from geminga.pipeline.buckets.buckets import (
    FAULTS,
    SHARES,
    SPOOLED,
    Encoded,
    Fault,
    Range,
    check_range,
    cut_all,
    encode_range,
    faults_in,
    share_batch,
)
from geminga.pipeline.buckets.here import spooled, unspooled
from geminga.pipeline.spark.pieces import collect_each, each, raised, spark_schema
from geminga.tracker.buckets.bucket_settings import BucketSettings


def ranges_of(
    spark: SparkSession,
    sources: Sequence[Source],
    settings: BucketSettings,
    together: Sequence[Range] = (),
) -> list[Range]:
    """How the backlog is cut; reads it, or some of it, and counts. No range ends within one of `together`."""
    return cut_all(collect_each(spark, sources, lambda _, source: source.counts()), settings, together)


def build(
    spark: SparkSession,
    sources: Sequence[Source],
    ranges: Sequence[Range],
    settings: BucketSettings,
    *,
    spool: str | None = None,
) -> Iterator[Encoded]:
    """The bucket of each range that has rows, one after the other, in no order.

    All are built before the first comes: workers leave them in files of the directory `spool` (default: a new
    one for temporary files), which has to be theirs and ours. It is deleted in the end.
    """
    cut_at = list(ranges)
    with tempfile.TemporaryDirectory(dir=spool, prefix="geminga-buckets-") as directory:

        def encode(shares: pa.Table) -> pa.Table:
            number = shares["range"][0].as_py()
            return spooled(number, encode_range(number, cut_at[number], shares, settings), directory)

        shares = _shares(spark, sources, cut_at)
        frame = shares.groupBy("range").applyInArrow(encode, spark_schema(SPOOLED))
        for row in sorted(raised(frame.collect)):
            yield from unspooled(row["path"], cut_at)


def verify(spark: SparkSession, sources: Sequence[Source], ranges: Sequence[Range]) -> list[Fault]:
    """What is wrong with the buckets of these ranges, by the backlog; the sources have their entries."""
    cut_at = list(ranges)

    def check(shares: pa.Table) -> pa.Table:
        number = shares["range"][0].as_py()
        return check_range(number, cut_at[number], shares)

    frame = _shares(spark, sources, cut_at).groupBy("range").applyInArrow(check, spark_schema(FAULTS))
    found: pa.Table = raised(frame.toArrow)
    return faults_in(found)


def _shares(spark: SparkSession, sources: Sequence[Source], ranges: list[Range]) -> DataFrame:
    def share(_: int, source: Source) -> Iterator[pa.RecordBatch]:
        yield share_batch(source.shares(ranges))

    return each(spark, sources, share, SHARES)
