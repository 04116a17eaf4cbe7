"""One growing part of the index: an open column, and the runs and packed rows that were made of it; and what
is cut off a part to be written as a bucket (`Frozen`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final

from pyroaring import BitMap

from geminga.tracker.format.packed_rows import unpack_rows
from geminga.tracker.format.rows import Rows, merge, position_of, split_repeated
from geminga.tracker.index.due_rows import codes_of, keep_only, members_of
from geminga.tracker.index.open_column import NEVER_MS, OpenColumn
from geminga.tracker.index.packing import pack
from geminga.tracker.index.sources import Bucket, Queue, Run, Source
from geminga.tracker.index.time_rules import TimeRules

NO_CODE: Final = 1 << 63
"""Later than every position."""
# Packing takes a millisecond for so many: shorter columns would be packed badly, longer ones hold the loop.
COLUMN_ROWS_MAX: Final = 50_000
"""A column of more rows is packed: 16 bytes a row become 3 or less."""


class Part:
    """An open column and the sources that were made of it: one growing part of the index. Where it becomes a
    bucket when it is full, it is Pulsar's LastMutableBucket.
    """

    __slots__ = (
        "_first_code",
        "_floor_code",
        "_queue",
        "_rules",
        "_run_rows_max",
        "column",
        "may_repeat",
        "packs",
        "runs",
    )

    def __init__(
        self, queue: Queue, rules: TimeRules, run_rows_max: int = COLUMN_ROWS_MAX, floor_code: int = -1
    ) -> None:
        """`floor_code`: of a tail, after which position it begins. `run_rows_max`: a run of more rows is
        packed.
        """
        self._run_rows_max = run_rows_max
        # Looking for repeated rows costs a sort of the codes: only a part of which some were forgotten pays
        # for it.
        self.may_repeat = False
        """Whether a position may have several rows: it was forgotten and has come again."""
        self._queue = queue
        self._rules = rules
        self._first_code = NO_CODE
        self._floor_code = floor_code
        self.column = OpenColumn()
        self.runs: list[Run] = []
        self.packs: list[Bucket] = []

    @property
    def first_code(self) -> int:
        """Of the first position in the order of the topic; `NO_CODE` before there is one."""
        return self._first_code

    @property
    def last_code(self) -> int:
        """Of the last position in the order of the topic; before there is one, that after which it begins."""
        return max(self._floor_code, self.column.last_code())

    @property
    def ledgers(self) -> tuple[int, int]:
        """The first and the last one, of a part that has rows."""
        return position_of(self.first_code)[0], position_of(self.last_code)[0]

    def begin(self, code: int) -> None:
        """A position comes next that may lie before those that are there."""
        self._floor_code = self.last_code
        self._first_code = min(self._first_code, code)

    def absorb(self, other: Part) -> None:
        """Take over the rows of a part that is given up."""
        # Its last rows are a column in the order of arrival: two such columns cannot become one.
        other.flush()
        # Before its own: runs are merged from the end, where the smallest is.
        self.runs = [*other.runs, *self.runs]
        self.packs += other.packs
        self.may_repeat = self.may_repeat or other.may_repeat
        self._first_code = min(self._first_code, other.first_code)
        self._floor_code = max(self._floor_code, other.last_code)

    def earliest_ms(self) -> int:
        """The kept time of the column's earliest row; later than all times if it has none."""
        earliest_ms = self.column.earliest_ms
        return earliest_ms if earliest_ms == NEVER_MS else self._rules.kept_ms(earliest_ms)

    def rows(self) -> int:
        """At most so many; some may be dead."""
        # Without looking whether they are dead: a tail is cut off a little early then, and nothing is decoded
        # for it.
        in_packs = sum(pack.rows_at_hand + sum(pack.counts[pack.next_segment :]) for pack in self.packs)
        return len(self.column) + sum(map(len, self.runs)) + in_packs

    def unsorted_rows(self) -> Rows:
        rows = self.column.rows()
        # Rounded here, all at once, and not with each add.
        return Rows(self._rules.kept_column_ms(rows.times_ms), rows.codes)

    def expect_repeats(self) -> None:
        """Rows may come that are in here already."""
        self.may_repeat = True

    def flush(self) -> None:
        """Turn the column into a run. Runs are merged while the new one is not much smaller than the one
        before it, so that each row is moved a logarithmic number of times; what has become large is packed.
        """
        if not len(self.column):
            return
        # Sorted by time first and then by code, as Pulsar's queue: messages of one moment come in the order
        # of the topic.
        rows = self.unsorted_rows().sorted()
        # Kept apart from the column, which is cleared when it becomes a run: the stream goes on from here.
        self._floor_code = self.last_code
        self.column.clear()
        self.runs = [run for run in self.runs if run.has_more()]
        # With one run for each flush, a steady stream of due messages would have thousands to look at.
        while self.runs and len(self.runs[-1]) < 2 * rows.length and self.runs[-1].prepare():
            before = self.runs.pop()
            rows = merge([before.rest(), rows])
            self._queue.retire(before)
        if rows.length >= self._run_rows_max:
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
            # A bucket's codes are a set on disk: of two rows for one position only one can be packed.
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
        # The last code is kept, so that this tail takes only later positions; earlier ones, as after a seek
        # back, get a tail of their own.
        self._floor_code, self._first_code = self.last_code, NO_CODE
        self.column.clear()
        self.runs, self.packs = [], []
        self.may_repeat = False

    def memory_bytes(self) -> int:
        sources = sum(run.memory_bytes() for run in self.runs) + sum(b.memory_bytes() for b in self.packs)
        return sources + self.column.memory_bytes()


class Frozen:
    """Rows of positions from `first_code` to `last_code`, both included.

    Nothing in here changes any more, so another thread may sort them while the index still serves them.
    """

    def __init__(
        self,
        first_code: int,
        last_code: int,
        parts: Sequence[Rows],
        packed: Sequence[bytes],
        count: int,
        members: Mapping[int, BitMap],
        sources: Sequence[Source],
    ) -> None:
        """`packed`: more rows, as `pack_rows` makes them; `count`: how many all these are. `members`: copies
        of what the index has between the two codes as this was cut off, by ledger; at least one bit. Of these
        some may have their rows elsewhere, and some of the rows here may be of none. `sources` serve the
        rows meanwhile, and are the index's business.
        """
        # Its bucket is named after these, and the name is what a start goes by if the bucket is lost.
        assert 0 <= first_code <= last_code
        self.first_code = first_code
        self.last_code = last_code
        self.count = count
        """At most so many."""
        # They go on serving until the bucket does: a write that fails and is tried for hours delays no
        # message.
        self.sources = sources
        self._members = members
        self._parts = parts
        self._packed = packed

    @property
    def start_ledger(self) -> int:
        return position_of(self.first_code)[0]

    @property
    def end_ledger(self) -> int:
        return position_of(self.last_code)[0]

    def runs(self) -> list[Run]:
        return [source for source in self.sources if isinstance(source, Run)]

    def packs(self) -> list[Bucket]:
        return [source for source in self.sources if isinstance(source, Bucket)]

    @cached_property
    def rows(self) -> Rows:
        """The rows of members, sorted, each code once. A few milliseconds for 50,000 at the first look:
        take it in a thread.
        """
        # At the first look only, in the thread that encodes: 50,000 rows would hold the loop for
        # milliseconds.
        rows = merge([*self._parts, *map(unpack_rows, self._packed)])
        # As many as members: mostly all are live, and the three steps below are for nothing.
        if rows.length != sum(map(len, self._members.values())):
            found = members_of(rows.codes)
            wanted = {
                ledger_id: ids & self._members.get(ledger_id, BitMap()) for ledger_id, ids in found.items()
            }
            rows, _ = split_repeated(keep_only(rows, codes_of({n: ids for n, ids in wanted.items() if ids})))
        # Or the rows would be in memory twice while they are written.
        self._parts = self._packed = ()
        self._members = {}
        return rows
