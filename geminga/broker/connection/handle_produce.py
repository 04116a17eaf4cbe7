"""PRODUCER and CLOSE_PRODUCER; SEND itself is served by the session."""

from __future__ import annotations

from collections.abc import Awaitable

import trio

from geminga import limits
from geminga.broker.connection.handle_attach import begin
from geminga.broker.connection.handle_schemas import add_schema
from geminga.broker.connection.session import Handler, Session
from geminga.broker.topic.producer import Producer
from geminga.broker.topic.producers import AccessMode
from geminga.broker.topic.topic import Topic
from geminga.errors import ServiceNotReady
from geminga.names import TopicName, check_producer_name
from geminga.wire import encoder
from geminga.wire import pulsar_pb2 as pb


def producer(session: Session, command: pb.CommandProducer) -> Awaitable[None] | None:
    """Attach a producer to its topic, which is loaded, or made where that is allowed."""
    existing = session.producers.get(command.producer_id)
    if existing is not None and not existing.closed:
        if existing.epoch >= command.epoch:
            _succeed(session, command, existing)
            return None
        _leave(existing)
    check_producer_name(command.producer_name)
    count_max = limits.PRODUCERS_PER_CONNECTION_MAX
    name, scope = begin(session, "producer", command.producer_id, command, len(session.producers), count_max)
    return _open_producer(session, command, name, scope)


async def _open_producer(
    session: Session, command: pb.CommandProducer, name: TopicName, scope: trio.CancelScope
) -> None:
    try:
        with scope:
            topic = await session.topics.get(name, create=session.topics.may_be_created(name))
            if command.initial_subscription_name:
                await topic.create_subscription(
                    command.initial_subscription_name,
                    initial="earliest",
                    create=topic.policies.auto_subscription_creation.allowed,
                )
            made = _make(session, command, topic)
            made.schema_version = await add_schema(session, topic, command)
            await _enter(session, command, made, scope)
        if scope.cancel_called:
            raise ServiceNotReady("Producer was closed before it was created")
    finally:
        del session.opening["producer", command.producer_id]
        if command.producer_id not in session.producers:
            session.drop_metadata("producer", command.producer_id)


def _make(session: Session, command: pb.CommandProducer, topic: Topic) -> Producer:
    return Producer(
        topic,
        command.producer_id,
        command.producer_name or session.producer_names(),
        session.outbox,
        message_bytes_max=session.rooms.settings.message_bytes_max,
        epoch=command.epoch,
        user_provided_name=command.user_provided_producer_name,
        access_mode=command.producer_access_mode,
        metadata={pair.key: pair.value for pair in command.metadata},
        address=session.address,
        client_version=session.client_version,
        connected_since_ms=session.rooms.clock.now_ms(),
        throttle=session.throttle,
    )


async def _enter(
    session: Session, command: pb.CommandProducer, made: Producer, scope: trio.CancelScope
) -> None:
    """Have the topic admit the producer; whatever goes wrong, it does not stay there unattached."""
    topic = made.topic
    topic_epoch = command.topic_epoch if command.HasField("topic_epoch") else None
    try:
        if not await topic.add_producer(made, topic_epoch):
            _succeed(session, command, made, ready=False)
            await topic.producers.wait(made)
            await topic.save_epoch()
        await topic.dedup.settle(made.name)
        if topic.closing or made.closed:
            raise ServiceNotReady(f"topic {topic.name} is closing; look it up again")
    except BaseException:
        _leave(made)
        raise
    if session.outbox.closed or scope.cancel_called:
        _leave(made)
        return
    session.producers[command.producer_id] = made
    _succeed(session, command, made)


def _succeed(session: Session, command: pb.CommandProducer, made: Producer, *, ready: bool = True) -> None:
    exclusive = made.access_mode != AccessMode.SHARED
    session.outbox.write(
        encoder.producer_success(
            command.request_id,
            made.name,
            last_sequence_id=made.topic.dedup.last_sequence_id(made.name),
            schema_version=made.schema_version,
            topic_epoch=made.topic.producers.epoch if exclusive else None,
            ready=ready,
        )
    )


def close_producer(session: Session, command: pb.CommandCloseProducer) -> None:
    """The producer leaves; the answer follows its last receipt."""
    made = session.producers.pop(command.producer_id, None)
    opening = session.opening.get(("producer", command.producer_id))
    if opening is not None:
        opening.cancel()
    else:
        session.drop_metadata("producer", command.producer_id)
    if made is None:
        session.outbox.write(encoder.success(command.request_id))
        return
    _leave(made)
    made.when_idle(lambda: session.outbox.write(encoder.success(command.request_id)))


def _leave(made: Producer) -> None:
    made.closed = True
    made.topic.producers.remove(made)


HANDLERS: dict[type, Handler] = {
    pb.CommandProducer: producer,
    pb.CommandCloseProducer: close_producer,
}
