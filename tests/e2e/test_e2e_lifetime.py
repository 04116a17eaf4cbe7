"""What is kept and what is let go, seen by the official client and in statistics and metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest

from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.waiting import eventually

pytestmark = pytest.mark.geminga_only
SETTINGS = {
    "retentionCheckIntervalInSeconds": "1",
    "backlogQuotaCheckIntervalInSeconds": "1",
    "managedLedgerMaxEntriesPerLedger": "10",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}


OF_ANY_AGE = -1
"""Nothing is older than 0 s, everything than less; as in Pulsar."""


class Started:
    def __init__(self, process: BrokerProcess) -> None:
        endpoints = process.start()
        self.admin = Admin(endpoints.web_url)
        self.client = pulsar.Client(
            endpoints.service_url,
            operation_timeout_seconds=3,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )

    def producer(self, topic: str, **options: Any) -> pulsar.Producer:
        return self.client.create_producer(topic, batching_enabled=False, **options)

    def entries(self, topic: str) -> int:
        path = f"/admin/v2/{topic_path(topic)}/internalStats"
        return int(self.admin.get(path).json()["numberOfEntries"])


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    process = BrokerProcess(tmp_path_factory.mktemp("lifetime") / "data", settings=SETTINGS)
    made = Started(process)
    yield made
    made.client.close()
    assert process.stop() == 0


def fill(started: Started, topic: str, messages: int = 35) -> None:
    started.client.subscribe(topic, "s").close()
    producer = started.producer(topic)
    for _ in range(messages):
        producer.send(b"x" * 10)
    producer.close()


def test_the_brokers_retention_holds_until_the_topic_says_otherwise(started: Started, topic: str) -> None:
    fill(started, topic)
    path = f"/admin/v2/{topic_path(topic)}"
    assert started.admin.post(f"{path}/subscription/s/skip_all").status == 204
    assert started.entries(topic) == 35
    retention = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    assert started.admin.post(f"{path}/retention", retention).status == 204
    eventually(lambda: started.entries(topic) == 5, 10)


def test_expiry_is_seen_in_statistics_and_metrics(started: Started, topic: str) -> None:
    fill(started, topic, 7)
    path = f"/admin/v2/{topic_path(topic)}"
    assert started.admin.post(f"{path}/subscription/s/expireMessages/{OF_ANY_AGE}").status == 204
    subscription = started.admin.subscription(topic, "s")
    assert (subscription["msgBacklog"], subscription["totalMsgExpired"]) == (0, 7)
    assert subscription["lastExpireTimestamp"] > 0
    metrics = started.admin.get("/metrics/").text
    found = re.search(
        rf'^pulsar_subscription_total_msg_expired{{[^}}]*"{topic}"[^}}]*}} (\S+)', metrics, re.M
    )
    assert found is not None
    assert float(found[1]) == 7
    again = started.admin.post(f"{path}/subscription/s/expireMessages/{OF_ANY_AGE}")
    assert again.status == 409
    assert again.json()["reason"].startswith(f"Expire message by timestamp not issued on topic {topic}")


def test_a_consumer_does_not_get_what_has_expired(started: Started, topic: str) -> None:
    fill(started, topic, 5)
    path = f"/admin/v2/{topic_path(topic)}"
    assert started.admin.post(f"{path}/subscription/s/expireMessages/{OF_ANY_AGE}").status == 204
    consumer = started.client.subscribe(topic, "s")
    started.producer(topic).send(b"young")
    assert consumer.receive(5000).data() == b"young"
    consumer.close()


def test_a_full_backlog_sends_producers_away_and_lets_them_come_back(started: Started, topic: str) -> None:
    fill(started, topic)
    producer = started.producer(topic, send_timeout_millis=30_000)
    path = f"/admin/v2/{topic_path(topic)}"
    quota = {"limitSize": 1000, "policy": "producer_request_hold"}
    assert started.admin.post(f"{path}/backlogQuota", quota).status == 204
    assert started.admin.stats(topic)["backlogQuotaLimitSize"] == 1000
    eventually(lambda: not started.admin.stats(topic)["publishers"], 10)
    with pytest.raises(pulsar.PulsarException):
        started.producer(topic)
    assert started.admin.post(f"{path}/subscription/s/skip_all").status == 204
    producer.send(b"held until there was room")
    producer.close()


def test_eviction_leaves_nine_tenths_of_the_quota(started: Started, topic: str) -> None:
    fill(started, topic)
    size = started.admin.stats(topic)["storageSize"]
    quota = {"limitSize": size // 2, "policy": "consumer_backlog_eviction"}
    path = f"/admin/v2/{topic_path(topic)}"
    assert started.admin.post(f"{path}/backlogQuota", quota).status == 204
    eventually(lambda: started.admin.backlog(topic, "s") < 35, 10)
    assert 14 <= started.admin.backlog(topic, "s") <= 17
