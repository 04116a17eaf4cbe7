"""The machine's clock, with a wall clock that rules set forward and back, or let drift."""

from __future__ import annotations

import math

import trio

from geminga.chaos.rules.faults import Faults
from geminga.clock import LAST_MS, WALL_CHECK_SECONDS, RealClock


class FaultyClock(RealClock):
    """Message time is the machine's wall clock and what the rules in force add to it; I/O time is untouched.

    `now_ms` may be called on any thread, everything else on the event loop.
    """

    def __init__(self, faults: Faults) -> None:
        self._door = faults.doors["clock"]
        self._changed = trio.Event()
        self._door.on_armed.add(self._tell)
        self._door.on_disarmed.add(self._tell)

    def close(self) -> None:
        """Sleepers are not told of rules from now on."""
        self._door.on_armed.discard(self._tell)
        self._door.on_disarmed.discard(self._tell)

    def now_ms(self) -> int:
        shown_ms = super().now_ms()
        if not self._door.armed:
            return shown_ms
        now_s = self.monotonic_s()
        for one in self._door.armed:
            if not one.end_reason(now_s):
                shown_ms += one.rule.step_ms + int((now_s - one.set_s) * one.rule.ppm / 1000)
        return min(max(shown_ms, 1), LAST_MS)

    async def sleep_until_ms(self, due_ms: int) -> None:
        while (left_ms := due_ms - self.now_ms()) > 0:
            with trio.move_on_after(self._pause_s(left_ms)):
                await self._changed.wait()

    def _pause_s(self, left_ms: int) -> float:
        """Until the clock may show a time that is so far off, as far as the rules tell now."""
        now_s = self.monotonic_s()
        in_force = [one for one in self._door.armed if not one.end_reason(now_s)]
        rate = 1 + sum(one.rule.ppm for one in in_force) / 1_000_000
        ends_s = min((one.ends_s - now_s for one in in_force), default=math.inf)
        return min(left_ms / 1000 / rate if rate > 0 else math.inf, ends_s, WALL_CHECK_SECONDS)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = trio.Event()
