"""How often a dispatcher looks for messages that have become due. Pure.

Of a stream of them each is due in a millisecond of its own. Taken one by one each would cost a turn of the
dispatcher and a write to its consumer. So after all that was due has been taken there is a pause, in which
others gather; they go in the order of the topic.
"""

from __future__ import annotations

from typing import Final

DUE_PAUSE_MS: Final = 10
"""By at most so much a message is late for the sake of those that are due shortly after it."""


class DuePace:
    """Of one dispatcher, in message time. A clock that steps back ends the pause."""

    __slots__ = ("_drained_ms",)

    def __init__(self) -> None:
        self._drained_ms = -DUE_PAUSE_MS

    def drained(self, now_ms: int) -> None:
        """Messages were taken, and no more are due now."""
        self._drained_ms = now_ms

    def is_pause(self, now_ms: int) -> bool:
        return 0 <= now_ms - self._drained_ms < DUE_PAUSE_MS

    def not_before(self, due_ms: int, now_ms: int) -> int:
        """When to look for what is due at `due_ms`."""
        if now_ms < self._drained_ms:
            return due_ms
        return max(due_ms, self._drained_ms + DUE_PAUSE_MS)
