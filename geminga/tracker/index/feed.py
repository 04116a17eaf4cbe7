"""The parts of the index that grow: open columns, runs that were cut off them, and when a bucket is cut off.

Positions come in streams that each ascend: what is published, and what is read again because a bucket was
lost, or a backlog is read while the topic goes on. Each stream fills a *tail*, the seed's LastMutableBucket,
which becomes a bucket as soon as it has enough rows. So a bucket that is built again is built as it was the
first time, and spans as few positions as that allows: few are read again should it be lost. Only what was
given another time, or waits again, stays in the shared part, in memory. An index without buckets on disk has
nothing but that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from geminga.tracker.format.rows import (
    ENTRY_BITS,
    LEDGER_ID_END,
    Rows,
    code_of,
)
from geminga.tracker.index.bucket_map import BucketMap
from geminga.tracker.index.membership import Membership
from geminga.tracker.index.open_column import NEVER_MS
from geminga.tracker.index.part import COLUMN_ROWS_MAX, NO_CODE, Frozen, Part
from geminga.tracker.index.sources import Bucket, Queue, Run
from geminga.tracker.index.time_rules import TimeRules

# Each is looked at for each change of stream, and holds rows in memory that are no bucket yet.
TAILS_MAX: Final = 6
"""More streams than these share the lowest tail, whose bucket then spans more."""
TAIL_RUN_ROWS_MAX: Final = 10_000
# Packed each time something falls due, a tail would be packed again and again; not at all, a row would take
# 16 bytes.
TAIL_RUNS: Final = 5
"""A tail's runs (16 bytes a row) are packed with so many rows, or with that part of a bucket's: then a tail
of 50,000 messages, of which some fall due, keeps within 4.5 bytes for each and 512 KiB.
"""
FAR_ENTRIES: Final = 1000
"""A step over so many entries may be one over a bucket, at which a tail ends."""
REREAD_MORE: Final = 10
"""What is read again is cut off with a tenth more rows, so that a bucket comes back as one."""
RUNT_PARTS: Final = 50
SMALL_PARTS: Final = 10
"""What was read again and has less than these parts of a bucket's rows is no bucket: it joins the end of the
topic. The second counts where no bucket lies between the two, so that the span of the next one grows little.
"""


class Feed:
    """Adds positions and knows to which part each belongs: most go to the last of the `tails`, Pulsar's
    LastMutableBucket.
    """

    __slots__ = (
        "_column",
        "_far_entries",
        "_first_code",
        "_indexes_min",
        "_is_shared",
        "_ledger_id",
        "_limit_code",
        "_limit_entry",
        "_members",
        "_part",
        "_queue",
        "_ranges",
        "_room",
        "_rules",
        "_seal",
        "shared",
        "tails",
    )

    def __init__(
        self,
        members: Membership,
        queue: Queue,
        rules: TimeRules,
        indexes_min: int,
        ranges: BucketMap,
        seal: Callable[[Frozen], None] | None,
    ) -> None:
        """`ranges`: of the buckets, and of what is being sealed. `seal` takes what is cut off; None:
        everything stays in memory.
        """
        self._members = members
        self._queue = queue
        self._rules = rules
        self._indexes_min = indexes_min
        # Smaller buckets lie closer together: a step over one of them must not pass for a gap of the stream.
        self._far_entries = min(FAR_ENTRIES, indexes_min)
        self._ranges = ranges
        self._seal = seal
        self.shared = Part(queue, rules)
        # Streams apart: what is published and a backlog that is read beside it once filled one bucket, whose
        # range spanned those of all that followed.
        self.tails = [self._tail()]
        """Ascending by their last positions; at least one, the last is the end of the topic."""
        self.turn_away()

    def _tail(self, floor_code: int = -1) -> Part:
        run_rows_max = max(TAIL_RUN_ROWS_MAX, self._indexes_min // TAIL_RUNS)
        return Part(self._queue, self._rules, run_rows_max, floor_code)

    def turn_away(self) -> None:
        """No ledger is the present one: the next add looks up to which part it belongs."""
        self._members.stop_run()
        self._part = self.shared
        self._is_shared = True
        self._ledger_id = -1
        # Of no ledger: the next position takes the way round by `_turn_to`, which knows all borders.
        self._limit_code = self._limit_entry = NO_CODE
        self._room = 0

    # -- adding ----------------------------------------------------------------------------------------------

    def add(self, ledger_id: int, entry_id: int, deliver_at_ms: int) -> None:
        """A position that is not due yet. One that is a member already stays as it is."""
        members = self._members
        # The usual add: two comparisons, an addition and an append. Everything that may change in between
        # clears the run.
        if entry_id == members.run_end and ledger_id == self._ledger_id:
            members.extend_run()
        elif not self._begin_run(ledger_id, entry_id):
            return
        self._column.append_time(deliver_at_ms)
        # One number instead of a look at lengths and bounds with each row.
        if self._room > 1:
            self._room -= 1
        else:
            self._fill_up()

    def _begin_run(self, ledger_id: int, entry_id: int) -> bool:
        code = ledger_id << ENTRY_BITS | entry_id
        # Asked before the membership: a position that goes elsewhere must not begin a run in the wrong
        # column.
        if ledger_id != self._ledger_id or not (self._is_shared or self._goes_on(code)):
            if self._members.contains(ledger_id, entry_id):
                return False
            self._turn_to(ledger_id, code)
        # A member already: in Pulsar a position that is added twice counts twice, and its tracker stands
        # still when the count does not go back to 0 (issue #25617).
        if not self._members.begin_run(entry_id):
            return False
        self._column.begin_span(code)
        return True

    def _goes_on(self, code: int) -> bool:
        """Whether a position of the present ledger belongs to the present part, for all that can be told
        quickly.
        """
        column = self._column
        spans = column.span_codes
        if not spans:
            return False
        ahead = code - spans[-1] - len(column.times_ms) + 1 + column.span_rows[-1]
        # Not backwards and not far ahead: either may be another stream, or the other side of a bucket.
        return 0 < ahead <= self._far_entries and code < self._limit_code

    def add_many(
        self, ledger_id: int, entry_ids: Sequence[int], deliver_at_ms: list[int], earliest_ms: int
    ) -> None:
        """`add` for entries of one ledger, ids ascending; at least one. `earliest_ms`: their least time."""
        members = self._members
        continued = entry_ids[0] == members.run_end and ledger_id == self._ledger_id
        if not continued:
            code = ledger_id << ENTRY_BITS | entry_ids[0]
            if ledger_id != self._ledger_id or not (self._is_shared or self._goes_on(code)):
                self._turn_to(ledger_id, code)
        count = len(deliver_at_ms)
        # One by one where something is not plain: a border within the batch, also that of a bucket, which
        # would be larger by most of a read; or members among them.
        if entry_ids[-1] >= self._limit_entry or count > self._room or not members.add_entries(entry_ids):
            members.stop_run()
            for entry_id, at_ms in zip(entry_ids, deliver_at_ms, strict=True):
                self.add(ledger_id, entry_id, at_ms)
            return
        self._column.add_many(self._first_code, entry_ids, deliver_at_ms, earliest_ms, continued)
        if self._room > count:
            self._room -= count
        else:
            self._fill_up()

    def expect_repeats(self) -> None:
        """Members were forgotten whose rows are still there."""
        for part in (self.shared, *self.tails):
            part.expect_repeats()

    def reschedule(self, ledger_id: int, entry_id: int, kept_ms: int) -> None:
        """Another row for a member. It stays in memory."""
        self._members.stop_run()
        # The other row stays where it is and dies by its time.
        self.expect_repeats()
        self.shared.column.add(code_of(ledger_id, entry_id), kept_ms)

    def put_back(self, rows: Rows) -> None:
        """Sorted rows of members, to stay in memory."""
        self.expect_repeats()
        self.shared.add_run(rows)

    def _turn_to(self, ledger_id: int, code: int) -> None:
        # A code is one signed number of 64 bits: a larger ledger id would sort before all others.
        assert 0 <= ledger_id < LEDGER_ID_END
        part = self._part_for(ledger_id, code)
        self._members.keep_open(ledger_id)
        part.begin(code)
        self._part = part
        self._column = part.column
        self._first_code = ledger_id << ENTRY_BITS
        self._ledger_id = ledger_id
        self._limit_code = self._end_of(part, code)
        self._limit_entry = self._limit_code - self._first_code
        # Then a change of position needs no look at all: an index without buckets has one part.
        self._is_shared = part is self.shared and self._limit_code == NO_CODE
        self._room = self._room_of(part)

    def _end_of(self, part: Part, code: int) -> int:
        """The position before which a tail's stream, now at `code`, runs into that of the next, or into what
        is reserved; of the shared part, before which what is reserved ends.
        """
        border = self._ranges.border_after(code)
        if part is self.shared:
            return border
        # A stream that goes on into the next one's positions would make a second bucket of the same range.
        others = [tail.first_code for tail in self.tails if tail is not part]
        return min(border, min((code for code in others if code > part.last_code), default=NO_CODE))

    def _room_of(self, part: Part) -> int:
        column_rows_max = COLUMN_ROWS_MAX
        if part is not self.shared:
            # It is about to be cut off when it has enough; packing it shortly before is for nothing.
            column_rows_max = max(COLUMN_ROWS_MAX, 2 * self._indexes_min)
            column_rows_max = min(column_rows_max, len(part.column) + self._rows_max(part) - part.rows())
        return max(min(column_rows_max - len(part.column), part.column.room), 1)

    def _rows_max(self, part: Part) -> int:
        """With so many rows a tail is cut off."""
        is_end = part is self.tails[-1]
        return self._indexes_min if is_end else self._indexes_min + self._indexes_min // REREAD_MORE

    def _fill_up(self) -> None:
        part = self._part
        self._members.stop_run()
        # In the middle of a ledger: cut only at its end, a topic with one large ledger had one bucket of two
        # million messages, and a silent topic kept all in memory.
        if part is not self.shared and part.rows() >= self._rows_max(part):
            self.freeze(part)
            return
        if len(part.column) >= COLUMN_ROWS_MAX:
            part.flush()
        part.column.settle()
        self._room = self._room_of(part)

    def _part_for(self, ledger_id: int, code: int) -> Part:
        # Reserved: buckets from elsewhere are about to come for these positions, and a bucket of ours would
        # double them.
        if self._seal is None or self._ranges.is_reserved(code):
            return self.shared
        self._join_neighbours()
        # From the end of the topic, where nearly all positions belong.
        for place in range(len(self.tails) - 1, -1, -1):
            tail = self.tails[place]
            if tail.last_code < code:
                return self._part_from(place, code)
        if len(self.tails) < TAILS_MAX:
            self.tails.insert(0, self._tail())
        else:
            self.tails[0].expect_repeats()
        return self.tails[0]

    def _join_neighbours(self) -> None:
        """A stream has come to where the next one began: they are one, and become one bucket."""
        for place in range(len(self.tails) - 2, -1, -1):
            lower, upper = self.tails[place : place + 2]
            # A backlog that is read from several places made a small bucket of each, whose range lay in
            # another's.
            touches = upper.first_code - lower.last_code == 1 and lower.first_code != NO_CODE
            if touches and lower.rows() + upper.rows() < self._rows_max(upper):
                upper.absorb(lower)
                del self.tails[place]

    def _part_from(self, place: int, code: int) -> Part:
        """The tail at this place, or where a bucket lies between what it has and the position, another."""
        tail = self.tails[place]
        if tail.first_code == NO_CODE or not self._ranges.covers(tail.last_code + 1, code):
            return tail
        # Its next position lies beyond a bucket: together they would be a bucket around that one.
        if not self._is_small(tail):
            self.freeze(tail)
        elif len(self.tails) < TAILS_MAX:
            # It may go on: perhaps this position is only read before those that follow it.
            self.tails.insert(place + 1, self._tail(tail.last_code))
            return self.tails[place + 1]
        return self.tails[place]

    def _is_runt(self, part: Part) -> bool:
        return part.rows() * RUNT_PARTS < self._indexes_min

    def _joins_end(self, tail: Part) -> bool:
        end = self.tails[-1]
        if end.first_code == NO_CODE:
            # With nothing behind it, it is the end of the topic.
            is_end = not self._ranges.covers(tail.last_code + 1, end.last_code)
            # A ledger, a record and a property for a few rows cost more than a wider range.
            return self._is_runt(tail) or (is_end and tail.rows() < self._rows_max(end))
        if self._ranges.covers(tail.last_code + 1, end.first_code):
            return self._is_runt(tail)
        return self._is_small(tail)

    def _is_small(self, part: Part) -> bool:
        return part.rows() * SMALL_PARTS < self._indexes_min

    # -- streams ---------------------------------------------------------------------------------------------

    def leap(self, code: int) -> None:
        """A stream goes on from this position; what lies before it comes beside that."""
        # One of those below may have come past an end that is empty yet.
        below = [place for place, tail in enumerate(self.tails) if tail.last_code < code]
        # By its codes and not by counting: a stream that had come past the empty end was taken for it and
        # replaced, with all its rows, which were not delivered before the next start.
        if below and self.tails[below[-1]].first_code == NO_CODE:
            self.tails[below[-1]] = self._tail(code - 1)
        elif len(self.tails) < TAILS_MAX:
            self.tails.insert(below[-1] + 1 if below else 0, self._tail(code - 1))
        self.turn_away()

    def caught_up(self) -> None:
        """Nothing is read but what is new: what the tails before the end have is sealed."""
        if len(self.tails) == 1:
            return
        self._join_neighbours()
        for tail in self.tails[:-1]:
            if tail.first_code != NO_CODE:
                # Small rests of three streams would be three buckets.
                if self._joins_end(tail):
                    self.tails[-1].absorb(tail)
                else:
                    self.freeze(tail)
            del self.tails[0]
        # The present part may be among those that are gone.
        self.turn_away()
        end = self.tails[-1]
        if end.rows() >= self._rows_max(end):
            self.freeze(end)

    # -- cutting off -----------------------------------------------------------------------------------------

    def freeze(self, part: Part) -> None:
        """Cut off a tail, whatever its size. Its rows are served from memory until they are sealed."""
        assert self._seal is not None
        self.turn_away()
        first, last = part.first_code, part.last_code
        # A new tail from here on, before anything else: what is added while this one is sealed must not
        # change it.
        self.tails[self.tails.index(part)] = self._tail(last)
        count = part.rows()
        # A copy: the thread that sorts leaves out what was dead when it was cut off, without looking at the
        # index.
        members = self._members.between(first, last) if count else {}
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
            # Unsorted: a column that is not due before it is sealed is sorted once, in the thread.
            run = Run(rows, earliest_ms=part.earliest_ms())
            self._queue.push(run)
            sources.append(run)
        frozen = Frozen(first, last, parts, packed, count, members, sources)
        self._ranges.froze(frozen)
        # Last: from here on another task may look at it.
        self._seal(frozen)

    def freeze_all(self) -> None:
        for tail in list(self.tails):
            if tail.first_code != NO_CODE:
                self.freeze(tail)
        del self.tails[:-1]
        self.turn_away()

    def flush_due(self, limit_ms: int) -> None:
        """Turn columns with rows that are due into runs."""
        for part in (self.shared, *self.tails):
            # Only parts with something due: a sort of the others would be done again when they are sealed.
            if part.earliest_ms() <= limit_ms:
                self._members.stop_run()
                part.flush()
                if part is self._part and self._ledger_id >= 0:
                    self._room = self._room_of(part)

    def earliest_ms(self) -> int:
        """The kept time of the earliest row of all columns; later than all times if there is none."""
        # Computed from the columns with each question: there is no remembered time that could go stale.
        earliest_ms = self.shared.column.earliest_ms
        for tail in self.tails:
            earliest_ms = min(earliest_ms, tail.column.earliest_ms)
        return earliest_ms if earliest_ms == NEVER_MS else self._rules.kept_ms(earliest_ms)

    def memory_bytes(self) -> int:
        return self.shared.memory_bytes() + sum(tail.memory_bytes() for tail in self.tails)

    def forget(self) -> None:
        """All of it, as nothing is tracked any more."""
        self.shared.forget()
        for tail in self.tails:
            tail.forget()
        del self.tails[:-1]
        self.turn_away()
