"""CONNECT, PING, PONG, and the polite refusals of what this broker does not serve."""

from __future__ import annotations

from typing import Any

import geminga
from geminga import limits
from geminga.broker.session import Handler, Session, State
from geminga.errors import ServerError
from geminga.wire import encoder
from geminga.wire import pulsar_pb2 as pb


def connect(session: Session, command: pb.CommandConnect) -> None:
    """Agree on the protocol version: the lower of the two."""
    session.protocol_version = min(command.protocol_version, limits.PROTOCOL_VERSION)
    session.client_version = command.client_version
    session.wants_broker_metadata = (
        session.rooms.settings.exposes_broker_metadata
        and command.feature_flags.supports_broker_entry_metadata
    )
    session.state = State.READY
    session.outbox.write(
        encoder.frame(
            pb.BaseCommand(
                type=pb.BaseCommand.CONNECTED,
                connected=pb.CommandConnected(
                    server_version=f"Geminga {geminga.__version__}",
                    protocol_version=session.protocol_version,
                    max_message_size=session.rooms.settings.message_bytes_max,
                    feature_flags=pb.FeatureFlags(
                        supports_topic_watchers=False,
                        supports_get_partitioned_metadata_without_auto_creation=True,
                    ),
                ),
            )
        )
    )


connect.before_connect = True  # type: ignore[attr-defined]


def ping(session: Session, command: pb.CommandPing) -> None:
    session.outbox.write(encoder.pong())


def pong(session: Session, command: pb.CommandPong) -> None:
    """Any byte from the peer counts as a sign of life; nothing more to do."""


def refuse_transactions(session: Session, command: Any) -> None:
    """There is no transaction coordinator here; the client learns it from the first command that it sends."""
    session.outbox.write(
        encoder.frame(
            pb.BaseCommand(
                type=pb.BaseCommand.TC_CLIENT_CONNECT_RESPONSE,
                tcClientConnectResponse=pb.CommandTcClientConnectResponse(
                    request_id=command.request_id,
                    error=int(ServerError.NOT_ALLOWED),  # type: ignore[arg-type]
                    message="Transactions are not served by this broker",
                ),
            )
        )
    )


HANDLERS: dict[type, Handler] = {
    pb.CommandConnect: connect,
    pb.CommandPing: ping,
    pb.CommandPong: pong,
    pb.CommandTcClientConnectRequest: refuse_transactions,
}
