"""Limits how fast a topic, or the whole broker, accepts messages: a debt that time pays off.

A message that was read is accepted regardless of the limit, because it is too late to refuse it. Its
connection is not read again before the debt is paid. So its client gets back-pressure and no error, as in
Pulsar.
"""

from __future__ import annotations

import math

BURST_S = 1.0
"""After a pause, this many seconds' worth may arrive at once."""


class PublishLimit:
    """Messages and bytes a second, one limit for all producers that share it; 0 or below means no limit."""

    __slots__ = ("_paid_bytes_s", "_paid_messages_s", "bytes_per_s", "messages_per_s")

    def __init__(self, messages_per_s: float, bytes_per_s: float) -> None:
        self.messages_per_s = messages_per_s
        self.bytes_per_s = bytes_per_s
        self._paid_messages_s = self._paid_bytes_s = -math.inf
        """The time at which the entries so far would have arrived at exactly the limit; at most `BURST_S`
        ago.
        """

    def take(self, messages: int, size_bytes: int, now_s: float) -> float:
        """Count an entry. Returns when the next one may be read; a time up to `now_s` means at once."""
        # Two times instead of a token bucket with a refill: no timer runs, and an idle limit costs nothing. A
        # pause earns no more than `BURST_S`: after an idle hour a client could send an hour's worth at once.
        earliest_s = now_s - BURST_S
        if self.messages_per_s > 0:
            self._paid_messages_s = max(self._paid_messages_s, earliest_s) + messages / self.messages_per_s
        if self.bytes_per_s > 0:
            self._paid_bytes_s = max(self._paid_bytes_s, earliest_s) + size_bytes / self.bytes_per_s
        return max(self._paid_messages_s, self._paid_bytes_s)


def publish_limit(messages_per_s: float, bytes_per_s: float) -> PublishLimit | None:
    """The limit; None if neither value limits."""
    # None and not a limit of infinity: without limits, each entry costs one comparison of an empty tuple.
    if messages_per_s <= 0 and bytes_per_s <= 0:
        return None
    return PublishLimit(messages_per_s, bytes_per_s)
