"""Buckets built and checked in this process, without Spark: the whole backlog is in memory."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence

import pyarrow as pa

from geminga.pipeline.buckets.backlog import Share, Source
from geminga.pipeline.buckets.buckets import (
    ENCODED,
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
from geminga.storage.disk import RealDisk
from geminga.tracker.buckets.bucket_settings import BucketSettings


def ranges_of(
    sources: Sequence[Source],
    settings: BucketSettings,
    together: Sequence[Range] = (),
) -> list[Range]:
    """How the backlog is cut. No range ends within one of `together`."""
    return cut_all((source.counts() for source in sources), settings, together)


def build(sources: Sequence[Source], ranges: Sequence[Range], settings: BucketSettings) -> Iterator[Encoded]:
    """The bucket of each range that has rows."""
    for number, shares in _gathered(sources, ranges).items():
        yield from encoded_in(encode_range(number, ranges[number], shares, settings), ranges)


def encoded_in(table: pa.Table, ranges: Sequence[Range]) -> Iterator[Encoded]:
    """The rows of an `ENCODED` table."""
    assert table.schema == ENCODED
    for row in table.to_pylist():
        yield Encoded(ranges[row["range"]], row["rows"], row["entries"], row["unread"])


def spooled(number: int, table: pa.Table, directory: str) -> pa.Table:
    """Write rows of `ENCODED` into a file of the directory; where, as rows of `SPOOLED`."""
    if not table.num_rows:
        return SPOOLED.empty_table()
    path = os.path.join(directory, f"{number:08d}.arrow")
    data = pa.BufferOutputStream()
    with pa.ipc.new_stream(data, ENCODED) as stream:
        stream.write_table(table)
    RealDisk().replace_file(path, data.getvalue().to_pybytes())
    return pa.Table.from_pydict({"range": [number], "path": [path]}, SPOOLED)


def unspooled(path: str, ranges: Sequence[Range]) -> Iterator[Encoded]:
    """What `spooled` wrote; the file is deleted."""
    with pa.ipc.open_stream(RealDisk().read_file(path)) as stream:
        yield from encoded_in(stream.read_all(), ranges)
    RealDisk().unlink(path)


def verify(sources: Sequence[Source], ranges: Sequence[Range]) -> list[Fault]:
    """What is wrong with the buckets of these ranges."""
    tables = [check_range(n, ranges[n], shares) for n, shares in _gathered(sources, ranges).items()]
    found = pa.concat_tables([FAULTS.empty_table(), *tables])
    return faults_in(found)


def _gathered(sources: Sequence[Source], ranges: Sequence[Range]) -> dict[int, pa.Table]:
    shares: dict[int, list[Share]] = defaultdict(list)
    for source in sources:
        for share in source.shares(ranges):
            shares[share[0]].append(share)
    return {n: pa.Table.from_batches([share_batch(some)], SHARES) for n, some in sorted(shares.items())}
