"""Work on descriptions: each task is sent its own items, and what is sent to all tasks stays small."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

ITEM_BYTES = 20_000
NUMBERS = pa.schema([("number", pa.int64()), ("item_bytes", pa.int64())])


def test_items_go_to_their_tasks_and_not_to_all(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.serializers import CloudPickleSerializer

    from geminga.pipeline.spark.pieces import TASKS_PER_CORE, collect_each, each

    closures: list[int] = []
    dumps = CloudPickleSerializer.dumps

    def counted(self: Any, given: Any) -> bytes:
        data: bytes = dumps(self, given)
        closures.append(len(data))
        return data

    monkeypatch.setattr(CloudPickleSerializer, "dumps", counted)
    items = [os.urandom(ITEM_BYTES) for _ in range(50)]
    found = collect_each(spark, items, lambda number, item: (number, item[:4]))
    assert sorted(found) == [(number, item[:4]) for number, item in enumerate(items)]
    assert 0 < max(closures) < ITEM_BYTES
    assert collect_each(spark, [], lambda number, item: None) == []

    def numbers(number: int, item: bytes) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"number": [number], "item_bytes": [len(item)]}, NUMBERS)

    many = TASKS_PER_CORE * spark.sparkContext.defaultParallelism + 1
    frame = each(spark, [b"x"] * many, numbers, NUMBERS)
    assert many // 2 <= frame.rdd.getNumPartitions() < many
    frame = each(spark, [b"x"] * 3, numbers, NUMBERS)
    assert frame.rdd.getNumPartitions() == 3
    assert spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == "10000"


def test_workers_do_not_look_through_their_imports_after_each_task(spark: Any) -> None:
    from geminga.pipeline.spark.pieces import collect_each

    def heap(_: int, __: None) -> tuple[int, int]:
        return gc.get_freeze_count(), len(gc.get_objects())

    collect_each(spark, [None] * 4, heap)  # the first task of each worker imports
    found = collect_each(spark, [None] * 4, heap)
    assert any(frozen > 3 * looked_through for frozen, looked_through in found), found
    assert gc.get_freeze_count() == 0, "the user's own process is left as it is"


def test_a_process_that_only_plans_does_not_import_pandas() -> None:
    """Spark starts one for each stream, and pandas is a third of what it would import."""
    code = "import geminga.pipeline.spark.source, sys; print('pandas' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout == "False\n"


def test_an_error_of_a_worker_comes_back_with_its_options(spark: Any) -> None:
    from geminga.pipeline.errors import ALLOW_LOSS, DataLost
    from geminga.pipeline.spark.pieces import collect_each

    def lose(_number: int, _item: None) -> None:
        raise DataLost("failOnDataLoss=false: gone. ", ALLOW_LOSS, " to go on")

    with pytest.raises(DataLost) as raised:
        collect_each(spark, [None], lose)
    assert raised.value.parts == ("failOnDataLoss=false: gone. ", ALLOW_LOSS, " to go on")
