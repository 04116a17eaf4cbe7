"""The clock for the admin API: what it shows, and its jumps if it is virtual."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from geminga.clock import RealClock
from geminga.errors import Conflict

if TYPE_CHECKING:
    from geminga.broker.jumps.jumps import Jump, Jumps, Wait
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
    next_due_ms: int | None
    """When the next delayed message falls due, of the topics that are loaded."""


class ClockOperator:
    def __init__(self, topics: Topics, rooms: Rooms) -> None:
        self._topics = topics
        self._rooms = rooms
        self._jumps: Jumps | None = None

    def report(self) -> ClockReport:
        from geminga.broker.jumps.next_events import next_due_ms

        clock = self._rooms.clock
        return ClockReport(
            clock="virtual" if clock.is_virtual else "real",
            now_ms=clock.now_ms(),
            wall_ms=RealClock().now_ms(),
            next_due_ms=next_due_ms(self._topics.loaded),
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
            from geminga.clock import VirtualClock
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
