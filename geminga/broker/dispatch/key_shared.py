"""Key_Shared: each key has one consumer at a time, and its messages go there in order (PIP-34, PIP-282,
PIP-379).

Two rules keep the order when consumers come and go and messages are sent again. An entry waits while an
earlier one of its slot waits in the redelivery set. And when a slot has moved to another consumer, its
entries wait until all that were sent to the consumer before are acknowledged or given back ("draining").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from geminga.broker.dispatch.choice import share_by_key
from geminga.broker.dispatch.consumer import KEY_SHARED, Consumer, ConsumerStatistics, DrainingSlotStatistics
from geminga.broker.dispatch.dispatcher import Batch, Surroundings
from geminga.broker.dispatch.hash_ranges import (
    ConsistentHashSelector,
    DrainingSlots,
    RangeSplitSelector,
    Selector,
    StickyRangeSelector,
)
from geminga.broker.dispatch.shared import SharedDispatcher
from geminga.errors import GemingaError
from geminga.managed_ledger.chain.entry import Entry
from geminga.position import Position
from geminga.wire.message_metadata import sticky_hash, sticky_key


class KeySharedDispatcher(SharedDispatcher):
    """All consumers have the same policy: ranges of their own or shared out by us, in order or not."""

    sub_type = KEY_SHARED

    def __init__(self, around: Surroundings, *, is_sticky: bool, allows_out_of_order: bool) -> None:
        super().__init__(around)
        self.is_sticky = is_sticky
        self.allows_out_of_order = allows_out_of_order
        self.skips_unknown = allows_out_of_order
        settings = around.settings
        self.selector: Selector[Consumer]
        if is_sticky:
            self.selector = StickyRangeSelector()
        elif settings.key_shared_ring:
            self.selector = ConsistentHashSelector(settings.key_shared_ring_points)
        else:
            self.selector = RangeSplitSelector()
        self.draining = DrainingSlots[Consumer]()
        self._drains = not is_sticky and not allows_out_of_order
        self._may_send_again = True
        """False: all that waits was refused, and nothing has happened since that could change that."""
        self._additions = 0

    # -- consumers -------------------------------------------------------------------------------------------

    def add(self, consumer: Consumer) -> None:
        super().add(consumer)
        try:
            self.selector.add(consumer)
        except GemingaError:
            self.consumers.remove(consumer)
            raise
        self._reassign()

    def remove(self, consumer: Consumer) -> None:
        self.selector.remove(consumer)
        super().remove(consumer)
        self.draining.forget(consumer)
        self._reassign()

    @property
    def mode(self) -> str:
        return key_shared_mode(self.is_sticky)

    def _reassign(self) -> None:
        self._may_send_again = True
        if self._drains:
            self.draining.reassigned([(c, c.pending.slots()) for c in self.consumers], self.selector)

    def has_policy_of(self, consumer: Consumer) -> bool:
        return (
            consumer.is_sticky is self.is_sticky and consumer.allows_out_of_order is self.allows_out_of_order
        )

    # -- what may be read ------------------------------------------------------------------------------------

    def capacity_grew(self) -> None:
        self._may_send_again = True

    def _choose_anew(self) -> None:
        self._may_send_again = True

    def _to_send_again(self, count_max: int) -> list[Position]:
        redelivery = self.redelivery
        if not redelivery:
            return []
        if not self._may_send_again and redelivery.additions == self._additions:
            return []
        found = redelivery.select(count_max, self._admission())
        if len(found) < count_max:
            self._may_send_again = False
            self._additions = redelivery.additions
        return found

    def _admission(self) -> Callable[[int], bool]:
        """Which slots of what waits can go now; each consumer's permits are counted down by one per entry."""
        select, is_blocked = self.selector.select, self.draining.is_blocked
        held: set[int] = set()
        left: dict[Consumer, int] = {}

        def admits(slot: int) -> bool:
            if slot in held:
                return False
            if not slot:
                return True
            consumer = select(slot)
            if consumer is not None:
                room = left.get(consumer)
                if room is None:
                    room = consumer.capacity()
                if room > 0 and not is_blocked(consumer, slot):
                    left[consumer] = room - 1
                    return True
            held.add(slot)
            return False

        return admits

    def _is_overtaken(self, additions: int) -> bool:
        return not self.allows_out_of_order and self.redelivery.additions != additions

    def _look_ahead_left(self) -> int:
        settings = self.settings
        limit = settings.look_ahead_max_per_subscription
        if settings.look_ahead_max_per_consumer > 0:
            by_consumers = settings.look_ahead_max_per_consumer * len(self.consumers)
            limit = min(limit, by_consumers) if limit > 0 else by_consumers
        if limit <= 0:
            limit = settings.unacked_max_per_subscription or 2**31
        return limit - len(self.redelivery)

    def take_due(self, count_max: int) -> bool:
        room = self._look_ahead_left()
        return room > 0 and super().take_due(min(count_max, room))

    def _takes_due(self) -> bool:
        return self._look_ahead_left() > 0 and super()._takes_due()

    async def _send_new(self, count_max: int) -> bool:
        room = self._look_ahead_left()
        return room > 0 and await super()._send_new(min(count_max, room))

    async def _read_once_more(self, count_max: int) -> bool:
        room = self._look_ahead_left()
        return room > 0 and await super()._read_once_more(min(count_max, room))

    # -- who gets what ---------------------------------------------------------------------------------------

    def _share(self, batch: Batch, *, is_new: bool) -> None:
        entries, sizes = batch.entries, batch.sizes
        slots = [self._slot_of(entry) for entry in entries]
        is_blocked = self._is_blocked_for_new if is_new else self.draining.is_blocked
        shares, waiting = share_by_key(slots, sizes, self.selector.select, Consumer.capacity, is_blocked)
        for consumer, numbers in shares.items():
            self._send(
                consumer,
                [entries[n] for n in numbers],
                [sizes[n] for n in numbers],
                batch,
                [slots[n] for n in numbers],
            )
        redelivery = self.redelivery
        for number in waiting:
            redelivery.add(*entries[number].position, slots[number])
        if is_new:
            # They were refused just now; that is no reason to look at all that waits again.
            self._additions = redelivery.additions

    def _is_blocked_for_new(self, consumer: Consumer, slot: int) -> bool:
        if self.draining.is_blocked(consumer, slot):
            return True
        return not self.allows_out_of_order and self.redelivery.holds_slot(slot)

    def _slot_of(self, entry: Entry) -> int:
        return self.selector.slot(sticky_hash(sticky_key(entry.peek)))

    def _slot_settled(self, consumer: Consumer, slot: int) -> bool:
        if self.draining and self.draining.settled(consumer, slot):
            self._may_send_again = True
            return True
        return False

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None) -> None:
        self._may_send_again = True
        super().redeliver(consumer, positions, epoch)

    def consumer_statistics(self, consumer: Consumer) -> ConsumerStatistics:
        return consumer.statistics(
            ranges=self.selector.ranges(consumer),
            draining=[
                DrainingSlotStatistics(hash=slot, unack_msgs=d.unacked, blocked_attempts=d.blocked_attempts)
                for slot, d in sorted(self.draining.of(consumer).items())
            ],
            draining_cleared=self.draining.cleared.get(id(consumer), 0),
        )


def key_shared_mode(is_sticky: bool) -> str:
    """The policy's name on the wire."""
    return "STICKY" if is_sticky else "AUTO_SPLIT"
