"""The commands of consumers, except FLOW and plain ACK, which the session serves."""

from __future__ import annotations

from collections.abc import Awaitable
from itertools import repeat
from typing import Final

import trio

from geminga import limits
from geminga.broker.connection.handle_attach import begin
from geminga.broker.connection.handle_schemas import check_consumer_schema
from geminga.broker.connection.session import Attached, Handler, Session
from geminga.broker.dispatch.consumer import Consumer
from geminga.broker.flow.slices import Pace
from geminga.broker.subscription.consumers import INDIVIDUAL_TYPES
from geminga.broker.subscription.publish_times import first_published_at
from geminga.broker.topic.topic import Topic
from geminga.errors import (
    GemingaError,
    InvalidName,
    NotAllowed,
    PeerError,
    ProtocolError,
    ServerError,
    ServiceNotReady,
)
from geminga.names import TopicName, check_subscription
from geminga.position import EARLIEST, LATEST, Position
from geminga.wire import encoder
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import position_of
from geminga.wire.message_metadata import peek

REDELIVERED_AT_ONCE: Final = 100
"""Messages given back between two turns of the loop: about a millisecond."""


class UnknownConsumer(PeerError):
    """A request for a consumer that this connection does not have."""

    # Not ConsumerNotFound: Pulsar answers MetadataError to UNSUBSCRIBE, SEEK and GET_LAST_MESSAGE_ID.
    server_error = ServerError.METADATA


def subscribe(session: Session, command: pb.CommandSubscribe) -> Awaitable[None] | None:
    """Attach a consumer. Success is sent before its first message."""
    existing = session.consumers.get(command.consumer_id)
    # A client that gave up waiting sends SUBSCRIBE again with the same id. Pulsar answers success as well.
    if existing is not None and not existing.consumer.closed:
        session.outbox.write(encoder.success(command.request_id))
        return None
    if not command.subscription:
        raise InvalidName("Empty subscription name")
    check_subscription(command.subscription)
    count_max = limits.CONSUMERS_PER_CONNECTION_MAX
    name, scope = begin(session, "consumer", command.consumer_id, command, len(session.consumers), count_max)
    return _subscribe(session, command, name, scope)


async def _subscribe(
    session: Session, command: pb.CommandSubscribe, name: TopicName, scope: trio.CancelScope
) -> None:
    try:
        with scope:
            # `force_topic_creation` is false for consumers of a pattern: a topic that was deleted meanwhile
            # must not come back only because they were subscribed to it.
            create = command.force_topic_creation and session.topics.catalog.may_be_created(name)
            topic = await session.topics.get(name, create=create)
            await check_consumer_schema(session, topic, command)
            await _attach(session, command, topic, scope)
        # A client waits for the answer to its SUBSCRIBE even if it has closed the consumer meanwhile.
        if scope.cancel_called:
            raise ServiceNotReady("Consumer was closed before it was created")
    finally:
        del session.opening["consumer", command.consumer_id]
        if command.consumer_id not in session.consumers:
            session.drop_metadata("consumer", command.consumer_id)


async def _attach(
    session: Session, command: pb.CommandSubscribe, topic: Topic, scope: trio.CancelScope
) -> None:
    consumer = Consumer(
        command,
        session.outbox,
        address=session.address,
        client_version=session.client_version,
        protocol_version=session.protocol_version,
        connected_since_ms=session.rooms.clock.now_ms(),
        wants_broker_metadata=session.wants_broker_metadata,
        partition_index=topic.partition_index,
    )
    start = await _start_position(topic, command)
    earliest = command.initialPosition == pb.CommandSubscribe.Earliest
    subscription = await topic.subscribe(
        command.subscription,
        consumer,
        durable=command.durable,
        initial="earliest" if earliest else "latest",
        start=start,
        subscription_properties={pair.key: pair.value for pair in command.subscription_properties},
        create=topic.policies.auto_subscription_creation.allowed or not command.durable,
    )
    # `topic.subscribe` waits for a disk, and the client may have gone meanwhile. Then `Session.close` has run
    # and does not know this consumer: it would hold an Exclusive subscription until the broker ends.
    if session.outbox.closed or scope.cancel_called:
        subscription.remove_consumer(consumer)
        return
    session.consumers[command.consumer_id] = Attached(topic, subscription, consumer)
    session.note(
        "consumer %d %r subscribes to %r / %r, %s",
        command.consumer_id,
        command.consumer_name,
        str(topic.name),
        command.subscription,
        pb.CommandSubscribe.SubType.Name(command.subType),
    )
    session.outbox.write(encoder.success(command.request_id))
    subscription.consumers.announce(consumer)


async def _start_position(topic: Topic, command: pb.CommandSubscribe) -> Position | None:
    """Where a new cursor begins to read; None for the initial position that the client has chosen."""
    if command.start_message_rollback_duration_sec > 0:
        since_ms = topic.clock.now_ms() - command.start_message_rollback_duration_sec * 1000
        return await first_published_at(topic.ledger, since_ms)
    # A non-durable cursor has no record to begin from, so it needs a position in any case.
    if not command.HasField("start_message_id"):
        if command.durable:
            return None
        return EARLIEST if command.initialPosition == pb.CommandSubscribe.Earliest else LATEST
    # The broker begins with this very entry. A client that wants to start after it, or inside its batch,
    # drops the messages before that itself: `startMessageIdInclusive` is not in the protocol.
    return _position(command.start_message_id)


def _position(message_id: pb.MessageIdData) -> Position:
    return Position(*position_of(message_id))


def _attached(session: Session, consumer_id: int) -> Attached:
    attached = session.consumers.get(consumer_id)
    if attached is None or attached.consumer.closed:
        raise UnknownConsumer("Consumer not found")
    return attached


def acknowledge(session: Session, command: pb.CommandAck) -> None:
    """An ACK with more than positions: batch indexes, validation errors, properties."""
    # No outcome has an answer without a request id: the client did not ask for receipts of its ACKs.
    answers = command.HasField("request_id")
    try:
        attached = _attached(session, command.consumer_id)
        attached.subscription.acks.acknowledge_command(attached.consumer, command)
    except GemingaError as error:
        if answers:
            session.outbox.write(
                encoder.ack_response(command.consumer_id, command.request_id, error.server_error, str(error))
            )
        elif not isinstance(error, UnknownConsumer):
            session.warn(f"ack refused: {error}")
        return
    if answers:
        session.outbox.write(encoder.ack_response(command.consumer_id, command.request_id))


def redeliver(session: Session, command: pb.CommandRedeliverUnacknowledgedMessages) -> Awaitable[None] | None:
    attached = session.consumers.get(command.consumer_id)
    if attached is None:
        return None
    consumer, consumers = attached.consumer, attached.subscription.consumers
    if consumer.sub_type not in INDIVIDUAL_TYPES:
        epoch = command.consumer_epoch if command.HasField("consumer_epoch") else None
        consumers.redeliver(consumer, None, epoch)  # all, whatever is named
        return None
    # No ids means all that the consumer has: the protocol does not tell "none" from "all".
    slices = (len(command.message_ids) or len(consumer.pending)) // REDELIVERED_AT_ONCE
    if slices:
        session.count_open(slices)
        return _redeliver_in_slices(session, attached, command, slices)
    consumers.redeliver(consumer, [_position(m) for m in command.message_ids] or None, None)
    return None


async def _redeliver_in_slices(
    session: Session, attached: Attached, command: pb.CommandRedeliverUnacknowledgedMessages, slices: int
) -> None:
    """What the consumer had when it asked, in the order of the topic: what is sent to it again meanwhile is
    given back no second time, and what it acknowledges meanwhile is not sent again.
    """
    consumer, consumers = attached.consumer, attached.subscription.consumers
    pace = Pace()
    positions: list[tuple[int, int]] = []
    try:
        if command.message_ids:
            for message_id in command.message_ids:
                positions.append(position_of(message_id))
                await pace.row()
            positions.sort()
        else:
            if consumers.notes is not None:
                consumers.notes.released(consumer.name)
            for ledger_id, entry_ids in consumer.pending.entry_ids():
                positions += zip(repeat(ledger_id), entry_ids, strict=False)
        for start in range(0, len(positions), REDELIVERED_AT_ONCE):
            some = positions[start : start + REDELIVERED_AT_ONCE]
            consumers.redeliver(consumer, [Position(*position) for position in some], None)
            await pace.turn()
    finally:
        session.count_open(-slices)


async def unsubscribe(session: Session, command: pb.CommandUnsubscribe) -> None:
    topic, subscription, consumer = _attached(session, command.consumer_id)
    # Pulsar refuses UNSUBSCRIBE while the subscription has other consumers, with this very text, and
    # disconnects them if the client forces it (PIP-313).
    others = [c for c in subscription.consumers if c is not consumer]
    if others and not command.force:
        raise NotAllowed("Unconnected or shared consumer attempting to unsubscribe")
    pace = Pace()
    for other in others:
        subscription.disconnect(other)
        await pace.row()
    subscription.remove_consumer(consumer)
    session.consumers.pop(command.consumer_id, None)
    session.drop_metadata("consumer", command.consumer_id)
    # Not by its name alone: a new subscription of that name must not be deleted for it.
    if topic.subscriptions.get(subscription.name) is subscription:
        await topic.delete_subscription(subscription.name)
    session.outbox.write(encoder.success(command.request_id))


async def seek(session: Session, command: pb.CommandSeek) -> None:
    """Move the cursor. The consumers are disconnected first and reconnect by themselves, as in Pulsar."""
    # This consumer is disconnected too, so after the answer the client subscribes again and starts with no
    # message of before the SEEK in its queue.
    topic, subscription, _ = _attached(session, command.consumer_id)
    if command.HasField("message_id"):
        position = _position(command.message_id)
        await subscription.seek(position, ack_set=list(command.message_id.ack_set))
    elif command.HasField("message_publish_time"):
        await subscription.seek(await first_published_at(topic.ledger, command.message_publish_time))
    else:
        raise NotAllowed("SEEK needs a message id or a publish time")
    session.outbox.write(encoder.success(command.request_id))


def close_consumer(session: Session, command: pb.CommandCloseConsumer) -> None:
    # A CLOSE may follow its SUBSCRIBE at once. Cancelling lets the subscribing task undo its part, which it
    # alone knows, and answer its own request.
    opening = session.opening.get(("consumer", command.consumer_id))
    if opening is not None:
        opening.cancel()
    else:
        session.drop_metadata("consumer", command.consumer_id)
    attached = session.consumers.pop(command.consumer_id, None)
    if attached is not None:
        session.note("consumer %d closed", command.consumer_id)
        attached.subscription.remove_consumer(attached.consumer)
    session.outbox.write(encoder.success(command.request_id))


async def last_message_id(session: Session, command: pb.CommandGetLastMessageId) -> None:
    topic, subscription, _ = _attached(session, command.consumer_id)
    # The last entry that still is in the topic, however old: a reader that asks whether there is more
    # compares its own position with it. (-1, -1) is Pulsar's answer for an empty topic.
    last = topic.ledger.last_position()
    answer = encoder.message_id(-1, -1)
    if last is not None:
        answer = encoder.message_id(*last, partition=topic.partition_index)
        entries = await topic.ledger.read_positions([last])
        if entries:
            answer.batch_index = _last_batch_index(entries[0].body)
    mark_delete = encoder.message_id(*subscription.cursor.acknowledged_up_to)
    session.outbox.write(encoder.last_message_id(command.request_id, answer, mark_delete))


def _last_batch_index(body: bytes) -> int:
    """The last batch index of an entry; -1 if it is no batch, or its metadata cannot be read."""
    try:
        metadata = peek(body)
    except ProtocolError:
        return -1
    return metadata.num_messages_in_batch - 1 if metadata.is_batch else -1


def consumer_stats(session: Session, command: pb.CommandConsumerStats) -> None:
    answer = pb.CommandConsumerStatsResponse(request_id=command.request_id)
    attached = session.consumers.get(command.consumer_id)
    if attached is None:
        answer.error_code = pb.ConsumerNotFound
        answer.error_message = f"Consumer {command.consumer_id} not found"
    else:
        subscription, consumer = attached.subscription, attached.consumer
        stats = consumer.statistics()
        answer.consumerName = consumer.name
        answer.availablePermits = max(stats.available_permits, 0)
        answer.unackedMessages = max(stats.unacked_messages, 0)
        answer.blockedConsumerOnUnackedMsgs = stats.blocked_consumer_on_unacked_msgs
        answer.msgRateOut = stats.msg_rate_out
        answer.msgThroughputOut = stats.msg_throughput_out
        answer.msgRateRedeliver = stats.msg_rate_redeliver
        answer.messageAckRate = stats.message_ack_rate
        answer.address = consumer.address
        answer.type = subscription.consumers.type
        answer.msgBacklog = subscription.backlog()
    session.outbox.write(encoder.consumer_stats(answer))


HANDLERS: dict[type, Handler] = {
    pb.CommandSubscribe: subscribe,
    pb.CommandAck: acknowledge,
    pb.CommandRedeliverUnacknowledgedMessages: redeliver,
    pb.CommandUnsubscribe: unsubscribe,
    pb.CommandSeek: seek,
    pb.CommandCloseConsumer: close_consumer,
    pb.CommandGetLastMessageId: last_message_id,
    pb.CommandConsumerStats: consumer_stats,
}
