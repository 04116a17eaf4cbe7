"""Spark's jobs and queries written exactly once: what Spark tells of them is what a repetition is told by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import Endpoints
from tests.pipeline.conftest import Topics
from tests.pipeline.spark.test_spark import source

EXACT = {"exactlyOnce": "true", "batchRows": "50"}


@pytest.fixture
def exact_topic(admin: Admin, topic: str) -> str:
    """In a namespace whose broker deduplicates."""
    admin.put("/admin/v2/namespaces/public/once", {})
    assert admin.post("/admin/v2/namespaces/public/once/deduplication", True).status == 204
    return topic.replace("/default/", "/once/")


def forget_last_commit(checkpoint: Path) -> None:
    """As if the driver had died before it noted that its last micro-batch was done."""
    last = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)


def test_batch_jobs_with_one_prefix_write_their_rows_or_fail(
    spark: Any, broker: Endpoints, topics: Topics, exact_topic: str
) -> None:
    def job(first: int, past: int, **more: str) -> None:
        frame = spark.range(first, past, numPartitions=2).selectExpr("cast(id as string) value")
        source(frame.write, broker, exact_topic, **EXACT, **more).mode("append").save()

    job(0, 200, producerNamePrefix="nightly")
    job(0, 200, producerNamePrefix="nightly")  # the same job again
    with pytest.raises(Exception, match="has written other rows.*producerNamePrefix of its own"):
        job(200, 400, producerNamePrefix="nightly")
    job(200, 400)
    job(400, 600, producerNamePrefix="nightly-2")
    assert sorted(int(value or b"") for value in topics.values(exact_topic)) == list(range(600))


def test_each_micro_batch_of_foreach_batch_is_written_once_under_one_prefix(
    spark: Any, broker: Endpoints, topics: Topics, topic: str, exact_topic: str, tmp_path: Path
) -> None:
    topics.write(topic, {"value": [b"%d" % n for n in range(400)]}, batchRows="50")

    def write(frame: Any, batch_id: int) -> None:
        writer = source(frame.write, broker, exact_topic, **EXACT, producerNamePrefix="each")
        writer.mode("append").save()

    def run() -> None:
        stream = source(
            spark.readStream, broker, topic, startingOffsets="earliest", maxRowsPerTrigger="150"
        ).load()
        stream = stream.select("value")
        query = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(tmp_path))
        query.trigger(availableNow=True).start().awaitTermination()

    run()
    forget_last_commit(tmp_path)
    run()
    assert sorted(int(value or b"") for value in topics.values(exact_topic)) == list(range(400))


def test_a_stream_that_counts_is_written_once_in_the_order_of_its_content(
    spark: Any, broker: Endpoints, topics: Topics, topic: str, exact_topic: str, tmp_path: Path
) -> None:
    def run(*keys: int) -> None:
        topics.write(topic, {"value": [b"%d" % key for key in keys]})
        stream = source(spark.readStream, broker, topic, startingOffsets="earliest").load()
        counts = stream.groupBy("value").count().selectExpr("cast(count as string) value", "value as __key")
        writer = source(counts.writeStream, broker, exact_topic, **EXACT, taskOrder="content")
        writer = writer.outputMode("complete").option("checkpointLocation", str(tmp_path))
        writer.trigger(availableNow=True).start().awaitTermination()

    run(*range(100), *range(50))
    forget_last_commit(tmp_path)
    run(*range(25))  # the micro-batch again, and the next
    found = [(int(row["__key"]), int(row["value"])) for row in topics.read(exact_topic)]
    first = [(key, 1 + (key < 50)) for key in range(100)]
    second = [(key, 1 + (key < 50) + (key < 25)) for key in range(100)]
    assert sorted(found) == sorted(first + second)
