"""Clients that bring a schema can produce and consume."""

from __future__ import annotations

from pathlib import Path

import pulsar
import pytest
from pulsar.schema import AvroSchema, BytesSchema, Integer, JsonSchema, Record, Schema, String, StringSchema

from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.operators.schema_recording import ONE, WITH_DEFAULT
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


class Other(Record):  # type: ignore[misc]
    number = String()


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_a_schema_grows_and_what_does_not_fit_is_refused(
    client: pulsar.Client, topic: str, kind: type[Schema]
) -> None:
    grown = type(
        "Order",
        (Record,),
        {"number": Integer(), "colour": String(), "weight": Integer(required_default=True)},
    )
    consumer = client.subscribe(topic, "s", schema=kind(Order))
    client.create_producer(topic, schema=kind(Order)).send(Order(number=1, colour="red"))
    client.create_producer(topic, schema=kind(grown)).send(grown(number=2, colour="blue", weight=3))
    assert [receive(consumer).value().number for _ in range(2)] == [1, 2]
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=kind(Other))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "t", schema=StringSchema())


@pytest.mark.geminga_only
def test_versions_survive_a_kill(tmp_path: Path) -> None:
    path = "/admin/v2/schemas/public/default/t"
    bodies = [{"type": "AVRO", "schema": avro, "properties": {"n": "1"}} for avro in (ONE, WITH_DEFAULT)]
    with BrokerProcess(tmp_path / "data") as broker:
        admin = Admin(broker.endpoints.web_url)
        for version, body in enumerate(bodies):
            assert admin.post(f"{path}/schema", body).json() == {"version": {"version": version}}
        before = admin.get(f"{path}/schemas").json()
        broker.kill()
        broker.start()
        assert admin.get(f"{path}/schemas").json() == before
        assert [one["data"] for one in before["getSchemaResponses"]] == [ONE, WITH_DEFAULT]
        assert admin.post(f"{path}/version", bodies[0]).json() == {"version": 0}
