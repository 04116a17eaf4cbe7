"""Backlog quotas: how large and how old a topic's backlog is, and what happens when it is too much.

Only durable subscriptions count, and of those the slowest. Pulsar's rules: whether a producer is held or
refused is decided when it asks, those that are connected are sent away at the next check; eviction moves the
slowest subscription on until nine tenths of the quota are left.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from geminga.broker.policies_records import AGE, STORAGE
from geminga.broker.subscription_expiry import move_to, oldest_unacknowledged, published_ms
from geminga.errors import PeerError, ServerError

if TYPE_CHECKING:
    from geminga.broker.policies_values import BacklogQuota
    from geminga.broker.subscription import Subscription
    from geminga.broker.topic import Topic
    from geminga.position import Position

log = logging.getLogger("geminga.broker")

EVICT = "consumer_backlog_eviction"
HOLD = "producer_request_hold"
KEPT_SHARE = 0.9
"""What eviction leaves of a quota."""


class BacklogQuotaRefused(PeerError):
    """[producer_exception] The client tells its user."""

    server_error = ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION


class BacklogQuotaHeld(BacklogQuotaRefused):
    """[producer_request_hold] The client waits and tries again."""

    server_error = ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR


async def exceeded(topic: Topic) -> tuple[str, BacklogQuota] | None:
    """Which of a topic's quotas is exceeded, the size before the age; None: neither. May read one entry."""
    policies = topic.policies
    slowest = slowest_subscription(topic)
    if slowest is None:
        return None
    size = policies.quota_size
    if 0 <= size.limit_size <= backlog_bytes(slowest):
        return STORAGE, size
    age = policies.quota_age
    if age.limit_time > 0 and topic.clock.now_ms() - await _oldest_ms(slowest) > age.limit_time * 1000:
        return AGE, age
    return None


async def check_producer(topic: Topic) -> None:
    """Raise `BacklogQuotaRefused` if no producer may join now."""
    found = await exceeded(topic)
    if found is not None and found[1].policy != EVICT:
        kind = BacklogQuotaHeld if found[1].policy == HOLD else BacklogQuotaRefused
        raise kind("Cannot create producer on topic with backlog quota exceeded")


async def enforce(topic: Topic) -> None:
    """Do what the quotas ask for now: send producers away, or evict. To be called every now and then."""
    found = await exceeded(topic)
    if found is None:
        return
    kind, quota = found
    if quota.policy != EVICT:
        if len(topic.producers):
            log.info("%s: its backlog quota (%s) is exceeded; its producers are sent away", topic.name, kind)
            topic.disconnect_producers()
    elif kind == STORAGE:
        _evict_by_size(topic, int(quota.limit_size * KEPT_SHARE))
    else:
        await _evict_by_age(topic, quota.limit_time * 1000)


def slowest_subscription(topic: Topic) -> Subscription | None:
    """The durable subscription whose mark-delete position is the oldest."""
    durable = [s for s in topic.subscriptions.values() if s.cursor.durable]
    return min(durable, key=lambda s: s.cursor.mark_delete, default=None)


def backlog_bytes(subscription: Subscription) -> int:
    """Bytes behind the mark-delete position, estimated within its ledger."""
    return subscription.topic.ledger.estimated_bytes_after(subscription.cursor.mark_delete)


async def _oldest_ms(subscription: Subscription) -> float:
    """When the oldest message of the backlog was published; infinity without a backlog."""
    entry = await oldest_unacknowledged(subscription) if subscription.backlog() else None
    return published_ms(entry, by_broker_time=False) if entry is not None else float("inf")


def _evict_by_size(topic: Topic, bytes_max: int) -> None:
    """Move the slowest on, one after the other, until what is behind all of them fits."""
    previous = None
    while (slowest := slowest_subscription(topic)) is not None and slowest is not previous:
        size = backlog_bytes(slowest)
        entries = slowest.backlog()
        if size <= bytes_max or not entries:
            return
        skipped = int((size - bytes_max) / size * entries)
        if not skipped:
            return
        _note(slowest, move_to(slowest, _position_behind(slowest, skipped)))
        previous = slowest


def _position_behind(subscription: Subscription, entries: int) -> Position:
    """The last of so many entries behind the mark-delete position, acknowledged ones counted."""
    ledger = subscription.topic.ledger
    return ledger.position_after(subscription.cursor.mark_delete, entries)


async def _evict_by_age(topic: Topic, age_max_ms: int) -> None:
    """Acknowledge what is older than the quota, on every subscription that has such messages."""
    before_ms = topic.clock.now_ms() - age_max_ms * KEPT_SHARE
    young = await topic.first_published_at(int(before_ms))
    for subscription in [s for s in topic.subscriptions.values() if s.cursor.durable]:
        last = topic.ledger.previous_position(young)
        if last > subscription.cursor.mark_delete:
            _note(subscription, move_to(subscription, last))


def _note(subscription: Subscription, entries: int) -> None:
    topic, name = subscription.topic.name, subscription.name
    log.info("%s / %s: %d entries evicted by the backlog quota", topic, name, entries)
