"""CONNECT, PING and PONG."""

from __future__ import annotations

import geminga
from geminga import limits
from geminga.broker.connection.session import Handler, Session
from geminga.wire import encoder
from geminga.wire import pulsar_pb2 as pb


def connect(session: Session, command: pb.CommandConnect) -> None:
    """Agree on the lower of the two protocol versions."""
    # Clients act by the answered version, so it may be no higher than their own. Stamps go out only if both
    # sides agree: an old client would take the broker's entry metadata for a part of the message (PIP-70).
    settings = session.rooms.settings
    session.begin(
        protocol_version=min(command.protocol_version, limits.PROTOCOL_VERSION),
        client_version=command.client_version[: limits.CLIENT_VERSION_CHARACTERS_MAX],
        wants_broker_metadata=(
            settings.exposes_broker_metadata and command.feature_flags.supports_broker_entry_metadata
        ),
    )
    session.note("connected: %r, protocol version %d", session.client_version, session.protocol_version)
    # With the maximum, since clients cut their chunks by it: `maxMessageSize` need not be configured twice.
    session.outbox.write(
        encoder.connected(
            f"Geminga {geminga.__version__}",
            protocol_version=session.protocol_version,
            message_bytes_max=settings.message_bytes_max,
            topic_watchers=settings.applies_patterns,
        )
    )


def ping(session: Session, command: pb.CommandPing) -> None:
    session.outbox.write(encoder.pong())


def pong(session: Session, command: pb.CommandPong) -> None:
    """Nothing to do: the reader calls `Session.heard` for any byte."""


HANDLERS: dict[type, Handler] = {
    pb.CommandConnect: connect,
    pb.CommandPing: ping,
    pb.CommandPong: pong,
}
