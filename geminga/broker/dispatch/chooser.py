"""What a dispatcher asks of a subscription type: its consumers, and which of them gets which entry.

The choosers are `Exclusive` and `Failover` (single.py), `Shared` (shared.py) and `KeyShared`
(key_shared.py). They decide and remember; they do not read, send, wait or look at a clock, so that a test can
ask one without a broker around it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from geminga.position import Position

if TYPE_CHECKING:
    from geminga.broker.dispatch.consumer import Consumer
    from geminga.managed_ledger.chain.entry import Entry


class Batch:
    """Entries that may be sent: `sizes[i]` messages of `entries[i]` are not acknowledged yet (at least 1)."""

    __slots__ = ("ack_sets", "entries", "has_chunks", "sizes", "timed")

    def __init__(
        self,
        entries: list[Entry],
        sizes: list[int],
        timed: list[Entry],
        ack_sets: Mapping[Position, tuple[int, list[int]]],
        *,
        has_chunks: bool = False,
    ) -> None:
        self.entries = entries
        self.sizes = sizes
        self.timed = timed
        """Those of `entries` that have a delivery time."""
        self.ack_sets = ack_sets
        """For partly acknowledged entries: (messages in the whole entry, bits of those still unacknowledged).
        """
        self.has_chunks = has_chunks

    def leave_out(self, held: Collection[Position]) -> None:
        """Take these entries out again: they are held back."""
        # The usual batch has nothing to hold back, and keeps its lists.
        if not held:
            return
        kept = [n for n, entry in enumerate(self.entries) if entry.position not in held]
        self.entries = [self.entries[n] for n in kept]
        self.sizes = [self.sizes[n] for n in kept]
        # Counted again: a batch without chunks is shared in the quick way.
        self.has_chunks = self.has_chunks and count_chunks(self.entries) > 0


class Given(msgspec.Struct, gc=False):
    """What one consumer gets of a batch, in the order of the topic."""

    consumer: Consumer
    entries: list[Entry]
    sizes: list[int]
    slots: list[int] | None = None
    """The entries' Key_Shared slots."""


class Shares(msgspec.Struct, gc=False):
    """A batch, shared out. An entry that is in neither list is for none of the consumers."""

    given: list[Given]
    waiting: list[Entry]
    """No consumer can take these now."""
    waiting_slots: list[int] | None = None


class Chooser(Protocol):
    """The rules of one subscription type."""

    @property
    def sub_type(self) -> str: ...

    @property
    def consumers(self) -> list[Consumer]:
        """In the order in which they are shown; only `add` and `remove` change it."""
        ...

    def add(self, consumer: Consumer) -> None:
        """Raises `PeerError` when the consumer is not wanted; then nothing has changed."""
        ...

    def remove(self, consumer: Consumer) -> None: ...

    def active(self) -> Consumer | None:
        """The one consumer that gets everything; None where each may get something, or there is none."""
        ...

    def receivers(self) -> Sequence[Consumer]:
        """The consumers that get entries as soon as their permits allow."""
        ...

    def share(self, batch: Batch, *, is_new: bool) -> Shares:
        """Decide which consumer gets which entry. `is_new`: none of them was to be sent before."""
        ...


class ReplayChooser(Chooser, Protocol):
    """A type whose consumers acknowledge entry by entry: what waits is kept, and goes before what is new."""

    @property
    def keeps_order(self) -> bool:
        """Whether nothing may overtake an earlier entry that waits, and be it one that is yet to be read."""
        ...

    def select(self, count_max: int) -> list[Position]:
        """Which of the entries that wait are worth a read now, at most so many. Asked before each read."""
        ...

    def reconsider(self) -> None:
        """What was refused may be taken now: permits came, a block was lifted, entries were given back."""
        ...

    def look_ahead_left(self) -> int:
        """How many more entries may be read that perhaps no consumer can take yet; 0 or less: none."""
        ...


def count_chunks(entries: Sequence[Entry]) -> int:
    """How many of the entries are chunks of larger messages."""
    return sum(entry.peek.chunk_id >= 0 for entry in entries)
