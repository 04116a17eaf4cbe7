"""A range of a topic as Arrow batches: reads entries, completes chunked messages, unpacks batches, builds
columns.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from geminga.errors import ProtocolError
from geminga.pipeline.columns.batches import Messages, select
from geminga.pipeline.columns.columns import ColumnMaker
from geminga.pipeline.columns.entries import Entries
from geminga.pipeline.columns.message_id import EARLIEST, MessageId
from geminga.pipeline.columns.payloads import ChunkedMessages, plain_payloads, portions
from geminga.pipeline.errors import Access, PipelineError
from geminga.pipeline.topics.client_reading import DecryptingReader
from geminga.pipeline.topics.reading import EntryReader, Range
from geminga.pipeline.topics.unreadable import messages_of, unreadable

_FOREVER_MS = 2**63 - 1
_LOOK_BACK_ENTRIES = (64, 1024, 16_384)
"""How many entries to go back for the first chunk of a message, step by step; then to the beginning of the
topic.
"""


class EncryptedEntry(PipelineError):
    """An entry that only the official client can read, in a read that cannot use that client."""


def read_range(
    access: Access, wanted: Range, maker: ColumnMaker, *, poll_timeout_s: float, may_decrypt: bool = True
) -> Iterator[pa.RecordBatch]:
    """Every message of the range once, in order. A chunked message counts at its last chunk.

    Raises `PipelineError`, `CorruptEntry`, `BadPayload`; `EncryptedEntry` unless the entries may be
    decrypted.
    """
    for messages in _messages(access, wanted, poll_timeout_s, may_decrypt):
        ours = within(messages, wanted)
        if len(ours):
            try:
                batch = maker.batch(ours)
            except ProtocolError as error:
                raise unreadable(wanted.topic, messages.entries, error) from None
            yield batch


def _messages(access: Access, wanted: Range, poll_timeout_s: float, may_decrypt: bool) -> Iterator[Messages]:
    chunked = ChunkedMessages()
    decrypting: DecryptingReader | None = None
    try:
        for entries in EntryReader(access, wanted, poll_timeout_s=poll_timeout_s).buffers():
            if decrypting is None and entries.encrypted.any():
                if not may_decrypt:
                    row = int(entries.encrypted.argmax())
                    entry = f"{entries.ledger_id[row]}:{entries.entry_id[row]}"
                    raise EncryptedEntry(f"{wanted.topic}: entry {entry} is encrypted")
                # chunks that were seen before, and those before the range, it has to see for itself
                first = MessageId(int(entries.ledger_id[0]), int(entries.entry_id[0]), 0)
                start = EARLIEST if (entries.chunk_id > 0).any() else first
                decrypting = DecryptingReader(access, wanted.topic, start, poll_timeout_s=poll_timeout_s)
            if decrypting is not None:
                yield decrypting.messages(entries)
                continue
            if (entries.chunk_id > 0).any():
                _find_heads(access, wanted.topic, entries, chunked, poll_timeout_s)
            for portion in portions(entries):
                yield messages_of(wanted.topic, portion, chunked)
    finally:
        if decrypting is not None:
            decrypting.close()


def within(messages: Messages, wanted: Range) -> Messages:
    """Without the messages of the first and the last entry that are outside of the range, or of
    its period.
    """
    entries, start, end = messages.entries, wanted.start, wanted.end
    index = np.maximum(messages.batch_index, 0)
    outside = None
    if wanted.published_from_ms is not None or wanted.published_before_ms is not None:
        published = entries.publish_time_ms[messages.entry]
        from_ms = wanted.published_from_ms or 0
        before_ms = _FOREVER_MS if wanted.published_before_ms is None else wanted.published_before_ms
        outside = (published < from_ms) | (published >= before_ms)
    if start.batch_index > 0:
        first = (entries.ledger_id == start.ledger_id) & (entries.entry_id == start.entry_id)
        before = first[messages.entry] & (index < start.batch_index)
        outside = before if outside is None else outside | before
    if end.batch_index > 0:
        last = (entries.ledger_id == end.ledger_id) & (entries.entry_id == end.entry_id)
        after = last[messages.entry] & (index >= end.batch_index)
        outside = after if outside is None else outside | after
    return messages if outside is None or not outside.any() else select(messages, ~outside)


def _find_heads(
    access: Access, topic: str, entries: Entries, chunked: ChunkedMessages, poll_timeout_s: float
) -> None:
    """Read the earlier chunks of messages that begin before the first entry of this range."""
    wanted = _headless(entries, chunked)
    if not wanted:
        return
    before = MessageId(int(entries.ledger_id[0]), int(entries.entry_id[0]), 0)
    for step in (*_LOOK_BACK_ENTRIES, None):
        entry_id = None if step is None else before.entry_id - step
        start = EARLIEST if entry_id is None or entry_id < 0 else MessageId(before.ledger_id, entry_id, 0)
        found = ChunkedMessages()
        earlier = Range(topic, start, before)
        for older in EntryReader(access, earlier, poll_timeout_s=poll_timeout_s).buffers():
            chunks = np.flatnonzero(older.chunk_id >= 0)
            if len(chunks):
                plain_payloads(older.select(chunks), found)
        found_all = all(found.knows(uuid) or uuid in found.dropped for uuid in wanted)
        if start == EARLIEST or found_all:
            chunked.adopt(found, wanted)
            return
    raise PipelineError("unreachable")


def _headless(entries: Entries, chunked: ChunkedMessages) -> set[bytes]:
    """The uuids whose first chunk is neither here nor known already, nor was dropped."""
    seen: set[bytes] = set()
    missing: set[bytes] = set()
    for row in np.flatnonzero(entries.chunk_id >= 0).tolist():
        uuid = entries.uuid_of(row)
        if entries.chunk_id[row] == 0:
            seen.add(uuid)
        elif uuid not in seen and not chunked.knows(uuid) and uuid not in chunked.dropped:
            missing.add(uuid)
    return missing
