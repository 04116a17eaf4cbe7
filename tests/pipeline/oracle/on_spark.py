"""The same topics read by Spark: a batch query in splits, and a stream in limited micro-batches. Each is also
written back, to a topic of its own.

A job costs more than the rows of a topic do, so one query reads several topics: each is a struct in a column
of its own, null in the rows of the others.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions

from geminga.pipeline.spark.pieces import started
from tests.pipeline.conftest import SHORT_LIVED
from tests.pipeline.oracle.copies import options_of

if TYPE_CHECKING:
    from tests.pipeline.oracle.__main__ import Report, Topic

TOPICS_OF_A_QUERY: Final = 8
SPLITS: Final = 3
TRIGGERS: Final = 3
"""About so many micro-batches read a topic."""
Tables = list[pa.Table]


def compare_on_spark(url: str, topics: Sequence[Topic], report: Report) -> list[Topic]:
    """Returns the topics that were written back."""
    spark = started(
        "local[2]", {"spark.sql.shuffle.partitions": "1", "spark.driver.memory": "1g"} | SHORT_LIVED
    )
    try:
        for first in range(0, len(topics), TOPICS_OF_A_QUERY):
            group = topics[first : first + TOPICS_OF_A_QUERY]
            _compare("Spark batch", group, functools.partial(_batch, spark, url), report)
            _compare("Spark stream", group, functools.partial(_stream, spark, url), report)
        return [topic for topic in topics if _write_back(spark, url, topic, report)]
    finally:
        spark.stop()


def _compare(
    way: str, group: Sequence[Topic], read: Callable[[Sequence[Topic]], Tables], report: Report
) -> None:
    try:
        tables = read(group)
    except Exception:  # one of them; which, they tell alone
        for topic in group:
            report.compare(way, topic, lambda each=topic: read([each])[0])
        return
    for topic, table in zip(group, tables, strict=True):
        report.compare(way, topic, lambda found=table: found)


def _batch(spark: Any, url: str, topics: Sequence[Topic]) -> Tables:
    frames = [_source(spark.read, url, each).option("splitsPerPartition", SPLITS).load() for each in topics]
    return _apart(_beside(frames).toArrow(), len(topics))


def _stream(spark: Any, url: str, topics: Sequence[Topic]) -> Tables:
    frames = [
        _source(spark.readStream, url, each)
        .option("startingOffsets", "earliest")
        .option("maxRowsPerTrigger", max(1, len(each.expected) // TRIGGERS))
        .load()
        for each in topics
    ]
    found: list[pa.Table] = []
    with tempfile.TemporaryDirectory() as checkpoints:
        query = (
            _beside(frames)
            # the memory sink makes rows of Java's times, which end before those of columns do
            .writeStream.foreachBatch(lambda batch, _: found.append(batch.toArrow()))
            .option("checkpointLocation", checkpoints)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    return _apart(pa.concat_tables(found), len(topics))


def _write_back(spark: Any, url: str, topic: Topic, report: Report) -> bool:
    """Whether it could be. One task writes the messages of a partition in the order of the topic."""
    frame = _source(spark.read, url, topic).option("splitsPerPartition", 1).load().coalesce(1)
    try:
        frame.write.format("pulsar").option("service.url", url).options(**options_of(topic.plan)).mode(
            "append"
        ).save()
    except Exception as error:
        report.fails("written back", topic, error)
        return False
    return True


def _source(reader: Any, url: str, topic: Topic) -> Any:
    return (
        reader.format("pulsar")
        .options(**topic.options)
        .option("service.url", url)
        .option("topic", topic.name)
    )


def _beside(frames: Sequence[Any]) -> Any:
    structs = [frame.select(functions.struct("*").alias(f"t{index}")) for index, frame in enumerate(frames)]
    return functools.reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), structs)


def _apart(rows: pa.Table, count: int) -> Tables:
    return [_columns_of(rows[f"t{index}"]) for index in range(count)]


def _columns_of(structs: pa.ChunkedArray) -> pa.Table:
    kept = structs.drop_null()
    names = [field.name for field in kept.type]
    return pa.Table.from_arrays(list(_flat(kept)), names=names)


def _flat(structs: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    if structs.num_chunks:
        yield from structs.flatten()
    else:
        yield from (pa.chunked_array([], field.type) for field in structs.type)
