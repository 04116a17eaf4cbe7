"""Places in a topic: seek by id and time, readers, last message id, non-durable cursors."""

from __future__ import annotations

from collections.abc import Callable

import pulsar
import pytest
from pulsar import ConsumerType, InitialPosition, MessageId

from tests.e2e.admin_http import Admin, topic_path
from tests.e2e.waiting import (
    assert_quiet,
    eventually,
    now_ms,
    payloads,
    place,
    receive,
    receive_count,
)

Make = Callable[..., pulsar.Client]
TYPES = [ConsumerType.Exclusive, ConsumerType.Shared, ConsumerType.Failover, ConsumerType.KeyShared]


def send_numbers(
    client: pulsar.Client, topic: str, count: int, *, start: int = 0, is_batched: bool = False
) -> list[pulsar.MessageId]:
    """Publish numbers; their ids, in order."""
    producer = client.create_producer(
        topic,
        batching_enabled=is_batched,
        batching_max_publish_delay_ms=60_000,
        block_if_queue_full=True,
    )
    ids: list[pulsar.MessageId] = []
    for number in range(start, start + count):
        producer.send_async(b"%d" % number, lambda result, message_id: ids.append(message_id))
    producer.flush()
    eventually(lambda: len(ids) == count)
    producer.close()
    return ids


def numbers(messages: list[pulsar.Message]) -> list[int]:
    return [int(body) for body in payloads(messages)]


def read_numbers(reader: pulsar.Reader, count: int) -> list[int]:
    return [int(reader.read_next(10_000).data()) for _ in range(count)]


def assert_reader_quiet(reader: pulsar.Reader) -> None:
    with pytest.raises(pulsar.Timeout):
        reader.read_next(250)


def by_kind(kind: ConsumerType) -> str:
    return kind.name


# ------------------------------------------------------------------------------------------------------ seek


@pytest.mark.parametrize("kind", TYPES, ids=by_kind)
def test_seek_to_earliest_and_latest(client: pulsar.Client, topic: str, kind: ConsumerType) -> None:
    consumer = client.subscribe(topic, "s", kind)
    send_numbers(client, topic, 10)
    assert numbers(receive_count(consumer, 10)) == list(range(10))
    consumer.seek(MessageId.earliest)
    assert numbers(receive_count(consumer, 10)) == list(range(10))
    consumer.seek(MessageId.earliest)
    consumer.seek(MessageId.latest)
    send_numbers(client, topic, 1, start=10)
    assert receive(consumer).data() == b"10"


@pytest.mark.parametrize(("is_inclusive", "first"), [(False, 6), (True, 5)])
def test_seek_by_id(client: pulsar.Client, topic: str, is_inclusive: bool, first: int) -> None:
    consumer = client.subscribe(topic, "s", start_message_id_inclusive=is_inclusive)
    ids = send_numbers(client, topic, 10)
    receive_count(consumer, 10)
    consumer.seek(ids[5])
    assert numbers(receive_count(consumer, 10 - first)) == list(range(first, 10))
    assert_quiet(consumer)


@pytest.mark.parametrize(("is_inclusive", "first"), [(False, 6), (True, 5)])
def test_seek_inside_a_batch(client: pulsar.Client, topic: str, is_inclusive: bool, first: int) -> None:
    consumer = client.subscribe(topic, "s", start_message_id_inclusive=is_inclusive)
    ids = send_numbers(client, topic, 10, is_batched=True)
    receive_count(consumer, 10)
    consumer.seek(ids[5])
    assert numbers(receive_count(consumer, 10 - first)) == list(range(first, 10))
    assert_quiet(consumer)


def test_seek_by_time(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    send_numbers(client, topic, 10)
    stamp_ms = receive_count(consumer, 10)[-1].publish_timestamp()
    eventually(lambda: now_ms() > stamp_ms + 10)
    middle_ms = now_ms()
    send_numbers(client, topic, 10, start=10)
    receive_count(consumer, 10)
    consumer.seek(middle_ms)
    assert numbers(receive_count(consumer, 10)) == list(range(10, 20))
    consumer.seek(stamp_ms - 60_000)
    assert numbers(receive_count(consumer, 20)) == list(range(20))


def test_seek_to_a_time_after_everything_delivers_nothing_old(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    send_numbers(client, topic, 5)
    receive_count(consumer, 5)
    consumer.seek(now_ms() + 60_000)
    assert_quiet(consumer)
    send_numbers(client, topic, 1, start=5)
    assert receive(consumer).data() == b"5"


def test_seek_back_survives_a_reconnect(make_client: Make, topic: str) -> None:
    first = make_client()
    consumer = first.subscribe(topic, "s")
    ids = send_numbers(first, topic, 10)
    receive_count(consumer, 10)
    consumer.seek(ids[6])
    first.close()
    # The broker goes to the place itself; leaving out its message is the seeking client's own doing.
    consumer = make_client().subscribe(topic, "s")
    assert numbers(receive_count(consumer, 4)) == [6, 7, 8, 9]


def test_seek_clears_what_was_acknowledged_behind_it(client: pulsar.Client, admin: Admin, topic: str) -> None:
    consumer = client.subscribe(topic, "s", ConsumerType.Shared)
    send_numbers(client, topic, 10)
    messages = receive_count(consumer, 10, acknowledge=False)
    for message in messages[::2]:
        consumer.acknowledge(message)
    consumer.seek(MessageId.earliest)
    assert sorted(numbers(receive_count(consumer, 10))) == list(range(10))
    eventually(lambda: admin.backlog(topic, "s") == 0)


def test_seek_of_a_shared_subscription_moves_all_its_consumers(make_client: Make, topic: str) -> None:
    consumers = [make_client().subscribe(topic, "s", ConsumerType.Shared) for _ in range(2)]
    send_numbers(make_client(), topic, 10)
    got: list[int] = []

    def drain() -> None:
        for consumer in consumers:
            try:
                message = consumer.receive(50)
            except pulsar.Timeout:
                continue
            consumer.acknowledge(message)
            got.append(int(message.data()))

    eventually(lambda: [drain(), len(got) == 10][1])
    got.clear()
    consumers[0].seek(MessageId.earliest)
    eventually(lambda: [drain(), set(got) == set(range(10))][1])


# --------------------------------------------------------------------------------------------------- readers


def test_reader_from_earliest(client: pulsar.Client, topic: str) -> None:
    send_numbers(client, topic, 10)
    reader = client.create_reader(topic, MessageId.earliest)
    assert read_numbers(reader, 10) == list(range(10))
    assert not reader.has_message_available()
    send_numbers(client, topic, 5, start=10)
    assert reader.has_message_available()
    assert read_numbers(reader, 5) == list(range(10, 15))


def test_reader_from_latest(client: pulsar.Client, topic: str) -> None:
    send_numbers(client, topic, 10)
    reader = client.create_reader(topic, MessageId.latest)
    assert not reader.has_message_available()
    assert_reader_quiet(reader)
    send_numbers(client, topic, 2, start=10)
    assert read_numbers(reader, 2) == [10, 11]


@pytest.mark.parametrize("is_batched", [False, True], ids=["single", "batched"])
@pytest.mark.parametrize(("is_inclusive", "first"), [(False, 6), (True, 5)])
def test_reader_from_an_id(
    client: pulsar.Client, topic: str, is_inclusive: bool, first: int, is_batched: bool
) -> None:
    ids = send_numbers(client, topic, 10, is_batched=is_batched)
    reader = client.create_reader(topic, ids[5], start_message_id_inclusive=is_inclusive)
    assert reader.has_message_available()
    assert read_numbers(reader, 10 - first) == list(range(first, 10))
    assert not reader.has_message_available()


def test_reader_at_the_latest_message_inclusive(client: pulsar.Client, topic: str) -> None:
    send_numbers(client, topic, 10)
    reader = client.create_reader(topic, MessageId.latest, start_message_id_inclusive=True)
    assert reader.has_message_available()
    assert read_numbers(reader, 1) == [9]


def test_reader_on_an_empty_topic(client: pulsar.Client, topic: str) -> None:
    reader = client.create_reader(topic, MessageId.earliest)
    assert not reader.has_message_available()
    assert_reader_quiet(reader)
    send_numbers(client, topic, 1)
    assert read_numbers(reader, 1) == [0]


def test_reader_from_a_serialised_id(client: pulsar.Client, topic: str) -> None:
    ids = send_numbers(client, topic, 5)
    start = MessageId.deserialize(MessageId.wrap(ids[2]).serialize())
    assert read_numbers(client.create_reader(topic, start), 2) == [3, 4]


def test_reader_seek(client: pulsar.Client, topic: str) -> None:
    ids = send_numbers(client, topic, 10)
    reader = client.create_reader(topic, MessageId.earliest)
    assert read_numbers(reader, 10) == list(range(10))
    reader.seek(ids[7])
    assert read_numbers(reader, 2) == [8, 9]
    reader.seek(MessageId.earliest)
    assert read_numbers(reader, 10) == list(range(10))


def test_readers_leave_no_subscription_behind(client: pulsar.Client, admin: Admin, topic: str) -> None:
    send_numbers(client, topic, 3)
    readers = [client.create_reader(topic, MessageId.earliest) for _ in range(2)]
    for reader in readers:
        assert read_numbers(reader, 3) == [0, 1, 2]
    subscriptions = admin.stats(topic)["subscriptions"]
    assert len(subscriptions) == 2
    assert all(name.startswith("reader-") for name in subscriptions)
    assert not any(subscription["isDurable"] for subscription in subscriptions.values())
    for reader in readers:
        reader.close()
    eventually(lambda: admin.get(f"/admin/v2/{topic_path(topic)}/subscriptions").json() == [])


def test_readers_and_consumers_do_not_disturb_each_other(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    send_numbers(client, topic, 20)
    reader = client.create_reader(topic, MessageId.earliest)
    assert read_numbers(reader, 20) == list(range(20))
    assert numbers(receive_count(consumer, 20)) == list(range(20))


def test_reader_names(client: pulsar.Client, admin: Admin, topic: str) -> None:
    client.create_reader(topic, MessageId.earliest, subscription_role_prefix="audit")
    [name] = admin.stats(topic)["subscriptions"]
    assert name.startswith("audit-")


def test_a_reader_with_a_small_queue_reads_a_long_backlog(client: pulsar.Client, topic: str) -> None:
    send_numbers(client, topic, 2000, is_batched=True)
    send_numbers(client, topic, 2000, start=2000)
    reader = client.create_reader(topic, MessageId.earliest, receiver_queue_size=50)
    assert read_numbers(reader, 4000) == list(range(4000))


# ------------------------------------------------------------------------------------------ last message id


def test_last_message_id(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    ids = send_numbers(client, topic, 5)
    assert place(consumer.get_last_message_id()) == place(ids[-1])


def test_last_message_id_in_a_batch(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    ids = send_numbers(client, topic, 5, is_batched=True)
    assert place(consumer.get_last_message_id()) == place(ids[-1])
    assert ids[-1].batch_index() == 4


def test_last_message_id_of_an_empty_topic(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    assert consumer.get_last_message_id().entry_id() == -1


def test_initial_position_counts_only_when_the_subscription_is_made(make_client: Make, topic: str) -> None:
    client = make_client()
    send_numbers(client, topic, 5)
    consumer = client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
    receive_count(consumer, 5)
    consumer.close()
    again = client.subscribe(topic, "s", initial_position=InitialPosition.Earliest)
    assert_quiet(again)


def test_table_view_holds_the_last_value_of_each_key(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    for number in range(20):
        producer.send(b"%d" % number, partition_key=f"k{number % 3}")
    view = client.create_table_view(topic)
    eventually(lambda: len(view) == 3)
    assert {key: view.get(key) for key in ("k0", "k1", "k2")} == {"k0": b"18", "k1": b"19", "k2": b"17"}
    view.close()
