"""Commands of Geminga's own small client: enough to look up, produce, consume and browse."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from fastcrc.crc32 import iscsi as crc_32c

from geminga.limits import PROTOCOL_VERSION
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import unsigned
from geminga.wire.encoder import frame

_TYPE = pb.BaseCommand.Type
_SIZES = struct.Struct(">II")
_CHECKSUM = struct.Struct(">HI")
_CHECKSUM_MAGIC = 0x0E01


def connect(
    client_version: str,
    *,
    protocol_version: int = PROTOCOL_VERSION,
    auth_method: str | None = None,
    auth_data: bytes | None = None,
    broker_entry_metadata: bool = False,
) -> bytes:
    """`broker_entry_metadata`: whether deliveries should include the broker's metadata before each entry."""
    command = pb.CommandConnect(
        client_version=client_version,
        protocol_version=protocol_version,
        auth_method_name=auth_method,
        auth_data=auth_data,
        feature_flags=pb.FeatureFlags(supports_broker_entry_metadata=True) if broker_entry_metadata else None,
    )
    return frame(pb.BaseCommand(type=_TYPE.CONNECT, connect=command))


def partitioned_metadata(request_id: int, topic: str, *, create: bool = True) -> bytes:
    """`create` False: do not create the topic."""
    command = pb.CommandPartitionedTopicMetadata(
        request_id=request_id, topic=topic, metadata_auto_creation_enabled=create
    )
    return frame(pb.BaseCommand(type=_TYPE.PARTITIONED_METADATA, partitionMetadata=command))


def lookup(request_id: int, topic: str, *, authoritative: bool = False) -> bytes:
    command = pb.CommandLookupTopic(request_id=request_id, topic=topic, authoritative=authoritative)
    return frame(pb.BaseCommand(type=_TYPE.LOOKUP, lookupTopic=command))


def topics_of_namespace(request_id: int, namespace: str) -> bytes:
    command = pb.CommandGetTopicsOfNamespace(request_id=request_id, namespace=namespace)
    return frame(pb.BaseCommand(type=_TYPE.GET_TOPICS_OF_NAMESPACE, getTopicsOfNamespace=command))


def producer(
    request_id: int,
    producer_id: int,
    topic: str,
    name: str | None = None,
    *,
    schema: pb.Schema | None = None,
) -> bytes:
    """`name` None: the broker chooses one. `schema` is registered if the topic does not have it."""
    command = pb.CommandProducer(
        request_id=request_id,
        producer_id=producer_id,
        topic=topic,
        producer_name=name,
        user_provided_producer_name=name is not None,
        schema=schema,
    )
    return frame(pb.BaseCommand(type=_TYPE.PRODUCER, producer=command))


def metadata(
    producer_name: str,
    sequence_id: int,
    publish_time_ms: int,
    *,
    key: str | None = None,
    properties: Mapping[str, str] | None = None,
    deliver_at_ms: int | None = None,
    event_time_ms: int | None = None,
) -> pb.MessageMetadata:
    """The metadata of a single message, not of a batch."""
    return pb.MessageMetadata(
        producer_name=producer_name,
        sequence_id=sequence_id,
        publish_time=publish_time_ms,
        partition_key=key,
        properties=[pb.KeyValue(key=k, value=v) for k, v in (properties or {}).items()],
        deliver_at_time=deliver_at_ms,
        event_time=event_time_ms,
    )


def entry(message_metadata: pb.MessageMetadata, payload: bytes) -> bytes:
    """The bytes after the SEND command: checksum, metadata and payload."""
    head = message_metadata.SerializeToString()
    rest = b"".join((len(head).to_bytes(4, "big"), head, payload))
    return _CHECKSUM.pack(_CHECKSUM_MAGIC, crc_32c(rest)) + rest


def send(
    producer_id: int,
    sequence_id: int,
    headers_and_payload: bytes,
    *,
    num_messages: int = 1,
    is_chunk: bool = False,
) -> bytes:
    """`headers_and_payload` is the result of `entry`."""
    command = pb.CommandSend(
        producer_id=producer_id,
        sequence_id=sequence_id,
        num_messages=num_messages if num_messages != 1 else None,
        is_chunk=is_chunk or None,
    )
    head = pb.BaseCommand(type=_TYPE.SEND, send=command).SerializeToString()
    sizes = _SIZES.pack(4 + len(head) + len(headers_and_payload), len(head))
    return b"".join((sizes, head, headers_and_payload))


def close_producer(request_id: int, producer_id: int) -> bytes:
    command = pb.CommandCloseProducer(request_id=request_id, producer_id=producer_id)
    return frame(pb.BaseCommand(type=_TYPE.CLOSE_PRODUCER, close_producer=command))


def subscribe(
    request_id: int,
    consumer_id: int,
    topic: str,
    subscription: str,
    *,
    sub_type: pb.CommandSubscribe.SubType = pb.CommandSubscribe.Exclusive,
    name: str | None = None,
    earliest: bool = False,
    durable: bool = True,
    start: tuple[int, int] | None = None,
    properties: Mapping[str, str] | None = None,
    priority_level: int = 0,
    create_topic: bool = True,
    read_compacted: bool = False,
) -> bytes:
    """`start` (ledger id, entry id), with `durable` False, is a reader's position. Consumers with the lowest
    `priority_level` come first.
    """
    command = pb.CommandSubscribe(
        request_id=request_id,
        consumer_id=consumer_id,
        topic=topic,
        subscription=subscription,
        subType=sub_type,
        consumer_name=name,
        initialPosition=pb.CommandSubscribe.Earliest if earliest else pb.CommandSubscribe.Latest,
        durable=durable,
        start_message_id=None if start is None else _message_id(start),
        subscription_properties=[pb.KeyValue(key=k, value=v) for k, v in (properties or {}).items()],
        priority_level=priority_level or None,
        force_topic_creation=None if create_topic else False,
        read_compacted=read_compacted or None,
    )
    return frame(pb.BaseCommand(type=_TYPE.SUBSCRIBE, subscribe=command))


def flow(consumer_id: int, permits: int) -> bytes:
    command = pb.CommandFlow(consumer_id=consumer_id, messagePermits=permits)
    return frame(pb.BaseCommand(type=_TYPE.FLOW, flow=command))


def ack(
    consumer_id: int,
    positions: Iterable[tuple[int, int]],
    *,
    cumulative: bool = False,
    request_id: int | None = None,
) -> bytes:
    """With a `request_id` the broker answers with ACK_RESPONSE."""
    command = pb.CommandAck(
        consumer_id=consumer_id,
        ack_type=pb.CommandAck.Cumulative if cumulative else pb.CommandAck.Individual,
        message_id=[_message_id(position) for position in positions],
        request_id=request_id,
    )
    return frame(pb.BaseCommand(type=_TYPE.ACK, ack=command))


def ack_part(consumer_id: int, position: tuple[int, int], remaining: Iterable[int], size: int) -> bytes:
    """Acknowledge a batch of `size` messages except those at the indexes `remaining`."""
    bits = sum(1 << index for index in remaining)
    message_id = _message_id(position)
    for at in range(0, size, 64):
        word = bits >> at & 0xFFFF_FFFF_FFFF_FFFF
        message_id.ack_set.append(word - (1 << 64) if word >> 63 else word)
    command = pb.CommandAck(
        consumer_id=consumer_id, ack_type=pb.CommandAck.Individual, message_id=[message_id]
    )
    return frame(pb.BaseCommand(type=_TYPE.ACK, ack=command))


def get_schema(request_id: int, topic: str, version: bytes | None = None) -> bytes:
    """`version` None: the newest."""
    command = pb.CommandGetSchema(request_id=request_id, topic=topic, schema_version=version)
    return frame(pb.BaseCommand(type=_TYPE.GET_SCHEMA, getSchema=command))


def redeliver(consumer_id: int, positions: Iterable[tuple[int, int]] = ()) -> bytes:
    """Without positions: all messages that the consumer has not acknowledged."""
    command = pb.CommandRedeliverUnacknowledgedMessages(
        consumer_id=consumer_id, message_ids=[_message_id(position) for position in positions]
    )
    return frame(
        pb.BaseCommand(type=_TYPE.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliverUnacknowledgedMessages=command)
    )


def seek(
    request_id: int,
    consumer_id: int,
    *,
    position: tuple[int, int] | None = None,
    publish_time_ms: int | None = None,
) -> bytes:
    command = pb.CommandSeek(
        request_id=request_id,
        consumer_id=consumer_id,
        message_id=None if position is None else _message_id(position),
        message_publish_time=publish_time_ms,
    )
    return frame(pb.BaseCommand(type=_TYPE.SEEK, seek=command))


def last_message_id(request_id: int, consumer_id: int) -> bytes:
    command = pb.CommandGetLastMessageId(request_id=request_id, consumer_id=consumer_id)
    return frame(pb.BaseCommand(type=_TYPE.GET_LAST_MESSAGE_ID, getLastMessageId=command))


def unsubscribe(request_id: int, consumer_id: int, *, force: bool = False) -> bytes:
    command = pb.CommandUnsubscribe(request_id=request_id, consumer_id=consumer_id, force=force)
    return frame(pb.BaseCommand(type=_TYPE.UNSUBSCRIBE, unsubscribe=command))


def close_consumer(request_id: int, consumer_id: int) -> bytes:
    command = pb.CommandCloseConsumer(request_id=request_id, consumer_id=consumer_id)
    return frame(pb.BaseCommand(type=_TYPE.CLOSE_CONSUMER, close_consumer=command))


def _message_id(position: tuple[int, int]) -> pb.MessageIdData:
    return pb.MessageIdData(ledgerId=unsigned(position[0]), entryId=unsigned(position[1]))
