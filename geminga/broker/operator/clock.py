"""The clock for the admin API: what it shows, and its jumps if it is virtual."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from geminga.broker.flow.slices import Pace
from geminga.broker.operator.delayed_unread import holds_back, unread_of
from geminga.clock import RealClock, VirtualClock
from geminga.errors import Conflict

if TYPE_CHECKING:
    from geminga.broker.jumps.jumps import Jump, Jumps, Wait
    from geminga.broker.subscription.subscription import Subscription
    from geminga.broker.topic.rooms import Rooms
    from geminga.broker.topic.topics import Topics

NO_JUMPS = (
    "this data directory has a real clock, which cannot be moved: start a broker on a new data directory "
    "with --clock virtual"
)


class ClockReport(msgspec.Struct, frozen=True, kw_only=True):
    clock: str
    """"real" or "virtual"."""
    now_ms: int
    """Message time."""
    wall_ms: int
    """The machine's clock."""
    stands: bool
    """Whether a virtual clock does not tick, as it could not be saved where it stands. A move ends that."""
    next_due_ms: int | None
    """When the next delayed message falls due, as far as the broker has read; None: it knows of none."""
    unread_topics: int
    """Topics whose delayed messages it has not read yet, as it has just started. One may be due before."""
    unread_entries: int
    """At most so many more entries may be delayed, and due before; they are read for a consumer with room."""


class ClockOperator:
    def __init__(self, topics: Topics, rooms: Rooms) -> None:
        self._topics = topics
        self._rooms = rooms
        self._jumps: Jumps | None = None

    async def report(self) -> ClockReport:
        """Leaves turns to others."""
        from geminga.broker.jumps.next_events import due_ms, subscriptions_of

        pace = Pace()
        # Before those that are loaded: one that is loaded meanwhile is counted twice, and never missed.
        topics = await self._topics.unloaded_topics.unread_delays(pace)
        times, entries, being_read = [], 0, set()
        for subscription in subscriptions_of(self._topics.loaded):
            await pace.row()
            if (at_ms := due_ms(subscription)) is not None:
                times.append(at_ms)
            if subscription.delayed.unknown is not None:
                being_read.add(subscription.topic.name)
            elif holds_back(subscription):
                entries += _unread_entries(subscription)
        clock = self._rooms.clock
        return ClockReport(
            clock="virtual" if clock.is_virtual else "real",
            now_ms=clock.now_ms(),
            wall_ms=RealClock().now_ms(),
            stands=isinstance(clock, VirtualClock) and clock.stands,
            next_due_ms=min(times, default=None),
            unread_topics=topics + len(being_read),
            unread_entries=entries,
        )

    async def advance(self, length_ms: int, wait: Wait, wait_s: float) -> Jump:
        """Move the clock by so much; `Jumps.to` says how, and what is durable."""
        return await self._mover().by(length_ms, wait, wait_s)

    async def advance_to(self, at_ms: int, wait: Wait, wait_s: float) -> Jump:
        return await self._mover().to(at_ms, wait, wait_s)

    async def advance_to_next(self, wait: Wait, wait_s: float) -> Jump:
        """To the next moment at which something happens; `Conflict` if nothing is going to."""
        return await self._mover().to_next(wait, wait_s)

    def _mover(self) -> Jumps:
        if self._jumps is None:
            # Imported with the first jump: most brokers never make one.
            from geminga.broker.jumps.jumps import Jumps, Saves
            from geminga.metadata.virtual_clock_state import save_clock, save_jump

            clock = self._rooms.clock
            if not isinstance(clock, VirtualClock):
                raise Conflict(NO_JUMPS)
            metadata, topics = self._rooms.metadata, self._topics
            saves = Saves(partial(save_jump, metadata, clock), partial(save_clock, metadata, clock))
            self._jumps = Jumps(
                clock, topics.loaded, topics.rounds, saves, topics.load_delayed_now, self._rooms.record
            )
        return self._jumps


def _unread_entries(subscription: Subscription) -> int:
    return unread_of(subscription) if subscription.consumers else subscription.delayed.unread_entries()
