"""Capacity, rescue and buckets on Spark: the same as in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from geminga.bookie.entry_logs.entry_log_format import encode_header
from geminga.bookie.records.file_names import entry_log_path
from geminga.bookie.records.records import pack_records
from geminga.errors import CorruptData
from geminga.pipeline.buckets import here as buckets_here
from geminga.pipeline.buckets.backlog import Backlog, parquet_sources, stored_sources
from geminga.pipeline.buckets.capacity import Plan, WrongPlan, rows_of
from geminga.pipeline.buckets.rescue import rescue_batches
from geminga.pipeline.buckets.rescue_columns import ENTRIES
from geminga.pipeline.buckets.rescue_files import NothingThere
from geminga.storage.disk import RealDisk
from geminga.tracker.buckets.bucket_settings import BucketSettings

SMALL = BucketSettings(indexes_min=200, segment_indexes_max=50)


def entry_log(directory: Path, log_id: int, bodies: dict[int, list[bytes]]) -> None:
    """An entry log with these ledgers."""
    directory.mkdir(parents=True, exist_ok=True)
    parts = [encode_header(log_id)]
    for ledger_id, entries in bodies.items():
        pack_records(ledger_id, 0, entries, parts)
    Path(entry_log_path(str(directory), log_id)).write_bytes(b"".join(parts))


def on_disk(directory: Path) -> list[dict[str, Any]]:
    table = pq.read_table(directory).sort_by([("ledger_id", "ascending"), ("entry_id", "ascending")])
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def test_a_capacity_row(spark: Any) -> None:
    from geminga.pipeline.spark.capacity import capacity

    plan = Plan(300_000, 8, 10, "uniform:1m")
    (row,), (plain,) = capacity(spark, [plan]), rows_of([plan])
    assert row._replace(seconds=0) == plain._replace(seconds=0)
    with pytest.raises(WrongPlan):
        capacity(spark, [plan, Plan(1, 1, 10, "never")])


def test_a_rescued_directory_is_a_frame(spark: Any, tmp_path: Path) -> None:
    from geminga.pipeline.spark.rescue import rescue

    logs = tmp_path / "bookie" / "entry-logs"
    entry_log(logs, 1, {3: [b"a", b"b"], 2**33: [b"c"]})
    entry_log(logs, 2, {3: [b"a", b"b", b"d"]})
    found = rescue(spark, str(tmp_path))
    plain = pa.Table.from_batches(rescue_batches(RealDisk(), [str(tmp_path)], []), ENTRIES)
    rows = found.entries.toArrow().sort_by([("ledger_id", "ascending"), ("entry_id", "ascending")])
    assert (
        rows.to_pylist() == plain.sort_by([("ledger_id", "ascending"), ("entry_id", "ascending")]).to_pylist()
    )
    assert found.entries.where("ledger_id = 3").count() == 3
    names = found.write(str(tmp_path / "out"))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(names)
    assert on_disk(tmp_path / "out") == rows.to_pylist()
    assert [(held.ledger_id, held.entries) for held in found.ledgers] == [(3, 3), (2**33, 1)]
    assert found.holes == []
    with pytest.raises(NothingThere):
        rescue(spark, str(tmp_path / "none"))


def test_buckets_are_built_and_checked(spark: Any, tmp_path: Path) -> None:
    from geminga.pipeline.spark.buckets import build, ranges_of, verify

    numbers = np.random.default_rng(1).permutation(1000)
    table = {
        "ledger_id": 3 + numbers // 100,
        "entry_id": numbers % 100,
        "deliver_at_ms": 10**12 + numbers % 7,
    }
    path = tmp_path / "backlog.parquet"
    pq.write_table(pa.table(table), path, row_group_size=300)
    sources = parquet_sources([str(path)])
    ranges = ranges_of(spark, sources, SMALL)
    assert ranges == buckets_here.ranges_of(sources, SMALL)
    built = sorted(build(spark, sources, ranges, SMALL))
    assert built == sorted(buckets_here.build(sources, ranges, SMALL))
    named = {100 + number: bucket.covered for number, bucket in enumerate(built)}
    logs = {100 + number: bucket.entries for number, bucket in enumerate(built)}
    logs[102] = logs[102][1:]
    entry_log(tmp_path / "logs", 1, logs)
    backlog = Backlog(frozenset(), (-1, -1), {}, named, 0)
    faults = verify(spark, [*sources, *stored_sources([str(tmp_path / "logs")], backlog)], named)
    assert [(fault.bucket, fault.fault) for fault in faults] == [(102, "damaged")]
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CorruptData, match=r"backlog\.parquet"):
        ranges_of(spark, sources, SMALL)
