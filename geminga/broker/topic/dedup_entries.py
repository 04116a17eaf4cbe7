"""What deduplication takes from an entry: producer's name, sequence ids, whether it is a chunk. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from geminga.broker.topic.dedup import SequenceIds, Verdict
from geminga.errors import ProtocolError, ServerError, ServiceNotReady
from geminga.wire.commands import signed
from geminga.wire.message_metadata import peek

if TYPE_CHECKING:
    from geminga.broker.topic.publish_context import PublishContext
    from geminga.wire.decoder import Send

PART: Final = -2
"""Recorded for a chunk that is not its message's last: all chunks have one id, the last settles it."""


class DuplicateUndecided(ServiceNotReady):
    """An entry like this one is on its way to the disk. The client is to send it again later."""

    server_error = ServerError.UNKNOWN


def id_of(context: PublishContext) -> int:
    """What is recorded for an entry with this context, also one that was accepted while it was off."""
    if context.recorded is not None:
        return context.recorded
    return max(signed(context.sequence_id), signed(context.highest_sequence_id))


def admit(ids: SequenceIds, name: str, send: Send) -> int | None:
    """What to record of an entry once it is durable; None: it is a duplicate, nothing is to be stored.

    Raises DuplicateUndecided. Of a chunked message each chunk is judged, so that one that is stored as a
    whole is not stored in part again; Pulsar judges the last one only.
    """
    sequence_id = signed(send.sequence_id)
    verdict = ids.judge(name, sequence_id)
    if verdict is Verdict.NEW:
        if send.is_chunk and not is_last_chunk(send.headers_and_payload):
            return PART
        return max(sequence_id, signed(send.highest_sequence_id))
    if verdict is Verdict.DUPLICATE:
        return None
    raise DuplicateUndecided(
        f"Cannot determine whether the message is a duplicate at this time: {name} sent it before, and it is "
        "not durable yet"
    )


def is_last_chunk(body: bytes) -> bool:
    """Whether an entry is no chunk, or the last one of its message."""
    try:
        metadata = peek(body)
    except ProtocolError:
        return True
    return not metadata.is_chunk or metadata.chunk_id == metadata.num_chunks - 1


def record_stored(ids: SequenceIds, body: bytes) -> None:
    """Take in one entry of the log. One whose metadata cannot be read is nobody's."""
    try:
        metadata = peek(body).metadata
    except ProtocolError:
        return
    if metadata.HasField("chunk_id") and metadata.chunk_id != metadata.num_chunks_from_msg - 1:
        return
    name, sequence_id = metadata.producer_name, signed(metadata.sequence_id)
    ids.persisted(name, max(sequence_id, signed(metadata.highest_sequence_id)))
