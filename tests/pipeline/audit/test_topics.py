"""Audits of logs that are in topics: events in JSON, with a schema, or as segments of a delivery log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from pulsar import schema as pulsar_schema

from geminga.cli.main import main
from geminga.delivery_log.log_format import Kind, encode_segment
from geminga.pipeline.audit.audit import audit_events, audit_logs
from geminga.pipeline.audit.events import SCHEMA, WrongLog, from_arrow
from geminga.pipeline.audit.report import WRONG, Report
from geminga.pipeline.audit.settings import AuditSettings
from geminga.pipeline.audit.topics import TopicLog, plan_topics, topic_chunks
from tests.e2e.broker_process import Endpoints
from tests.pipeline.conftest import Topics

Row = dict[str, Any]
AUDITED = "persistent://public/default/t"
START_MS = 1_700_000_040_000
SETTINGS = AuditSettings(settle_ms=0)


class Event(pulsar_schema.Record):  # type: ignore[misc]
    kind = pulsar_schema.String()
    time_ms = pulsar_schema.Long()
    topic = pulsar_schema.String()
    subscription = pulsar_schema.String(default=None, required_default=True)
    ledger_id = pulsar_schema.Long()
    entry_id = pulsar_schema.Long()
    publish_time_ms = pulsar_schema.Long(default=None, required_default=True)


def rows() -> list[Row]:
    """100 published; 10, 40 and 70 never delivered, 20 twice, 30 late."""
    found: list[Row] = []
    for i in range(100):
        row = {"time_ms": START_MS + i, "topic": AUDITED, "ledger_id": 7, "entry_id": i}
        found.append(row | {"kind": "published"})
        if i not in (10, 40, 70):
            row |= {"kind": "dispatched", "subscription": "s", "publish_time_ms": START_MS + i}
            row["time_ms"] += 2_000 if i == 30 else 1
            found += [row] * (2 if i == 20 else 1)
    return found


def wrong(report: Report) -> dict[str, list[int]]:
    found = {what: sorted(place[3] for place in report.positions(what)) for what in WRONG}
    return {what: places for what, places in found.items() if places}


EXPECTED = {"lost": [10, 40, 70], "duplicated": [20], "late": [30]}


def log(broker: Endpoints, topic: str, kind: str = "", **more: str) -> TopicLog:
    return TopicLog({"service.url": broker.service_url, "topic": topic} | more, kind)


def as_json(events: list[Row]) -> dict[str, list[bytes]]:
    return {"value": [json.dumps(row).encode() for row in events]}


def test_events_in_json(broker: Endpoints, topics: Topics, topic: str) -> None:
    topics.write(topic, as_json(rows()), batchRows="9")
    report = audit_logs([log(broker, topic)], SETTINGS)
    assert wrong(report) == EXPECTED
    events = from_arrow(pa.Table.from_pylist(rows(), SCHEMA), name="test")
    expected = audit_events([events], SETTINGS)
    assert report.totals.equals(expected.totals)
    assert report.minutes.equals(expected.minutes)


def test_producers_and_consumers_with_topics_of_their_own(
    broker: Endpoints, topics: Topics, topic: str
) -> None:
    for kind in ("published", "dispatched"):
        some = [{k: v for k, v in row.items() if k != "kind"} for row in rows() if row["kind"] == kind]
        topics.write(f"{topic}-{kind}", as_json(some))
    logs = [log(broker, f"{topic}-{kind}", kind) for kind in ("published", "dispatched")]
    assert wrong(audit_logs(logs, SETTINGS)) == EXPECTED


@pytest.mark.parametrize("schema", [pulsar_schema.AvroSchema, pulsar_schema.JsonSchema])
def test_events_with_a_schema(broker: Endpoints, client: pulsar.Client, topic: str, schema: Any) -> None:
    producer = client.create_producer(topic, schema=schema(Event))
    for row in rows():
        producer.send_async(Event(**row), None)
    producer.flush()
    producer.close()
    assert wrong(audit_logs([log(broker, topic)], SETTINGS)) == EXPECTED


def test_segments_of_a_brokers_log(broker: Endpoints, topics: Topics, topic: str) -> None:
    kinds = {"published": Kind.PUBLISHED, "dispatched": Kind.DISPATCHED}
    segments = []
    for number, part in enumerate((rows()[:50], rows()[50:])):
        columns = {
            "kind": [kinds[row["kind"]] for row in part],
            "topic": [0] * len(part),
            "subscription": [0 if "subscription" in row else -1 for row in part],
            **{
                name: [row.get(name, 0) for row in part]
                for name in ("time_ms", "ledger_id", "entry_id", "publish_time_ms")
            },
        }
        segments.append(encode_segment(number, columns, topics=[AUDITED], subscriptions=["s"]))
    topics.write(topic, {"value": segments}, batchRows="1")
    assert wrong(audit_logs([log(broker, topic)], SETTINGS)) == EXPECTED
    damaged = bytearray(segments[0])
    damaged[100] ^= 1
    topics.write(topic, {"value": [bytes(damaged)]})
    with pytest.raises(WrongLog, match=rf"{topic}: row 2, counted from 0: a damaged segment.*--leave-out"):
        audit_logs([log(broker, topic)], SETTINGS)
    report = audit_logs([log(broker, topic)._replace(leaves_out=True)], SETTINGS)
    assert wrong(report) == EXPECTED


def test_chunks_are_the_same_whenever_they_are_read(broker: Endpoints, topics: Topics, topic: str) -> None:
    topics.write(topic, as_json(rows()), batchRows="3")
    (piece,) = plan_topics(log(broker, topic, splitsPerPartition="1"))
    read = list(topic_chunks(piece, rows_max=64))
    assert [chunk.length for chunk in read] == [64, 64, 64, len(rows()) - 192]
    places = [chunk.entry_id.tolist() for chunk in read]
    assert [place for some in places for place in some] == [row["entry_id"] for row in rows()]
    assert places == [chunk.entry_id.tolist() for chunk in topic_chunks(piece, rows_max=64)]


def test_what_is_no_event_is_named(broker: Endpoints, topics: Topics, topic: str) -> None:
    topics.write(topic, {"value": [b"[1, 2"]})
    with pytest.raises(
        WrongLog, match=rf"{topic}: row 0, counted from 0: a message that is no event in JSON"
    ):
        audit_logs([log(broker, topic)])
    topics.write(f"{topic}-2", as_json([{"kind": "published", "topic": AUDITED, "ledger_id": 1}]))
    with pytest.raises(WrongLog, match=rf"{topic}-2: no column time_ms"):
        audit_logs([log(broker, f"{topic}-2")])
    topics.write(f"{topic}-3", as_json([rows()[0] | {"kind": "made"}]))
    with pytest.raises(WrongLog, match=rf"{topic}-3: row 0, counted from 0: unknown kind 'made'"):
        audit_logs([log(broker, f"{topic}-3")])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"hello", "no event in JSON: it is not JSON"),
        (b"[1, 2]", "no event in JSON"),
        (b'{"kind": "published", "time_ms": "now"}', "no event in JSON: field 'time_ms' does not fit"),
        (None, "no event in JSON: it has no value"),
        (b"null", "unknown kind None"),
    ],
)
def test_messages_that_are_no_events_are_left_out_if_told_so(
    broker: Endpoints, topics: Topics, topic: str, value: bytes | None, said: str
) -> None:
    events = as_json(rows())["value"]
    topics.write(topic, {"value": [*events[:50], value, *events[50:], value]}, batchRows="30")
    with pytest.raises(WrongLog, match=rf"{topic}: row 50, counted from 0.*{said}.*--leave-out-malformed"):
        audit_logs([log(broker, topic)], SETTINGS)
    report = audit_logs([log(broker, topic)._replace(leaves_out=True)], SETTINGS)
    assert wrong(report) == EXPECTED
    (told,) = [line for line in report.incomplete if "malformed" in line]
    assert "left out (2), such as" in told
    assert said in told


def test_the_command_reads_topics(
    broker: Endpoints, topics: Topics, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topics.write(topic, as_json(rows()))
    arguments = ["--url", broker.service_url, "--settle", "0s", "--master", "none"]
    assert main(["pipeline", "audit", topic, *arguments]) == 1
    assert "lost: 7:10, 7:40, 7:70" in capsys.readouterr().out


def test_spark_reads_topics(spark: Any, broker: Endpoints, topics: Topics, topic: str) -> None:
    from geminga.pipeline.spark.audit import audit

    topics.write(topic, as_json(rows()), batchRows="2")
    told: list[str] = []
    report = audit(spark, [log(broker, topic, splitsPerPartition="3")], SETTINGS, progress=told.append)
    assert wrong(report) == EXPECTED
    assert told[0] == "topics (1) in 3 pieces"


@pytest.mark.parametrize("has_schema", [False, True])
def test_a_stream_of_events_from_topics(
    spark: Any,
    broker: Endpoints,
    topics: Topics,
    client: pulsar.Client,
    topic: str,
    has_schema: bool,
    tmp_path: Path,
) -> None:
    from geminga.pipeline.spark.audit_stream import topic_events

    if has_schema:
        producer = client.create_producer(topic, schema=pulsar_schema.AvroSchema(Event))
        producer.send(Event(**rows()[0]))
        producer.send(Event(**rows()[1]))
    else:
        topics.write(topic, as_json(rows()[:2]))
    options = {"service.url": broker.service_url, "topic": topic, "startingOffsets": "earliest"}
    writer = topic_events(spark, options).writeStream.format("parquet").trigger(availableNow=True)
    writer.option("checkpointLocation", str(tmp_path / "state")).start(
        str(tmp_path / "out")
    ).awaitTermination()
    found = spark.read.parquet(str(tmp_path / "out")).toArrow().to_pylist()
    assert [{n: v for n, v in row.items() if v is not None} for row in found] == rows()[:2]
    assert list(found[0]) == SCHEMA.names
