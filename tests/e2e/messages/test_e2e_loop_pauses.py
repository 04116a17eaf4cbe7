"""Messages share turns of the loop: those of many publishers with few each, and of one at full speed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import cycle

import pulsar

from tests.e2e.admin_http import Admin
from tests.e2e.metrics.pages import page_of
from tests.e2e.waiting import eventually, receive_count

PUBLISHERS = 100


def pauses(admin: Admin) -> float:
    return page_of(admin.get("/metrics").body.decode()).value("geminga_loop_pauses_total")


def send_in_turns(publishers: Iterator[pulsar.Producer], count: int) -> None:
    """About one in each millisecond."""
    pause = threading.Event()
    for _ in range(count):
        next(publishers).send_async(b"x", lambda result, _: None)
        pause.wait(0.001)


def test_messages_of_many_publishers_are_waited_for_and_all_come(
    admin: Admin, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    producers = [client.create_producer(topic, batching_enabled=False) for _ in range(PUBLISHERS)]
    publishers = cycle(producers)
    before, sent = pauses(admin), 0

    def has_paused() -> bool:
        nonlocal sent
        send_in_turns(publishers, 200)
        sent += 200
        return pauses(admin) > before

    eventually(has_paused, what="a pause")
    receive_count(consumer, sent)


def test_a_publisher_at_full_speed_is_waited_for_and_all_come(
    admin: Admin, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=False, block_if_queue_full=True)
    before, sent = pauses(admin), 0

    def has_paused() -> bool:
        nonlocal sent
        for _ in range(2000):
            producer.send_async(b"x", lambda result, _: None)
        sent += 2000
        return pauses(admin) > before

    eventually(has_paused, what="a pause")
    receive_count(consumer, sent)


def test_a_publisher_that_waits_for_each_receipt_causes_no_pause(
    admin: Admin, client: pulsar.Client, topic: str
) -> None:
    producer = client.create_producer(topic, batching_enabled=False)
    before = pauses(admin)
    for _ in range(500):
        producer.send(b"x")
    assert pauses(admin) == before
