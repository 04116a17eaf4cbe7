"""Keys that are written: each row keeps its own, in the form that its producer chose, in its partition."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pulsar
import pyarrow as pa
import pytest

from geminga.pipeline.columns.columns import column_names
from geminga.pipeline.columns.routing import java_string_hash
from geminga.pipeline.values.avro_writing import BadColumns
from geminga.pipeline.values.row_columns import rows_of
from geminga.pipeline.writing.task_writer import Task, TaskWriter
from geminga.wire.sticky_hash import sticky_hash
from tests.e2e.admin_http import Admin
from tests.pipeline.conftest import Topics
from tests.pipeline.writing.keyed_rows import BINARY, KEYS, send_as_java, wire_key

SAME = ("value", "__key", "__keyBase64", "__orderingKey", "__messageProperties", "__eventTime")


def write(topics: Topics, topic: str, batches: Sequence[pa.RecordBatch], **options: str) -> None:
    writer = TaskWriter(topics.options(topic, **options), Task("test", 0, 0))
    try:
        writer.write(batches)
    finally:
        writer.close()


def table_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """As a program hands on what it has read."""
    more = ("__keyBase64", "__orderingKey")
    fields = {"value": pa.binary()} | column_names(more)
    return pa.RecordBatch.from_pylist(rows, pa.schema(list(fields.items())))


def by_partition(rows: list[dict[str, Any]]) -> dict[str, list[tuple[Any, ...]]]:
    found: dict[str, list[tuple[Any, ...]]] = {}
    for row in rows:
        index = row["__topic"].rpartition("-partition-")[2]
        found.setdefault(index, []).append(tuple(row[name] for name in SAME))
    return found


def test_one_binary_key_changes_no_other(
    client: pulsar.Client, topics: Topics, admin: Admin, topic: str
) -> None:
    rows, special = 30_000, 15_000
    admin.create_partitions(topic, 3)
    keys = [b"user-%d" % (row % 50) for row in range(rows)]
    keys[special] = BINARY
    values = [b"%d" % row for row in range(rows)]
    written = pa.RecordBatch.from_pydict({"value": values, "__key": pa.array(keys, pa.binary())})
    write(topics, topic, [written.slice(at, 10_000) for at in range(0, rows, 10_000)])

    read = topics.read(topic, "__keyBase64")
    wrong = [row for row in read if row["__key"] != keys[int(row["value"])]]
    assert (len(read), wrong) == (rows, [])
    assert [row["value"] for row in read if row["__keyBase64"]] == [b"%d" % special]
    homes = {(row["__key"], row["__topic"]) for row in read}
    assert len(homes) == 51, "a key in more than one partition"

    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    seen = Counter(reader.read_next(10_000).partition_key() for _ in range(rows))
    expected = Counter(key.decode() for key in keys if key != BINARY)
    assert seen == expected + Counter([base64.b64encode(BINARY).decode()])


def test_what_was_read_is_written_back_the_same(topics: Topics, admin: Admin, topic: str) -> None:
    """Each kind of key, in mixed batches, and by two Arrow batches that end anywhere."""
    copy, rows = f"{topic}-copy", 2400
    for name in (topic, copy):
        admin.create_partitions(name, 3)
    send_as_java(topics.endpoints.service_url, [f"{topic}-partition-{index}" for index in range(3)], rows)
    source = topics.read(topic, "__keyBase64", "__orderingKey")
    assert len(source) == rows
    for row in source:
        key, is_bytes = KEYS[int(row["value"]) % len(KEYS)]
        assert (row["__key"], row["__keyBase64"]) == (key, is_bytes)
    table = table_of(source)
    numbers = pa.array([int(row["__topic"].rpartition("-")[2]) for row in source])
    table = table.append_column("__partition", numbers)
    pieces = [table.slice(0, 777), table.slice(777)]

    write(topics, copy, pieces, partitioning="partition", batchRows="50")
    assert by_partition(topics.read(copy, "__keyBase64", "__orderingKey")) == by_partition(source)

    keyed = f"{topic}-keyed"
    admin.create_partitions(keyed, 3)
    write(topics, keyed, pieces, batchRows="50")
    found = topics.read(keyed, "__keyBase64", "__orderingKey")
    assert len(found) == rows

    def homes(read: list[dict[str, Any]]) -> dict[bytes, str]:
        return {row["value"]: row["__topic"].rpartition("-")[2] for row in read if row["__key"] is not None}

    assert homes(found) == homes(source), "keys choose the partition that the Java client chose"


@pytest.mark.parametrize("hashing", ["JavaStringHash", "Murmur3_32Hash"])
def test_the_partition_is_that_of_the_key_as_clients_see_it(
    topics: Topics, admin: Admin, topic: str, hashing: str
) -> None:
    """The Java client hashes `Message.getKey`: of a key that is bytes, its base64."""
    admin.create_partitions(topic, 5)
    keys = [key for key, _ in KEYS if key is not None] + [b"k%d" % number for number in range(50)]
    flags = [flag for key, flag in KEYS if key is not None] + [number % 2 == 0 for number in range(50)]
    values = [b"%d" % row for row in range(len(keys))]
    batch = pa.RecordBatch.from_pydict({"value": values, "__key": keys, "__keyBase64": flags})
    write(topics, topic, [batch], **{"pulsar.producer.hashingScheme": hashing})
    for row in topics.read(topic):
        number = int(row["value"])
        text = wire_key(keys[number], flags[number])
        hashed = java_string_hash(text) if hashing.startswith("Java") else sticky_hash(text.encode())
        assert row["__topic"] == f"{topic}-partition-{hashed % 5}"


def test_columns_that_begin_with_nulls_lose_nothing(topics: Topics, topic: str) -> None:
    """A batch of messages that spans two Arrow batches, the first without a key, time or property."""
    nulls = pa.nulls(3, pa.binary())
    times = pa.array([None] * 3, pa.timestamp("us", "UTC"))
    first = {"value": [b"0", b"1", b"2"], "__key": nulls, "__orderingKey": nulls, "__eventTime": times,
             "__deliverAtTime": times}  # fmt: skip
    stamps = pa.array([1_700_000_000_000_000 + row for row in range(0, 3000, 1000)], times.type)
    second = {"value": [b"3", b"4", b"5"], "__key": [b"a", BINARY, None], "__orderingKey": [b"o", b"", None],
              "__eventTime": stamps, "__deliverAtTime": stamps}  # fmt: skip
    write(topics, topic, [pa.RecordBatch.from_pydict(each) for each in (first, second, first)])
    read = topics.read(topic, "__keyBase64", "__orderingKey", "__deliverAtTime")
    assert [row["__key"] for row in read] == [None, None, None, b"a", BINARY, None, None, None, None]
    assert [row["__keyBase64"] for row in read] == [False] * 4 + [True] + [False] * 4
    assert [row["__orderingKey"] for row in read] == [None] * 3 + [b"o", b"", None] + [None] * 3
    expected = [None] * 3 + stamps.to_pylist() + [None] * 3
    assert [row["__eventTime"] for row in read] == expected
    assert [row["__deliverAtTime"] for row in read] == expected


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_only_keys_that_are_no_text_are_written_in_base64(kind: pa.DataType) -> None:
    keys = pa.array([b"text", BINARY, None, b""], kind)
    rows = rows_of(pa.RecordBatch.from_pydict({"value": [b""] * 4, "__key": keys}))
    assert rows.key is not None
    assert rows.key_base64 is not None
    assert rows.key.to_pylist() == [b"text", base64.b64encode(BINARY), None, b""]
    assert rows.key_base64.to_pylist() == [False, True, False, False]


def test_a_flag_that_is_no_boolean_is_refused(topics: Topics, topic: str) -> None:
    batch = pa.RecordBatch.from_pydict({"value": [b""], "__key": [b"k"], "__keyBase64": ["true"]})
    with pytest.raises(BadColumns, match="__keyBase64.*boolean"):
        write(topics, topic, [batch])


def test_headers_are_written_as_they_were_read(topics: Topics, admin: Admin, topic: str) -> None:
    pairs = [[("n", b"1"), ("m", "é".encode()), ("n", b"")], None, [], [("k", b"v")]]
    items = [each and [{"key": key, "value": value} for key, value in each] for each in pairs]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    values, headers = [b"%d" % n for n in range(4)], pa.array(items, kind)
    # The map has one value of each key, and is left out.
    maps = pa.array([[("n", "other")]] * 4, pa.map_(pa.string(), pa.string()))
    topics.write(topic, {"value": values, "__headers": headers, "__messageProperties": maps})
    found = {row["value"]: row for row in topics.read(topic, "__headers")}
    assert [found[value]["__headers"] for value in values] == [each or None for each in items]
    with pytest.raises(BadColumns, match="not UTF-8"):
        topics.write(
            topic, {"value": values[:1], "__headers": pa.array([[{"key": "k", "value": b"\xff"}]], kind)}
        )
    with pytest.raises(BadColumns, match="without a key"):
        topics.write(
            topic, {"value": values[:1], "__headers": pa.array([[{"key": None, "value": b""}]], kind)}
        )
    with pytest.raises(BadColumns, match="expected array<struct<key: string, value: binary>>"):
        topics.write(topic, {"value": values[:1], "__headers": maps[:1]})
