"""The fields of an entry that deduplication needs: producer name, sequence ids, whether it is a
chunk. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from geminga.broker.topic.dedup import SequenceIds, Verdict
from geminga.errors import ProtocolError, ServerError, ServiceNotReady
from geminga.wire.commands import signed
from geminga.wire.message_metadata import peek

if TYPE_CHECKING:
    from geminga.broker.topic.publish_run import PublishRun
    from geminga.wire.decoder import Send

# All chunks of a message have the same sequence id. If the first one were recorded, the second would be taken
# for its duplicate, and a broker that stops in between would refuse the rest of the message for ever.
PART: Final = -2
"""Recorded for each chunk except the last one of its message, which decides the id."""


class DuplicateUndecided(ServiceNotReady):
    """The entry is already being written. The client has to send it again later."""

    # Pulsar's code for this too (`MessageDupUnknownException`); a client reconnects on it and resends.
    server_error = ServerError.UNKNOWN


def ids_of(run: PublishRun) -> list[int]:
    """The ids to record for the entries of a run, even of one that was accepted while deduplication was
    off.
    """
    if run.recorded is not None:
        return [run.recorded]
    each = zip(run.sequence_ids, run.highest_sequence_ids, strict=True)
    return [max(signed(sequence_id), signed(highest)) for sequence_id, highest in each]


def admit(ids: SequenceIds, name: str, send: Send) -> int | None:
    """The id to record when the entry is durable; None for a duplicate, which must not be stored.

    Raises DuplicateUndecided.
    """
    # Every chunk is judged, so that a message that is stored as a whole is not stored in part again. Pulsar
    # judges the last one only.
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
    """Whether an entry is no chunk, or the last chunk of its message."""
    # Unreadable metadata is stored as it is: the broker does not judge what a client packs into its entries.
    try:
        metadata = peek(body)
    except ProtocolError:
        return True
    return not metadata.is_chunk or metadata.chunk_id == metadata.num_chunks - 1


def record_stored(ids: SequenceIds, body: bytes) -> None:
    """Record one entry of the log. Skips an entry whose metadata cannot be read."""
    # It names no producer. A load that failed for it would make all of the topic unavailable.
    try:
        metadata = peek(body).metadata
    except ProtocolError:
        return
    if metadata.HasField("chunk_id") and metadata.chunk_id != metadata.num_chunks_from_msg - 1:
        return
    name, sequence_id = metadata.producer_name, signed(metadata.sequence_id)
    ids.persisted(name, max(sequence_id, signed(metadata.highest_sequence_id)))
