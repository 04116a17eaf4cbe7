"""What one subscription sees of an index of delayed positions: the tracker that its dispatcher holds.

The only view of an index forgets by taking positions out of it. Views that share one keep what they have
passed (acknowledged or cancelled before its time) in bitmaps, and walk along the due rows each at its own
pace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from pyroaring import BitMap

from geminga.position import EARLIEST, Position
from geminga.tracker.due_rows import DueBatch, members_of
from geminga.tracker.fixed_delay import FixedDelay
from geminga.tracker.membership import Membership
from geminga.tracker.rows import ENTRY_BITS, ENTRY_MASK, Integers, Rows, code_of, places_of

if TYPE_CHECKING:
    from geminga.tracker.index import DelayedIndex


class View:
    """Implements `DelayedDeliveryTracker`. Its count: what waits and is not passed, what is due and unread,
    and what fell behind.

    `is_plain` says that an add is nothing but an add to the index: no fixed delay is looked for, nothing is
    due and unread, no position has another time, nobody shares the index. Whatever ends that clears it.
    """

    __slots__ = (
        "_batch",
        "_behind",
        "_dropped",
        "_feed_add",
        "_fixed",
        "_is_acknowledged",
        "_is_shared",
        "_mark_delete",
        "_now_ms",
        "_reread",
        "_row",
        "_rules",
        "_unread",
        "_wake",
        "index",
        "is_plain",
        "passed",
    )

    def __init__(
        self,
        index: DelayedIndex,
        wake: Callable[[], None] | None,
        reread: Callable[[int, int], None] | None,
        is_acknowledged: Callable[[tuple[int, int]], bool] | None,
    ) -> None:
        self.index = index
        self._wake = wake
        self._reread = reread
        self._is_acknowledged = is_acknowledged
        self._is_shared = index.settings.is_shared
        self._now_ms = index.now_ms
        self._rules = index.rules
        self._feed_add = index.feed.add
        self._fixed = FixedDelay(index.settings.fixed_delay_lookahead, index.rules)
        self._mark_delete: tuple[int, int] = EARLIEST
        self.passed = Membership()
        """Of what waits in the index: what this view does not want any more. Only if it shares the index."""
        self._batch = index.last_batch
        self._row = 0
        self._unread = 0
        """Rows from there on, without those that were dropped."""
        self._dropped = Membership()
        """Of the unread rows: what this view does not want any more."""
        self._behind = Membership()
        """Due, but its batch is gone: all that is known of it is that it is due."""
        self.is_plain = False
        if is_acknowledged is not None and self._is_shared:
            self.recovered(index.members.bitmaps)

    # -- adding ----------------------------------------------------------------------------------------------

    def add(self, position: Position, deliver_at_ms: int) -> bool:
        if deliver_at_ms <= self._now_ms() + self._rules.slack_ms:
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
        if earliest_ms <= self._now_ms() + self._rules.slack_ms or not (
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

    def _is_simple(self, ledger_id: int, first_entry: int, last_entry: int) -> bool:
        """Whether new positions in this range can be added at once."""
        if self._is_shared or self.index.overrides or self._behind.count:
            return False
        return not (self._unread or self._dropped.count) or not self._unread_between(
            ledger_id, first_entry, last_entry
        )

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
        self.is_plain = self._may_be_plain() and not self._fixed.is_watched
        if self._behind.contains(ledger_id, entry_id):
            return True
        if self._find_unread(ledger_id, entry_id):
            if self._dropped.discard(ledger_id, entry_id):
                self._unread += 1
            return True
        if self.passed.discard(ledger_id, entry_id) or index.members.contains(ledger_id, entry_id):
            return True
        kept_ms = index.overrides.get(code_of(ledger_id, entry_id)) if index.overrides else None
        self._feed_add(ledger_id, entry_id, deliver_at_ms if kept_ms is None else kept_ms)
        for other in index.views:
            if other is not self and other.has_no_need_of(ledger_id, entry_id):
                other.passed.add(ledger_id, entry_id)
        return True

    def _may_be_plain(self) -> bool:
        tracked_apart = self._unread or self._dropped.count or self._behind.count
        return not (self._is_shared or tracked_apart or self.index.overrides)

    def has_no_need_of(self, ledger_id: int, entry_id: int) -> bool:
        """Whether a position that comes to a shared index by way of another view is acknowledged here, or
        due.
        """
        position = (ledger_id, entry_id)
        if self._behind.contains(*position) or self._find_unread(*position):
            return True
        return self._is_acknowledged is not None and self._is_acknowledged(position)

    # -- what is due -----------------------------------------------------------------------------------------

    def has_due(self) -> bool:
        return self._behind.count > 0 or self._has_row(self._now_ms() + self._rules.due_slack_ms)

    def _has_row(self, limit_ms: int) -> bool:
        """Whether the row that is read next is due; it is brought out of the index if need be."""
        index = self.index
        while True:
            batch = self._batch
            if batch is index.last_batch:
                if not index.bring(limit_ms):
                    return False
            elif self._unread == 0:
                self._next_batch()
            else:
                if self._dropped.count:
                    batch = self._skip_dropped()
                time_ms = batch.rows.times_ms.item(self._row)
                if time_ms <= limit_ms and index.feed.earliest_ms() > time_ms:
                    return True
                index.take_back()

    def _skip_dropped(self) -> DueBatch:
        """Go on to the next row that was not dropped, which there is."""
        while True:
            rows = self._batch.rows
            while self._row < rows.length:
                code = rows.codes.item(self._row)
                if not self._dropped.contains(code >> 32, code & 0xFFFFFFFF):
                    return self._batch
                self._row += 1
            self._next_batch()

    def take_due(self, count_max: int) -> Sequence[tuple[int, int]]:
        taken = self._take_behind(count_max) if self._behind.count else []
        limit_ms = self._now_ms() + self._rules.due_slack_ms
        while len(taken) < count_max and self._has_row(limit_ms):
            taken += self._read(count_max - len(taken), limit_ms)
        if taken and not self.index.members.count:
            self.index.settle()
            if not len(self):
                self._fixed.reset()
                self.is_plain = False
        return taken

    def _read(self, count_max: int, limit_ms: int) -> list[tuple[int, int]]:
        rows = self._batch.rows
        start, end = self._row, min(self._row + count_max, rows.length)
        if rows.times_ms.item(end - 1) > limit_ms:
            end = start + int(rows.times_ms[start:end].searchsorted(limit_ms, "right"))
        places = places_of(rows.codes[start:end])
        if self._dropped.count:
            places = [place for place in places if not self._dropped.contains(*place)]
        self._unread -= len(places)
        self._row = end
        if end == rows.length:
            self._next_batch()
        return places

    def _next_batch(self) -> None:
        batch = self._batch
        if self._dropped.count:
            self._forget_dropped(batch.members)
        batch.readers -= 1
        assert batch.next is not None
        self._batch, self._row = batch.next, 0

    def _forget_dropped(self, members: Mapping[int, BitMap]) -> int:
        count = self._dropped.count
        for ledger_id, entry_ids in members.items():
            dropped = self._dropped.bitmaps.get(ledger_id)
            if dropped is not None and (common := dropped & entry_ids):
                self._dropped.take(ledger_id, common)
        return count - self._dropped.count

    def _take_behind(self, count_max: int) -> list[tuple[int, int]]:
        taken = list(islice(self._behind.positions_from(0, 0), count_max))
        self._behind.discard_up_to(*taken[-1])
        return taken

    def next_due_ms(self) -> int | None:
        if not len(self):
            return None
        if self._behind.count:
            return self._now_ms()
        now_ms = self._now_ms()
        if self._has_row(now_ms + self._rules.due_slack_ms):
            return self._batch.rows.times_ms.item(self._row)
        earliest_ms = self.index.earliest_ms()
        return None if earliest_ms >= 1 << 63 else earliest_ms

    def should_pause(self) -> bool:
        return self._fixed.is_full(len(self)) and not self.has_due()

    def set_tick(self, tick_ms: int) -> None:
        self.index.set_tick(tick_ms)

    # -- the index's side ------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Something may be due earlier than was said."""
        if self._wake is not None:
            self._wake()

    def arrived(self, batch: DueBatch) -> None:
        """A batch has been filled: its rows do not wait any more, they are to be read."""
        self.is_plain = False
        self._unread += batch.rows.length
        if self.passed.count:
            for ledger_id, entry_ids in batch.members.items():
                passed = self.passed.bitmaps.get(ledger_id)
                if passed is not None and (common := passed & entry_ids):
                    self.passed.take(ledger_id, common)
                    self._unread -= self._dropped.add_all({ledger_id: common})

    def fall_behind(self, batch: DueBatch) -> None:
        """The index lets go of this batch, its oldest: keep only which positions are left of it."""
        if batch is not self._batch:
            return
        members = dict(batch.members)
        if self._row:
            unread = batch.rows.codes[self._row :]
            members = members_of(unread)
        for ledger_id in list(members):
            dropped = self._dropped.bitmaps.get(ledger_id)
            if dropped is not None:
                members[ledger_id] = members[ledger_id] - dropped
        self._unread -= self._behind.add_all(members)
        self._next_batch()

    def place_among(self, batches: Sequence[DueBatch]) -> tuple[int, int]:
        """Which of these is read next, and its row; one past the last if all have been read."""
        numbers = [number for number, batch in enumerate(batches) if batch is self._batch]
        return (numbers[0], self._row) if numbers else (len(batches), 0)

    def hand_back(self, read: Integers) -> None:
        """Unread rows wait again. `read`: codes that this view has taken, but others have not."""
        unwanted = members_of(read)
        for ledger_id, entry_ids in self._dropped.bitmaps.items():
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

    def recovered(self, members: Mapping[int, BitMap]) -> None:
        """The index has these now: pass those that are acknowledged here."""
        if self._is_shared and self._is_acknowledged is not None:
            for ledger_id, entry_ids in members.items():
                for entry_id in entry_ids:
                    if self._is_acknowledged((ledger_id, entry_id)):
                        self.pass_one(ledger_id, entry_id)
        self.wake()

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
        index = self.index
        if index.members.contains(ledger_id, entry_id):
            if not self._is_shared:
                return index.discard(ledger_id, entry_id)
            if not self.passed.contains(ledger_id, entry_id):
                self.passed.add(ledger_id, entry_id)
                return True
        if self._behind.count and self._behind.discard(ledger_id, entry_id):
            return True
        if (
            self._unread
            and self._find_unread(ledger_id, entry_id)
            and not self._dropped.contains(ledger_id, entry_id)
        ):
            self._dropped.add(ledger_id, entry_id)
            self._unread -= 1
            return True
        return False

    def mark_delete_moved(self, position: tuple[int, int]) -> None:
        before, self._mark_delete = self._mark_delete, position
        if self._is_shared:
            self._pass_between(before, position)
            index = self.index
            if len(index.views) == 1 or position[0] > before[0]:
                index.trim(min(view._mark_delete for view in index.views))
        else:
            self.index.discard_up_to(position)
        if self._behind.count:
            self._behind.discard_up_to(*position)
        if self._unread:
            self._drop_up_to(position)

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

    def _drop_up_to(self, position: tuple[int, int]) -> None:
        """Drop the unread rows up to there."""
        if position[1] < 0:
            position = (position[0] - 1, (1 << 32) - 1)
        if position[0] < 0:
            return
        code, batch, row = code_of(*position), self._batch, self._row
        while batch.next is not None:
            if batch.min_code <= code:
                codes = batch.rows.codes[row:]
                codes = codes[codes <= code]
                self._unread -= self._dropped.add_all(members_of(codes))
            batch, row = batch.next, 0

    # -- what is tracked -------------------------------------------------------------------------------------

    def contains(self, position: tuple[int, int]) -> bool:
        ledger_id, entry_id = position
        bitmap = self.index.members.bitmaps.get(ledger_id)
        if bitmap is not None and entry_id in bitmap and not self.passed.contains(ledger_id, entry_id):
            return True
        return (self._unread > 0 or self._behind.count > 0) and self.is_due(ledger_id, entry_id)

    def is_due(self, ledger_id: int, entry_id: int) -> bool:
        if self._behind.contains(ledger_id, entry_id):
            return True
        return self._find_unread(ledger_id, entry_id) and not self._dropped.contains(ledger_id, entry_id)

    def _find_unread(self, ledger_id: int, entry_id: int) -> bool:
        """Whether it is in a row that has not been read, dropped or not."""
        batch, row = self._batch, self._row
        while batch.next is not None:
            entry_ids = batch.members.get(ledger_id)
            found = entry_ids is not None and entry_id in entry_ids
            if found and (not row or batch.find(code_of(ledger_id, entry_id)) >= row):
                return True
            batch, row = batch.next, 0
        return False

    def contained(self, ledger_id: int, first_entry: int, last_entry: int) -> int:
        count = self.index.members.contained(ledger_id, first_entry, last_entry)
        if self.passed.count:
            count -= self.passed.contained(ledger_id, first_entry, last_entry)
        if self._behind.count:
            count += self._behind.contained(ledger_id, first_entry, last_entry)
        if self._unread:
            count += sum(
                self._find_unread(ledger_id, entry_id) and not self._dropped.contains(ledger_id, entry_id)
                for entry_id in self._unread_between(ledger_id, first_entry, last_entry)
            )
        return count

    def tracked(self, ledger_id: int, first_entry: int, last_entry: int) -> BitMap | None:
        found = BitMap()
        span = BitMap(range(first_entry, last_entry + 1))
        members = self.index.members.bitmaps.get(ledger_id)
        if members is not None and members.range_cardinality(first_entry, last_entry + 1):
            found = members & span
            if (passed := self.passed.bitmaps.get(ledger_id)) is not None:
                found -= passed
        if self._unread:
            unread = self._unread_of(ledger_id) & span
            if (dropped := self._dropped.bitmaps.get(ledger_id)) is not None:
                unread -= dropped
            found |= unread
        if (behind := self._behind.bitmaps.get(ledger_id)) is not None:
            found |= behind & span
        return found or None

    def unread_rows(self) -> list[Rows]:
        """What is due and has not been taken, but for what fell behind."""
        found = []
        batch, row = self._batch, self._row
        while batch.next is not None:
            rows = batch.rows.part(row, batch.rows.length)
            if self._dropped.count:
                dropped = self._dropped
                wanted = [not dropped.contains(*place) for place in places_of(rows.codes)]
                rows = rows.where(np.array(wanted, bool))
            if rows.length:
                found.append(rows)
            batch, row = batch.next, 0
        return found

    def ledgers(self) -> list[int]:
        """Those that have tracked positions, perhaps others too, ascending."""
        found = {*self.index.members.ledgers, *self._behind.ledgers}
        batch = self._batch
        while batch.next is not None:
            found.update(batch.members)
            batch = batch.next
        return sorted(found)

    def last_entry(self, ledger_id: int) -> int:
        """An entry id that no tracked one of this ledger exceeds."""
        bitmaps = [self.index.members.bitmaps.get(ledger_id), self._behind.bitmaps.get(ledger_id)]
        batch = self._batch
        while batch.next is not None:
            bitmaps.append(batch.members.get(ledger_id))
            batch = batch.next
        return max((int(bitmap.max()) for bitmap in bitmaps if bitmap), default=-1)

    def _unread_of(self, ledger_id: int) -> BitMap:
        """Entries in rows that have not been read, dropped or not."""
        found = BitMap()
        batch, row = self._batch, self._row
        while batch.next is not None:
            entry_ids = batch.members.get(ledger_id)
            if entry_ids is not None and row:
                codes = batch.rows.codes[row:]
                codes = codes[codes >> ENTRY_BITS == ledger_id]
                entry_ids = BitMap((codes & ENTRY_MASK).tolist())
            if entry_ids is not None:
                found |= entry_ids
            batch, row = batch.next, 0
        return found

    def _unread_between(self, ledger_id: int, first_entry: int, last_entry: int) -> BitMap:
        """Entries that the batches ahead have; some of them may have been read."""
        found = BitMap()
        batch = self._batch
        while batch.next is not None:
            entry_ids = batch.members.get(ledger_id)
            if entry_ids is not None and entry_ids.range_cardinality(first_entry, last_entry + 1):
                found |= entry_ids & BitMap(range(first_entry, last_entry + 1))
            batch = batch.next
        return found

    def __len__(self) -> int:
        return self.index.members.count - self.passed.count + self._unread + self._behind.count

    def memory_bytes(self) -> int:
        own = self.passed.memory_bytes() + self._dropped.memory_bytes() + self._behind.memory_bytes()
        return own + self.index.memory_bytes() // max(1, len(self.index.views))

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
        self.leave()
        self.passed.clear()
        self._behind.clear()
        self._fixed.reset()
        self.is_plain = False

    def leave(self) -> None:
        """Read no more of what is due now."""
        self._dropped.clear()
        self._unread = 0
        while self._batch.next is not None:
            self._batch.readers -= 1
            self._batch = self._batch.next
        self._row = 0
