"""The data source in a real Spark session: batch and stream, read and write, and what its errors say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import functions
from pyspark.sql.types import StructType

from geminga.pipeline.arrow.table import range_batches, values_of
from geminga.pipeline.columns.columns import METADATA_COLUMNS
from geminga.pipeline.errors import BadOption, TopicMissing
from geminga.pipeline.spark.api import spark_schema
from geminga.pipeline.spark.source import PulsarSource
from geminga.pipeline.topics.planning import plan_batch
from geminga.pipeline.values.avro_shapes import SchemaMismatch
from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import Endpoints
from tests.pipeline.conftest import Topics


def source(reader: Any, broker: Endpoints, topic: str, **options: str) -> Any:
    found = reader.format("pulsar").option("service.url", broker.service_url).option("topic", topic)
    for name, value in options.items():
        found = found.option(name, value)
    return found


def test_a_topic_is_a_dataframe_and_back(spark: Any, broker: Endpoints, topics: Topics, topic: str) -> None:
    frame = spark.range(5000, numPartitions=3).selectExpr(
        "cast(id as string) as value",
        "cast(id % 10 as string) as __key",
        "timestamp_millis(1000 + id) as __eventTime",
        "map('n', cast(id as string)) as __messageProperties",
    )
    source(frame.write, broker, topic).mode("append").save()
    read = source(spark.read, broker, topic, splitsPerPartition="3", columns="__entryId").load()
    rows = read.selectExpr("cast(value as string) v", "cast(__key as string) k", "unix_millis(__eventTime) e",
                           "__messageProperties['n'] n", "__topic t").collect()  # fmt: skip
    assert sorted((int(r.v), r.k, r.e, r.n, r.t) for r in rows) == [
        (n, str(n % 10), 1000 + n, str(n), topic) for n in range(5000)
    ]
    assert read.columns == ["value", *METADATA_COLUMNS, "__entryId"]


def test_headers_are_all_properties_in_order(
    spark: Any, broker: Endpoints, topics: Topics, topic: str
) -> None:
    """With the type that Spark's source for Kafka gives them."""
    pairs = [[("n", str(n)), ("m", "é"), ("n", "again")] if n % 2 else [] for n in range(40)]
    kind = pa.map_(pa.string(), pa.string())
    rows = {"value": [b"%d" % n for n in range(40)], "__messageProperties": pa.array(pairs, kind)}
    topics.write(topic, rows, batchRows="10")
    read = source(spark.read, broker, topic, includeHeaders="true").load()
    assert read.columns == ["value", *METADATA_COLUMNS, "__headers"]
    assert read.schema["__headers"].dataType.simpleString() == "array<struct<key:string,value:binary>>"
    found = read.selectExpr("cast(value as string) n", "__headers", "__messageProperties m").collect()
    for row in found:
        n = int(row.n)
        headers = [("n", b"%d" % n), ("m", "é".encode()), ("n", b"again")] if n % 2 else None
        assert (row["__headers"] and [tuple(each) for each in row["__headers"]]) == headers
        assert row.m == ({"m": "é", "n": "again"} if n % 2 else {})
    assert len(found) == 40


def test_tasks_are_as_many_as_options_of_kafkas_source_say(
    spark: Any, broker: Endpoints, topics: Topics, topic: str
) -> None:
    topics.write(topic, {"value": [b"%d" % n for n in range(400)]}, batchRows="10")
    for options, tasks in (
        ({"minPartitions": "7"}, 7),
        ({"maxRecordsPerPartition": "45"}, 10),
        ({"maxRecordsPerPartition": "45", "minPartitions": "12"}, 12),
    ):
        read = source(spark.read, broker, topic, **options).load()
        found = read.groupBy(functions.spark_partition_id().alias("task")).count().collect()
        assert len(found) == tasks
        assert sum(row["count"] for row in found) == 400
        assert max(row["count"] for row in found) <= (60 if tasks == 7 else 40)


def test_what_is_available_now_is_read_once_and_acknowledged(
    spark: Any, broker: Endpoints, admin: Admin, topics: Topics, topic: str, tmp_path: Path
) -> None:
    admin.create_partitions(topic, 2)

    def run(**options: str) -> list[int]:
        stream = source(
            spark.readStream,
            broker,
            topic,
            startingOffsets="earliest",
            predefinedSubscription="spark",
            **options,
        ).load()
        query = (
            stream.writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        assert query.exception() is None
        return [progress.numInputRows for progress in query.recentProgress]

    def found() -> list[int]:
        return sorted(
            int(row.value) for row in spark.read.parquet(str(tmp_path / "out")).select("value").collect()
        )

    def backlog() -> int:
        stats = [admin.get(f"/admin/v2/{topic_path(topic)}-partition-{part}/stats").json() for part in (0, 1)]
        return sum(each["subscriptions"]["spark"]["msgBacklog"] for each in stats)

    topics.write(topic, {"value": [b"%d" % n for n in range(1000)]}, batchRows="30")
    assert max(run(maxRowsPerTrigger="450")) <= 450
    assert found() == list(range(1000))
    assert backlog() == 0
    topics.write(topic, {"value": [b"%d" % n for n in range(1000, 1300)]}, batchRows="30")
    before = set((tmp_path / "out").glob("*.parquet"))
    assert sum(run(minPartitions="5")) == 300
    assert len(set((tmp_path / "out").glob("*.parquet")) - before) == 5  # one of each task
    assert found() == list(range(1300))
    assert backlog() == 0


def test_a_topic_streams_into_another(
    spark: Any, broker: Endpoints, admin: Admin, topics: Topics, topic: str, tmp_path: Path
) -> None:
    def subscriptions() -> dict[str, int]:
        stats = admin.get(f"/admin/v2/{topic_path(topic)}/stats").json()["subscriptions"]
        return {name: each["msgBacklog"] for name, each in stats.items() if each["isDurable"]}

    topics.write(topic, {"value": [b"%d" % n for n in range(400)], "__key": [str(n % 5) for n in range(400)]})
    stream = source(
        spark.readStream, broker, topic, startingOffsets="earliest", subscriptionPrefix="mirror"
    ).load()
    query = source(stream.writeStream, broker, topic + "-copy")
    query = query.option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        topics.write(topic, {"value": [b"%d" % n for n in range(400, 500)], "__key": ["x"] * 100})
        query.processAllAvailable()
        offsets = json.loads(query.lastProgress.sources[0].endOffset)
        assert list(offsets) == [topic]
        assert subscriptions() == {f"mirror-{topic}": 0}
    finally:
        query.stop()
    rows = topics.read(topic + "-copy")
    assert [int(row["value"]) for row in rows] == list(range(500))
    assert rows[499]["__key"] == b"x"


def test_columns_of_any_types_are_a_record_and_back(spark: Any, broker: Endpoints, topic: str) -> None:
    frame = spark.range(20, numPartitions=2).selectExpr(
        "id",
        "if(id % 3 = 0, null, cast(id as string)) name",
        "named_struct('price', cast(id as decimal(9, 2)), 'tags', array('a', null)) inner",
        "map('k', id) sizes",
        "timestamp_micros(id) at",
        "cast(id as string) as __key",
    )
    source(frame.write, broker, topic).mode("append").save()
    read = source(spark.read, broker, topic).load()
    assert read.columns == [*frame.columns[:-1], *METADATA_COLUMNS]
    columns = ["id", "name", "inner", "sizes", "at", "cast(__key as string) k"]
    assert read.selectExpr(*columns).orderBy("id").collect() == frame.selectExpr(*columns).collect()


def test_a_micro_batch_that_runs_again_is_written_once(
    spark: Any, broker: Endpoints, admin: Admin, topics: Topics, topic: str, tmp_path: Path
) -> None:
    admin.put("/admin/v2/namespaces/public/once", {})
    assert admin.post("/admin/v2/namespaces/public/once/deduplication", True).status == 204
    copy = topic.replace("/default/", "/once/")
    admin.create_partitions(copy, 2)
    topics.write(topic, {"value": [b"%d" % n for n in range(900)], "__key": [str(n % 7) for n in range(900)]})

    def run() -> None:
        stream = source(
            spark.readStream, broker, topic, startingOffsets="earliest", splitsPerPartition="2"
        ).load()
        writer = source(stream.writeStream, broker, copy, exactlyOnce="true", batchRows="50")
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        query.awaitTermination()

    run()
    (tmp_path / "commits" / "0").unlink()  # as if the driver had died before it noted that the batch was done
    (tmp_path / "commits" / ".0.crc").unlink(missing_ok=True)
    run()
    assert sorted(int(value or b"") for value in topics.values(copy)) == list(range(900))


def test_errors_reach_the_user_in_words(spark: Any, broker: Endpoints, topic: str) -> None:
    with pytest.raises(Exception, match="is not there; check the name"):
        source(spark.read, broker, topic).load().count()
    with pytest.raises(Exception, match="option 'topc' is unknown"):
        source(spark.read, broker, topic, topc="x").load().count()
    with pytest.raises(Exception, match="no broker answers at"):
        spark.read.format("pulsar").option("service.url", "pulsar://127.0.0.1:1").option(
            "topic", "t"
        ).load().count()
    with pytest.raises(Exception, match="column '__ky' cannot be part of a message"):
        source(spark.range(1).selectExpr("id", "'a' __ky").write, broker, topic).mode("append").save()
    with pytest.raises(Exception, match="no topic to write to") as refused:
        spark.range(1).selectExpr("'a' value").write.format("pulsar").option(
            "service.url", broker.service_url
        ).mode("append").save()
    assert "Task" not in type(refused.value).__name__
    assert "stage" not in str(refused.value)  # in the driver, before any task
    with pytest.raises(Exception, match="cannot be overwritten"):
        source(spark.range(1).selectExpr("'a' value").write, broker, topic).mode("overwrite").save()


def test_bad_records_of_a_stream_are_counted_in_its_progress(
    spark: Any, broker: Endpoints, admin: Admin, topics: Topics, topic: str, tmp_path: Path
) -> None:
    """As docs/pipeline.md says; and a frame's own schema may have Spark's column, as text or as bytes."""
    body = {"type": "INT32", "schema": "", "properties": {}}
    path = f"/admin/v2/schemas/{topic_path(topic).partition('/')[2]}/schema"
    assert admin.post(path, body).status == 200
    good = b"\0\0\0\1"
    topics.write(topic, {"value": [good, b"bad\xff!", None, good]}, valueSchema="none")
    for kind, value in (("string", "bad\ufffd!"), ("binary", b"bad\xff!")):
        read = source(
            spark.read.schema(f"value int, _corrupt_record {kind}"), broker, topic, mode="PERMISSIVE"
        )
        rows = [tuple(row) for row in read.load().collect()]
        assert rows == [(1, None), (None, value), (None, None), (1, None)]
    stream = source(
        spark.readStream,
        broker,
        topic,
        startingOffsets="earliest",
        mode="PERMISSIVE",
        columnNameOfCorruptRecord="bad",
    ).load()
    query = (
        stream.observe("records", functions.count("bad").alias("bad"), functions.count("*").alias("all"))
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "out"))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    [counted] = [each.observedMetrics["records"] for each in query.recentProgress if each.numInputRows]
    assert (counted.bad, counted.all) == (1, 4)


def test_columns_that_there_are_not_are_refused(broker: Endpoints, topics: Topics, topic: str) -> None:
    topics.write(topic, {"value": [b"x"]})
    source = PulsarSource({"service.url": broker.service_url, "topic": topic})
    source.reader(StructType().add("value", "binary").add("__ledgerId", "long"))
    with pytest.raises(BadOption, match="has the column 'valeu'"):
        source.reader(StructType().add("valeu", "binary"))


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (pa.field("d", pa.int64()), "has d as int64, and the topic has double"),
        (pa.field("s", pa.struct([("f", pa.int32())])), "has s.f as int32, and the topic has float"),
        (pa.field("l", pa.list_(pa.int8())), "has l.element as int8, and the topic has double"),
        (pa.field("m", pa.map_(pa.string(), pa.int64())), "has m.value as int64, and the topic has double"),
    ],
)
def test_a_schema_that_cuts_fractions_is_refused(
    broker: Endpoints, topics: Topics, topic: str, wanted: pa.Field, said: str
) -> None:
    """1.5 became 1 without a word."""
    kinds = {
        "d": pa.float64(),
        "s": pa.struct([("f", pa.float32())]),
        "l": pa.list_(pa.float64()),
        "m": pa.map_(pa.string(), pa.float64()),
    }
    row: dict[str, Any] = {"d": 1.5, "s": {"f": 1.5}, "l": [1.5], "m": [("k", 1.5)]}
    topics.write(topic, {name: pa.array([row[name]], kind) for name, kind in kinds.items()})
    source = PulsarSource({"service.url": broker.service_url, "topic": topic})
    for make in (source.reader, source.streamReader):
        with pytest.raises(BadOption, match=f"{said}, whose fractions would be lost"):
            make(spark_schema(pa.schema([wanted])))
    source.reader(spark_schema(pa.schema({**kinds, "d": pa.float32()})))


def test_a_value_that_a_schema_of_ones_own_does_not_hold_is_told(topics: Topics, topic: str) -> None:
    topics.write(topic, {"value": [b"7", b"a"]})
    options = topics.options(topic)
    wanted = pa.schema([("value", pa.int32())])
    [part] = plan_batch(options)
    with pytest.raises(BadOption, match="has 'value' as int32, and the topic has binary, of which one does"):
        list(range_batches(options, values_of(options), wanted, part))


@pytest.mark.parametrize("deeper", [False, True])
def test_fields_that_differ_by_case_alone_are_refused(
    broker: Endpoints, admin: Admin, topic: str, deeper: bool
) -> None:
    """Spark would take one for the other, or refuse both in words of its own."""
    twins = {"type": "record", "name": "T", "fields": [{"name": n, "type": "int"} for n in ("Id", "x", "id")]}
    inner = {"type": "array", "items": twins}
    record = {"type": "record", "name": "R", "fields": [{"name": "a", "type": inner}]} if deeper else twins
    body = {"type": "AVRO", "schema": json.dumps(record), "properties": {}}
    path = f"/admin/v2/schemas/{topic_path(topic).partition('/')[2]}/schema"
    assert admin.post(path, body).status == 200
    options = {"service.url": broker.service_url, "topic": topic}
    names = r"a\.Id and a\.id" if deeper else "Id and id"
    with pytest.raises(SchemaMismatch, match=f"fields {names} differ by case alone.*rawValue=true"):
        PulsarSource(options).schema()
    assert PulsarSource(options | {"rawValue": "true"}).schema().fieldNames()[0] == "value"


def test_the_schema_waits_for_the_topic(broker: Endpoints, topics: Topics, topic: str) -> None:
    options = {"service.url": broker.service_url, "topic": topic, "waitingForNonExistedTopic": "true"}
    with pytest.raises(TopicMissing):
        PulsarSource(options | {"pollTimeoutMs": "300"}).schema()
    topics.write(topic, {"value": ["text"]})
    assert PulsarSource(options).schema()["value"].dataType.simpleString() == "string"


def test_a_stream_has_no_end() -> None:
    source = PulsarSource({"service.url": "pulsar://h", "topic": "t", "endingTime": "5"})
    with pytest.raises(BadOption, match="are for batch queries"):
        source.streamReader(StructType())
