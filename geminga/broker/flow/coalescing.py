"""Short pauses of the event loop, so that messages share its turns, as network cards moderate interrupts.

A message costs little beside the turns of the loop, the sync and the wake-ups that it causes. There are two
loads under which sharing them is worth a wait:

- A thousand publishers with one message a second each share nothing, and the broker paid for a message a
  quarter of a millisecond. With pauses of 2 ms it pays a fifth to a third less. BookKeeper waits for its
  journal's groups in the same way (`journalMaxGroupWaitMSec`), but always.
- A publisher at full speed is read 40 messages at a time, as fast as they come. With pauses of half a
  millisecond it is read a hundred at a time, each costs an eighth less, and as many come through: what comes
  meanwhile waits in the socket. A publisher that has sent all it may, and waits for receipts, sends nothing
  meanwhile: with 128 messages on its way at most it had half the rate. So pauses in which nothing comes end
  them.

A pause holds up all that the loop serves, so there are none while some client waits for one answer after the
other: a publisher that sends when its receipts have come, a consumer that asks for each message, requests.
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
STREAM_PAUSE_S: Final = 0.0005
"""The pause of a stream. With twice as much a message costs only a twentieth less, and fewer come through."""
STREAM_ENTRIES_MIN: Final = 16
"""So many entries in one turn are a stream. After a pause they are what makes it worth while."""
# A client hesitates now and then: with two, a message at full speed cost a twentieth more.
VAIN_PAUSES_MAX: Final = 3
"""After so many pauses in a row that brought fewer, streams are read at once..."""
STREAM_REST_S: Final = 0.064
"""...for so long. Three pauses in this time cost a publisher that waits for receipts 2 % of its rate."""

_monotonic_s = RealClock().monotonic_s


class Coalescing:
    """Judges the publishers of each window. On the loop."""

    __slots__ = (
        "_alone",
        "_ends_s",
        "_entries",
        "_follows_pause",
        "_is_asked",
        "_is_waited",
        "_monotonic_s",
        "_pauses",
        "_publishers",
        "_rests_until_s",
        "_streams",
        "_vain_pauses",
    )

    def __init__(self, monotonic_s: Callable[[], float] = _monotonic_s) -> None:
        self._monotonic_s = monotonic_s
        self._entries = 0
        """Of this turn."""
        self._alone = 0
        self._publishers: set[int] = set()
        self._streams: set[int] = set()
        self._is_asked = False
        # Of the window before:
        self._is_waited = self._pauses = False
        self._ends_s = 0.0
        self._follows_pause = False
        """Whether this turn came after a stream's pause."""
        self._vain_pauses = 0
        self._rests_until_s = 0.0

    def sent(self, publisher: object, entries: int, *, is_alone: bool) -> None:
        """The publisher has sent entries: `is_alone` if none of it were on their way before."""
        self._entries += entries
        if is_alone:
            self._alone += 1
            if self._alone <= ALONE_MAX:
                self._publishers.add(id(publisher))
        # A stream runs out of entries on their way whenever the broker has caught up with it.
        if entries >= STREAM_ENTRIES_MIN and len(self._streams) < ALONE_MAX:
            self._streams.add(id(publisher))

    def asked(self) -> None:
        """A client waits for an answer, or for a message that it has asked for: no pause in this window."""
        self._pauses, self._is_asked = False, True

    def pause_s(self, turn_s: float, is_writing: Callable[[], bool]) -> float:
        """How long to wait at the end of a turn that took so long. Ask at the end of each turn that ends in a
        wait. `is_writing()`: entries are on their way to the disk, so that the loop waits for their receipts.
        """
        entries, self._entries = self._entries, 0
        is_stream = entries >= STREAM_ENTRIES_MIN
        # An idle broker, and one that only delivers, read no clock for this.
        if not (is_stream or self._follows_pause or self._alone or self._pauses or self._is_asked):
            return 0.0
        now_s = self._monotonic_s()
        if now_s >= self._ends_s:
            self._judge(now_s)
        if self._follows_pause:
            self._follows_pause = False
            self._vain_pauses = 0 if is_stream else self._vain_pauses + 1
            if self._vain_pauses >= VAIN_PAUSES_MAX:
                self._vain_pauses, self._rests_until_s = 0, now_s + STREAM_REST_S
        if is_stream:
            # A longer turn has let enough come by itself: with a pause after it less would come through.
            if turn_s >= STREAM_PAUSE_S or now_s < self._rests_until_s or self._is_waited or self._waits():
                return 0.0
            self._follows_pause = True
            return STREAM_PAUSE_S
        return PAUSE_S if self._pauses and not is_writing() else 0.0

    def _waits(self) -> bool:
        """Whether some client has waited for an answer or a receipt in this window."""
        return self._is_asked or not self._publishers <= self._streams

    def _judge(self, now_s: float) -> None:
        """Begin the next window."""
        # One that was left open for long says nothing about now.
        is_recent = now_s < self._ends_s + WINDOW_S
        are_rare = len(self._publishers) == self._alone
        are_many = ALONE_MIN <= self._alone <= ALONE_MAX
        self._pauses = is_recent and are_rare and are_many and not self._is_asked
        self._is_waited = is_recent and self._waits()
        self._alone = 0
        self._is_asked = False
        self._publishers.clear()
        self._streams.clear()
        self._ends_s = now_s + WINDOW_S
