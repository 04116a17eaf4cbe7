"""The index that a broker has when no setting names one: buckets, from the first delayed message on and not
before; the way to the index in memory, and back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType

from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.waiting import eventually, now_ms, payloads, receive_count

pytestmark = pytest.mark.geminga_only
Make = Callable[..., pulsar.Client]
TOPIC = "persistent://public/default/default-index"
IN_MEMORY = {
    "delayedDeliveryTrackerFactoryClassName": "org.apache.pulsar.broker.delayed."
    "InMemoryDelayedDeliveryTrackerFactory"
}
SOON_MS = 2000
FAR_MS = 3_600_000


def summary(web: Admin) -> Any:
    return web.get(f"/geminga/delayed/{topic_path(TOPIC)}/subscription/s").json()


def sealed(web: Admin) -> int:
    """How many messages are in buckets on the bookie."""
    listed = web.get(f"/geminga/delayed/{topic_path(TOPIC)}/subscription/s/buckets").json()
    return sum(bucket["messages"] for bucket in listed if bucket["ledgerId"] is not None)


def publish_far(client: pulsar.Client, count: int) -> None:
    producer = client.create_producer(TOPIC)
    due_ms = now_ms() + FAR_MS
    for number in range(count):
        producer.send_async(b"far %d" % number, lambda *_: None, deliver_at=due_ms + number)
    producer.flush()
    producer.close()


def test_back_in_memory_buckets_are_forgotten_and_by_default_they_are_made_again(
    tmp_path: Path, make_client: Make
) -> None:
    """A broker with buckets is killed; without them nothing that waited is lost, and none comes early."""
    small = {"delayedDeliveryMinIndexCountPerBucket": "50"}
    with BrokerProcess(tmp_path / "data", settings=small) as broker:
        web, client = Admin(broker.endpoints.web_url), make_client(broker.endpoints.service_url)
        client.subscribe(TOPIC, "s", ConsumerType.Shared)
        publish_far(client, 120)
        eventually(lambda: sealed(web) >= 100)
        assert summary(web)["keepsBuckets"]
        assert summary(web)["isShared"]
        client.close()
        broker.kill()
    with BrokerProcess(tmp_path / "data", settings={**small, **IN_MEMORY}) as broker:
        web, client = Admin(broker.endpoints.web_url), make_client(broker.endpoints.service_url)
        consumer = client.subscribe(TOPIC, "s", ConsumerType.Shared)
        eventually(lambda: summary(web)["messages"] == 120)
        assert not summary(web)["keepsBuckets"]
        publish_far(client, 30)
        client.create_producer(TOPIC).send(b"soon", deliver_at=now_ms() + SOON_MS)
        assert payloads(receive_count(consumer, 1)) == [b"soon"]
        eventually(lambda: summary(web)["messages"] == 150)
        client.close()
        assert broker.stop() == 0
    with BrokerProcess(tmp_path / "data", settings=small) as broker:
        web, client = Admin(broker.endpoints.web_url), make_client(broker.endpoints.service_url)
        assert sealed(web) == 0, "those of the first broker are gone"
        client.subscribe(TOPIC, "s", ConsumerType.Shared)
        eventually(lambda: summary(web)["messages"] == 150)
        eventually(lambda: sealed(web) >= 100)
        assert summary(web)["keepsBuckets"]
        client.close()


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_ordinary_messages_open_no_index_and_do_not_import_numpy(tmp_path: Path, make_client: Make) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        maps = Path(f"/proc/{broker.pid}/maps")
        web, client = Admin(broker.endpoints.web_url), make_client(broker.endpoints.service_url)
        consumer = client.subscribe(TOPIC, "s", ConsumerType.Shared)
        producer = client.create_producer(TOPIC)
        for number in range(10):
            producer.send(b"%d" % number)
        for message in receive_count(consumer, 10):
            consumer.acknowledge(message)
        assert summary(web)["messages"] == 0
        assert "numpy" not in maps.read_text()
        producer.send(b"soon", deliver_at=now_ms() + SOON_MS)
        assert payloads(receive_count(consumer, 1)) == [b"soon"]
        assert "numpy" in maps.read_text()
        assert summary(web)["keepsBuckets"]
