"""Turns of the loop: how long one connection may serve commands before all others have had theirs."""

from __future__ import annotations

import math

import trio

from geminga.broker.flow.switching import SwitchInterval, switch_interval
from geminga.clock import Clock

TURN_S = 0.003
"""A turn takes at most about so long..."""
TURN_COMMANDS_MAX = 256
"""...and so many commands..."""
TURN_CHUNKS_MAX = 8
"""...and so many chunks at most. A connection that has nothing more to do ends its turn earlier."""
SLICE_COMMANDS = 32
"""So many commands are served before it is looked whether the turn is over."""
CALM_AFTER_S = 0.25
"""The usual interval comes back when for so long a connection with little to do has not met a flood."""


class Turns:
    """One per broker: how many connections have more to do than a turn allows.

    Turns are shorter the more there are, so that a connection with one command waits about `TURN_S` for all
    of them together.
    """

    def __init__(self, interval: SwitchInterval = switch_interval) -> None:
        self.waiting = 0
        self._interval = interval
        self._calm_from_s = math.inf
        """When the usual interval comes back; infinite while it holds."""

    def begun_after_sleep(self, now_s: float) -> None:
        """A connection that had nothing to do has something: beside a flood its entries must not wait."""
        if self.waiting:
            if self._calm_from_s == math.inf:
                self._interval.shorten()
            self._calm_from_s = now_s + CALM_AFTER_S

    async def pass_on(self, now_s: float) -> None:
        """Return when every other task that could run has run."""
        if now_s >= self._calm_from_s:
            self._calm_from_s = math.inf
            self._interval.restore()
        self.waiting += 1
        try:
            await trio.lowlevel.checkpoint()
        finally:
            self.waiting -= 1


class Turn:
    """One connection's turn. Begin it whenever the connection's task has slept."""

    __slots__ = ("_chunks_left", "_clock", "_commands_left", "_ends_s", "_turns")

    def __init__(self, turns: Turns, clock: Clock) -> None:
        self._turns = turns
        self._clock = clock
        self._begin()

    def begin(self) -> None:
        """The connection's task has slept."""
        self._begin()
        self._turns.begun_after_sleep(self._clock.monotonic_s())

    def _begin(self) -> None:
        connections = self._turns.waiting + 1
        self._commands_left = TURN_COMMANDS_MAX // connections
        self._chunks_left = TURN_CHUNKS_MAX
        self._ends_s = self._clock.monotonic_s() + TURN_S / connections

    def is_over(self, commands: int) -> bool:
        """Whether the turn is over with these commands, which were served since it was asked last."""
        self._commands_left -= commands
        return self._commands_left <= 0 or self._clock.monotonic_s() >= self._ends_s

    def is_over_with_chunk(self, commands: int) -> bool:
        """The same at the end of a chunk."""
        self._chunks_left -= 1
        return self._chunks_left <= 0 or self.is_over(commands)

    async def end(self) -> None:
        """Let all others have their turn, then begin the next one."""
        await self._turns.pass_on(self._clock.monotonic_s())
        self._begin()
