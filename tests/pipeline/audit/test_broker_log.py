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
from geminga.pipeline.audit.report import COUNTS
from geminga.pipeline.audit.settings import AuditSettings
from tests.e2e.admin_http import Admin, topic_path
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


LOOSE = {"isDelayedDeliveryDeliverAtTimeStrict": "false", "acknowledgmentAtBatchIndexLevelEnabled": "true"}


def test_what_the_broker_allows_itself_is_neither_early_nor_double(tmp_path: Path) -> None:
    """A tick, a precision of a subscription's own, a type that does not wait; and what is left of batches
    when their consumer leaves.
    """
    log = tmp_path / "log"
    settings = LOOSE | {"gemingaDeliveryLogDirectory": str(log)}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")
        client = pulsar.Client(broker.endpoints.service_url, logger=logger, operation_timeout_seconds=60)
        types = {"tick": ConsumerType.Shared, "own": ConsumerType.Shared, "single": ConsumerType.Exclusive}
        consumers = {name: client.subscribe(TOPIC, name, of_type) for name, of_type in types.items()}
        path = f"/geminga/delayed/{topic_path(TOPIC)}/subscription/own/precision"
        assert Admin(broker.endpoints.web_url).post(path, {"precisionMs": 3000}).status < 300
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for number in range(40):
            later = datetime.timedelta(milliseconds=1200 + 20 * number)
            producer.send_async(b"%d" % number, None, deliver_after=later)
        producer.flush()
        for consumer in consumers.values():
            for _ in range(40):
                consumer.acknowledge(consumer.receive(60_000))
        leave_batches(client)
        client.close()
    report = audit_logs([Log(str(log))], AuditSettings(late_ms=120_000))
    rows = {row["subscription"]: row for row in report.totals.to_pylist()}
    assert report.wrong == 0
    assert {name: rows[name]["dispatched"] for name in types} == dict.fromkeys(types, 40)
    # The consumer that took over got what was left of the four batches.
    assert (rows["leaving"]["repeated"], rows["leaving"]["acked"]) == (4, 4)
    exactly = audit_logs([Log(str(log))], AuditSettings(late_ms=120_000, early_ms=0))
    early = {row["subscription"]: row["early"] for row in exactly.totals.to_pylist()}
    assert all(early[name] > 0 for name in types)


def leave_batches(client: pulsar.Client) -> None:
    """A consumer acknowledges a third of each of four batches of 50 and leaves; another takes the rest."""
    topic = f"{TOPIC}-left"

    def subscribed() -> pulsar.Consumer:
        return client.subscribe(topic, "leaving", ConsumerType.Shared, batch_index_ack_enabled=True)

    first = subscribed()
    producer = client.create_producer(
        topic, batching_enabled=True, batching_max_messages=50, batching_max_publish_delay_ms=60_000
    )
    for number in range(200):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    for number in range(200):
        message = first.receive(60_000)
        if number % 3 == 0:
            first.acknowledge(message)
    first.close()
    second = subscribed()
    for _ in range(200 - 67):
        second.acknowledge(second.receive(60_000))
    second.close()


MOVED = 300


def story(directory: Path, unit: datetime.timedelta, *arguments: str) -> dict[str, dict[str, int]]:
    """What an audit counts, by subscription: each of 300 messages is due at a time of its own, four that are
    not delayed come again after a restart or a negative acknowledgement, and one subscription is left alone.
    """
    log = directory / "log"
    settings = {
        "gemingaDeliveryLogDirectory": str(log),
        "isDelayedDeliveryDeliverAtTimeStrict": "true",
    }
    with BrokerProcess(directory / "data", settings=settings, arguments=arguments) as broker:
        logger = pulsar.FileLogger(pulsar.LoggerLevel.Error, "/dev/null")

        def joined() -> tuple[pulsar.Client, pulsar.Consumer]:
            client = pulsar.Client(broker.endpoints.service_url, logger=logger, operation_timeout_seconds=60)
            return client, client.subscribe(
                TOPIC, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=10
            )

        client, consumer = joined()
        client.subscribe(TOPIC, "alone", ConsumerType.Shared).close()
        producer = client.create_producer(TOPIC, batching_enabled=False)
        for _ in range(4):
            producer.send(b"now")
        taken = [consumer.receive(60_000) for _ in range(4)]
        consumer.negative_acknowledge(taken[0])
        assert consumer.receive(60_000).redelivery_count() == 1
        for number in range(MOVED):
            # Not in due order: a step of a move delivers in the order of the topic.
            later = (number * 7 % MOVED + 1) * unit
            producer.send_async(b"%d" % number, None, deliver_after=later)
        producer.flush()
        client.close()
        broker.stop()
        broker.start()
        client, consumer = joined()
        if arguments:
            length_ms = (MOVED + 1) * (unit // datetime.timedelta(milliseconds=1))
            moved = Admin(broker.endpoints.web_url).post("/geminga/clock", {"ms": length_ms}).json()
            assert not moved["is_exact"], "some of the stops are steps"
            assert moved["unfinished"] == []
        for _ in range(MOVED + 4):
            consumer.acknowledge(consumer.receive(60_000))
        client.close()
    report = audit_logs([Log(str(log))], AuditSettings(settle_ms=0, late_ms=0 if arguments else 120_000))
    assert report.incomplete == []
    return {row["subscription"]: {name: row[name] for name in COUNTS} for row in report.totals.to_pylist()}


def test_a_virtual_clock_tells_the_same_story(tmp_path: Path) -> None:
    for name in ("real", "virtual"):
        (tmp_path / name).mkdir()
    real = story(tmp_path / "real", datetime.timedelta(milliseconds=1))
    virtual = story(tmp_path / "virtual", datetime.timedelta(hours=1), "--clock", "virtual")
    assert virtual == real
    assert (real["s"]["published"], real["s"]["acked"], real["s"]["redelivered"]) == (304, 304, 1)
    assert (real["alone"]["lost"], real["s"]["late"]) == (304, 0)
