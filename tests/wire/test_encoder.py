"""Commands that a broker sends: each comes back from the decoder with the values that went in."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geminga.errors import ServerError
from geminga.wire import client_commands, encoder, transaction_encoder
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.decoder import Decoder, Delivery
from geminga.wire.hot_encoder import MessageEncoder, ReceiptEncoder
from geminga.wire.message_metadata import stamp
from geminga.wire.varint import scan_varint, skip_varint, varint

U64 = 2**64 - 1
CODE = ServerError.TOPIC_NOT_FOUND
SCHEMA = pb.Schema(name="s", schema_data=b"{}", type=pb.Schema.Json)


def decode_one(data: bytes) -> Any:
    (command,) = Decoder().feed(data)
    return command


ID = pb.MessageIdData(ledgerId=3, entryId=U64)
ANSWERS: list[tuple[bytes, Any]] = [
    (encoder.ping(), pb.CommandPing()),
    (encoder.pong(), pb.CommandPong()),
    (encoder.success(7), pb.CommandSuccess(request_id=7)),
    (encoder.success(7, SCHEMA), pb.CommandSuccess(request_id=7, schema=SCHEMA)),
    (encoder.error(7, CODE, "no"), pb.CommandError(request_id=7, error=pb.TopicNotFound, message="no")),
    (
        encoder.connected("Broker 1", protocol_version=15, message_bytes_max=99, topic_watchers=True),
        pb.CommandConnected(
            server_version="Broker 1",
            protocol_version=15,
            max_message_size=99,
            feature_flags=pb.FeatureFlags(
                supports_topic_watchers=True, supports_get_partitioned_metadata_without_auto_creation=True
            ),
        ),
    ),
    (
        encoder.partitioned_metadata(7, 0),
        pb.CommandPartitionedTopicMetadataResponse(request_id=7, partitions=0, response=0),
    ),
    (
        encoder.partitioned_metadata_failed(7, CODE, "no"),
        pb.CommandPartitionedTopicMetadataResponse(request_id=7, response=1, error=11, message="no"),
    ),
    (
        encoder.lookup(7, "pulsar://a:1", "pulsar+ssl://a:2"),
        pb.CommandLookupTopicResponse(
            request_id=7,
            brokerServiceUrl="pulsar://a:1",
            brokerServiceUrlTls="pulsar+ssl://a:2",
            response=1,
            authoritative=True,
            proxy_through_service_url=False,
        ),
    ),
    (
        encoder.lookup(7, "pulsar://b:1", redirect=True, authoritative=False, proxy_through_service_url=True),
        pb.CommandLookupTopicResponse(
            request_id=7,
            brokerServiceUrl="pulsar://b:1",
            response=0,
            authoritative=False,
            proxy_through_service_url=True,
        ),
    ),
    (
        encoder.lookup_failed(7, CODE, "no"),
        pb.CommandLookupTopicResponse(request_id=7, response=2, error=11, message="no"),
    ),
    (
        encoder.topics_of_namespace(7, ["a", "b"], filtered=True, topics_hash="h", changed=False),
        pb.CommandGetTopicsOfNamespaceResponse(
            request_id=7, topics=["a", "b"], filtered=True, topics_hash="h", changed=False
        ),
    ),
    (
        encoder.schema_found(7, SCHEMA, b"v"),
        pb.CommandGetSchemaResponse(request_id=7, schema=SCHEMA, schema_version=b"v"),
    ),
    (
        encoder.schema_failed(7, CODE, "no"),
        pb.CommandGetSchemaResponse(request_id=7, error_code=11, error_message="no"),
    ),
    (
        encoder.schema_created(7, b"v"),
        pb.CommandGetOrCreateSchemaResponse(request_id=7, schema_version=b"v"),
    ),
    (
        encoder.schema_not_created(7, ServerError.INCOMPATIBLE_SCHEMA, "no"),
        pb.CommandGetOrCreateSchemaResponse(request_id=7, error_code=18, error_message="no"),
    ),
    (
        encoder.producer_success(7, "p", last_sequence_id=5, schema_version=b"v", topic_epoch=2, ready=False),
        pb.CommandProducerSuccess(
            request_id=7,
            producer_name="p",
            last_sequence_id=5,
            schema_version=b"v",
            topic_epoch=2,
            producer_ready=False,
        ),
    ),
    (
        encoder.producer_success(7, "p"),
        pb.CommandProducerSuccess(request_id=7, producer_name="p", last_sequence_id=-1, producer_ready=True),
    ),
    (
        encoder.send_error(1, -1, ServerError.CHECKSUM, "bad"),
        pb.CommandSendError(producer_id=1, sequence_id=U64, error=9, message="bad"),
    ),
    (encoder.close_producer(1, -1), pb.CommandCloseProducer(producer_id=1, request_id=U64)),
    (
        encoder.close_producer(1, 7, "pulsar://c:1", "pulsar+ssl://c:2"),
        pb.CommandCloseProducer(
            producer_id=1,
            request_id=7,
            assignedBrokerServiceUrl="pulsar://c:1",
            assignedBrokerServiceUrlTls="pulsar+ssl://c:2",
        ),
    ),
    (encoder.close_consumer(1, -1), pb.CommandCloseConsumer(consumer_id=1, request_id=U64)),
    (
        encoder.close_consumer(1, 7, "pulsar://c:1"),
        pb.CommandCloseConsumer(consumer_id=1, request_id=7, assignedBrokerServiceUrl="pulsar://c:1"),
    ),
    (encoder.ack_response(1, 7), pb.CommandAckResponse(consumer_id=1, request_id=7)),
    (
        encoder.ack_response(1, None, ServerError.TRANSACTION_CONFLICT, "no", txnid=(4, 5)),
        pb.CommandAckResponse(consumer_id=1, error=23, message="no", txnid_most_bits=4, txnid_least_bits=5),
    ),
    (
        encoder.active_consumer_change(1, True),
        pb.CommandActiveConsumerChange(consumer_id=1, is_active=True),
    ),
    (encoder.reached_end_of_topic(1), pb.CommandReachedEndOfTopic(consumer_id=1)),
    (
        encoder.last_message_id(7, encoder.message_id(3, -1)),
        pb.CommandGetLastMessageIdResponse(request_id=7, last_message_id=ID),
    ),
    (
        encoder.last_message_id(
            7, encoder.message_id(3, 4, partition=1, batch_index=2), encoder.message_id(-1, -1)
        ),
        pb.CommandGetLastMessageIdResponse(
            request_id=7,
            last_message_id=pb.MessageIdData(ledgerId=3, entryId=4, partition=1, batch_index=2),
            consumer_mark_delete_position=pb.MessageIdData(ledgerId=U64, entryId=U64),
        ),
    ),
    (
        encoder.consumer_stats(pb.CommandConsumerStatsResponse(request_id=7, msgRateOut=1.5)),
        pb.CommandConsumerStatsResponse(request_id=7, msgRateOut=1.5),
    ),
    (
        transaction_encoder.tc_client_connect_response(7),
        pb.CommandTcClientConnectResponse(request_id=7),
    ),
    (
        transaction_encoder.tc_client_connect_response(7, ServerError.NOT_ALLOWED, "no"),
        pb.CommandTcClientConnectResponse(request_id=7, error=22, message="no"),
    ),
]


@pytest.mark.parametrize(("data", "command"), ANSWERS, ids=[type(command).__name__ for _, command in ANSWERS])
def test_answers_come_back_as_they_went(data: bytes, command: Any) -> None:
    assert decode_one(data) == command


@pytest.mark.parametrize(
    "kind",
    [
        pb.CommandNewTxnResponse,
        pb.CommandAddPartitionToTxnResponse,
        pb.CommandAddSubscriptionToTxnResponse,
        pb.CommandEndTxnResponse,
        pb.CommandEndTxnOnPartitionResponse,
        pb.CommandEndTxnOnSubscriptionResponse,
    ],
)
def test_transaction_answers(kind: type[transaction_encoder.Response]) -> None:
    assert decode_one(transaction_encoder.response(kind, 7, 1, 2)) == kind(
        request_id=7, txnid_most_bits=1, txnid_least_bits=2
    )
    failed = transaction_encoder.response(kind, 7, 1, 2, ServerError.TRANSACTION_NOT_FOUND, "no")
    assert decode_one(failed) == kind(
        request_id=7, txnid_most_bits=1, txnid_least_bits=2, error=pb.TransactionNotFound, message="no"
    )


REQUESTS: list[tuple[bytes, Any]] = [
    (
        client_commands.connect("c", auth_method="token", auth_data=b"x"),
        pb.CommandConnect(client_version="c", protocol_version=20, auth_method_name="token", auth_data=b"x"),
    ),
    (
        client_commands.partitioned_metadata(7, "t", create=False),
        pb.CommandPartitionedTopicMetadata(request_id=7, topic="t", metadata_auto_creation_enabled=False),
    ),
    (
        client_commands.lookup(7, "t", authoritative=True),
        pb.CommandLookupTopic(request_id=7, topic="t", authoritative=True),
    ),
    (
        client_commands.topics_of_namespace(7, "t/n"),
        pb.CommandGetTopicsOfNamespace(request_id=7, namespace="t/n"),
    ),
    (
        client_commands.producer(7, 1, "t"),
        pb.CommandProducer(request_id=7, producer_id=1, topic="t", user_provided_producer_name=False),
    ),
    (client_commands.close_producer(7, 1), pb.CommandCloseProducer(request_id=7, producer_id=1)),
    (
        client_commands.subscribe(
            7, 1, "t", "s", name="c", earliest=True, durable=False, start=(-1, -1), properties={"k": "v"}
        ),
        pb.CommandSubscribe(
            request_id=7,
            consumer_id=1,
            topic="t",
            subscription="s",
            subType=pb.CommandSubscribe.Exclusive,
            consumer_name="c",
            initialPosition=pb.CommandSubscribe.Earliest,
            durable=False,
            start_message_id=pb.MessageIdData(ledgerId=U64, entryId=U64),
            subscription_properties=[pb.KeyValue(key="k", value="v")],
        ),
    ),
    (
        client_commands.redeliver(1, [(2, 3)]),
        pb.CommandRedeliverUnacknowledgedMessages(
            consumer_id=1, message_ids=[pb.MessageIdData(ledgerId=2, entryId=3)]
        ),
    ),
    (
        client_commands.seek(7, 1, publish_time_ms=5),
        pb.CommandSeek(request_id=7, consumer_id=1, message_publish_time=5),
    ),
    (client_commands.last_message_id(7, 1), pb.CommandGetLastMessageId(request_id=7, consumer_id=1)),
    (
        client_commands.unsubscribe(7, 1, force=True),
        pb.CommandUnsubscribe(request_id=7, consumer_id=1, force=True),
    ),
    (client_commands.close_consumer(7, 1), pb.CommandCloseConsumer(request_id=7, consumer_id=1)),
]


@pytest.mark.parametrize(
    ("data", "command"), REQUESTS, ids=[type(command).__name__ for _, command in REQUESTS]
)
def test_requests_come_back_as_they_went(data: bytes, command: Any) -> None:
    assert decode_one(data) == command


# -- the two that are written by hand ----------------------------------------------------------------------


def test_kept_parts_of_a_receipt_belong_to_one_ledger_and_one_pair_of_lengths() -> None:
    receipts = ReceiptEncoder(1)
    for sequence_id, ledger_id, entry_id in [(1, 5, 2), (1, 6, 2), (300, 6, 1), (1, 6, 300), (300, 6, 300)]:
        receipt = decode_one(receipts.encode(sequence_id, 0, ledger_id, entry_id))
        found = receipt.sequence_id, receipt.message_id.ledgerId, receipt.message_id.entryId
        assert found == (sequence_id, ledger_id, entry_id)


def test_kept_parts_of_a_message_belong_to_one_ledger_and_one_length() -> None:
    messages = MessageEncoder(1)
    for ledger_id, entry_id in [(5, 2), (6, 2), (6, 300), (300, 300), (300, 2)]:
        out: list[bytes | memoryview] = []
        messages.encode(out, ledger_id, entry_id, 0, None, None, client_commands.entry(METADATA, b""))
        found = decode_one(b"".join(out)).message.message_id
        assert (found.ledgerId, found.entryId) == (ledger_id, entry_id)


METADATA = client_commands.metadata("p", 0, 5)
sizes_of_ids = st.one_of(
    st.integers(0, 300), st.integers(0, 2**15), st.integers(0, 2**29), st.integers(0, U64)
)


@given(sizes_of_ids, st.lists(st.tuples(*[sizes_of_ids] * 4), min_size=1, max_size=5))
def test_receipts_are_what_protobuf_would_write(
    producer_id: int, receipts: list[tuple[int, int, int, int]]
) -> None:
    receipt_encoder = ReceiptEncoder(producer_id)
    for sequence_id, highest, ledger_id, entry_id in receipts:
        command = pb.BaseCommand(
            type=pb.BaseCommand.SEND_RECEIPT,
            send_receipt=pb.CommandSendReceipt(
                producer_id=producer_id,
                sequence_id=sequence_id,
                message_id=pb.MessageIdData(ledgerId=ledger_id, entryId=entry_id),
                highest_sequence_id=highest or None,
            ),
        )
        for _ in range(2):  # the second time from the kept parts
            encoded = receipt_encoder.encode(sequence_id, highest, ledger_id, entry_id)
            assert encoded == encoder.frame(command)


@given(
    sizes_of_ids,
    st.sampled_from([-1, 0, 5, 200]),
    st.lists(
        st.tuples(
            sizes_of_ids,
            sizes_of_ids,
            st.sampled_from([0, 0, 0, 1, 300, 2**32 - 1]),
            st.sampled_from([None, [], [1], [-1, 2**62, -(2**63)]]),
            st.sampled_from([None, 0, 1, 2**40]),
            st.sampled_from([0, 10, 3000]),
        ),
        min_size=1,
        max_size=5,
    ),
    st.booleans(),
)
def test_messages_are_what_protobuf_would_write(
    consumer_id: int, partition: int, messages: list[tuple[Any, ...]], keep_stamp: bool
) -> None:
    message_encoder = MessageEncoder(consumer_id, partition, keep_stamp=keep_stamp)
    for ledger_id, entry_id, redelivery_count, ack_set, epoch, size in messages:
        sent = client_commands.entry(client_commands.metadata("p", 0, 5), bytes(size))
        for mark in (stamp(1_785_500_000_000), b"", stamp(1_785_500_000_000, 7)):
            command = pb.CommandMessage(
                consumer_id=consumer_id,
                message_id=pb.MessageIdData(
                    ledgerId=ledger_id, entryId=entry_id, partition=partition if partition >= 0 else None
                ),
                redelivery_count=redelivery_count or None,
                ack_set=ack_set,
                consumer_epoch=epoch,
            )
            envelope = pb.BaseCommand(type=pb.BaseCommand.MESSAGE, message=command).SerializeToString()
            out: list[bytes | memoryview] = []
            total = message_encoder.encode(
                out, ledger_id, entry_id, redelivery_count, ack_set, epoch, mark + sent
            )
            frame = b"".join(out)
            assert len(frame) == total
            assert frame[4 : 8 + len(envelope)] == len(envelope).to_bytes(4, "big") + envelope
            received = mark + sent if keep_stamp else sent
            assert decode_one(frame) == Delivery(command, received, True)


def test_the_payload_of_a_large_message_is_not_copied() -> None:
    body = stamp(1_785_500_000_000) + client_commands.entry(
        client_commands.metadata("p", 0, 5), bytes(100_000)
    )
    out: list[bytes | memoryview] = []
    MessageEncoder(1).encode(out, 1, 1, 0, None, None, body)
    assert isinstance(out[1], memoryview)
    assert out[1].obj is body


@given(sizes_of_ids)
def test_varints(value: int) -> None:
    data = varint(value) + b"\xff"
    assert skip_varint(data, 0) == len(data) - 1
    assert scan_varint(data, 0) == ((value, len(data) - 1) if value < 2**63 else (-1, 9))
    ping = pb.CommandFlow(consumer_id=value, messagePermits=0).SerializeToString()
    assert ping == b"\x08" + varint(value) + b"\x10\x00"


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 9])
def test_a_varint_that_ends_with_its_data(data: bytes) -> None:
    with pytest.raises(IndexError):
        skip_varint(data, 0)
    if len(data) < 9:
        with pytest.raises(IndexError):
            scan_varint(data, 0)


def test_a_varint_of_more_than_ten_bytes() -> None:
    assert scan_varint(b"\xff" * 12, 0)[0] == -1
    with pytest.raises(IndexError):
        skip_varint(b"\xff" * 12, 0)


def test_an_error_may_quote_anything() -> None:
    answers = Decoder(2**20).feed(
        encoder.error(1, ServerError.UNKNOWN, "half a character: \ud800")
        + encoder.send_error(1, 2, ServerError.UNKNOWN, "x" * 10_000_000)
    )
    assert [answer.message for answer in answers] == [
        "half a character: \\ud800",
        "x" * encoder.TEXT_CHARS_MAX,
    ]
