"""How fast a topic, or a subscription, gives messages out: a debt that time pays off, as on the way in.

What a read brought is sent, be it a little more than was allowed; the next read waits until the debt is paid.
A limit is asked only where one is set, and nothing wakes up while nothing is to be sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from geminga.broker.policies.values import DispatchRate
    from geminga.clock import Clock
    from geminga.managed_ledger.chain.entry import Entry

WAIT_S_MIN = 0.01
"""A fast rate is served in portions, so that a dispatcher does not wake for one message a millisecond."""
# At `opens_at_s` there has to be room for one, also where the division leaves a little less.
_ROUNDING = 1e-6

Published = Callable[[], tuple[int, int]]


class _Bucket:
    """One kind of thing at so many a second. At rest it holds what a whole period may bring."""

    __slots__ = ("_paid_s", "_period_s", "configured_per_s", "per_s")

    def __init__(self, per_period: int, period_s: int) -> None:
        self._period_s = period_s
        self.configured_per_s = self.per_s = per_period / period_s
        self._paid_s = -math.inf
        """When what was sent so far would have been sent at just the rate."""

    def room(self, now_s: float) -> int:
        """How much may be sent now; 0 or less: nothing."""
        # At most a period's worth: a dispatcher that was idle for an hour may not send an hour's worth at
        # once.
        return math.floor(min(now_s - self._paid_s, self._period_s) * self.per_s + _ROUNDING)

    def take(self, count: int, now_s: float) -> None:
        # Pulsar gives out a period's worth and then pauses. A debt that time pays off comes to about the same
        # number, and fewer messages are late.
        self._paid_s = max(self._paid_s, now_s - self._period_s) + count / self.per_s

    def opens_at_s(self) -> float:
        """When there is room for one."""
        return self._paid_s + 1 / self.per_s


class DispatchLimit:
    """Messages and bytes in a period, shared by all dispatchers under the limit. Made by `dispatch_limit`."""

    __slots__ = ("_buckets", "_counted", "_period_s", "_published", "_published_s", "rate")

    def __init__(self, rate: DispatchRate, published: Published) -> None:
        """`published` counts the messages and bytes that have come into the topic so far."""
        # The admin API stores whatever number it is sent, as Pulsar's does; a period of 0 would divide by
        # zero.
        period_s = max(1, rate.period_s)
        self.rate = rate
        both = rate.messages, rate.bytes
        self._buckets = [_Bucket(most, period_s) if most > 0 else None for most in both]
        self._period_s = period_s
        self._published: Published | None = published if rate.relative_to_publish_rate else None
        self._published_s = -math.inf
        self._counted = (0, 0)

    def room(self, now_s: float, average_bytes: float) -> int:
        """How many messages, of so many bytes each, may be sent now; 0: none. At least one if there is room
        for a byte.
        """
        if self._published is not None:
            self._follow(self._published, now_s)
        messages, size = self._buckets
        room = messages.room(now_s) if messages is not None else 2**31
        if size is not None and room > 0:
            bytes_left = size.room(now_s)
            # At least one: a message that is larger than a period's bytes would never go.
            room = min(room, max(1, int(bytes_left / average_bytes))) if bytes_left > 0 else 0
        return max(room, 0)

    def is_used_up(self, now_s: float) -> tuple[bool, bool]:
        """By messages, by bytes: which of them `room` was 0 for."""
        messages, size = (bucket is not None and bucket.room(now_s) <= 0 for bucket in self._buckets)
        return messages, size

    def opens_at_s(self, now_s: float) -> float:
        """When to ask again after `room` was 0."""
        # The later of both limits, as a message has to fit both.
        latest = max(bucket.opens_at_s() for bucket in self._buckets if bucket is not None)
        return max(latest, now_s + WAIT_S_MIN)

    def take(self, messages: int, size_bytes: int, now_s: float) -> None:
        """So much was sent."""
        for bucket, count in zip(self._buckets, (messages, size_bytes), strict=True):
            if bucket is not None:
                bucket.take(count, now_s)

    def _follow(self, published: Published, now_s: float) -> None:
        """Once in a period: add what was published in a second of the last one."""
        elapsed_s = now_s - self._published_s
        if elapsed_s < self._period_s:
            return
        counts = published()
        for bucket, now, before in zip(self._buckets, counts, self._counted, strict=True):
            if bucket is not None:
                # Pulsar's relativeToPublishRate: the limit is for what consumers may catch up with, on top of
                # what comes in.
                bucket.per_s = bucket.configured_per_s + (now - before) / elapsed_s
        self._counted, self._published_s = counts, now_s


def dispatch_limit(
    rate: DispatchRate, present: DispatchLimit | None, published: Published
) -> DispatchLimit | None:
    """The limit that a policy makes; the present one if it is of the same rate, None for no limit."""
    if rate.messages <= 0 and rate.bytes <= 0:
        return None
    # The present one keeps its debt: each change of policies comes here, and a new one would begin with a
    # period's worth.
    return present if present is not None and present.rate == rate else DispatchLimit(rate, published)


class Waits(NamedTuple):
    """How often nothing could be sent, by which rate."""

    own_messages: int = 0
    own_bytes: int = 0
    topic_messages: int = 0
    topic_bytes: int = 0


NO_WAITS = Waits()


class Throttle:
    """The limits that one dispatcher keeps to: of its topic, of its subscription. Empty for most."""

    __slots__ = ("_average_bytes", "_clock", "limits", "own", "until_s", "waits")

    def __init__(self, clock: Clock) -> None:
        self.limits: tuple[DispatchLimit, ...] = ()
        self.own: DispatchLimit | None = None
        """The subscription's; it is one of `limits` then."""
        self.until_s = math.inf
        """When to go on, if nothing could be sent for want of room; else infinity."""
        self.waits = NO_WAITS
        self._clock = clock
        self._average_bytes = 1.0

    def apply(self, of_topic: DispatchLimit | None, own: DispatchRate, published: Published) -> bool:
        """Keep to these from now on. True: that is a change."""
        self.own = dispatch_limit(own, self.own, published)
        # A tuple, empty for most: `if self.limits` is all that a subscription without limits pays for each
        # read.
        limits = tuple(limit for limit in (of_topic, self.own) if limit is not None)
        if limits == self.limits:
            return False
        self.limits = limits
        return True

    def ask_again(self) -> None:
        """A round begins: it finds out for itself until when there is no room."""
        self.until_s = math.inf

    def room(self, wanted: int, average_messages: float) -> int:
        """How many of the wanted entries may be read now; 0: `until_s` says when to ask again."""
        now_s = self._clock.monotonic_s()
        for limit in self.limits:
            messages = limit.room(now_s, self._average_bytes)
            if not messages:
                self.until_s = limit.opens_at_s(now_s)
                self._note(limit.is_used_up(now_s), limit is self.own)
                return 0
            # Entries are read and messages are limited; at least one entry, or batches larger than the rate
            # would never go.
            wanted = min(wanted, max(1, int(messages / max(average_messages, 1.0))))
        return wanted

    def _note(self, used_up: tuple[bool, bool], is_own: bool) -> None:
        added = (*used_up, False, False) if is_own else (False, False, *used_up)
        self.waits = Waits(*map(sum, zip(self.waits, added, strict=True)))

    def sent(self, messages: int, entries: Sequence[Entry]) -> None:
        """So many messages went out, in these entries."""
        now_s = self._clock.monotonic_s()
        size_bytes = sum(len(entry.body) for entry in entries)
        self._average_bytes = max(1.0, size_bytes / max(messages, 1))
        for limit in self.limits:
            limit.take(messages, size_bytes, now_s)
