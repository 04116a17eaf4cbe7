"""Buckets built and checked in this process, without Spark: the whole backlog is in memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from geminga.pipeline.buckets.backlog import Share, Source
from geminga.pipeline.buckets.buckets import (
    ENCODED,
    FAULTS,
    SHARES,
    Division,
    Encoded,
    Fault,
    check_bucket,
    cut,
    encode_range,
    faults_in,
    overlapping,
    rows_per_bucket,
    share_batch,
)
from geminga.tracker.buckets.bucket_settings import BucketSettings
from geminga.tracker.format.stored_bucket import KeyRange


def ranges_of(sources: Sequence[Source], settings: BucketSettings) -> list[KeyRange]:
    """How the backlog is cut."""
    counts: Counter[int] = Counter()
    for source in sources:
        counts.update(source.counts())
    return cut(counts, rows_per_bucket(counts.total(), settings))


def build(
    sources: Sequence[Source], ranges: Sequence[KeyRange], settings: BucketSettings
) -> Iterator[Encoded]:
    """The bucket of each range that has rows, in their order; no two ranges overlap."""
    for number, shares in _gathered(sources, Division.into(ranges)).items():
        yield from encoded_in(encode_range(number, ranges[number], shares, settings))


def encoded_in(table: pa.Table) -> Iterator[Encoded]:
    """The rows of an `ENCODED` table."""
    assert table.schema == ENCODED
    for row in table.to_pylist():
        covered = KeyRange(row["first_code"], row["last_code"])
        yield Encoded(covered, row["rows"], row["entries"], row["unread"])


def verify(sources: Sequence[Source], buckets: Mapping[int, KeyRange]) -> list[Fault]:
    """What is wrong with these buckets: what their names speak of, by the ledgers that hold them."""
    shared = overlapping(buckets)
    gathered = _gathered(sources, Division.of_buckets(buckets))
    tables = [check_bucket(n, buckets[n], n in shared, shares) for n, shares in gathered.items()]
    found = pa.concat_tables([FAULTS.empty_table(), *tables])
    return faults_in(found)


def _gathered(sources: Sequence[Source], division: Division) -> dict[int, pa.Table]:
    shares: dict[int, list[Share]] = defaultdict(list)
    for source in sources:
        for share in source.shares(division):
            shares[share[0]].append(share)
    return {n: pa.Table.from_batches([share_batch(some)], SHARES) for n, some in sorted(shares.items())}
