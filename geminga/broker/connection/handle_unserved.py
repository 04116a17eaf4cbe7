"""Commands that this broker does not serve. Each gets the answer that its client waits for, with an error.

A client that requests a transaction gets an error at once, instead of waiting for its time-out. A command
that only a broker may send has no handler, and ends the connection (`Session`).
"""

from __future__ import annotations

from typing import Any

from geminga.broker.connection.session import Handler, Session
from geminga.errors import ServerError, UnsupportedCommand
from geminga.wire import pulsar_pb2 as pb
from geminga.wire import transaction_encoder

NO_TRANSACTIONS = "transactions are not served by this broker"


def no_coordinator(session: Session, command: pb.CommandTcClientConnectRequest) -> None:
    session.outbox.write(
        transaction_encoder.tc_client_connect_response(
            command.request_id, ServerError.NOT_ALLOWED, NO_TRANSACTIONS
        )
    )


def _no_transaction(kind: type[Any]) -> Handler:
    """Refuse one transaction command with that command's own answer."""

    def refuse(session: Session, command: Any) -> None:
        most_bits = getattr(command, "txnid_most_bits", 0)
        least_bits = getattr(command, "txnid_least_bits", 0)
        session.outbox.write(
            transaction_encoder.response(
                kind,
                command.request_id,
                most_bits,
                least_bits,
                ServerError.TRANSACTION_COORDINATOR_NOT_FOUND,
                NO_TRANSACTIONS,
            )
        )

    return refuse


def unserved(session: Session, command: Any) -> None:
    raise UnsupportedCommand(f"{type(command).__name__} is not served by this broker")


def ignored(session: Session, command: Any) -> None:
    """Nothing to do and nothing to answer."""


HANDLERS: dict[type, Handler] = {
    pb.CommandTcClientConnectRequest: no_coordinator,
    pb.CommandNewTxn: _no_transaction(pb.CommandNewTxnResponse),
    pb.CommandAddPartitionToTxn: _no_transaction(pb.CommandAddPartitionToTxnResponse),
    pb.CommandAddSubscriptionToTxn: _no_transaction(pb.CommandAddSubscriptionToTxnResponse),
    pb.CommandEndTxn: _no_transaction(pb.CommandEndTxnResponse),
    pb.CommandEndTxnOnPartition: _no_transaction(pb.CommandEndTxnOnPartitionResponse),
    pb.CommandEndTxnOnSubscription: _no_transaction(pb.CommandEndTxnOnSubscriptionResponse),
    pb.CommandAuthResponse: ignored,
}
