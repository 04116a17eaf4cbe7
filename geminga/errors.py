"""The errors, by the party at fault.

There are two roots. A `PeerError` is the fault of the client that sent the request: only that client gets
it. A `StorageError` is the fault of a disk: every request that waits for the disk gets it, and the process
stops rather than guess. Any other exception (an `AssertionError`, a `KeyError`) is a bug in Geminga and is
not caught below the connection boundary.

Each class has the `ServerError` number of the binary protocol and the HTTP status for the admin API. The
numbers are Pulsar's (`ServerError` in protocol version 20).
"""

from __future__ import annotations

import enum
from typing import ClassVar


class ServerError(enum.IntEnum):
    """The error numbers of the binary protocol; clients branch on them."""

    UNKNOWN = 0
    METADATA = 1
    PERSISTENCE = 2
    AUTHENTICATION = 3
    AUTHORIZATION = 4
    CONSUMER_BUSY = 5
    SERVICE_NOT_READY = 6
    PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR = 7
    PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION = 8
    CHECKSUM = 9
    UNSUPPORTED_VERSION = 10
    TOPIC_NOT_FOUND = 11
    SUBSCRIPTION_NOT_FOUND = 12
    CONSUMER_NOT_FOUND = 13
    TOO_MANY_REQUESTS = 14
    TOPIC_TERMINATED = 15
    PRODUCER_BUSY = 16
    INVALID_TOPIC_NAME = 17
    INCOMPATIBLE_SCHEMA = 18
    CONSUMER_ASSIGN = 19
    TRANSACTION_COORDINATOR_NOT_FOUND = 20
    INVALID_TXN_STATUS = 21
    NOT_ALLOWED = 22
    TRANSACTION_CONFLICT = 23
    TRANSACTION_NOT_FOUND = 24
    PRODUCER_FENCED = 25


class GemingaError(Exception):
    """Root of all exceptions that the product raises on purpose."""

    server_error: ClassVar[ServerError] = ServerError.UNKNOWN
    http_status: ClassVar[int] = 500


class PeerError(GemingaError):
    """The request is not allowed, or malformed."""

    server_error = ServerError.NOT_ALLOWED
    http_status = 400


class ProtocolError(PeerError):
    """The peer's bytes violate the protocol. Its connection is closed, and no other is affected."""

    server_error = ServerError.UNKNOWN


class NotAllowed(PeerError):
    server_error = ServerError.NOT_ALLOWED
    http_status = 405


class TransactionsNotServed(NotAllowed):
    """A request that belongs to a transaction. Nothing of it was done."""

    def __init__(self, advice: str) -> None:
        """`advice` says what the client can do instead."""
        super().__init__(f"transactions are not served by this broker: {advice}")


class OperatorOnly(PeerError):
    """Only the operator may ask for this, and the broker was given no token to know one by."""

    server_error = ServerError.AUTHORIZATION
    http_status = 403


class OperatorTokenWrong(PeerError):
    """The operator's token is missing in a request, or is another one."""

    server_error = ServerError.AUTHENTICATION
    http_status = 401


class UnsupportedCommand(PeerError):
    """A command of the protocol that this broker does not serve (yet)."""

    server_error = ServerError.NOT_ALLOWED
    http_status = 501


class InvalidName(PeerError):
    """A topic, namespace, tenant or subscription name that Pulsar refuses, too."""

    server_error = ServerError.INVALID_TOPIC_NAME
    http_status = 412


class InvalidPattern(PeerError):
    """A client's pattern of topic names that no regular expression library accepts."""

    server_error = ServerError.INVALID_TOPIC_NAME
    http_status = 412


class TopicNotFound(PeerError):
    server_error = ServerError.TOPIC_NOT_FOUND
    http_status = 404


class NamespaceNotFound(PeerError):
    server_error = ServerError.TOPIC_NOT_FOUND
    http_status = 404


class SubscriptionNotFound(PeerError):
    server_error = ServerError.SUBSCRIPTION_NOT_FOUND
    http_status = 404


class ConsumerNotFound(PeerError):
    server_error = ServerError.CONSUMER_NOT_FOUND
    http_status = 404


class ConsumerBusy(PeerError):
    server_error = ServerError.CONSUMER_BUSY
    http_status = 412


class ConsumerAssign(PeerError):
    server_error = ServerError.CONSUMER_ASSIGN


class ProducerBusy(PeerError):
    server_error = ServerError.PRODUCER_BUSY
    http_status = 409


class ProducerFenced(PeerError):
    server_error = ServerError.PRODUCER_FENCED
    http_status = 409


class TooManyTopics(PeerError):
    server_error = ServerError.NOT_ALLOWED
    http_status = 412


class TopicTerminated(PeerError):
    server_error = ServerError.TOPIC_TERMINATED
    http_status = 412


class ChecksumMismatch(PeerError):
    server_error = ServerError.CHECKSUM


class TooManyRequests(PeerError):
    server_error = ServerError.TOO_MANY_REQUESTS
    http_status = 429


class IncompatibleSchema(PeerError):
    server_error = ServerError.INCOMPATIBLE_SCHEMA
    http_status = 409


class Conflict(PeerError):
    """The object exists already, or has changed since it was read."""

    server_error = ServerError.METADATA
    http_status = 409


class ServiceNotReady(PeerError):
    """The topic is closing, loading or fenced. Clients look it up again and retry."""

    server_error = ServerError.SERVICE_NOT_READY
    http_status = 503


class StorageError(GemingaError):
    """A disk has failed; nothing that waits for it may be acknowledged."""

    server_error = ServerError.PERSISTENCE
    http_status = 503


class CorruptData(StorageError):
    """Bytes on disk that do not match their checksum, or that belong to another offset. The message names
    file and offset.
    """


class LedgerNotFound(StorageError):
    """No such ledger or entry on this bookie: deleted, or never written."""


class LedgerFenced(StorageError):
    """An add to a ledger that was fenced, closed or deleted."""


class ReadOnly(StorageError):
    """No space is left on the disk: entries and changes are refused until space is free. What was accepted
    before is not affected.
    """

    # "Insufficient Storage": a client shows the reason, and no proxy repeats the request, as after 503.
    http_status = 507


class BadVersion(GemingaError):
    """A versioned write named a version that is no longer current: read the node again and decide."""

    server_error = ServerError.METADATA
    http_status = 409


class KeyMissing(GemingaError):
    """A versioned delete or update named a missing key."""

    server_error = ServerError.METADATA
    http_status = 404
