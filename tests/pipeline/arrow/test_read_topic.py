"""Topics as Arrow batches without Spark: the columns of the Spark source, lazily, and closed when told."""

from __future__ import annotations

import datetime as dt
import io
import json
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import fastavro
import numpy as np
import pulsar
import pulsar.schema
import pyarrow as pa
import pytest

from geminga.limits import MIB
from geminga.pipeline import read_topic
from geminga.pipeline.errors import Access, BadOption, PipelineError, TopicMissing
from geminga.pipeline.topics.prefixed_options import OptionWithoutEffect
from geminga.pipeline.values.avro_shapes import BadValue
from geminga.pipeline.values.decoding import ValueDecoder
from geminga.pipeline.values.schemas import TopicSchema
from geminga.wire import pulsar_pb2 as pb
from tests.e2e.admin_http import Admin
from tests.e2e.waiting import eventually
from tests.pipeline.conftest import Topics

PAGE = Path(__file__).resolve().parents[3] / "docs" / "pipeline-arrow.md"
WITHOUT_SPARK = """
import importlib.abc, sys
class NoSpark(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j"):
            raise AssertionError(f"{name} is imported")
        if name == "pandas":
            raise ModuleNotFoundError("pyarrow can do without it")
sys.meta_path.insert(0, NoSpark())
from geminga.pipeline import read_topic
with read_topic(sys.argv[1], sys.argv[2]) as reader:
    print(sum(len(batch) for batch in reader))
"""


class Order(pulsar.schema.Record):  # type: ignore[misc]
    number = pulsar.schema.Integer()
    item = pulsar.schema.String()


DEFINITION = {
    "type": "record",
    "name": "Twice",
    "fields": [
        {"name": "first", "type": {"type": "record", "name": "Point", "fields": [
            {"name": "x", "type": "int"}, {"name": "y", "type": "string"}]}},
        {"name": "second", "type": "Point"},
    ],
}  # fmt: skip
TWICE = TopicSchema(pb.Schema.Type.Avro, json.dumps(DEFINITION).encode())


def encoded(first: dict[str, Any], second: dict[str, Any]) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, DEFINITION, {"first": first, "second": second})
    return data.getvalue()


@pytest.fixture
def url(topics: Topics) -> str:
    return topics.endpoints.service_url


def numbered(topics: Topics, topic: str, rows: int) -> None:
    topics.write(topic, {"value": [b"%d" % row for row in range(rows)],
                         "__key": [f"k{row % 7}" for row in range(rows)]}, batchRows="10")  # fmt: skip


def numbers(reader: pa.RecordBatchReader) -> list[int]:
    return [int(value) for value in reader.read_all().column("value").to_pylist()]


def test_partitions_one_after_the_other_each_in_its_order(
    topics: Topics, admin: Admin, topic: str, url: str
) -> None:
    admin.create_partitions(topic, 3)
    numbered(topics, topic, 1000)
    with read_topic(url, topic) as reader:
        table = reader.read_all()
    found = table.column("__topic").to_pylist()
    assert found == sorted(found)
    assert len(set(found)) == 3
    by_key: dict[bytes, list[int]] = {}
    for key, value in zip(table.column("__key").to_pylist(), table.column("value").to_pylist(), strict=True):
        by_key.setdefault(key, []).append(int(value))
    assert by_key == {b"k%d" % key: list(range(key, 1000, 7)) for key in range(7)}


def test_pyspark_is_never_imported(topics: Topics, topic: str, url: str) -> None:
    numbered(topics, topic, 30)
    command = [sys.executable, "-c", WITHOUT_SPARK, url, topic]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("30\n", "")


def test_the_columns_are_those_of_the_spark_source(
    client: pulsar.Client, topics: Topics, topic: str, url: str
) -> None:
    from pyspark.sql.pandas.types import from_arrow_schema

    from geminga.pipeline.spark.source import PulsarSource

    client.create_producer(topic, schema=pulsar.schema.AvroSchema(Order)).send(Order(number=1, item="a"))
    for more in ({}, {"columns": "__ledgerId,__orderingKey"}, {"rawValue": "true"}):
        with read_topic(url, topic, options=more) as reader:
            options = {"service.url": url, "topic": topic} | more
            assert from_arrow_schema(reader.schema) == PulsarSource(options).schema()
            assert reader.read_all().num_rows == 1


def test_from_a_message_to_a_message_and_from_time_to_time(topics: Topics, topic: str, url: str) -> None:
    numbered(topics, topic, 40)
    more = {"columns": "__ledgerId,__entryId,__batchIndex"}
    first, *_, last = read_topic(url, topic, options=more).read_all().to_pylist()[13:28]

    def place(row: dict[str, int]) -> str:
        return f"{row['__ledgerId']}:{row['__entryId']}:{row['__batchIndex']}"

    found = numbers(read_topic(url, topic, start={topic: place(first)}, end={topic: place(last)}))
    assert found == list(range(13, 28))
    published = [row["__publishTime"] for row in topics.read(topic)]
    assert numbers(read_topic(url, topic, end_time=published[0])) == []
    later = published[-1] + dt.timedelta(microseconds=1)
    assert numbers(read_topic(url, topic, start_time=published[0], end_time=later)) == list(range(40))
    assert numbers(read_topic(url, topic, start_time=later)) == []
    with pytest.raises(BadOption, match="time zone"):
        read_topic(url, topic, start_time=dt.datetime(2030, 1, 1))


def test_an_error_while_it_reads_is_the_pipelines_own(
    client: pulsar.Client, topics: Topics, topic: str, url: str
) -> None:
    client.create_producer(topic, schema=pulsar.schema.JsonSchema(Order)).send(Order(number=1, item="a"))
    topics.write(topic, {"value": [b"no JSON"]}, valueSchema="none")
    said = rf"^{topic}: the value of message \d+:1:0 is not .* to get bytes$"
    for read in (pa.Table.from_batches, list, lambda reader: reader.read_pandas()):
        with pytest.raises(BadValue, match=said):
            read(read_topic(url, topic))
    reader = read_topic(url, topic)
    with pytest.raises(BadValue):
        list(reader)
    with pytest.raises(pa.ArrowInvalid, match="closed"):  # and not the end, as if all had been read
        next(reader)
    with pytest.raises(pa.ArrowInvalid, match="is not what its schema says"):
        pa.RecordBatchReader.from_stream(read_topic(url, topic)).read_all()


def test_other_libraries_take_over_what_is_left(topics: Topics, topic: str, url: str) -> None:
    numbered(topics, topic, 30)
    with read_topic(url, topic, columns="value") as reader:
        assert reader.cast(pa.schema([("value", pa.large_binary())])).read_all().num_rows == 30
        with pytest.raises(pa.ArrowInvalid, match="closed"):
            reader.read_all()
    assert pa.table(read_topic(url, topic)).num_rows == 30


def test_several_topics_and_a_pattern(topics: Topics, topic: str, url: str) -> None:
    for name in ("-a", "-b"):
        numbered(topics, topic + name, 5)
    assert numbers(read_topic(url, [f"{topic}-a", f"{topic}-b"])) == [*range(5), *range(5)]
    assert numbers(read_topic(url, pattern=f"{topic}-.*")) == [*range(5), *range(5)]


def test_what_nobody_asked_for_is_not_decoded(
    client: pulsar.Client, topics: Topics, topic: str, url: str
) -> None:
    """A value that is not what its schema says is an error for those only who want it."""
    client.create_producer(topic, schema=pulsar.schema.AvroSchema(Order)).send(
        Order(number=1, item="a"), partition_key="k"
    )
    broken = b"\x02\x02\x02\x02\xff"  # number 1, then a text that is no UTF-8
    topics.write(topic, {"value": [broken], "__key": ["k"]}, valueSchema="none")
    with pytest.raises(PipelineError, match=r"is not what its schema says[\s\S]*rawValue=true"):
        read_topic(url, topic).read_all()
    assert read_topic(url, topic, columns=["__key"]).read_all().to_pylist() == [{"__key": b"k"}] * 2
    found = read_topic(url, topic, columns=["number", "__key"]).read_all()
    assert found.schema.names == ["number", "__key"]
    assert found.to_pylist() == [{"number": 1, "__key": b"k"}] * 2


def test_unknown_columns_and_topics_are_refused_at_once(topics: Topics, topic: str, url: str) -> None:
    numbered(topics, topic, 1)
    with pytest.raises(BadOption, match="'nope' is unknown; the topic has value, __key"):
        read_topic(url, topic, columns=["nope"])
    with pytest.raises(TopicMissing, match="neither a subscription nor a client for a minute"):
        read_topic(url, f"{topic}-that-is-not-there")
    with pytest.raises(BadOption, match="columns names none; leave it out"):
        read_topic(url, topic, columns=[])
    with pytest.raises(BadOption, match="start_time: '2026-11-23' is no time; give a datetime"):
        read_topic(url, topic, start_time="2026-11-23")
    with pytest.raises(BadOption, match="either a topic"):
        read_topic(url)
    with pytest.raises(BadOption, match="acknowledges nothing"):
        read_topic(url, topic, options={"predefinedSubscription": "s"})


def test_one_column_and_options_as_python_writes_them(topics: Topics, topic: str, url: str) -> None:
    numbered(topics, topic, 3)
    more: dict[str, str | int | bool] = {"failOnDataLoss": False, "pollTimeoutMs": 5000}
    with read_topic(url, topic, columns="__key", options=more) as reader:
        table = reader.read_all()
    assert (table.column_names, table.num_rows) == (["__key"], 3)


def test_splits_mean_nothing_and_headers_are_a_column(topics: Topics, topic: str, url: str) -> None:
    pairs = pa.array([[("a", "1"), ("b", ""), ("a", "2")], []], pa.map_(pa.string(), pa.string()))
    topics.write(topic, {"value": [b"x", b"y"], "__messageProperties": pairs}, batchRows="2")
    for name in ("minPartitions", "maxRecordsPerPartition", "splitsPerPartition"):
        with pytest.warns(OptionWithoutEffect, match=f"{name}: no effect here"):
            assert read_topic(url, topic, options={name: 7}).read_all().num_rows == 2
    expected = [{"key": "a", "value": b"1"}, {"key": "b", "value": b""}, {"key": "a", "value": b"2"}]
    for reader in (
        read_topic(url, topic, options={"includeHeaders": True}),
        read_topic(url, topic, columns=["__headers"]),
    ):
        assert reader.read_all().column("__headers").to_pylist() == [expected, None]


def test_it_reads_as_it_is_asked_and_leaves_nothing_when_closed(
    topics: Topics, admin: Admin, topic: str, url: str
) -> None:
    size, rows = 100_000, 800
    writer = {"value": [bytes(size)] * 40}
    for _ in range(rows // 40):
        topics.write(topic, writer)

    def subscriptions() -> list[str]:
        path = topic.replace("://", "/")
        return list(admin.get(f"/admin/v2/{path}/stats").json()["subscriptions"])

    before = pa.total_allocated_bytes()
    with read_topic(url, topic) as reader:
        eventually(lambda: subscriptions() == [], what="planning leaves nothing")
        batch = reader.read_next_batch()
        assert 0 < batch.nbytes < 16 * MIB
        assert pa.total_allocated_bytes() - before < 32 * MIB, "80 MB are in the topic"
        assert len(subscriptions()) == 1
    eventually(lambda: subscriptions() == [], what="the reader's subscription is gone")
    with pytest.raises(pa.ArrowInvalid, match="closed"):
        reader.read_next_batch()
    assert sum(len(each) for each in read_topic(url, topic)) == rows


def test_the_page_runs(topics: Topics, topic: str, url: str) -> None:
    """The recipes of docs/pipeline-arrow.md for pyarrow and pandas, as they are printed."""
    numbered(topics, topic, 21)
    blocks = PAGE.read_text().split("```python\n")[1:]
    code = [block.split("```")[0] for block in blocks]
    ours = [each for each in code if "polars" not in each and "duckdb" not in each]
    assert len(ours) >= 3
    namespace: dict[str, object] = {}
    out = io.StringIO()
    with redirect_stdout(out):
        for each in ours:
            own = each.replace("pulsar://localhost:6650", url).replace('"orders"', repr(topic))
            exec(compile(own, str(PAGE), "exec"), namespace)
    assert "21" in out.getvalue()


def test_a_type_that_a_field_left_out_defines_is_still_known(topics: Topics, topic: str, url: str) -> None:
    """`second` has the type that `first` defines: nothing can be skipped then, and nothing is lost."""
    rows = [{"x": 1, "y": "a"}, {"x": 2, "y": "b"}]
    struct = pa.struct([("x", pa.int32()), ("y", pa.string())])
    decoded = ValueDecoder(Access(url), topic, TWICE, pa.schema([("second", struct)]))
    payloads = pa.array([encoded(row, row) for row in rows], pa.binary())
    found = decoded._avro(TWICE, payloads, pa.struct([("second", struct)]), [(None, np.arange(2))])
    assert found.to_pylist() == [{"second": row} for row in rows]
