"""What PRODUCER and SUBSCRIBE have in common: a connection is about to attach to a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import trio

from geminga.errors import ServiceNotReady, TooManyRequests
from geminga.names import TopicName
from geminga.wire import pulsar_pb2 as pb

if TYPE_CHECKING:
    from geminga.broker.connection.session import Session


def begin(
    session: Session,
    kind: Literal["producer", "consumer"],
    number: int,
    command: pb.CommandProducer | pb.CommandSubscribe,
    present: int,
    count_max: int,
) -> tuple[TopicName, trio.CancelScope]:
    """The topic, and the scope that a close right behind cancels: it is in `session.opening` from now on, and
    whoever opens takes it out.

    Raises `PeerError` if the id is taken, the connection has enough of them, the name is none, or there is
    no room for the metadata.
    """
    key = (kind, number)
    if key in session.opening:
        raise ServiceNotReady(f"{kind.capitalize()} is already present on the connection")
    if present + len(session.opening) >= count_max:
        raise TooManyRequests(f"more than {count_max} {kind}s on one connection")
    name = TopicName.parse(command.topic)
    own_name = command.producer_name if isinstance(command, pb.CommandProducer) else command.consumer_name
    session.keep_metadata(kind, number, own_name, command.metadata)
    session.opening[key] = scope = trio.CancelScope()
    return name, scope
