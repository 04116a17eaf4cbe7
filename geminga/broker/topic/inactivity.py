"""Decides when unused topics and subscriptions are deleted, by Pulsar's rules.

Only loaded topics are checked. The time counts from the load, so a restart or an unload restarts it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from geminga.broker.subscription.subscription import Subscription
    from geminga.broker.topic.topic import Topic

log = logging.getLogger("geminga.broker")
deletion_log = logging.getLogger("geminga.topics")
"""A logger of its own: repeated warnings of `geminga.broker` are suppressed, these never."""

CAUGHT_UP = "delete_when_subscriptions_caught_up"
MINUTE_MS = 60_000
NAMES_TOLD_MAX = 20
"""The limit of topics of one round that the line names; at level debug the log has all."""


def is_to_go(topic: Topic) -> bool:
    """Whether a topic has been idle long enough for its policy to delete it. Call it periodically: a topic
    that is in use at a call counts as used until then.
    """
    policy = topic.policies.inactive_topic
    if not policy.deletes:
        return False
    if topic.is_in_use or _is_wanted(topic, policy.delete_mode == CAUGHT_UP):
        # Noted here and not at each connect and disconnect, as in Pulsar (`checkGC`): the paths of clients
        # stay free of it. The price: the time counts from the last check that found a client, so a topic may
        # be deleted up to one interval of the check early.
        topic.restart_idle_time()
        return False
    idle_ms = topic.idle_ms()
    return idle_ms >= policy.inactive_s_max * 1000 and not _is_retained(topic, idle_ms)


def goes_at_ms(topic: Topic) -> int | None:
    """From when on `is_to_go`, if it stays unused; None while it is used or kept."""
    policy = topic.policies.inactive_topic
    if not policy.deletes or topic.is_in_use or _is_wanted(topic, policy.delete_mode == CAUGHT_UP):
        return None
    idle_ms = policy.inactive_s_max * 1000
    if topic.ledger.number_of_entries > 0:
        retention_ms = topic.policies.retention.time_ms
        if retention_ms < 0:
            return None
        idle_ms = max(idle_ms, retention_ms)
    return topic.clock.now_ms() - topic.idle_ms() + idle_ms


def _is_wanted(topic: Topic, counts_backlog: bool) -> bool:
    """Whether compaction keeps the topic, or a subscription does: any, or with `counts_backlog` one that has
    a backlog.
    """
    # A topic that is an application's database needs no subscription.
    if topic.compaction.kept_by:
        return True
    subscriptions = topic.subscriptions.values()
    return any(s.backlog() for s in subscriptions) if counts_backlog else bool(subscriptions)


def _is_retained(topic: Topic, idle_ms: int) -> bool:
    """Whether the topic has messages that retention by time still keeps. An empty topic is not retained."""
    retention_ms = topic.policies.retention.time_ms
    return topic.ledger.number_of_entries > 0 and (retention_ms < 0 or idle_ms < retention_ms)


class IdleDeletions:
    """The topics that one round of the check deletes, logged in one line at its end."""

    # A line for each topic made thousands of lines a round on a broker of short-lived topics.

    def __init__(self) -> None:
        self._deleted: list[tuple[str, int]] = []

    def note(self, name: str, entries: int) -> None:
        """Note a topic that is being deleted with this many entries."""
        log.debug("%s: deleted with %d entries, as no client has used it", name, entries)
        self._deleted.append((name, entries))

    def tell(self) -> None:
        """Log the round if it deleted anything; a warning if entries were deleted, too."""
        deleted, self._deleted = self._deleted, []
        if deleted:
            # Entries had receipts: their loss is Pulsar's default here, and may still surprise.
            has_entries = any(entries for _, entries in deleted)
            deletion_log.log(logging.WARNING if has_entries else logging.INFO, "%s", deletions_line(deleted))


def deletions_line(deleted: Sequence[tuple[str, int]]) -> str:
    """Topics and their entries in one line, which names those with the most entries."""
    most = sorted(deleted, key=lambda each: -each[1])[:NAMES_TOLD_MAX]
    names = [f"{name} ({entries} entries)" if entries else name for name, entries in most]
    if len(deleted) > len(most):
        names.append(f"and {len(deleted) - len(most)} more")
    entries = sum(entries for _, entries in deleted)
    return (
        f"{len(deleted)} topics with {entries} entries deleted, as no client has used them ("
        f"brokerDeleteInactiveTopicsEnabled, inactiveTopicPolicies): {', '.join(names)}"
    )


def expires_subscriptions(topic: Topic) -> bool:
    return topic.policies.subscription_expiration_minutes > 0


async def expire_subscriptions(topic: Topic) -> None:
    """Delete the subscriptions that have had no consumer for too long. Raises StorageError."""
    minutes = topic.policies.subscription_expiration_minutes
    for subscription in tuple(topic.subscriptions.values()):
        # A deletion waits for the disk. Meanwhile this subscription may have gone, and a new one of its name,
        # with its own time, have come.
        if topic.subscriptions.get(subscription.name) is not subscription:
            continue
        goes_ms = subscription_goes_at_ms(topic, subscription)
        if goes_ms is not None and topic.clock.now_ms() >= goes_ms:
            log.info(
                "%s / %s: without a consumer for more than %d minutes: it is deleted",
                topic.name,
                subscription.name,
                minutes,
            )
            await topic.delete_subscription(subscription.name)
            # Until then it kept the topic, however much later this check has come.
            topic.restart_idle_time(goes_ms)


def subscription_goes_at_ms(topic: Topic, subscription: Subscription) -> int | None:
    """From when on a subscription has been unused for too long; None if it has a consumer, or never is."""
    minutes = topic.policies.subscription_expiration_minutes
    # Only durable ones: a non-durable subscription ends with its last consumer anyway.
    if minutes <= 0 or not subscription.cursor.durable or subscription.consumers or subscription.is_holder:
        return None
    return subscription.consumers.unused_since_ms + minutes * MINUTE_MS + 1
