"""The common part of PRODUCER and SUBSCRIBE: a connection attaches to a topic."""

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
    """The topic, and the scope that a CLOSE of this id cancels. The scope is in `session.opening` from now
    on; the caller removes it when it has attached, or failed.

    Raises `PeerError` if the id is in use, the connection has too many, the topic's name is invalid, or
    there is no room for the metadata.
    """
    key = (kind, number)
    # As in Pulsar: a client whose request timed out sends it again while the first one is still under way,
    # and retries on this error until that has ended.
    if key in session.opening:
        raise ServiceNotReady(f"{kind.capitalize()} is already present on the connection")
    # Those under way count too: each holds a task, and topics are loaded for it.
    if present + len(session.opening) >= count_max:
        raise TooManyRequests(f"more than {count_max} {kind}s on one connection")
    name = TopicName.parse(command.topic)
    own_name = command.producer_name if isinstance(command, pb.CommandProducer) else command.consumer_name
    session.keep_metadata(kind, number, own_name, command.metadata)
    session.opening[key] = scope = trio.CancelScope()
    return name, scope
