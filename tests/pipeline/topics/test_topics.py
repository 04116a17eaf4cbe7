"""Kernels against a broker: what official clients and our writer put in comes out, in ranges cut anywhere."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pulsar
import pulsar.schema
import pyarrow as pa
import pytest

from geminga.pipeline.client.connection import Connection
from geminga.pipeline.client.last_message import last_of
from geminga.pipeline.client.topics import full_name
from geminga.pipeline.columns.columns import ColumnMaker
from geminga.pipeline.errors import (
    Access,
    BadOption,
    BrokerUnreachable,
    DataLost,
    PipelineError,
    TopicMissing,
)
from geminga.pipeline.export.plan import plan_export
from geminga.pipeline.topics.options import parse_options
from geminga.pipeline.topics.planning import plan_batch
from geminga.pipeline.topics.ranges import Range
from geminga.pipeline.topics.reading import EntryReader
from geminga.pipeline.topics.rows import read_range
from geminga.pipeline.topics.splits import SPLITS_MAX
from geminga.pipeline.topics.streaming import Offsets, StreamPlan
from geminga.pipeline.values.avro_shapes import SchemaMismatch
from geminga.pipeline.values.avro_writing import BadColumns, record_definition
from geminga.pipeline.values.decoding import ValueDecoder
from geminga.pipeline.values.row_columns import check_columns
from geminga.pipeline.values.schemas import schema_of, value_fields
from geminga.pipeline.writing.sequences import bounds
from geminga.pipeline.writing.task_writer import Task, TaskWriter
from tests.e2e.admin_http import Admin, topic_path
from tests.pipeline.conftest import POLL_TIMEOUT_S, Topics, triggers

VALUE_ONLY = pa.schema([("value", pa.binary())])
CODECS = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}


def send_all(client: pulsar.Client, topic: str, values: list[bytes], **options: Any) -> None:
    producer = client.create_producer(topic, **options)
    for value in values:
        producer.send_async(value, None)
    producer.flush()
    producer.close()


def read_values(topics: Topics, wanted: Range) -> list[bytes]:
    access = Access(topics.endpoints.service_url)
    found: list[bytes] = []
    for batch in read_range(
        access, wanted, ColumnMaker(wanted.topic, VALUE_ONLY), poll_timeout_s=POLL_TIMEOUT_S
    ):
        found += batch.column(0).to_pylist()
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_what_the_official_client_sends_in_batches_is_read(
    client: pulsar.Client, topics: Topics, topic: str, codec: str
) -> None:
    values = [b"%d" % index * (index % 30) for index in range(500)]
    send_all(
        client, topic, values, compression_type=CODECS[codec], batching_enabled=True, batching_max_messages=64
    )
    assert topics.values(topic) == values


@pytest.mark.parametrize("size_max", [10, 1000])
def test_messages_that_use_up_the_permits_before_they_fill_a_buffer(
    client: pulsar.Client, topics: Topics, topic: str, size_max: int
) -> None:
    """As a hundred thousand do that are compressed to a megabyte."""
    values = [b"%d" % index for index in range(5000)]
    send_all(
        client,
        topic,
        values,
        batching_enabled=True,
        batching_max_messages=size_max,
        block_if_queue_full=True,
    )
    (wanted,) = plan_batch(topics.options(topic, splitsPerPartition="1"))
    reader = EntryReader(topics.options(topic).access, wanted, poll_timeout_s=POLL_TIMEOUT_S, permits=50)
    assert sum(int(entries.messages.sum()) for entries in reader.buffers()) == 5000


def test_chunked_messages_come_whole_even_from_the_middle(
    client: pulsar.Client, topics: Topics, topic: str
) -> None:
    producer = client.create_producer(
        topic, chunking_enabled=True, batching_enabled=False, compression_type=pulsar.CompressionType.NONE
    )
    big = random.Random(1).randbytes(12_000_000)
    for value in (b"before", big, b"after"):
        producer.send(value)
    rows = topics.read(topic, "__entryId")
    assert [row["value"] for row in rows] == [b"before", big, b"after"]
    (wanted,) = plan_batch(topics.options(topic, splitsPerPartition="1"))
    # a range that begins between the chunks goes back for the first ones; one that ends there leaves it out
    last_chunk = rows[1]["__entryId"]
    ledger_id = wanted.end.ledger_id
    from geminga.pipeline.columns.message_id import MessageId

    middle = MessageId(ledger_id, last_chunk, 0)
    assert read_values(topics, Range(topic, middle, wanted.end)) == [big, b"after"]
    assert read_values(topics, Range(topic, wanted.start, middle)) == [b"before"]


@pytest.mark.parametrize("codec", CODECS)
def test_what_we_write_is_what_the_official_client_gets(
    client: pulsar.Client, topics: Topics, topic: str, codec: str
) -> None:
    count = 700
    keys = [f"k{index % 9}é" if index % 4 else None for index in range(count)]
    values = [None if index == 7 else b"v%d" % index * (index % 40) for index in range(count)]
    times = [1_000_000 + index if index % 3 else None for index in range(count)]
    properties = [[("a", str(index)), ("b", "")] if index % 5 == 0 else [] for index in range(count)]
    written = topics.write(
        topic,
        {
            "value": pa.array(values, pa.binary()),
            "__key": keys,
            "__eventTime": pa.array(times, pa.int64()),
            "__messageProperties": pa.array(properties, pa.map_(pa.string(), pa.string())),
        },
        compression=codec,
        batchRows="300",
    )
    assert (written.rows, written.batches) == (count, 3)
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    for index in range(count):
        message = reader.read_next(5000)
        assert message.data() == (values[index] or b"")
        assert message.partition_key() == (keys[index] or "")
        assert message.event_timestamp() == (times[index] or 0)
        assert message.properties() == dict(properties[index])
    assert topics.values(topic) == values


def test_binary_keys_and_delivery_times_survive(topics: Topics, topic: str) -> None:
    keys = [b"\xff\x00", b"text", None]
    due = [None, 4_000_000_000_000, None]
    topics.write(
        topic,
        {
            "value": [b"0", b"1", b"2"],
            "__key": pa.array(keys, pa.binary()),
            "__deliverAtTime": pa.array(due, pa.int64()),
        },
    )
    rows = topics.read(topic, "__deliverAtTime", "__batchIndex")
    assert [(row["value"], row["__key"]) for row in rows] == [(b"0", keys[0]), (b"1", keys[1]), (b"2", None)]
    assert [row["__deliverAtTime"] and row["__deliverAtTime"].timestamp() * 1000 for row in rows] == due
    assert [row["__batchIndex"] for row in rows] == [0, -1, 0]


def test_ranges_cut_anywhere_add_up(topics: Topics, topic: str) -> None:
    count = 1000
    topics.write(topic, {"value": [b"%d" % index for index in range(count)]}, batchRows="7")
    rows = topics.read(topic, "__ledgerId", "__entryId", "__batchIndex")
    source = random.Random(2)
    places = [(row["__ledgerId"], row["__entryId"], row["__batchIndex"]) for row in rows]
    for _ in range(10):
        first, last = sorted(source.sample(range(count), 2))
        options = topics.options(
            topic,
            startingOffsets=json.dumps({topic: ":".join(map(str, places[first]))}),
            endingOffsets=json.dumps({topic: ":".join(map(str, places[last]))}),
            splitsPerPartition=str(source.randint(1, 5)),
        )
        found = [value for wanted in plan_batch(options) for value in read_values(topics, wanted)]
        assert found == [b"%d" % index for index in range(first, last + 1)]
    ledger_id, entry_id, _ = places[-1]
    behind = json.dumps({topic: f"{ledger_id}:{entry_id + 1}:0"})
    assert plan_batch(topics.options(topic, startingOffsets=behind)) == []
    too_far = json.dumps({topic: f"{ledger_id}:{entry_id + 1}:1"})
    with pytest.raises(PipelineError, match="the topic was deleted and created again"):
        plan_batch(topics.options(topic, startingOffsets=too_far))


def test_publish_times_bound_a_range(topics: Topics, topic: str) -> None:
    for value in (b"a", b"b", b"c"):
        topics.write(topic, {"value": [value, value]})
    times = [int(row["__publishTime"].timestamp() * 1000) for row in topics.read(topic)]
    assert times == sorted(times)
    from_ms, before_ms = times[2], times[4]
    expected = [value for value, ms in zip(b"aabbcc", times, strict=True) if from_ms <= ms < before_ms]
    found = topics.values(topic, startingTime=str(from_ms), endingTime=str(before_ms))
    assert [value[0] for value in found if value] == expected
    assert topics.values(topic, startingTime=str(times[5] + 1)) == []


def test_a_message_id_of_a_client_is_an_offset(client: pulsar.Client, topics: Topics, topic: str) -> None:
    topics.write(topic, {"value": [b"%d" % index for index in range(30)]}, batchRows="10")
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    message_ids = [reader.read_next(5000).message_id() for _ in range(30)]
    signed = [byte - 256 if byte > 127 else byte for byte in message_ids[13].serialize()]
    found = topics.values(topic, startingOffsets=json.dumps({topic: signed}))
    assert found == [b"%d" % index for index in range(13, 30)]
    rows = topics.read(topic)
    assert [row["__messageId"] for row in rows] == [each.serialize() for each in message_ids]


def test_partitions_are_routed_as_the_java_client_does(topics: Topics, admin: Admin, topic: str) -> None:
    admin.create_partitions(topic, 3)
    keys = ["a", "b", "hello", "ключ"] * 5
    topics.write(topic, {"value": [key.encode() for key in keys], "__key": keys})
    rows = topics.read(topic)
    where = {row["value"].decode(): int(row["__topic"].rpartition("-")[2]) for row in rows}
    # String.hashCode: 97, 98, 99162322, and 33958353 of the Cyrillic word
    assert where == {"a": 97 % 3, "b": 98 % 3, "hello": 99162322 % 3, "ключ": 33958353 % 3}
    assert len(rows) == 20
    topics.write(topic, {"value": [b"x", b"y"], "__partition": [2, 0]}, partitioning="partition")
    last = {row["value"]: row["__topic"] for row in topics.read(topic)}
    assert (last[b"x"][-1], last[b"y"][-1]) == ("2", "0")


def test_splits_with_and_without_the_admin_api(topics: Topics, topic: str) -> None:
    values = [b"%d" % index for index in range(600)]
    topics.write(topic, {"value": values}, batchRows="1")
    plain = plan_batch(topics.options(topic, splitsPerPartition="4"))
    told = plan_batch(
        topics.options(topic, splitsPerPartition="4", **{"admin.url": topics.endpoints.web_url})
    )
    assert [(each.start, each.end) for each in plain] == [(each.start, each.end) for each in told]
    assert [wanted.end.entry_id for wanted in plain] == [150, 300, 450, 600]
    assert [value for wanted in told for value in read_values(topics, wanted)] == values


def test_the_whole_read_is_cut_into_at_least_so_many_splits(topics: Topics, admin: Admin, topic: str) -> None:
    """One large partition, one small one, and empty ones."""
    admin.create_partitions(topic, 5)
    rows = {"value": [b"%d" % n for n in range(330)], "__partition": [0] * 300 + [3] * 30}
    topics.write(topic, rows, partitioning="partition", batchRows="1")
    for more in ({}, {"admin.url": topics.endpoints.web_url}):
        found = plan_batch(topics.options(topic, minPartitions="11", **more))
        counts = Counter(full_name(wanted.topic).partition_index for wanted in found)
        assert counts == {0: 10, 3: 1}
        assert sorted(int(value) for each in found for value in read_values(topics, each)) == list(range(330))
    assert len(plan_batch(topics.options(topic, minPartitions="1"))) == 4 + 1  # as many as pay off
    assert len(plan_batch(topics.options(topic, minPartitions="1000"))) == 330
    assert plan_batch(topics.options(topic, minPartitions="7", endingTime="1")) == []
    exported = plan_export(topics.options(topic, minPartitions="11"), {}).ranges
    assert Counter(full_name(wanted.topic).partition_index for wanted in exported) == counts


def test_no_split_has_more_records_than_it_may(topics: Topics, admin: Admin, topic: str) -> None:
    """Batches of 10, singles, and an empty partition; what a batch is the metadata of some entries tells."""
    admin.create_partitions(topic, 3)
    for partition, batch in ((0, 10), (1, 1)):
        rows = {"value": [b"%d" % n for n in range(700)], "__partition": [partition] * 700}
        topics.write(topic, rows, partitioning="partition", batchRows=str(batch))
    for record_max, parts in ((35, (24, 20)), (9, (70, 78)), (10_000, (1, SPLITS_MAX))):
        found = plan_batch(topics.options(topic, maxRecordsPerPartition=str(record_max)))
        sizes: dict[int, list[int]] = {0: [], 1: []}
        for wanted in found:
            sizes[full_name(wanted.topic).partition_index].append(len(read_values(topics, wanted)))
        assert (len(sizes[0]), len(sizes[1])) == parts
        assert (sum(sizes[0]), sum(sizes[1])) == (700, 700)
        assert max(sizes[0]) <= max(record_max, 10)
        assert max(sizes[1]) <= record_max
    assert len(plan_batch(topics.options(topic, maxRecordsPerPartition="100", minPartitions="40"))) == 40


def test_a_stream_is_exact_under_limits_and_shrinks_the_backlog(
    topics: Topics, admin: Admin, topic: str
) -> None:
    admin.create_partitions(topic, 2)
    options = topics.options(
        topic, startingOffsets="earliest", maxRowsPerTrigger="77", predefinedSubscription="spark"
    )
    plan = StreamPlan(options)
    try:
        offsets = plan.initial()
        values = [b"%d" % index for index in range(500)]
        topics.write(topic, {"value": values}, batchRows="20")
        found: list[bytes] = []
        sizes = []
        while (end := plan.latest(offsets, limited=True)) != offsets:
            got = [value for wanted in plan.ranges(offsets, end) for value in read_values(topics, wanted)]
            sizes.append(len(got))
            found += got
            offsets = end
        assert sorted(found) == sorted(values)
        assert max(sizes) <= 77
        assert plan.latest(offsets, limited=False) == offsets
    finally:
        plan.close()
    backlog = 0
    for part in (0, 1):
        stats = admin.get(f"/admin/v2/{topic_path(topic)}-partition-{part}/stats").json()
        backlog += stats["subscriptions"]["spark"]["msgBacklog"]
    assert backlog == 0


def test_a_byte_limit_takes_whole_entries_and_moves_on(topics: Topics, topic: str) -> None:
    topics.write(topic, {"value": [b"x" * 1000] * 40}, batchRows="1")
    plan = StreamPlan(topics.options(topic, startingOffsets="earliest", maxBytesPerTrigger="10500"))
    try:
        steps = [
            sum(len(read_values(topics, wanted)) for wanted in ranges)
            for ranges in triggers(plan, plan.initial())
        ]
    finally:
        plan.close()
    assert sum(steps) == 40
    assert max(steps) <= 11


def test_trimmed_offsets_fail_and_say_what_to_do(topics: Topics, admin: Admin, topic: str) -> None:
    topics.write(topic, {"value": [b"old"] * 10}, batchRows="1")
    plan = StreamPlan(topics.options(topic, startingOffsets="earliest"))
    relaxed = StreamPlan(topics.options(topic, startingOffsets="earliest", failOnDataLoss="false"))
    try:
        offsets = {topic: f"{last_of(Access(topics.endpoints.service_url), topic).end.ledger_id}:5:0"}
        assert admin.put(f"/admin/v2/{topic_path(topic)}/unload").status == 204
        topics.write(topic, {"value": [b"new"]})  # into a new ledger: the old one may go
        assert admin.delete(f"/admin/v2/{topic_path(topic)}/truncate").status == 204
        end = plan.latest(offsets, limited=False)
        (wanted,) = plan.ranges(offsets, end)
        with pytest.raises(DataLost, match="failOnDataLoss=false"):
            read_values(topics, wanted)
        (wanted,) = relaxed.ranges(offsets, end)
        assert read_values(topics, wanted) == [b"new"]
    finally:
        plan.close()
        relaxed.close()


def test_a_topic_that_shrank_after_planning_is_data_loss(topics: Topics, admin: Admin, topic: str) -> None:
    topics.write(topic, {"value": [b"x"] * 10})
    (wanted,) = plan_batch(topics.options(topic, splitsPerPartition="1"))
    (relaxed,) = plan_batch(topics.options(topic, failOnDataLoss="false"))
    assert admin.delete(f"/admin/v2/{topic_path(topic)}").status == 204
    topics.write(topic, {"value": [b"y"]})
    further = [
        replace(each, end=each.end._replace(ledger_id=each.end.ledger_id + 10)) for each in (wanted, relaxed)
    ]
    with pytest.raises(DataLost, match="a subscription keeps it"):
        read_values(topics, further[0])
    assert read_values(topics, further[1]) == [b"y"]


def test_a_topic_made_anew_after_planning_is_data_loss(topics: Topics, admin: Admin, topic: str) -> None:
    """By a batch query and by a stream from the earliest on, though the new topic is longer than the old."""
    topics.write(topic, {"value": [b"%d" % number for number in range(10)]})
    options = topics.options(topic, startingOffsets="earliest")
    (of_batch,) = plan_batch(options)
    stream = StreamPlan(options)
    try:
        start = stream.initial()
        (of_stream,) = stream.ranges(start, stream.latest(start, limited=False))
    finally:
        stream.close()
    assert admin.delete(f"/admin/v2/{topic_path(topic)}?force=true").status == 204
    with pytest.raises(DataLost, match="was deleted"):
        read_values(topics, of_batch)
    assert read_values(topics, replace(of_batch, loss_allowed=True)) == []
    topics.write(topic, {"value": [b"new %d" % number for number in range(30)]}, batchRows="1")
    for wanted in (of_batch, of_stream):
        with pytest.raises(DataLost, match="were there when the query was planned"):
            read_values(topics, wanted)
    assert read_values(topics, replace(of_batch, loss_allowed=True)) == []


def test_a_topic_created_anew_is_data_loss(topics: Topics, admin: Admin, topic: str) -> None:
    topics.write(topic, {"value": [b"old"]})
    plan = StreamPlan(topics.options(topic))
    try:
        offsets = {topic: "99999999:5:0"}
        with pytest.raises(DataLost, match="created again"):
            plan.latest(offsets, limited=False)
    finally:
        plan.close()


def test_a_writer_to_a_missing_namespace_is_told_to_create_it(topics: Topics, topic: str) -> None:
    there = topic.replace("public/default", "public/none")
    with pytest.raises(TopicMissing) as raised:
        topics.write(there, {"value": [b"a"]})
    assert str(raised.value).startswith(f"topic {there} cannot be written to: it or its namespace is missing")
    assert "namespaces create public/none)" in str(raised.value)
    assert "waitingForNonExistedTopic" not in str(raised.value)


def test_a_missing_topic_is_named(topics: Topics, topic: str) -> None:
    with pytest.raises(TopicMissing, match="is not there"):
        plan_batch(topics.options(topic))
    with pytest.raises(TopicMissing):
        plan_batch(topics.options(topic, waitingForNonExistedTopic="true", pollTimeoutMs="300"))


def test_a_broker_that_is_down_is_named(topic: str) -> None:
    with pytest.raises(BrokerUnreachable, match="no broker answers at pulsar://127.0.0.1:1 "):
        plan_batch(parse_options({"service.url": "pulsar://127.0.0.1:1", "topic": topic}))


def test_the_web_port_is_recognised(topics: Topics, topic: str) -> None:
    port = topics.endpoints.web_url.rstrip("/").rpartition(":")[2]
    with pytest.raises(PipelineError):
        Connection.open(Access(f"pulsar://127.0.0.1:{port}"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "service.url"),
        ({"service.url": "localhost:6650"}, "pulsar://HOST:PORT"),
        ({"service.url": "pulsar://h", "topic": "a", "topics": "b"}, "exclude each other"),
        ({"service.url": "pulsar://h", "startingofsets": "earliest"}, "startingOffsets"),
        ({"service.url": "pulsar://h", "maxRowsPerTrigger": "-1"}, "at least 1"),
        ({"service.url": "pulsar://h", "failOnDataLoss": "maybe"}, "true or false"),
        ({"service.url": "pulsar://h", "startingOffsets": "middle"}, "earliest"),
        ({"service.url": "pulsar://h", "startingOffsets": '{"a": "1-2"}'}, "LEDGER:ENTRY"),
        ({"service.url": "pulsar://h", "columns": "__what"}, "__deliverAtTime"),
        ({"service.url": "pulsar://h", "compression": "rar"}, "zstd"),
    ],
)
def test_wrong_options_are_explained(options: dict[str, str], words: str) -> None:
    with pytest.raises(PipelineError, match=words):
        parse_options(options)


def test_a_batch_query_from_latest_is_refused(topics: Topics, topic: str) -> None:
    with pytest.raises(BadOption, match="reads nothing"):
        plan_batch(topics.options(topic, startingOffsets="latest"))


def test_columns_without_a_place_are_refused(topics: Topics, topic: str) -> None:
    with pytest.raises(BadColumns, match="without a value"):
        topics.write(topic, {"__key": ["a"]})
    with pytest.raises(BadColumns, match="'__a'"):
        topics.write(topic, {"value": [b"x"], "__a": [1]})
    with pytest.raises(BadColumns, match="binary or string"):
        topics.write(topic, {"value": [b"x"], "__key": [1]})


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), pa.binary(), pa.bool_()])
def test_properties_that_are_no_text_are_refused(kind: pa.DataType) -> None:
    """Zero would be an empty text, and other numbers an error without advice."""
    columns = pa.schema([("value", pa.binary()), ("__messageProperties", pa.map_(pa.string(), kind))])
    with pytest.raises(BadColumns, match=r"map<string, .*>; expected map<string,string>: cast it"):
        check_columns(columns)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.null()])
def test_properties_are_text_of_any_length_or_none(topics: Topics, topic: str, kind: pa.DataType) -> None:
    found = [[("a", None if kind == pa.null() else "0")], [], None]
    topics.write(topic, {"value": [b"1", b"2", b"3"],
                         "__messageProperties": pa.array(found, pa.map_(pa.string(), kind))})  # fmt: skip
    assert [dict(row["__messageProperties"]) for row in topics.read(topic)] == [
        {"a": "" if kind == pa.null() else "0"}, {}, {}
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["a", "__key"])
def test_columns_of_one_name_are_refused(name: str) -> None:
    kind = pa.string()
    said = f"two columns have the name '{name}'; drop or rename one"
    with pytest.raises(BadColumns, match=said):
        check_columns(pa.schema([(name, kind), ("b", kind), (name, kind)]))
    with pytest.raises(BadColumns, match=said):
        record_definition(pa.schema([("s", pa.struct([(name, kind), (name, kind)]))]))


def test_a_row_that_no_broker_takes_is_refused(topics: Topics, topic: str) -> None:
    with pytest.raises(PipelineError, match="at most"):
        topics.write(topic, {"value": [b"x" * 6_000_000]})
    topics.write(topic, {"value": [b"x" * 400_000] * 30}, batchRows="30")
    assert topics.values(topic) == [b"x" * 400_000] * 30


def test_a_pattern_finds_its_topics(topics: Topics, topic: str) -> None:
    for suffix in ("-one", "-two", "-other"):
        topics.write(topic + suffix, {"value": [suffix.encode()]})
    local = topic.rpartition("/")[2]
    options = parse_options(
        {"service.url": topics.endpoints.service_url, "topicsPattern": f"public/default/{local}-(one|two)"}
    )
    assert [wanted.topic for wanted in plan_batch(options)] == [topic + "-one", topic + "-two"]


def test_tasks_have_their_own_sequence_ids(topics: Topics, topic: str) -> None:
    topics.write(topic, {"value": [b"a", b"b"]}, task=Task("job", 3, 2), exactlyOnce="false")
    rows = topics.read(topic, "__sequenceId")
    assert [row["__sequenceId"] for row in rows] == [bounds(2)[0], bounds(2)[0] + 1]


def test_a_micro_batch_that_runs_again_is_cut_as_it_was(topics: Topics, topic: str) -> None:
    topics.write(topic, {"value": [b"%d" % n for n in range(400)]}, batchRows="2")
    how = {"startingOffsets": "earliest", "maxRowsPerTrigger": "100"}
    plan = StreamPlan(topics.options(topic, splitsPerPartition="3", **how))
    first = plan.latest(plan.initial(), limited=True)
    second = plan.latest(first, limited=True)
    before = plan.ranges(first, second)
    plan.close()
    again = StreamPlan(topics.options(topic, splitsPerPartition="2", **how))
    assert len(before) == 3
    assert again.ranges(first, second) == before
    third = again.latest(second, limited=True)
    assert len(again.ranges(second, third)) == 2
    assert again.latest(second, limited=True) == third
    again.close()
    end = StreamPlan(topics.options(topic, splitsPerPartition="5", **how))
    fourth = end.latest(third, limited=True)
    assert end.latest(fourth, limited=True) == fourth  # another number is no news
    end.close()


def test_micro_batches_are_cut_by_records_and_again_as_they_were(
    topics: Topics, admin: Admin, topic: str
) -> None:
    """Also by a plan that is new and has other options, or none, as after a crash; and a checkpoint that was
    written without the options goes on with them.
    """
    admin.create_partitions(topic, 2)

    def write(first: int) -> None:
        rows = {"value": [b"%d" % n for n in range(first, first + 400)], "__partition": [0] * 300 + [1] * 100}
        topics.write(topic, rows, partitioning="partition", batchRows="10")

    def planned(start: Offsets | None, **more: str) -> tuple[Offsets, Offsets, list[Range]]:
        plan = StreamPlan(topics.options(topic, startingOffsets="earliest", **more))
        try:
            start = start or plan.initial()
            end = plan.latest(start, limited=True)
            return start, end, plan.ranges(start, end)
        finally:
            plan.close()

    def again(start: Offsets, end: Offsets, **more: str) -> list[Range]:
        plan = StreamPlan(topics.options(topic, startingOffsets="earliest", **more))
        try:
            return plan.ranges(start, end)
        finally:
            plan.close()

    write(0)
    start, middle, before = planned(None)
    assert (len(before), len(middle)) == (2, 2)
    write(400)
    for more, count in (
        ({"maxRecordsPerPartition": "50"}, 6 + 2),
        ({"maxRecordsPerPartition": "35"}, 10 + 4),
        ({"minPartitions": "4"}, 4),
        ({"minPartitions": "9", "maxRecordsPerPartition": "100"}, 9),
        ({"minPartitions": "5", "maxRowsPerTrigger": "200"}, 5),
    ):
        _, end, found = planned(middle, **more)
        assert len(found) == count
        values = [int(value) for part in found for value in read_values(topics, part)]
        assert sorted(values)[:100] == list(range(400, 500))
        others: tuple[dict[str, str], ...] = ({}, {"splitsPerPartition": "3"}, {"minPartitions": "20"})
        for other in (more, *others):
            assert again(middle, end, **other) == found
            assert again(start, middle, **other) == before
        assert planned(end, **more)[1] == end or "maxRowsPerTrigger" in more


@pytest.fixture(scope="module")
def deduplicated(admin: Admin) -> str:
    """A namespace whose broker deduplicates."""
    assert admin.put("/admin/v2/namespaces/public/deduplicated", {}).status in (204, 409)
    assert admin.post("/admin/v2/namespaces/public/deduplicated/deduplication", True).status == 204
    return "persistent://public/deduplicated"


def test_a_task_that_runs_again_writes_nothing_twice(topics: Topics, deduplicated: str, admin: Admin) -> None:
    topic = f"{deduplicated}/again"
    admin.create_partitions(topic, 3)
    options = topics.options(topic, exactlyOnce="true", batchRows="7")
    rows = pa.RecordBatch.from_pydict(
        {
            "value": [b"%d" % n for n in range(500)],
            "__key": [f"k{n % 11}" if n % 4 else None for n in range(500)],
        }
    )

    class Crash(Exception):
        pass

    def some(count: int) -> Iterator[pa.RecordBatch]:
        for at in range(0, count, 50):
            yield rows.slice(at, 50)
        raise Crash

    def attempt(task: Task, batches: Iterable[pa.RecordBatch]) -> None:
        writer = TaskWriter(options, task)
        try:
            writer.write(batches)
        finally:
            writer.close()

    for count in (100, 50, 350):
        with pytest.raises(Crash):
            attempt(Task("job", 0, 4), some(count))
    # the batches of another size that Spark may hand over change nothing
    attempt(Task("job", 0, 4), [rows.slice(0, 333), rows.slice(333)])
    attempt(Task("job", 0, 4), [rows])
    assert sorted(int(value or b"") for value in topics.values(topic)) == list(range(500))
    attempt(Task("job", 0, 5), [rows])  # the next micro batch
    attempt(Task("job", 1, 4), [rows])  # another task
    assert len(topics.values(topic)) == 1500


def test_a_topic_that_got_more_partitions_between_two_attempts_has_each_row_once(
    topics: Topics, deduplicated: str, admin: Admin
) -> None:
    topic = f"{deduplicated}/grown"
    admin.create_partitions(topic, 2)
    options = topics.options(topic, exactlyOnce="true", batchRows="7")
    rows = pa.RecordBatch.from_pydict(
        {"value": [b"%d" % n for n in range(500)], "__key": [f"k{n % 11}" for n in range(500)]}
    )

    def attempt(task: Task, batches: Iterable[pa.RecordBatch]) -> None:
        writer = TaskWriter(options, task)
        try:
            writer.write(batches)
        finally:
            writer.close()

    def some() -> Iterator[pa.RecordBatch]:
        yield rows.slice(0, 300)
        raise InterruptedError

    with pytest.raises(InterruptedError):
        attempt(Task("job", 0, 4), some())
    assert admin.post(f"/admin/v2/{topic_path(topic)}/partitions", 5).status == 204
    attempt(Task("job", 0, 4), [rows])
    found = topics.read(topic)
    assert sorted(int(row["value"]) for row in found) == list(range(500))
    assert len({row["__topic"] for row in found}) == 2
    attempt(Task("job", 0, 5), [rows])  # the next micro batch uses all
    assert len({row["__topic"] for row in topics.read(topic)}) == 5


def test_exactly_once_without_deduplication_is_refused(topics: Topics, topic: str) -> None:
    values = {"value": [b"%d" % n for n in range(30)]}
    with pytest.raises(PipelineError, match="set-deduplication.*The first batch of a task was written"):
        topics.write(topic, values, exactlyOnce="true", batchRows="10")
    assert topics.values(topic) == values["value"][:10]


def test_the_admin_api_has_it_refused_before_the_first_row(
    topics: Topics, topic: str, deduplicated: str
) -> None:
    options = {"exactlyOnce": "true", "admin.url": topics.endpoints.web_url}
    with pytest.raises(PipelineError, match="set-deduplication.*Nothing was written"):
        topics.write(topic, {"value": [b"x"]}, **options)
    assert topics.values(topic) == []
    topics.write(f"{deduplicated}/asked", {"value": [b"x"]}, **options)
    assert topics.values(f"{deduplicated}/asked") == [b"x"]


def test_rows_that_go_nowhere_are_refused_by_their_columns(topics: Topics) -> None:
    columns = pa.schema([("value", pa.binary())])
    nobody = parse_options({"service.url": topics.endpoints.service_url})
    several = parse_options({"service.url": topics.endpoints.service_url, "topics": "a,b"})
    for options, text in ((nobody, "no topic to write to"), (several, "is written to one topic")):
        with pytest.raises(BadColumns, match=text):
            TaskWriter(options, Task("", 0, 0), columns)
    TaskWriter(nobody, Task("", 0, 0), columns.append(pa.field("__topic", pa.string())))


def test_other_rows_on_the_second_attempt_are_noticed(topics: Topics, deduplicated: str) -> None:
    topic = f"{deduplicated}/others"
    task = Task("job", 0, 1)
    values = [b"%d" % n for n in range(25)]
    topics.write(topic, {"value": values}, task=task, exactlyOnce="true", batchRows="10")
    for other in (values[:15], values + values):
        with pytest.raises(PipelineError, match="keep the number of partitions"):
            topics.write(topic, {"value": other}, task=task, exactlyOnce="true", batchRows="10")
    assert topics.values(topic) == values


class Inner(pulsar.schema.Record):  # type: ignore[misc]
    x = pulsar.schema.Double()


class Order(pulsar.schema.Record):  # type: ignore[misc]
    number = pulsar.schema.Integer()
    colour = pulsar.schema.String()
    inner = Inner()


@pytest.mark.parametrize("kind", ["Avro", "Json"])
def test_records_of_the_registry_become_columns(
    client: pulsar.Client, topics: Topics, topic: str, kind: str
) -> None:
    schema = getattr(pulsar.schema, f"{kind}Schema")(Order)
    producer = client.create_producer(topic, schema=schema)
    for number in range(5):
        producer.send(Order(number=number, colour=None if number == 2 else "red", inner=Inner(x=number / 2)))
    access = Access(topics.endpoints.service_url)
    values = schema_of(access, [topic])
    fields = value_fields(values)
    inner = pa.struct([("x", pa.float64())])
    assert fields == {"colour": pa.string(), "inner": inner, "number": pa.int32()}
    columns = pa.schema(list(fields.items()))
    decoder = ValueDecoder(access, topic, values, columns)
    (wanted,) = plan_batch(topics.options(topic, splitsPerPartition="1"))
    rows = [
        row
        for batch in read_range(
            access, wanted, ColumnMaker(topic, columns, decoder), poll_timeout_s=POLL_TIMEOUT_S
        )
        for row in batch.to_pylist()
    ]
    assert rows == [
        {"number": number, "colour": None if number == 2 else "red", "inner": {"x": number / 2}}
        for number in range(5)
    ]


def test_topics_whose_schemas_differ_are_refused(client: pulsar.Client, topics: Topics, topic: str) -> None:
    client.create_producer(topic + "-1", schema=pulsar.schema.StringSchema()).send("text")
    client.create_producer(topic + "-2", schema=pulsar.schema.BytesSchema()).send(b"bytes")
    access = Access(topics.endpoints.service_url)
    assert value_fields(schema_of(access, [topic + "-1"])) == {"value": pa.string()}
    with pytest.raises(SchemaMismatch, match="allowDifferentTopicSchemas"):
        schema_of(access, [topic + "-1", topic + "-2"])
