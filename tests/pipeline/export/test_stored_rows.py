"""Rows of a partition come back in the order of the topic, whatever files they are in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from geminga.errors import CorruptData
from geminga.pipeline.export import range_files, stored_rows
from geminga.pipeline.export.plan import FILE_COLUMNS
from geminga.pipeline.export.range_files import hour_directory, write_range
from geminga.pipeline.export.stored_rows import rows_in_order
from geminga.pipeline.files.files import Files

TOPIC = "persistent://public/default/t"
HOUR_US = 3_600_000_000


def rows_of(numbers: Sequence[int], hours: Sequence[int] | None = None, topic: str = TOPIC) -> pa.RecordBatch:
    """Message n is in ledger n // 100, entry n % 100 // 10, at batch index n % 10."""
    hours = hours or [0] * len(numbers)
    known = {
        "value": [b"%d" % n for n in numbers],
        "__topic": [topic] * len(numbers),
        "__ledgerId": [n // 100 for n in numbers],
        "__entryId": [n % 100 // 10 for n in numbers],
        "__batchIndex": [n % 10 for n in numbers],
        "__publishTime": [hour * HOUR_US for hour in hours],
        "__messageProperties": [[("n", str(n))] for n in numbers],
    }
    columns = [pa.array(known.get(one.name, [None] * len(numbers)), one.type) for one in FILE_COLUMNS]
    return pa.RecordBatch.from_arrays(columns, schema=FILE_COLUMNS)


def numbers_of(urls: Sequence[str], topic: str = TOPIC) -> list[int]:
    return [int(v.as_py()) for batch in rows_in_order(Files(), urls, topic) for v in batch["value"]]


def written(directory: Path, number: int, *batches: pa.RecordBatch) -> list[str]:
    found = write_range(Files(), str(directory), number, iter(batches))
    assert sum(file.rows for file in found) == sum(batch.num_rows for batch in batches)
    return [str(directory / file.path) for file in found]


def test_hours_of_a_range_are_put_together_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_rows, "BATCH_ROWS_MAX", 50)
    hours = np.random.default_rng(3).integers(0, 5, 1000).tolist()
    second = written(tmp_path, 1, rows_of(range(1000, 1400)))
    urls = written(tmp_path, 0, rows_of(range(600), hours[:600]), rows_of(range(600, 1000), hours[600:]))
    assert len(urls) == 5
    assert numbers_of(second + urls) == list(range(1400))
    (first, *_) = rows_in_order(Files(), urls, TOPIC)
    assert first["__messageProperties"][0].as_py() == [("n", "0")]
    assert first.schema == FILE_COLUMNS


def test_a_file_may_begin_inside_a_batch_of_another(tmp_path: Path) -> None:
    hours = [1 if 120 <= n < 180 else 0 for n in range(300)]
    urls = written(tmp_path, 0, rows_of(range(300), hours))
    assert len(urls) == 2
    assert numbers_of(urls) == list(range(300))


def test_files_are_open_only_while_they_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_rows, "BATCH_ROWS_MAX", 50)
    urls = [written(tmp_path, n, rows_of(range(n * 100, n * 100 + 100)))[0] for n in range(20)]
    opened: list[str] = []
    monkeypatch.setattr(Files, "open", lambda self, url: opened.append(url) or pa.OSFile(url))
    rows = rows_in_order(Files(), urls[::-1], TOPIC)
    next(rows)
    assert opened[20:] == urls[:1]  # every footer was read before
    assert sum(batch.num_rows for batch in rows) == 1950


def test_only_rows_of_the_topic_come(tmp_path: Path) -> None:
    other = f"{TOPIC}-other"
    urls = written(tmp_path, 0, rows_of([1, 3]), rows_of([2, 4], topic=other))
    assert (numbers_of(urls), numbers_of(urls, other), numbers_of(urls, "none")) == ([1, 3], [2, 4], [])
    assert numbers_of([]) == []


def test_a_file_that_is_not_sorted_is_and_one_with_fewer_columns_has_nulls(tmp_path: Path) -> None:
    numbers = np.random.default_rng(4).permutation(500).tolist()
    table = pa.Table.from_batches([rows_of(numbers)]).drop_columns(["__orderingKey", "__partition"])
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=90)
    assert numbers_of([str(tmp_path / "a.parquet")]) == list(range(500))
    (batch,) = rows_in_order(Files(), [str(tmp_path / "a.parquet")], TOPIC)
    assert batch["__orderingKey"].null_count == 500


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (url,) = written(tmp_path, 0, rows_of(range(100)))
    data = Path(url).read_bytes()
    for damaged in (data[:50], data[:40] + b"damage" + data[46:]):
        Path(url).write_bytes(damaged)
        with pytest.raises(CorruptData, match=r"part-00000-.*parquet: (not a whole|damaged)"):
            numbers_of([url])


def test_a_range_keeps_few_files_open_and_little_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(range_files, "OPEN_MAX", 3)
    monkeypatch.setattr(range_files, "FILE_ROWS_MAX", 150)
    monkeypatch.setattr(range_files, "WAITING_BYTES_MAX", 1000)
    monkeypatch.setattr(range_files, "GROUP_BYTES", 5000)
    hours = (np.arange(1000) // 10 % 7).tolist()
    batches = [rows_of(range(at, at + 50), hours[at : at + 50]) for at in range(0, 1000, 50)]
    urls = written(tmp_path, 0, *batches)
    assert len(urls) > 7
    assert numbers_of(urls) == list(range(1000))
    assert {url.rpartition("/")[0] for url in urls} == {str(tmp_path / hour_directory(n)) for n in range(7)}


def test_hours_have_directories() -> None:
    assert hour_directory(0) == "publish_date=1970-01-01/publish_hour=0"
    assert hour_directory(-1) == "publish_date=1969-12-31/publish_hour=23"
    assert hour_directory(498_873) == "publish_date=2026-11-29/publish_hour=9"
    assert hour_directory(2**63 // HOUR_US).startswith("publish_date=294247-01-10/")


def test_a_range_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def batches() -> list[pa.RecordBatch]:
        yield rows_of(range(10))  # type: ignore[misc]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_range(Files(), str(tmp_path), 0, batches())
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
