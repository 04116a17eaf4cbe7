"""Shared: any number of consumers, each entry goes to one of them, by turns and as their permits allow.

What is to be sent again goes before anything new, as in Pulsar; delayed messages that are due and new entries
go by turns, a read of each, so that a great many that are overdue hold up no one. An entry that finds no
permits joins the redelivery set and goes first next time.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import islice

from geminga.broker.consumer import SHARED, Consumer
from geminga.broker.delayed import Window
from geminga.broker.dispatch import Batch, Dispatcher, Surroundings, count_chunks
from geminga.broker.dispatch_choice import share_round_robin
from geminga.broker.dispatch_chunks import ChunkOwners, HeldChunks
from geminga.broker.dispatch_send import send_tracked
from geminga.broker.dispatch_settings import SubscriptionSettings
from geminga.broker.dispatch_unacked import UnackedBooks
from geminga.broker.redelivery import ENTRY_BITS, ENTRY_MASK
from geminga.errors import StorageError
from geminga.managed_ledger.entry import Entry
from geminga.position import Position

log = logging.getLogger("geminga.broker")


NOWHERE = Position(-1, -1)
LEAP_ENTRIES_MIN = 2000
"""Entries behind the end of the topic that are worth a leap there."""
LEAP_SHORT_ENTRIES = 500
"""A leap ends so many before the end: what was published just before it need not wait either."""
WINDOWS_PER_READ = 16
"""Looks for entries that are not held back, in a row: a millisecond or two."""


class SharedDispatcher(Dispatcher):
    """Keeps what is pending at each consumer and what is to be sent again. What waits for its time is with
    the subscription.
    """

    sub_type = SHARED
    skips_unknown = True
    """Whether entries may go out before earlier ones of which it is not known yet when they are due."""

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
        self.delayed = around.delayed
        self.delayed.is_out = self.books.holds
        self._turn = 0
        self._chunks = ChunkOwners[Consumer]()
        self._starts_over = False
        self._held = HeldChunks()
        self._taken_ahead = NOWHERE
        """Up to here the index may have given entries that are yet to be passed by reading."""
        self._is_turn_of_due = True

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
            self._is_turn_of_due = not (is_turn_of_due and self.take_due(count))
            positions = self._to_send_again(count)
            if positions:
                if not await self._send_again(positions):
                    return
            else:
                # By turns: neither holds the other up.
                sent_new = await self._send_new(count)
                read_more = await self._read_once_more(count)
                if not (sent_new or read_more) and (is_turn_of_due or not self.delayed.has_due()):
                    return
            await self.let_others_run()

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

    def take_due(self, count_max: int) -> bool:
        """Put what is due among what is to be sent again. False: nothing is."""
        tracker = self.delayed.tracker
        if tracker is None or not (taken := tracker.take_due(count_max)):
            return False
        self.redelivery.add_all(taken)
        last = Position(taken[-1] >> ENTRY_BITS, taken[-1] & ENTRY_MASK)
        self._taken_ahead = max(self._taken_ahead, last)
        return True

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
        try:
            entries = await self.ledger.read_positions(positions)
        except StorageError as error:
            self._choose_anew()
            self._read_failed(positions[0], error)
            return False
        if seen != self.turned_away or self._is_overtaken(additions):
            return True
        for ledger_id, entry_id in positions:
            # Also those that were not found: what has been trimmed need not be sent.
            self.redelivery.discard(ledger_id, entry_id)
        # All of them were to be sent before: none is asked for its time again.
        batch = self.admit(entries, scattered=True)
        self._share(batch, is_new=False)
        if len(batch.entries) < len(positions):
            # Some were acknowledged or are gone: the permits they were counted for are free for others.
            self._choose_anew()
        return True

    def _choose_anew(self) -> None:
        """Not all that was chosen to be sent again was sent."""

    def _is_overtaken(self, additions: int) -> bool:
        """Whether what came to the redelivery set during a read has to go before what was read."""
        return False

    def _may_read(self) -> bool:
        """Whether anything may be read that was not to be sent before."""
        tracker = self.delayed.tracker
        return not self.books.blocked and (tracker is None or not tracker.should_pause())

    async def _send_new(self, count_max: int) -> bool:
        """False: there is nothing to read now, or reading is not allowed."""
        if not self._may_read():
            return False
        entries = await self.read_new(count_max)
        if entries is None:
            return True
        if not entries:
            return False
        if (batch := await self._hold_back(entries)) is not None:
            self.cursor.read_position = entries[-1].position.next()
            if batch.timed and all(entry.peek.deliver_at_ms for entry in batch.entries):
                self._leap()
            self._share(batch, is_new=True)
        return True

    def _leap(self) -> None:
        """All that was read has a delivery time, as when an index is made anew from a backlog: go on at the
        end of the topic, so that what is published now does not wait for that, and read what lies between
        beside it.
        """
        if self.delayed.is_opening or not self.skips_unknown:
            return
        last = self.ledger.last_confirmed
        behind = self.ledger.count_between(self.cursor.read_position, last)
        if behind > LEAP_ENTRIES_MIN:
            self.delayed.read_again(self.cursor.read_position.ledger_id, last.ledger_id)
            self.cursor.read_position = self.ledger.position_after(
                self.cursor.read_position, behind - LEAP_SHORT_ENTRIES
            )

    async def read_new(self, count_max: int) -> list[Entry] | None:
        """As in the base, without what is held back: an entry is read once to learn when it is due, and next
        when it is.
        """
        cursor = self.cursor
        if cursor.read_position > self._taken_ahead and not self.delayed.has_gaps():
            return await super().read_new(count_max)
        if self._is_backing_off():
            return []
        for _ in range(WINDOWS_PER_READ):
            window = self.delayed.window(cursor.read_position, skips=self.skips_unknown)
            if window is None:
                return []
            if window.free is None and window.place > self._taken_ahead:
                return await self.read_from(window.place, count_max)
            entry_ids = self._nowhere(window, count_max)
            if entry_ids:
                entries = await self._read_free(window.place.ledger_id, entry_ids)
                if entries is None or entries or self._is_backing_off():
                    return entries
            cursor.read_position = window.end
        return None

    def _nowhere(self, window: Window, count_max: int) -> list[int]:
        """Of a window, the first entries that are neither held back nor pending nor to be sent again."""
        ledger_id, first = window.place
        free = window.free if window.free is not None else range(first, window.end.entry_id)
        holds = self.books.holds
        return list(islice((e for e in free if not holds(ledger_id, e)), count_max))

    async def _read_free(self, ledger_id: int, entry_ids: list[int]) -> list[Entry] | None:
        """These entries of a ledger, as `read_new` returns them; at least the first, if they exist."""
        first = Position(ledger_id, entry_ids[0])
        if entry_ids[-1] - entry_ids[0] < len(entry_ids):
            return await self.read_from(first, len(entry_ids))
        seen = self.turned_away
        try:
            entries = await self.ledger.read_positions([(ledger_id, entry_id) for entry_id in entry_ids])
        except StorageError as error:
            self._read_failed(first, error)
            return []
        self._read_succeeded()
        return entries if seen == self.turned_away else None

    async def _hold_back(self, entries: list[Entry]) -> Batch | None:
        """Admit entries that were not to be sent before, but for those that have to wait. None: the answer is
        not wanted any more.
        """
        delayed = self.delayed
        batch = self.admit(entries)
        if not batch.timed or not delayed.policy.active:
            if batch.entries and not batch.timed:
                delayed.saw_undelayed(batch.entries[0].position)
            return batch
        if delayed.tracker is None:
            if self.skips_unknown and delayed.open_beside(batch.timed):
                batch.leave_out({entry.position for entry in batch.timed})
                return batch
            seen = self.turned_away
            await delayed.open()
            if seen != self.turned_away:
                return None
            batch = self.admit(entries)
        if len(batch.timed) < len(batch.entries):
            delayed.saw_undelayed(next(e.position for e in batch.entries if not e.peek.deliver_at_ms))
        batch.leave_out(delayed.hold_back(batch.timed))
        return batch

    async def _read_once_more(self, count_max: int) -> bool:
        """Go on with what is to be read again: whatever of it is nowhere is held back or sent. False: nothing
        was done.
        """
        if not self._may_read() or self._is_backing_off() or self.delayed.is_opening:
            return False
        window = self.delayed.next_again(self.cursor.read_position)
        if window is None:
            return False
        entry_ids = self._nowhere(window, count_max)
        if not entry_ids:
            self.delayed.again_up_to(window.end)
            return True
        entries = await self._read_free(window.place.ledger_id, entry_ids)
        if not entries:
            if entries is not None and not self._is_backing_off():
                self.delayed.again_up_to(window.end)
            return not self._is_backing_off()
        self.delayed.again_up_to(entries[-1].position.next())
        entries = [entry for entry in entries if not self.delayed.holds(entry.position)]
        if (batch := await self._hold_back(entries)) is not None:
            self._share(batch, is_new=True)
        return True

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
        self.delayed.all_again()
        self._taken_ahead = NOWHERE
        self.rewind()

    def remove(self, consumer: Consumer) -> None:
        self.consumers.remove(consumer)
        self._chunks.forget(consumer)
        self._held.try_again()
        self.books.leave(consumer)
        if not self.consumers:
            self.turned_away += 1
        self.around.wake()

    def reset(self) -> None:
        self.turned_away += 1
        self._start_over()

    def due_ms(self) -> int | None:
        """A time that has come counts as long as a round would take what is due, so it does not come back
        for ever; else the message waits for permits or the next try of a failed read, not for the time.
        """
        tracker = self.delayed.tracker
        if tracker is None or self._is_backing_off() or not self._takes_due():
            return None
        return tracker.next_due_ms()

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
