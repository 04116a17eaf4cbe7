"""Where is a topic, how many partitions has it, which topics are there."""

from __future__ import annotations

from geminga.broker.session import Handler, Session
from geminga.errors import GemingaError, TopicNotFound
from geminga.names import NamespaceName, TopicName
from geminga.wire import encoder
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.topic_list import topics_hash


def lookup(session: Session, command: pb.CommandLookupTopic) -> None:
    """Every topic is here: answer with the address that the client came in by."""
    answer = pb.CommandLookupTopicResponse(
        request_id=command.request_id,
        response=pb.CommandLookupTopicResponse.Connect,
        brokerServiceUrl=session.service_url,
        authoritative=True,
        proxy_through_service_url=False,
    )
    try:
        name = TopicName.parse(command.topic)
        session.rooms.namespaces.check_exists(name.namespace)
        if not session.topics.may_be_created(name):
            raise TopicNotFound(f"Topic {name} does not exist and may not be created automatically")
    except GemingaError as error:
        answer = pb.CommandLookupTopicResponse(
            request_id=command.request_id,
            response=pb.CommandLookupTopicResponse.Failed,
            error=int(error.server_error),  # type: ignore[arg-type]
            message=str(error),
        )
    session.outbox.write(
        encoder.frame(pb.BaseCommand(type=pb.BaseCommand.LOOKUP_RESPONSE, lookupTopicResponse=answer))
    )


async def partition_metadata(session: Session, command: pb.CommandPartitionedTopicMetadata) -> None:
    """How many partitions a topic has; one that is made partitioned by default is made here, as in Pulsar."""
    kind = pb.CommandPartitionedTopicMetadataResponse
    try:
        name = TopicName.parse(command.topic)
        session.rooms.namespaces.check_exists(name.namespace)
        partitions = await session.topics.partitions_or_create(
            name, create=command.metadata_auto_creation_enabled
        )
        answer = kind(partitions=partitions, request_id=command.request_id, response=kind.Success)
    except GemingaError as error:
        answer = kind(
            request_id=command.request_id,
            response=kind.Failed,
            error=int(error.server_error),  # type: ignore[arg-type]
            message=str(error),
        )
    session.outbox.write(
        encoder.frame(
            pb.BaseCommand(
                type=pb.BaseCommand.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=answer
            )
        )
    )


def topics_of_namespace(session: Session, command: pb.CommandGetTopicsOfNamespace) -> None:
    """All topics of a namespace; the client applies its pattern itself."""
    namespace = NamespaceName.parse(command.namespace)
    session.rooms.namespaces.check_exists(namespace)
    modes = pb.CommandGetTopicsOfNamespace
    names = [] if command.mode == modes.NON_PERSISTENT else session.topics.names_in(namespace)
    digest = topics_hash(names)
    changed = not command.HasField("topics_hash") or command.topics_hash != digest
    session.outbox.write(
        encoder.frame(
            pb.BaseCommand(
                type=pb.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE,
                getTopicsOfNamespaceResponse=pb.CommandGetTopicsOfNamespaceResponse(
                    request_id=command.request_id,
                    topics=names if changed else [],
                    filtered=False,
                    topics_hash=digest,
                    changed=changed,
                ),
            )
        )
    )


HANDLERS: dict[type, Handler] = {
    pb.CommandLookupTopic: lookup,
    pb.CommandPartitionedTopicMetadata: partition_metadata,
    pb.CommandGetTopicsOfNamespace: topics_of_namespace,
}
