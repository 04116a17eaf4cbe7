"""Producers: names, sequence ids, receipts, access modes, and the life of a producer on its connection."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pulsar
import pytest
from pulsar import InitialPosition, ProducerAccessMode

from tests.e2e.admin_http import Admin
from tests.e2e.waiting import eventually, payloads, place, receive, receive_count

Make = Callable[..., pulsar.Client]


def test_a_name_is_generated_when_none_is_given(client: pulsar.Client, topic: str) -> None:
    first, second = client.create_producer(topic), client.create_producer(topic)
    assert first.producer_name().startswith("standalone-")
    assert second.producer_name().startswith("standalone-")
    assert first.producer_name() != second.producer_name()


def test_generated_names_differ_between_topics(client: pulsar.Client, topic: str) -> None:
    names = {client.create_producer(f"{topic}-{i}").producer_name() for i in range(5)}
    assert len(names) == 5


def test_a_given_name_is_kept(client: pulsar.Client, topic: str) -> None:
    assert client.create_producer(topic, producer_name="orders-1").producer_name() == "orders-1"


def test_a_second_producer_of_the_same_name_is_refused(make_client: Make, topic: str) -> None:
    first = make_client().create_producer(topic, producer_name="orders-1")
    with pytest.raises(pulsar.ProducerBusy):
        make_client().create_producer(topic, producer_name="orders-1")
    first.send(b"still works")


def test_a_name_is_free_again_after_close(make_client: Make, topic: str) -> None:
    make_client().create_producer(topic, producer_name="orders-1").close()
    make_client().create_producer(topic, producer_name="orders-1").send(b"mine now")


def test_a_name_is_free_again_after_the_connection_has_gone(make_client: Make, topic: str) -> None:
    first = make_client()
    first.create_producer(topic, producer_name="orders-1")
    first.shutdown()

    def take_over() -> bool:
        try:
            make_client().create_producer(topic, producer_name="orders-1")
        except pulsar.ProducerBusy:
            return False
        return True

    eventually(take_over)


def test_the_same_name_is_free_on_another_topic(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, producer_name="orders-1").send(b"one")
    client.create_producer(topic + "-other", producer_name="orders-1").send(b"two")


def test_receipts_carry_growing_ids(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    places = [place(producer.send(b"%d" % i)) for i in range(20)]
    assert places == sorted(set(places))
    assert all(batch_index == -1 for _, _, batch_index in places)
    ledgers = {ledger for ledger, _, _ in places}
    assert len(ledgers) == 1
    assert [entry for _, entry, _ in places] == list(range(places[0][1], places[0][1] + 20))


def test_the_first_entry_of_a_new_topic_is_entry_zero(client: pulsar.Client, topic: str) -> None:
    assert client.create_producer(topic).send(b"first").entry_id() == 0


def test_messages_arrive_with_the_ids_of_their_receipts(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    sent = [place(producer.send(b"%d" % i)) for i in range(10)]
    assert [place(message.message_id()) for message in receive_count(consumer, 10)] == sent


def test_last_sequence_id_counts_from_minus_one(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    assert producer.last_sequence_id() == -1
    for expected in range(3):
        producer.send(b"x")
        assert producer.last_sequence_id() == expected


def test_given_sequence_ids_are_kept(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, initial_sequence_id=99)
    producer.send(b"a")
    assert producer.last_sequence_id() == 100
    producer.send(b"b", sequence_id=500)
    assert producer.last_sequence_id() == 500


def test_without_deduplication_a_new_session_starts_at_minus_one(make_client: Make, topic: str) -> None:
    producer = make_client().create_producer(topic, producer_name="orders-1")
    producer.send(b"a")
    producer.send(b"b")
    producer.close()
    assert make_client().create_producer(topic, producer_name="orders-1").last_sequence_id() == -1


def test_without_deduplication_a_repeated_sequence_id_is_stored_again(
    client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    producer.send(b"a", sequence_id=7)
    producer.send(b"b", sequence_id=7)
    assert payloads(receive_count(consumer, 2)) == [b"a", b"b"]


def test_asynchronous_sends_are_confirmed_in_order(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, block_if_queue_full=True)
    confirmed: list[tuple[int, tuple[int, int, int]]] = []
    is_done = threading.Event()

    def note(number: int) -> Callable[[pulsar.Result, pulsar.MessageId], None]:
        def on_receipt(result: pulsar.Result, message_id: pulsar.MessageId) -> None:
            if result == pulsar.Result.Ok:
                confirmed.append((number, place(message_id)))
            if number == 999:
                is_done.set()

        return on_receipt

    for number in range(1000):
        producer.send_async(b"%d" % number, note(number))
    assert is_done.wait(20)
    assert [number for number, _ in confirmed] == list(range(1000))
    assert [at for _, at in confirmed] == sorted(at for _, at in confirmed)


def test_two_producers_interleave_and_each_keeps_its_order(make_client: Make, topic: str) -> None:
    consumer = make_client().subscribe(topic, "s")
    producers = [make_client().create_producer(topic, producer_name=name) for name in ("left", "right")]
    for number in range(50):
        for producer in producers:
            producer.send_async(b"%d" % number, lambda result, message_id: None)
    messages = receive_count(consumer, 100)
    for name in ("left", "right"):
        mine = [message.data() for message in messages if message.producer_name() == name]
        assert mine == [b"%d" % number for number in range(50)]


def test_flush_returns_when_all_is_stored(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    confirmed = []
    for number in range(10):
        producer.send_async(b"%d" % number, lambda result, message_id: confirmed.append(result))
    producer.flush()
    eventually(lambda: len(confirmed) == 10)
    assert producer.last_sequence_id() == 9


def test_closing_the_producer_sends_what_its_batch_still_held(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    for number in range(3):
        producer.send_async(b"%d" % number, lambda result, message_id: None)
    producer.flush()
    producer.close()
    assert payloads(receive_count(consumer, 3)) == [b"0", b"1", b"2"]


def test_a_closed_producer_refuses_to_send(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.close()
    with pytest.raises(pulsar.AlreadyClosed):
        producer.send(b"too late")


def test_topic_is_created_by_its_first_producer(client: pulsar.Client, admin: Admin, topic: str) -> None:
    client.create_producer(topic)
    assert topic in admin.get("/admin/v2/persistent/public/default").json()


def test_topic_is_created_by_its_first_consumer(client: pulsar.Client, admin: Admin, topic: str) -> None:
    client.subscribe(topic, "s")
    assert topic in admin.get("/admin/v2/persistent/public/default").json()


def test_short_topic_names_stand_for_public_default(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic.removeprefix("persistent://public/default/")).send(b"short")
    message = receive(consumer)
    assert message.data() == b"short"
    assert message.topic_name() == topic


@pytest.mark.parametrize("name", ["no-such-tenant/default/x", "public/no-such-namespace/x"])
def test_topics_of_a_missing_namespace_are_refused(client: pulsar.Client, name: str) -> None:
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(f"persistent://{name}")


@pytest.mark.parametrize(
    "local", ["with space", "ünïcödé-日本", "a%2Fb", "plus+sign", "semi;colon", "q?a=b", "per%cent", "d.o:t="]
)
def test_topic_names_may_hold_more_than_letters(client: pulsar.Client, topic: str, local: str) -> None:
    name = f"{topic}-{local}"
    consumer = client.subscribe(name, "s")
    client.create_producer(name).send(b"odd name")
    message = receive(consumer)
    assert message.data() == b"odd name"
    assert message.topic_name() == name


def test_exclusive_access_refuses_a_second_producer(make_client: Make, topic: str) -> None:
    first = make_client().create_producer(topic, access_mode=ProducerAccessMode.Exclusive)
    with pytest.raises(pulsar.ProducerFenced):
        make_client().create_producer(topic, access_mode=ProducerAccessMode.Exclusive)
    with pytest.raises(pulsar.ProducerBusy):
        make_client().create_producer(topic)
    first.send(b"alone")


def test_exclusive_access_is_refused_beside_a_shared_producer(make_client: Make, topic: str) -> None:
    make_client().create_producer(topic)
    with pytest.raises(pulsar.ProducerFenced):
        make_client().create_producer(topic, access_mode=ProducerAccessMode.Exclusive)


def test_exclusive_access_is_free_again_after_close(make_client: Make, topic: str) -> None:
    make_client().create_producer(topic, access_mode=ProducerAccessMode.Exclusive).close()
    make_client().create_producer(topic, access_mode=ProducerAccessMode.Exclusive).send(b"mine")


def test_waiting_for_exclusive_access_gets_it_when_the_owner_leaves(make_client: Make, topic: str) -> None:
    owner = make_client().create_producer(topic, access_mode=ProducerAccessMode.Exclusive)
    waiting: list[pulsar.Producer] = []
    second = make_client()

    def wait_for_access() -> None:
        waiting.append(second.create_producer(topic, access_mode=ProducerAccessMode.WaitForExclusive))

    thread = threading.Thread(target=wait_for_access)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    owner.close()
    thread.join(10)
    assert not thread.is_alive()
    waiting[0].send(b"after the owner")


def test_fencing_takes_the_topic_from_its_owner(make_client: Make, topic: str) -> None:
    owner = make_client().create_producer(topic, access_mode=ProducerAccessMode.Exclusive)
    owner.send(b"before")
    fencer = make_client().create_producer(topic, access_mode=ProducerAccessMode.ExclusiveWithFencing)
    fencer.send(b"after")
    with pytest.raises(pulsar.PulsarException):
        owner.send(b"fenced")


def test_initial_position_of_a_late_subscription(client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(topic)
    producer.send(b"before")
    early = client.subscribe(topic, "early", initial_position=InitialPosition.Earliest)
    late = client.subscribe(topic, "late", initial_position=InitialPosition.Latest)
    producer.send(b"after")
    assert payloads(receive_count(early, 2)) == [b"before", b"after"]
    assert receive(late).data() == b"after"
