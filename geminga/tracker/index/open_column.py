"""The end of the index that messages are added to: plain columns in the order of arrival.

Delivery times one after the other; positions as spans of consecutive entries, so that a topic on which every
message is delayed pays for its times only. The last rows are as they came, 8 bytes for a time; the others are
in blocks, narrowed to what their times and positions differ by: 4 bytes for times within 49 days, 2 within a
minute. A column is never searched: when its earliest time is due, or it is full, it is sorted into a run.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from geminga.limits import KIB
from geminga.tracker.format.rows import Integers, Rows

NEVER_MS = 1 << 63
"""Later than every time."""
HOT_BYTES_MAX: Final = 400 * KIB
"""With so many bytes of rows as they came, a column is narrowed: that takes 10 ns a row, a seventh of adding
it. Up to 50,000 consecutive rows, as many as a bucket has by default, do without. Spans count more than they
take: rows that are one each are narrowed when they are 8,000.
"""
_TIME_BYTES: Final = 8
# Weighed heavier than its two numbers of 8 bytes: where each row is a span of its own, narrowing saves the
# most.
_SPAN_BYTES: Final = 42
# Near its bound a column would leave the fast path every few rows; the minimum lets it overshoot by at most
# this.
ROOM_ROWS_MIN: Final = 512
_WIDTHS: Final = ((1 << 8, np.uint8), (1 << 16, np.uint16), (1 << 32, np.uint32))
"""Each holds numbers below the first."""


class Narrow(NamedTuple):
    """Numbers by how far they are above the least of them, in the fewest bytes that hold each."""

    least: int
    above: NDArray[np.unsignedinteger | np.int64]

    def numbers(self) -> Integers:
        numbers: Integers = np.add(self.above, self.least, dtype=np.int64)
        return numbers

    def write(self, numbers: Integers) -> None:
        np.add(self.above, self.least, out=numbers, dtype=np.int64)


def narrow(numbers: Integers) -> Narrow:
    """At least one number."""
    # By the least number: times are some 41 bits, but within a column they differ by a delay's spread.
    least, highest = int(numbers.min()), int(numbers.max())
    for end, width in _WIDTHS:
        if highest - least < end:
            return Narrow(least, (numbers - least).astype(width))
    return Narrow(least, numbers - least)


@dataclass(frozen=True, slots=True)
class Block:
    """Rows that were narrowed together."""

    times_ms: Narrow
    span_codes: Narrow
    span_rows: Narrow | None
    """None: each span is of one row."""

    def __len__(self) -> int:
        return len(self.times_ms.above)

    def write(self, rows: Rows) -> None:
        """Into rows of this length."""
        self.times_ms.write(rows.times_ms)
        starts = self.span_rows.numbers() if self.span_rows is not None else None
        rows.codes[:] = _codes_of(self.span_codes.numbers(), starts, rows.length)

    def memory_bytes(self) -> int:
        columns = (self.times_ms, self.span_codes, self.span_rows)
        return sum(column.above.nbytes + 200 for column in columns if column is not None)


class OpenColumn:
    """Rows in the order of arrival, each code at most once as far as this column knows.

    `append_time` is for the feed, which adds single rows itself.
    """

    __slots__ = (
        "_blocks",
        "_earliest_ms",
        "_last_code",
        "_looked_at",
        "_narrowed",
        "append_time",
        "span_codes",
        "span_rows",
        "times_ms",
    )

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._earliest_ms = NEVER_MS
        self._blocks: list[Block] = []
        self._narrowed = 0
        """How many rows the blocks have."""
        self._last_code = -1
        """Of the last of these."""
        self._clear_hot()

    def _clear_hot(self) -> None:
        self.times_ms = array("q")
        # Bound once for each column: the feed calls it for each single message.
        self.append_time = self.times_ms.append
        self.span_codes = array("q")
        self.span_rows = array("q")
        self._looked_at = 0
        """Of how many of these times the earliest is known: the rest are looked at when it is asked for."""

    def __len__(self) -> int:
        return self._narrowed + len(self.times_ms)

    @property
    def room(self) -> int:
        """After how many more rows `settle` is to be called."""
        return max((HOT_BYTES_MAX - self._hot_bytes()) // (_TIME_BYTES + _SPAN_BYTES), ROOM_ROWS_MIN)

    def _hot_bytes(self) -> int:
        return _TIME_BYTES * len(self.times_ms) + _SPAN_BYTES * len(self.span_codes)

    def settle(self) -> None:
        """Narrow the last rows if they are many. Then the next row begins a span, whatever its position. Some
        10 ns a row.
        """
        if self._hot_bytes() < HOT_BYTES_MAX:
            return
        count = len(self.times_ms)
        times_ms = narrow(np.frombuffer(self.times_ms, np.int64))
        spans = narrow(np.frombuffer(self.span_codes, np.int64))
        # Where every other message is delayed each span is one row, and where it begins is known.
        starts = narrow(np.frombuffer(self.span_rows, np.int64)) if len(self.span_rows) < count else None
        self._last_code = self.last_code()
        self._earliest_ms = min(self._earliest_ms, times_ms.least)
        self._blocks.append(Block(times_ms, spans, starts))
        self._narrowed += count
        # New arrays: while numpy looks into one it cannot be cut.
        self._clear_hot()

    @property
    def earliest_ms(self) -> int:
        """`NEVER_MS` without rows."""
        count = len(self.times_ms)
        if self._looked_at < count:
            # Only the rows since the last question, and none with an add, which is far more frequent.
            self._earliest_ms = min(self._earliest_ms, min(self.times_ms[self._looked_at :]))
            self._looked_at = count
        return self._earliest_ms

    def begin_span(self, code: int) -> None:
        """The next time is that of this position, those after it follow it until a new span begins."""
        self.span_codes.append(code)
        self.span_rows.append(len(self.times_ms))

    def add(self, code: int, deliver_at_ms: int) -> None:
        self.begin_span(code)
        self.append_time(deliver_at_ms)

    def add_many(
        self,
        ledger_code: int,
        entry_ids: Sequence[int],
        deliver_at_ms: list[int],
        earliest_ms: int,
        continued: bool,
    ) -> None:
        """Entries of one ledger, ascending; `ledger_code` is that of its first entry. `continued`: the first
        one follows the last position of this column, and nothing was narrowed since.
        """
        # Gaps: undelayed messages in between. Without any the batch is one span, or goes on with the last.
        if entry_ids[-1] - entry_ids[0] != len(deliver_at_ms) - 1:
            codes = np.array(entry_ids, np.int64)
            codes += ledger_code
            starts = np.flatnonzero(codes[1:] - codes[:-1] != 1)
            starts += 1
            self.begin_span(codes.item(0))
            self.span_codes.frombytes(codes[starts].tobytes())
            starts += len(self.times_ms)
            self.span_rows.frombytes(starts.tobytes())
        elif not continued:
            self.begin_span(ledger_code + entry_ids[0])
        # The caller knows the least time of the batch: if all before is known too, no row has to be looked at
        # again.
        if self._looked_at == len(self.times_ms):
            self._looked_at += len(deliver_at_ms)
            if earliest_ms < self._earliest_ms:
                self._earliest_ms = earliest_ms
        # Last, since the spans above count from the rows that are there.
        self.times_ms.fromlist(deliver_at_ms)

    def last_code(self) -> int:
        """Of the position that was added last; -1 without rows. O(1)."""
        if not self.span_codes:
            return self._last_code
        return self.span_codes[-1] + len(self.times_ms) - 1 - self.span_rows[-1]

    def rows(self) -> Rows:
        """Copies of the columns, in the order of arrival."""
        rows = Rows(np.empty(len(self), np.int64), np.empty(len(self), np.int64))
        at = 0
        for block in self._blocks:
            block.write(rows.part(at, at + len(block)))
            at += len(block)
        if self.times_ms:
            # Views, copied by what follows: an array that is looked into could not grow.
            firsts, starts = (np.frombuffer(column, np.int64) for column in (self.span_codes, self.span_rows))
            rows.times_ms[at:] = self.times_ms
            rows.codes[at:] = _codes_of(firsts, starts, len(self.times_ms))
        return rows

    def count_by(self, limit_ms: int) -> int:
        """How many rows have a time up to this one."""
        hot = np.count_nonzero(np.frombuffer(self.times_ms, np.int64) <= limit_ms)
        narrowed = (block.times_ms for block in self._blocks)
        return int(hot) + sum(int(np.count_nonzero(t.above <= limit_ms - t.least)) for t in narrowed)

    def memory_bytes(self) -> int:
        hot = (self.times_ms, self.span_codes, self.span_rows)
        hot_bytes = sum(column.buffer_info()[1] * column.itemsize for column in hot)
        return hot_bytes + sum(block.memory_bytes() for block in self._blocks)


def _codes_of(firsts: Integers, starts: Integers | None, count: int) -> Integers:
    """Of spans: their first codes, and in which rows they begin (None: one each)."""
    # All consecutive, as on a topic where every message is delayed.
    if len(firsts) == 1:
        return np.arange(firsts[0], firsts[0] + count)
    if starts is None or len(firsts) == count:
        return firsts
    lengths = np.diff(starts, append=count)
    return np.arange(count) + np.repeat(firsts - starts, lengths)
