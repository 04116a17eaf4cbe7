"""The part of a dispatcher that knows of delivery times: it reads past what the delayed index holds back, and
fetches what is due (Pulsar's `trackDelayedDelivery` and `getScheduledMessages`).

An entry is read once to learn when it is due, and next when it is. Beside what is new there may be parts of
the backlog to be read again, because an index has lost, or had no room for, what it held of them.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING, Final

from geminga.broker.delays.window import Window
from geminga.broker.dispatch.chooser import Batch
from geminga.broker.dispatch.redelivery import ENTRY_BITS, ENTRY_MASK
from geminga.managed_ledger.chain.entry import Entry
from geminga.position import Position

if TYPE_CHECKING:
    from geminga.broker.dispatch.reader import EntryReader
    from geminga.broker.dispatch.replay import Replay
    from geminga.broker.dispatch.settings import Surroundings

NOWHERE = Position(-1, -1)
# Fewer are an ordinary burst, which is read in a moment.
LEAP_ENTRIES_MIN = 2000
"""Entries behind the end of the topic that are worth a leap there."""
LEAP_SHORT_ENTRIES = 500
"""A leap ends so many before the end: what was published just before it need not wait either."""
# A backlog that is held back altogether brings no entry for many windows; without a bound the loop would
# stand still.
WINDOWS_PER_READ = 16
"""Looks for entries that are not held back, in a row: a millisecond or two."""
DUE_PAUSE_MS: Final = 8
"""By at most so much a message is late for the sake of those that are due shortly after it. With 10 one of a
hundred of a steady stream is more than 10 ms late, as the way to the client takes a millisecond.
"""
DUE_AHEAD_MAX: Final = 128
"""The limit of messages that are read before they are due, at once."""


class DuePace:
    """How often one dispatcher looks for messages that have become due, in message time.

    Of a stream of them each is due in a millisecond of its own. Taken one by one each would cost a turn of
    the dispatcher and a write to its consumer. So after all that was due has been taken there is a pause, in
    which others gather; they go in the order of the topic. A clock that steps back ends the pause.
    """

    __slots__ = ("_drained_ms",)

    def __init__(self) -> None:
        self._drained_ms = -DUE_PAUSE_MS

    def drained(self, now_ms: int) -> None:
        """Messages were taken, and no more are due now."""
        self._drained_ms = now_ms

    def is_pause(self, now_ms: int) -> bool:
        # The wall clock may step back: without the 0 a pause would last until it has caught up.
        return 0 <= now_ms - self._drained_ms < DUE_PAUSE_MS

    def resumes_ms(self, now_ms: int) -> int:
        """When to look for what is due at the earliest: the end of the pause, or now."""
        return self._drained_ms + DUE_PAUSE_MS if self.is_pause(now_ms) else now_ms


class DueAhead:
    """How many of the messages that are due next are read from the disk along with one that is due: twice as
    many as the last time if those were found in memory since, else half as many (as read-ahead of files does
    it). Each trip to the disk costs a turn through a thread; due messages of a large backlog lie anywhere.
    """

    __slots__ = ("_count", "_found", "_needed_disk")

    def __init__(self) -> None:
        self._count = self._found = 0
        self._needed_disk = False

    def note_read(self, count: int) -> None:
        """So many that are due were read."""
        if not self._needed_disk:
            self._found += count
        self._needed_disk = False

    def next_count(self) -> int:
        """How many to read along with what is being read, as that needs the disk."""
        self._needed_disk = True
        # What was read ahead is of no use where it is evicted before its time, or never sent.
        was_used = 2 * self._found >= self._count
        self._count = min(2 * self._count + 2, DUE_AHEAD_MAX) if was_used else self._count // 2
        self._found = 0
        return self._count


class DelayedReads:
    """Reads for the dispatcher, by `reader`, and hands what is due to `replay`. What waits, and until when,
    is in the subscription's `SubscriptionDelays`.
    """

    def __init__(self, around: Surroundings, reader: EntryReader, replay: Replay) -> None:
        self._around = around
        self._ledger = around.ledger
        self._cursor = around.cursor
        self._delayed = around.delayed
        self._reader = reader
        self._replay = replay
        self._books = replay.books
        # Key_Shared reads nothing beyond such a ledger: an entry in it may be due, and goes before later ones
        # of its key.
        self._skips_unknown = not replay.keeps_order
        """Whether entries may go out before earlier ones of which it is not known yet when they are due."""
        self._pace = DuePace()
        self._ahead = DueAhead()
        # A shared index is fed with what is published, so it may give out entries that reading has yet to
        # come to. Up to the last of them each entry that is read is looked up in the books, or it would go
        # out a second time.
        self._taken_ahead = NOWHERE
        """Up to here the index may have given entries that are yet to be passed by reading."""
        self._asleep_for_ms = math.inf
        """The kept time that was the earliest of the index when `next_due_ms` was asked last."""

    # -- the index -------------------------------------------------------------------------------------------

    @property
    def is_unopened(self) -> bool:
        """Whether an index has to be opened before anything is read: it says what to leave out."""
        return self._delayed.tracker is None and self._delayed.has_index()

    async def open(self) -> None:
        await self._delayed.open()

    def start_over(self) -> None:
        """The whole backlog is about to be read, but for what is held back."""
        self._delayed.all_again()
        self._taken_ahead = NOWHERE

    def stopped(self) -> None:
        """The last consumer has left."""
        self._delayed.stopped_reading()

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to be read again or to be sealed."""
        # Both: the ranges may be read to their end while the index has not cut off what came of them.
        return self._delayed.is_complete and not self._delayed.is_behind

    # -- what is due -----------------------------------------------------------------------------------------

    def take_due(self, count_max: int) -> bool:
        """Put what is due among what is to be sent again. False: nothing is, or there is no room for it."""
        return self._take_due(min(count_max, self._replay.look_ahead_left())) > 0

    def _take_due(self, count_max: int) -> int:
        """How many were taken; fewer than `count_max` are all that were due."""
        tracker = self._delayed.tracker
        if tracker is None or count_max <= 0 or not (taken := tracker.take_due(count_max)):
            return 0
        # As the column that the index gives: a tuple for each position once cost more than all the rest of a
        # drain.
        self._books.redelivery.add_all(taken)
        last = Position(taken[-1] >> ENTRY_BITS, taken[-1] & ENTRY_MASK)
        self._taken_ahead = max(self._taken_ahead, last)
        return len(taken)

    def take_due_at_pace(self, count_max: int) -> bool:
        """`take_due`, but False as well for a moment after all that was due has been taken."""
        if self._delayed.tracker is None:
            return False
        now_ms = self._around.clock.now_ms()
        if self._pace.is_pause(now_ms):
            return False
        # Due entries of blocked keys wait in the redelivery set too, and count towards its bound.
        count_max = min(count_max, self._replay.look_ahead_left())
        taken = self._take_due(count_max)
        # Only then: a consumer of few permits takes a few at a time, and must not wait for the pace in
        # between. What falls due while these are taken waits for the pace: asked for once more, every third
        # turn read and wrote a few messages twice.
        if 0 < taken < count_max:
            self._pace.drained(now_ms)
        return taken > 0

    def may_take_due(self) -> bool:
        """Within the pause nothing is asked of the index: each answer would take a few messages out of it."""
        # Most subscriptions hold nothing back, and ask no clock.
        if not self.has_tracker():
            return False
        return not self._pace.is_pause(self._around.clock.now_ms()) and self._delayed.has_due()

    def has_tracker(self) -> bool:
        return self._delayed.tracker is not None

    def next_due_ms(self) -> int | None:
        """When the next message may be taken, in message time: never sooner than the pace allows."""
        tracker = self._delayed.tracker
        self._asleep_for_ms = math.inf
        # With a full redelivery set a due time would wake the task again and again: `take_due` takes nothing.
        if tracker is None or self._replay.look_ahead_left() <= 0:
            return None
        resumes_ms = self._pace.resumes_ms(self._around.clock.now_ms())
        due_ms = tracker.next_due_ms(resumes_ms)
        # With a precision of its own a message may be due at once, long before its time.
        if tracker.reader.precision is None:
            self._asleep_for_ms = tracker.earliest_ms()
        return None if due_ms is None else max(due_ms, resumes_ms)

    def due_next(self) -> list[Position]:
        """What is due next, to be read along with what is due now, as that has to be read from the disk."""
        tracker = self._delayed.tracker
        count = self._ahead.next_count()
        return tracker.peek(count) if tracker is not None and count else []

    def gave_out(self, count: int) -> None:
        """What was taken, so many entries, was read and has been sent, as far as permits allowed."""
        self._ahead.note_read(count)
        if self._delayed.tracker is not None:
            self._delayed.tracker.given_out()

    def passes_published(self) -> bool:
        """What was published last is durable. True: all of it waits in the index, none of it is due before
        what the task sleeps for, and reading has passed it, so a round would find nothing.
        """
        # A publisher that keeps a pace woke the task 700 times a second, each time for nothing: a fourth of
        # what the loop's thread did.
        delayed, cursor, end = self._delayed, self._cursor, self._ledger.last_confirmed
        if delayed.tracker is None or delayed.tracker.earliest_ms() < self._asleep_for_ms:
            return False
        first, last = delayed.door.held
        # Elsewhere: a round has to go on reading, or a new ledger has begun.
        if last != end or cursor.read_position != first:
            return False
        # A round seals what was read again, and looks for what was lost.
        if not self.is_settled or delayed.unknown is not None:
            return False
        cursor.set_read_position(end.next())
        return True

    # -- what is new -----------------------------------------------------------------------------------------

    def _room(self, count_max: int) -> int:
        """How many entries may be read that were not to be sent before."""
        tracker = self._delayed.tracker
        # A block stops new entries only, as in Pulsar's readMoreEntries, which looks at redeliveries first.
        if self._books.blocked or (tracker is not None and tracker.should_pause()):
            return 0
        return min(count_max, self._replay.look_ahead_left())

    def read_new_cached(self, count_max: int) -> list[Entry]:
        """As `EntryReader.read_new_cached`; [] as well where the index has to be asked."""
        room = self._room(count_max)
        return self._reader.read_new_cached(room) if room > 0 and self._holds_nothing_back else []

    @property
    def _holds_nothing_back(self) -> bool:
        """Whether all from the read position on may be read without a look at the index or the books."""
        return self._cursor.read_position > self._taken_ahead and not self._delayed.has_gaps()

    async def read_new(self, count_max: int) -> list[Entry] | None:
        """As `EntryReader.read_new`, without what is held back; [] as well if reading is not allowed now."""
        room = self._room(count_max)
        return await self._read_past_held(room) if room > 0 else []

    async def _read_past_held(self, count_max: int) -> list[Entry] | None:
        cursor, delayed, reader = self._cursor, self._delayed, self._reader
        # The usual case, without bitmaps: nothing is held back now.
        if self._holds_nothing_back:
            return await reader.read_new(count_max)
        if reader.is_backing_off:
            return []
        for _ in range(WINDOWS_PER_READ):
            window = delayed.window(cursor.read_position, skips=self._skips_unknown)
            if window is None:
                return []
            # Nothing of this window is held back, so it is read as a run, without a look at each entry.
            if window.free is None and window.place > self._taken_ahead:
                return await reader.read_from(window.place, count_max)
            entry_ids = self._nowhere(window, count_max)
            if entry_ids:
                entries = await self._read_free(window.place.ledger_id, entry_ids)
                if entries is None or entries or reader.is_backing_off:
                    return entries
            # Moved without a read: all of the window is held back or out. That is what spares a rewind the
            # backlog; Pulsar's tracker in memory has all of it read again (issue #23912).
            cursor.set_read_position(window.end)
        return None

    def _nowhere(self, window: Window, count_max: int) -> list[int]:
        """Of a window, the first entries that are neither held back nor pending nor to be sent again."""
        ledger_id, first = window.place
        free = window.free if window.free is not None else range(first, window.end.entry_id)
        holds = self._books.holds
        # A generator in `islice`: a window has up to 65,536 entries, a read wants a hundred.
        return list(islice((e for e in free if not holds(ledger_id, e)), count_max))

    async def _read_free(self, ledger_id: int, entry_ids: list[int]) -> list[Entry] | None:
        """These entries of a ledger, as `read_new` returns them; at least the first, if they exist."""
        reader = self._reader
        # Without gaps they are a run, which memory may hold; reads by position always go by way of an await.
        if entry_ids[-1] - entry_ids[0] < len(entry_ids):
            return await reader.read_from(Position(ledger_id, entry_ids[0]), len(entry_ids))
        found = await reader.read_positions([(ledger_id, entry_id) for entry_id in entry_ids])
        if found is None:
            return [] if reader.is_backing_off else None
        reader.retry_now()
        return found.entries

    def admit(self, entries: list[Entry]) -> Batch:
        """Admit entries that were not to be sent before, without a look at what has to wait."""
        batch = self._reader.admit(entries)
        if batch.entries and not batch.timed:
            # For Pulsar's fixed-delay detection: it pauses reading only while all entries have a delay.
            self._delayed.saw_undelayed(batch.entries[0].position)
        return batch

    def may_wait(self, batch: Batch) -> bool:
        """Whether some of these entries may have to wait, which `hold_back` says."""
        # A policy that switches delays off holds for what is read from now on, without opening an index.
        return bool(batch.timed) and self._delayed.policy.active

    async def hold_back(self, entries: list[Entry]) -> Batch | None:
        """As `admit`, without those that have to wait. None: the answer is not wanted any more."""
        batch = self.admit(entries)
        if not self.may_wait(batch):
            return batch
        delayed, reader = self._delayed, self._reader
        if delayed.tracker is None:
            # The first open imports numpy for a tenth of a second. Undelayed entries of the batch go out
            # meanwhile; Key_Shared has to wait, as it may let nothing pass.
            if self._skips_unknown and delayed.open_beside(batch.timed):
                batch.leave_out({entry.position for entry in batch.timed})
                return batch
            seen = reader.turned_away
            await delayed.open()
            if seen != reader.turned_away:
                return None
            # Again: entries may have been acknowledged, or skipped, while the index was opened.
            batch = reader.admit(entries)
        if len(batch.timed) < len(batch.entries):
            delayed.saw_undelayed(next(e.position for e in batch.entries if not e.peek.deliver_at_ms))
        batch.leave_out(delayed.hold_back(batch.timed))
        return batch

    def leap_if_behind(self, batch: Batch) -> None:
        """If all that was read has a delivery time, and some of it is held back, as when an index is rebuilt
        from a backlog: go on at the end of the topic, so that what is published now does not wait for that,
        and read what lies between beside it.
        """
        if len(batch.entries) >= len(batch.timed) or self._delayed.is_opening or not self._skips_unknown:
            return
        # An entry without a time among them: undelayed messages lie in this backlog, and a leap would put
        # them off.
        if not all(entry.peek.deliver_at_ms for entry in batch.entries):
            return
        start, last = self._cursor.read_position, self._ledger.last_confirmed
        behind = self._ledger.count_between(start, last)
        if behind > LEAP_ENTRIES_MIN:
            # Only this range knows of the entries that are leapt over.
            self._delayed.read_again(start.ledger_id, last.ledger_id)
            self._cursor.set_read_position(self._ledger.position_after(start, behind - LEAP_SHORT_ENTRIES))
            self._delayed.leap()

    # -- what is read again ----------------------------------------------------------------------------------

    async def read_once_more(self, count_max: int) -> list[Entry] | None:
        """Go on with what is to be read again; returns what of it is neither held back nor out.

        []: that went on, and nothing of it may be sent. None: nothing was done.
        """
        delayed, reader = self._delayed, self._reader
        room = self._room(count_max)
        if room <= 0 or reader.is_backing_off or delayed.is_opening:
            return None
        window = delayed.next_again(self._cursor.read_position)
        if window is None:
            # The end of this list of ranges is not the end of reading: a backlog of mixed messages is read in
            # order, as new.
            delayed.reached_end()
            return None
        if not self._around.throttle.limits:
            # However few permits there are: nearly all of these will be held back.
            room = min(self._around.settings.read_entries_max, self._replay.look_ahead_left())
        entry_ids = self._nowhere(window, room)
        if not entry_ids:
            delayed.again_up_to(window.end)
            return []
        entries = await self._read_free(window.place.ledger_id, entry_ids)
        if reader.is_backing_off:
            return None
        if entries is None:
            return []
        delayed.again_up_to(entries[-1].position.next() if entries else window.end)
        # While the read waited, another subscription may have brought them to a shared index.
        return [entry for entry in entries if not delayed.holds(entry.position)]
