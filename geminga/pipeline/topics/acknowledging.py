"""A durable subscription that follows what a stream has finished, so that its backlog shrinks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from geminga.errors import ServerError
from geminga.pipeline.client.connection import Connection
from geminga.pipeline.client.lookup import owner_of
from geminga.pipeline.client.topics import missing
from geminga.pipeline.columns.places import Place, of_message_id
from geminga.pipeline.errors import Access, BrokerUnreachable, PipelineError, Refused
from geminga.wire import client_commands
from geminga.wire import pulsar_pb2 as pb

_CONSUMER_ID = 1
_GONE = (ServerError.TOPIC_NOT_FOUND, ServerError.METADATA)


class Acknowledger:
    """One topic's consumer on the subscription. It takes no messages; another consumer of it may."""

    def __init__(self, access: Access, topic: str, subscription: str) -> None:
        """Connects when first needed. A new subscription begins with the topic: `acknowledge` says from where
        on it counts.
        """
        self._access = access
        self._topic = topic
        self._subscription = subscription
        self._connection: Connection | None = None
        self._done: Place | None = None

    def open(self) -> Connection:
        """Raises `PipelineError`; creates the subscription if it is new."""
        if self._connection is not None:
            return self._connection
        connection = owner_of(self._access, self._topic)
        try:
            connection.request(
                lambda number: client_commands.subscribe(
                    number,
                    _CONSUMER_ID,
                    self._topic,
                    self._subscription,
                    sub_type=pb.CommandSubscribe.Failover,
                    earliest=True,
                )
            )
        except Refused as error:
            connection.close()
            if error.code in _GONE:
                raise missing(self._topic) from None
            raise PipelineError(
                f"{self._topic}: cannot use subscription {self._subscription!r} (predefinedSubscription): "
                f"{error}; consumers of another type may be connected to it"
            ) from None
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def mark_delete(self) -> tuple[int, int] | None:
        """Up to where everything is acknowledged; None if the broker does not tell."""
        answer = self._ask(lambda number: client_commands.last_message_id(number, _CONSUMER_ID))
        if not answer.HasField("consumer_mark_delete_position"):
            return None
        return of_message_id(answer.consumer_mark_delete_position).entry

    def acknowledge(self, end: Place) -> None:
        """Everything in entries before the one that `end` is in. Durable as far as the broker persists it.

        Of an entry that was read in part nothing is acknowledged yet. While the broker is away nothing
        happens: the next call makes up for it.
        """
        if end.entry_id <= 0 or (self._done is not None and end <= self._done):
            return
        position = (end.ledger_id, end.entry_id - 1)
        try:
            self._ask(
                lambda number: client_commands.ack(
                    _CONSUMER_ID, [position], cumulative=True, request_id=number
                )
            )
        except BrokerUnreachable:
            return
        self._done = end

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _ask(self, build: Callable[[int], bytes]) -> Any:
        try:
            return self.open().request(build)
        except BrokerUnreachable:
            pass
        except Refused as error:
            # A broker that has unloaded the topic closed our consumer and left the connection open.
            if error.code != ServerError.METADATA:
                raise
        self.close()
        return self.open().request(build)
