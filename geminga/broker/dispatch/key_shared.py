"""Key_Shared: each key has one consumer at a time, and its messages go there in order (PIP-34, PIP-282,
PIP-379; Pulsar's PersistentStickyKeyDispatcherMultipleConsumers).

Two rules keep the order when consumers come and go and messages are sent again. An entry waits while an
earlier one of its slot waits in the redelivery set. And when a slot has moved to another consumer, its
entries wait until all that were sent to the consumer before are acknowledged or given back ("draining").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from geminga.broker.dispatch.choice import share_by_key
from geminga.broker.dispatch.chooser import Batch, Given, Shares
from geminga.broker.dispatch.consumer import KEY_SHARED, Consumer, ConsumerStatistics, DrainingSlotStatistics
from geminga.broker.dispatch.hash_ranges import (
    ConsistentHashSelector,
    DrainingSlots,
    RangeSplitSelector,
    Selector,
    StickyRangeSelector,
)
from geminga.broker.dispatch.redelivery import RedeliverySet
from geminga.position import Position
from geminga.wire.message_metadata import sticky_hash, sticky_key

if TYPE_CHECKING:
    from geminga.broker.dispatch.settings import SettingsInForce
    from geminga.managed_ledger.chain.entry import Entry

LOOK_AHEAD_PER_CONSUMER: Final = "keySharedLookAheadMsgInReplayThresholdPerConsumer"
LOOK_AHEAD_PER_SUBSCRIPTION: Final = "keySharedLookAheadMsgInReplayThresholdPerSubscription"
UNACKED_PER_SUBSCRIPTION: Final = "maxUnackedMessagesPerSubscription"


class KeyShared:
    """All consumers have the same policy: ranges of their own or shared out by us, in order or not.

    `draining` is filled here when a consumer comes or goes, and emptied by `UnackedBooks` with each entry
    that is no longer pending.
    """

    sub_type = KEY_SHARED

    def __init__(
        self,
        in_force: SettingsInForce,
        redelivery: RedeliverySet,
        draining: DrainingSlots[Consumer],
        *,
        is_sticky: bool,
        allows_out_of_order: bool,
    ) -> None:
        self.consumers: list[Consumer] = []
        """By priority level; that matters to nothing but the order in which they are shown."""
        self.is_sticky = is_sticky
        self.allows_out_of_order = allows_out_of_order
        self.selector = selector_for(in_force, is_sticky=is_sticky)
        self._in_force = in_force
        self._redelivery = redelivery
        self._draining = draining
        # As Pulsar's drainingHashesRequired: fixed ranges do not move, and without an order nothing has to
        # wait.
        self._drains = not is_sticky and not allows_out_of_order
        self._may_select = True
        """False: all that waits was refused, and nothing has happened since that could change that."""
        self._selected = 0
        """How many were selected last; 0: all of them came to be shared."""
        self._additions = 0
        """The redelivery set's count of additions when all that waits was refused."""

    @property
    def keeps_order(self) -> bool:
        return not self.allows_out_of_order

    # -- consumers -------------------------------------------------------------------------------------------

    def add(self, consumer: Consumer) -> None:
        # First, as it may refuse: then nothing has changed.
        self.selector.add(consumer)
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda c: c.priority_level)
        self._reassign()

    def remove(self, consumer: Consumer) -> None:
        self.selector.remove(consumer)
        self.consumers.remove(consumer)
        # Before the slots are counted again: what this consumer held is given back by the books, and its keys
        # wait for that there.
        self._draining.forget(consumer)
        self._reassign()

    def _reassign(self) -> None:
        self._may_select = True
        if self._drains:
            self._draining.reassigned([(c, c.pending.slots()) for c in self.consumers], self.selector)

    def active(self) -> Consumer | None:
        return None

    def receivers(self) -> Sequence[Consumer]:
        return self.consumers

    @property
    def mode(self) -> str:
        return key_shared_mode(self.is_sticky)

    def has_policy_of(self, consumer: Consumer) -> bool:
        return (
            consumer.is_sticky is self.is_sticky and consumer.allows_out_of_order is self.allows_out_of_order
        )

    def statistics_of(self, consumer: Consumer) -> ConsumerStatistics:
        return consumer.statistics(
            ranges=self.selector.ranges(consumer),
            draining=[
                DrainingSlotStatistics(hash=slot, unack_msgs=d.unacked, blocked_attempts=d.blocked_attempts)
                for slot, d in sorted(self._draining.of(consumer).items())
            ],
            draining_cleared=self._draining.cleared.get(id(consumer), 0),
        )

    # -- what waits ------------------------------------------------------------------------------------------

    def select(self, count_max: int) -> list[Position]:
        """O(all that waits) when most of it is refused; so a refusal is remembered."""
        redelivery = self._redelivery
        if not redelivery:
            return []
        # Of what was selected last some was gone, or was not read: the permits it was counted for are free.
        # Without the second half Key_Shared stalled: entries that were acknowledged while they waited were
        # selected, took up a consumer's permits, and never came to be shared.
        may_select = self._may_select or self._selected
        if not may_select and redelivery.additions == self._additions:
            return []
        # Only what can go is read: Pulsar's ReplayPositionFilter. Reading all that waits would have each
        # wake-up read the same blocked entries from the disk.
        found = redelivery.select(count_max, self._admission())
        self._selected = len(found)
        self._may_select = len(found) == count_max
        self._additions = redelivery.additions
        return found

    def _admission(self) -> Callable[[int], bool]:
        """Which slots of what waits can go now; each consumer's permits are counted down by one per entry."""
        select, is_blocked = self.selector.select, self._draining.is_blocked
        held: set[int] = set()
        left: dict[Consumer, int] = {}

        def admits(slot: int) -> bool:
            if slot in held:
                return False
            # Due after a delay: the index knows no keys, so it is read, and judged when it is shared. So does
            # Pulsar.
            if not slot:
                return True
            consumer = select(slot)
            if consumer is not None:
                room = left.get(consumer)
                if room is None:
                    room = consumer.capacity()
                if room > 0 and not is_blocked(consumer, slot):
                    # By entry, as sizes of batches are not known before the read. Without counting down, one
                    # consumer's entries would fill the read, and other consumers' permits wait.
                    left[consumer] = room - 1
                    return True
            # Pulsar's alreadyBlockedHashes: asked again for each later entry of the slot, `is_blocked` would
            # count an attempt for each.
            held.add(slot)
            return False

        return admits

    def reconsider(self) -> None:
        self._may_select = True

    def look_ahead_left(self) -> int:
        """Entries of blocked keys are read past, up to a limit, to get at those of other keys (PIP-282)."""
        return self.look_ahead_limit()[0] - len(self._redelivery)

    def look_ahead_limit(self) -> tuple[int, str]:
        """That limit, and the setting that it comes from."""
        settings = self._in_force.settings
        limit, name = settings.look_ahead_max_per_subscription, LOOK_AHEAD_PER_SUBSCRIPTION
        if settings.look_ahead_max_per_consumer > 0:
            by_consumers = settings.look_ahead_max_per_consumer * len(self.consumers)
            if limit <= 0 or by_consumers < limit:
                limit, name = by_consumers, LOOK_AHEAD_PER_CONSUMER
        if limit <= 0:
            # With both thresholds off Pulsar takes the limits on unacknowledged messages instead.
            limit, name = settings.unacked_max_per_subscription or 2**31, UNACKED_PER_SUBSCRIPTION
        return limit, name

    # -- which consumer gets what ----------------------------------------------------------------------------

    def share(self, batch: Batch, *, is_new: bool) -> Shares:
        entries, sizes = batch.entries, batch.sizes
        # The books and the redelivery set keep the slot: neither an acknowledgement nor `select` has the key.
        slots = [self._slot_of(entry) for entry in entries]
        is_blocked = self._is_blocked_for_new if is_new else self._draining.is_blocked
        shares, waiting = share_by_key(slots, sizes, self.selector.select, Consumer.capacity, is_blocked)
        if is_new:
            # They were refused just now; that is no reason to look at all that waits again.
            self._additions += len(waiting)
        elif len(entries) == self._selected:
            self._selected = 0
        given = [
            Given(
                consumer,
                [entries[n] for n in numbers],
                [sizes[n] for n in numbers],
                [slots[n] for n in numbers],
            )
            for consumer, numbers in shares.items()
        ]
        return Shares(given, [entries[n] for n in waiting], [slots[n] for n in waiting])

    def _is_blocked_for_new(self, consumer: Consumer, slot: int) -> bool:
        # Asked first, since it counts the attempt: without one the dispatcher is not woken when the slot is
        # free.
        if self._draining.is_blocked(consumer, slot):
            return True
        return not self.allows_out_of_order and self._redelivery.holds_slot(slot)

    def _slot_of(self, entry: Entry) -> int:
        return self.selector.slot(sticky_hash(sticky_key(entry.peek)))


def selector_for(in_force: SettingsInForce, *, is_sticky: bool) -> Selector[Consumer]:
    if is_sticky:
        return StickyRangeSelector()
    if in_force.settings.key_shared_ring:
        return ConsistentHashSelector(in_force.settings.key_shared_ring_points)
    return RangeSplitSelector()


def key_shared_mode(is_sticky: bool) -> str:
    """The policy's name on the wire."""
    return "STICKY" if is_sticky else "AUTO_SPLIT"
