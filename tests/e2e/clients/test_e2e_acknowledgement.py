"""Acknowledging: one by one, cumulative, inside batches, negative, by time-out; redelivery and its count."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pulsar
import pytest
from pulsar import ConsumerDeadLetterPolicy, ConsumerType, InitialPosition

from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import Endpoints
from tests.e2e.waiting import (
    assert_quiet,
    eventually,
    now_ms,
    payloads,
    receive,
    receive_available,
    receive_count,
)

Make = Callable[..., pulsar.Client]
TYPES = [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.Failover, ConsumerType.KeyShared]
SHARING = [ConsumerType.Shared, ConsumerType.KeyShared]


def send_numbers(client: pulsar.Client, topic: str, count: int, *, is_batched: bool = False) -> list[bytes]:
    producer = client.create_producer(
        topic, batching_enabled=is_batched, batching_max_publish_delay_ms=60_000
    )
    bodies = [b"%d" % number for number in range(count)]
    for body in bodies:
        producer.send_async(body, lambda result, message_id: None)
    producer.flush()
    producer.close()
    return bodies


@pytest.fixture(scope="module", autouse=True)
def overdue(broker: Endpoints, tmp_path_factory: pytest.TempPathFactory) -> Iterator[pulsar.Consumer]:
    """A consumer that got three messages when this module began and has not acknowledged them since.

    The client's shortest time-out is 10 s: the other tests pass meanwhile.
    """
    log = tmp_path_factory.mktemp("overdue") / "client.log"
    client = pulsar.Client(broker.service_url, logger=pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(log)))
    topic = f"persistent://public/default/overdue-{now_ms()}"
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, unacked_messages_timeout_ms=10_000)
    send_numbers(client, topic, 3)
    receive_count(consumer, 3, acknowledge=False)
    yield consumer
    client.close()


def by_kind(kind: ConsumerType) -> str:
    return kind.name


@pytest.mark.parametrize("kind", TYPES, ids=by_kind)
def test_single_acknowledgements_leave_holes(make_client: Make, topic: str, kind: ConsumerType) -> None:
    first = make_client()
    consumer = first.subscribe(topic, "s", kind)
    send_numbers(first, topic, 10)
    for message in receive_count(consumer, 10, acknowledge=False):
        if int(message.data()) % 3:
            consumer.acknowledge(message)
    first.close()
    again = make_client().subscribe(topic, "s", kind)
    assert payloads(receive_count(again, 4)) == [b"0", b"3", b"6", b"9"]
    assert_quiet(again)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover], ids=by_kind)
def test_cumulative_acknowledgement(make_client: Make, admin: Admin, topic: str, kind: ConsumerType) -> None:
    first = make_client()
    consumer = first.subscribe(topic, "s", kind)
    send_numbers(first, topic, 10)
    messages = receive_count(consumer, 10, acknowledge=False)
    consumer.acknowledge_cumulative(messages[6])
    eventually(lambda: admin.backlog(topic, "s") == 3)
    first.close()
    again = make_client().subscribe(topic, "s", kind)
    assert payloads(receive_count(again, 3)) == [b"7", b"8", b"9"]


@pytest.mark.parametrize("kind", SHARING, ids=by_kind)
def test_cumulative_acknowledgement_is_not_for_sharing_types(
    client: pulsar.Client, topic: str, kind: ConsumerType
) -> None:
    consumer = client.subscribe(topic, "s", kind)
    send_numbers(client, topic, 1)
    with pytest.raises(pulsar.CumulativeAcknowledgementNotAllowedError):
        consumer.acknowledge_cumulative(receive(consumer))


def test_acknowledging_by_id(make_client: Make, admin: Admin, topic: str) -> None:
    client = make_client()
    consumer = client.subscribe(topic, "s")
    send_numbers(client, topic, 2)
    for message in receive_count(consumer, 2, acknowledge=False):
        consumer.acknowledge(message.message_id())
    eventually(lambda: admin.backlog(topic, "s") == 0)


def test_acknowledging_twice_is_harmless(client: pulsar.Client, admin: Admin, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    send_numbers(client, topic, 3)
    messages = receive_count(consumer, 3)
    for message in messages:
        consumer.acknowledge(message)
    eventually(lambda: admin.backlog(topic, "s") == 0)
    send_numbers(client, topic, 1)
    assert receive(consumer).data() == b"0"


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared], ids=by_kind)
def test_a_batch_stays_until_all_of_it_is_acknowledged(
    make_client: Make, admin: Admin, topic: str, kind: ConsumerType
) -> None:
    """Without batch index acknowledgement a batch comes again whole."""
    first = make_client()
    consumer = first.subscribe(topic, "s", kind)
    bodies = send_numbers(first, topic, 10, is_batched=True)
    receive_count(consumer, 10, acknowledge=False)[:9]
    first.close()
    second = make_client()
    consumer = second.subscribe(topic, "s", kind)
    messages = receive_count(consumer, 10, acknowledge=False)
    assert payloads(messages) == bodies
    for message in messages[:9]:
        consumer.acknowledge(message)
    second.close()
    assert admin.backlog(topic, "s") == 1
    consumer = make_client().subscribe(topic, "s", kind)
    assert payloads(receive_count(consumer, 10)) == bodies
    eventually(lambda: admin.backlog(topic, "s") == 0)


@pytest.mark.parametrize("kind", TYPES, ids=by_kind)
def test_batch_index_acknowledgement(make_client: Make, admin: Admin, topic: str, kind: ConsumerType) -> None:
    first = make_client()
    consumer = first.subscribe(topic, "s", kind, batch_index_ack_enabled=True)
    send_numbers(first, topic, 10, is_batched=True)
    for message in receive_count(consumer, 10, acknowledge=False):
        if int(message.data()) % 2:
            consumer.acknowledge(message)
    first.close()
    consumer = make_client().subscribe(topic, "s", kind, batch_index_ack_enabled=True)
    messages = receive_count(consumer, 5)
    assert payloads(messages) == [b"0", b"2", b"4", b"6", b"8"]
    assert_quiet(consumer)
    eventually(lambda: admin.backlog(topic, "s") == 0)


def test_cumulative_acknowledgement_inside_a_batch(make_client: Make, topic: str) -> None:
    first = make_client()
    consumer = first.subscribe(topic, "s", batch_index_ack_enabled=True)
    send_numbers(first, topic, 10, is_batched=True)
    messages = receive_count(consumer, 10, acknowledge=False)
    consumer.acknowledge_cumulative(messages[5])
    first.close()
    consumer = make_client().subscribe(topic, "s", batch_index_ack_enabled=True)
    assert payloads(receive_count(consumer, 4)) == [b"6", b"7", b"8", b"9"]
    assert_quiet(consumer)


@pytest.mark.parametrize("kind", TYPES, ids=by_kind)
def test_negative_acknowledgement(client: pulsar.Client, topic: str, kind: ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", kind, negative_ack_redelivery_delay_ms=100)
    send_numbers(client, topic, 5)
    for message in receive_count(consumer, 5, acknowledge=False):
        assert message.redelivery_count() == 0
        consumer.negative_acknowledge(message)
    again = receive_count(consumer, 5)
    assert payloads(again) == [b"0", b"1", b"2", b"3", b"4"]
    assert_quiet(consumer)


@pytest.mark.parametrize("kind", SHARING, ids=by_kind)
def test_the_redelivery_count_grows(client: pulsar.Client, topic: str, kind: ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", kind, negative_ack_redelivery_delay_ms=50)
    send_numbers(client, topic, 1)
    for count in range(4):
        message = receive(consumer)
        assert message.redelivery_count() == count
        consumer.negative_acknowledge(message)
    consumer.acknowledge(receive(consumer))
    assert_quiet(consumer)


def test_the_redelivery_count_stays_zero_for_an_exclusive_consumer(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", negative_ack_redelivery_delay_ms=50)
    send_numbers(client, topic, 1)
    for _ in range(3):
        message = receive(consumer)
        assert message.redelivery_count() == 0
        consumer.negative_acknowledge(message)


def test_only_the_refused_message_comes_again(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    send_numbers(client, topic, 10)
    messages = receive_count(consumer, 10, acknowledge=False)
    consumer.negative_acknowledge(messages[4])
    for message in messages[:4] + messages[5:]:
        consumer.acknowledge(message)
    assert payloads(receive_available(consumer, quiet_ms=400)) == [b"4"]


@pytest.mark.parametrize("is_abrupt", [False, True], ids=["closed", "vanished"])
def test_messages_of_a_consumer_that_left_count_no_redelivery(
    make_client: Make, topic: str, is_abrupt: bool
) -> None:
    """Only a negative acknowledgement or a time-out counts, as in Pulsar."""
    first = make_client()
    consumer = first.subscribe(topic, "s", ConsumerType.Shared)
    send_numbers(make_client(), topic, 10)
    receive_count(consumer, 10, acknowledge=False)
    second = make_client().subscribe(topic, "s", ConsumerType.Shared)
    if is_abrupt:
        first.shutdown()
    else:
        first.close()
    counts = [(message.data(), message.redelivery_count()) for message in receive_count(second, 10)]
    assert counts == [(b"%d" % number, 0) for number in range(10)]


@pytest.mark.parametrize("kind", TYPES, ids=by_kind)
def test_redeliver_unacknowledged_messages(client: pulsar.Client, topic: str, kind: ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", kind)
    send_numbers(client, topic, 6)
    messages = receive_count(consumer, 6, acknowledge=False)
    for message in messages[:2]:
        consumer.acknowledge(message)
    consumer.redeliver_unacknowledged_messages()
    assert payloads(receive_count(consumer, 4)) == [b"2", b"3", b"4", b"5"]
    assert_quiet(consumer)


@pytest.mark.parametrize("kind", SHARING, ids=by_kind)
def test_dead_letters(client: pulsar.Client, topic: str, kind: ConsumerType) -> None:
    dead = client.subscribe(f"{topic}-s-DLQ", "dead", initial_position=InitialPosition.Earliest)
    consumer = client.subscribe(
        topic,
        "s",
        kind,
        negative_ack_redelivery_delay_ms=50,
        dead_letter_policy=ConsumerDeadLetterPolicy(max_redeliver_count=2),
    )
    producer = client.create_producer(topic)
    producer.send(b"poison", properties={"a": "b"}, partition_key="k")
    for count in range(3):
        message = receive(consumer)
        assert (message.data(), message.redelivery_count()) == (b"poison", count)
        consumer.negative_acknowledge(message)
    buried = receive(dead)
    assert buried.data() == b"poison"
    assert buried.properties()["a"] == "b"
    assert buried.properties()["REAL_TOPIC"] == topic
    producer.send(b"fine")
    assert receive(consumer).data() == b"fine"


def test_dispatch_stops_at_the_limit_of_unacknowledged_messages(
    client: pulsar.Client, admin: Admin, topic: str
) -> None:
    """maxUnackedMessagesPerConsumer is 50000 unless configured; batches count their messages."""
    consumer = client.subscribe(
        topic,
        "s",
        ConsumerType.Shared,
        receiver_queue_size=70_000,
        max_total_receiver_queue_size_across_partitions=70_000,
    )
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_publish_delay_ms=60_000,
        batching_max_messages=1000,
        block_if_queue_full=True,
        max_pending_messages=70_000,
    )
    for number in range(60_000):
        producer.send_async(b"%d" % number, lambda result, message_id: None)
    producer.flush()

    def blocked() -> bool:
        [stats] = admin.subscription(topic, "s")["consumers"]
        return bool(stats["blockedConsumerOnUnackedMsgs"]) and stats["unackedMessages"] >= 50_000

    eventually(blocked)
    assert admin.subscription(topic, "s")["consumers"][0]["unackedMessages"] < 60_000
    for number in range(60_000):
        message = consumer.receive(10_000)
        assert message.data() == b"%d" % number
        consumer.acknowledge(message)
    eventually(lambda: admin.subscription(topic, "s")["unackedMessages"] == 0)
    assert not admin.subscription(topic, "s")["consumers"][0]["blockedConsumerOnUnackedMsgs"]


def test_unacknowledged_messages_come_again_after_the_time_out(overdue: pulsar.Consumer) -> None:
    again = receive_count(overdue, 3, timeout_ms=15_000)
    assert sorted(payloads(again)) == [b"0", b"1", b"2"]
    assert all(message.redelivery_count() == 1 for message in again)
