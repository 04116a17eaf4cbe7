"""DataFrames that Spark writes as primitive values and pairs, as they were read."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from tests.pipeline.conftest import Topics

AT = dt.datetime(2024, 5, 6, 7, 8, 9, 123_456)
PAIRS = [({"id": 0, "tags": ["a", None]}, AT), ({"id": None, "tags": []}, None), (None, AT), (None, None)]
TYPES = "key struct<id: bigint, tags: array<string>>, value timestamp_ntz"


@pytest.mark.parametrize("encoding", ["inline", "separated"])
def test_pairs_are_written_as_they_were_read(spark: Any, topics: Topics, topic: str, encoding: str) -> None:
    options = {"service.url": topics.endpoints.service_url, "keyValueEncoding": encoding}

    def write(rows: Any, to: str) -> None:
        rows.write.format("pulsar").options(**options, topic=to).mode("append").save()

    def read(at: str) -> Any:
        return spark.read.format("pulsar").options(**options, topic=at).load()

    given = spark.createDataFrame(PAIRS, TYPES).coalesce(1)
    write(given, topic)
    found = read(topic)
    assert found.schema.simpleString().startswith(
        "struct<key:struct<id:bigint,tags:array<string>>,value:timestamp_ntz,__key:binary"
    )
    assert found.select("key", "value").collect() == given.collect()
    write(found.coalesce(1), f"{topic}-copy")
    values, keys = ([row[name] for row in topics.read(topic)] for name in ("value", "__key"))
    copies = topics.read(f"{topic}-copy")
    assert [row["value"] for row in copies] == values
    assert [row["__key"] for row in copies] == keys


def test_a_table_has_the_schema_that_its_options_name(spark: Any, topics: Topics, topic: str) -> None:
    rows = spark.sql("select cast(id * 1000 as bigint) as value from range(2)").coalesce(1)
    options = {"service.url": topics.endpoints.service_url, "topic": topic, "valueSchema": "local_time"}
    rows.write.format("pulsar").options(**options).mode("append").save()
    assert topics.values(topic) == [bytes(8), (1000).to_bytes(8, "big")]
