"""What is wrong is told in words that say what to do, on Spark as elsewhere; no output is half-written."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from geminga.bookie.entry_logs.entry_log_format import encode_header
from geminga.bookie.records.file_names import entry_log_path
from geminga.bookie.records.records import pack_records
from geminga.pipeline.audit.events import SCHEMA
from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import Endpoints
from tests.pipeline.conftest import Call, Topics

NOWHERE = "pulsar://127.0.0.1:1"


def said(run: Any) -> str:
    """What is raised."""
    with pytest.raises(Exception) as raised:
        run()
    return str(raised.value)


def trim(topics: Topics, admin: Admin, topic: str) -> None:
    """Let everything go that the topic holds; one message comes after it."""
    assert admin.put(f"/admin/v2/{topic_path(topic)}/unload").status == 204
    topics.write(topic, {"value": [b"new"]})  # into a new ledger: the old one may go
    assert admin.delete(f"/admin/v2/{topic_path(topic)}/truncate").status == 204


# -- topics -----------------------------------------------------------------------------------------------


def reading(spark: Any, url: str, topic: str, **options: str) -> Any:
    return spark.read.format("pulsar").options(**{"service.url": url, "topic": topic}, **options).load()


def streamed(spark: Any, url: str, topic: str, directory: Path, **options: str) -> None:
    """Everything that is there now, as files."""
    at = {"service.url": url, "topic": topic, "startingOffsets": "earliest", "predefinedSubscription": "s"}
    stream = spark.readStream.format("pulsar").options(**at, **options).load()
    writer = stream.writeStream.format("parquet").option("path", str(directory / "out"))
    writer = writer.option("checkpointLocation", str(directory / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def test_a_broker_that_is_down_and_a_topic_that_is_not_there(
    spark: Any, broker: Endpoints, topic: str, tmp_path: Path
) -> None:
    url = broker.service_url
    rows = spark.range(3).selectExpr("cast(id as string) value")
    assert "no broker answers at" in said(lambda: streamed(spark, NOWHERE, topic, tmp_path / "a"))
    assert "is not there; check the name" in said(lambda: streamed(spark, url, topic, tmp_path / "b"))
    assert not list(tmp_path.rglob("*.parquet"))
    to = {"service.url": NOWHERE, "topic": topic, "sendTimeoutMs": "500"}
    writer = rows.write.format("pulsar").mode("append")
    assert "no broker answers at" in said(lambda: writer.options(**to).save())
    elsewhere = {"service.url": url, "topic": topic.replace("/default/", "/nowhere/")}
    assert "/nowhere/" in said(lambda: writer.options(**elsewhere).save())


def test_a_stream_whose_messages_were_trimmed_fails_until_it_may_lose_them(
    spark: Any, broker: Endpoints, topics: Topics, admin: Admin, topic: str, tmp_path: Path
) -> None:
    url = broker.service_url
    topics.write(topic, {"value": [b"a", b"b"]}, batchRows="1")
    streamed(spark, url, topic, tmp_path)
    start = f'{{"{topic}": "{topics.read(topic, "__ledgerId")[0]["__ledgerId"]}:0:0"}}'
    topics.write(topic, {"value": [b"c", b"d"]}, batchRows="1")
    trim(topics, admin, topic)
    assert "failOnDataLoss=false" in said(lambda: streamed(spark, url, topic, tmp_path))
    assert "failOnDataLoss=false" in said(lambda: reading(spark, url, topic, startingOffsets=start).count())
    streamed(spark, url, topic, tmp_path, failOnDataLoss="false")
    rows = spark.read.parquet(str(tmp_path / "out")).collect()
    assert sorted(bytes(row.value) for row in rows) == [b"a", b"b", b"new"]


def test_a_schema_that_changed_between_planning_and_reading(
    spark: Any, broker: Endpoints, topics: Topics, admin: Admin, topic: str
) -> None:
    url, schema = broker.service_url, topic_path(topic).replace("persistent/", "schemas/") + "/schema"

    def register(kind: str) -> None:
        admin.delete(f"/admin/v2/{schema}")
        assert admin.post(f"/admin/v2/{schema}", {"type": kind, "schema": "", "properties": {}}).status == 200

    topics.write(topic, {"value": [struct.pack(">i", 7)]})
    register("INT32")
    planned = reading(spark, url, topic)
    assert dict(planned.dtypes)["value"] == "int"
    register("INT64")
    topics.write(topic, {"value": [struct.pack(">q", 8)]})
    assert "load the table again" in said(planned.collect)
    anew = reading(spark, url, topic)
    assert "a value of 4 bytes where the schema says 8" in said(anew.collect)
    raw = reading(spark, url, topic, rawValue="true").collect()
    assert [len(row.value) for row in raw] == [4, 8]


# -- commands ---------------------------------------------------------------------------------------------


def test_an_export_that_cannot_go_on_stays_as_it_was(
    on_spark: Any, broker: Endpoints, topics: Topics, admin: Admin, topic: str, tmp_path: Path, call: Call
) -> None:
    out, url = tmp_path / "out", ("--url", broker.service_url)
    topics.write(topic, {"value": [b"a", b"b"]}, batchRows="1")
    assert call("export", topic, "--out", out, *url)[0] == 0
    topics.write(topic, {"value": [b"c", b"d"]}, batchRows="1")
    trim(topics, admin, topic)
    before = sorted(out.rglob("*"))
    code, text, error = call("export", "--continue", "--out", out, *url)
    assert (code, text) == (1, "")
    assert "or messages behind it were deleted unread" in error.splitlines()[-1]
    assert "--option unknownLedgerEnd=warn" in error.splitlines()[-1]
    assert "--allow-loss" in error.splitlines()[-1]
    assert sorted(out.rglob("*")) == before
    assert call("export", "--continue", "--allow-loss", "--out", out, *url)[0] == 0
    assert "no broker answers at" in call("replay", out, "--url", NOWHERE)[2]
    code, _, error = call("replay", out, "--namespace", "public/nowhere", *url)
    assert (code, "/nowhere/" in error) == (1, True)
    assert "is not in this export" in call("replay", out, "--topic", f"{topic}-other", *url)[2]


def test_damaged_logs_are_named_and_leave_no_report(on_spark: Any, call: Call, tmp_path: Path) -> None:
    log, out = tmp_path / "log.parquet", tmp_path / "report"
    rows = [
        {"time_ms": 60_000 + n, "topic": "t", "ledger_id": 1, "entry_id": n, "kind": "published"}
        for n in range(500)
    ]
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), log, write_page_checksum=True)
    whole = bytearray(log.read_bytes())
    column = pq.ParquetFile(log).metadata.row_group(0).column(1)
    whole[(column.dictionary_page_offset or column.data_page_offset) + 100] ^= 1
    log.write_bytes(whole)
    code, text, error = call("audit", log, "--out", out)
    assert (code, text) == (1, "")
    assert "log.parquet: damaged" in error.splitlines()[-1]
    assert "take it from a copy" in error.splitlines()[-1]
    assert list(tmp_path.iterdir()) == [log]


def test_a_damaged_entry_log_is_rescued_around_the_damage(on_spark: Any, call: Call, tmp_path: Path) -> None:
    logs, out = tmp_path / "data" / "bookie" / "entry-logs", tmp_path / "out"
    logs.mkdir(parents=True)
    parts = [encode_header(1)]
    pack_records(9, 0, [b"a", b"bb", b"ccc"], parts)
    data = bytearray(b"".join(parts))
    data[-1 - 24 - 4] ^= 1
    Path(entry_log_path(str(logs), 1)).write_bytes(data)
    code, text, _ = call("rescue", "--data-dir", tmp_path / "data", "--out", out)
    assert (code, "26 bytes at offset" in text) == (1, True)
    assert sorted(row["entry_id"] for row in pq.read_table(out).to_pylist()) == [0, 2]
    code, _, error = call("rescue", "--data-dir", tmp_path / "data", "--out", out)
    assert (code, "exists already" in error) == (1, True)
