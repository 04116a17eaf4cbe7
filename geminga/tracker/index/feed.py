"""The end of the index that grows: open columns, runs that were cut off them, and when a bucket is cut off.

What is fed in the order of the topic goes to the mutable part, which covers a range of ledgers and becomes a
bucket. What comes out of order (a ledger before that range, or one that a bucket covers already) goes to the
shared part, which stays in memory. An index without buckets on disk has only the latter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from pyroaring import BitMap

from geminga.tracker.format.rows import ENTRY_BITS, LEDGER_ID_END, Rows, code_of, merge, split_repeated
from geminga.tracker.index.frozen import Frozen
from geminga.tracker.index.membership import Membership
from geminga.tracker.index.open_column import NEVER_MS, OpenColumn
from geminga.tracker.index.packing import pack
from geminga.tracker.index.sources import Bucket, Queue, Run
from geminga.tracker.index.time_rules import TimeRules

COLUMN_ROWS_MAX: Final = 50_000
"""A column of more rows is packed: 16 bytes a row become 3 or less."""


class Part:
    """An open column and the sources that were made of it."""

    __slots__ = ("_queue", "_rules", "column", "may_repeat", "packs", "runs")

    def __init__(self, queue: Queue, rules: TimeRules) -> None:
        self.may_repeat = False
        """Whether a position may have several rows: it was forgotten and has come again."""
        self._queue = queue
        self._rules = rules
        self.column = OpenColumn()
        self.runs: list[Run] = []
        self.packs: list[Bucket] = []

    def earliest_ms(self) -> int:
        """The kept time of the column's earliest row; later than all times if it has none."""
        earliest_ms = self.column.earliest_ms
        return earliest_ms if earliest_ms == NEVER_MS else self._rules.kept_ms(earliest_ms)

    def rows(self) -> int:
        """At most so many; some may be dead."""
        in_packs = sum(pack.rows_at_hand + sum(pack.counts[pack.next_segment :]) for pack in self.packs)
        return len(self.column) + sum(map(len, self.runs)) + in_packs

    def unsorted_rows(self) -> Rows:
        rows = self.column.rows()
        return Rows(self._rules.kept_column_ms(rows.times_ms), rows.codes)

    def flush(self) -> None:
        """Turn the column into a run. Runs are merged while the new one is not much smaller than the one
        before it, so that each row is moved a logarithmic number of times; what has become large is packed.
        """
        if not len(self.column):
            return
        rows = self.unsorted_rows().sorted()
        self.column.clear()
        self.runs = [run for run in self.runs if run.has_more()]
        while self.runs and len(self.runs[-1]) < 2 * rows.length and self.runs[-1].prepare():
            before = self.runs.pop()
            rows = merge([before.rest(), rows])
            self._queue.retire(before)
        if rows.length >= COLUMN_ROWS_MAX:
            self._pack(rows)
        else:
            self.add_run(rows)

    def add_run(self, rows: Rows) -> None:
        run = Run(rows)
        self.runs.append(run)
        self._queue.push(run)

    def _pack(self, rows: Rows) -> None:
        self.packs = [bucket for bucket in self.packs if bucket.has_more()]
        if self.may_repeat:
            rows, again = split_repeated(rows)
            if again.length:
                self.add_run(again)
        bucket = pack(rows)
        self.packs.append(bucket)
        self._queue.push(bucket)

    def forget(self) -> None:
        for run in self.runs:
            self._queue.retire(run)
        for bucket in self.packs:
            self._queue.retire(bucket)
        self.column.clear()
        self.runs, self.packs = [], []
        self.may_repeat = False

    def memory_bytes(self) -> int:
        sources = sum(run.memory_bytes() for run in self.runs) + sum(b.memory_bytes() for b in self.packs)
        return sources + self.column.memory_bytes()


class Feed:
    """Adds positions and knows to which part each belongs. `on_frozen` None: everything stays in memory."""

    __slots__ = (
        "_column",
        "_covers",
        "_first_code",
        "_indexes_min",
        "_ledger_id",
        "_members",
        "_on_frozen",
        "_queue",
        "_room",
        "_rules",
        "end_ledger",
        "mutable",
        "shared",
        "start_ledger",
    )

    def __init__(
        self,
        members: Membership,
        queue: Queue,
        rules: TimeRules,
        indexes_min: int,
        covers: Callable[[int, int], bool],
        on_frozen: Callable[[Frozen], None] | None,
    ) -> None:
        """`covers(first, last)`: whether a bucket's range has one of these ledgers."""
        self._members = members
        self._queue = queue
        self._rules = rules
        self._indexes_min = indexes_min
        self._covers = covers
        self._on_frozen = on_frozen
        self.shared = Part(queue, rules)
        self.mutable = Part(queue, rules)
        self.start_ledger = self.end_ledger = -1
        """The range of the mutable part; -1 while it has none."""
        self.turn_away()

    def turn_away(self) -> None:
        """No ledger is the present one: the next add looks up to which part it belongs."""
        self._members.stop_run()
        self._ledger_id = -1
        self._room = 0

    # -- adding ----------------------------------------------------------------------------------------------

    def add(self, ledger_id: int, entry_id: int, deliver_at_ms: int) -> None:
        """A position that is not due yet. One that is a member already stays as it is."""
        members = self._members
        if entry_id == members.run_end and ledger_id == self._ledger_id:
            members.run_end = entry_id + 1
        elif not self._begin_run(ledger_id, entry_id):
            return
        self._column.append_time(deliver_at_ms)
        if self._room > 1:
            self._room -= 1
        else:
            self._fill_up()

    def _begin_run(self, ledger_id: int, entry_id: int) -> bool:
        if ledger_id != self._ledger_id:
            self._turn_to(ledger_id)
        if not self._members.begin_run(entry_id):
            return False
        self._column.begin_span(self._first_code + entry_id)
        return True

    def add_many(
        self, ledger_id: int, entry_ids: Sequence[int], deliver_at_ms: list[int], earliest_ms: int
    ) -> None:
        """`add` for entries of one ledger, ids ascending; at least one. `earliest_ms`: their least time."""
        if ledger_id != self._ledger_id:
            self._turn_to(ledger_id)
        members = self._members
        continued = entry_ids[0] == members.run_end
        if not members.add_entries(entry_ids):
            for entry_id, at_ms in zip(entry_ids, deliver_at_ms, strict=True):
                self.add(ledger_id, entry_id, at_ms)
            return
        count = len(deliver_at_ms)
        self._column.add_many(self._first_code, entry_ids, deliver_at_ms, earliest_ms, continued)
        if self._room > count:
            self._room -= count
        else:
            self._fill_up()

    def expect_repeats(self) -> None:
        """Members were forgotten whose rows are still there."""
        self.shared.may_repeat = self.mutable.may_repeat = True

    def reschedule(self, ledger_id: int, entry_id: int, kept_ms: int) -> None:
        """Another row for a member. It stays in memory."""
        self._members.stop_run()
        self.expect_repeats()
        self.shared.column.add(code_of(ledger_id, entry_id), kept_ms)

    def put_back(self, rows: Rows) -> None:
        """Sorted rows of members, to stay in memory."""
        self.expect_repeats()
        self.shared.add_run(rows)

    def _turn_to(self, ledger_id: int) -> None:
        assert 0 <= ledger_id < LEDGER_ID_END
        part = self._part_for(ledger_id)
        self._members.keep_open(ledger_id)
        self._column = part.column
        self._first_code = ledger_id << ENTRY_BITS
        self._ledger_id = ledger_id
        self._room = self._rows_max(part) - len(part.column)

    def _rows_max(self, part: Part) -> int:
        # A mutable part is about to be cut off when it has enough; packing it shortly before is for nothing.
        return max(COLUMN_ROWS_MAX, 2 * self._indexes_min) if part is self.mutable else COLUMN_ROWS_MAX

    def _fill_up(self) -> None:
        part = self.mutable if self._column is self.mutable.column else self.shared
        self._members.stop_run()
        part.flush()
        self._room = self._rows_max(part)

    def _part_for(self, ledger_id: int) -> Part:
        if self._on_frozen is None or self._covers(ledger_id, ledger_id):
            return self.shared
        if self.start_ledger < 0:
            self.start_ledger = self.end_ledger = ledger_id
            return self.mutable
        if ledger_id < self.start_ledger:
            return self.shared
        if ledger_id > self.end_ledger:
            parted = self._covers(self.end_ledger + 1, ledger_id)
            if parted or self.mutable.rows() >= self._indexes_min:
                self.freeze()
                self.start_ledger = ledger_id
            self.end_ledger = ledger_id
        return self.mutable

    # -- cutting off -----------------------------------------------------------------------------------------

    def freeze(self) -> None:
        """Cut off the mutable part, whatever its size. Its rows are served from memory until they are
        sealed.
        """
        assert self._on_frozen is not None
        start, end, part = self.start_ledger, self.end_ledger, self.mutable
        self.mutable = Part(self._queue, self._rules)
        self.start_ledger = self.end_ledger = -1
        self.turn_away()
        bitmaps = self._members.bitmaps
        members = {n: BitMap(bitmaps[n]) for n in self._members.ledgers_between(start, end) if bitmaps[n]}
        if not members:
            part.forget()
            return
        sources: list[Run | Bucket] = [*part.runs, *part.packs]
        parts = [run.rest() for run in part.runs if run.has_more()]
        parts += [rows for bucket in part.packs for rows in bucket.rows_brought_out()]
        packed = [data for bucket in part.packs for data in bucket.loaded.values()]
        if len(part.column):
            rows = part.unsorted_rows()
            parts.append(rows)
            run = Run(rows, earliest_ms=part.earliest_ms())
            self._queue.push(run)
            sources.append(run)
        self._on_frozen(Frozen(start, end, parts, packed, members, sources))

    def flush_due(self, limit_ms: int) -> None:
        """Turn columns with rows that are due into runs."""
        for part in (self.shared, self.mutable):
            if part.earliest_ms() <= limit_ms:
                self._members.stop_run()
                part.flush()
                if part.column is self._column_now():
                    self._room = self._rows_max(part)

    def _column_now(self) -> OpenColumn | None:
        return self._column if self._ledger_id >= 0 else None

    def earliest_ms(self) -> int:
        """The kept time of the earliest row of both columns; later than all times if there is none."""
        earliest_ms = min(self.mutable.column.earliest_ms, self.shared.column.earliest_ms)
        return earliest_ms if earliest_ms == NEVER_MS else self._rules.kept_ms(earliest_ms)

    def forget(self) -> None:
        """All of it, as nothing is tracked any more."""
        self.shared.forget()
        self.mutable.forget()
        self.start_ledger = self.end_ledger = -1
        self.turn_away()
