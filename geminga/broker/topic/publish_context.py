"""An entry on its way to the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from geminga.broker.topic.producer import Producer
    from geminga.wire.peek import Peek


class PublishContext(msgspec.Struct, gc=False):
    """What the topic has to know of an entry once it is durable, or has failed (Pulsar's
    `Topic.PublishContext`). The managed ledger hands it back as it is.

    Made for each message, so it is positional, and the garbage collector does not track it: that is why
    nothing a context refers to may keep it for longer than the ledger does.
    """

    producer: Producer
    sequence_id: int
    highest_sequence_id: int
    """0: the command had none."""
    accepted_s: float
    """When the ledger took it, in I/O time."""
    recorded: int | None = None
    """The sequence id that deduplication records, or `PART`; None: it was off."""
    parsed: Peek | None = None
    """The entry's metadata, where publishing had to look at it. The tail cache has it too."""
    deliver_at_ms: int = 0
    """When it is due, as far as the topic's delayed index wants to know; 0: at once."""
