"""Buckets built and checked in this process, without Spark: the whole backlog is in memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import pyarrow as pa

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
from geminga.pipeline.buckets_backlog import Share, Source
from geminga.tracker.bucket_settings import BucketSettings


def ranges_of(sources: Sequence[Source], settings: BucketSettings) -> list[Range]:
    """How the backlog is cut."""
    counts: Counter[int] = Counter()
    for source in sources:
        counts.update(count_by_ledger(source.rows()))
    return cut(counts, rows_per_bucket(counts.total(), settings))


def build(sources: Sequence[Source], ranges: Sequence[Range], settings: BucketSettings) -> Iterator[Encoded]:
    """The bucket of each range that has rows."""
    for number, shares in _gathered(sources, ranges).items():
        yield from encoded_in(encode_range(number, ranges[number], shares, settings), ranges)


def encoded_in(table: pa.Table, ranges: Sequence[Range]) -> Iterator[Encoded]:
    """The rows of an `ENCODED` table."""
    assert table.schema == ENCODED
    for row in table.to_pylist():
        yield Encoded(ranges[row["range"]], row["rows"], row["entries"])


def verify(sources: Sequence[Source], ranges: Sequence[Range]) -> list[Fault]:
    """What is wrong with the buckets of these ranges."""
    tables = [check_range(n, ranges[n], shares) for n, shares in _gathered(sources, ranges).items()]
    found = pa.concat_tables([FAULTS.empty_table(), *tables])
    return sorted(Fault(*row.values()) for row in found.to_pylist())


def _gathered(sources: Sequence[Source], ranges: Sequence[Range]) -> dict[int, pa.Table]:
    shares: dict[int, list[Share]] = defaultdict(list)
    for source in sources:
        for share in source.shares(ranges):
            shares[share[0]].append(share)
    return {n: pa.Table.from_batches([share_batch(some)], SHARES) for n, some in sorted(shares.items())}
