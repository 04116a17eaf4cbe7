"""Messages that are too old are acknowledged on behalf of a subscription: by its TTL, or because asked to.

The first message that is young enough is found by bisection over publish times, so entries out of order go or
stay with their neighbours, as in Pulsar. Expiry acknowledges; it deletes nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from geminga.broker.flow.rates import Rate
from geminga.broker.subscription.publish_times import oldest_unacknowledged, published_ms
from geminga.position import LATEST

if TYPE_CHECKING:
    from geminga.broker.dispatch.settings import Surroundings
    from geminga.broker.subscription.acks import Acks
    from geminga.broker.subscription.consumers import Consumers
    from geminga.broker.subscription.due_backlog import DueBacklog
    from geminga.managed_ledger.chain.entry import Entry
    from geminga.position import Position

# Pulsar's MINIMUM_BACKLOG_FOR_EXPIRY_CHECK: nearly caught up, its consumer is about to get these.
SMALL_BACKLOG = 1_000
"""A connected subscription with less than this is left alone while its oldest message is young enough."""


class Expiry:
    """What has expired of one subscription, and what expires."""

    __slots__ = (
        "_acks",
        "_clock",
        "_consumers",
        "_cursor",
        "_is_running",
        "_ledger",
        "last_ms",
        "rate",
        "total",
    )

    def __init__(self, around: Surroundings, consumers: Consumers, acks: Acks) -> None:
        self._clock = around.clock
        self._cursor = around.cursor
        self._ledger = around.ledger
        self._consumers = consumers
        self._acks = acks
        self.total = 0
        """Entries since the topic was loaded."""
        self.rate = Rate()
        self.last_ms = 0
        """When it was last looked for; 0: never."""
        self._is_running = False

    async def expire(
        self, older_than_s: int, *, by_broker_time: bool, due_backlog: DueBacklog | None = None
    ) -> bool:
        """Acknowledge what was published more than `older_than_s` ago; durable as acknowledgements are. As in
        Pulsar nothing is older than 0, and everything than less. With `due_backlog` a delayed message goes
        only when it has been due for as long.

        False: nothing was done, since there is no backlog, nothing of a small one is that old while consumers
        are connected, or another expiry is under way. StorageError when an entry cannot be read.
        """
        # Pulsar's expirationCheckInProgress: two at once would count the same entries as expired twice.
        if self._is_running or not self._cursor.backlog_entries():
            return False
        self._is_running = True
        try:
            return await self._expire(older_than_s, by_broker_time, due_backlog)
        finally:
            self._is_running = False

    def expire_up_to(self, position: Position) -> bool:
        """Acknowledge everything up to and with `position`. False: there is no such place yet, or an expiry
        is under way.
        """
        if self._is_running or position > self._ledger.last_confirmed:
            return False
        self.last_ms = self._clock.now_ms()
        if position > self._cursor.mark_delete:
            self.total += self._acks.skip_to(position)
        return True

    async def _expire(self, older_than_s: int, by_broker_time: bool, due_backlog: DueBacklog | None) -> bool:
        ledger, cursor = self._ledger, self._cursor
        before_ms = self._clock.now_ms() - older_than_s * 1000
        # Before the first read: what is published while this waits is not old, though nothing young was
        # found.
        last = ledger.last_position()

        def is_young(entry: Entry) -> bool:
            # 0 expires nothing, as recorded from the real broker.
            return not older_than_s or published_ms(entry, by_broker_time) >= before_ms

        oldest = await oldest_unacknowledged(ledger, cursor)
        if oldest is None or is_young(oldest):
            # One read has answered what a connected, nearly caught up subscription needs to know.
            is_nearly_caught_up = len(self._consumers) > 0 and cursor.backlog_entries() < SMALL_BACKLOG
            return oldest is not None and not is_nearly_caught_up
        self.last_ms = self._clock.now_ms()
        # By bisection, as Pulsar's asyncFindNewestMatching: a backlog of millions is a few reads.
        young = await ledger.reads.find_first(is_young, after=cursor.mark_delete)
        # Its buckets are still being read after a start: what is due cannot be told yet, and expiry can wait.
        if due_backlog is not None and due_backlog.is_unknown:
            return False
        if due_backlog is not None and due_backlog.heeds_due_times:
            end = LATEST if young is None else young
            self.total += await due_backlog.expire(before_ms, end, by_broker_time)
            return True
        up_to = last if young is None else ledger.previous_position(young)
        if up_to is not None and up_to > cursor.mark_delete:
            self.total += self._acks.skip_to(up_to)
        return True
