"""The log of a broker that was killed and started again, audited: nothing is lost, nothing is invented."""

from __future__ import annotations

import datetime
import threading
from pathlib import Path

import pulsar
from pulsar import ConsumerType

from geminga.delivery_log.log_format import Kind, segments
from geminga.pipeline.audit.audit import audit_logs
from geminga.pipeline.audit.logs import Log
from geminga.pipeline.audit.settings import AuditSettings
from tests.e2e.broker_process import BrokerProcess

TOPIC = "persistent://public/default/audited"


def published_in(directory: Path) -> int:
    found = [segment for path in sorted(directory.iterdir()) for segment in segments(path.read_bytes())]
    return sum(int((segment.columns["kind"] == Kind.PUBLISHED).sum()) for segment in found)


def test_a_killed_brokers_log_tells_of_no_loss(tmp_path: Path) -> None:
    # Not strict, messages may leave up to a tick early, and the audit counts to the millisecond.
    settings = {
        "gemingaDeliveryLogDirectory": str(tmp_path / "log"),
        "isDelayedDeliveryDeliverAtTimeStrict": "true",
    }
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
        client = pulsar.Client(broker.endpoints.service_url, logger=logger, operation_timeout_seconds=60)
        consumer = client.subscribe(TOPIC, "s", consumer_type=ConsumerType.Shared, consumer_name="c")
        producer = client.create_producer(
            TOPIC, batching_enabled=True, batching_max_messages=7, batching_max_publish_delay_ms=60_000
        )
        entries = set()

        def receipted(result: object, message_id: pulsar.MessageId) -> None:
            entries.add((message_id.ledger_id(), message_id.entry_id()))

        for number in range(700):
            later = datetime.timedelta(milliseconds=1500) if number % 5 == 0 else None
            producer.send_async(b"%d" % number, receipted, deliver_after=later)
        producer.flush()
        got = set()
        while len(got) < 300:
            message = consumer.receive(60_000)
            got.add(message.data())
            if len(got) % 2:
                consumer.acknowledge(message)
        # The log is written later than what it tells of: what a kill takes out of it is unknown to the audit.
        while published_in(tmp_path / "log") < len(entries):
            threading.Event().wait(0.1)
        broker.kill()
        broker.start()
        producer.send_async(b"700", None)
        producer.flush()
        while len(got) < 701:
            message = consumer.receive(60_000)
            got.add(message.data())
            consumer.acknowledge(message)
        client.close()
    report = audit_logs([Log(str(tmp_path / "log"))], AuditSettings(late_ms=120_000))
    (row,) = report.totals.to_pylist()
    wrong = {name: row[name] for name in ("lost", "duplicated", "early", "unknown", "late")}
    assert row["published"] > 100
    assert row["repeated"] + row["redelivered"] > 0
    assert any("without closing its log" in reason for reason in report.incomplete)
    assert wrong == dict.fromkeys(wrong, 0)
