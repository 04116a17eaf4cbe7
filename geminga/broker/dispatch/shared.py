"""Shared: any number of consumers, each entry goes to one of them, by turns and as their permits allow.

What is to be sent again goes before anything new, as in Pulsar; delayed messages that are due and new entries
go by turns, a read of each, so that a great many that are overdue hold up no one. An entry that finds no
permits joins the redelivery set and goes first next time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from geminga.broker.dispatch.choice import share_round_robin
from geminga.broker.dispatch.chunks import ChunkOwners, HeldChunks
from geminga.broker.dispatch.consumer import SHARED, Consumer
from geminga.broker.dispatch.delaying import DelayingDispatcher
from geminga.broker.dispatch.dispatcher import Batch, Surroundings, count_chunks
from geminga.broker.dispatch.due_pace import DuePace
from geminga.broker.dispatch.send import send_tracked
from geminga.broker.dispatch.settings import SubscriptionSettings
from geminga.broker.dispatch.unacked import UnackedBooks
from geminga.errors import StorageError
from geminga.managed_ledger.chain.entry import Entry
from geminga.managed_ledger.chain.ledger_reads import reached
from geminga.position import Position

log = logging.getLogger("geminga.broker")


class SharedDispatcher(DelayingDispatcher):
    """Keeps what is pending at each consumer and what is to be sent again. What waits for its time is with
    the subscription.
    """

    sub_type = SHARED

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self.books = UnackedBooks(
            self.consumers,
            around.cursor,
            around.settings.unacked_max_per_subscription,
            self._room_came,
            self._slot_settled,
            around.delayed.passed,
        )
        self.redelivery = self.books.redelivery
        self.delayed.given_out.follow(self.books)
        self._turn = 0
        self._chunks = ChunkOwners[Consumer]()
        self._starts_over = False
        self._held = HeldChunks()
        self._is_turn_of_due = True
        self._pace = DuePace()

    def apply(self, settings: SubscriptionSettings) -> None:
        super().apply(settings)
        self.books.limit(settings.unacked_max_per_subscription, settings.unacked_max_per_consumer)

    # -- a round ---------------------------------------------------------------------------------------------

    async def round(self) -> None:
        self._held.try_again()
        while count := self._entries_wanted():
            if self._starts_over:
                # Not only before the first read: all consumers may have left and others come during one.
                self._start_over()
            if self.delayed.tracker is None and self.delayed.has_index():
                await self.delayed.open()
                continue
            self._held.release_if_asked()
            is_turn_of_due = self._is_turn_of_due
            self._is_turn_of_due = not (is_turn_of_due and self._take_due_at_pace(count))
            positions = self._to_send_again(count)
            if positions:
                if not await self._send_again(positions):
                    return
            else:
                # By turns: neither holds the other up.
                sent_new = await self._send_new(count)
                if self._starts_over:
                    continue
                read_more = await self._read_once_more(count)
                if not (sent_new or read_more) and (is_turn_of_due or not self._may_take_due()):
                    return
                if self._is_at_end():
                    return
            await self.let_others_run()

    def _take_due_at_pace(self, count_max: int) -> bool:
        """`take_due`, but False as well for a moment after all that was due has been taken."""
        if self.delayed.tracker is None:
            return False
        now_ms = self.around.clock.now_ms()
        if self._pace.is_pause(now_ms) or not self.take_due(count_max):
            return False
        if not self.delayed.has_due():
            self._pace.drained(now_ms)
        return True

    def _may_take_due(self) -> bool:
        """Within the pause nothing is asked of the index: each answer would take a few messages out of it."""
        return not self._pace.is_pause(self.around.clock.now_ms()) and self.delayed.has_due()

    def _is_at_end(self) -> bool:
        """Whether another pass would find nothing: all is read, and nothing is due or to be sent again."""
        return (
            self.cursor.read_position > self.ledger.last_confirmed
            and not self.redelivery
            and not self._starts_over
            and self.delayed.is_complete
            and not self.delayed.is_behind
            and not self._may_take_due()
        )

    def _entries_wanted(self) -> int:
        """About as many entries as the permits of all consumers will do for; 0: no one can take any."""
        wanted, most = 0, self.settings.read_entries_max
        for consumer in self.consumers:
            capacity = consumer.capacity()
            if capacity > 0:
                average = round(consumer.average_messages)
                wanted += capacity if average <= 1 else -(-capacity // average)
                if wanted >= most:
                    wanted = most
                    break
        if wanted and self.throttle.limits:
            return self.throttle.room(wanted, max(c.average_messages for c in self.consumers))
        return wanted

    def _to_send_again(self, count_max: int) -> list[Position]:
        if not self.redelivery:
            return []
        if not (held := self._held.positions):
            return self.redelivery.first(count_max)
        found = self.redelivery.first(count_max + len(held))
        return [position for position in found if position not in held][:count_max]

    async def _send_again(self, positions: list[Position]) -> bool:
        """False: reading failed, so that going on is of no use now."""
        if self._is_backing_off():
            self._choose_anew()
            return False
        seen, additions = self.turned_away, self.redelivery.additions
        looked_at = 0

        async def read(bytes_max: int) -> list[Entry]:
            nonlocal looked_at
            found = await self.ledger.read_positions(positions, bytes_max)
            looked_at = reached(positions, found, bytes_max)
            return found

        try:
            entries = await self._within_memory(len(positions), read)
        except StorageError as error:
            self._choose_anew()
            self._read_failed(positions[0], error)
            return False
        if entries is None:
            self._choose_anew()
            return True
        if seen != self.turned_away or self._is_overtaken(additions):
            return True
        for ledger_id, entry_id in positions[:looked_at]:
            # Also those that were not found: what has been trimmed need not be sent.
            self.redelivery.discard(ledger_id, entry_id)
        # All of them were to be sent before: none is asked for its time again.
        batch = self.admit(entries, scattered=True)
        self._share(batch, is_new=False)
        if self.delayed.tracker is not None:
            self.delayed.tracker.given_out()
        if len(batch.entries) < len(positions):
            # Some were acknowledged, are gone, or have to wait for the next read: the permits they were
            # counted for are free for others.
            self._choose_anew()
        return True

    def _choose_anew(self) -> None:
        """Not all that was chosen to be sent again was sent."""

    def _is_overtaken(self, additions: int) -> bool:
        """Whether what came to the redelivery set during a read has to go before what was read."""
        return False

    def _share(self, batch: Batch, *, is_new: bool) -> None:
        """Decide who gets what of a batch, send it, and keep the rest for the next time."""
        entries, sizes = batch.entries, batch.sizes
        if batch.has_chunks:
            self._share_chunks(batch)
            return
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

    def _share_chunks(self, batch: Batch) -> None:
        entries, sizes = batch.entries, batch.sizes
        held = self._held
        shares, waiting = self._chunks.share(entries, sizes, self.consumers, self._turn, held.messages)
        for consumer, numbers in shares:
            self._send(consumer, [entries[n] for n in numbers], [sizes[n] for n in numbers], batch)
        for number in waiting:
            self.redelivery.add(*entries[number].position)
            held.positions.add(entries[number].position)

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
            counts=self.books.counts.counts,
        )
        self.books.sent(consumer, messages)
        if self.throttle.limits:
            self.throttle.sent(messages, entries)
        if batch.has_chunks:
            consumer.chunks_out += count_chunks(entries)

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

    def _start_over(self) -> None:
        """The first consumer came: read from the first unacknowledged entry, without what is held back."""
        self._starts_over = False
        self._held.try_again()
        self.books.forget()
        self.read_all_again()
        self.rewind()

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self._chunks.forget(consumer)
        self._held.try_again()
        self.books.leave(consumer)
        if not self.consumers:
            self.turned_away += 1
            self.delayed.stopped_reading()
        self.around.wake()

    def reset(self) -> None:
        self.turned_away += 1
        self._start_over()

    def due_ms(self) -> int | None:
        """A time that has come counts as long as a round would take what is due, so it does not come back
        for ever; else the message waits for permits or the next try of a failed read, not for the time.
        Never sooner than the pace of taking allows.
        """
        tracker = self.delayed.tracker
        if tracker is None or self._is_backing_off() or not self._takes_due():
            return None
        resumes_ms = self._pace.resumes_ms(self.around.clock.now_ms())
        due_ms = tracker.next_due_ms(resumes_ms)
        return None if due_ms is None else max(due_ms, resumes_ms)

    def _takes_due(self) -> bool:
        """Whether a round would take what is due out of the tracker."""
        return self._entries_wanted() > 0

    def capacity_grew(self) -> None:
        self._held.try_again()

    # -- acknowledgements and redelivery ---------------------------------------------------------------------

    def settle(self, consumer: Consumer, positions: Sequence[tuple[int, int]]) -> int:
        return self.books.settle(consumer, positions)

    def redeliver(self, consumer: Consumer, positions: Sequence[Position] | None, epoch: int | None) -> None:
        """Send these again, or all that is pending at the consumer."""
        self.books.give_back(consumer, positions)
        self.around.wake()

    def settle_up_to(self, position: Position) -> None:
        self.books.expire(position)

    def mark_delete_moved(self, position: Position) -> None:
        self.books.expire(position)
        self.around.wake()

    def _slot_settled(self, consumer: Consumer, slot: int) -> bool:
        """An entry with a Key_Shared slot is no longer pending; True: someone waited for that."""
        return False

    def _room_came(self) -> None:
        self.capacity_grew()
        self.around.wake()
