"""Commands that a broker sends, as bytes: one small function each.

Texts are sent unchanged, cut if they are very long: no secrets, no paths. `transaction_encoder.py` has the
answers to transactions, `hot_encoder.py` the two commands that are sent for each message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TypeAlias, cast

from geminga.errors import ServerError
from geminga.limits import MESSAGE_BYTES_MAX, PROTOCOL_VERSION
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import unsigned
from geminga.wire.hot_encoder import MessageEncoder, ReceiptEncoder

__all__ = ["MessageEncoder", "ReceiptEncoder"]

_SIZES = struct.Struct(">II")
_TYPE = pb.BaseCommand.Type
TEXT_CHARS_MAX = 64 * 1024
"""The limit of an error's text: one that quotes two large schemas must not exceed the largest frame."""

Code: TypeAlias = ServerError | int


def frame(command: pb.BaseCommand) -> bytes:
    """The whole frame of a command without a payload."""
    # No checksum: Pulsar's frames have one over metadata and payload only.
    body = command.SerializeToString()
    return _SIZES.pack(len(body) + 4, len(body)) + body


def as_code(code: Code) -> pb.ServerError:
    """The number for a protobuf field; the errors' numbers are those of the protocol."""
    return cast("pb.ServerError", int(code))


def _said(text: str) -> str:
    """A text that is valid in a command: an error may quote a peer's bytes, including invalid UTF-8."""
    # A text that protobuf refuses would raise while an error is reported, and the client would get no answer
    # at all.
    return text[:TEXT_CHARS_MAX].encode(errors="backslashreplace").decode()


def message_id(
    ledger_id: int, entry_id: int, *, partition: int | None = None, batch_index: int | None = None
) -> pb.MessageIdData:
    """-1 for "none" is allowed in both ids; `partition` and `batch_index` are left out if None."""
    # Java's ids are signed longs in unsigned fields: -1 is sent as 2**64 - 1, and clients turn it back.
    return pb.MessageIdData(
        ledgerId=unsigned(ledger_id), entryId=unsigned(entry_id), partition=partition, batch_index=batch_index
    )


# -- connection ------------------------------------------------------------------------------------------


def connected(
    server_version: str,
    *,
    protocol_version: int = PROTOCOL_VERSION,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    topic_watchers: bool = False,
    partition_lookup_without_creation: bool = True,
) -> bytes:
    """The answer to CONNECT. `protocol_version` should be the lower of both sides'."""
    answer = pb.CommandConnected(
        server_version=server_version,
        protocol_version=protocol_version,
        max_message_size=message_bytes_max,
        feature_flags=pb.FeatureFlags(
            supports_topic_watchers=topic_watchers,
            supports_get_partitioned_metadata_without_auto_creation=partition_lookup_without_creation,
        ),
    )
    return frame(pb.BaseCommand(type=_TYPE.CONNECTED, connected=answer))


_PING = frame(pb.BaseCommand(type=_TYPE.PING, ping=pb.CommandPing()))
_PONG = frame(pb.BaseCommand(type=_TYPE.PONG, pong=pb.CommandPong()))


def ping() -> bytes:
    return _PING


def pong() -> bytes:
    return _PONG


def success(request_id: int, schema: pb.Schema | None = None) -> bytes:
    answer = pb.CommandSuccess(request_id=request_id, schema=schema)
    return frame(pb.BaseCommand(type=_TYPE.SUCCESS, success=answer))


def error(request_id: int, code: Code, text: str) -> bytes:
    answer = pb.CommandError(request_id=request_id, error=as_code(code), message=_said(text))
    return frame(pb.BaseCommand(type=_TYPE.ERROR, error=answer))


# -- topics ----------------------------------------------------------------------------------------------


def partitioned_metadata(request_id: int, partitions: int) -> bytes:
    """`partitions` 0: the topic is not partitioned."""
    answer = pb.CommandPartitionedTopicMetadataResponse(
        request_id=request_id,
        partitions=partitions,
        response=pb.CommandPartitionedTopicMetadataResponse.Success,
    )
    return frame(pb.BaseCommand(type=_TYPE.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=answer))


def partitioned_metadata_failed(request_id: int, code: Code, text: str) -> bytes:
    answer = pb.CommandPartitionedTopicMetadataResponse(
        request_id=request_id,
        response=pb.CommandPartitionedTopicMetadataResponse.Failed,
        error=as_code(code),
        message=_said(text),
    )
    return frame(pb.BaseCommand(type=_TYPE.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=answer))


def lookup(
    request_id: int,
    service_url: str,
    service_url_tls: str | None = None,
    *,
    redirect: bool = False,
    authoritative: bool = True,
    proxy_through_service_url: bool = False,
) -> bytes:
    """The broker of the topic: connect to it, or (`redirect`) send the lookup to it."""
    answer = pb.CommandLookupTopicResponse(
        request_id=request_id,
        brokerServiceUrl=service_url,
        brokerServiceUrlTls=service_url_tls,
        response=pb.CommandLookupTopicResponse.Redirect
        if redirect
        else pb.CommandLookupTopicResponse.Connect,
        authoritative=authoritative,
        proxy_through_service_url=proxy_through_service_url,
    )
    return frame(pb.BaseCommand(type=_TYPE.LOOKUP_RESPONSE, lookupTopicResponse=answer))


def lookup_failed(request_id: int, code: Code, text: str) -> bytes:
    answer = pb.CommandLookupTopicResponse(
        request_id=request_id,
        response=pb.CommandLookupTopicResponse.Failed,
        error=as_code(code),
        message=_said(text),
    )
    return frame(pb.BaseCommand(type=_TYPE.LOOKUP_RESPONSE, lookupTopicResponse=answer))


def topics_of_namespace(
    request_id: int,
    topics: Iterable[str],
    *,
    filtered: bool = False,
    topics_hash: str | None = None,
    changed: bool = True,
) -> bytes:
    answer = pb.CommandGetTopicsOfNamespaceResponse(
        request_id=request_id, topics=topics, filtered=filtered, topics_hash=topics_hash, changed=changed
    )
    return frame(
        pb.BaseCommand(type=_TYPE.GET_TOPICS_OF_NAMESPACE_RESPONSE, getTopicsOfNamespaceResponse=answer)
    )


def topic_list_watched(request_id: int, watcher_id: int, topics: Iterable[str], topics_hash: str) -> bytes:
    answer = pb.CommandWatchTopicListSuccess(
        request_id=request_id, watcher_id=watcher_id, topic=topics, topics_hash=topics_hash
    )
    return frame(pb.BaseCommand(type=_TYPE.WATCH_TOPIC_LIST_SUCCESS, watchTopicListSuccess=answer))


def topic_list_changed(
    watcher_id: int, new_topics: Iterable[str], deleted_topics: Iterable[str], topics_hash: str
) -> bytes:
    update = pb.CommandWatchTopicUpdate(
        watcher_id=watcher_id, new_topics=new_topics, deleted_topics=deleted_topics, topics_hash=topics_hash
    )
    return frame(pb.BaseCommand(type=_TYPE.WATCH_TOPIC_UPDATE, watchTopicUpdate=update))


# -- schemas ---------------------------------------------------------------------------------------------


def schema_found(request_id: int, schema: pb.Schema, version: bytes) -> bytes:
    answer = pb.CommandGetSchemaResponse(request_id=request_id, schema=schema, schema_version=version)
    return frame(pb.BaseCommand(type=_TYPE.GET_SCHEMA_RESPONSE, getSchemaResponse=answer))


def schema_failed(request_id: int, code: Code, text: str) -> bytes:
    answer = pb.CommandGetSchemaResponse(
        request_id=request_id, error_code=as_code(code), error_message=_said(text)
    )
    return frame(pb.BaseCommand(type=_TYPE.GET_SCHEMA_RESPONSE, getSchemaResponse=answer))


def schema_created(request_id: int, version: bytes) -> bytes:
    answer = pb.CommandGetOrCreateSchemaResponse(request_id=request_id, schema_version=version)
    return frame(pb.BaseCommand(type=_TYPE.GET_OR_CREATE_SCHEMA_RESPONSE, getOrCreateSchemaResponse=answer))


def schema_not_created(request_id: int, code: Code, text: str) -> bytes:
    answer = pb.CommandGetOrCreateSchemaResponse(
        request_id=request_id, error_code=as_code(code), error_message=_said(text)
    )
    return frame(pb.BaseCommand(type=_TYPE.GET_OR_CREATE_SCHEMA_RESPONSE, getOrCreateSchemaResponse=answer))


# -- producers -------------------------------------------------------------------------------------------


def producer_success(
    request_id: int,
    producer_name: str,
    *,
    last_sequence_id: int = -1,
    schema_version: bytes | None = None,
    topic_epoch: int | None = None,
    ready: bool = True,
) -> bytes:
    """`ready` False: the client has to wait for another PRODUCER_SUCCESS before it sends."""
    answer = pb.CommandProducerSuccess(
        request_id=request_id,
        producer_name=producer_name,
        last_sequence_id=last_sequence_id,
        schema_version=schema_version,
        topic_epoch=topic_epoch,
        producer_ready=ready,
    )
    return frame(pb.BaseCommand(type=_TYPE.PRODUCER_SUCCESS, producer_success=answer))


def send_error(producer_id: int, sequence_id: int, code: Code, text: str) -> bytes:
    answer = pb.CommandSendError(
        producer_id=producer_id, sequence_id=unsigned(sequence_id), error=as_code(code), message=_said(text)
    )
    return frame(pb.BaseCommand(type=_TYPE.SEND_ERROR, send_error=answer))


def close_producer(
    producer_id: int, request_id: int, service_url: str | None = None, service_url_tls: str | None = None
) -> bytes:
    """Makes the client look the topic up again, or connect to `service_url`. -1 as request id: none."""
    answer = pb.CommandCloseProducer(
        producer_id=producer_id,
        request_id=unsigned(request_id),
        assignedBrokerServiceUrl=service_url,
        assignedBrokerServiceUrlTls=service_url_tls,
    )
    return frame(pb.BaseCommand(type=_TYPE.CLOSE_PRODUCER, close_producer=answer))


# -- consumers -------------------------------------------------------------------------------------------


def close_consumer(
    consumer_id: int, request_id: int, service_url: str | None = None, service_url_tls: str | None = None
) -> bytes:
    """Makes the client look the topic up again, or connect to `service_url`. -1 as request id: none."""
    answer = pb.CommandCloseConsumer(
        consumer_id=consumer_id,
        request_id=unsigned(request_id),
        assignedBrokerServiceUrl=service_url,
        assignedBrokerServiceUrlTls=service_url_tls,
    )
    return frame(pb.BaseCommand(type=_TYPE.CLOSE_CONSUMER, close_consumer=answer))


def ack_response(
    consumer_id: int,
    request_id: int | None,
    code: Code | None = None,
    text: str | None = None,
    *,
    txnid: tuple[int, int] | None = None,
) -> bytes:
    """`txnid` is (most bits, least bits) of the transaction that the ack belonged to."""
    answer = pb.CommandAckResponse(
        consumer_id=consumer_id,
        request_id=request_id,
        error=None if code is None else as_code(code),
        message=None if text is None else _said(text),
        txnid_most_bits=None if txnid is None else txnid[0],
        txnid_least_bits=None if txnid is None else txnid[1],
    )
    return frame(pb.BaseCommand(type=_TYPE.ACK_RESPONSE, ackResponse=answer))


def active_consumer_change(consumer_id: int, is_active: bool) -> bytes:
    answer = pb.CommandActiveConsumerChange(consumer_id=consumer_id, is_active=is_active)
    return frame(pb.BaseCommand(type=_TYPE.ACTIVE_CONSUMER_CHANGE, active_consumer_change=answer))


def reached_end_of_topic(consumer_id: int) -> bytes:
    answer = pb.CommandReachedEndOfTopic(consumer_id=consumer_id)
    return frame(pb.BaseCommand(type=_TYPE.REACHED_END_OF_TOPIC, reachedEndOfTopic=answer))


def last_message_id(
    request_id: int, last: pb.MessageIdData, mark_delete: pb.MessageIdData | None = None
) -> bytes:
    """Both ids come from `message_id()`; an empty topic's last message is (ledger, -1) or (-1, -1)."""
    answer = pb.CommandGetLastMessageIdResponse(
        request_id=request_id, last_message_id=last, consumer_mark_delete_position=mark_delete
    )
    return frame(pb.BaseCommand(type=_TYPE.GET_LAST_MESSAGE_ID_RESPONSE, getLastMessageIdResponse=answer))


def consumer_stats(answer: pb.CommandConsumerStatsResponse) -> bytes:
    """The fields are the protobuf message's own."""
    return frame(pb.BaseCommand(type=_TYPE.CONSUMER_STATS_RESPONSE, consumerStatsResponse=answer))
