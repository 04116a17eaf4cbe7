"""GET_SCHEMA, GET_OR_CREATE_SCHEMA, and the schemas in PRODUCER and SUBSCRIBE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from geminga.broker.connection.session import Handler, Session
from geminga.broker.dispatch.consumer import AUTO_CONSUME
from geminga.broker.schemas.types import from_wire, to_wire
from geminga.errors import GemingaError, IncompatibleSchema, ServerError, TopicNotFound
from geminga.names import TopicName
from geminga.wire import encoder
from geminga.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from geminga.broker.topic.topic import Topic

VERSION_BYTES = 8
NO_VERSION = b""


def version_bytes(version: int) -> bytes:
    return version.to_bytes(VERSION_BYTES, "big")


def schema_name(topic: TopicName) -> str:
    """Pulsar's name for the schema of a topic."""
    return f"{topic.namespace}/{topic.partitioned_name.local}"


async def add_schema(
    session: Session, topic: Topic, command: pb.CommandProducer | pb.CommandGetOrCreateSchema
) -> bytes:
    """Register a producer's schema. Returns its version as on the wire; empty if the producer
    has no schema.
    """
    registry, policies = session.topics.schemas, topic.policies
    if command.HasField("schema"):
        schema = from_wire(command.schema)
        version = await registry.add(
            topic.name, schema, policies.schema_compatibility, may_change=policies.schema_auto_update
        )
        return version_bytes(version)
    enforced = (
        policies.schema_validation_enforced or session.rooms.policies.defaults.schema_validation_enforced
    )
    if enforced and registry.has_schema(topic.name):
        raise IncompatibleSchema(
            "Producers cannot connect or send message without a schema to topics with a schema "
            "when SchemaValidationEnforced is enabled"
        )
    return NO_VERSION


async def check_consumer_schema(session: Session, topic: Topic, command: pb.CommandSubscribe) -> None:
    """Check that a consumer's schema can read the topic's. An unused topic without a schema gets the
    consumer's.
    """
    if not command.HasField("schema") or command.schema.type == AUTO_CONSUME:
        return
    registry, policies = session.topics.schemas, topic.policies
    schema = from_wire(command.schema)
    if registry.has_schema(topic.name):
        registry.check_consumer(topic.name, schema, policies.schema_compatibility)
        return
    consumers = [consumer for s in topic.subscriptions.values() for consumer in s.consumers]
    is_used = (
        len(topic.producers)
        or any(not consumer.is_auto_consume for consumer in consumers)
        or topic.ledger.total_size_bytes
    )
    if is_used:
        raise IncompatibleSchema(
            f"Failed to add schema to an active topic with empty(BYTES) schema: new schema type {schema.type}"
        )
    await registry.add(
        topic.name, schema, policies.schema_compatibility, may_change=policies.schema_auto_update
    )


async def get_schema(session: Session, command: pb.CommandGetSchema) -> None:
    async with session.large_answers:
        await session.outbox.wait_taken()
        try:
            answer = _found(session, command)
        except GemingaError as error:
            answer = encoder.schema_failed(command.request_id, error.server_error, str(error))
        session.outbox.write(answer)


def _found(session: Session, command: pb.CommandGetSchema) -> bytes:
    topic = TopicName.parse(command.topic)
    registry = session.topics.schemas
    if not command.HasField("schema_version"):
        stored = registry.latest(topic)
    elif len(command.schema_version) != VERSION_BYTES:
        text = "Empty schema version" if not command.schema_version else "a schema version has 8 bytes"
        return encoder.schema_failed(command.request_id, ServerError.INCOMPATIBLE_SCHEMA, text)
    else:
        stored = registry.get(topic, int.from_bytes(command.schema_version, "big", signed=True))
    if stored is None:
        raise TopicNotFound(f"Topic not found or no-schema {topic}")
    schema = to_wire(stored.schema, schema_name(topic))
    return encoder.schema_found(command.request_id, schema, version_bytes(stored.version))


async def get_or_create_schema(session: Session, command: pb.CommandGetOrCreateSchema) -> None:
    try:
        name = TopicName.parse(command.topic)
        if not session.topics.catalog.exists(name):
            raise TopicNotFound(f"Topic not found {name}")
        topic = await session.topics.get(name, create=False)
        version = await add_schema(session, topic, command)
    except GemingaError as error:
        answer = encoder.schema_not_created(command.request_id, error.server_error, str(error))
    else:
        answer = encoder.schema_created(command.request_id, version)
    session.outbox.write(answer)


HANDLERS: dict[type, Handler] = {
    pb.CommandGetSchema: get_schema,
    pb.CommandGetOrCreateSchema: get_or_create_schema,
}
