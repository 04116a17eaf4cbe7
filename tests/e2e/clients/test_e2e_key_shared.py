"""Key_Shared: each key to one consumer and in order, by automatic and by given hash ranges."""

from __future__ import annotations

from collections.abc import Callable

import pulsar
import pytest
from pulsar import ConsumerKeySharedPolicy, ConsumerType, KeySharedMode

from tests.e2e.waiting import assert_quiet, receive_available, receive_count, receive_shares

Make = Callable[..., pulsar.Client]
KEYS_OF_LOW_HASHES = {
    f"key-{number}"
    for number in (1, 2, 3, 6, 8, 9, 10, 12, 15, 17, 18, 20, 21, 23, 24, 27, 29, 30, 33, 34, 35, 36, 37, 39)
}
"""Of key-0 to key-39, those that the real broker hashes below 32768."""


def send_keyed(client: pulsar.Client, topic: str, count: int, keys: int, start: int = 0) -> None:
    producer = client.create_producer(topic)
    for number in range(start, start + count):
        producer.send_async(
            b"%d" % number, lambda result, message_id: None, partition_key=f"key-{number % keys}"
        )
    producer.flush()
    producer.close()


def assert_each_key_in_one_place_and_in_order(shares: list[list[pulsar.Message]], total: int) -> None:
    owners: dict[str, int] = {}
    for index, share in enumerate(shares):
        last: dict[str, int] = {}
        for message in share:
            key, number = message.partition_key(), int(message.data())
            assert owners.setdefault(key, index) == index, f"{key} at two consumers"
            assert last.get(key, -1) < number, f"{key} out of order"
            last[key] = number
    assert sum(len(share) for share in shares) == total


def sticky(*ranges: tuple[int, int]) -> ConsumerKeySharedPolicy:
    return ConsumerKeySharedPolicy(KeySharedMode.Sticky, False, list(ranges))


def test_each_key_goes_to_one_consumer_in_order(make_client: Make, topic: str) -> None:
    consumers = [make_client().subscribe(topic, "s", ConsumerType.KeyShared) for _ in range(3)]
    send_keyed(make_client(), topic, 600, 50)
    shares = receive_shares(consumers, 600)
    assert_each_key_in_one_place_and_in_order(shares, 600)
    assert all(shares)


def test_the_ordering_key_is_preferred_to_the_partition_key(make_client: Make, topic: str) -> None:
    consumers = [make_client().subscribe(topic, "s", ConsumerType.KeyShared) for _ in range(3)]
    producer = make_client().create_producer(topic)
    for number in range(60):
        producer.send(b"%d" % number, partition_key=f"key-{number}", ordering_key="one")
    shares = receive_shares(consumers, 60)
    assert sorted(len(share) for share in shares) == [0, 0, 60]


def test_messages_without_a_key_stay_together(make_client: Make, topic: str) -> None:
    """Without any key the hash is taken of the producer's name and sequence id in newer brokers: only the
    sum is promised."""
    consumers = [make_client().subscribe(topic, "s", ConsumerType.KeyShared) for _ in range(2)]
    producer = make_client().create_producer(topic)
    for number in range(40):
        producer.send(b"%d" % number)
    shares = receive_shares(consumers, 40)
    assert sorted(int(message.data()) for share in shares for message in share) == list(range(40))


def test_keys_move_when_a_consumer_leaves(make_client: Make, topic: str) -> None:
    leaver = make_client()
    first = leaver.subscribe(topic, "s", ConsumerType.KeyShared)
    second = make_client().subscribe(topic, "s", ConsumerType.KeyShared)
    client = make_client()
    send_keyed(client, topic, 200, 20)
    assert_each_key_in_one_place_and_in_order(receive_shares([first, second], 200), 200)
    leaver.close()
    send_keyed(client, topic, 200, 20, start=200)
    assert_each_key_in_one_place_and_in_order([receive_count(second, 200)], 200)


def test_unacknowledged_messages_of_a_key_come_again_before_later_ones(make_client: Make, topic: str) -> None:
    leaver = make_client()
    first = leaver.subscribe(topic, "s", ConsumerType.KeyShared)
    client = make_client()
    send_keyed(client, topic, 30, 3)
    receive_count(first, 30, acknowledge=False)
    second = make_client().subscribe(topic, "s", ConsumerType.KeyShared)
    send_keyed(client, topic, 30, 3, start=30)
    leaver.close()
    messages = receive_count(second, 60)
    assert_each_key_in_one_place_and_in_order([messages], 60)


def test_a_joining_consumer_does_not_overtake_unacknowledged_messages(make_client: Make, topic: str) -> None:
    first = make_client().subscribe(topic, "s", ConsumerType.KeyShared)
    client = make_client()
    send_keyed(client, topic, 100, 20)
    held = receive_count(first, 100, acknowledge=False)
    second = make_client().subscribe(topic, "s", ConsumerType.KeyShared)
    send_keyed(client, topic, 100, 20, start=100)
    own = receive_available(first, acknowledge=False)
    assert_quiet(second)
    assert len(own) < 100
    for message in held:
        first.acknowledge(message)
    others = receive_count(second, 100 - len(own))
    owned_by_second = {message.partition_key() for message in others}
    assert owned_by_second
    assert owned_by_second.isdisjoint({message.partition_key() for message in own})
    for key in owned_by_second:
        numbers = [int(message.data()) for message in others if message.partition_key() == key]
        assert numbers == sorted(numbers)


def test_sticky_ranges_divide_the_keys(make_client: Make, topic: str) -> None:
    low = make_client().subscribe(topic, "s", ConsumerType.KeyShared, key_shared_policy=sticky((0, 32767)))
    high = make_client().subscribe(
        topic, "s", ConsumerType.KeyShared, key_shared_policy=sticky((32768, 65535))
    )
    send_keyed(make_client(), topic, 200, 40)
    shares = receive_shares([low, high], 200)
    assert_each_key_in_one_place_and_in_order(shares, 200)
    assert {message.partition_key() for message in shares[0]} == KEYS_OF_LOW_HASHES


def test_overlapping_sticky_ranges_are_refused(make_client: Make, topic: str) -> None:
    make_client().subscribe(topic, "s", ConsumerType.KeyShared, key_shared_policy=sticky((0, 100)))
    with pytest.raises(pulsar.PulsarException) as caught:
        make_client().subscribe(topic, "s", ConsumerType.KeyShared, key_shared_policy=sticky((100, 200)))
    assert isinstance(caught.value, pulsar.ConsumerAssignError)


def test_automatic_and_sticky_consumers_do_not_mix(make_client: Make, topic: str) -> None:
    make_client().subscribe(topic, "s", ConsumerType.KeyShared)
    with pytest.raises(pulsar.PulsarException) as caught:
        make_client().subscribe(topic, "s", ConsumerType.KeyShared, key_shared_policy=sticky((0, 100)))
    assert isinstance(caught.value, pulsar.ConsumerBusy)


def test_keys_outside_all_sticky_ranges_wait(make_client: Make, topic: str) -> None:
    low = make_client().subscribe(topic, "s", ConsumerType.KeyShared, key_shared_policy=sticky((0, 32767)))
    send_keyed(make_client(), topic, 200, 40)
    first = receive_available(low)
    assert 0 < len(first) < 200
    high = make_client().subscribe(
        topic, "s", ConsumerType.KeyShared, key_shared_policy=sticky((32768, 65535))
    )
    assert_each_key_in_one_place_and_in_order([first, receive_count(high, 200 - len(first))], 200)


def test_out_of_order_delivery_may_be_allowed(make_client: Make, topic: str) -> None:
    policy = ConsumerKeySharedPolicy(KeySharedMode.AutoSplit, True)
    consumers = [
        make_client().subscribe(topic, "s", ConsumerType.KeyShared, key_shared_policy=policy)
        for _ in range(2)
    ]
    send_keyed(make_client(), topic, 100, 10)
    shares = receive_shares(consumers, 100)
    assert sum(len(share) for share in shares) == 100


def test_negative_acknowledgement_keeps_the_consumer_of_the_key(make_client: Make, topic: str) -> None:
    consumers = [
        make_client().subscribe(topic, "s", ConsumerType.KeyShared, negative_ack_redelivery_delay_ms=100)
        for _ in range(2)
    ]
    send_keyed(make_client(), topic, 40, 10)
    shares = receive_shares(consumers, 40, acknowledge=False)
    for consumer, share in zip(consumers, shares, strict=True):
        for message in share:
            consumer.negative_acknowledge(message)
    for consumer, share in zip(consumers, shares, strict=True):
        again = receive_count(consumer, len(share))
        assert {message.partition_key() for message in again} == {m.partition_key() for m in share}
        assert all(message.redelivery_count() == 1 for message in again)
