"""A topic with every kind of key, read by Spark and written back."""

from __future__ import annotations

from typing import Any

from tests.e2e.broker_process import Endpoints
from tests.pipeline.exactness.write_back import check_same, fill, seen_by_client, write_back

MESSAGES = 4000


def test_what_spark_reads_it_writes_back_the_same(spark: Any, broker: Endpoints, topic: str) -> None:
    fill(broker, topic, MESSAGES)
    write_back(spark, broker, topic, f"{topic}-copy", partitioning="partition")
    assert check_same(broker, topic, f"{topic}-copy") == MESSAGES
    assert seen_by_client(broker, topic, MESSAGES) == seen_by_client(broker, f"{topic}-copy", MESSAGES)
    write_back(spark, broker, topic, f"{topic}-keyed", partitioning="key")
    assert check_same(broker, topic, f"{topic}-keyed", keyed=True) == MESSAGES * 7 // 8
