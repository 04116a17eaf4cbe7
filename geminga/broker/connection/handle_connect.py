"""CONNECT, PING and PONG."""

from __future__ import annotations

import geminga
from geminga import limits
from geminga.broker.connection.session import Handler, Session, State
from geminga.wire import encoder
from geminga.wire import pulsar_pb2 as pb


def connect(session: Session, command: pb.CommandConnect) -> None:
    """Agree on the protocol version: the lower of the two."""
    session.protocol_version = min(command.protocol_version, limits.PROTOCOL_VERSION)
    session.client_version = command.client_version[: limits.CLIENT_VERSION_CHARACTERS_MAX]
    session.wants_broker_metadata = (
        session.rooms.settings.exposes_broker_metadata
        and command.feature_flags.supports_broker_entry_metadata
    )
    session.state = State.READY
    session.outbox.write(
        encoder.connected(
            f"Geminga {geminga.__version__}",
            protocol_version=session.protocol_version,
            message_bytes_max=session.rooms.settings.message_bytes_max,
        )
    )
    session.connected.set()


def ping(session: Session, command: pb.CommandPing) -> None:
    session.outbox.write(encoder.pong())


def pong(session: Session, command: pb.CommandPong) -> None:
    """Any byte from the peer counts as a sign of life; nothing more to do."""


HANDLERS: dict[type, Handler] = {
    pb.CommandConnect: connect,
    pb.CommandPing: ping,
    pb.CommandPong: pong,
}
