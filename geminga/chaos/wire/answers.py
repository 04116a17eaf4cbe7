"""Answers with an error, of the kind that Pulsar gives to each request. Pure."""

from __future__ import annotations

from typing import Any, Final

from geminga.errors import ServerError
from geminga.wire import encoder
from geminga.wire import pulsar_pb2 as pb
from geminga.wire.commands import request_id_of

SIZES_BYTES: Final = 8
"""The sizes before a command: of the frame, of the command."""


def request_bytes(frame: bytes | bytearray) -> int:
    """How many of a frame's first bytes `error_answer` needs; there are at least eight."""
    return SIZES_BYTES + int.from_bytes(frame[4:SIZES_BYTES], "big")


def error_answer(frame: bytes, error: str, text: str) -> bytes:
    """What a broker sends that refuses this request with this error, by its name in the protocol. Empty for a
    request that has no answer: an ACK without a request id, or one that cannot be read.
    """
    envelope = pb.BaseCommand()
    try:
        envelope.ParseFromString(frame[SIZES_BYTES : request_bytes(frame)])
    except Exception:  # the generated code raises its own DecodeError, a ValueError in some versions
        return b""
    name = pb.BaseCommand.DESCRIPTOR.fields_by_number[envelope.type].name
    command: Any = getattr(envelope, name)
    code = ServerError(pb.ServerError.Value(error))
    if isinstance(command, pb.CommandSend):
        return encoder.send_error(command.producer_id, command.sequence_id, code, text)
    request_id = request_id_of(command)
    if request_id is None:
        return b""
    if isinstance(command, pb.CommandAck):
        return encoder.ack_response(command.consumer_id, request_id, code, text)
    if isinstance(command, pb.CommandConsumerStats):
        answer = pb.CommandConsumerStatsResponse(
            request_id=request_id, error_code=encoder.as_code(code), error_message=text
        )
        return encoder.consumer_stats(answer)
    return _ANSWERS.get(type(command), encoder.error)(request_id, code, text)


_ANSWERS: Final = {
    pb.CommandLookupTopic: encoder.lookup_failed,
    pb.CommandPartitionedTopicMetadata: encoder.partitioned_metadata_failed,
    pb.CommandGetSchema: encoder.schema_failed,
    pb.CommandGetOrCreateSchema: encoder.schema_not_created,
}
"""All others are answered by ERROR."""
