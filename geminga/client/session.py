"""Requests of one connection and their answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from geminga.client.refusal import Refusal
from geminga.limits import MESSAGE_BYTES_MAX
from geminga.wire import client_commands, encoder
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import request_id_of

CONNECT_ID = 0
"""The key for CONNECT, which gets an answer, but has no request id on the wire."""

Build = Callable[[int], bytes]
"""Makes the command for a request id."""


class Answer(NamedTuple):
    """A broker's answer to a request."""

    request_id: int
    command: Any
    refusal: Refusal | None
    """The refusal; None if the request was granted."""


class Session:
    """One connection, from its CONNECT on. The caller sends the bytes and passes in the received
    commands.
    """

    def __init__(self) -> None:
        self.is_connected = False
        """Whether the broker has answered CONNECT and not refused it."""
        self.message_bytes_max = MESSAGE_BYTES_MAX
        """The largest message that the broker takes."""
        self._last_id = CONNECT_ID
        self._open: set[int] = set()

    def connect(
        self,
        client_version: str,
        *,
        auth_method: str | None = None,
        auth_data: bytes | None = None,
        broker_entry_metadata: bool = False,
    ) -> bytes:
        """The first bytes of a connection; the answer has `CONNECT_ID`."""
        self._open.add(CONNECT_ID)
        return client_commands.connect(
            client_version,
            auth_method=auth_method,
            auth_data=auth_data,
            broker_entry_metadata=broker_entry_metadata,
        )

    def new_id(self) -> int:
        """An id that is unused on this connection, for a request without a pending answer."""
        self._last_id += 1
        return self._last_id

    def ask(self, build: Build) -> tuple[int, bytes]:
        """A new request: its id, which the answer will have, and its bytes."""
        request_id = self.new_id()
        self._open.add(request_id)
        return request_id, build(request_id)

    def forget(self, request_id: int) -> None:
        """Stop waiting for an answer. Does nothing if it has arrived already."""
        self._open.discard(request_id)

    def hear(self, command: Any) -> Answer | bytes | None:
        """The meaning of a received command: an answer to a request, or bytes to send back (empty if there
        is nothing to do). None: the command is for producers and consumers.
        """
        if isinstance(command, pb.CommandPing):
            return encoder.pong()
        if isinstance(command, pb.CommandConnected):
            self.is_connected = True
            self.message_bytes_max = command.max_message_size or MESSAGE_BYTES_MAX
            request_id: int | None = CONNECT_ID
        else:
            request_id = request_id_of(command)
            if isinstance(command, pb.CommandError) and not (self.is_connected or request_id in self._open):
                request_id = CONNECT_ID  # brokers that refuse CONNECT give the error an id that nothing has
        if request_id is None or request_id not in self._open:
            return None
        if isinstance(command, pb.CommandProducerSuccess) and not command.producer_ready:
            return b""  # it waits for exclusive access; another success follows
        self._open.discard(request_id)
        return Answer(request_id, command, refusal_of(command))


def refusal_of(answer: Any) -> Refusal | None:
    """The error in an answer, if any; each kind of answer has its own field for it."""
    if isinstance(answer, pb.CommandError):
        return Refusal(answer.error, answer.message)
    if isinstance(answer, pb.CommandPartitionedTopicMetadataResponse | pb.CommandLookupTopicResponse):
        return Refusal(answer.error, answer.message) if answer.response == type(answer).Failed else None
    if isinstance(answer, pb.CommandGetSchemaResponse | pb.CommandGetOrCreateSchemaResponse):
        return Refusal(answer.error_code, answer.error_message) if answer.HasField("error_code") else None
    if isinstance(answer, pb.CommandAckResponse) and answer.HasField("error"):
        return Refusal(answer.error, answer.message)
    return None
