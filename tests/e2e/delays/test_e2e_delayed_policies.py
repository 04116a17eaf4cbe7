"""What policies of a namespace or a topic do to delayed messages; in force without a restart."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pulsar
import pytest
from pulsar import ConsumerType

from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import Endpoints
from tests.e2e.waiting import assert_quiet, eventually, now_ms, receive

INT32_MAX = 2**31 - 1
Policy = Callable[[Any], None]


@pytest.fixture
def policy(admin: Admin, topic: str) -> Iterator[Policy]:
    """Sets the topic's policy, None takes it away; what was set goes with the test."""
    path = f"/admin/v2/{topic_path(topic)}/delayedDelivery"

    def change(value: Any) -> None:
        answer = admin.delete(path) if value is None else admin.post(path, value)
        assert answer.status in (200, 204), answer

    yield change
    admin.delete(path)


def send_later(producer: pulsar.Producer, delay_ms: int = 60_000) -> None:
    producer.send(b"later", deliver_at=now_ms() + delay_ms)


def test_delays_are_switched_off_and_on_again(
    client: pulsar.Client, admin: Admin, topic: str, policy: Policy
) -> None:
    """As Pulsar's testEnableAndDisableTopicDelayedDelivery."""
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    policy({"active": False, "tickTime": 1000, "maxDeliveryDelayInMillis": 0})
    eventually(lambda: _applied(admin, topic)["active"] is False)
    send_later(producer)
    consumer.acknowledge(receive(consumer, 5000))
    policy({"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 0})
    eventually(lambda: _applied(admin, topic)["active"] is True)
    send_later(producer)
    assert_quiet(consumer)
    policy(None)
    send_later(producer)
    assert_quiet(consumer)
    eventually(lambda: admin.subscription(topic, "s")["msgDelayed"] == 2)


def test_all_is_due_within_an_endless_tick(
    client: pulsar.Client, admin: Admin, topic: str, policy: Policy, broker: Endpoints
) -> None:
    """As Pulsar's testEnableTopicDelayedDelivery; a broker that is strict, as Geminga is, waits."""
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    policy({"active": True, "tickTime": INT32_MAX, "maxDeliveryDelayInMillis": 0})
    eventually(lambda: _applied(admin, topic)["tickTime"] == INT32_MAX)
    send_later(producer)
    if broker.is_geminga:
        eventually(lambda: admin.subscription(topic, "s")["msgDelayed"] == 1)
    else:
        assert receive(consumer, 5000).data() == b"later"


def _applied(admin: Admin, topic: str) -> Any:
    answer = admin.get(f"/admin/v2/{topic_path(topic)}/delayedDelivery?applied=true")
    assert answer.status == 200, answer
    return answer.json()
