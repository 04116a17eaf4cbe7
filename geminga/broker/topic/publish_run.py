"""Entries of one producer that are being written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from geminga.broker.topic.producer import Producer
    from geminga.wire.peek import Peek


class PublishRun(msgspec.Struct, gc=False):
    """The data that the topic needs when the entries are durable or have failed (Pulsar's
    `Topic.PublishContext`, which is of one entry). The managed ledger passes it back unchanged. The lists
    are parallel, with at least one element.
    """

    # One for what came together: made for each entry it was a tenth of what a message cost. `gc=False` saves
    # the collector the walk over all runs on their way. It is safe as long as nothing that a run refers to
    # refers back to it.

    producer: Producer
    sequence_ids: list[int]
    highest_sequence_ids: list[int]
    """0 for an entry whose command had none."""
    accepted_s: float
    """When the ledger accepted the entries (monotonic)."""
    recorded: int | None = None
    """The sequence id that deduplication records for the only entry, or `PART`; None while deduplication is
    off. Deduplication judges entries one by one, so a run has one entry while it is on.
    """
    parsed: list[Peek | None] | None = None
    """The entries' metadata; None if publishing did not have to parse any. The tail cache has it too."""
    due_times_ms: list[int] | None = None
    """The due times, if the topic's delayed index is fed while publishing and an entry has one; 0: at once,
    or unknown.
    """
