"""How many may join a topic, and as what: each limit set while the topic is in use, and in force at once."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pulsar
import pytest

from tests.e2e.admin_http import Admin, topic_path

SHARED = pulsar.ConsumerType.Shared


def set_policy(admin: Admin, topic: str, policy: str, value: Any) -> None:
    """In force on return; the real broker takes a moment."""
    path = f"/admin/v2/{topic_path(topic)}"
    if admin.get(path + "/stats").status == 404:
        assert admin.put(path).status == 204
    assert admin.post(f"{path}/{policy}", value).status == 204
    while admin.get(f"{path}/{policy}").json() != value:
        time.sleep(0.05)  # noqa: TID251 - the real broker tells nobody


def test_producers(admin: Admin, client: pulsar.Client, topic: str) -> None:
    set_policy(admin, topic, "maxProducers", 2)
    first, second = client.create_producer(topic), client.create_producer(topic)
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)
    set_policy(admin, topic, "maxProducers", 1)
    first.send(b"those that are there go on")
    second.close()
    with pytest.raises(pulsar.ProducerBusy):
        client.create_producer(topic)
    set_policy(admin, topic, "maxProducers", 0)
    client.create_producer(topic)


def test_consumers_of_a_topic(admin: Admin, client: pulsar.Client, topic: str) -> None:
    set_policy(admin, topic, "maxConsumers", 1)
    client.subscribe(topic, "a", SHARED)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "b", SHARED)
    set_policy(admin, topic, "maxConsumers", 2)
    client.subscribe(topic, "b", SHARED)


def test_consumers_of_a_subscription(admin: Admin, client: pulsar.Client, topic: str) -> None:
    set_policy(admin, topic, "maxConsumersPerSubscription", 1)
    client.subscribe(topic, "a", SHARED)
    with pytest.raises(pulsar.ConsumerBusy):
        client.subscribe(topic, "a", SHARED)
    client.subscribe(topic, "b", SHARED)
    set_policy(admin, topic, "maxConsumersPerSubscription", 2)
    client.subscribe(topic, "a", SHARED)


def test_subscriptions(admin: Admin, client: pulsar.Client, topic: str) -> None:
    set_policy(admin, topic, "maxSubscriptionsPerTopic", 1)
    client.subscribe(topic, "a", SHARED)
    with pytest.raises(pulsar.NotAllowedError):
        client.subscribe(topic, "b", SHARED)
    with pytest.raises(pulsar.NotAllowedError):
        client.create_reader(topic, pulsar.MessageId.earliest)
    answer = admin.put(f"/admin/v2/{topic_path(topic)}/subscription/c", "earliest")
    assert answer.status == 409
    assert answer.json() == {"reason": f"Exceed the maximum number of subscriptions of the topic: {topic}"}
    client.subscribe(topic, "a", SHARED)


def test_subscription_types(admin: Admin, client: pulsar.Client, topic: str) -> None:
    set_policy(admin, topic, "subscriptionTypesEnabled", ["Shared"])
    with pytest.raises(pulsar.NotAllowedError):
        client.subscribe(topic, "a")
    client.subscribe(topic, "b", SHARED)


def test_unacknowledged_messages_of_a_consumer(admin: Admin, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "a", SHARED)
    set_policy(admin, topic, "maxUnackedMessagesOnConsumer", 3)
    for number in range(10):
        producer.send(b"%d" % number)
    held = [consumer.receive(5000) for _ in range(3)]
    with pytest.raises(pulsar.Timeout):
        consumer.receive(300)
    set_policy(admin, topic, "maxUnackedMessagesOnConsumer", 0)
    for message in held:
        consumer.acknowledge(message)
    assert len([consumer.receive(5000) for _ in range(7)]) == 7


def test_the_longest_delay(admin: Admin, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    delayed = {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 5000}
    set_policy(admin, topic, "delayedDelivery", delayed)
    producer.send(b"x", deliver_after=timedelta(seconds=2))
    assert admin.get(f"/admin/v2/{topic_path(topic)}/delayedDelivery?applied=true").json() == delayed
    refused: list[pulsar.Result] = []
    producer.send_async(b"y", lambda result, _: refused.append(result), deliver_after=timedelta(minutes=1))
    # The client tries again without end after this refusal; the message is not there.
    assert admin.stats(topic)["msgInCounter"] == 1
    assert not refused
