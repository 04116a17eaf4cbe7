"""A bookie's files as a DataFrame, slices of files side by side. docs/rescue.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from geminga.pipeline.buckets.rescue import (
    Held,
    all_topics,
    ledgers_in,
    owned,
    rescued_batches,
    take_inventory,
)
from geminga.pipeline.buckets.rescue_columns import ENTRIES
from geminga.pipeline.buckets.rescue_files import Hole, Slice, plan
from geminga.pipeline.spark.pieces import collect_each, each
from geminga.storage.disk import RealDisk


class Rescued(NamedTuple):
    entries: DataFrame
    """Columns of `rescue_columns.ENTRIES`, each entry once, in no order. Read anew from the files whenever it
    is used, so they have to stay as they are.
    """
    ledgers: list[Held]
    holes: list[Hole]


def rescue(
    spark: SparkSession, *directories: str, progress: Callable[[str], None] = lambda text: None
) -> Rescued:
    """All entries in entry logs and journals below the directories, which workers have to see too.

    No broker may run on them. Raises `NothingThere`. Reads and checks everything once; using the entries
    reads it again.
    """
    known = plan(RealDisk(), directories)
    progress(f"{len(known.slices)} slices of files, {sum(s.end - s.begin for s in known.slices):,} bytes")
    found = dict(
        collect_each(spark, known.slices, lambda number, part: (number, take_inventory(RealDisk(), part)))
    )
    inventories = [found[number] for number in range(len(known.slices))]

    topics = all_topics(known, inventories)

    items = [
        (part, own, {id_: topics[id_] for id_ in own if id_ in topics})
        for part, own in zip(known.slices, owned(inventories), strict=True)
    ]
    holes = known.holes + [hole for inventory in inventories for hole in inventory.holes]
    return Rescued(each(spark, items, _read, ENTRIES), ledgers_in(inventories, topics), holes)


def _read(_: int, item: tuple[Slice, dict[int, bytes], dict[int, str]]) -> Iterator[pa.RecordBatch]:
    part, own, topics = item
    yield from rescued_batches(RealDisk(), part, own, topics)
