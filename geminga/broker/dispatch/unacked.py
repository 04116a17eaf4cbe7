"""Unacknowledged entries of a Shared or Key_Shared subscription: at which consumer each is pending, which
are to be redelivered, and which consumers are blocked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pyroaring import BitMap

from geminga.broker.dispatch.consumer import Consumer
from geminga.broker.dispatch.pending_acks import SIZE_BITS, SIZE_MASK
from geminga.broker.dispatch.redelivery import RedeliveryCounts, RedeliverySet
from geminga.position import Position

if TYPE_CHECKING:
    from geminga.broker.dispatch.hash_ranges import DrainingSlots
    from geminga.managed_ledger.cursor.cursor import Cursor


class UnackedBooks:
    """Books only. `on_room` is called when a consumer, or the subscription, may take more: a block was
    lifted, or a Key_Shared slot is free. `on_stray` hears of entries that were acknowledged and are at no
    consumer.

    An entry is in at most one place: pending at one consumer, or in `redelivery`, or neither.
    """

    def __init__(
        self,
        consumers: list[Consumer],
        cursor: Cursor,
        redelivery: RedeliverySet,
        draining: DrainingSlots[Consumer],
        unacked_max: int,
        on_room: Callable[[], None],
        on_stray: Callable[[Sequence[tuple[int, int]]], None],
    ) -> None:
        self.redelivery = redelivery
        self.counts = RedeliveryCounts()
        self.messages = 0
        """Messages that are pending at all consumers together."""
        self.blocked = False
        """Whether there are so many that nothing new may be read."""
        self._consumers = consumers
        self._cursor = cursor
        self._unacked_max = unacked_max
        self._on_room = on_room
        self._draining = draining
        self._on_stray = on_stray

    def sent(self, consumer: Consumer, messages: int) -> None:
        consumer.add_unacked(messages)
        self._count(messages)

    def join(self, consumer: Consumer, unacked_max: int) -> None:
        """A consumer came; 0: it may hold any number of messages."""
        consumer.limit_unacked(unacked_max)

    # -- acknowledged ----------------------------------------------------------------------------------------

    def settle(self, consumer: Consumer, positions: Sequence[tuple[int, int]]) -> int:
        """These entries were acknowledged as a whole through this consumer; returns how many messages of its
        own that were. To be called before the cursor is told.
        """
        # Written out instead of `pending.pop` for each: an acknowledgement of a hundred entries is one call,
        # and nearly all of them are of one ledger.
        ledgers = consumer.pending.ledgers
        messages = 0
        current_id = -1
        pending: dict[int, int] | None = None
        for ledger_id, entry_id in positions:
            if ledger_id != current_id:
                if pending is not None and not pending:
                    del ledgers[current_id]
                current_id = ledger_id
                pending = ledgers.get(ledger_id)
            packed = pending.pop(entry_id, 0) if pending is not None else 0
            # An unbatched message of a Shared subscription: nothing more to look up.
            if packed == 1:
                messages += 1
            elif packed:
                messages += self._settled(consumer, Position(ledger_id, entry_id), packed)
            else:
                self._settle_elsewhere(consumer, Position(ledger_id, entry_id))
        if pending is not None and not pending:
            del ledgers[current_id]
        # Or the counts of a long-lived subscription would grow with all that was ever redelivered.
        self.counts.forget(positions)
        self.release(consumer, messages)
        return messages

    def _settled(self, consumer: Consumer, position: Position, packed: int) -> int:
        slot = packed >> SIZE_BITS
        # `_draining` is empty nearly always: no call then for an acknowledgement.
        if slot and self._draining and self._draining.settled(consumer, slot):
            self._on_room()
        return self._left_of(position, packed)

    def _settle_elsewhere(self, consumer: Consumer, position: Position) -> None:
        """Some clients acknowledge through another consumer than the one that the entry was sent to."""
        # Pulsar's removePendingAcks looks at the other consumers too.
        for other in self._consumers:
            if other is not consumer and (packed := other.pending.pop(*position)):
                self.release(other, self._settled(other, position, packed))
                return
        # Not pending anywhere: it may be in the delayed index, or have been acknowledged before.
        self._on_stray((position,))

    def _left_of(self, position: Position, packed: int) -> int:
        """Messages of a pending entry that were not acknowledged one by one before."""
        size = packed & SIZE_MASK
        # Those acknowledged one by one were counted then; counted again, the number of unacknowledged
        # messages would fall below zero.
        if size > 1 and (bits := self._cursor.ack_set(position)) is not None:
            return count_bits(bits)
        return size

    def holds(self, ledger_id: int, entry_id: int) -> bool:
        """Whether the entry is pending at a consumer or to be sent again."""
        if (ledger_id, entry_id) in self.redelivery:
            return True
        return any(consumer.pending.get(ledger_id, entry_id) for consumer in self._consumers)

    def held_of(self, ledger_id: int) -> BitMap:
        """All entries of a ledger that `holds` says yes to."""
        found = BitMap(self.redelivery.of_ledger(ledger_id))
        for consumer in self._consumers:
            found.update(consumer.pending.ledgers.get(ledger_id, ()))
        return found

    def owner_of(self, consumer: Consumer, position: Position) -> Consumer:
        """At whom an entry is pending: nearly always `consumer`."""
        if not consumer.pending.get(*position):
            for other in self._consumers:
                if other.pending.get(*position):
                    return other
        return consumer

    def release(self, consumer: Consumer, messages: int) -> None:
        """So many messages that were pending at the consumer are acknowledged."""
        if messages:
            consumer.subtract_unacked(messages)
            # At half the limit, as in Pulsar: at the limit itself each acknowledgement would lift a block for
            # one message.
            if consumer.unblock_below(consumer.unacked_max // 2):
                self._on_room()
            self._count(-messages)

    def limit(self, unacked_max: int, unacked_max_per_consumer: int) -> None:
        """Other bounds from now on, 0: none. A consumer that is within them is not blocked any more."""
        self._unacked_max = unacked_max
        for consumer in self._consumers:
            if consumer.limit_unacked(unacked_max_per_consumer):
                self._on_room()
        # Here too: no acknowledgement may come that would lift a block which a raised limit has made
        # pointless.
        if self.blocked and not 0 < unacked_max <= self.messages:
            self.blocked = False
            self._on_room()

    def _count(self, messages: int) -> None:
        self.messages += messages
        limit = self._unacked_max
        if not self.blocked:
            self.blocked = 0 < limit <= self.messages
        elif self.messages < limit // 2:
            self.blocked = False
            self._on_room()

    def expire(self, up_to: Position) -> None:
        """Everything up to here is acknowledged, but not by a consumer (TTL, skip, quota). Call it before the
        cursor moves.
        """
        # Or each would be read once more, only to be left out as acknowledged.
        self.redelivery.remove_up_to(up_to)
        self.counts.forget_up_to(up_to)
        for consumer in self._consumers:
            for gone, packed in consumer.pending.take_up_to(up_to):
                self.release(consumer, self._settled(consumer, gone, packed))

    # -- given back ------------------------------------------------------------------------------------------

    def give_back(self, consumer: Consumer, positions: Sequence[Position] | None) -> None:
        """These entries, or all that is pending at the consumer, go out again; the count of each goes up by
        one.
        """
        if positions is None:
            taken = consumer.pending.take_all()
        else:
            taken = [(p, packed) for p in positions if (packed := consumer.pending.pop(*p))]
        messages = 0
        for position, packed in taken:
            slot = packed >> SIZE_BITS
            messages += self._left_of(position, packed)
            # With its slot, so that no newer entry of the key goes before it.
            self.redelivery.add(*position, slot)
            # As in Pulsar, only here: what a consumer leaves behind comes again with an unchanged count.
            self.counts.increment(*position)
            if slot and self._draining:
                # No call of `on_room` for each: `Replay.give_back` ends with one.
                self._draining.settled(consumer, slot)
        consumer.gave_back(messages)
        self._count(-messages)

    def leave(self, consumer: Consumer) -> None:
        """The consumer has gone; what it held goes to the others, or is read again if there are none."""
        self._count(-consumer.unacked)
        consumer.subtract_unacked(consumer.unacked)
        codes, others = consumer.pending.take_codes()
        if self._consumers:
            self.redelivery.add_all(codes)
            for (ledger_id, entry_id), slot in others:
                self.redelivery.add(ledger_id, entry_id, slot)
        else:
            # With no consumer left the next one reads the backlog again; Pulsar clears both here too.
            self.forget()

    def forget(self) -> None:
        """Nothing goes out again but by being read again."""
        self.redelivery.clear()
        self.counts.clear()


def count_bits(words: Sequence[int]) -> int:
    """Set bits in the 64-bit words of an ack set; words may come signed, as Java's longs do."""
    # Python counts the bits of a negative number's absolute value, so the mask comes first.
    return sum((word & 0xFFFF_FFFF_FFFF_FFFF).bit_count() for word in words)
