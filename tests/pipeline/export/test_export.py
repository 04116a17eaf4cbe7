"""Export and replay: files and manifest, entries that come back as they were, and all of it on Spark."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pytest

from geminga.clock import RealClock
from geminga.errors import CorruptData
from geminga.pipeline.client.connection import Connection
from geminga.pipeline.client.producing import Producer
from geminga.pipeline.columns.encoding import send_frame
from geminga.pipeline.columns.message_id import MessageId
from geminga.pipeline.errors import BadOption, DataLost, PipelineError
from geminga.pipeline.export.exporting import export
from geminga.pipeline.export.manifest import (
    MANIFEST,
    ExportedFile,
    ExportedTopic,
    Manifest,
    NoExport,
    Run,
    decode,
    encode,
)
from geminga.pipeline.export.output import Output, load
from geminga.pipeline.export.plan import FILE_COLUMNS, exported_batches, plan_export, verify
from geminga.pipeline.export.replay import replay
from geminga.pipeline.export.replay_lane import Delivery, LaneSettings, Pace
from geminga.pipeline.export.replay_targets import Wanted, prepare
from geminga.pipeline.export.replaying import ORDER, Job, replay_rows
from geminga.pipeline.files.files import Files
from geminga.pipeline.values.schemas import TopicSchema, fetch_versions
from geminga.wire import pulsar_pb2 as pb
from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import Endpoints
from tests.pipeline.conftest import Call, Topics

SAME = [
    "value",
    "__key",
    "__keyBase64",
    "__orderingKey",
    "__messageProperties",
    "__eventTime",
    "__deliverAtTime",
    "__batchIndex",
    "__partition",
]
"""What has to be the same before and after."""
FAR_MS = RealClock().now_ms() + 3_600_000


def exported(topics: Topics, *names: str) -> pa.Table:
    """What an export of these topics holds, in the order of a replay."""
    options = topics.options("", topics=",".join(names))
    plan = plan_export(options, {})
    batches = [batch for wanted in plan.ranges for batch in exported_batches(options, wanted)]
    table = pa.Table.from_batches(batches).select(FILE_COLUMNS.names)
    return table.sort_by([(name, "ascending") for name in ORDER])


def send(
    topics: Topics,
    table: pa.Table,
    source: str,
    target: str,
    *,
    partitions: int = 0,
    wanted: dict[str, Any] | None = None,
    **settings: Any,
) -> list[dict[str, Any]]:
    access = topics.options(source).access
    manifest = Manifest("test", {source: ExportedTopic(partitions, {})})
    rate = settings.pop("rate", None)
    targets = prepare(
        manifest, Wanted(access, rename={source: target}, append=True, **(wanted or {})), "replay"
    )
    job = Job(access, targets, "replay", LaneSettings(**settings), rate)
    batches = table.to_batches(max_chunksize=7)  # entries begin in one and end in another
    return [row for done in replay_rows(job, batches) for row in done.to_pylist()]


def same(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.select(SAME).to_pylist()
    return rows


@pytest.fixture
def deduplicating(admin: Admin, topic: str) -> str:
    """A topic where the broker deduplicates."""
    assert admin.put("/admin/v2/namespaces/public/exports").status in (204, 409)
    assert admin.post("/admin/v2/namespaces/public/exports/deduplication", True).status == 204
    return topic.replace("public/default", "public/exports")


def fill(client: pulsar.Client, topic: str) -> None:
    """Batches, single messages, delays, keys of all kinds, a message in chunks, one without a value."""
    batching = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=1000,
                                      batching_max_messages=10, producer_name=f"{topic}-b")  # fmt: skip
    for number in range(40):
        batching.send_async(b"b%d" % number, lambda *_: None, partition_key=f"k{number % 3}",
                            properties={"n": str(number), "a": "é"},
                            event_timestamp=1000 + number)  # fmt: skip
    batching.flush()
    single = client.create_producer(topic, batching_enabled=False, chunking_enabled=True)
    for number in range(10):
        single.send(
            b"d%d" % number, deliver_at=FAR_MS - number, partition_key="later", ordering_key=f"o{number}"
        )
    single.send(b"c" * 5_500_000, partition_key="large")
    single.send(b"", properties={"empty": "yes"})


def test_entries_come_back_as_they_were(topics: Topics, client: pulsar.Client, topic: str) -> None:
    fill(client, topic)
    topics.write(topic, {"value": [b"x", None, b"z"], "__key": [b"\xff", b"k", None]})
    before = exported(topics, topic)
    assert before.num_rows == 55
    (done,) = send(topics, before, topic, f"{topic}-back", wanted={"subscriptions": ["all"]})
    assert (done["rows"], done["skipped"], done["deduplicates"]) == (55, 0, False)
    after = exported(topics, f"{topic}-back")
    assert same(after) == same(before)
    consumer = client.subscribe(f"{topic}-back", "all", pulsar.ConsumerType.Shared)
    found = [consumer.receive(5000).data() for _ in range(45)]
    assert found[-1] == b"z"  # those with a delivery time are held back
    assert b"c" * 5_500_000 in found
    with pytest.raises(pulsar.Timeout):
        consumer.receive(100)


def test_a_replay_that_is_tried_again_stores_nothing_twice(
    topics: Topics, client: pulsar.Client, topic: str, deduplicating: str
) -> None:
    fill(client, topic)
    before = exported(topics, topic)
    send(topics, before.slice(0, 25), topic, deduplicating)  # it failed in the middle of a batch
    (done,) = send(topics, before, topic, deduplicating, delivery=Delivery.EXACTLY_ONCE)
    assert (done["rows"], done["skipped"], done["deduplicates"]) == (27, 25, True)
    after = exported(topics, deduplicating)
    assert [row["value"] for row in after.to_pylist()] == [row["value"] for row in before.to_pylist()]
    (done,) = send(topics, before, topic, deduplicating, batch_rows=3)
    assert (done["rows"], done["skipped"]) == (0, 52)


def test_exactly_once_refuses_a_broker_that_cannot(topics: Topics, topic: str) -> None:
    topics.write(topic, {"value": [b"%d" % n for n in range(50)]}, batchRows="10")
    with pytest.raises(PipelineError, match="does not deduplicate, so nothing after the first"):
        send(topics, exported(topics, topic), topic, f"{topic}-back", delivery=Delivery.EXACTLY_ONCE)
    assert exported(topics, f"{topic}-back").num_rows == 10


def test_partitions_are_kept_or_chosen_by_key(topics: Topics, admin: Admin, topic: str) -> None:
    admin.create_partitions(topic, 3)
    topics.write(topic, {"value": [b"%d" % n for n in range(90)], "__key": [f"k{n % 7}" for n in range(90)]},
                 batchRows="4")  # fmt: skip
    before = exported(topics, topic)
    with pytest.raises(PipelineError, match=r"needs 3 partitions: create it"):
        send(topics, before, topic, f"{topic}-back", partitions=3)
    send(topics, before, topic, f"{topic}-back", partitions=3, wanted={"admin_url": topics.endpoints.web_url})
    assert same(exported(topics, f"{topic}-back")) == same(before)
    admin.create_partitions(f"{topic}-two", 2)
    with pytest.raises(PipelineError, match="has 2 partitions, the exported topic 3"):
        send(topics, before, topic, f"{topic}-two", partitions=3)
    send(topics, before, topic, f"{topic}-two", partitions=3, wanted={"by_key": True})
    by_key: dict[bytes, list[int]] = {}
    for row in exported(topics, f"{topic}-two").to_pylist():
        by_key.setdefault(row["__key"], []).append(int(row["value"]))
    assert by_key == {b"k%d" % key: list(range(key, 90, 7)) for key in range(7)}


def test_a_target_without_partitions_is_refused_or_takes_all_by_key(
    topics: Topics, admin: Admin, topic: str
) -> None:
    admin.create_partitions(topic, 2)
    columns = {"value": [b"%d" % n for n in range(60)], "__key": [f"k{n % 7}" for n in range(60)]}
    topics.write(topic, columns, batchRows="4")
    before, there = exported(topics, topic), f"{topic}-back"
    topics.write(there, {"value": [b"0"], "__key": ["k0"]})
    refusal = r"has no partitions, the exported topic 2: name a topic .* or let keys choose \(by_key=True\)"
    for more in ({}, {"admin_url": topics.endpoints.web_url}):
        with pytest.raises(PipelineError, match=refusal):
            send(topics, before, topic, there, partitions=2, wanted=more)
        done = send(topics, before, topic, there, partitions=2, wanted=more | {"by_key": True})
        assert [row["target"] for row in done] == [there, there]
        assert sum(row["rows"] for row in done) == 60
    for key in range(7):
        found = [
            int(row["value"]) for row in exported(topics, there).to_pylist() if row["__key"] == b"k%d" % key
        ]
        once = list(range(key, 60, 7))
        assert found == ([0] if key == 0 else []) + once + once


def test_keys_choose_in_a_missing_target_too(topics: Topics, admin: Admin, topic: str) -> None:
    admin.create_partitions(topic, 2)
    topics.write(topic, {"value": [b"a", b"b", b"c"], "__key": ["a", "b", "c"]})
    before, by_key = exported(topics, topic), {"by_key": True}
    for name, more, partitions in (
        ("one", by_key, {-1}),
        ("two", by_key | {"admin_url": topics.endpoints.web_url}, {0, 1}),
    ):
        send(topics, before, topic, f"{topic}-{name}", partitions=2, wanted=more)
        after = exported(topics, f"{topic}-{name}")
        assert sorted(after["value"].to_pylist()) == [b"a", b"b", b"c"]
        assert set(after["__partition"].to_pylist()) == partitions


def test_a_rate_of_zero_is_no_limit(topics: Topics, topic: str, tmp_path: Path) -> None:
    topics.write(topic, {"value": [b"a", b"b"]})
    options = {"service.url": topics.endpoints.service_url}
    export(str(tmp_path / "out"), options | {"topic": topic})
    done = replay(str(tmp_path / "out"), options, rename={topic: f"{topic}-back"}, rate=0)
    assert done.rows == 2
    assert topics.values(f"{topic}-back") == [b"a", b"b"]


@pytest.mark.parametrize(
    ("option", "value", "instead"),
    [
        ("startingTime", "2030-01-01", r"spark\.read\.parquet.*resume=True"),
        ("endingTime", "5", r"spark\.read\.parquet"),
        ("startingOffsets", "latest", r"spark\.read\.parquet"),
        ("endingOffsets", '{"t": "1:2:0"}', r"spark\.read\.parquet"),
        ("maxrowspertrigger", "10", "for streams.*resume=True"),
        ("predefinedSubscription", "s", "for streams.*acknowledges none"),
        ("mode", "PERMISSIVE", "values as bytes"),
        ("columns", "__partition", "all columns of metadata"),
    ],
)
def test_an_option_that_would_choose_messages_is_refused(
    tmp_path: Path, option: str, value: str, instead: str
) -> None:
    options = {"service.url": "pulsar://127.0.0.1:1", "topic": "t", option: value}
    with pytest.raises(BadOption, match=f"(?i)option {option} has no effect on an export: .*{instead}"):
        export(str(tmp_path / "out"), options)
    assert list(tmp_path.iterdir()) == []


def test_options_that_an_export_uses_go_on(topics: Topics, topic: str, tmp_path: Path) -> None:
    topics.write(topic, {"value": [b"%d" % n for n in range(40)]}, batchRows="1")
    options = {
        "service.url": topics.endpoints.service_url,
        "topic": topic,
        "admin.url": topics.endpoints.web_url,
        "failOnDataLoss": "false",
        "unknownLedgerEnd": "warn",
        "pollTimeoutMs": "9000",
        "splitsPerPartition": "4",
        "pulsar.reader.subscriptionRolePrefix": "backup",
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
        "rawValue": "true",
    }
    done = export(str(tmp_path / "out"), options)
    assert (done.rows, done.files) == (40, 4)


def test_a_namespace_that_is_not_there_is_named(topics: Topics, admin: Admin, topic: str) -> None:
    admin.create_partitions(topic, 2)
    topics.write(topic, {"value": [b"v"]})
    there, wanted = topic.replace("public/default", "public/none"), {"admin_url": topics.endpoints.web_url}
    with pytest.raises(PipelineError, match="create it .* namespaces create public/none"):
        send(topics, exported(topics, topic), topic, there, partitions=2, wanted=wanted)


def test_delays_move_batches_change_and_rows_go_at_a_pace(topics: Topics, topic: str) -> None:
    due = [FAR_MS if number % 20 == 5 else None for number in range(40)]
    topics.write(topic, {"value": [b"%d" % n for n in range(40)], "__deliverAtTime": due})
    before = exported(topics, topic)
    started = time.monotonic()
    (done,) = send(topics, before, topic, f"{topic}-back", shift_ms=-60_000, batch_rows=10, rate=100,
                   compression="zstd")  # fmt: skip
    assert time.monotonic() - started > 0.25
    assert done["entries"] == 8
    after = exported(topics, f"{topic}-back").to_pylist()
    assert [int(row["value"]) for row in after] == list(range(40))
    found = [row["__deliverAtTime"].timestamp() for row in after if row["__deliverAtTime"]]
    assert found == pytest.approx([FAR_MS / 1000 - 60] * 2)


def test_an_export_goes_on_where_the_last_one_ended(topics: Topics, topic: str) -> None:
    options = topics.options(topic)
    topics.write(topic, {"value": [b"a", b"b"]})
    first = plan_export(options, {})
    assert len(first.ranges) == 1
    assert plan_export(options, first.topics).ranges == ()
    topics.write(topic, {"value": [b"c"]})
    (wanted,) = plan_export(options, first.topics).ranges
    values = [value for batch in exported_batches(options, wanted) for value in batch["value"].to_pylist()]
    assert values == [b"c"]
    ahead = {topic: ExportedTopic(0, {topic: MessageId(1 << 40, 0, 0)})}
    with pytest.raises(DataLost, match="deleted and created again"):
        plan_export(options, ahead)
    assert (
        plan_export(replace(options, fail_on_data_loss=False), ahead).topics
        == plan_export(options, {}).topics
    )


def test_pace_owes_what_was_not_waited_for() -> None:
    assert Pace(None).owed_s(1000) == 0
    pace = Pace(10)
    assert pace.owed_s(5) == 0
    assert pace.owed_s(1) == pytest.approx(0.5, abs=0.2)


def test_a_manifest_is_what_was_written() -> None:
    schema = TopicSchema(8, b"\x00\xff", {"a": "b"})
    topic = ExportedTopic(2, {"t-partition-0": MessageId(3, 4, 0)}, ((b"\0" * 8, schema),))
    file = ExportedFile("run=000001/x.parquet", 10, 11, 12, {"t-partition-0": 12})
    manifest = Manifest("id", {"t": topic}, (Run(1, 5, (file,)),))
    assert decode(encode(manifest), "m") == manifest
    for data in (
        b"",
        b"{",
        b"[]",
        b'{"format": "x"}',
        encode(manifest)[:-9],
        encode(manifest).replace(b"3:4", b"x"),
        encode(manifest).replace(b": 12", b': "many"'),
        encode(manifest).replace(b": 10", b": Infinity"),
        b"[" * 100_000,
    ):
        with pytest.raises(NoExport):
            decode(data, "m")


def test_a_run_that_fails_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out"

    def fail() -> None:
        with Output(Files(), str(out), resume=False) as output:
            Path(output.staged).mkdir()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(tmp_path.iterdir()) == []
    with Output(Files(), str(out), resume=False) as output:
        Path(output.staged).mkdir()
        output.commit(Manifest("id", {}, (output.run,)))
    with pytest.raises(PipelineError, match="exists already; name a new directory"):
        Output(Files(), str(out), resume=False)
    (out / "run=000001").mkdir()  # one that was killed between its last two steps
    with Output(Files(), str(out), resume=True):
        assert not (out / "run=000001").exists()
    with pytest.raises(NoExport, match="is not there"):
        load(Files(), str(tmp_path / "none"))
    with pytest.raises(NoExport, match="holds no export"):
        load(Files(), str(tmp_path))


def raw_producer(topics: Topics, topic: str) -> Producer:
    return Producer(topics.options(topic).access, topic, None, pending_max=1, send_timeout_s=10)


def send_raw(topics: Topics, topic: str, more: bytes) -> None:
    """A single message with these fields of its metadata beside the usual ones."""
    producer = raw_producer(topics, topic)
    head = pb.MessageMetadata(producer_name=producer.name or "", sequence_id=0, publish_time=1)
    metadata = pb.MessageMetadata.FromString(head.SerializeToString() + more)
    producer.send(0, send_frame(1, metadata, b"value", pb.NONE))
    producer.flush()
    producer.close()


def test_encrypted_messages_are_refused_also_with_a_key(topics: Topics, topic: str) -> None:
    keys = pb.MessageMetadata(encryption_keys=[pb.EncryptionKeys(key="k", value=b"v")])
    send_raw(topics, topic, keys.SerializePartialToString())
    for more in ({}, {"pulsar.reader.privateKeyPath": "/k", "pulsar.reader.publicKeyPath": "/p"}):
        options = topics.options(topic, **more)
        (wanted,) = plan_export(options, {}).ranges
        with pytest.raises(
            PipelineError, match=rf"{topic}.*: encrypted messages are not exported.*topic out"
        ):
            list(exported_batches(options, wanted))


def test_a_key_that_is_no_text_is_sent_as_bytes(topics: Topics, topic: str) -> None:
    send_raw(topics, topic, b"\x32\x03k\xff\xfe")
    before = exported(topics, topic)
    assert before["__key"].to_pylist() == [b"k\xff\xfe"]
    send(topics, before, topic, f"{topic}-back")
    after = exported(topics, f"{topic}-back")
    assert after["__key"].to_pylist() == [b"k\xff\xfe"]
    assert after["__keyBase64"].to_pylist() == [True]


def test_a_delivery_that_never_comes_stays_far_away(topics: Topics, topic: str) -> None:
    send_raw(topics, topic, pb.MessageMetadata(deliver_at_time=2**63 - 1).SerializePartialToString())
    send(topics, exported(topics, topic), topic, f"{topic}-back")
    (at,) = exported(topics, f"{topic}-back")["__deliverAtTime"].cast(pa.int64()).to_pylist()
    assert at == (2**63 - 1) // 1000 * 1000


def test_all_schema_versions_that_count_are_found(
    topics: Topics, client: pulsar.Client, admin: Admin, topic: str
) -> None:
    class First(pulsar.schema.Record):  # type: ignore[misc]
        number = pulsar.schema.Integer()

    class Second(pulsar.schema.Record):  # type: ignore[misc]
        number = pulsar.schema.Integer()
        note = pulsar.schema.String(default=None, required_default=True)

    def versions() -> list[tuple[int, bool]]:
        with Connection.open(topics.options(topic).access) as connection:
            found = fetch_versions(connection, topic)
        return [(int.from_bytes(version, "big"), b"note" in schema.definition) for version, schema in found]

    assert versions() == []
    client.create_producer(topic, schema=pulsar.schema.AvroSchema(First)).close()
    client.create_producer(topic, schema=pulsar.schema.AvroSchema(Second)).close()
    assert versions() == [(0, False), (1, True)]
    name = topic.removeprefix("persistent://")
    assert admin.delete(f"/admin/v2/schemas/{name}/schema").status == 200
    assert versions() == []
    client.create_producer(topic, schema=pulsar.schema.AvroSchema(Second)).close()
    assert versions() == [(3, True)]


def test_export_and_replay_on_the_command_line(
    on_spark: Any,
    broker: Endpoints,
    topics: Topics,
    client: pulsar.Client,
    topic: str,
    tmp_path: Path,
    call: Call,
) -> None:
    url = ("--url", broker.service_url)
    out, back = tmp_path / "out", f"{topic}-back"
    client.subscribe(topic, "held", pulsar.ConsumerType.Shared)
    code, _, error = call("export", f"{topic}-none", "--out", out, *url)
    assert (code, "is not there" in error, list(tmp_path.glob("out*"))) == (1, True, [])
    fill(client, topic)
    code, text, error = call("export", topic, "--out", out, "--json", *url)
    assert (code, error.count("geminga")) == (0, 0), error
    assert json.loads(text)["by_topic"] == {topic: 52}
    code, _, error = call("export", topic, "--out", out, *url)
    assert (code, "exists already" in error) == (1, True)
    topics.write(topic, {"value": [b"new"]})
    code, text, _ = call("export", "--continue", "--out", out, "--json", *url)
    assert json.loads(text)["messages"] == 1
    frame = on_spark.read.parquet(str(out)).where("__deliverAtTime is not null")
    assert frame.count() == 10

    code, text, error = call("replay", out, "--rename", f"{topic}={back}", "--subscription", "held", *url)
    assert (code, "at least once" in error) == (0, True)
    assert same(exported(topics, back)) == same(exported(topics, topic))
    code, _, error = call("replay", out, "--rename", f"{topic}={back}", *url)
    assert (code, "holds messages already" in error) == (1, True)
    (path,) = out.glob("run=000002/**/*.parquet")
    path.write_bytes(path.read_bytes()[:-50] + bytes(50))
    code, _, error = call("replay", out, "--rename", f"{topic}={topic}-bad", *url)
    assert (code, "is damaged" in error, path.name in error) == (1, True, True)
    with pytest.raises(PipelineError, match="is not there"):
        exported(topics, f"{topic}-bad")
    (out / MANIFEST).write_text("{}")
    assert "is not the manifest of an export" in call("replay", out, *url)[2]
    assert (
        "no broker answers"
        in call("export", topic, "--out", tmp_path / "x", "--url", "pulsar://127.0.0.1:1")[2]
    )


def test_a_file_is_what_the_manifest_says_or_named(tmp_path: Path) -> None:
    from geminga.pipeline.export.manifest import ExportedFile

    (tmp_path / "a").write_bytes(b"123456789")
    verify(Files(), str(tmp_path), ExportedFile("a", 9, 0xE3069283, 0, {}))
    for file in (
        ExportedFile("a", 8, 0xE3069283, 0, {}),
        ExportedFile("a", 9, 1, 0, {}),
        ExportedFile("b", 0, 0, 0, {}),
    ):
        with pytest.raises(CorruptData, match=str(tmp_path)):
            verify(Files(), str(tmp_path), file)
