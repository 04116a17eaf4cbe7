"""How one subscription reads an index of delayed positions: what it has passed, and how far it has come.

The index tells its readers what falls due (`arrived`), what waits again (`hand_back`) and what was found or
forgotten. The only reader of an index has nothing to pass: what it does not want is taken out of the index.
Readers that share one keep what they have passed (acknowledged or cancelled before its time) in bitmaps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyroaring import BitMap

from geminga.clock import Clock
from geminga.position import EARLIEST
from geminga.tracker.format.rows import Integers
from geminga.tracker.index.due_reader import DueReader
from geminga.tracker.index.due_rows import DueBatch, members_of
from geminga.tracker.index.membership import Membership
from geminga.tracker.index.time_rules import OwnPrecision, TimeRules


class Reader:
    """Its count: what waits and is not passed, what is due and unread, and what fell behind.

    `is_plain` says that an add is nothing but an add to the index: no fixed delay is looked for, nothing is
    due and unread, no position has another time, no other subscription shares the index. Any change of these
    clears it.
    """

    __slots__ = (
        "_acknowledged_in",
        "_is_acknowledged",
        "_is_shared",
        "_members",
        "_now_ms",
        "_reread",
        "_rules",
        "_wake",
        "due",
        "is_plain",
        "mark_delete",
        "passed",
        "precision",
        "reads_behind",
        "slack",
    )

    def __init__(
        self,
        members: Membership,
        last_batch: DueBatch,
        rules: TimeRules,
        clock: Clock,
        is_shared: bool,
        wake: Callable[[], None] | None,
        reread: Callable[[int, int], None] | None,
        is_acknowledged: Callable[[tuple[int, int]], bool] | None,
        acknowledged_in: Callable[[int, int, int], BitMap | None] | None,
    ) -> None:
        """`members`: what waits in the index; `last_batch`: where what falls due from now on will be. The
        call-backs are the view's.
        """
        self._members = members
        self._rules = rules
        self._now_ms = clock.now_ms
        self._is_shared = is_shared
        self._wake = wake
        self._reread = reread
        self._is_acknowledged = is_acknowledged
        self._acknowledged_in = acknowledged_in
        self.precision: OwnPrecision | None = None
        self.slack = rules.by_tick
        # Told from outside and kept: what a shared index may forget is up to the furthest back of all views.
        self.mark_delete: tuple[int, int] = EARLIEST
        # Instead of an index for each subscription: one of ten subscriptions adds a bitmap, not all times
        # once more (issue #24600).
        self.passed = Membership()
        """Of what waits in the index: what this one does not want any more. Only if it shares the index."""
        self.due = DueReader(last_batch)
        self.is_plain = False
        # Until this is over for all views the index keeps what is growing: cut off with each of their looks,
        # buckets were as small as a read.
        self.reads_behind = False
        """Whether it has added something to a shared index since it was last at the end of the topic."""
        if is_shared:
            # A subscription that comes late to a shared index has perhaps acknowledged half of what is in it.
            self._pass_acknowledged(members.bitmaps)
            self.wake()

    # -- adding ----------------------------------------------------------------------------------------------

    def set_plain(self, is_plain: bool) -> None:
        self.is_plain = is_plain

    def add_due(self, ledger_id: int, entry_id: int, due_ms: int) -> None:
        """A position that is not tracked here, and due."""
        self.due.add(ledger_id, entry_id, due_ms)
        # An add may meet it now.
        self.is_plain = False

    def added(self) -> None:
        """Its subscription has added a position, perhaps behind the end of the topic."""
        self.reads_behind = self._is_shared

    def caught_up(self) -> None:
        """Its subscription is at the end of the topic, or reads no more."""
        self.reads_behind = False

    def has_no_need_of(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a position that comes to a shared index by way of another view is due here already, or
        acknowledged.
        """
        if self.due.behind.contains(ledger_id, entry_id):
            return True
        # Also what is pending at a consumer: counted as waiting, it would be given out again when its time
        # comes.
        return self._is_acknowledged is not None and self._is_acknowledged((ledger_id, entry_id))

    # -- when ------------------------------------------------------------------------------------------------

    def limit_ms(self) -> int:
        """Kept times up to this are due here now."""
        if self.precision is not None:
            return self.precision.limit_ms(self._now_ms())
        # Asked with each look and not kept: the clock goes on, and may be set back.
        return self._now_ms() + self.slack.due_ms

    @property
    def early_ms(self) -> int:
        """How early it may be given messages for its own precision's sake."""
        return self.precision.width_ms if self.precision is not None else 0

    def set_precision(self, precision_ms: int | None) -> None:
        self.slack = self._rules.by_tick if precision_ms is None else self._rules.by_width
        self.precision = OwnPrecision(precision_ms, self.slack) if precision_ms else None
        self.wake()

    def wake(self) -> None:
        """Something may be due earlier than was said."""
        if self._wake is not None:
            self._wake()

    def times_changed(self, *, is_earlier: bool = True) -> None:
        """Rows have come to the index that were not added here, or have other times; `is_earlier` than all
        that were there.
        """
        # Rows came from elsewhere: an add may meet one of them now.
        self.is_plain = False
        if is_earlier:
            self.wake()

    # -- the index's side ------------------------------------------------------------------------------------

    def arrived(self, batch: DueBatch) -> None:
        """A batch has been filled: its rows do not wait any more, they are to be read."""
        self.is_plain = False
        self.due.arrived(batch)
        if self.passed.count:
            for ledger_id, entry_ids in batch.members.items():
                passed = self.passed.bitmaps.get(ledger_id)
                if passed is not None and (common := passed & entry_ids):
                    # Passed before its time: it is dropped from the due rows now, and no longer part of what
                    # waits.
                    self.passed.take(ledger_id, common)
                    self.due.drop_arrived({ledger_id: common})

    def hand_back(self, codes: Integers, read: int) -> None:
        """Rows that some view has not read wait again. `read`: so many of them this view has taken."""
        # What this view has delivered waits again only for the others.
        unwanted = members_of(codes[:read])
        for ledger_id, entry_ids in self.due.dropped.bitmaps.items():
            before = unwanted.get(ledger_id)
            unwanted[ledger_id] = BitMap(entry_ids) if before is None else before | entry_ids
        for ledger_id, entry_ids in unwanted.items():
            waiting = self._members.bitmaps.get(ledger_id)
            if waiting is None or not (common := waiting & entry_ids):
                continue
            if self._is_shared:
                self.passed.add_all({ledger_id: common})
            else:
                self._members.take(ledger_id, common)
        if self.passed.count:
            self._want_unread(members_of(codes[read:]))

    def _want_unread(self, unread: Mapping[int, BitMap]) -> None:
        """These were due here, so a row that another view added meanwhile was passed: now it counts."""
        for ledger_id, entry_ids in unread.items():
            passed = self.passed.bitmaps.get(ledger_id)
            dropped = self.due.dropped.bitmaps.get(ledger_id, BitMap())
            # Else the position had two rows and both were passed: the message was lost to this view until its
            # consumers left.
            if passed is not None and (common := passed & entry_ids - dropped):
                self.passed.take(ledger_id, common)

    def recovered(self, members: Mapping[int, BitMap]) -> None:
        """The index has these now: pass those that are acknowledged here."""
        if self._is_shared:
            self._pass_acknowledged(members)
        self.wake()

    def _pass_acknowledged(self, members: Mapping[int, BitMap]) -> None:
        """Of positions that wait in the index."""
        for ledger_id, entry_ids in members.items():
            if entry_ids and (acknowledged := self.acknowledged_of(ledger_id, entry_ids)):
                self.passed.add_all({ledger_id: acknowledged})

    def acknowledged_of(self, ledger_id: int, entry_ids: BitMap) -> BitMap:
        """Those of the entries that are acknowledged here."""
        found = BitMap()
        # By ledger: ten million positions take milliseconds, one question for each would take seconds.
        if self._acknowledged_in is not None:
            md_ledger, md_entry = self.mark_delete
            # A cursor keeps nothing of what lies behind its mark-delete position.
            if ledger_id < md_ledger:
                return BitMap(entry_ids)
            if ledger_id == md_ledger and md_entry >= 0:
                found.add_range(0, md_entry + 1)
            apart = self._acknowledged_in(ledger_id, entry_ids.min(), entry_ids.max() + 1)
            if apart is not None:
                found |= apart
            found &= entry_ids
        elif self._is_acknowledged is not None:
            found.update(e for e in entry_ids if self._is_acknowledged((ledger_id, e)))
        return found

    def read_again(self, first_ledger: int, last_ledger: int) -> None:
        if self._reread is not None:
            self._reread(first_ledger, last_ledger)

    # -- passing ---------------------------------------------------------------------------------------------

    def drop(self, ledger_id: int, entry_id: int) -> bool:
        """Pass a position of a shared index, or what is due of any; whether it was tracked."""
        waits = self._is_shared and self._members.contains(ledger_id, entry_id)
        # Once only, or the length of the view would go down twice.
        if waits and not self.passed.contains(ledger_id, entry_id):
            self.passed.add(ledger_id, entry_id)
            return True
        return self.due.drop(ledger_id, entry_id)

    def mark_delete_moved(self, position: tuple[int, int]) -> tuple[int, int]:
        """Pass everything up to here; returns where mark-delete was before."""
        before, self.mark_delete = self.mark_delete, position
        # The only view of an index takes it out of the membership itself.
        if self._is_shared:
            self._pass_between(before, position)
        return before

    def _pass_between(self, before: tuple[int, int], position: tuple[int, int]) -> None:
        members = self._members
        if members.is_empty_up_to(*position):
            return
        # From the former position on: what lies behind it is passed already.
        for ledger_id in members.ledgers_between(before[0], position[0]):
            entry_ids = BitMap(members.bitmaps[ledger_id])
            if ledger_id == before[0] and before[1] >= 0:
                entry_ids.remove_range(0, before[1] + 1)
            if ledger_id == position[0]:
                entry_ids.remove_range(position[1] + 1, 1 << 32)
            self.passed.add_all({ledger_id: entry_ids})

    def clear(self) -> None:
        """Nothing is tracked here any more."""
        self.due.leave()
        # `leave` goes along the batches, which these are not in any more.
        self.due.behind.clear()
        self.passed.clear()
        self.is_plain = False

    # -- what is tracked -------------------------------------------------------------------------------------

    def contains(self, position: tuple[int, int]) -> bool:
        ledger_id, entry_id = position
        bitmap = self._members.bitmaps.get(ledger_id)
        if bitmap is not None and entry_id in bitmap and not self.passed.contains(ledger_id, entry_id):
            return True
        return self.due.count > 0 and self.due.contains(ledger_id, entry_id)

    def contained(self, ledger_id: int, first_entry: int, last_entry: int) -> int:
        count = self._members.contained(ledger_id, first_entry, last_entry)
        if self.passed.count:
            count -= self.passed.contained(ledger_id, first_entry, last_entry)
        if self.due.count:
            count += self.due.of_ledger(ledger_id).range_cardinality(first_entry, last_entry + 1)
        return count

    def tracked(self, ledger_id: int, first_entry: int, last_entry: int) -> BitMap | None:
        found = BitMap()
        span = BitMap(range(first_entry, last_entry + 1))
        members = self._members.bitmaps.get(ledger_id)
        if members is not None and members.range_cardinality(first_entry, last_entry + 1):
            found = members & span
            if (passed := self.passed.bitmaps.get(ledger_id)) is not None:
                # Cut from a copy of the span, never from the bitmap itself, which belongs to all views.
                found -= passed
        if self.due.count:
            found |= self.due.of_ledger(ledger_id) & span
        return found or None

    def ledgers(self) -> list[int]:
        """Those that have tracked positions, perhaps others too, ascending."""
        return sorted({*self._members.ledgers, *self.due.ledgers()})

    def last_entry(self, ledger_id: int) -> int:
        """An entry id that no tracked one of this ledger exceeds; -1 if none is tracked."""
        bitmaps = [self._members.bitmaps.get(ledger_id), self.due.of_ledger(ledger_id)]
        return max((int(bitmap.max()) for bitmap in bitmaps if bitmap), default=-1)

    def __len__(self) -> int:
        return self._members.count - self.passed.count + self.due.count

    def memory_bytes(self) -> int:
        """Without the index."""
        return self.passed.memory_bytes() + self.due.memory_bytes()
