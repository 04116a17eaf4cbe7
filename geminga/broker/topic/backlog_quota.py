"""Backlog quotas: how large and how old a topic's backlog may be, and what happens beyond that.

Only durable subscriptions count, and of those the slowest. The rules are Pulsar's: new producers are held or
refused when they connect, and connected producers are disconnected at the next check. Eviction moves the
slowest subscription forward until nine tenths of the quota are left.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from geminga.broker.flow.slices import Pace
from geminga.broker.policies.records import AGE, STORAGE
from geminga.broker.subscription.publish_times import (
    first_published_at,
    oldest_unacknowledged,
    published_ms,
)
from geminga.errors import CorruptData, LedgerNotFound, PeerError, ServerError
from geminga.position import LATEST

if TYPE_CHECKING:
    from geminga.broker.policies.policies import EffectivePolicies
    from geminga.broker.policies.values import BacklogQuota
    from geminga.broker.subscription.subscription import Subscription
    from geminga.clock import Clock
    from geminga.managed_ledger.managed_ledger import ManagedLedger

log = logging.getLogger("geminga.broker")

EVICT = "consumer_backlog_eviction"
HOLD = "producer_request_hold"
# Pulsar's factor. Down to the quota itself, the next message would exceed it again, and each check evict a
# little.
KEPT_SHARE = 0.9
"""The share of a quota that eviction leaves."""


class BacklogQuotaRefused(PeerError):
    """[producer_exception] The client raises an error to its user."""

    server_error = ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_EXCEPTION


class BacklogQuotaHeld(BacklogQuotaRefused):
    """[producer_request_hold] The client waits and retries."""

    server_error = ServerError.PRODUCER_BLOCKED_QUOTA_EXCEEDED_ERROR


class Exceeded(NamedTuple):
    kind: str
    quota: BacklogQuota
    slowest: Subscription
    backlog_bytes: int
    """The backlog of the slowest subscription, which counts for the quota."""


class BacklogQuotas:
    """Checks one topic's subscriptions. Each call gets the effective policies."""

    __slots__ = ("_clock", "_ledger", "_subscriptions", "_topic", "age_s", "evicted_entries", "evictions")

    def __init__(
        self, topic: str, ledger: ManagedLedger, clock: Clock, subscriptions: Mapping[str, Subscription]
    ) -> None:
        self._topic = topic
        self._ledger = ledger
        self._clock = clock
        self._subscriptions = subscriptions
        self.age_s = -1
        """Of the oldest message in the backlog when that was last looked at; -1: it was not, or has none."""
        self.evictions = {STORAGE: 0, AGE: 0}
        """How often messages were taken from the backlog."""
        self.evicted_entries = 0
        """Of all subscriptions, since the topic was loaded."""

    def evictions_by_kind(self) -> tuple[int, int]:
        """By size, by age."""
        return self.evictions[STORAGE], self.evictions[AGE]

    async def exceeded(self, policies: EffectivePolicies) -> Exceeded | None:
        """The quota that is exceeded, the size before the age; None if neither is. May read an entry, or
        more if messages that are not due do not count. Raises StorageError.
        """
        # Of all subscriptions only the slowest one: ledgers are kept for it, so its backlog contains all
        # others.
        slowest, pace = None, Pace()
        for subscription in self._durable():
            await pace.row()
            if slowest is None or subscription.cursor.mark_delete < slowest.cursor.mark_delete:
                slowest = subscription
        if slowest is None:
            return None
        size, age = policies.quota_size, policies.quota_age
        # Geminga's own policy, off by default: messages that are delayed for months would fill every quota.
        if policies.quota_from_due_time:
            return await self._exceeded_by_due(policies)
        size_bytes = backlog_bytes(slowest)
        if 0 <= size.limit_size <= size_bytes:
            return Exceeded(STORAGE, size, slowest, size_bytes)
        if age.limit_time > 0 and self._is_older(await _oldest_ms(slowest), age.limit_time):
            return Exceeded(AGE, age, slowest, size_bytes)
        return None

    async def _exceeded_by_due(self, policies: EffectivePolicies) -> Exceeded | None:
        """As `exceeded`, without messages that are not due yet."""
        # Every subscription is checked: a delayed message may hold back the oldest mark-delete position, and
        # does not count.
        size, age = policies.quota_size, policies.quota_age
        for subscription in self._durable():
            whole_bytes = backlog_bytes(subscription)
            due = subscription.due_backlog
            if due.is_unknown or not subscription.backlog():
                continue
            if not 0 <= size.limit_size <= whole_bytes and age.limit_time <= 0:
                continue  # below the quota even with all delayed messages
            if due.heeds_due_times:
                await due.look()
            size_bytes = due_bytes(subscription)
            if 0 <= size.limit_size <= size_bytes:
                return Exceeded(STORAGE, size, subscription, size_bytes)
            since_ms = await (due.oldest_ms() if due.heeds_due_times else _oldest_ms(subscription))
            if age.limit_time > 0 and self._is_older(since_ms, age.limit_time):
                return Exceeded(AGE, age, subscription, size_bytes)
        return None

    def _is_older(self, since_ms: float, limit_s: int) -> bool:
        age_ms = self._clock.now_ms() - since_ms
        self.age_s = int(age_ms / 1000) if age_ms > 0 else -1
        return age_ms > limit_s * 1000

    async def check_producer(self, policies: EffectivePolicies) -> None:
        """Raise `BacklogQuotaRefused` if no producer may connect now."""
        # The age of a lost message cannot be read. Every producer was once refused for ever with the error of
        # the disk, though only the subscription has to wait, until an operator decides.
        try:
            found = await self.exceeded(policies)
        except (CorruptData, LedgerNotFound) as error:
            log.warning("%s: its backlog quotas cannot be looked at: %s", self._topic, error)
            return
        if found is not None and found.quota.policy != EVICT:
            # The code alone tells the client what to do: wait and retry, or fail at once.
            kind = BacklogQuotaHeld if found.quota.policy == HOLD else BacklogQuotaRefused
            raise kind("Cannot create producer on topic with backlog quota exceeded")

    def _slowest(self) -> Subscription | None:
        """The durable subscription whose mark-delete position is the oldest. Found at once, not in slices as
        in `exceeded`: what is to be evicted may not be unsubscribed meanwhile.
        """
        return min(self._durable(), key=lambda s: s.cursor.mark_delete, default=None)

    def _durable(self) -> list[Subscription]:
        # Readers keep no ledger from being deleted, so their backlog costs no space. What was restored stays
        # until an operator says otherwise.
        return [s for s in self._subscriptions.values() if s.cursor.durable and not s.is_holder]

    # -- eviction --------------------------------------------------------------------------------------------

    async def evict(self, policies: EffectivePolicies, found: Exceeded) -> None:
        """Acknowledge messages until the exceeded quota is met again. StorageError."""
        self.evictions[found.kind] += 1
        if policies.quota_from_due_time:
            await self._evict_due(policies, found)
        elif found.kind == STORAGE:
            self._evict_by_size(int(found.quota.limit_size * KEPT_SHARE))
        else:
            await self._evict_by_age(found.quota.limit_time * 1000)

    def _evict_by_size(self, bytes_max: int) -> None:
        """Move the slowest subscription forward, one subscription after the other, until all
        backlogs fit.
        """
        # Pulsar's way (`BacklogQuotaManager.dropBacklogForSizeLimit`): a share of the slowest subscription's
        # entries, by the average size, and the end when the same one is the slowest again.
        previous = None
        while (slowest := self._slowest()) is not None and slowest is not previous:
            size = backlog_bytes(slowest)
            entries = slowest.backlog()
            if size <= bytes_max or not entries:
                return
            skipped = int((size - bytes_max) / size * entries)
            if not skipped:
                return
            # By position, so that acknowledged entries behind the mark-delete position count: their bytes are
            # in `size` too.
            last = self._ledger.position_after(slowest.cursor.mark_delete, skipped)
            self._note(slowest, slowest.acks.skip_to(last))
            previous = slowest

    async def _evict_by_age(self, age_max_ms: int) -> None:
        """Acknowledge messages older than the quota on every subscription that has some."""
        # Found once, as the position is the same for all subscriptions.
        before_ms = self._clock.now_ms() - age_max_ms * KEPT_SHARE
        young = await first_published_at(self._ledger, int(before_ms))
        for subscription in self._durable():
            last = self._ledger.previous_position(young)
            if last > subscription.cursor.mark_delete:
                self._note(subscription, subscription.acks.skip_to(last))

    async def _evict_due(self, policies: EffectivePolicies, found: Exceeded) -> None:
        """Evict due messages of each subscription that has too many. Messages that are not due are kept."""
        # Only messages whose due time is known to be over: what a full index does not hold was once evicted
        # although no consumer could have received it yet.
        age_max_ms = int(found.quota.limit_time * 1000 * KEPT_SHARE)
        before_ms = self._clock.now_ms() - age_max_ms
        young = await first_published_at(self._ledger, before_ms) if found.kind == AGE else LATEST
        while True:
            due = found.slowest.due_backlog
            if found.kind == AGE and due.heeds_due_times:
                evicted = await due.expire(before_ms, young, False)
            elif found.kind == AGE:
                evicted = found.slowest.acks.skip_to(self._ledger.previous_position(young))
            else:
                left_bytes = int(found.quota.limit_size * KEPT_SHARE)
                wanted = due.entries() if due.heeds_due_times else found.slowest.backlog()
                over = (found.backlog_bytes - left_bytes) / found.backlog_bytes
                evicted = await due.evict(int(over * wanted))
            if evicted:
                self._note(found.slowest, evicted)
            following = await self.exceeded(policies)
            if not evicted or following is None or following.kind != found.kind:
                return
            found = following

    def _note(self, subscription: Subscription, entries: int) -> None:
        self.evicted_entries += entries
        log.info("%s / %s: %d entries evicted by the backlog quota", self._topic, subscription.name, entries)


def due_bytes(subscription: Subscription) -> int:
    """Bytes of the due and unacknowledged messages in the backlog, estimated from the average size. Call
    this after `DueBacklog.look`.
    """
    ledger, mark_delete = subscription.topic.ledger, subscription.cursor.mark_delete
    entries = ledger.count_between(mark_delete, ledger.last_confirmed)
    due = subscription.due_backlog
    wanted = due.entries() if due.heeds_due_times else subscription.backlog()
    return backlog_bytes(subscription) * wanted // entries if entries else 0


def backlog_bytes(subscription: Subscription) -> int:
    """Bytes after the mark-delete position, estimated within its ledger."""
    return subscription.topic.ledger.estimated_bytes_after(subscription.cursor.mark_delete)


async def _oldest_ms(subscription: Subscription) -> float:
    """Publish time of the oldest message in the backlog; infinity without a backlog."""
    entry = (
        await oldest_unacknowledged(subscription.topic.ledger, subscription.cursor)
        if subscription.backlog()
        else None
    )
    return published_ms(entry, by_broker_time=False) if entry is not None else float("inf")
