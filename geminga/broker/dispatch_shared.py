"""Shared: any number of consumers, each entry goes to one of them, by turns and as their permits allow.

Order of a round, as in Pulsar: first what is to be sent again and delayed messages that are due, then new
entries. An entry that finds no permits joins the redelivery set and goes first next time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from geminga.broker.consumer import SHARED, Consumer
from geminga.broker.dispatch import Batch, Dispatcher, Surroundings, count_bits, let_others_run
from geminga.broker.dispatch_choice import share_round_robin
from geminga.broker.dispatch_chunks import ChunkOwners
from geminga.broker.dispatch_send import send_tracked
from geminga.broker.pending_acks import SIZE_BITS, SIZE_MASK
from geminga.broker.redelivery import RedeliveryCounts, RedeliverySet
from geminga.errors import StorageError
from geminga.managed_ledger.entry import Entry
from geminga.position import Position
from geminga.tracker.interface import NOT_DELAYED_MS

log = logging.getLogger("geminga.broker")


class SharedDispatcher(Dispatcher):
    """Keeps what is pending at each consumer, what is to be sent again, and what waits for its time."""

    sub_type = SHARED

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self.redelivery = RedeliverySet()
        self.counts = RedeliveryCounts()
        self.unacked = 0
        """Messages that are pending at all consumers together."""
        self.blocked = False
        """Whether `unacked` has stopped new entries from being read."""
        self._turn = 0
        self._chunks = ChunkOwners[Consumer]()
        self._starts_over = False

    # -- a round ---------------------------------------------------------------------------------------------

    async def round(self) -> None:
        if self._starts_over:
            await self._start_over()
        while count := self._entries_wanted():
            self._take_due(count)
            positions = self._to_send_again(count)
            if positions:
                if not await self._send_again(positions):
                    return
            elif not await self._send_new(count):
                return
            await let_others_run()

    def _entries_wanted(self) -> int:
        """About as many entries as the permits of all consumers will do for; 0: no one can take any."""
        wanted, most = 0, self.settings.read_entries_max
        for consumer in self.consumers:
            capacity = consumer.capacity()
            if capacity > 0:
                average = round(consumer.average_messages)
                wanted += capacity if average <= 1 else -(-capacity // average)
                if wanted >= most:
                    return most
        return wanted

    def _take_due(self, count_max: int) -> None:
        tracker = self.tracker
        if tracker is not None and tracker.has_due():
            for ledger_id, entry_id in tracker.take_due(count_max):
                self.redelivery.add(ledger_id, entry_id)

    def _to_send_again(self, count_max: int) -> list[Position]:
        return self.redelivery.first(count_max) if self.redelivery else []

    async def _send_again(self, positions: list[Position]) -> bool:
        """False: reading failed, or no one can take any of them, so that going on is of no use now."""
        if self._is_backing_off():
            return False
        seen, additions = self.turned_away, self.redelivery.additions
        try:
            entries = await self.ledger.read_positions(positions)
        except StorageError as error:
            self._read_failed(positions[0], error)
            return False
        if seen != self.turned_away or self._is_overtaken(additions):
            return True
        for ledger_id, entry_id in positions:
            # Also those that were not found: what has been trimmed need not be sent.
            self.redelivery.discard(ledger_id, entry_id)
        return self._share(self.admit(entries, self._delay, scattered=True), is_new=False)

    def _is_overtaken(self, additions: int) -> bool:
        """Whether what came to the redelivery set during a read has to go before what was read."""
        return False

    async def _send_new(self, count_max: int) -> bool:
        """False: there is nothing to read now, or reading is not allowed."""
        if self.blocked or (self.tracker is not None and self.tracker.should_pause()):
            return False
        entries = await self.read_new(count_max)
        if entries is None:
            return True
        if not entries:
            return False
        self.cursor.read_position = entries[-1].position.next()
        self._share(self.admit(entries, self._delay), is_new=True)
        return True

    def _delay(self, position: Position, deliver_at_ms: int) -> bool:
        tracker = self.tracker
        if tracker is None:
            if not self.settings.delayed_delivery:
                return False
            tracker = self.tracker = self.around.tracker_factory()
        return tracker.add(position, deliver_at_ms or NOT_DELAYED_MS)

    def _share(self, batch: Batch, *, is_new: bool) -> bool:
        """Decide who gets what of a batch, send it, and keep the rest for the next time.

        False: someone has permits, but none of these may go there.
        """
        entries, sizes = batch.entries, batch.sizes
        if batch.has_chunks:
            return self._share_chunks(batch)
        rounds, self._turn = share_round_robin(
            sizes, self.consumers, self._turn, self.settings.round_robin_entries_max
        )
        placed = rounds[-1].end if rounds else 0
        if len(rounds) == 1:
            self._send(self.consumers[rounds[0].consumer], entries[:placed], sizes[:placed], batch)
        else:
            by_consumer: dict[int, tuple[list[Entry], list[int]]] = {}
            for number, start, end in rounds:
                taken = by_consumer.setdefault(number, ([], []))
                taken[0].extend(entries[start:end])
                taken[1].extend(sizes[start:end])
            for consumer, taken in [(self.consumers[n], taken) for n, taken in by_consumer.items()]:
                self._send(consumer, *taken, batch)
        for entry in entries[placed:]:
            self.redelivery.add(*entry.position)
        return True

    def _share_chunks(self, batch: Batch) -> bool:
        entries, sizes = batch.entries, batch.sizes
        shares, waiting = self._chunks.share(entries, sizes, self.consumers, self._turn)
        for consumer, numbers in shares:
            self._send(consumer, [entries[n] for n in numbers], [sizes[n] for n in numbers], batch)
            consumer.chunks_out += sum(entries[n].peek.chunk_id >= 0 for n in numbers)
        for number in waiting:
            self.redelivery.add(*entries[number].position)
        return bool(shares)

    def _send(
        self,
        consumer: Consumer,
        entries: list[Entry],
        sizes: list[int],
        batch: Batch,
        slots: list[int] | None = None,
    ) -> None:
        messages = send_tracked(
            consumer,
            entries,
            sizes,
            self.around.clock.now_ms(),
            slots=slots,
            ack_sets=batch.ack_sets,
            counts=self.counts.counts,
        )
        consumer.add_unacked(messages)
        self._count_unacked(messages)

    # -- consumers -------------------------------------------------------------------------------------------

    def add(self, consumer: Consumer) -> None:
        self.check_room()
        if not self.consumers:
            self.turned_away += 1
            self._starts_over = True
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda c: c.priority_level)
        if consumer.durable:
            consumer.unacked_max = self.settings.unacked_max_per_consumer

    async def _start_over(self) -> None:
        """The first consumer came: read from the first unacknowledged entry; that refills the tracker."""
        self._starts_over = False
        self.redelivery.clear()
        if self.tracker is not None:
            await self.tracker.clear()
        self.rewind()

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self._chunks.forget(consumer)
        self._count_unacked(-consumer.unacked)
        consumer.unacked = 0
        left = consumer.pending.take_all()
        if self.consumers:
            for (ledger_id, entry_id), packed in left:
                self.redelivery.add(ledger_id, entry_id, packed >> SIZE_BITS)
        else:
            self.turned_away += 1
            self.redelivery.clear()
            self.counts.clear()
        self.around.wake()

    async def reset(self) -> None:
        self.turned_away += 1
        self.counts.clear()
        await self._start_over()

    async def close(self) -> None:
        if self.tracker is not None:
            tracker, self.tracker = self.tracker, None
            await tracker.close()

    def due_ms(self) -> int | None:
        """A message that is due already waits for permits or for a failed read, not for the time."""
        tracker = self.tracker
        if tracker is None or not self.consumers or tracker.has_due():
            return None
        return tracker.next_due_ms()

    # -- acknowledgements and redelivery ---------------------------------------------------------------------

    def settle(self, consumer: Consumer, positions: Sequence[tuple[int, int]]) -> int:
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
            if packed == 1:
                messages += 1
            elif packed:
                messages += self._settle_packed(consumer, Position(ledger_id, entry_id), packed)
            else:
                self._settle_elsewhere(consumer, Position(ledger_id, entry_id))
        if pending is not None and not pending:
            del ledgers[current_id]
        self.counts.forget(positions)
        self._release(consumer, messages)
        return messages

    def _settle_packed(self, consumer: Consumer, position: Position, packed: int) -> int:
        if (slot := packed >> SIZE_BITS) and self._slot_settled(consumer, slot):
            self.around.wake()
        return self._left_of(position, packed)

    def _settle_elsewhere(self, consumer: Consumer, position: Position) -> None:
        """Some clients acknowledge through another consumer of the subscription than the one that was sent
        to.
        """
        for other in self.consumers:
            if other is not consumer and (packed := other.pending.pop(*position)):
                self._release(other, self._settle_packed(other, position, packed))
                return

    def _left_of(self, position: Position, packed: int) -> int:
        """Messages of a pending entry that were not acknowledged one by one before."""
        size = packed & SIZE_MASK
        if size > 1 and (bits := self.cursor.ack_set(position)) is not None:
            return count_bits(bits)
        return size

    def settle_in_part(self, owner: Consumer, messages: int) -> None:
        """So many messages of a batch that is pending at `owner` were acknowledged, others of it were not."""
        self._release(owner, messages)

    def owner_of(self, consumer: Consumer, position: Position) -> Consumer:
        """At whom an entry is pending: nearly always `consumer`."""
        if not consumer.pending.get(*position):
            for other in self.consumers:
                if other.pending.get(*position):
                    return other
        return consumer

    def _release(self, consumer: Consumer, messages: int) -> None:
        if messages:
            consumer.unacked -= messages
            if consumer.unblock_below(consumer.unacked_max // 2):
                self.capacity_grew()
                self.around.wake()
            self._count_unacked(-messages)

    def _count_unacked(self, messages: int) -> None:
        self.unacked += messages
        limit = self.settings.unacked_max_per_subscription
        if not self.blocked:
            self.blocked = 0 < limit <= self.unacked
        elif self.unacked < limit // 2:
            self.blocked = False
            self.around.wake()

    def _slot_settled(self, consumer: Consumer, slot: int) -> bool:
        """An entry with a Key_Shared slot is no longer pending; True: someone waited for that."""
        return False

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None) -> None:
        """Send these again, or all that is pending at the consumer; the count of each goes up by one."""
        if positions is None:
            taken = consumer.pending.take_all()
        else:
            taken = [(p, packed) for p in positions if (packed := consumer.pending.pop(*p))]
        messages = 0
        for position, packed in taken:
            slot = packed >> SIZE_BITS
            messages += self._left_of(position, packed)
            self.redelivery.add(*position, slot)
            self.counts.increment(*position)
            if slot:
                self._slot_settled(consumer, slot)
        consumer.redelivered += messages
        consumer.unacked -= messages
        consumer.unblock_below(max(consumer.unacked_max - 1, 0))
        self._count_unacked(-messages)
        self.around.wake()

    def mark_delete_moved(self, position: Position) -> None:
        self.redelivery.remove_up_to(position)
        self.counts.forget_up_to(position)
        for consumer in self.consumers:
            for gone, packed in consumer.pending.take_up_to(position):
                self._release(consumer, self._settle_packed(consumer, gone, packed))
        self.around.wake()
