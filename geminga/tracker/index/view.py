"""What one subscription sees of an index of delayed positions: the tracker that its dispatcher holds.

It adds to the index and takes what is due, and asks its `Reader` what of the index counts for it. A tracker
is an index from delivery time to positions, and nothing more: it neither holds message bodies nor
acknowledges, so losing one costs a re-read of the backlog, never a message. One tracker serves one
subscription of type Shared or Key_Shared, on one event loop.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from pyroaring import BitMap

from geminga.position import Position
from geminga.tracker.format.rows import ENTRY_BITS, ENTRY_MASK, Integers, code_of
from geminga.tracker.index.due_rows import LATENESS_BOUNDS_MS, LatenessCounts
from geminga.tracker.index.index import DelayedIndex
from geminga.tracker.index.open_column import NEVER_MS
from geminga.tracker.index.reader import Reader
from geminga.tracker.index.time_rules import Earliness, FixedDelay

NOT_DELAYED_MS: Final = -1
"""What to pass for an entry that carries no delivery time; `add` refuses it, and learns that not all are
delayed.
"""
GIVEN_COLUMNS_MAX: Final = 64
"""Reads whose lateness is counted together at most: they keep what they were read from in memory."""


class View:
    """Pulsar's DelayedDeliveryTracker (PIP-26, PIP-195): positions of a subscription that must wait, by the
    time for which they wait.
    """

    __slots__ = (
        "_earliness",
        "_feed_add",
        "_fixed",
        "_is_shared",
        "_now_ms",
        "_slack",
        "due",
        "index",
        "reader",
    )

    def __init__(
        self,
        index: DelayedIndex,
        *,
        wake: Callable[[], None] | None = None,
        reread: Callable[[int, int], None] | None = None,
        is_acknowledged: Callable[[tuple[int, int]], bool] | None = None,
        acknowledged_in: Callable[[int, int, int], BitMap | None] | None = None,
    ) -> None:
        """One that shares the index starts with all that is not acknowledged.

        `wake`: something may be due before the time that `next_due_ms` gave. `reread(first, last)`: what is
        neither acknowledged nor contained of these ledgers has to be read from the backlog again.
        `is_acknowledged`: whether the subscription has acknowledged a position, or delivered it; asked
        for what the index has as the view is opened, and for what another view adds. `acknowledged_in`
        (ledger, first entry, one past the last) is asked instead for what is there by the ledger: all such
        entries but those up to mark-delete, which `mark_delete_moved` tells; 10 million take milliseconds.
        """
        settings = index.settings
        self.index = index
        self._is_shared = settings.is_shared
        self._now_ms = index.now_ms
        self._earliness = Earliness()
        self._slack = index.rules.by_tick
        # Bound, past the index: an add is this one call for most messages.
        self._feed_add = index.feed.add
        self._fixed = FixedDelay(settings.fixed_delay_lookahead, index.rules)
        self.reader = Reader(
            index.members,
            index.last_batch,
            index.rules,
            index.clock,
            settings.is_shared,
            wake,
            reread,
            is_acknowledged,
            acknowledged_in,
        )
        self.due = self.reader.due
        index.add_reader(self.reader)

    # -- adding ----------------------------------------------------------------------------------------------

    def add(self, position: Position, deliver_at_ms: int) -> bool:
        """True: the tracker keeps the position, do not dispatch it. False: dispatch it now.

        Refused (False) are `NOT_DELAYED_MS` and any time up to now, or up to now + tick when not strict and
        without a precision of the subscription's own.
        Adding a position that is tracked already is harmless and counted once; refusing one that is
        tracked forgets it, as it is dispatched now. A position comes with the same time each time, as its
        entry does not change.
        """
        # Due before tracked, unlike Pulsar 4.0, which keeps what it knows: a message that is due and offered
        # again would wait for the next look.
        if deliver_at_ms <= self._now_ms() + self._slack.refused_ms:
            self._refuse(position, deliver_at_ms)
            return False
        ledger_id, entry_id = position
        # One flag for all that may make an add more than an add.
        if not self.reader.is_plain:
            return self._add_with_care(ledger_id, entry_id, deliver_at_ms)
        self._feed_add(ledger_id, entry_id, deliver_at_ms)
        return True

    def add_many(
        self, ledger_id: int, entry_ids: Sequence[int], deliver_at_ms: Sequence[int]
    ) -> Sequence[int]:
        """`add` for entries of one ledger, ids ascending, as one read returns them (a list is fastest).

        Returns the places (0, 1, ...) of those that were refused, ascending: dispatch these now. Usually
        empty. Hot: called once for each batch that is read.
        """
        if not deliver_at_ms:
            return ()
        earliest_ms = min(deliver_at_ms)
        # One look at the earliest time for the whole batch: nearly always none of it is due.
        if earliest_ms <= self._now_ms() + self._slack.refused_ms or not (
            self.reader.is_plain or self._is_simple(ledger_id, entry_ids[0], entry_ids[-1])
        ):
            places = enumerate(zip(entry_ids, deliver_at_ms, strict=True))
            return [
                n for n, (entry_id, at_ms) in places if not self.add(Position(ledger_id, entry_id), at_ms)
            ]
        if self._fixed.is_watched:
            self._fixed.add_many(earliest_ms, deliver_at_ms)
        # `array.fromlist` takes nothing else.
        times_ms = deliver_at_ms if isinstance(deliver_at_ms, list) else list(deliver_at_ms)
        self.index.feed.add_many(ledger_id, entry_ids, times_ms, earliest_ms)
        self.reader.added()
        return ()

    def add_due(self, position: tuple[int, int], due_ms: int) -> None:
        """Keep one that `add` has refused while no consumer takes it: it is due, and counts as that."""
        self.reader.add_due(*position, due_ms)

    def saw_undelayed(self, position: Position) -> None:
        """An entry without a delivery time came by, so not all of them have the same delay."""
        # Pulsar offers its tracker -1 for such entries, for the same end.
        self.add(position, NOT_DELAYED_MS)

    def is_full(self) -> bool:
        """Whether to offer it no more for now: too much of it waits to be written. Its user is woken when
        that may have changed.
        """
        return self.index.buckets.is_full()

    def refused(self, deliver_at_ms: Sequence[int]) -> Sequence[int]:
        """The places of those times for which `add_many` would refuse an entry now, ascending."""
        limit_ms = self._now_ms() + self._slack.refused_ms
        return [n for n, at_ms in enumerate(deliver_at_ms) if at_ms <= limit_ms]

    def _is_simple(self, ledger_id: int, first_entry: int, last_entry: int) -> bool:
        """Whether new positions in this range can be added at once."""
        # Another view, a changed due time or the batches that have fallen behind may hold a position that is
        # no member. `add_entries` checks members only, and would add it a second time, or with the wrong
        # time.
        if self.index.overrides or self.due.behind.count:
            return False
        # With one subscription, which is the rule, a shared index is as free as one of its own. Its backlog
        # took a fifth longer to read when each entry was added by itself.
        if self._is_shared and (len(self.index.readers) > 1 or self.reader.passed.count):
            return False
        return not self.due.may_have(ledger_id, first_entry, last_entry)

    def _refuse(self, position: tuple[int, int], deliver_at_ms: int) -> None:
        """It is dispatched now, so `take_due` must not return it once more."""
        self._fixed.refuse()
        # A tracked one that is dispatched now must not come a second time; in Pulsar 4.2.4 it may, as it
        # stays in the tracker.
        if deliver_at_ms >= 0 and len(self) and self._pass_one(*position):
            self.index.settle()

    def _add_with_care(self, ledger_id: int, entry_id: int, deliver_at_ms: int) -> bool:
        """Where a position may be tracked without being a member, have another time, or wait for others."""
        index = self.index
        if self._fixed.is_watched:
            self._fixed.add(deliver_at_ms)
        # Asked here only, where it costs little: the flag is cleared by whatever changes, and set again by
        # the next add.
        self.reader.set_plain(self._may_be_plain())
        # Its row is still to be read: a second one would count it twice.
        if self.due.want_again(ledger_id, entry_id):
            return True
        if self._is_shared and any(reader.due.has_row(ledger_id, entry_id) for reader in index.readers):
            # Another view has yet to read it, and this one was given it early or before the clock stepped
            # back. A position has one row only, so that row waits again for both.
            index.take_back(0)
        if self.reader.passed.discard(ledger_id, entry_id) or index.members.contains(ledger_id, entry_id):
            return True
        # An entry says when it was sent to be due; an operator has said otherwise since.
        kept_ms = index.overrides.get(code_of(ledger_id, entry_id)) if index.overrides else None
        self._feed_add(ledger_id, entry_id, deliver_at_ms if kept_ms is None else kept_ms)
        self.reader.added()
        for other in index.readers:
            # Or it would be delivered again to a subscription that had it long ago.
            if other is not self.reader and other.has_no_need_of(ledger_id, entry_id):
                other.passed.add(ledger_id, entry_id)
        return True

    def _may_be_plain(self) -> bool:
        apart = self.due.count or self.due.dropped.count
        return not (self._is_shared or apart or self.index.overrides or self._fixed.is_watched)

    # -- what is due -----------------------------------------------------------------------------------------

    def has_due(self) -> bool:
        """Whether `take_due` would return anything now."""
        return self.due.behind.count > 0 or self._has_row(self.reader.limit_ms())

    def awaits_due(self) -> bool:
        """Whether a bucket has to load what is due, or may be: its rows may be dead."""
        limit_ms, buckets = self.reader.limit_ms(), self.index.buckets.items()
        return any(b.has_more() and not b.is_ready() and b.head_ms() <= limit_ms for _, b in buckets)

    def _has_row(self, limit_ms: int) -> bool:
        """Whether the row that is read next is due; it is brought out of the index if need be."""
        index, due = self.index, self.due
        while True:
            if due.batch is index.last_batch:
                # Only when nothing that was brought is left: rows that are brought out take 16 bytes each,
                # and are in no bucket.
                if not index.bring(limit_ms):
                    break
            elif due.unread == 0:
                due.next_batch()
            else:
                time_ms = due.next_ms()
                if time_ms <= limit_ms:
                    # Something was expedited or added with an earlier time while this row waited to be read.
                    if (earlier_ms := index.feed.earliest_ms()) > time_ms:
                        return True
                    index.take_back(earlier_ms)
                # What another view was given early stands in front. A strict view once waited for the first
                # of those rows, and was late by up to the other's precision.
                elif min(index.earliest_ms(), due.later_ms()) <= limit_ms:
                    index.take_back(limit_ms)
                else:
                    # Another view was given it early, or the clock has stepped back.
                    break
        if (precision := self.reader.precision) is not None:
            precision.drained(limit_ms)
        return False

    def take_due(self, count_max: int) -> array[int]:
        """Forget and return at most `count_max` positions that are due: those of the earliest times, and of
        times that the index does not tell apart the first ones of the topic.

        They are one column, of type "Q", of ledger id << 32 | entry id, and ascend: what is read together is
        read in the order of the topic (Pulsar returns a sorted set). Hot: called in every round of a
        dispatcher.
        """
        due = self.due
        # Reads that fail report nothing as given out, and each column keeps what it was cut from in memory.
        if len(due.given_ms) > GIVEN_COLUMNS_MAX:
            self.given_out()
        limit_ms = self.reader.limit_ms()
        if due.behind.ledgers:
            return self._take_on(due.read_behind(count_max), count_max, limit_ms)
        if not self._has_row(limit_ms):
            return array("Q")
        read = due.read(count_max, limit_ms)
        if len(read) < count_max or not due.unread:
            return self._take_on(read, count_max, limit_ms)
        # A copy: the column is sorted by position next, and other views read the original.
        return _column(read.copy())

    def _take_on(self, read: Integers, count_max: int, limit_ms: int) -> array[int]:
        """What was read, at least one row, and what more there is."""
        parts = [read]
        wanted = count_max - len(read)
        while wanted > 0 and self._has_row(limit_ms):
            parts.append(self.due.read(wanted, limit_ms))
            wanted -= len(parts[-1])
        # The moment to forget dead rows, and to follow a changed tick.
        if not self.index.members.count:
            self.index.settle()
            if not len(self):
                self._fixed.reset()
                self.reader.set_plain(False)
        return _column(np.concatenate(parts))

    def peek(self, count_max: int) -> list[Position]:
        """About the next positions that `take_due` will return, due or not; ascending. They are for reading
        ahead: some may be acknowledged already, and nothing is brought out for them.
        """
        due = self.due
        codes = due.batch.rows.codes[due.row : due.row + count_max]
        if len(codes) < count_max:
            codes = np.concatenate((codes, self.index.queue.peek(count_max - len(codes)).codes))
        return [Position(code >> ENTRY_BITS, code & ENTRY_MASK) for code in np.sort(codes).tolist()]

    def given_out(self) -> None:
        """What `take_due` has returned is with consumers now, or as good as: how late it was is counted. Hot
        too, and next to nothing for a batch of any size.
        """
        self.due.count_lateness(self._now_ms() - self.index.rules.middle_ms)

    def lateness(self) -> LatenessCounts:
        """How late what was given out was, since this tracker was opened."""
        lateness = self.due.lateness
        return LatenessCounts(LATENESS_BOUNDS_MS, tuple(lateness.counts), lateness.early, lateness.total_ms)

    def next_due_ms(self, not_before_ms: int = 0) -> int | None:
        """When to ask again, in message time; None if nothing is tracked that time alone makes due. It may be
        `not_before_ms` if a row seems to be due by then: it is not brought out to be looked at, alone.

        Computed from what is tracked at each call, so there is no armed timer to go stale. After now unless
        something is due: a dispatcher that cannot take that yet (no permits) must wait for permits, not for
        the time. It may be too early where something has been cancelled or acknowledged, never too late.
        """
        if not len(self):
            return None
        now_ms, precision = self._now_ms(), self.reader.precision
        if self.due.behind.count:
            return now_ms
        # Within the pause after a drain each look would take a few rows out of the index.
        if now_ms < not_before_ms and precision is None and self.earliest_ms() <= not_before_ms:
            return not_before_ms
        if self._has_row(self.reader.limit_ms()):
            return now_ms if precision is not None else self.due.next_ms()
        earliest_ms = self.earliest_ms()
        if earliest_ms >= NEVER_MS:
            return None
        return earliest_ms if precision is None else precision.wake_ms(earliest_ms)

    def earliest_ms(self) -> int:
        """The earliest kept time of what is at hand, dead or alive; later than all times if there is none."""
        earliest_ms = self.index.earliest_ms()
        if self.due.unread:
            earliest_ms = min(earliest_ms, self.due.next_ms(), self.due.later_ms())
        return earliest_ms

    def should_pause(self) -> bool:
        """Whether reading further ahead is useless: the backlog is one fixed delay and enough of it is
        tracked.
        """
        return self._fixed.is_full(len(self)) and not self.has_due()

    def set_tick(self, tick_ms: int) -> None:
        """Change the allowed earliness, as a policy does; none if delivery is strict. Cheap when nothing
        changes.
        """
        # Before the change: what was taken by the former rules is still on its way.
        self.early_max_ms()
        self.index.set_tick(tick_ms)

    def leap(self, position: tuple[int, int]) -> None:
        """What comes next is read from this position on, and what lies before it beside that."""
        self.index.leap(position)

    @property
    def is_behind(self) -> bool:
        """Whether `caught_up` has something to do. O(1)."""
        return self.reader.reads_behind or self.index.is_behind

    def caught_up(self) -> None:
        """All that lies before the end of the topic has been read: what was added of it is complete, unless
        another subscription that shares the index is still adding to it.
        """
        self.reader.caught_up()
        self.index.reader_caught_up()

    def stopped_reading(self) -> None:
        """Nothing is read for this subscription now: others that share the index need not wait for it to
        catch up.
        """
        self.reader.caught_up()

    def set_precision(self, precision_ms: int | None) -> None:
        """Give messages by less than this early from now on, those of a time bucket of this width together.
        0: at their times, as precisely as the index keeps them. None: as `set_tick` and the index say.
        """
        self.early_max_ms()
        self.reader.set_precision(precision_ms)
        self._slack = self.reader.slack

    def early_max_ms(self) -> int:
        """By so much what is given out now may be before its time; what was taken while more was allowed
        included.
        """
        precision = self.reader.precision
        width_ms = precision.width_ms if precision is not None else 1
        return self._earliness.seen(max(self._slack.refused_ms, width_ms - 1), self._now_ms())

    # -- passing ---------------------------------------------------------------------------------------------

    def pass_positions(self, positions: Sequence[tuple[int, int]]) -> None:
        """Forget these without delivering them: they have been acknowledged, or have expired. Any position
        may be named, tracked or not.
        """
        if len(self):
            for ledger_id, entry_id in positions:
                self._pass_one(ledger_id, entry_id)
            self.index.settle()

    def _pass_one(self, ledger_id: int, entry_id: int) -> bool:
        """Whether it was tracked."""
        if not self._is_shared and self.index.members.contains(ledger_id, entry_id):
            return self.index.discard(ledger_id, entry_id)
        return self.reader.drop(ledger_id, entry_id)

    def mark_delete_moved(self, position: tuple[int, int]) -> None:
        """Forget everything up to here (the cursor's markDelete), included. Cheap when that is nothing."""
        before = self.reader.mark_delete_moved(position)
        index = self.index
        if not self._is_shared:
            index.discard_up_to(position)
        # Ledger by ledger where several views share it: a trim asks all of them for the furthest back.
        elif len(index.readers) == 1 or position[0] > before[0]:
            index.trim_passed()
        self.due.drop_up_to(position)

    # -- what is tracked -------------------------------------------------------------------------------------

    def contains(self, position: tuple[int, int]) -> bool:
        """Exactly whether it is tracked: its entry need not be read. Under a microsecond."""
        return self.reader.contains(position)

    def contained(self, ledger_id: int, first_entry: int, last_entry: int) -> int:
        """How many of the entries first to last, both included, are tracked. About a microsecond."""
        return self.reader.contained(ledger_id, first_entry, last_entry)

    def tracked(self, ledger_id: int, first_entry: int, last_entry: int) -> BitMap | None:
        """Which of the entries first to last, both included, are tracked, None if none is; the set is the
        caller's. Some 10 microseconds for 65,536 entries.
        """
        return self.reader.tracked(ledger_id, first_entry, last_entry)

    def __len__(self) -> int:
        """How many positions are tracked, exactly; O(1)."""
        return len(self.reader)

    def memory_bytes(self) -> int:
        """How much memory the index takes, in bounded time. A shared index counts for one of its views."""
        return self.reader.memory_bytes() + self.index.memory_bytes() // max(1, len(self.index.readers))

    # -- the end ---------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Forget everything that is tracked now, as after a seek or a cleared backlog; the tracker stays
        usable. Its stored buckets are deleted later by `Buckets`.
        """
        if self._is_shared:
            self.reader.clear()
            # Passed and not deleted: other subscriptions wait for it.
            self.reader.passed.add_all(self.index.members.bitmaps)
        else:
            self.index.clear()
        self._fixed.reset()

    def close(self) -> None:
        """Release memory; nothing may be added afterwards. What a durable tracker has written stays."""
        self.index.remove_reader(self.reader)
        if not self._is_shared:
            self.index.clear()


def _column(codes: Integers) -> array[int]:
    codes.sort()
    return array("Q", codes.tobytes())
