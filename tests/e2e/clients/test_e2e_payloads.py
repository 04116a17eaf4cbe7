"""What a message carries arrives as it was sent: batches, compression, chunks, encryption, all metadata."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pulsar
import pytest
from pulsar import BatchingType, CompressionType, ConsumerType

from tests.e2e.admin_http import Admin
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
KEYS = Path(__file__).parent / "keys"
COMPRESSIONS = [CompressionType.LZ4, CompressionType.ZLib, CompressionType.ZSTD, CompressionType.SNAPPY]
MIB = 1024 * 1024


def test_all_metadata_arrives(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, producer_name="orders-1")
    before_ms = now_ms()
    producer.send(
        b"body",
        properties={"colour": "red", "empty": "", "ünïcödé": "日本"},
        partition_key="key-1",
        ordering_key="order-1",
        event_timestamp=1_234_567_890_123,
    )
    message = receive(consumer)
    assert message.data() == b"body"
    assert message.properties() == {"colour": "red", "empty": "", "ünïcödé": "日本"}
    assert message.partition_key() == "key-1"
    assert message.ordering_key() == "order-1"
    assert message.event_timestamp() == 1_234_567_890_123
    assert before_ms <= message.publish_timestamp() <= now_ms()
    assert message.producer_name() == "orders-1"
    assert message.redelivery_count() == 0
    assert message.topic_name() == topic


def test_nothing_is_made_up(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    client.create_producer(topic).send(b"plain")
    message = receive(consumer)
    assert (message.properties(), message.partition_key(), message.ordering_key()) == ({}, "", "")
    assert message.event_timestamp() == 0
    assert not message.has_null_value()


@pytest.mark.parametrize("is_batched", [False, True], ids=["single", "batched"])
def test_null_value_is_not_an_empty_one(client: pulsar.Client, topic: str, is_batched: bool) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=is_batched)
    producer.send(None, partition_key="k")
    producer.send(b"", partition_key="k")
    tombstone, empty = receive_count(consumer, 2)
    assert tombstone.has_null_value()
    assert tombstone.partition_key() == "k"
    assert not empty.has_null_value()
    assert empty.data() == b""


def test_a_batch_is_one_entry_with_many_messages(client: pulsar.Client, admin: Admin, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, batching_enabled=True, batching_max_publish_delay_ms=60_000)
    receipts: list[tuple[int, int, int]] = []
    for number in range(10):
        producer.send_async(
            b"%d" % number,
            lambda result, message_id: receipts.append(place(message_id)),
            properties={"number": str(number)},
            partition_key=f"k{number}",
        )
    producer.flush()
    messages = receive_count(consumer, 10)
    assert payloads(messages) == [b"%d" % number for number in range(10)]
    assert [message.properties() for message in messages] == [{"number": str(n)} for n in range(10)]
    assert [message.partition_key() for message in messages] == [f"k{n}" for n in range(10)]
    assert (
        len({(message.message_id().ledger_id(), message.message_id().entry_id()) for message in messages})
        == 1
    )
    assert [message.message_id().batch_index() for message in messages] == list(range(10))
    eventually(lambda: len(receipts) == 10)
    assert receipts == [place(message.message_id()) for message in messages]
    stats = admin.stats(topic)
    assert stats["msgInCounter"] == 10


def test_key_based_batches_hold_one_key_each(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", ConsumerType.KeyShared)
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_type=BatchingType.KeyBased,
        batching_max_publish_delay_ms=60_000,
    )
    for number in range(12):
        producer.send_async(b"%d" % number, lambda result, message_id: None, partition_key=f"k{number % 3}")
    producer.flush()
    entries: dict[int, set[str]] = {}
    messages = receive_count(consumer, 12)
    for message in messages:
        entries.setdefault(message.message_id().entry_id(), set()).add(message.partition_key())
    assert len(entries) == 3
    assert all(len(keys) == 1 for keys in entries.values())
    for key in ("k0", "k1", "k2"):
        numbers = [int(message.data()) for message in messages if message.partition_key() == key]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("is_batched", [False, True], ids=["single", "batched"])
@pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda value: value.name)
def test_compressed_payloads(
    client: pulsar.Client, topic: str, compression: CompressionType, is_batched: bool
) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, compression_type=compression, batching_enabled=is_batched)
    bodies = [b"x", b"abc" * 10_000, random.Random(7).randbytes(50_000)]
    for body in bodies:
        producer.send(body)
    assert payloads(receive_count(consumer, len(bodies))) == bodies


def test_a_compressed_message_is_stored_small(client: pulsar.Client, admin: Admin, topic: str) -> None:
    client.subscribe(topic, "s")
    client.create_producer(topic, compression_type=CompressionType.ZSTD).send(bytes(MIB))
    assert eventually(lambda: admin.stats(topic)["storageSize"]) < 10_000


@pytest.mark.parametrize("size", [0, 1, 1023, 65_536, MIB, 5 * MIB - 200])
def test_sizes_up_to_the_maximum(client: pulsar.Client, topic: str, size: int) -> None:
    consumer = client.subscribe(topic, "s")
    body = random.Random(size).randbytes(size)
    client.create_producer(topic).send(body)
    assert receive(consumer).data() == body


def test_a_message_over_the_maximum_is_refused_by_the_client(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    with pytest.raises(pulsar.MessageTooBig):
        producer.send(bytes(5 * MIB + 1))
    producer.send(b"next")
    assert receive(consumer).data() == b"next"


def test_chunked_message(client: pulsar.Client, admin: Admin, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic, chunking_enabled=True)
    body = random.Random(3).randbytes(12 * MIB)
    producer.send(body, properties={"kind": "large"})
    producer.send(b"small")
    large, small = receive_count(consumer, 2)
    assert large.data() == body
    assert large.properties() == {"kind": "large"}
    assert small.data() == b"small"
    eventually(lambda: admin.backlog(topic, "s") == 0)


def test_chunks_of_two_producers_interleave(make_client: Make, topic: str) -> None:
    consumer = make_client().subscribe(topic, "s", ConsumerType.Shared)
    bodies = [random.Random(seed).randbytes(11 * MIB) for seed in (1, 2)]
    producers = [make_client().create_producer(topic, chunking_enabled=True) for _ in bodies]
    for producer, body in zip(producers, bodies, strict=True):
        producer.send_async(body, lambda result, message_id: None)
    assert sorted(payloads(receive_count(consumer, 2))) == sorted(bodies)


@pytest.mark.parametrize("is_batched", [False, True], ids=["single", "batched"])
def test_encrypted_payloads_pass_through(make_client: Make, topic: str, is_batched: bool) -> None:
    reader = pulsar.CryptoKeyReader(str(KEYS / "public.pem"), str(KEYS / "private.pem"))
    client = make_client()
    consumer = client.subscribe(topic, "with-key", crypto_key_reader=reader)
    blind = client.subscribe(
        topic, "without-key", crypto_failure_action=pulsar.ConsumerCryptoFailureAction.CONSUME
    )
    producer = client.create_producer(
        topic, encryption_key="key-1", crypto_key_reader=reader, batching_enabled=is_batched
    )
    producer.send(b"a secret", properties={"open": "yes"})
    message = receive(consumer)
    assert message.data() == b"a secret"
    assert message.properties() == {"open": "yes"}
    sealed = receive(blind)
    assert b"a secret" not in sealed.data()
    context = sealed.encryption_context()
    assert context is not None
    assert [key.key for key in context.keys()]  # noqa: SIM118 == ["key-1"]
    assert context.is_decryption_failed()


def test_thousands_in_batches_arrive_once_and_in_order(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(
        topic, batching_enabled=True, block_if_queue_full=True, compression_type=CompressionType.LZ4
    )
    for number in range(5000):
        producer.send_async(b"%d" % number, lambda result, message_id: None)
    producer.flush()
    assert payloads(receive_count(consumer, 5000)) == [b"%d" % number for number in range(5000)]
    assert_quiet(consumer)


def test_batch_receive(client: pulsar.Client, topic: str) -> None:
    policy = pulsar.ConsumerBatchReceivePolicy(10, -1, 2000)
    consumer = client.subscribe(topic, "s", batch_receive_policy=policy)
    producer = client.create_producer(topic)
    for number in range(20):
        producer.send(b"%d" % number)
    bodies = [message.data() for _ in range(2) for message in consumer.batch_receive()]
    assert bodies == [b"%d" % number for number in range(20)]
    assert_quiet(consumer)
