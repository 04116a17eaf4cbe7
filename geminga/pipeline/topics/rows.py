"""A range of a topic as Arrow batches: reads entries, completes chunked messages, unpacks batches, builds
columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from geminga.errors import ProtocolError
from geminga.pipeline.columns.batches import Messages, select
from geminga.pipeline.columns.columns import ColumnMaker
from geminga.pipeline.columns.decryption import BadKey, Decryptor
from geminga.pipeline.columns.entries import Entries, Flags
from geminga.pipeline.columns.message_id import EARLIEST, MessageId
from geminga.pipeline.columns.payloads import (
    BadPayload,
    ChunkedMessages,
    entry_text,
    plain_payloads,
    portions,
)
from geminga.pipeline.errors import Access, Option, PipelineError
from geminga.pipeline.topics.ranges import Range
from geminga.pipeline.topics.reading import EntryReader
from geminga.pipeline.topics.unreadable import messages_of, unreadable

_FOREVER_MS = 2**63 - 1
_LOOK_BACK_ENTRIES = (64, 1024, 16_384)
"""How many entries to go back for the first chunk of a message, step by step; then to the beginning of the
topic.
"""


class EncryptedEntry(PipelineError):
    """An encrypted entry, in a read that has no key for it or must not use one."""


_INSTEAD = (
    Option("pulsar.reader.cryptoFailureAction", "CONSUME", "set"),
    " to get null for what no key opens; the column __undecrypted says which values that are",
)


class _Opener:
    """Makes entries plain, as the options say. The key is read when the first encrypted entry comes."""

    def __init__(self, access: Access, topic: str, *, may_decrypt: bool) -> None:
        self._access = access
        self._topic = topic
        self._may_decrypt = may_decrypt
        self._decryptor: Decryptor | None = None

    def __call__(self, entries: Entries) -> Entries:
        """Raises `EncryptedEntry`, `PipelineError`, `BadPayload`."""
        if not entries.encrypted.any():
            return entries
        if not self._may_decrypt:
            raise EncryptedEntry(f"{self._topic}: entry {_first(entries, entries.encrypted)} is encrypted")
        if self._decryptor is None:
            self._decryptor = self._made()
        try:
            opened = self._decryptor(entries)
        except BadPayload as error:
            raise BadPayload(f"{self._topic}: {error}") from None
        if opened.undecrypted.any() and not self._access.reads_undecrypted:
            raise EncryptedEntry(
                f"{self._topic}: the private key does not open entry {_first(opened, opened.undecrypted)}: "
                "it was encrypted for another one. Give that one as pulsar.reader.privateKeyPath, or ",
                *_INSTEAD,
            )
        return opened

    def _made(self) -> Decryptor:
        path = self._access.private_key
        if path is None and not self._access.reads_undecrypted:
            raise PipelineError(
                f"{self._topic} holds encrypted messages: give the option pulsar.reader.privateKeyPath (a "
                "PEM file, on every worker), or ",
                *_INSTEAD,
            )
        try:
            return Decryptor(None if path is None else Path(path).read_bytes())
        except OSError as error:
            text = f"{path} cannot be read on this machine ({error.strerror})"
        except BadKey as error:
            text = f"{path}: {error}"
        raise PipelineError(f"{self._topic} holds encrypted messages: {text}")


def _first(entries: Entries, flags: Flags) -> str:
    return entry_text(entries, int(flags.argmax()))


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
    opened = _Opener(access, wanted.topic, may_decrypt=may_decrypt)
    for entries in EntryReader(access, wanted, poll_timeout_s=poll_timeout_s).buffers():
        if (entries.chunk_id > 0).any():
            _find_heads(access, wanted.topic, entries, chunked, opened, poll_timeout_s)
        yield from _in_plain(wanted.topic, entries, chunked, opened)


def _in_plain(topic: str, entries: Entries, chunked: ChunkedMessages, opened: _Opener) -> Iterator[Messages]:
    # Before they are opened: one that no key opens becomes as many nulls as it says that it has messages.
    for portion in portions(entries):
        yield from messages_of(topic, opened(portion), chunked)


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
    access: Access,
    topic: str,
    entries: Entries,
    chunked: ChunkedMessages,
    opened: _Opener,
    poll_timeout_s: float,
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
            chunks = np.array([row for row in _chunks(older) if older.uuid_of(row) in wanted], np.int64)
            if len(chunks):
                plain_payloads(opened(older.select(chunks)), found)
        found_all = all(found.knows(uuid) or uuid in found.dropped for uuid in wanted)
        if start == EARLIEST or found_all:
            chunked.adopt(found, wanted)
            return
    raise PipelineError("unreachable")


def _headless(entries: Entries, chunked: ChunkedMessages) -> set[bytes]:
    """The uuids whose first chunk is neither here nor known already, nor was dropped."""
    seen: set[bytes] = set()
    missing: set[bytes] = set()
    for row in _chunks(entries):
        uuid = entries.uuid_of(row)
        if entries.chunk_id[row] == 0:
            seen.add(uuid)
        elif uuid not in seen and not chunked.knows(uuid) and uuid not in chunked.dropped:
            missing.add(uuid)
    return missing


def _chunks(entries: Entries) -> list[int]:
    """The rows of chunks that say of which message they are; one that does not is named where it is read."""
    found: list[int] = np.flatnonzero((entries.chunk_id >= 0) & entries.uuid.present).tolist()
    return found
