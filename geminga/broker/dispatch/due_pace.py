"""How often a dispatcher looks for messages that have become due. Pure.

Of a stream of them each is due in a millisecond of its own. Taken one by one each would cost a turn of the
dispatcher and a write to its consumer. So after all that was due has been taken there is a pause, in which
others gather; they go in the order of the topic.
"""

from __future__ import annotations

from typing import Final

DUE_PAUSE_MS: Final = 8
"""By at most so much a message is late for the sake of those that are due shortly after it. With 10 one of a
hundred of a steady stream is more than 10 ms late, as the way to the client takes a millisecond.
"""


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

    def resumes_ms(self, now_ms: int) -> int:
        """When to look for what is due at the earliest: the end of the pause, or now."""
        return self._drained_ms + DUE_PAUSE_MS if self.is_pause(now_ms) else now_ms
