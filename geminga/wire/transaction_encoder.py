"""Answers to transaction commands: each is the transaction's id, or an error."""

from __future__ import annotations

from typing import TypeAlias, TypeVar, cast

from geminga.wire import pulsar_pb2 as pb
from geminga.wire.encoder import Code, as_code, frame

Response: TypeAlias = (
    pb.CommandNewTxnResponse
    | pb.CommandAddPartitionToTxnResponse
    | pb.CommandAddSubscriptionToTxnResponse
    | pb.CommandEndTxnResponse
    | pb.CommandEndTxnOnPartitionResponse
    | pb.CommandEndTxnOnSubscriptionResponse
)
R = TypeVar("R", bound=Response)
_TYPE = pb.BaseCommand.Type


def tc_client_connect_response(request_id: int, code: Code | None = None, text: str | None = None) -> bytes:
    """The answer to a client that connects to the transaction coordinator; `code` None: success."""
    answer = pb.CommandTcClientConnectResponse(
        request_id=request_id, error=None if code is None else as_code(code), message=text
    )
    return frame(pb.BaseCommand(type=_TYPE.TC_CLIENT_CONNECT_RESPONSE, tcClientConnectResponse=answer))


def response(
    kind: type[R],
    request_id: int,
    most_bits: int,
    least_bits: int,
    code: Code | None = None,
    text: str | None = None,
) -> bytes:
    """One of the six answers that have the same fields, named by its protobuf class."""
    answer = kind(
        request_id=request_id,
        txnid_most_bits=most_bits,
        txnid_least_bits=least_bits,
        error=None if code is None else as_code(code),
        message=text,
    )
    name, number = _FIELDS[kind.DESCRIPTOR.name]
    command = pb.BaseCommand(type=cast("pb.BaseCommand.Type", number))
    getattr(command, name).CopyFrom(answer)
    return frame(command)


_FIELDS = {
    field.message_type.name: (field.name, field.number)
    for field in pb.BaseCommand.DESCRIPTOR.fields
    if field.message_type is not None
}
