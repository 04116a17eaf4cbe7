"""Decodes bytes to entries and messages, and names the entry that breaks the rules."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from geminga.errors import GemingaError, ProtocolError
from geminga.pipeline.client.frames import Taken, position_of
from geminga.pipeline.columns.batches import Messages, split
from geminga.pipeline.columns.columns import properties
from geminga.pipeline.columns.entries import Entries, read_entries
from geminga.pipeline.columns.payloads import BadPayload, ChunkedMessages, plain_payloads
from geminga.pipeline.errors import PipelineError

NEVER_PAST = (1 << 64, 0)


class UnreadableEntry(PipelineError):
    """An entry that is as it was stored, but whose producer violated the protocol."""

    def __init__(self, topic: str, entry: str, error: GemingaError) -> None:
        super().__init__(
            f"{topic}: entry {entry} is not what a producer should send: {error}. Read what is before it and "
            "what is after it (startingOffsets, endingOffsets)"
        )


def entries_of(topic: str, taken: Taken, past: tuple[int, int] = NEVER_PAST) -> Entries:
    """The entries in the frames of a reader. A bad one from `past` on is left out with all that follow it,
    if others come first. Raises `UnreadableEntry`.
    """
    try:
        return read_entries(*taken)
    except ProtocolError:
        for row, bounds in enumerate(taken.bounds):
            try:
                read_entries(taken.data, bounds[np.newaxis])
            except ProtocolError as error:
                position = position_of(taken.data.data, bounds[0], bounds[1])
                if row and position >= past:
                    return read_entries(taken.data, taken.bounds[:row])
                raise UnreadableEntry(topic, f"{position[0]}:{position[1]}", error) from None
        raise


def messages_of(topic: str, entries: Entries, chunked: ChunkedMessages) -> Iterator[Messages]:
    """All messages of the entries, in portions. Raises `UnreadableEntry`, `BadPayload`."""
    try:
        yield from split(entries, plain_payloads(entries, chunked))
    except ProtocolError as error:
        raise unreadable(topic, entries, error) from None
    except BadPayload as error:
        raise BadPayload(f"{topic}: {error}") from None


def unreadable(topic: str, entries: Entries, error: ProtocolError) -> UnreadableEntry:
    """An error that names the entry that caused it."""
    for row in range(len(entries)):
        one = entries.select(np.array([row]))
        try:
            for messages in split(one, plain_payloads(one, ChunkedMessages())):
                properties(messages)
        except (ProtocolError, BadPayload) as found:
            return UnreadableEntry(topic, f"{one.ledger_id[0]}:{one.entry_id[0]}", found)
    return UnreadableEntry(topic, "?", error)
