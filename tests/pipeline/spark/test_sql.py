"""Topics in SQL: tables, views, filters and columns that reach the data source, namespaces."""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from geminga.errors import GemingaError
from geminga.pipeline.errors import PipelineError
from geminga.pipeline.spark import register, register_namespace
from geminga.pipeline.spark.failures import words_of
from geminga.pipeline.spark.scans.provider import install
from geminga.pipeline.topics.options import parse_options
from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import Endpoints
from tests.pipeline.conftest import Topics


@pytest.fixture
def table(spark: Any, broker: Endpoints, topic: str) -> Iterator[str]:
    """A table of the test's topic; `topic` has to have been written, or to be written by INSERT."""
    name = f"t_{uuid.uuid4().hex[:8]}"
    yield name
    spark.sql(f"DROP TABLE IF EXISTS {name}")


PAGE = Path(__file__).parents[3] / "docs" / "pipeline.md"


def options(broker: Endpoints, topic: str, **more: str) -> str:
    given = {"service.url": broker.service_url, "topic": topic} | more
    return ", ".join(f"'{name}' '{value}'" for name, value in given.items())


def count(spark: Any, what: str) -> int:
    return int(spark.sql(f"SELECT count(*) FROM {what}").first()[0])


def scans(frame: Any) -> list[str]:
    """The scans of its plan, with the columns that they read."""
    plan = frame._jdf.queryExecution().executedPlan().toString()
    return [line.partition("BatchScan ")[2] for line in plan.splitlines() if "BatchScan" in line]


def scanned_rows(frame: Any) -> int:
    """What the scan of a frame that was collected gave to the filter above it."""
    leaves = frame._jdf.queryExecution().executedPlan().collectLeaves()
    assert leaves.size() == 1
    return int(leaves.apply(0).metrics().apply("numOutputRows").value())


def test_a_table_is_read_written_and_seen_as_it_is_now(
    spark: Any, broker: Endpoints, topics: Topics, topic: str, table: str
) -> None:
    topics.write(topic, {"value": [b"%d" % n for n in range(500)], "__key": [str(n % 5) for n in range(500)]})
    spark.sql(f"CREATE TABLE {table} USING pulsar OPTIONS ({options(broker, topic)})")
    view = f"{table}_view"
    spark.sql(f"CREATE TEMP VIEW {view} USING pulsar OPTIONS ({options(broker, topic)})")
    assert (count(spark, table), count(spark, view)) == (500, 500)
    topics.write(topic, {"value": [b"500"], "__key": ["0"]})
    spark.sql(f"INSERT INTO {table} (value, __key) VALUES (cast('501' AS binary), cast('1' AS binary))")
    assert (count(spark, table), count(spark, view)) == (502, 502)
    groups = spark.sql(f"SELECT cast(__key AS string) k, count(*) n FROM {view} GROUP BY 1 ORDER BY 1")
    assert [tuple(row) for row in groups.collect()] == [
        ("0", 101),
        ("1", 101),
        ("2", 100),
        ("3", 100),
        ("4", 100),
    ]
    hours = spark.sql(
        f"SELECT window(__publishTime, '1 hour').start, count(*) n FROM {table} GROUP BY 1 ORDER BY 1"
    )
    assert sum(row.n for row in hours.collect()) == 502
    spark.sql(f"INSERT INTO {table} (value) SELECT value FROM {view} WHERE __key = cast('0' AS binary)")
    assert count(spark, table) == 603
    described = {row.col_name: row.data_type for row in spark.sql(f"DESCRIBE EXTENDED {table}").collect()}
    assert described["Provider"] == "pulsar"
    assert broker.service_url not in str(described)
    with pytest.raises(Exception, match="a topic cannot be overwritten"):
        spark.sql(f"INSERT OVERWRITE {table} SELECT * FROM {table}")
    spark.catalog.dropTempView(view)


def test_what_may_be_null_is_what_the_topic_says(
    spark: Any, broker: Endpoints, topics: Topics, topic: str, table: str
) -> None:
    """Literals cannot be null and rows that were read can: the registry refused both in the other's topic."""
    inner = pa.struct([pa.field("tags", pa.list_(pa.field("element", pa.string(), nullable=False)))])
    fields = [pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("inner", inner)]
    rows = pa.RecordBatch.from_pylist([{"id": 1, "name": None, "inner": {"tags": ["a"]}}], pa.schema(fields))
    topics.write_batch(topic, rows)
    spark.sql(f"CREATE TABLE {table} USING pulsar OPTIONS ({options(broker, topic)})")
    columns = "(id, name, inner)"
    spark.sql(f"INSERT INTO {table} {columns} VALUES (2, 'two', named_struct('tags', array('b')))")
    spark.sql(f"INSERT INTO {table} {columns} SELECT id + 2, name, inner FROM {table}")
    found = spark.sql(f"SELECT id, name, inner.tags[0] FROM {table} ORDER BY id").collect()
    assert [tuple(row) for row in found] == [(1, None, "a"), (2, "two", "b"), (3, None, "a"), (4, "two", "b")]
    spark.sql(f"INSERT INTO {table} {columns} VALUES (NULL, NULL, NULL)")
    assert topics.values(topic, rawValue="true")[4:] == [None]
    with pytest.raises(Exception, match="column 'id' has a null, for which the topic's schema has no"):
        spark.sql(f"INSERT INTO {table} {columns} SELECT if(id = 3, null, id), name, inner FROM {table}")


def test_a_second_session_of_the_jvm_knows_the_source(
    spark: Any, broker: Endpoints, topics: Topics, topic: str
) -> None:
    topics.write(topic, {"value": [b"a", b"b", b"b"]})
    other = register(register(spark.newSession()))
    frame = other.read.format("pulsar").options(**{"service.url": broker.service_url, "topic": topic}).load()
    assert frame.where("value = X'62'").count() == 2


def test_filters_of_one_scan_do_not_hold_for_another(
    spark: Any, broker: Endpoints, admin: Admin, topics: Topics, topic: str
) -> None:
    admin.create_partitions(topic, 2)
    topics.write(topic, {"value": [b"%d" % n for n in range(100)], "__key": [str(n) for n in range(100)]})
    frame = (
        spark.read.format("pulsar")
        .option("service.url", broker.service_url)
        .option("topic", topic)
        .option("columns", "__partition")
        .load()
    )
    of_first = frame.where("__partition = 0").count()
    assert 0 < of_first < 100
    assert frame.count() == 100
    both = frame.where("__partition = 0").union(frame.where("__partition = 1")).unionByName(frame)
    assert both.count() == 200
    assert frame.where("__partition = 0").rdd.getNumPartitions() < frame.rdd.getNumPartitions()


def test_what_filters_find_is_what_spark_finds(
    spark: Any, broker: Endpoints, admin: Admin, topics: Topics, topic: str
) -> None:
    """Against the same conditions on rows that Spark keeps itself."""
    random_ = random.Random(8)
    admin.create_partitions(topic, 2)
    for _ in range(4):
        topics.write(topic, {"value": [b"x"] * 50, "__key": [str(n) for n in range(50)]}, batchRows="7")
    view = f"v_{uuid.uuid4().hex[:8]}"
    given = options(broker, topic, columns="__partition", publishTimesApartMs="1000")
    spark.sql(f"CREATE TEMP VIEW {view} USING pulsar OPTIONS ({given})")
    kept = spark.createDataFrame(spark.table(view).collect(), spark.table(view).schema)
    kept.createOrReplaceTempView(f"{view}_kept")
    rows = kept.collect()
    for _ in range(8):
        row, other = random_.sample(rows, 2)
        time = f"timestamp_micros({round(row['__publishTime'].timestamp() * 1_000_000)})"
        conditions = [
            f"__publishTime {random_.choice(['<', '<=', '=', '>=', '>', '<>'])} {time}",
            f"__partition {random_.choice(['=', '<>', '<=>'])} {row['__partition']}",
            f"__partition IN ({row['__partition']}, 7)",
            f"__messageId IN (X'{row['__messageId'].hex()}', X'{other['__messageId'].hex()}')",
            f"__topic = '{row['__topic']}'",
            "__topic LIKE '%-partition-1'",
            f"NOT (__topic <=> '{other['__topic']}')",
        ]
        where = random_.choice([" AND ", " AND ", " OR "]).join(random_.sample(conditions, 2))
        found, expected = (
            sorted(
                bytes(each[0])
                for each in spark.sql(f"SELECT __messageId FROM {name} WHERE {where}").collect()
            )
            for name in (view, f"{view}_kept")
        )
        assert found == expected, where


def test_a_query_that_wants_nothing_reads_nothing_and_few_columns_are_few(
    spark: Any, broker: Endpoints, topics: Topics, topic: str, table: str
) -> None:
    topics.write(topic, {"value": [b"x" * 20] * 40_000})
    spark.sql(f"CREATE TABLE {table} USING pulsar OPTIONS ({options(broker, topic)})")
    some_id = spark.sql(f"SELECT __messageId FROM {table} LIMIT 1").first()[0]
    beyond = b"\x08\xff\xff\xff\xff\x07\x10\x00"  # ledger 2^31 - 1

    for where, read in (
        ("__topic = 'persistent://public/default/other'", 0),
        ("__publishTime > current_timestamp() + INTERVAL 3 HOURS", 0),
        ("__publishTime < TIMESTAMP '2020-01-01 00:00:00'", 0),
        (f"__messageId = X'{beyond.hex()}'", 0),
        (f"__messageId = X'{some_id.hex()}'", 1),
        ("__key = cast('none' AS binary)", 40_000),  # keys are not pushed down
    ):
        frame = spark.sql(f"SELECT value FROM {table} WHERE {where}")
        assert len(frame.collect()) == read % 40_000, where
        assert scanned_rows(frame) == read, where
    (scan,) = scans(spark.sql(f"SELECT count(*) FROM {table}"))
    assert scan.startswith("pulsar[__publishTime#")
    assert "," not in scan.partition("]")[0]


def test_columns_may_be_declared_and_mistakes_are_told_in_the_words_of_sql(
    spark: Any, broker: Endpoints, topics: Topics, topic: str, table: str
) -> None:
    topics.write(topic, {"value": [b"text"], "__key": ["k"]})
    spark.sql(
        f"CREATE TABLE {table} (value STRING, __key STRING) USING pulsar OPTIONS ({options(broker, topic)})"
    )
    assert [tuple(row) for row in spark.table(table).collect()] == [("text", "k")]
    for given, said in (
        ("topic 'orders'", "or in SQL OPTIONS ('service.url' "),
        (f"'service.url' '{broker.service_url}'", "no topic is named; give one of the options topic"),
        (options(broker, topic, topik="x"), "option 'topik' is unknown; did you mean topic?"),
    ):
        with pytest.raises(Exception) as failed:
            spark.sql(f"CREATE TABLE {table}_bad USING pulsar OPTIONS ({given})")
        assert said in words_of(failed.value)
    assert install(spark)  # once more does no harm


def test_topics_of_a_namespace_are_tables(
    spark: Any, broker: Endpoints, admin: Admin, topics: Topics
) -> None:
    namespace = f"public/sql-{uuid.uuid4().hex[:8]}"
    assert admin.put(f"/admin/v2/namespaces/{namespace}").status < 300
    for name in ("orders-eu", "clicks"):
        topics.write(f"persistent://{namespace}/{name}", {"value": [name.encode()] * 3})
    given = {"service.url": broker.service_url, "columns": "__partition"}
    database = namespace.replace("/", "_").replace("-", "_")
    for _ in range(2):
        assert register_namespace(spark, namespace, given) == {
            f"{database}.clicks": f"persistent://{namespace}/clicks",
            f"{database}.orders_eu": f"persistent://{namespace}/orders-eu",
        }
    assert count(spark, f"{database}.orders_eu WHERE __partition IS NULL") == 3
    topics.write(f"persistent://{namespace}/orders_eu", {"value": [b"x"]})
    with pytest.raises(PipelineError, match="would both be table orders_eu"):
        register_namespace(spark, namespace, given)
    with pytest.raises(GemingaError, match="expected tenant/namespace"):
        register_namespace(spark, "public", given)
    spark.sql(f"DROP DATABASE {database} CASCADE")
    assert parse_options(given | {"topic": "t"}).more_columns == ("__partition",)


def test_the_sql_of_the_page_runs(spark: Any, broker: Endpoints, topics: Topics) -> None:
    (block,) = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)
    block = block.replace("pulsar://localhost:6650", broker.service_url)
    for name in ("orders", "names"):
        block = block.replace(f"'topic' '{name}'", f"'topic' 'sql-{name}'")
    topics.write("sql-orders", {"value": [b"tea", b"salt"], "__key": ["ann", "bob"]})
    database = f"page_{uuid.uuid4().hex[:8]}"
    spark.sql(f"CREATE DATABASE {database}")
    spark.sql(f"USE {database}")
    try:
        told = [
            [tuple(row) for row in spark.sql(statement).collect()] for statement in block.strip().split(";")
        ]
    finally:
        spark.sql("USE default")
        spark.sql(f"DROP DATABASE {database} CASCADE")
        spark.catalog.dropTempView("recent")
    count_, since, customers, names = told[2], told[3], told[4], told[-1]
    assert count_ == [(2,)]
    assert sum(row[1] for row in since) == 2
    assert sorted(customers) == [("ann", 1), ("bob", 1)]
    assert names == [("SALT", "bob"), ("TEA", "ann"), ("one without a key", None)]
