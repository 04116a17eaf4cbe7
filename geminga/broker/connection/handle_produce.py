"""PRODUCER and CLOSE_PRODUCER; the session serves SEND itself."""

from __future__ import annotations

from collections.abc import Awaitable

import trio

from geminga import limits
from geminga.broker.connection.handle_attach import begin
from geminga.broker.connection.handle_schemas import add_schema
from geminga.broker.connection.session import Handler, Publisher, Session
from geminga.broker.topic.producer import Producer
from geminga.broker.topic.producers import AccessMode
from geminga.broker.topic.topic import Topic
from geminga.errors import ServiceNotReady
from geminga.names import TopicName, check_producer_name
from geminga.wire import encoder
from geminga.wire import pulsar_pb2 as pb


def producer(session: Session, command: pb.CommandProducer) -> Awaitable[None] | None:
    """Attach a producer to its topic, which is loaded, or created if that is allowed."""
    existing = session.producers.get(command.producer_id)
    # The client counts its reconnections in `epoch`. The same epoch is a request that was sent twice; a
    # higher one means that the client has given up the earlier producer, so it must leave before the new one
    # may enter.
    if existing is not None and not existing.producer.closed:
        if existing.producer.epoch >= command.epoch:
            _succeed(session, command, existing.topic, existing.producer)
            return None
        existing.topic.producers.leave(existing.producer)
    check_producer_name(command.producer_name)
    count_max = limits.PRODUCERS_PER_CONNECTION_MAX
    name, scope = begin(session, "producer", command.producer_id, command, len(session.producers), count_max)
    return _open_producer(session, command, name, scope)


async def _open_producer(
    session: Session, command: pb.CommandProducer, name: TopicName, scope: trio.CancelScope
) -> None:
    try:
        with scope:
            topic = await session.topics.get(name, create=session.topics.catalog.may_be_created(name))
            if command.initial_subscription_name:
                await topic.create_subscription(
                    command.initial_subscription_name,
                    initial="earliest",
                    create=topic.policies.auto_subscription_creation.allowed,
                )
            # Before the producer is admitted: a schema that is refused must not have fenced others, or moved
            # the topic epoch.
            schema_version = await add_schema(session, topic, command)
            await _enter(session, command, topic, _make(session, command, schema_version), scope)
        if scope.cancel_called:
            raise ServiceNotReady("Producer was closed before it was created")
    finally:
        del session.opening["producer", command.producer_id]
        if command.producer_id not in session.producers:
            session.drop_metadata("producer", command.producer_id)


def _make(session: Session, command: pb.CommandProducer, schema_version: bytes) -> Producer:
    return Producer(
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
        schema_version=schema_version,
        throttle=session.throttle,
    )


async def _enter(
    session: Session, command: pb.CommandProducer, topic: Topic, made: Producer, scope: trio.CancelScope
) -> None:
    """Have the topic admit the producer. If this fails or is cancelled, the producer leaves again."""
    topic_epoch = command.topic_epoch if command.HasField("topic_epoch") else None
    try:
        if not await topic.add_producer(made, topic_epoch):
            # WaitForExclusive (PIP-68): the client gets `producer_ready=false` now, and a second answer to
            # the same request when its turn has come.
            _succeed(session, command, topic, made, ready=False)
            await topic.producers.wait(made)
            await topic.save_epoch()
        # The answer names the last sequence id, and the client goes on after it. Entries of an earlier
        # connection may still be on their way to the disk, so wait until it is known whether they are stored.
        await topic.dedup.settle(made.name)
        if topic.closing or made.closed:
            raise ServiceNotReady(f"topic {topic.name} is closing; look it up again")
    except BaseException:
        # Cancellation too: a name that stays in the topic refuses the client's own retry as "already
        # connected".
        topic.producers.leave(made)
        raise
    if session.outbox.closed or scope.cancel_called:
        topic.producers.leave(made)
        return
    session.producers[command.producer_id] = Publisher(topic, made)
    _succeed(session, command, topic, made)


def _succeed(
    session: Session, command: pb.CommandProducer, topic: Topic, made: Producer, *, ready: bool = True
) -> None:
    exclusive = made.access_mode != AccessMode.SHARED
    state = "produces" if ready else "waits to produce"
    session.note("producer %d %r %s to %r", made.producer_id, made.name, state, str(topic.name))
    session.outbox.write(
        encoder.producer_success(
            command.request_id,
            made.name,
            last_sequence_id=topic.dedup.last_sequence_id(made.name),
            schema_version=made.schema_version,
            topic_epoch=topic.producers.epoch if exclusive else None,
            ready=ready,
        )
    )


def close_producer(session: Session, command: pb.CommandCloseProducer) -> None:
    """Remove the producer; the answer follows its last receipt."""
    # A client gives up its pending messages when its close is answered, so the answer must not overtake the
    # receipts of entries that become durable.
    publisher = session.producers.pop(command.producer_id, None)
    opening = session.opening.get(("producer", command.producer_id))
    if opening is not None:
        opening.cancel()
    else:
        session.drop_metadata("producer", command.producer_id)
    if publisher is None:
        session.outbox.write(encoder.success(command.request_id))
        return
    session.note("producer %d %r closed", command.producer_id, publisher.producer.name)
    publisher.topic.producers.leave(publisher.producer)
    publisher.producer.when_idle(lambda: session.outbox.write(encoder.success(command.request_id)))


HANDLERS: dict[type, Handler] = {
    pb.CommandProducer: producer,
    pb.CommandCloseProducer: close_producer,
}
