"""How far one subscription has read of what is due.

It stands at a row of a batch, and what is unread are the rows from there on. Of these it may have dropped
some; and where batches are gone that it had not read, it knows of their positions only that they are due.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from geminga.tracker.format.rows import ENTRY_BITS, ENTRY_MASK, Integers, Rows, code_of
from geminga.tracker.index.due_rows import DueBatch, Lateness, are_among, codes_of, members_of
from geminga.tracker.index.membership import Membership
from geminga.tracker.index.open_column import NEVER_MS


class DueReader:
    """`unread` counts the rows from the present one on, without those that were `dropped`."""

    __slots__ = (
        "_behind_ms",
        "_given",
        "_wanted",
        "batch",
        "behind",
        "dropped",
        "given_ms",
        "lateness",
        "row",
        "unread",
    )

    def __init__(self, last_batch: DueBatch) -> None:
        self.batch = last_batch
        # A place and no list of its own: views that share an index read the same columns.
        self.row = 0
        self.unread = 0
        # By bitmap: what is due and acknowledged by another way stays in its column, and is left out when it
        # is read.
        self.dropped = Membership()
        """Of the unread rows: what is not wanted any more."""
        # Without times and order, which a view that takes nothing for so long has lost anyway: two bytes
        # instead of 16.
        self.behind = Membership()
        """Due, but its batch is gone, or it was due when it was read from the backlog."""
        self._behind_ms = 0
        """When the last of these was due, which is all that is known of their times."""
        # Computed once for a batch, as a batch is read in many small reads.
        self._wanted: NDArray[np.bool_] | None = None
        """Which rows of the present batch are not dropped; None: not known yet."""
        self.given_ms: list[Integers] = []
        """The times of what was read and is not counted in `lateness` yet, in columns."""
        self._given: tuple[Integers, NDArray[np.bool_] | None, int, int] | None = None
        """The same of the last reads, whose rows follow on each other: a column, which of its rows are wanted
        (None: all), first row, end. To count a column takes 10 us, as much as to read a few hundred rows.
        """
        self.lateness = Lateness()

    @property
    def count(self) -> int:
        return self.unread + self.behind.count

    def _ahead(self) -> Iterator[tuple[DueBatch, int]]:
        """Batches that are not read wholly, each with its first unread row."""
        batch, row = self.batch, self.row
        while batch.next is not None:
            yield batch, row
            batch, row = batch.next, 0

    def count_by(self, limit_ms: int) -> int:
        """How many of these are due by a time: another view may have been given some of them early.
        O(batches); of what was dropped, some may be taken for early.
        """
        early = 0
        for batch, row in self._ahead():
            times_ms = batch.rows.times_ms
            if times_ms.item(-1) > limit_ms:
                early += len(times_ms) - max(row, int(times_ms.searchsorted(limit_ms, "right")))
        return max(self.count - early, self.behind.count)

    # -- reading ---------------------------------------------------------------------------------------------

    def arrived(self, batch: DueBatch) -> None:
        """The last batch has been filled."""
        self.unread += batch.rows.length

    def next_ms(self) -> int:
        """The time of the row that is read next, of which there is one."""
        while True:
            times_ms, codes = self.batch.rows
            # Only then: nearly always nothing is dropped, and a row is wanted if it is there.
            if self.dropped.ledgers and self.row < len(codes):
                left = self._wanted_rows()[self.row :]
                first = int(left.argmax())
                self.row = self.row + first if left.item(first) else len(codes)
            if self.row < len(codes):
                return times_ms.item(self.row)
            self.next_batch()

    def later_ms(self) -> int:
        """The earliest time in the batches after the present one. They are in order only while all of them
        are due: what another view was given early may have come before them.
        """
        later = islice(self._ahead(), 1, None)
        return min((batch.rows.times_ms.item(0) for batch, _ in later), default=NEVER_MS)

    def _wanted_rows(self) -> NDArray[np.bool_]:
        if self._wanted is None:
            self._wanted = self._not_dropped(self.batch)
        return self._wanted

    def _not_dropped(self, batch: DueBatch) -> NDArray[np.bool_]:
        """Which rows of a batch are wanted."""
        bitmaps = self.dropped.bitmaps
        dropped = {
            ledger_id: common
            for ledger_id, entry_ids in batch.members.items()
            if ledger_id in bitmaps and (common := bitmaps[ledger_id] & entry_ids)
        }
        wanted: NDArray[np.bool_] = ~are_among(batch.rows.codes, codes_of(dropped))
        return wanted

    def read(self, count_max: int, limit_ms: int) -> Integers:
        """Take rows of the present batch, up to this time; their codes, in the order of the rows."""
        times_ms, codes = self.batch.rows
        start, end = self.row, min(self.row + count_max, len(codes))
        # The last row first: mostly all of them are due, and nothing has to be searched.
        if times_ms.item(end - 1) > limit_ms:
            end = start + int(times_ms[start:end].searchsorted(limit_ms, "right"))
        found, wanted = codes[start:end], None
        if self.dropped.ledgers:
            wanted = self._wanted_rows()
            found = found[wanted[start:end]]
        given = self._given
        # Reads that follow on each other are one column: to count each by itself took 10 us.
        if given is not None and given[0] is times_ms and given[1] is wanted and given[3] == start:
            self._given = times_ms, wanted, given[2], end
        else:
            self._keep_given()
            self._given = times_ms, wanted, start, end
        self.unread -= len(found)
        self.row = end
        if end == len(codes):
            self.next_batch()
        return found

    def next_batch(self) -> None:
        """Leave the present batch, of which nothing is wanted any more."""
        batch = self.batch
        if self.dropped.count:
            # What was dropped of it is forgotten with it, or `dropped` would grow for as long as the view
            # lives.
            for ledger_id, entry_ids in batch.members.items():
                dropped = self.dropped.bitmaps.get(ledger_id)
                if dropped is not None and (common := dropped & entry_ids):
                    self.dropped.take(ledger_id, common)
        batch.left()
        assert batch.next is not None
        self.batch, self.row, self._wanted = batch.next, 0, None

    def read_behind(self, count_max: int) -> Integers:
        taken = list(islice(self.behind.positions_from(0, 0), count_max))
        if taken:
            self.behind.discard_up_to(*taken[-1])
            # Counted as due when the last of them was: a little less late than they are, and never early.
            self.given_ms.append(np.full(len(taken), self._behind_ms, np.int64))
        return np.array([code_of(*place) for place in taken], np.int64)

    def add(self, ledger_id: int, entry_id: int, due_ms: int) -> None:
        """One that is due and in no batch."""
        self._behind_ms = max(self._behind_ms, due_ms) if self.behind.count else due_ms
        self.behind.add(ledger_id, entry_id)

    def fall_behind(self, batch: DueBatch) -> None:
        """The index lets go of this batch, its oldest: keep only which positions are left of it."""
        if batch is not self.batch:
            return
        # A copy of the dictionary, as other views read the same batch; the bitmaps in it are replaced, not
        # changed.
        members = members_of(batch.rows.codes[self.row :]) if self.row else dict(batch.members)
        for ledger_id in members:
            dropped = self.dropped.bitmaps.get(ledger_id)
            if dropped is not None:
                members[ledger_id] = members[ledger_id] - dropped
        self.unread -= self.behind.add_all(members)
        self._behind_ms = batch.rows.times_ms.item(-1)
        self.next_batch()

    def _keep_given(self) -> None:
        if self._given is not None:
            times_ms, wanted, start, end = self._given
            given_ms = times_ms[start:end]
            self.given_ms.append(given_ms if wanted is None else given_ms[wanted[start:end]])
            self._given = None

    def count_lateness(self, now_ms: int) -> None:
        """What was read before is given out now."""
        self._keep_given()
        # Noted when the entries have gone out, not when they were taken: reading them from the disk is part
        # of being late.
        for due_ms in _joined(self.given_ms):
            self.lateness.note(due_ms, now_ms)
        self.given_ms.clear()

    def place_among(self, batches: Sequence[DueBatch]) -> tuple[int, int]:
        """Which of these is read next, and its row; one past the last if all have been read."""
        # By identity: two batches may have equal rows, after the clock was set back.
        numbers = [number for number, batch in enumerate(batches) if batch is self.batch]
        return (numbers[0], self.row) if numbers else (len(batches), 0)

    def cut_off(self, batches: Sequence[DueBatch]) -> None:
        """The last ones, which it has not come to: their rows wait again."""
        for batch in batches:
            batch.left()
            self.unread -= batch.rows.length
            for ledger_id, entry_ids in batch.members.items():
                dropped = self.dropped.bitmaps.get(ledger_id)
                if dropped is not None and (common := dropped & entry_ids):
                    self.dropped.take(ledger_id, common)
                    # They were left out of the count when they were dropped.
                    self.unread += len(common)

    def leave(self) -> None:
        """Read no more of what is due now."""
        self.dropped.clear()
        self._wanted = None
        self.unread = 0
        # Each batch counts its readers: those that this one skips must not wait for it.
        while self.batch.next is not None:
            self.batch.left()
            self.batch = self.batch.next
        self.row = 0

    # -- dropping --------------------------------------------------------------------------------------------

    def drop(self, ledger_id: int, entry_id: int) -> bool:
        """Whether it was wanted."""
        # First, as it costs nothing when it is empty, which is nearly always.
        if self.behind.count and self.behind.discard(ledger_id, entry_id):
            return True
        if not self.unread or not self.is_unread(ledger_id, entry_id):
            return False
        self.dropped.add(ledger_id, entry_id)
        self._wanted = None
        self.unread -= 1
        return True

    def want_again(self, ledger_id: int, entry_id: int) -> bool:
        """Whether it is due here; if it was dropped, it is wanted again."""
        if self.behind.contains(ledger_id, entry_id):
            return True
        if not self.has_row(ledger_id, entry_id):
            return False
        if self.dropped.discard(ledger_id, entry_id):
            self._wanted = None
            self.unread += 1
        return True

    def drop_arrived(self, members: Mapping[int, BitMap]) -> None:
        """Of rows that have been counted as unread just now."""
        self._wanted = None
        self.unread -= self.dropped.add_all(members)

    def drop_up_to(self, position: tuple[int, int]) -> None:
        if self.behind.count:
            self.behind.discard_up_to(*position)
        # Before the first entry of its ledger: codes have no such place, so it is the end of the ledger
        # before.
        if position[1] < 0:
            position = (position[0] - 1, ENTRY_MASK)
        if position[0] < 0 or not self.unread:
            return
        code = code_of(*position)
        for batch, row in self._ahead():
            # Rows are in the order of times, so each batch may have some. One number tells of most that they
            # have none.
            if batch.min_code <= code:
                self._wanted = None
                codes = batch.rows.codes[row:]
                self.unread -= self.dropped.add_all(members_of(codes[codes <= code]))

    # -- what is due -----------------------------------------------------------------------------------------

    def contains(self, ledger_id: int, entry_id: int) -> bool:
        return self.behind.contains(ledger_id, entry_id) or self.is_unread(ledger_id, entry_id)

    def is_unread(self, ledger_id: int, entry_id: int) -> bool:
        return self.has_row(ledger_id, entry_id) and not self.dropped.contains(ledger_id, entry_id)

    def has_row(self, ledger_id: int, entry_id: int) -> bool:
        """Whether it is in a row that has not been read, dropped or not."""
        for batch, row in self._ahead():
            entry_ids = batch.members.get(ledger_id)
            found = entry_ids is not None and entry_id in entry_ids
            # The bitmap has all of the batch; whether a row was read already only its place says.
            if found and (not row or batch.find(code_of(ledger_id, entry_id)) >= row):
                return True
        return False

    def may_have(self, ledger_id: int, first_entry: int, last_entry: int) -> bool:
        """Whether batches ahead have some of these, read or not. Cheap."""
        bitmaps = (batch.members.get(ledger_id) for batch, _ in self._ahead())
        return any(bitmap and bitmap.range_cardinality(first_entry, last_entry + 1) for bitmap in bitmaps)

    def of_ledger(self, ledger_id: int) -> BitMap:
        """The entries of a ledger that are due and wanted."""
        found = BitMap()
        for batch, row in self._ahead():
            entry_ids = batch.members.get(ledger_id)
            if entry_ids is not None and row:
                codes = batch.rows.codes[row:]
                # Only of the batch that is being read: for all others the bitmap is the answer.
                codes = codes[codes >> ENTRY_BITS == ledger_id]
                entry_ids = BitMap((codes & ENTRY_MASK).tolist())
            if entry_ids is not None:
                found |= entry_ids
        if (dropped := self.dropped.bitmaps.get(ledger_id)) is not None:
            found -= dropped
        if (behind := self.behind.bitmaps.get(ledger_id)) is not None:
            found |= behind
        return found

    def rows(self) -> list[Rows]:
        """What is unread and wanted."""
        found = []
        for batch, row in self._ahead():
            rows = batch.rows.part(row, batch.rows.length)
            if self.dropped.count:
                rows = rows.where(self._not_dropped(batch)[row:])
            if rows.length:
                found.append(rows)
        return found

    def ledgers(self) -> set[int]:
        """Those that have entries in here, perhaps others too."""
        return {
            *self.behind.ledgers,
            *(ledger_id for batch, _ in self._ahead() for ledger_id in batch.members),
        }

    def memory_bytes(self) -> int:
        return self.dropped.memory_bytes() + self.behind.memory_bytes()


def _joined(columns: Sequence[Integers]) -> Iterator[Integers]:
    """The same numbers in fewer columns that ascend, each of which did."""
    joined: list[Integers] = []
    for column in columns:
        if not len(column):
            continue
        # `note` looks up bounds in ascending times, and each look costs the same for a column of any size.
        if joined and column.item(0) < joined[-1].item(-1):
            yield np.concatenate(joined)
            joined = []
        joined.append(column)
    if joined:
        yield joined[0] if len(joined) == 1 else np.concatenate(joined)
