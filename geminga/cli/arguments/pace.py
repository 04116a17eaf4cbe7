"""Doing something so and so often per second."""

from __future__ import annotations

import trio


class Pace:
    """`await wait(n)` before n more. Late ones are caught up, but never more than a second's worth."""

    def __init__(self, per_second: float) -> None:
        """0: as fast as possible."""
        self._interval_s = 1.0 / per_second if per_second else 0.0
        self._due_s = trio.current_time()

    async def wait(self, count: int = 1) -> None:
        if not self._interval_s:
            return
        now_s = trio.current_time()
        self._due_s = max(self._due_s, now_s - 1.0)
        if self._due_s > now_s:
            await trio.sleep_until(self._due_s)
        self._due_s += count * self._interval_s
