"""What a dispatcher may ask of a delayed-delivery tracker.

A tracker is an index from delivery time to positions, and nothing more: it neither holds message bodies nor
acknowledges, so losing one costs a re-read of the backlog, never a message. One tracker serves one
subscription of type Shared or Key_Shared, on one event loop; it may be a view of an index that several
subscriptions share. Pulsar's counterpart is `DelayedDeliveryTracker` (PIP-26, PIP-195).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from pyroaring import BitMap

from geminga.position import Position

NOT_DELAYED_MS = -1
"""What to pass for an entry that carries no delivery time; `add` refuses it, and learns that not all are
delayed.
"""


class LatenessCounts(NamedTuple):
    """Of delayed messages that were given out. `counts[i]`: how many were up to the i-th bound late and more
    than the one before, the last one all that were later; those that came early are in none of them.
    """

    bounds_ms: tuple[int, ...]
    counts: tuple[int, ...]
    early: int
    total_ms: int
    """Of those that were not early."""


class DelayedDeliveryTracker(Protocol):
    """Positions of a subscription that must wait, by the time for which they wait."""

    def add(self, position: Position, deliver_at_ms: int) -> bool:
        """True: the tracker keeps the position, do not dispatch it. False: dispatch it now.

        Refused (False) are `NOT_DELAYED_MS` and any time up to now, or up to now + tick when not strict and
        without a precision of the subscription's own.
        Adding a position that is tracked already is harmless and counted once; refusing one that is
        tracked forgets it, as it is dispatched now. A position comes with the same time each time, as its
        entry does not change.
        """
        ...

    def add_many(
        self, ledger_id: int, entry_ids: Sequence[int], deliver_at_ms: Sequence[int]
    ) -> Sequence[int]:
        """`add` for entries of one ledger, ids ascending, as one read returns them (a list is fastest).

        Returns the places (0, 1, ...) of those that were refused, ascending: dispatch these now. Usually
        empty. Hot: called once for each batch that is read.
        """
        ...

    def is_full(self) -> bool:
        """Whether to offer it no more for now: too much of it waits to be written. Its user is woken when
        that may have changed.
        """
        ...

    def refused(self, deliver_at_ms: Sequence[int]) -> Sequence[int]:
        """The places of those times for which `add_many` would refuse an entry now, ascending."""
        ...

    def has_due(self) -> bool:
        """Whether `take_due` would return anything now."""
        ...

    def take_due(self, count_max: int) -> array[int]:
        """Forget and return at most `count_max` positions that are due: those of the earliest times, and of
        times that the index does not tell apart the first ones of the topic.

        They are one column, of type "Q", of ledger id << 32 | entry id, and ascend: what is read together is
        read in the order of the topic (Pulsar returns a sorted set). Hot: called in every round of a
        dispatcher.
        """
        ...

    def given_out(self) -> None:
        """What `take_due` has returned is with consumers now, or as good as: how late it was is counted. Hot
        too, and next to nothing for a batch of any size.
        """
        ...

    def lateness(self) -> LatenessCounts:
        """How late what was given out was, since this tracker was opened."""
        ...

    def next_due_ms(self, not_before_ms: int = 0) -> int | None:
        """When to ask again, in message time; None if nothing is tracked that time alone makes due. It may be
        `not_before_ms` if a row seems to be due by then: it is not brought out to be looked at, alone.

        Computed from what is tracked at each call, so there is no armed timer to go stale. After now unless
        something is due: a dispatcher that cannot take that yet (no permits) must wait for permits, not for
        the time. It may be too early where something has been cancelled or acknowledged, never too late.
        """
        ...

    def should_pause(self) -> bool:
        """Whether reading further ahead is useless: the backlog is one fixed delay and enough of it is
        tracked.
        """
        ...

    def set_tick(self, tick_ms: int) -> None:
        """Change the allowed earliness, as a policy does; none if delivery is strict. Cheap when nothing
        changes.
        """
        ...

    def set_precision(self, precision_ms: int | None) -> None:
        """Give messages by less than this early from now on, those of a time bucket of this width together.
        0: at their times, as precisely as the index keeps them. None: as `set_tick` and the index say.
        """
        ...

    def early_max_ms(self) -> int:
        """By so much what is given out now may be before its time; what was taken while more was allowed
        included.
        """
        ...

    def leap(self, position: tuple[int, int]) -> None:
        """What comes next is read from this position on, and what lies before it beside that."""
        ...

    @property
    def is_behind(self) -> bool:
        """Whether `caught_up` has something to do. O(1)."""
        ...

    def caught_up(self) -> None:
        """All that lies before the end of the topic has been read: what was added of it is complete, unless
        another subscription that shares the index is still adding to it.
        """
        ...

    def stopped_reading(self) -> None:
        """Nothing is read for this subscription now: others that share the index need not wait for it to
        catch up.
        """
        ...

    def contains(self, position: tuple[int, int]) -> bool:
        """Exactly whether it is tracked: its entry need not be read. Under a microsecond."""
        ...

    def contained(self, ledger_id: int, first_entry: int, last_entry: int) -> int:
        """How many of the entries first to last, both included, are tracked. About a microsecond."""
        ...

    def tracked(self, ledger_id: int, first_entry: int, last_entry: int) -> BitMap | None:
        """Which of the entries first to last, both included, are tracked, None if none is; the set is the
        caller's. Some 10 microseconds for 65,536 entries.
        """
        ...

    def pass_positions(self, positions: Sequence[tuple[int, int]]) -> None:
        """Forget these without delivering them: they have been acknowledged, or have expired. Any position
        may be named, tracked or not.
        """
        ...

    def mark_delete_moved(self, position: tuple[int, int]) -> None:
        """Forget everything up to here, included. Cheap when that is nothing."""
        ...

    def __len__(self) -> int:
        """How many positions are tracked, exactly; O(1)."""
        ...

    def memory_bytes(self) -> int:
        """How much memory the index takes, in bounded time. A shared index counts for one of its views."""
        ...

    async def clear(self) -> None:
        """Forget everything that is tracked now, as after a seek or a cleared backlog; the tracker stays
        usable. What is stored of it is deleted later by whoever stores it.
        """
        ...

    async def close(self) -> None:
        """Release memory; nothing may be added afterwards. What a durable tracker has written stays."""
        ...
