"""Delayed delivery through the official client: what is held back, for how long, and in which order it comes.

The first half holds for the real broker too, where a message may come up to one tick (1000 ms) before its
time. With strict delivery, our default, it is never early (second half, and `test_e2e_exact.py`). How late
messages are is measured by `bench/delayed/lateness.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta

import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition, MessageId

from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.broker_process import BrokerProcess, Endpoints
from tests.e2e.waiting import (
    assert_quiet,
    eventually,
    now_ms,
    payloads,
    receive,
    receive_count,
    receive_shares,
)

Make = Callable[..., pulsar.Client]
DELAYING = [ConsumerType.Shared, ConsumerType.KeyShared]
IMMEDIATE = [ConsumerType.Exclusive, ConsumerType.Failover]
TICK_MS = 1000


def by_kind(kind: ConsumerType) -> str:
    return kind.name


def send_after(producer: pulsar.Producer, body: bytes, delay_ms: int, **options: object) -> int:
    """Publish with a delay; returns the time, in ms since 1970, from which it is due."""
    due_ms = now_ms() + delay_ms
    producer.send(body, deliver_after=timedelta(milliseconds=delay_ms), **options)
    return due_ms


@pytest.mark.parametrize("kind", DELAYING, ids=by_kind)
@pytest.mark.parametrize("how", ["deliver_after", "deliver_at"])
def test_a_message_waits_for_its_time(
    client: pulsar.Client, topic: str, kind: ConsumerType, how: str
) -> None:
    consumer = client.subscribe(topic, "s", kind)
    producer = client.create_producer(topic)
    if how == "deliver_at":
        due_ms = now_ms() + 1500
        producer.send(b"later", deliver_at=due_ms)
    else:
        due_ms = send_after(producer, b"later", 1500)
    message = receive(consumer)
    at_ms = now_ms()
    assert message.data() == b"later"
    assert due_ms - TICK_MS <= at_ms
    assert message.redelivery_count() == 0


@pytest.mark.parametrize("kind", IMMEDIATE, ids=by_kind)
def test_exclusive_and_failover_do_not_wait(client: pulsar.Client, topic: str, kind: ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", kind)
    send_after(client.create_producer(topic), b"later", 60_000)
    assert receive(consumer, 5000).data() == b"later"


def test_readers_do_not_wait(client: pulsar.Client, topic: str) -> None:
    send_after(client.create_producer(topic), b"later", 60_000)
    assert client.create_reader(topic, MessageId.earliest).read_next(5000).data() == b"later"


@pytest.mark.parametrize("kind", DELAYING, ids=by_kind)
def test_a_time_in_the_past_means_now(client: pulsar.Client, topic: str, kind: ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", kind)
    client.create_producer(topic).send(b"now", deliver_at=1)
    assert receive(consumer).data() == b"now"


@pytest.mark.parametrize("kind", DELAYING, ids=by_kind)
def test_plain_messages_overtake_delayed_ones(client: pulsar.Client, topic: str, kind: ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", kind)
    producer = client.create_producer(topic)
    for number in range(10):
        send_after(producer, b"delayed-%d" % number, 2000, partition_key=f"k{number}")
        producer.send(b"plain-%d" % number, partition_key=f"k{number}")
    assert payloads(receive_count(consumer, 10)) == [b"plain-%d" % number for number in range(10)]
    assert sorted(payloads(receive_count(consumer, 10))) == [b"delayed-%d" % number for number in range(10)]


def test_delayed_messages_come_in_the_order_of_their_times(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    start_ms = now_ms()
    for delay_ms in (3500, 1600):
        producer.send(b"%d" % delay_ms, deliver_at=start_ms + delay_ms)
    assert payloads(receive_count(consumer, 2)) == [b"1600", b"3500"]


def test_messages_due_together_come_in_the_order_of_the_topic(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    due_ms = now_ms() + 1500
    for number in range(20):
        producer.send(b"%d" % number, deliver_at=due_ms)
    assert payloads(receive_count(consumer, 20)) == [b"%d" % number for number in range(20)]


def test_the_delay_survives_the_consumer(make_client: Make, topic: str) -> None:
    first = make_client()
    first.subscribe(topic, "s", ConsumerType.Shared)
    due_ms = send_after(make_client().create_producer(topic), b"later", 2500)
    first.close()
    consumer = make_client().subscribe(topic, "s", ConsumerType.Shared)
    assert receive(consumer).data() == b"later"
    assert due_ms - TICK_MS <= now_ms()


def test_a_subscription_made_later_waits_too(client: pulsar.Client, topic: str) -> None:
    due_ms = send_after(client.create_producer(topic), b"later", 2000)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, initial_position=InitialPosition.Earliest)
    assert receive(consumer).data() == b"later"
    assert due_ms - TICK_MS <= now_ms()


def test_each_subscription_waits_for_itself(client: pulsar.Client, topic: str) -> None:
    shared = client.subscribe(topic, "shared", ConsumerType.Shared)
    exclusive = client.subscribe(topic, "exclusive")
    producer = client.create_producer(topic)
    send_after(producer, b"much later", 60_000)
    due_ms = send_after(producer, b"later", 2500)
    assert payloads(receive_count(exclusive, 2)) == [b"much later", b"later"]
    assert receive(shared).data() == b"later"
    assert due_ms - TICK_MS <= now_ms()


def test_delayed_messages_are_counted(client: pulsar.Client, admin: Admin, topic: str) -> None:
    client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    for _ in range(5):
        send_after(producer, b"later", 60_000)
    producer.send(b"plain")
    eventually(lambda: admin.subscription(topic, "s")["msgDelayed"] == 5)
    stats = admin.subscription(topic, "s")
    assert stats["msgBacklog"] == 6
    assert stats["msgBacklogNoDelayed"] == 1


def test_clearing_the_backlog_clears_delayed_messages(
    client: pulsar.Client, admin: Admin, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    for _ in range(5):
        send_after(producer, b"later", 1600)
    eventually(lambda: admin.subscription(topic, "s")["msgDelayed"] == 5)
    answer = admin.post(f"/admin/v2/{topic_path(topic)}/subscription/s/skip_all")
    assert answer.status == 204, answer
    eventually(lambda: admin.backlog(topic, "s") == 0)
    assert admin.subscription(topic, "s")["msgDelayed"] == 0
    assert_quiet(consumer, 2000)


def test_unsubscribing_forgets_delayed_messages(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    send_after(client.create_producer(topic), b"later", 1500)
    consumer.unsubscribe()
    assert_quiet(client.subscribe(topic, "s", ConsumerType.Shared), 1800)


def test_a_refused_delayed_message_is_not_delayed_again(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    send_after(client.create_producer(topic), b"later", 1200)
    consumer.negative_acknowledge(receive(consumer))
    again = receive(consumer)
    assert (again.data(), again.redelivery_count()) == (b"later", 1)


def test_delayed_messages_are_shared_among_consumers(make_client: Make, topic: str) -> None:
    consumers = [
        make_client().subscribe(topic, "s", ConsumerType.Shared, receiver_queue_size=5) for _ in range(2)
    ]
    producer = make_client().create_producer(topic)
    due_ms = now_ms() + 1500
    for number in range(40):
        producer.send(b"%d" % number, deliver_at=due_ms, partition_key="k")
    shares = receive_shares(consumers, 40)
    assert sorted(int(message.data()) for share in shares for message in share) == list(range(40))


def test_delayed_messages_on_partitions(client: pulsar.Client, admin: Admin, topic: str) -> None:
    admin.create_partitions(topic, 3)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    due_ms = now_ms() + 1500
    for number in range(9):
        producer.send(b"%d" % number, deliver_at=due_ms)
    messages = receive_count(consumer, 9)
    assert due_ms - TICK_MS <= now_ms()
    assert sorted(payloads(messages)) == [b"%d" % number for number in range(9)]


def test_delays_with_batching_enabled(client: pulsar.Client, topic: str) -> None:
    """The client sends a delayed message at once, in an entry of its own."""
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=True)
    due_ms = send_after(producer, b"later", 1500)
    producer.send(b"plain")
    assert receive(consumer).data() == b"plain"
    assert receive(consumer).data() == b"later"
    assert due_ms - TICK_MS <= now_ms()


# ------------------------------------------------------------------------------- strict, with a tick of 16 ms


@pytest.fixture(scope="module")
def strict_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoints]:
    settings = {"isDelayedDeliveryDeliverAtTimeStrict": "true", "delayedDeliveryTickTimeMillis": "16"}
    with BrokerProcess(tmp_path_factory.mktemp("strict") / "data", settings=settings) as process:
        yield process.endpoints


@pytest.mark.geminga_only
@pytest.mark.parametrize("kind", DELAYING, ids=by_kind)
def test_strict_delivery_is_never_early(
    make_client: Make, strict_broker: Endpoints, topic: str, kind: ConsumerType
) -> None:
    client = make_client(strict_broker.service_url)
    consumer = client.subscribe(topic, "s", kind)
    producer = client.create_producer(topic)
    # All are stored before the first is due: one that is due when it comes may overtake others that are.
    first_ms = now_ms() + 800
    due = {b"%d" % number: first_ms + 37 * number for number in range(20)}
    for body, due_ms in due.items():
        producer.send_async(body, lambda *_: None, deliver_at=due_ms, partition_key=body.decode())
    producer.flush()
    for body, due_ms in due.items():
        message = receive(consumer)
        assert due_ms <= now_ms()
        assert message.data() == body, "in the order of their times"
        consumer.acknowledge(message)


@pytest.mark.geminga_only
def test_strict_delivery_keeps_the_order_of_times(
    make_client: Make, strict_broker: Endpoints, topic: str
) -> None:
    client = make_client(strict_broker.service_url)
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    producer = client.create_producer(topic)
    start_ms = now_ms()
    for delay_ms in (900, 300, 600, 450, 750):
        producer.send(b"%d" % delay_ms, deliver_at=start_ms + delay_ms)
    assert payloads(receive_count(consumer, 5)) == [b"300", b"450", b"600", b"750", b"900"]
