"""Buckets of the delayed index on Spark, ranges of ledgers side by side. docs/rebuild.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from geminga.pipeline.buckets import (
    ENCODED,
    FAULTS,
    SHARES,
    Encoded,
    Fault,
    Range,
    check_range,
    count_by_ledger,
    cut,
    encode_range,
    rows_per_bucket,
    share_batch,
)
from geminga.pipeline.buckets_backlog import Source
from geminga.pipeline.spark.pieces import collect_each, each, raised, spark_schema
from geminga.tracker.bucket_settings import BucketSettings

BUCKETS_EACH: Final = 8
"""Of a partition, about."""


def ranges_of(spark: SparkSession, sources: Sequence[Source], settings: BucketSettings) -> list[Range]:
    """How the backlog is cut; reads all of it, and counts."""
    counts: Counter[int] = Counter()
    for part in collect_each(spark, sources, lambda _, source: count_by_ledger(source.rows())):
        counts.update(part)
    return cut(counts, rows_per_bucket(counts.total(), settings))


def build(
    spark: SparkSession, sources: Sequence[Source], ranges: Sequence[Range], settings: BucketSettings
) -> Iterator[Encoded]:
    """The bucket of each range that has rows, one after the other, in no order: as many in memory here as
    Spark hands over at once.
    """
    cut_at = list(ranges)

    def encode(shares: pa.Table) -> pa.Table:
        number = shares["range"][0].as_py()
        return encode_range(number, cut_at[number], shares, settings)

    # Few buckets to a partition: results of hundreds of megabytes are lost on the way to the driver.
    shares = _shares(spark, sources, cut_at).repartition(1 + len(cut_at) // BUCKETS_EACH, "range")
    frame = shares.groupBy("range").applyInArrow(encode, spark_schema(ENCODED))
    rows = raised(lambda: frame.toLocalIterator(prefetchPartitions=True))
    for row in rows:
        yield Encoded(cut_at[row["range"]], row["rows"], [bytes(entry) for entry in row["entries"]])


def verify(spark: SparkSession, sources: Sequence[Source], ranges: Sequence[Range]) -> list[Fault]:
    """What is wrong with the buckets of these ranges, by the backlog; the sources have their entries."""
    cut_at = list(ranges)

    def check(shares: pa.Table) -> pa.Table:
        number = shares["range"][0].as_py()
        return check_range(number, cut_at[number], shares)

    frame = _shares(spark, sources, cut_at).groupBy("range").applyInArrow(check, spark_schema(FAULTS))
    found: pa.Table = raised(frame.toArrow)
    return sorted(Fault(*row.values()) for row in found.to_pylist())


def _shares(spark: SparkSession, sources: Sequence[Source], ranges: list[Range]) -> DataFrame:
    def share(_: int, source: Source) -> Iterator[pa.RecordBatch]:
        yield share_batch(source.shares(ranges))

    return each(spark, sources, share, SHARES)
