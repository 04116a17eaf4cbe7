"""When a delivery time is due, when it is not worth tracking, and how precisely the index keeps it. Pure.

Strict, the default: a message is never early, whatever the tick. In memory its time is rounded up to
`STRICT_BITS`, so that messages of about the same time are kept together; a bucket on disk has it to the
millisecond. Not strict: Pulsar's rules. A message may be early by a tick, and in memory its time is cut to
2^floor(log2(tick)) ms. `FixedDelay` is Pulsar's detection of topics whose messages all have about one delay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from geminga.tracker.format.rows import FAR_MS, Integers

# By the tick, as Pulsar rounds, messages were late by up to half a second.
STRICT_BITS: Final = 4
"""Strict, in memory: 16 ms. By at most so much a message is late for want of precision."""


def precision_bits(tick_ms: int) -> int:
    """How many low bits of a time are dropped for this tick: floor(log2(tick)), 9 for 1000 ms."""
    # As Pulsar's: 512 ms for a tick of 1000, not the 1024 that are often told.
    return max(tick_ms, 1).bit_length() - 1


class Slack:
    """How early a subscription may be given messages. Changes with the rules of its index."""

    __slots__ = ("due_ms", "refused_ms")

    def __init__(self) -> None:
        self.refused_ms = 0
        """A delivery time up to now + this is not worth tracking."""
        self.due_ms = 0
        """A kept time up to now + this is due."""


class TimeRules:
    """Of one index. `exact` keeps milliseconds; else a width as it was when `narrow` was called last."""

    __slots__ = (
        "_last_ms",
        "_mask",
        "_round_up_ms",
        "bits",
        "by_tick",
        "by_width",
        "exact",
        "strict",
        "tick_ms",
    )

    def __init__(self, tick_ms: int, strict: bool, exact: bool) -> None:
        self.strict = strict
        self.exact = exact
        self.tick_ms = tick_ms
        self.by_tick = Slack()
        """Of a subscription without a precision of its own."""
        self.by_width = Slack()
        """As little as the precision of the index allows."""
        self.narrow()

    def narrow(self) -> None:
        """Let the width follow the tick; strict, it is never more than 16 ms. Only while nothing is tracked
        with the former one.
        """
        # Fixed while anything is tracked, as in Pulsar: rows that were rounded otherwise would not sort with
        # these.
        self.bits = 0 if self.exact else precision_bits(self.tick_ms)
        if self.strict:
            self.bits = min(self.bits, STRICT_BITS)
        self._last_ms = (1 << self.bits) - 1
        self._mask = ~self._last_ms
        # Up where no message may be early, down where it may: either way the error is on the side that is
        # allowed.
        self._round_up_ms = self._last_ms if self.strict else 0
        self.set_tick(self.tick_ms)

    def set_tick(self, tick_ms: int) -> None:
        """Strict: nothing is early. Not strict: what is kept as one time is due once its last millisecond is
        within the tick. If the tick has become shorter than that width, messages are early by the width
        instead: what is taken must not be accepted again, and waiting longer would make them late.
        """
        assert tick_ms >= 0
        self.tick_ms = tick_ms
        # A policy that switches delays on sends a tick of one second by itself: it must not make them
        # inexact.
        if not self.strict:
            self.by_width.refused_ms = self._last_ms
            # What is taken must be refused if it comes again: in Pulsar such a position goes back into the
            # tracker.
            self.by_tick.refused_ms = max(tick_ms, self._last_ms)
            self.by_tick.due_ms = self.by_tick.refused_ms - self._last_ms

    @property
    def jitter_ms(self) -> int:
        """By so much messages of one delay may come out of order and still count as such."""
        # Pulsar's jitter is the tick; a strict index knows nothing coarser than its own width.
        return min(self.tick_ms, 1 << STRICT_BITS) if self.strict else self.tick_ms

    @property
    def middle_ms(self) -> int:
        """From a kept time to the middle of those that are kept so."""
        return (self._last_ms - 2 * self._round_up_ms) // 2

    def kept_ms(self, deliver_at_ms: int) -> int:
        """The time by which the index keeps it."""
        # A producer may send any 64 bits: rounded up, the last of them would turn negative.
        return (min(deliver_at_ms, FAR_MS) + self._round_up_ms) & self._mask

    def kept_column_ms(self, deliver_at_ms: Integers) -> Integers:
        # A copy, so that the caller's column stays as it came.
        kept = deliver_at_ms.clip(max=FAR_MS)
        if self.bits:
            kept += self._round_up_ms
            kept &= self._mask
        return kept


class OwnPrecision:
    """Of a subscription that may be given messages early, so that they come together: time is cut into
    buckets of `width_ms`, and the messages of a bucket are due when it begins. A message is early by less
    than that, and never late.

    What comes to a bucket that has begun, and was drained, is due at its own time.
    """

    __slots__ = ("_drained_ms", "_slack", "width_ms")

    def __init__(self, width_ms: int, slack: Slack) -> None:
        assert width_ms > 0
        self.width_ms = width_ms
        self._slack = slack
        self._drained_ms = -1

    def limit_ms(self, now_ms: int) -> int:
        """Kept times up to this are due."""
        limit_ms = now_ms + self._slack.due_ms
        # Less what the index rounds: a row whose time was rounded down must not come with the time bucket
        # before its own.
        last_ms = now_ms - now_ms % self.width_ms + self.width_ms - 1 - self._slack.refused_ms
        return max(limit_ms, last_ms) if last_ms > self._drained_ms else limit_ms

    def drained(self, limit_ms: int) -> None:
        """Nothing up to here is left."""
        # The clock may be set back: what was drained stays so.
        if limit_ms > self._drained_ms:
            self._drained_ms = limit_ms

    def wake_ms(self, kept_ms: int) -> int:
        """When a row that is not due now will be."""
        if kept_ms <= self._drained_ms:
            return kept_ms
        last_ms = kept_ms + self._slack.refused_ms
        return min(kept_ms, last_ms - last_ms % self.width_ms)


class Earliness:
    """By how much entries may be early that are given out later than they were taken: less may be allowed
    since.
    """

    __slots__ = ("_allowed_ms", "_taken_until_ms")

    def __init__(self) -> None:
        self._allowed_ms = 0
        self._taken_until_ms = 0
        """What was taken while more was allowed is due by then."""

    def seen(self, allowed_ms: int, now_ms: int) -> int:
        """`allowed_ms` holds for what is taken now; by how much what is given out now may be early."""
        # Less is allowed from now on: what was taken before is still on its way, and early by the former.
        if allowed_ms < self._allowed_ms:
            self._taken_until_ms = max(self._taken_until_ms, now_ms + self._allowed_ms)
        self._allowed_ms = allowed_ms
        return max(allowed_ms, self._taken_until_ms - now_ms)


class FixedDelay:
    """Whether each add so far was accepted and later than those before, but for a jitter. Lookahead 0: off.

    If so, a dispatcher that has tracked enough need not read ahead: what comes is later. The price is
    Pulsar's too: undelayed messages behind `lookahead` delayed ones are not seen until some of those are due.
    """

    __slots__ = ("_highest_ms", "_lookahead", "_rules", "is_watched")

    def __init__(self, lookahead: int, rules: TimeRules) -> None:
        self._lookahead = lookahead
        self._rules = rules
        self.reset()

    def reset(self) -> None:
        # Off where buckets are kept or an index is shared: there is no reason to stop reading, and undelayed
        # messages behind 50,000 delayed ones are seen.
        self.is_watched = self._lookahead > 0
        """Whether adds have to be told."""
        self._highest_ms = 0

    def refuse(self) -> None:
        """One was not delayed, or not for long enough."""
        self.is_watched = False

    def add(self, deliver_at_ms: int) -> None:
        if deliver_at_ms > self._highest_ms:
            self._highest_ms = deliver_at_ms
        # A little earlier is no other delay: Pulsar allows a tick.
        elif deliver_at_ms < self._highest_ms - self._rules.jitter_ms:
            self.is_watched = False

    def add_many(self, earliest_ms: int, deliver_at_ms: Sequence[int]) -> None:
        latest_ms = max(deliver_at_ms)
        # Two comparisons for a batch in which all is within the jitter, whatever its order.
        if earliest_ms >= max(self._highest_ms, latest_ms) - self._rules.jitter_ms:
            self._highest_ms = max(self._highest_ms, latest_ms)
            return
        for at_ms in deliver_at_ms:
            self.add(at_ms)

    def is_full(self, tracked: int) -> bool:
        return self.is_watched and tracked >= self._lookahead
