"""What one subscription sees of an index of delayed positions: the tracker that its dispatcher holds.

The only view of an index forgets by taking positions out of it. Views that share one keep what they have
passed (acknowledged or cancelled before its time) in bitmaps, and walk along the due rows each at its own
pace.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from pyroaring import BitMap

from geminga.position import EARLIEST, Position
from geminga.tracker.format.rows import Integers, Rows, code_of
from geminga.tracker.index.due_reader import DueReader
from geminga.tracker.index.due_rows import DueBatch, members_of
from geminga.tracker.index.fixed_delay import FixedDelay
from geminga.tracker.index.interface import LatenessCounts
from geminga.tracker.index.lateness import LATENESS_BOUNDS_MS
from geminga.tracker.index.membership import Membership
from geminga.tracker.index.open_column import NEVER_MS
from geminga.tracker.index.time_rules import Earliness, OwnPrecision

if TYPE_CHECKING:
    from geminga.tracker.index.index import DelayedIndex

GIVEN_COLUMNS_MAX: Final = 64
"""Reads whose lateness is counted together at most: they keep what they were read from in memory."""


class View:
    """Implements `DelayedDeliveryTracker`. Its count: what waits and is not passed, what is due and unread,
    and what fell behind.

    `is_plain` says that an add is nothing but an add to the index: no fixed delay is looked for, nothing is
    due and unread, no position has another time, nobody shares the index. Whatever ends that clears it.
    """

    __slots__ = (
        "_acknowledged_in",
        "_earliness",
        "_feed_add",
        "_fixed",
        "_is_acknowledged",
        "_is_shared",
        "_now_ms",
        "_precision",
        "_reread",
        "_slack",
        "_wake",
        "due",
        "index",
        "is_plain",
        "mark_delete",
        "passed",
        "reads_behind",
    )

    def __init__(
        self,
        index: DelayedIndex,
        wake: Callable[[], None] | None,
        reread: Callable[[int, int], None] | None,
        is_acknowledged: Callable[[tuple[int, int]], bool] | None,
        acknowledged_in: Callable[[int, int, int], BitMap | None] | None,
    ) -> None:
        self.index = index
        self._wake = wake
        self._reread = reread
        self._is_acknowledged = is_acknowledged
        self._acknowledged_in = acknowledged_in
        self._is_shared = index.settings.is_shared
        self._now_ms = index.now_ms
        self._precision: OwnPrecision | None = None
        self._earliness = Earliness()
        self._slack = index.rules.by_tick
        self._feed_add = index.feed.add
        self._fixed = FixedDelay(index.settings.fixed_delay_lookahead, index.rules)
        self.mark_delete: tuple[int, int] = EARLIEST
        self.passed = Membership()
        """Of what waits in the index: what this view does not want any more. Only if it shares the index."""
        self.due = DueReader(index.last_batch)
        self.is_plain = False
        self.reads_behind = False
        """Whether it has added something to a shared index since it was last at the end of the topic."""
        if self._is_shared:
            self._pass_acknowledged(index.members.bitmaps)
            self.wake()

    # -- adding ----------------------------------------------------------------------------------------------

    def add(self, position: Position, deliver_at_ms: int) -> bool:
        if deliver_at_ms <= self._now_ms() + self._slack.refused_ms:
            self._refuse(position, deliver_at_ms)
            return False
        ledger_id, entry_id = position
        if not self.is_plain:
            return self._add_with_care(ledger_id, entry_id, deliver_at_ms)
        self._feed_add(ledger_id, entry_id, deliver_at_ms)
        return True

    def add_many(
        self, ledger_id: int, entry_ids: Sequence[int], deliver_at_ms: Sequence[int]
    ) -> Sequence[int]:
        if not deliver_at_ms:
            return ()
        earliest_ms = min(deliver_at_ms)
        if earliest_ms <= self._now_ms() + self._slack.refused_ms or not (
            self.is_plain or self._is_simple(ledger_id, entry_ids[0], entry_ids[-1])
        ):
            places = enumerate(zip(entry_ids, deliver_at_ms, strict=True))
            return [
                n for n, (entry_id, at_ms) in places if not self.add(Position(ledger_id, entry_id), at_ms)
            ]
        if self._fixed.is_watched:
            self._fixed.add_many(earliest_ms, deliver_at_ms)
        times_ms = deliver_at_ms if isinstance(deliver_at_ms, list) else list(deliver_at_ms)
        self.index.feed.add_many(ledger_id, entry_ids, times_ms, earliest_ms)
        return ()

    def is_full(self) -> bool:
        return self.index.is_full()

    def refused(self, deliver_at_ms: Sequence[int]) -> Sequence[int]:
        limit_ms = self._now_ms() + self._slack.refused_ms
        return [n for n, at_ms in enumerate(deliver_at_ms) if at_ms <= limit_ms]

    def _is_simple(self, ledger_id: int, first_entry: int, last_entry: int) -> bool:
        """Whether new positions in this range can be added at once."""
        if self._is_shared or self.index.overrides or self.due.behind.count:
            return False
        return not self.due.may_have(ledger_id, first_entry, last_entry)

    def _refuse(self, position: tuple[int, int], deliver_at_ms: int) -> None:
        """It is dispatched now, so `take_due` must not return it once more."""
        self._fixed.refuse()
        if deliver_at_ms >= 0 and len(self) and self.pass_one(*position):
            self.index.settle()

    def _add_with_care(self, ledger_id: int, entry_id: int, deliver_at_ms: int) -> bool:
        """Where a position may be tracked without being a member, have another time, or wait for others."""
        index = self.index
        if self._fixed.is_watched:
            self._fixed.add(deliver_at_ms)
        self.is_plain = self._may_be_plain()
        if self.due.want_again(ledger_id, entry_id):
            return True
        if self._is_shared and any(view.due.has_row(ledger_id, entry_id) for view in index.views):
            # Another view has yet to read it, and this one was given it early or before the clock stepped
            # back. A position has one row only, so that row waits again for both.
            index.take_back(0)
        if self.passed.discard(ledger_id, entry_id) or index.members.contains(ledger_id, entry_id):
            return True
        kept_ms = index.overrides.get(code_of(ledger_id, entry_id)) if index.overrides else None
        self._feed_add(ledger_id, entry_id, deliver_at_ms if kept_ms is None else kept_ms)
        self.reads_behind = self._is_shared
        for other in index.views:
            if other is not self and other.has_no_need_of(ledger_id, entry_id):
                other.passed.add(ledger_id, entry_id)
        return True

    def _may_be_plain(self) -> bool:
        apart = self.due.count or self.due.dropped.count
        return not (self._is_shared or apart or self.index.overrides or self._fixed.is_watched)

    def has_no_need_of(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a position that comes to a shared index by way of another view is due here already, or
        acknowledged.
        """
        if self.due.behind.contains(ledger_id, entry_id):
            return True
        return self._is_acknowledged is not None and self._is_acknowledged((ledger_id, entry_id))

    # -- what is due -----------------------------------------------------------------------------------------

    def has_due(self) -> bool:
        return self.due.behind.count > 0 or self._has_row(self.limit_ms())

    def limit_ms(self) -> int:
        """Kept times up to this are due here now."""
        if self._precision is not None:
            return self._precision.limit_ms(self._now_ms())
        return self._now_ms() + self._slack.due_ms

    def _has_row(self, limit_ms: int) -> bool:
        """Whether the row that is read next is due; it is brought out of the index if need be."""
        index, due = self.index, self.due
        while True:
            if due.batch is index.last_batch:
                if not index.bring(limit_ms):
                    break
            elif due.unread == 0:
                due.next_batch()
            else:
                time_ms = due.next_ms()
                if time_ms <= limit_ms:
                    if (earlier_ms := index.feed.earliest_ms()) > time_ms:
                        return True
                    index.take_back(earlier_ms)
                elif min(index.earliest_ms(), due.later_ms()) <= limit_ms:
                    index.take_back(limit_ms)
                else:
                    # Another view was given it early, or the clock has stepped back.
                    break
        if self._precision is not None:
            self._precision.drained(limit_ms)
        return False

    def take_due(self, count_max: int) -> array[int]:
        due = self.due
        if len(due.given_ms) > GIVEN_COLUMNS_MAX:
            self.given_out()
        limit_ms = self.limit_ms()
        if due.behind.ledgers:
            return self._take_on(due.read_behind(count_max), count_max, limit_ms)
        if not self._has_row(limit_ms):
            return array("Q")
        read = due.read(count_max, limit_ms)
        if len(read) < count_max or not due.unread:
            return self._take_on(read, count_max, limit_ms)
        return _column(read.copy())

    def _take_on(self, read: Integers, count_max: int, limit_ms: int) -> array[int]:
        """What was read, at least one row, and what more there is."""
        parts = [read]
        wanted = count_max - len(read)
        while wanted > 0 and self._has_row(limit_ms):
            parts.append(self.due.read(wanted, limit_ms))
            wanted -= len(parts[-1])
        if not self.index.members.count:
            self.index.settle()
            if not len(self):
                self._fixed.reset()
                self.is_plain = False
        return _column(np.concatenate(parts))

    def given_out(self) -> None:
        self.due.count_lateness(self._now_ms() - self.index.rules.middle_ms)

    def lateness(self) -> LatenessCounts:
        lateness = self.due.lateness
        return LatenessCounts(LATENESS_BOUNDS_MS, tuple(lateness.counts), lateness.early, lateness.total_ms)

    def next_due_ms(self, not_before_ms: int = 0) -> int | None:
        if not len(self):
            return None
        now_ms = self._now_ms()
        if self.due.behind.count:
            return now_ms
        if now_ms < not_before_ms and self._precision is None and self._earliest_ms() <= not_before_ms:
            return not_before_ms
        if self._has_row(self.limit_ms()):
            return now_ms if self._precision is not None else self.due.next_ms()
        earliest_ms = self._earliest_ms()
        if earliest_ms >= NEVER_MS:
            return None
        return earliest_ms if self._precision is None else self._precision.wake_ms(earliest_ms)

    def _earliest_ms(self) -> int:
        """The earliest kept time of what is at hand, dead or alive; later than all times if there is none."""
        earliest_ms = self.index.earliest_ms()
        if self.due.unread:
            earliest_ms = min(earliest_ms, self.due.next_ms(), self.due.later_ms())
        return earliest_ms

    def should_pause(self) -> bool:
        return self._fixed.is_full(len(self)) and not self.has_due()

    def set_tick(self, tick_ms: int) -> None:
        self.early_max_ms()
        self.index.set_tick(tick_ms)

    def leap(self, position: tuple[int, int]) -> None:
        self.index.leap(position)

    @property
    def is_behind(self) -> bool:
        return self.reads_behind or self.index.is_behind

    def caught_up(self) -> None:
        self.reads_behind = False
        self.index.view_caught_up()

    def stopped_reading(self) -> None:
        self.reads_behind = False

    def set_precision(self, precision_ms: int | None) -> None:
        self.early_max_ms()
        rules = self.index.rules
        self._slack = rules.by_tick if precision_ms is None else rules.by_width
        self._precision = OwnPrecision(precision_ms, self._slack) if precision_ms else None
        self.wake()

    def early_max_ms(self) -> int:
        width_ms = self._precision.width_ms if self._precision is not None else 1
        return self._earliness.seen(max(self._slack.refused_ms, width_ms - 1), self._now_ms())

    @property
    def early_ms(self) -> int:
        """How early it may be given messages for its own precision's sake."""
        return self._precision.width_ms if self._precision is not None else 0

    # -- the index's side ------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something may be due earlier than was said."""
        if self._wake is not None:
            self._wake()

    def arrived(self, batch: DueBatch) -> None:
        """A batch has been filled: its rows do not wait any more, they are to be read."""
        self.is_plain = False
        self.due.unread += batch.rows.length
        if self.passed.count:
            for ledger_id, entry_ids in batch.members.items():
                passed = self.passed.bitmaps.get(ledger_id)
                if passed is not None and (common := passed & entry_ids):
                    self.passed.take(ledger_id, common)
                    self.due.drop_arrived({ledger_id: common})

    def hand_back(self, codes: Integers, read: int) -> None:
        """Rows that some view has not read wait again. `read`: so many of them this view has taken."""
        unwanted = members_of(codes[:read])
        for ledger_id, entry_ids in self.due.dropped.bitmaps.items():
            before = unwanted.get(ledger_id)
            unwanted[ledger_id] = BitMap(entry_ids) if before is None else before | entry_ids
        for ledger_id, entry_ids in unwanted.items():
            waiting = self.index.members.bitmaps.get(ledger_id)
            if waiting is None or not (common := waiting & entry_ids):
                continue
            if self._is_shared:
                self.passed.add_all({ledger_id: common})
            else:
                self.index.members.take(ledger_id, common)
        if self.passed.count:
            self._want_unread(members_of(codes[read:]))

    def _want_unread(self, unread: Mapping[int, BitMap]) -> None:
        """These were due here, so a row that another view added meanwhile was passed: now it counts."""
        for ledger_id, entry_ids in unread.items():
            passed = self.passed.bitmaps.get(ledger_id)
            dropped = self.due.dropped.bitmaps.get(ledger_id, BitMap())
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
        if self._acknowledged_in is not None:
            md_ledger, md_entry = self.mark_delete
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

    def pass_positions(self, positions: Sequence[tuple[int, int]]) -> None:
        if len(self):
            for ledger_id, entry_id in positions:
                self.pass_one(ledger_id, entry_id)
            self.index.settle()

    def pass_one(self, ledger_id: int, entry_id: int) -> bool:
        """Whether it was tracked."""
        if self.index.members.contains(ledger_id, entry_id):
            if not self._is_shared:
                return self.index.discard(ledger_id, entry_id)
            if not self.passed.contains(ledger_id, entry_id):
                self.passed.add(ledger_id, entry_id)
                return True
        return self.due.drop(ledger_id, entry_id)

    def mark_delete_moved(self, position: tuple[int, int]) -> None:
        before, self.mark_delete = self.mark_delete, position
        if self._is_shared:
            self._pass_between(before, position)
            index = self.index
            if len(index.views) == 1 or position[0] > before[0]:
                index.trim_passed()
        else:
            self.index.discard_up_to(position)
        self.due.drop_up_to(position)

    def _pass_between(self, before: tuple[int, int], position: tuple[int, int]) -> None:
        members = self.index.members
        if members.is_empty_up_to(*position):
            return
        for ledger_id in members.ledgers_between(before[0], position[0]):
            entry_ids = BitMap(members.bitmaps[ledger_id])
            if ledger_id == before[0] and before[1] >= 0:
                entry_ids.remove_range(0, before[1] + 1)
            if ledger_id == position[0]:
                entry_ids.remove_range(position[1] + 1, 1 << 32)
            self.passed.add_all({ledger_id: entry_ids})

    # -- what is tracked -------------------------------------------------------------------------------------

    def contains(self, position: tuple[int, int]) -> bool:
        ledger_id, entry_id = position
        bitmap = self.index.members.bitmaps.get(ledger_id)
        if bitmap is not None and entry_id in bitmap and not self.passed.contains(ledger_id, entry_id):
            return True
        return self.due.count > 0 and self.due.contains(ledger_id, entry_id)

    def contained(self, ledger_id: int, first_entry: int, last_entry: int) -> int:
        count = self.index.members.contained(ledger_id, first_entry, last_entry)
        if self.passed.count:
            count -= self.passed.contained(ledger_id, first_entry, last_entry)
        if self.due.count:
            count += self.due.of_ledger(ledger_id).range_cardinality(first_entry, last_entry + 1)
        return count

    def tracked(self, ledger_id: int, first_entry: int, last_entry: int) -> BitMap | None:
        found = BitMap()
        span = BitMap(range(first_entry, last_entry + 1))
        members = self.index.members.bitmaps.get(ledger_id)
        if members is not None and members.range_cardinality(first_entry, last_entry + 1):
            found = members & span
            if (passed := self.passed.bitmaps.get(ledger_id)) is not None:
                found -= passed
        if self.due.count:
            found |= self.due.of_ledger(ledger_id) & span
        return found or None

    def unread_rows(self) -> list[Rows]:
        """What is due and has not been taken, but for what fell behind."""
        return self.due.rows()

    def ledgers(self) -> list[int]:
        """Those that have tracked positions, perhaps others too, ascending."""
        return sorted({*self.index.members.ledgers, *self.due.ledgers()})

    def last_entry(self, ledger_id: int) -> int:
        """An entry id that no tracked one of this ledger exceeds; -1 if none is tracked."""
        bitmaps = [self.index.members.bitmaps.get(ledger_id), self.due.of_ledger(ledger_id)]
        return max((int(bitmap.max()) for bitmap in bitmaps if bitmap), default=-1)

    def __len__(self) -> int:
        return self.index.members.count - self.passed.count + self.due.count

    def memory_bytes(self) -> int:
        return self.own_bytes() + self.index.memory_bytes() // max(1, len(self.index.views))

    def own_bytes(self) -> int:
        """Of this view, without the index."""
        return self.passed.memory_bytes() + self.due.memory_bytes()

    # -- the end ---------------------------------------------------------------------------------------------

    async def clear(self) -> None:
        if self._is_shared:
            self.forget_all()
            self.passed.add_all(self.index.members.bitmaps)
        else:
            self.index.clear()

    async def close(self) -> None:
        self.index.close_view(self)
        if not self._is_shared:
            self.index.clear()

    def forget_all(self) -> None:
        """Nothing is tracked here any more."""
        self.due.leave()
        self.due.behind.clear()
        self.passed.clear()
        self._fixed.reset()
        self.is_plain = False


def _column(codes: Integers) -> array[int]:
    codes.sort()
    return array("Q", codes.tobytes())
