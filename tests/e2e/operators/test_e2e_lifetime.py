"""What is kept and what is let go, seen by the official client and in statistics and metrics."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
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
    "brokerDeleteInactiveTopicsFrequencySeconds": "1",
    "managedLedgerMaxEntriesPerLedger": "10",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    "defaultRetentionTimeInMinutes": "-1",
    "defaultRetentionSizeInMB": "-1",
}


OF_ANY_AGE = -1
"""Nothing is older than 0 s, everything than less; as in Pulsar."""


class Started:
    def __init__(self, process: BrokerProcess) -> None:
        endpoints = process.endpoints
        self.admin = Admin(endpoints.web_url)
        self._service_url = endpoints.service_url
        self.client = self.new_client()

    def new_client(self) -> pulsar.Client:
        return pulsar.Client(
            self._service_url,
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
    with BrokerProcess(tmp_path_factory.mktemp("lifetime") / "data", settings=SETTINGS) as process:
        made = Started(process)
        yield made
        made.client.close()


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
    eventually(lambda: started.entries(topic) == 5)


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
    eventually(lambda: not started.admin.stats(topic)["publishers"])
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
    eventually(lambda: started.admin.backlog(topic, "s") < 35)
    assert 14 <= started.admin.backlog(topic, "s") <= 17


def test_a_quota_reaches_a_topic_that_nobody_has_used_since_the_restart(tmp_path: Path) -> None:
    topic = "persistent://public/default/left"
    with BrokerProcess(tmp_path / "data", settings=SETTINGS) as process:
        before = Started(process)
        fill(before, topic)
        before.client.close()
    with BrokerProcess(tmp_path / "data", settings=SETTINGS) as process:
        admin = Admin(process.endpoints.web_url)
        quota = {"limitSize": 1, "policy": "consumer_backlog_eviction"}
        assert admin.post("/admin/v2/namespaces/public/default/backlogQuota", quota).status == 204
        [event] = eventually(lambda: admin.get("/geminga/events?kind=backlog-evicted").json())
        told = (event["topic"], event["text"], event["counts"])
        assert told == (topic, "destination_storage", {"entries": 35})


def test_a_topic_that_nobody_uses_is_gone_and_comes_back_empty(started: Started, topic: str) -> None:
    path = f"/admin/v2/{topic_path(topic)}"
    producer = started.producer(topic)
    retention = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    assert started.admin.post(f"{path}/retention", retention).status == 204
    producer.send(b"for nobody")
    producer.close()
    eventually(lambda: started.admin.get(f"{path}/stats").status == 404)
    assert topic not in started.admin.get("/admin/v2/persistent/public/default").json()
    producer = started.producer(topic)
    producer.send(b"once more")
    assert started.entries(topic) == 1
    assert started.admin.get(f"{path}/retention").body == b"", "its policies went with it"
    producer.close()


def test_truncate_under_a_connected_consumer(started: Started, topic: str) -> None:
    fill(started, topic)
    path = f"/admin/v2/{topic_path(topic)}"
    consumer = started.client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    old = [consumer.receive(5000) for _ in range(35)]
    assert started.admin.delete(f"{path}/truncate").status == 204
    statistics = started.admin.subscription(topic, "s")
    assert (statistics["msgBacklog"], statistics["unackedMessages"]) == (0, 0)
    assert started.entries(topic) == 5, "but for the ledger that is written"
    producer = started.producer(topic)
    producer.send(b"new")
    for message in old:
        consumer.acknowledge(message)
    message = consumer.receive(5000)
    assert message.data() == b"new"
    assert started.admin.backlog(topic, "s") == 1
    consumer.acknowledge(message)
    eventually(lambda: started.admin.backlog(topic, "s") == 0)
    consumer.close()
    producer.close()


def test_a_dispatch_rate_is_kept_to_and_counted(started: Started, topic: str) -> None:
    fill(started, topic)
    path = f"/admin/v2/{topic_path(topic)}"
    rate = {"dispatchThrottlingRateInMsg": 25, "dispatchThrottlingRateInByte": -1, "ratePeriodInSecond": 1}
    assert started.admin.post(f"{path}/dispatchRate", rate).status == 204
    started_s = time.monotonic()
    consumer = started.client.subscribe(topic, "s")
    for _ in range(35):
        consumer.receive(5000)
    assert time.monotonic() - started_s >= 0.39, "10 messages beyond the first second's worth"
    statistics = started.admin.subscription(topic, "s")
    assert statistics["dispatchThrottledMsgEventsByTopicLimit"] > 0
    assert statistics["dispatchThrottledMsgEventsBySubscriptionLimit"] == 0
    consumer.close()


def test_who_subscribes_too_often_is_told(started: Started, topic: str) -> None:
    fill(started, topic, 1)
    path = f"/admin/v2/{topic_path(topic)}"
    rate = {"subscribeThrottlingRatePerConsumer": 1, "ratePeriodInSecond": 60}
    assert started.admin.post(f"{path}/subscribeRate", rate).status == 204
    for number in range(2):
        client = started.new_client()
        if number:
            with pytest.raises(pulsar.NotAllowedError):
                client.subscribe(topic, "s", consumer_name="again")
        else:
            client.subscribe(topic, "s", consumer_name="again")
        client.close()
