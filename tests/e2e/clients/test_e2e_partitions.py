"""Partitioned topics: routing, consuming all or one of the partitions, and how they are named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition, MessageId, PartitionsRoutingMode

from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.waiting import eventually, payloads, receive, receive_count, receive_shares

Make = Callable[..., pulsar.Client]
TYPES = [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.Failover, ConsumerType.KeyShared]


@pytest.fixture
def partitioned(admin: Admin, topic: str) -> str:
    admin.create_partitions(topic, 4)
    return topic


def test_partitions_have_names(client: pulsar.Client, partitioned: str) -> None:
    assert client.get_topic_partitions(partitioned) == [f"{partitioned}-partition-{i}" for i in range(4)]


def test_a_topic_without_partitions_is_its_own_only_one(client: pulsar.Client, topic: str) -> None:
    assert client.get_topic_partitions(topic) == [topic]


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
def test_a_consumer_gets_the_messages_of_all_partitions(
    client: pulsar.Client, partitioned: str, kind: ConsumerType
) -> None:
    consumer = client.subscribe(partitioned, "s", kind)
    producer = client.create_producer(partitioned)
    for number in range(40):
        producer.send(b"%d" % number)
    messages = receive_count(consumer, 40)
    assert sorted(map(int, payloads(messages))) == list(range(40))
    assert {message.message_id().partition() for message in messages} == {0, 1, 2, 3}


def test_round_robin_fills_all_partitions(client: pulsar.Client, admin: Admin, partitioned: str) -> None:
    producer = client.create_producer(
        partitioned, message_routing_mode=PartitionsRoutingMode.RoundRobinDistribution
    )
    counts = Counter(producer.send(b"x").partition() for _ in range(40))
    assert counts == {0: 10, 1: 10, 2: 10, 3: 10}


def test_single_partition_mode_uses_one(client: pulsar.Client, partitioned: str) -> None:
    producer = client.create_producer(
        partitioned, message_routing_mode=PartitionsRoutingMode.UseSinglePartition
    )
    assert len({producer.send(b"x").partition() for _ in range(20)}) == 1


def test_a_key_decides_the_partition(client: pulsar.Client, partitioned: str) -> None:
    producer = client.create_producer(partitioned)
    places: dict[str, set[int]] = {}
    for number in range(40):
        key = f"k{number % 10}"
        places.setdefault(key, set()).add(producer.send(b"x", partition_key=key).partition())
    assert all(len(partitions) == 1 for partitions in places.values())
    assert len(set.union(*places.values())) > 1


def test_a_router_may_decide(client: pulsar.Client, partitioned: str) -> None:
    producer = client.create_producer(
        partitioned,
        message_routing_mode=PartitionsRoutingMode.CustomPartition,
        message_router=lambda message, partitions: int(message.data()) % partitions,
    )
    assert [producer.send(b"%d" % number).partition() for number in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_order_is_kept_inside_each_partition(client: pulsar.Client, partitioned: str) -> None:
    consumer = client.subscribe(partitioned, "s")
    producer = client.create_producer(partitioned, batching_enabled=True, block_if_queue_full=True)
    for number in range(400):
        producer.send_async(b"%d" % number, lambda result, message_id: None, partition_key=f"k{number % 9}")
    producer.flush()
    last: dict[int, int] = {}
    for message in receive_count(consumer, 400):
        partition, number = message.message_id().partition(), int(message.data())
        assert last.get(partition, -1) < number
        last[partition] = number


def test_one_partition_is_a_topic(client: pulsar.Client, partitioned: str) -> None:
    name = f"{partitioned}-partition-2"
    consumer = client.subscribe(name, "s")
    client.create_producer(name).send(b"direct")
    whole = client.create_producer(
        partitioned,
        message_routing_mode=PartitionsRoutingMode.CustomPartition,
        message_router=lambda message, partitions: 2,
    )
    whole.send(b"routed")
    messages = receive_count(consumer, 2)
    assert payloads(messages) == [b"direct", b"routed"]
    assert messages[0].topic_name() == name


def test_the_subscription_exists_on_every_partition(
    client: pulsar.Client, admin: Admin, partitioned: str
) -> None:
    client.subscribe(partitioned, "s").close()
    for index in range(4):
        path = topic_path(f"{partitioned}-partition-{index}")
        assert admin.get(f"/admin/v2/{path}/subscriptions").json() == ["s"]


def test_acknowledgements_reach_the_right_partition(
    make_client: Make, admin: Admin, partitioned: str
) -> None:
    first = make_client()
    consumer = first.subscribe(partitioned, "s", ConsumerType.Shared)
    producer = first.create_producer(partitioned)
    for number in range(40):
        producer.send(b"%d" % number)
    messages = receive_count(consumer, 40, acknowledge=False)
    for message in messages[:30]:
        consumer.acknowledge(message)
    first.close()
    rest = receive_count(make_client().subscribe(partitioned, "s", ConsumerType.Shared), 10)
    assert sorted(payloads(rest)) == sorted(payloads(messages[30:]))


def test_exclusive_is_refused_when_one_partition_is_taken(make_client: Make, partitioned: str) -> None:
    make_client().subscribe(f"{partitioned}-partition-1", "s")
    with pytest.raises(pulsar.ConsumerBusy):
        make_client().subscribe(partitioned, "s")


def test_failover_divides_the_partitions(make_client: Make, partitioned: str) -> None:
    """Partition i belongs to the consumer at i modulo their number, consumers sorted by name."""
    consumers = {
        name: make_client().subscribe(partitioned, "s", ConsumerType.Failover, consumer_name=name)
        for name in ("a", "b")
    }
    producer = make_client().create_producer(partitioned)

    def settled() -> bool:
        """Each consumer gets messages of its own two partitions, and of those only."""
        for _ in range(8):
            producer.send(b"x")
        shares = receive_shares(list(consumers.values()), 8)
        got = dict(zip(consumers, shares, strict=True))
        return {name: {m.message_id().partition() for m in got[name]} for name in got} == {
            "a": {0, 2},
            "b": {1, 3},
        }

    eventually(settled)


def test_seek_of_all_partitions(client: pulsar.Client, partitioned: str) -> None:
    consumer = client.subscribe(partitioned, "s")
    producer = client.create_producer(partitioned)
    for number in range(20):
        producer.send(b"%d" % number)
    receive_count(consumer, 20)
    consumer.seek(MessageId.earliest)
    assert sorted(map(int, payloads(receive_count(consumer, 20)))) == list(range(20))


def test_readers_of_one_partition(client: pulsar.Client, partitioned: str) -> None:
    producer = client.create_producer(partitioned)
    for number in range(8):
        producer.send(b"%d" % number)
    reader = client.create_reader(f"{partitioned}-partition-0", MessageId.earliest)
    assert len([reader.read_next(5000) for _ in range(2)]) == 2
    assert not reader.has_message_available()


def test_reader_of_all_partitions(client: pulsar.Client, partitioned: str) -> None:
    producer = client.create_producer(partitioned)
    for number in range(8):
        producer.send(b"%d" % number)
    reader = client.create_reader(partitioned, MessageId.earliest)
    assert sorted(int(reader.read_next(5000).data()) for _ in range(8)) == list(range(8))


def test_more_partitions_later(make_client: Make, admin: Admin, partitioned: str) -> None:
    answer = admin.post(f"/admin/v2/{topic_path(partitioned)}/partitions", 6)
    assert answer.status == 204, answer
    client = make_client()
    assert len(client.get_topic_partitions(partitioned)) == 6
    producer = client.create_producer(partitioned)
    assert {producer.send(b"x").partition() for _ in range(12)} == {0, 1, 2, 3, 4, 5}


def test_unsubscribe_all_partitions(client: pulsar.Client, admin: Admin, partitioned: str) -> None:
    client.subscribe(partitioned, "s").unsubscribe()
    for index in range(4):
        path = topic_path(f"{partitioned}-partition-{index}")
        assert admin.get(f"/admin/v2/{path}/subscriptions").json() == []


def test_chunks_and_batches_on_partitions(client: pulsar.Client, partitioned: str) -> None:
    consumer = client.subscribe(partitioned, "s", initial_position=InitialPosition.Earliest)
    producer = client.create_producer(partitioned, chunking_enabled=True)
    body = b"0123456789abcdef" * (400 * 1024)
    producer.send(body, partition_key="k")
    assert receive(consumer).data() == body
