"""Clients that bring a schema can produce and consume."""

from __future__ import annotations

import pulsar
import pytest
from pulsar.schema import BytesSchema, Integer, JsonSchema, Record, Schema, String, StringSchema

from tests.e2e.waiting import receive


class Order(Record):  # type: ignore[misc]
    number = Integer()
    colour = String()


def test_string_schema(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", schema=StringSchema())
    client.create_producer(topic, schema=StringSchema()).send("grün")
    assert receive(consumer).value() == "grün"


def test_json_schema(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", schema=JsonSchema(Order))
    producer = client.create_producer(topic, schema=JsonSchema(Order))
    producer.send(Order(number=7, colour="red"))
    value = receive(consumer).value()
    assert (value.number, value.colour) == (7, "red")


def test_json_schema_reconnects_with_the_same_schema(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", schema=JsonSchema(Order))
    for number in range(2):
        producer = client.create_producer(topic, schema=JsonSchema(Order))
        producer.send(Order(number=number, colour="red"))
        producer.close()
        assert receive(consumer).value().number == number


@pytest.mark.parametrize("is_batched", [False, True], ids=["single", "batched"])
def test_bytes_consumer_reads_what_a_schema_wrote(
    client: pulsar.Client, topic: str, is_batched: bool
) -> None:
    consumer = client.subscribe(topic, "s", schema=BytesSchema())
    producer = client.create_producer(topic, schema=StringSchema(), batching_enabled=is_batched)
    producer.send("text")
    assert receive(consumer).data() == b"text"


def test_schema_information_is_sent(client: pulsar.Client, topic: str) -> None:
    schema: Schema = JsonSchema(Order)
    client.create_producer(topic, schema=schema)
    consumer = client.subscribe(topic, "s", schema=schema)
    client.create_producer(topic, schema=schema).send(Order(number=1, colour="blue"))
    assert receive(consumer).value().colour == "blue"
