"""A running broker ships its delivery log to a topic, through trouble and restarts; what was shipped tells an
audit what the files tell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType

from geminga.delivery_log.log_format import Kind, decode_segment, file_name, segments
from geminga.pipeline.audit.audit import audit_logs
from geminga.pipeline.audit.logs import Log
from geminga.pipeline.audit.report import WRONG, Report
from geminga.pipeline.audit.settings import AuditSettings
from geminga.pipeline.audit.topics import TopicLog
from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.waiting import eventually

LOG = "persistent://public/default/ops-log"
AUDITED = "persistent://public/default/work"
SETTINGS = AuditSettings(settle_ms=0, late_ms=600_000)


@pytest.fixture
def shipping(tmp_path: Path) -> Iterator[BrokerProcess]:
    settings = {
        "gemingaDeliveryLogDirectory": str(tmp_path / "log"),
        "gemingaDeliveryLogIntervalMs": "0",
        "gemingaDeliveryLogTopic": LOG,
        "brokerDeleteInactiveTopicsEnabled": "false",
        "defaultRetentionTimeInMinutes": "-1",
        "defaultRetentionSizeInMB": "-1",
    }
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        yield broker


def connected(broker: BrokerProcess) -> pulsar.Client:
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
    return pulsar.Client(broker.endpoints.service_url, logger=logger, operation_timeout_seconds=60)


def work(broker: BrokerProcess, count: int) -> None:
    """Messages are published, half of them acknowledged, and the consumer leaves."""
    client = connected(broker)
    consumer = client.subscribe(AUDITED, "s", ConsumerType.Shared)
    producer = client.create_producer(AUDITED, batching_enabled=False)
    for number in range(count):
        producer.send(b"%d" % number)
    for number in range(count):
        message = consumer.receive(60_000)
        if number % 2:
            consumer.acknowledge(message)
    client.close()


def written(directory: Path) -> list[tuple[int, ...]]:
    """All events in the files: kind, time, entry."""
    found = []
    for path in sorted(directory.glob("deliveries-*.log")):
        for segment in segments(path.read_bytes()):
            found += rows_of(segment)
    return found


def shipped(broker: BrokerProcess) -> list[tuple[int, ...]]:
    """The same from the topic."""
    client = connected(broker)
    reader = client.create_reader(LOG, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found += rows_of(decode_segment(reader.read_next(60_000).data()))
    client.close()
    return found


def rows_of(segment: Any) -> list[tuple[int, ...]]:
    names = ("kind", "time_ms", "ledger_id", "entry_id")
    return list(zip(*(segment.columns[name].tolist() for name in names), strict=True))


def positions(report: Report) -> dict[str, list[Any]]:
    return {what: list(report.positions(what)) for what in WRONG}


def log_of(broker: BrokerProcess) -> TopicLog:
    return TopicLog({"service.url": broker.endpoints.service_url, "topic": LOG})


def streamed(spark: Any, broker: BrokerProcess, directory: Path, events: int) -> Counter[str]:
    """What the audit as a stream tells of the topic, once it has had so many events."""
    from geminga.pipeline.spark.audit_stream import audit_stream, topic_events

    spark.conf.set("spark.sql.shuffle.partitions", "1")
    spark.conf.set(
        "spark.sql.streaming.stateStore.providerClass",
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    )
    options = {"service.url": broker.endpoints.service_url, "topic": LOG, "startingOffsets": "earliest"}
    deltas = audit_stream(topic_events(spark, options), SETTINGS, batch_index_max=0, buckets=2)
    checkpoint = str(directory / "checkpoint")
    writer = deltas.writeStream.format("memory").queryName("deltas").option("checkpointLocation", checkpoint)
    query = writer.start()
    found: Counter[str] = Counter()

    def all_are_told() -> bool:
        assert query.isActive, query.exception()
        found.clear()
        for row in spark.table("deltas").collect():
            found[row["what"]] += row["count"]
        return found["published"] + found["dispatched"] >= events

    try:
        eventually(all_are_told, timeout_s=120)
    finally:
        query.stop()
        spark.conf.set("spark.sql.shuffle.partitions", "2")
    return found


def test_what_is_shipped_tells_what_the_files_tell(
    shipping: BrokerProcess, spark: Any, tmp_path: Path
) -> None:
    from geminga.pipeline.spark.audit import audit

    work(shipping, 40)
    shipping.kill()
    shipping.start()
    work(shipping, 20)
    shipping.stop()
    shipping.start()
    work(shipping, 10)
    eventually(lambda: shipped(shipping) == written(tmp_path / "log"), timeout_s=60)
    kinds = [row[0] for row in shipped(shipping)]
    assert kinds.count(Kind.OPENED) == 3
    assert kinds.count(Kind.CLOSED) == 1
    assert kinds.count(Kind.PUBLISHED) == 70
    of_files = audit_logs([Log(str(tmp_path / "log"))], SETTINGS)
    of_topic = audit_logs([log_of(shipping)], SETTINGS)
    on_spark = audit(spark, [log_of(shipping)], SETTINGS)
    for report in (of_topic, on_spark):
        assert report.totals.equals(of_files.totals)
        assert report.minutes.equals(of_files.minutes)
        assert positions(report) == positions(of_files)
        assert report.incomplete == of_files.incomplete
    # The topic of the log is not in the log.
    assert set(of_files.totals["topic"].to_pylist()) == {AUDITED}
    assert of_files.wrong == 0
    (row,) = of_files.totals.to_pylist()
    told = streamed(spark, shipping, tmp_path, row["published"] + row["dispatched"])
    same = ("published", "dispatched", "redelivered", "repeated", "duplicated", "early", "reordered")
    assert {what: told[what] for what in same} == {what: row[what] for what in same}


def test_shipping_goes_on_when_its_topic_is_there_again(shipping: BrokerProcess, tmp_path: Path) -> None:
    web = Admin(shipping.endpoints.web_url)
    work(shipping, 10)
    eventually(lambda: shipped(shipping) == written(tmp_path / "log"), timeout_s=60)
    before = len(written(tmp_path / "log"))
    assert web.post(f"/admin/v2/{topic_path(LOG)}/terminate").status < 300
    work(shipping, 10)
    eventually(lambda: "cannot be shipped" in shipping.log_path.read_text(), timeout_s=60)
    assert shipping.log_path.read_text().count("cannot be shipped") == 1
    # Terminated for good; deleted, it is made anew, and begins where shipping had stopped.
    assert web.delete(f"/admin/v2/{topic_path(LOG)}?force=true").status < 300
    eventually(lambda: shipped(shipping) == written(tmp_path / "log")[before:], timeout_s=60)
    assert len(shipped(shipping)) > 30


def test_what_was_dropped_before_it_was_shipped_is_said(shipping: BrokerProcess, tmp_path: Path) -> None:
    work(shipping, 10)
    eventually(lambda: shipped(shipping) == written(tmp_path / "log"), timeout_s=60)
    web = Admin(shipping.endpoints.web_url)
    assert web.post(f"/admin/v2/{topic_path(LOG)}/terminate").status < 300
    for _ in range(2):
        shipping.stop()
        shipping.start()
        work(shipping, 10)
    shipping.stop()
    for number in (1, 2):
        (tmp_path / "log" / file_name(number)).unlink()
    shipping.start()
    web = Admin(shipping.endpoints.web_url)
    assert web.delete(f"/admin/v2/{topic_path(LOG)}?force=true").status < 300
    eventually(lambda: Kind.OPENED in {row[0] for row in shipped(shipping)}, timeout_s=60)
    assert [row[0] for row in shipped(shipping)][:2] == [Kind.MISSED, Kind.OPENED]
    report = audit_logs([log_of(shipping)], SETTINGS)
    assert "the broker could not log some events; how many is not known" in report.incomplete
