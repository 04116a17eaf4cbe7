"""When a delivery time is due, when it is not worth tracking, and how precisely the index keeps it. Pure.

Pulsar's rules. Strict: a message is never early. Not strict: it may be early by a tick. In memory, times are
cut to 2^floor(log2(tick)) ms so that messages of about the same time are kept together; a bucket on disk has
them to the millisecond, and then a strict delivery is exact whatever the tick.
"""

from __future__ import annotations

from geminga.tracker.format.rows import FAR_MS, Integers


def precision_bits(tick_ms: int) -> int:
    """How many low bits of a time are dropped for this tick: floor(log2(tick)), 9 for 1000 ms."""
    return max(tick_ms, 1).bit_length() - 1


class TimeRules:
    """Of one index. `exact` keeps milliseconds; else the width of the tick, rounded up where strict, as it
    was when `narrow` was called last.
    """

    __slots__ = (
        "_last_ms",
        "_mask",
        "_round_up_ms",
        "bits",
        "due_slack_ms",
        "exact",
        "slack_ms",
        "strict",
        "tick_ms",
    )

    def __init__(self, tick_ms: int, strict: bool, exact: bool) -> None:
        self.strict = strict
        self.exact = exact
        self.tick_ms = tick_ms
        self.narrow()

    def narrow(self) -> None:
        """Let the precision follow the tick. Only while nothing is tracked with the former one."""
        self.bits = 0 if self.exact else precision_bits(self.tick_ms)
        self._last_ms = (1 << self.bits) - 1
        self._mask = ~self._last_ms
        self._round_up_ms = self._last_ms if self.strict else 0
        self.set_tick(self.tick_ms)

    def set_tick(self, tick_ms: int) -> None:
        """Not strict: what is kept as one time is due once its last millisecond is within the tick. If the
        tick has become shorter than that width, messages are early by the width instead: what is taken must
        not be accepted again, and waiting longer would make them late.
        """
        assert tick_ms >= 0
        self.tick_ms = tick_ms
        self.slack_ms = 0 if self.strict else max(tick_ms, self._last_ms)
        """A delivery time up to now + this is not worth tracking."""
        self.due_slack_ms = 0 if self.strict else self.slack_ms - self._last_ms
        """A kept time up to now + this is due."""

    @property
    def middle_ms(self) -> int:
        """From a kept time to the middle of those that are kept so."""
        return (self._last_ms - 2 * self._round_up_ms) // 2

    def kept_ms(self, deliver_at_ms: int) -> int:
        """The time by which the index keeps it."""
        return (min(deliver_at_ms, FAR_MS) + self._round_up_ms) & self._mask

    def kept_column_ms(self, deliver_at_ms: Integers) -> Integers:
        kept = deliver_at_ms.clip(max=FAR_MS)
        if self.bits:
            kept += self._round_up_ms
            kept &= self._mask
        return kept
