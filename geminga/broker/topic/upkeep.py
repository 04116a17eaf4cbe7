"""The periodic work that a topic's policies require: trimming, expiry, backlog quotas, deduplication.

`rounds.py` calls these functions for each loaded topic.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from geminga.broker.topic.backlog_quota import EVICT

if TYPE_CHECKING:
    from geminga.broker.topic.topic import Topic

log = logging.getLogger("geminga.broker")


async def trim(topic: Topic) -> None:
    """Delete ledgers that all subscriptions have consumed and nothing keeps. StorageError."""
    await topic.trim()


async def expire(topic: Topic) -> None:
    """Acknowledge messages older than the TTL, on every subscription. StorageError if unreadable."""
    ttl_s = topic.policies.message_ttl_s
    if ttl_s > 0:
        from_due_time = topic.policies.ttl_from_due_time
        for subscription in tuple(topic.subscriptions.values()):
            await topic.expire_older(subscription, ttl_s, from_due_time=from_due_time)


async def enforce_quotas(topic: Topic) -> None:
    """Enforce the backlog quotas: disconnect producers, or evict. StorageError."""
    # Periodically, as in Pulsar, and not for each message: a backlog may exceed its quota by what arrives in
    # one interval.
    found = await topic.quotas.exceeded(topic.policies)
    if found is None:
        return
    if found.quota.policy == EVICT:
        await topic.quotas.evict(topic.policies, found)
    elif len(topic.producers):
        # They reconnect at once. Whether they are refused or held is decided there (`check_producer`), so
        # that producers that come later meet the same rule.
        log.info(
            "%s: its backlog quota (%s) is exceeded; its producers are disconnected", topic.name, found.kind
        )
        topic.disconnect_producers()


async def upkeep_deduplication(topic: Topic) -> None:
    """Let deduplication forget absent producers and take a due snapshot. StorageError."""
    await topic.dedup.upkeep(topic.policies.deduplication_snapshot_interval_s)
