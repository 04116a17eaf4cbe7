"""Reading past what a delayed index holds back: what all dispatchers do that know of delivery times.

An entry is read once to learn when it is due, and next when it is. Beside what is new there may be parts of
the backlog to be read again, because an index has lost, or had no room for, what it held of them.
"""

from __future__ import annotations

import sys
from itertools import islice

from geminga.broker.delays.subscription_delays import Window
from geminga.broker.dispatch.dispatcher import Batch, Dispatcher, Surroundings
from geminga.broker.dispatch.redelivery import ENTRY_BITS, ENTRY_MASK
from geminga.broker.dispatch.unacked import UnackedBooks
from geminga.errors import StorageError
from geminga.managed_ledger.chain.entry import Entry
from geminga.position import Position

NOWHERE = Position(-1, -1)
LEAP_ENTRIES_MIN = 2000
"""Entries behind the end of the topic that are worth a leap there."""
LEAP_SHORT_ENTRIES = 500
"""A leap ends so many before the end: what was published just before it need not wait either."""
WINDOWS_PER_READ = 16
"""Looks for entries that are not held back, in a row: a millisecond or two."""


class DelayingDispatcher(Dispatcher):
    """Reads, and leaves sending to its subclasses, which also make `books`."""

    books: UnackedBooks
    skips_unknown = True
    """Whether entries may go out before earlier ones of which it is not known yet when they are due."""

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self.delayed = around.delayed
        self._taken_ahead = NOWHERE
        """Up to here the index may have given entries that are yet to be passed by reading."""
        self._found_nothing_new = False
        """Whether the last read of what is new found nothing."""

    def _look_ahead_left(self) -> int:
        """How many more entries may be read that perhaps no consumer can take yet."""
        return sys.maxsize

    def _share(self, batch: Batch, *, is_new: bool) -> None:
        """Decide who gets what of a batch, send it, and keep the rest for the next time."""
        raise NotImplementedError

    def read_all_again(self) -> None:
        """The whole backlog is about to be read, but for what is held back."""
        self.delayed.all_again()
        self._taken_ahead = NOWHERE

    def take_due(self, count_max: int) -> bool:
        """Put what is due among what is to be sent again. False: nothing is."""
        tracker = self.delayed.tracker
        if tracker is None or not (taken := tracker.take_due(count_max)):
            return False
        self.books.redelivery.add_all(taken)
        last = Position(taken[-1] >> ENTRY_BITS, taken[-1] & ENTRY_MASK)
        self._taken_ahead = max(self._taken_ahead, last)
        return True

    def _may_read(self) -> bool:
        """Whether anything may be read that was not to be sent before."""
        tracker = self.delayed.tracker
        return not self.books.blocked and (tracker is None or not tracker.should_pause())

    async def _send_new(self, count_max: int) -> bool:
        """False: there is nothing to read now, or reading is not allowed."""
        self._found_nothing_new = False
        if not self._may_read():
            return False
        entries = await self.read_new(count_max)
        if entries is None:
            return True
        if not entries:
            self._found_nothing_new = not self._is_backing_off()
            return False
        if (batch := await self._hold_back(entries)) is not None:
            self.cursor.read_position = entries[-1].position.next()
            if len(batch.entries) < len(batch.timed):
                self._leap(batch)
            self._share(batch, is_new=True)
        return True

    def _leap(self, batch: Batch) -> None:
        """All that was read has a delivery time, and some of it is held back, as when an index is made anew
        from a backlog: go on at the end of the topic, so that what is published now does not wait for that,
        and read what lies between beside it.
        """
        if self.delayed.is_opening or not self.skips_unknown:
            return
        if not all(entry.peek.deliver_at_ms for entry in batch.entries):
            return
        start, last = self.cursor.read_position, self.ledger.last_confirmed
        behind = self.ledger.count_between(start, last)
        if behind > LEAP_ENTRIES_MIN:
            self.delayed.read_again(start.ledger_id, last.ledger_id)
            self.cursor.read_position = self.ledger.position_after(start, behind - LEAP_SHORT_ENTRIES)
            self.delayed.leap()

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
            positions = [(ledger_id, entry_id) for entry_id in entry_ids]
            entries = await self._within_memory(
                len(positions), lambda bytes_max: self.ledger.read_positions(positions, bytes_max)
            )
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
            if self._found_nothing_new:
                self.delayed.reached_end()
            return False
        if not self.throttle.limits:
            # However few permits there are: nearly all of these will be held back.
            count_max = min(self.settings.read_entries_max, self._look_ahead_left())
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
