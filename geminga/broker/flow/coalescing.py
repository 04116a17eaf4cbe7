"""Short pauses of the event loop while many publishers send rarely, so that their messages share its turns.

One message costs little beside the turns of the loop, the sync and the wake-ups that it causes. A publisher
that sends much shares them with itself. A thousand publishers with one message a second each share nothing,
and the broker paid for a message a quarter of a millisecond. With pauses of two milliseconds it pays a fifth
to a third less. BookKeeper waits for its journal's groups in the same way (`journalMaxGroupWaitMSec`), but
always. A pause holds up all that the loop serves, so there are none while some client waits for one answer
after the other: a publisher that sends when its receipts have come, a consumer that asks for each message,
requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from geminga.clock import RealClock

PAUSE_S: Final = 0.002
"""The longest pause, once a turn. With half of it a thousand topics cost a tenth less, not a fifth."""
WINDOW_S: Final = 0.016
"""For how long publishers are watched, and for how long the result holds. A publisher that sends again as
soon as it has its receipt shows up twice within this time, pauses or not: they would slow it down.
"""
# Fewer would wait for each other in vain, and more fill the turns without pauses.
ALONE_MIN: Final = 8
ALONE_MAX: Final = 64
"""How many messages a window has when there are pauses: 500 to 4,000 a second."""

_monotonic_s = RealClock().monotonic_s


class Coalescing:
    """Judges the publishers of each window. On the loop."""

    __slots__ = ("_alone", "_ends_s", "_is_asked", "_monotonic_s", "_pauses", "_publishers")

    def __init__(self, monotonic_s: Callable[[], float] = _monotonic_s) -> None:
        self._monotonic_s = monotonic_s
        self._alone = 0
        self._publishers: set[int] = set()
        self._ends_s = 0.0
        self._pauses = self._is_asked = False

    def sent_alone(self, publisher: object) -> None:
        """The publisher has sent entries while none of it were on their way."""
        self._alone += 1
        if self._alone <= ALONE_MAX:
            self._publishers.add(id(publisher))

    def asked(self) -> None:
        """A client waits for an answer, or for a message that it has asked for: no pause in this window."""
        self._pauses, self._is_asked = False, True

    def pause_s(self) -> float:
        """How long to wait at the end of this turn. Ask at the end of each turn that ends in a wait."""
        # An idle broker, and one with busy publishers only, reads no clock for this.
        if not self._alone and not self._pauses:
            return 0.0
        now_s = self._monotonic_s()
        if now_s >= self._ends_s:
            # A window that was left open for long says nothing about now.
            is_recent = now_s < self._ends_s + WINDOW_S
            are_rare = len(self._publishers) == self._alone
            are_many = ALONE_MIN <= self._alone <= ALONE_MAX
            self._pauses = is_recent and are_rare and are_many and not self._is_asked
            self._alone = 0
            self._is_asked = False
            self._publishers.clear()
            self._ends_s = now_s + WINDOW_S
        return PAUSE_S if self._pauses else 0.0
