"""The periodic work that a topic's policies require: trimming, expiry, backlog quotas, deduplication.

`rounds.py` calls these functions for each loaded topic.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from geminga.broker.topic.backlog_quota import EVICT

if TYPE_CHECKING:
    from geminga.broker.policies.policies import EffectivePolicies
    from geminga.broker.topic.topic import Topic
    from geminga.events.recording import Record
    from geminga.managed_ledger.unopened import UnopenedLedger

log = logging.getLogger("geminga.broker")


def takes_from(topic: UnopenedLedger, policies: EffectivePolicies) -> bool:
    """Whether these checks may ever take messages from a topic that stays without clients. Without retention
    there is nothing to take in time: what all subscriptions have consumed goes when the topic is used.
    """
    retention, size, age = policies.retention, policies.quota_size, policies.quota_age
    if topic.entries and (retention.time_minutes > 0 or retention.size_mb > 0):
        return True
    # The other quotas only send producers away.
    evicts = (size.policy == EVICT and size.limit_size >= 0) or (age.policy == EVICT and age.limit_time > 0)
    return (evicts or policies.message_ttl_s > 0) and any(
        cursor.backlog_entries and not cursor.is_system for cursor in topic.cursors
    )


async def trim(topic: Topic) -> None:
    """Delete ledgers that all subscriptions have consumed and nothing keeps. StorageError."""
    await topic.trim()


def has_ttl(topic: Topic) -> bool:
    return topic.policies.message_ttl_s > 0


async def expire(topic: Topic) -> None:
    """Acknowledge messages older than the TTL, which there is, on every subscription. StorageError if
    unreadable.
    """
    ttl_s, from_due_time = topic.policies.message_ttl_s, topic.policies.ttl_from_due_time
    for subscription in tuple(topic.subscriptions.values()):
        if subscription.is_holder:
            continue  # the TTL may be one that was lifted in the changes that the metadata lacks
        await topic.expire_older(subscription, ttl_s, from_due_time=from_due_time)


def has_quota(topic: Topic) -> bool:
    policies = topic.policies
    return policies.quota_size.limit_size >= 0 or policies.quota_age.limit_time > 0


async def enforce_quotas(topic: Topic, *, record: Record) -> None:
    """Enforce the backlog quotas: disconnect producers, or evict and tell it once. StorageError."""
    # Periodically, as in Pulsar, and not for each message: a backlog may exceed its quota by what arrives in
    # one interval.
    found = await topic.quotas.exceeded(topic.policies)
    if found is None:
        return
    if found.quota.policy == EVICT:
        before = topic.quotas.evicted_entries
        try:
            await topic.quotas.evict(topic.policies, found)
        finally:
            if evicted := topic.quotas.evicted_entries - before:
                counts = {"entries": evicted}
                record("backlog-evicted", topic=str(topic.name), text=found.kind, counts=counts)
    elif len(topic.producers):
        # They reconnect at once. Whether they are refused or held is decided there (`check_producer`), so
        # that producers that come later meet the same rule.
        log.info(
            "%s: its backlog quota (%s) is exceeded; its producers are disconnected", topic.name, found.kind
        )
        topic.disconnect_producers()


def has_ids(topic: Topic) -> bool:
    return topic.dedup.ids is not None


async def upkeep_deduplication(topic: Topic) -> None:
    """Let deduplication forget absent producers and take a due snapshot. StorageError."""
    await topic.dedup.upkeep(topic.policies.deduplication_snapshot_interval_s)
