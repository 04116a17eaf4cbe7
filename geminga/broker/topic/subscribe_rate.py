"""Limits how often a consumer may subscribe: a client that reconnects in a loop gets an error,
as in Pulsar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from geminga.errors import NotAllowed

if TYPE_CHECKING:
    from geminga.broker.dispatch.consumer import Consumer
    from geminga.broker.policies.values import SubscribeRate

CONSUMERS_REMEMBERED_MAX = 10_000


class SubscribeLimit:
    """The limit of one topic, applied to each consumer separately."""

    # By host, name and id, as Pulsar's `ConsumerIdentifier`: the port differs with each connection.

    __slots__ = ("_period_s", "_seen", "rate")

    def __init__(self, rate: SubscribeRate) -> None:
        self.rate = rate
        self._period_s = max(1, rate.period_s)
        self._seen: dict[tuple[str, str, int], tuple[float, int]] = {}
        """For each consumer, when its period began, and how often it has subscribed since."""

    def check(self, consumer: Consumer, now_s: float) -> None:
        """Count one more subscribe. Raises NotAllowed if that exceeds the limit."""
        key = consumer.address.rpartition(":")[0], consumer.name, consumer.consumer_id
        began_s, times = self._seen.get(key, (now_s, 0))
        if now_s - began_s >= self._period_s:
            began_s, times = now_s, 0
        if times >= self.rate.per_consumer:
            raise NotAllowed("Subscribe limited by subscribe rate limit per consumer.")
        if len(self._seen) >= CONSUMERS_REMEMBERED_MAX and key not in self._seen:
            self._forget(now_s)
        self._seen[key] = began_s, times + 1

    def _forget(self, now_s: float) -> None:
        """Forget consumers whose period is over; all of them if no period is."""
        self._seen = {key: seen for key, seen in self._seen.items() if now_s - seen[0] < self._period_s}
        if len(self._seen) >= CONSUMERS_REMEMBERED_MAX:
            self._seen.clear()


def subscribe_limit(rate: SubscribeRate, present: SubscribeLimit | None) -> SubscribeLimit | None:
    """The limit of a policy: the current object if its rate is equal, None for no limit."""
    if rate.per_consumer <= 0:
        return None
    return present if present is not None and present.rate == rate else SubscribeLimit(rate)
