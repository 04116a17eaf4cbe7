"""Turns of the loop: how long one connection serves commands before all others have a turn.

The loop is one thread. A client that never stops sending would keep it, because a read that finds bytes does
not yield. So a busy connection yields after a bounded piece of work.
"""

from __future__ import annotations

import math

import trio

from geminga.broker.flow.switching import SwitchInterval, switch_interval
from geminga.clock import Clock

# A turn was once eight chunks of 256 KiB, whatever was in them: one client with cheap commands kept the
# others waiting for seconds.
TURN_S = 0.003
"""The longest duration of a turn, approximately."""
TURN_COMMANDS_MAX = 256
"""The limit of commands in a turn."""
TURN_CHUNKS_MAX = 8
"""The limit of chunks in a turn. A connection without more work ends its turn earlier."""
SLICE_COMMANDS = 32
"""Commands that are served between two checks whether the turn is over."""
CALM_AFTER_S = 0.25
"""The usual switch interval is restored after this time without a connection that wakes up
beside a flood.
"""


class Turns:
    """One per broker: counts the connections that have more work than a turn allows.

    Turns get shorter as this number grows, so that a connection with one command waits about `TURN_S` for
    all of them together.
    """

    def __init__(self, interval: SwitchInterval = switch_interval) -> None:
        self.waiting = 0
        self._interval = interval
        self._calm_from_s = math.inf
        """When the usual interval is restored; infinite while it is in force."""

    def begun_after_sleep(self, now_s: float) -> None:
        """A connection that slept has work: beside a flood its entries must not wait."""
        # Only beside a flood: shorter everywhere it cost a lone publisher a tenth more CPU for each message,
        # since the journal's thread came earlier and its groups of entries were smaller
        # (`flow/switching.py`).
        if self.waiting:
            if self._calm_from_s == math.inf:
                self._interval.shorten()
            self._calm_from_s = now_s + CALM_AFTER_S

    async def pass_on(self, now_s: float) -> None:
        """Return when every other task that could run has run."""
        # Restored here, at the end of a busy connection's turn: a broker without busy connections has no use
        # for either interval, and no timer has to run for it.
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
        # Divided by the busy connections, so that the others wait about one `TURN_S` for all of them
        # together.
        connections = self._turns.waiting + 1
        self._commands_left = TURN_COMMANDS_MAX // connections
        self._chunks_left = TURN_CHUNKS_MAX
        self._ends_s = self._clock.monotonic_s() + TURN_S / connections

    def is_over(self, commands: int) -> bool:
        """Whether the turn is over after these commands, which were served since the last call."""
        self._commands_left -= commands
        return self._commands_left <= 0 or self._clock.monotonic_s() >= self._ends_s

    def is_over_with_chunk(self, commands: int) -> bool:
        """Whether the turn is over at the end of a chunk."""
        self._chunks_left -= 1
        return self._chunks_left <= 0 or self.is_over(commands)

    async def end(self) -> None:
        """Let all others have their turn, then begin the next one."""
        await self._turns.pass_on(self._clock.monotonic_s())
        self._begin()
