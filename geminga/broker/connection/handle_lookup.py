"""Lookups: the broker of a topic, and its number of partitions."""

from __future__ import annotations

from geminga.broker.connection.session import Handler, Session
from geminga.errors import GemingaError, NamespaceNotFound, TopicNotFound, TransactionsNotServed
from geminga.names import TopicName
from geminga.wire import encoder
from geminga.wire import pulsar_pb2 as pb

COORDINATORS = TopicName.parse("persistent://pulsar/system/transaction_coordinator_assign")
"""Each partition of this topic stands for a transaction coordinator, in Pulsar."""


def lookup(session: Session, command: pb.CommandLookupTopic) -> None:
    """Every topic is on this broker: answer with the address that the client has connected to."""
    figures, began_s = session.rooms.figures, session.rooms.clock.monotonic_s()
    try:
        name = TopicName.parse(command.topic)
        _refuse_coordinators(name)
        session.rooms.namespaces.check_exists(name.namespace)
        if not session.topics.catalog.may_be_created(name):
            raise TopicNotFound(f"Topic {name} does not exist and may not be created automatically")
    except NamespaceNotFound as error:
        session.note("lookup of %r refused: Namespace not found", command.topic)
        answer = encoder.lookup_failed(command.request_id, error.server_error, "Namespace not found")
        figures.lookup_failed()
    except GemingaError as error:
        session.note("lookup of %r refused: %s", command.topic, error)
        answer = encoder.lookup_failed(command.request_id, error.server_error, str(error))
        figures.lookup_failed()
    else:
        figures.lookups.add((session.rooms.clock.monotonic_s() - began_s) * 1000)
        # As a standalone Pulsar: the client stays on the address by which it came, say a mapped port.
        answer = encoder.lookup(command.request_id, session.service_url, proxy_through_service_url=True)
    session.outbox.write(answer)


async def partition_metadata(session: Session, command: pb.CommandPartitionedTopicMetadata) -> None:
    """The number of a topic's partitions. A topic that is partitioned by default is created here, as in
    Pulsar.
    """
    try:
        name = TopicName.parse(command.topic)
        _refuse_coordinators(name)
        partitions = await session.topics.catalog.partitions_or_create(
            name, create=command.metadata_auto_creation_enabled
        )
    except GemingaError as error:
        session.note("partitions of %r refused: %s", command.topic, error)
        answer = encoder.partitioned_metadata_failed(command.request_id, error.server_error, str(error))
    else:
        answer = encoder.partitioned_metadata(command.request_id, partitions)
    session.outbox.write(answer)


def _refuse_coordinators(name: TopicName) -> None:
    """The first request of a client that is built for transactions."""
    # Told of 0 partitions, Java's client 2.10.0 asked for a coordinator nevertheless, again and again, and
    # its application waited for ever. This code is one that no client repeats.
    if name.partitioned_name == COORDINATORS:
        raise TransactionsNotServed("build the client without them (enableTransaction)")


HANDLERS: dict[type, Handler] = {
    pb.CommandLookupTopic: lookup,
    pb.CommandPartitionedTopicMetadata: partition_metadata,
}
