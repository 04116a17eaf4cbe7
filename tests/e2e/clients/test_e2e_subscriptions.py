"""The subscription types Exclusive, Failover and Shared, permits, and what a subscription remembers."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition

from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.waiting import (
    assert_quiet,
    eventually,
    payloads,
    place,
    receive,
    receive_count,
    receive_shares,
)

Make = Callable[..., pulsar.Client]
TYPES = [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.Failover, ConsumerType.KeyShared]


def send_numbers(client: pulsar.Client, topic: str, count: int, start: int = 0) -> list[bytes]:
    producer = client.create_producer(topic)
    bodies = [b"%d" % number for number in range(start, start + count)]
    for body in bodies:
        producer.send_async(body, lambda result, message_id: None)
    producer.flush()
    producer.close()
    return bodies


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_each_type_delivers_everything_once_and_in_order_to_one_consumer(
    client: pulsar.Client, topic: str, kind: ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", kind)
    bodies = send_numbers(client, topic, 200)
    assert payloads(receive_count(consumer, 200)) == bodies
    assert_quiet(consumer)


def test_a_second_exclusive_consumer_is_refused(make_client: Make, topic: str) -> None:
    first = make_client().subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        make_client().subscribe(topic, "s")
    client = make_client()
    send_numbers(client, topic, 1)
    assert receive(first).data() == b"0"


def test_an_exclusive_subscription_is_free_after_close(make_client: Make, topic: str) -> None:
    make_client().subscribe(topic, "s").close()
    make_client().subscribe(topic, "s")


def test_an_exclusive_subscription_is_free_after_the_connection_has_gone(
    make_client: Make, topic: str
) -> None:
    first = make_client()
    first.subscribe(topic, "s")
    first.shutdown()

    def take_over() -> bool:
        try:
            make_client().subscribe(topic, "s")
        except pulsar.ConsumerBusy:
            return False
        return True

    eventually(take_over)


@pytest.mark.parametrize("second", TYPES[1:], ids=lambda kind: kind.name)
def test_another_type_is_refused_beside_an_exclusive_consumer(
    make_client: Make, topic: str, second: ConsumerType
) -> None:
    make_client().subscribe(topic, "s")
    with pytest.raises(pulsar.ConsumerBusy):
        make_client().subscribe(topic, "s", second)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (ConsumerType.Shared, ConsumerType.Failover),
        (ConsumerType.Shared, ConsumerType.KeyShared),
        (ConsumerType.Failover, ConsumerType.Shared),
        (ConsumerType.KeyShared, ConsumerType.Shared),
        (ConsumerType.Shared, ConsumerType.Exclusive),
    ],
    ids=lambda kind: kind.name,
)
def test_a_different_type_is_refused_while_consumers_are_connected(
    make_client: Make, topic: str, first: ConsumerType, second: ConsumerType
) -> None:
    make_client().subscribe(topic, "s", first)
    with pytest.raises(pulsar.ConsumerBusy):
        make_client().subscribe(topic, "s", second)


def test_the_type_may_change_when_nobody_is_connected(client: pulsar.Client, topic: str) -> None:
    for kind in TYPES:
        consumer = client.subscribe(topic, "s", kind)
        bodies = send_numbers(client, topic, 3)
        assert payloads(receive_count(consumer, 3)) == bodies
        consumer.close()


def test_two_subscriptions_each_get_everything(client: pulsar.Client, topic: str) -> None:
    left, right = client.subscribe(topic, "left"), client.subscribe(topic, "right", ConsumerType.Shared)
    bodies = send_numbers(client, topic, 20)
    assert payloads(receive_count(left, 20)) == bodies
    assert payloads(receive_count(right, 20)) == bodies


def test_a_subscription_remembers_what_was_acknowledged(make_client: Make, topic: str) -> None:
    first = make_client()
    consumer = first.subscribe(topic, "s")
    bodies = send_numbers(first, topic, 10)
    receive_count(consumer, 4)
    first.close()
    consumer = make_client().subscribe(topic, "s")
    assert payloads(receive_count(consumer, 6)) == bodies[4:]


def test_messages_wait_for_a_subscription_without_consumers(
    make_client: Make, admin: Admin, topic: str
) -> None:
    client = make_client()
    client.subscribe(topic, "s").close()
    bodies = send_numbers(client, topic, 10)
    eventually(lambda: admin.backlog(topic, "s") == 10)
    assert payloads(receive_count(make_client().subscribe(topic, "s"), 10)) == bodies
    eventually(lambda: admin.backlog(topic, "s") == 0)


def test_shared_spreads_messages_over_its_consumers(make_client: Make, topic: str) -> None:
    consumers = [
        make_client().subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=10) for _ in range(3)
    ]
    producer = make_client().create_producer(topic)
    for number in range(30):
        producer.send(b"%d" % number)
    shares = [[int(body) for body in payloads(share)] for share in receive_shares(consumers, 30)]
    assert sorted(number for share in shares for number in share) == list(range(30))
    for share in shares:
        assert len(share) >= 5
        assert share == sorted(share)


def test_a_shared_consumer_that_does_not_read_does_not_stop_the_others(make_client: Make, topic: str) -> None:
    idle = make_client().subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=5)
    busy = make_client().subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=50)
    bodies = send_numbers(make_client(), topic, 100)
    got = payloads(receive_count(busy, 95))
    rest = payloads(receive_count(idle, 5))
    assert_quiet(idle)
    assert sorted(map(int, got + rest)) == sorted(map(int, bodies))


def test_messages_of_a_shared_consumer_that_leaves_go_to_another(make_client: Make, topic: str) -> None:
    leaver = make_client()
    first = leaver.subscribe(topic, "s", ConsumerType.Shared)
    bodies = send_numbers(make_client(), topic, 10)
    receive_count(first, 10, acknowledge=False)
    second = make_client().subscribe(topic, "s", ConsumerType.Shared)
    assert_quiet(second)
    leaver.close()
    messages = receive_count(second, 10)
    assert payloads(messages) == bodies


def first_to_receive(consumers: list[pulsar.Consumer]) -> tuple[pulsar.Consumer, pulsar.Message]:
    """Whichever consumer gets a message first. Pulsar chooses the active one of a topic without partitions by
    a hash of the topic's name, and takes a second to do it."""

    def poll() -> tuple[pulsar.Consumer, pulsar.Message] | None:
        for consumer in consumers:
            try:
                return consumer, consumer.receive(20)
            except pulsar.Timeout:
                continue
        return None

    return eventually(poll)


def test_failover_has_one_active_consumer_until_it_leaves(make_client: Make, topic: str) -> None:
    consumers = [
        make_client().subscribe(topic, "s", ConsumerType.Failover, consumer_name=name) for name in "abc"
    ]
    client = make_client()
    left = set(consumers)
    for turn in range(3):
        bodies = send_numbers(client, topic, 10, start=turn * 10)
        active, message = first_to_receive(list(left))
        active.acknowledge(message)
        assert [message.data(), *payloads(receive_count(active, 9))] == bodies
        left.remove(active)
        for other in left:
            assert_quiet(other, 50)
        active.close()


def test_failover_hands_over_what_was_not_acknowledged(make_client: Make, topic: str) -> None:
    consumers = [
        make_client().subscribe(topic, "s", ConsumerType.Failover, consumer_name=name) for name in "ab"
    ]
    bodies = send_numbers(make_client(), topic, 10)
    active, message = first_to_receive(consumers)
    active.acknowledge(message)
    receive_count(active, 3)
    receive_count(active, 3, acknowledge=False)
    active.close()
    consumers.remove(active)
    messages = receive_count(consumers[0], 6)
    assert payloads(messages) == bodies[4:]


def test_failover_consumers_of_one_topic_are_not_all_active(make_client: Make, topic: str) -> None:
    consumers = [make_client().subscribe(topic, "s", ConsumerType.Failover) for _ in range(3)]
    client = make_client()
    send_numbers(client, topic, 20)
    active, _ = first_to_receive(consumers)
    receive_count(active, 19)
    for consumer in consumers:
        assert_quiet(consumer, 50)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("queue_size", [1, 2, 7])
def test_small_receiver_queues(
    client: pulsar.Client, topic: str, kind: ConsumerType, queue_size: int
) -> None:
    consumer = client.subscribe(topic, "s", kind, receiver_queue_size=queue_size)
    bodies = send_numbers(client, topic, 30)
    assert payloads(receive_count(consumer, 30)) == bodies


def test_no_more_is_sent_than_the_queue_holds(client: pulsar.Client, admin: Admin, topic: str) -> None:
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=10)
    send_numbers(client, topic, 100)
    eventually(lambda: admin.subscription(topic, "s")["unackedMessages"] == 10)
    assert admin.subscription(topic, "s")["consumers"][0]["availablePermits"] == 0
    receive_count(consumer, 100)
    eventually(lambda: admin.subscription(topic, "s")["unackedMessages"] == 0)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared], ids=lambda kind: kind.name)
def test_zero_receiver_queue(client: pulsar.Client, topic: str, kind: ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", kind, receiver_queue_size=0)
    bodies = send_numbers(client, topic, 10)
    for body in bodies:
        message = consumer.receive()
        assert message.data() == body
        consumer.acknowledge(message)


def test_two_consumers_with_zero_queues_share(make_client: Make, topic: str) -> None:
    consumers = [
        make_client().subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=0) for _ in "ab"
    ]
    send_numbers(make_client(), topic, 4)
    got = [consumer.receive().data() for _ in range(2) for consumer in consumers]
    assert sorted(got) == [b"0", b"1", b"2", b"3"]


def test_batches_larger_than_the_queue(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=3)
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for number in range(50):
        producer.send_async(b"%d" % number, lambda result, message_id: None)
    producer.flush()
    assert payloads(receive_count(consumer, 50)) == [b"%d" % number for number in range(50)]


def test_unsubscribe_forgets_the_subscription(client: pulsar.Client, admin: Admin, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    send_numbers(client, topic, 3)
    consumer.unsubscribe()
    assert admin.get(f"/admin/v2/{topic_path(topic)}/subscriptions").json() == []
    again = client.subscribe(topic, "s")
    assert_quiet(again)
    assert receive_count(again, len(send_numbers(client, topic, 2)))


def test_unsubscribe_is_refused_while_others_are_connected(make_client: Make, topic: str) -> None:
    first = make_client().subscribe(topic, "s", ConsumerType.Shared)
    make_client().subscribe(topic, "s", ConsumerType.Shared)
    with pytest.raises(pulsar.PulsarException):
        first.unsubscribe()


def test_consumer_names(client: pulsar.Client, admin: Admin, topic: str) -> None:
    client.subscribe(topic, "s", ConsumerType.Shared, consumer_name="worker-1", properties={"version": "7"})
    client.subscribe(topic, "s", ConsumerType.Shared)
    consumers = admin.subscription(topic, "s")["consumers"]
    assert len(consumers) == 2
    named = next(consumer for consumer in consumers if consumer["consumerName"] == "worker-1")
    assert named["metadata"] == {"version": "7"}


def test_listener_receives_in_order(client: pulsar.Client, topic: str) -> None:
    got: list[bytes] = []
    is_done = threading.Event()

    def on_message(consumer: pulsar.Consumer, message: pulsar.Message) -> None:
        got.append(message.data())
        consumer.acknowledge(message)
        if len(got) == 50:
            is_done.set()

    client.subscribe(topic, "s", message_listener=on_message)
    bodies = send_numbers(client, topic, 50)
    assert is_done.wait(10)
    assert got == bodies


def test_many_topics_in_one_consumer(client: pulsar.Client, topic: str) -> None:
    topics = [f"{topic}-{name}" for name in "abc"]
    consumer = client.subscribe(topics, "s", ConsumerType.Shared)
    for name in topics:
        send_numbers(client, name, 5)
    messages = receive_count(consumer, 15)
    for name in topics:
        mine = [message.data() for message in messages if message.topic_name() == name]
        assert sorted(mine) == [b"0", b"1", b"2", b"3", b"4"]


def test_topics_by_pattern(client: pulsar.Client, topic: str) -> None:
    for name in ("red-1", "red-2", "blue-1"):
        client.create_producer(f"{topic}-{name}")
    consumer = client.subscribe(re.compile(f"{topic}-red-.*"), "s", initial_position=InitialPosition.Earliest)
    for name in ("red-1", "red-2", "blue-1"):
        client.create_producer(f"{topic}-{name}").send(name.encode())
    assert sorted(payloads(receive_count(consumer, 2))) == [b"red-1", b"red-2"]
    assert_quiet(consumer)


def test_a_consumer_gets_what_comes_while_it_waits(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for number in range(20):
        sent = place(producer.send(b"%d" % number))
        message = receive(consumer)
        assert (message.data(), place(message.message_id())) == (b"%d" % number, sent)


def test_closing_a_consumer_twice_is_harmless(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    consumer.close()
    with pytest.raises(pulsar.AlreadyClosed):
        consumer.receive(100)
