"""A bookie's files as a DataFrame, slices of files side by side. docs/rescue.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple, TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from geminga.pipeline.buckets.rescue import (
    Held,
    all_topics,
    ledgers_in,
    owned,
    rescued_batches,
    take_inventory,
    write_rescued,
)
from geminga.pipeline.buckets.rescue_columns import ENTRIES
from geminga.pipeline.buckets.rescue_files import Hole, Slice, plan
from geminga.pipeline.files.files import Files
from geminga.pipeline.files.stored_disk import disk_by_url
from geminga.pipeline.spark.pieces import collect_each, each

_Item: TypeAlias = tuple[int, Slice, dict[int, bytes], dict[int, str]]
"""A slice with its number, its own entries, and the topics of their ledgers."""


class Rescued(NamedTuple):
    entries: DataFrame
    """Columns of `rescue_columns.ENTRIES`, each entry once, in no order. Each use reads the files again,
    so they must not change.
    """
    ledgers: list[Held]
    holes: list[Hole]
    write: Callable[[str], list[str]]
    """Writes the entries as Parquet below a directory or URL, each where it is read; the names of the files
    that count.
    """


def rescue(
    spark: SparkSession,
    *directories: str,
    settings: Mapping[str, str] | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> Rescued:
    """All entries in entry logs and journals below the directories, which workers have to see too.

    A directory may be a URL; `settings` are those of its file system (fs.s3a.endpoint). No broker may run
    there. Raises `NothingThere`. Reads and checks everything once; using the entries reads it again.
    """
    files = Files(settings or {})
    known = plan(disk_by_url(files), directories, files)
    progress(f"{len(known.slices)} slices of files, {sum(s.end - s.begin for s in known.slices):,} bytes")
    found = dict(
        collect_each(
            spark, known.slices, lambda number, part: (number, take_inventory(disk_by_url(files), part))
        )
    )
    inventories = [found[number] for number in range(len(known.slices))]
    topics = all_topics(known, inventories)
    items: list[_Item] = [
        (number, part, own, {id_: topics[id_] for id_ in own if id_ in topics})
        for number, (part, own) in enumerate(zip(known.slices, owned(inventories), strict=True))
    ]

    def read(_: int, item: _Item) -> Iterator[pa.RecordBatch]:
        _, part, own, topics = item
        return rescued_batches(disk_by_url(files), part, own, topics)

    def write(directory: str) -> list[str]:
        work = partial(write_rescued, files, directory)
        return [name for name in collect_each(spark, items, lambda _, item: work(item)) if name]

    holes = known.holes + [hole for inventory in inventories for hole in inventory.holes]
    return Rescued(each(spark, items, read, ENTRIES), ledgers_in(inventories, topics), holes, write)
