"""Buckets of the delayed index on Spark, ranges of positions side by side. docs/rebuild.md."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from geminga.pipeline.buckets.backlog import Source
from geminga.pipeline.buckets.buckets import (
    COUNTS,
    ENCODED,
    FAULTS,
    SHARES,
    Division,
    Encoded,
    Fault,
    check_bucket,
    count_batch,
    cut,
    encode_range,
    faults_in,
    overlapping,
    rows_per_bucket,
    share_batch,
)
from geminga.pipeline.spark.api import spark_schema
from geminga.pipeline.spark.pieces import cores_of, each, raised
from geminga.tracker.buckets.bucket_settings import BucketSettings
from geminga.tracker.format.stored_bucket import KeyRange

TASKS_PER_CORE = 2
"""At most, that build buckets: so many let cores that are ahead take more."""


def ranges_of(spark: SparkSession, sources: Sequence[Source], settings: BucketSettings) -> list[KeyRange]:
    """How the backlog is cut; reads it, or some of it, and counts."""

    def count(_: int, source: Source) -> Iterator[pa.RecordBatch]:
        yield count_batch(source.counts())

    frame = each(spark, sources, count, COUNTS).groupBy("block").sum("rows")
    found: pa.Table = raised(frame.toArrow)
    counts = dict(zip(*(column.to_pylist() for column in found.columns), strict=True))
    return cut(counts, rows_per_bucket(sum(counts.values()), settings))


def build(
    spark: SparkSession,
    sources: Sequence[Source],
    ranges: Sequence[KeyRange],
    settings: BucketSettings,
) -> Iterator[Encoded]:
    """The bucket of each range that has rows, in their order; no two ranges overlap.

    All are built before the first comes; executors keep them on their disks, and they come from there a
    partition of Spark's at a time.
    """
    cut_at = list(ranges)

    def encode(shares: pa.Table) -> pa.Table:
        number = shares["range"][0].as_py()
        return encode_range(number, cut_at[number], shares, settings)

    # Spark makes 200 tasks of a shuffle that is persisted, and each costs some 40 ms of a core by itself.
    tasks = min(len(cut_at), TASKS_PER_CORE * cores_of(spark)) or 1
    shares = _shares(spark, sources, Division.into(cut_at)).repartition(tasks, "range")
    built = (
        shares.groupBy("range").applyInArrow(encode, spark_schema(ENCODED)).persist(StorageLevel.DISK_ONLY)
    )
    try:
        raised(built.count)
        rows = built.sort("range").toLocalIterator()
        while (row := raised(lambda: next(rows, None))) is not None:
            covered = KeyRange(row.first_code, row.last_code)
            yield Encoded(covered, row.rows, [bytes(entry) for entry in row.entries], row.unread)
    finally:
        built.unpersist()


def verify(spark: SparkSession, sources: Sequence[Source], buckets: Mapping[int, KeyRange]) -> list[Fault]:
    """What is wrong with these buckets, by the backlog: what their names speak of, by the ledgers that hold
    them; the sources have their entries.
    """
    named, shared = dict(buckets), overlapping(buckets)

    def check(shares: pa.Table) -> pa.Table:
        ledger_id = shares["range"][0].as_py()
        return check_bucket(ledger_id, named[ledger_id], ledger_id in shared, shares)

    shares = _shares(spark, sources, Division.of_buckets(named))
    frame = shares.groupBy("range").applyInArrow(check, spark_schema(FAULTS))
    found: pa.Table = raised(frame.toArrow)
    return faults_in(found)


def _shares(spark: SparkSession, sources: Sequence[Source], division: Division) -> DataFrame:
    def share(_: int, source: Source) -> Iterator[pa.RecordBatch]:
        yield share_batch(source.shares(division))

    return each(spark, sources, share, SHARES)
