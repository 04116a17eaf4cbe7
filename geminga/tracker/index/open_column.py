"""The end of the index that messages are added to: plain columns in the order of arrival.

Delivery times one after the other; positions as spans of consecutive entries, so that a topic on which every
message is delayed pays for its times only. It is never searched: when its earliest time is due, or it is
full, it is sorted into a run.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np

from geminga.tracker.format.rows import Integers, Rows

NEVER_MS = 1 << 63
"""Later than every time."""


class OpenColumn:
    """Rows in the order of arrival, each code at most once as far as this column knows.

    `append_time` is for the feed, which adds single rows itself.
    """

    __slots__ = ("_earliest_ms", "_looked_at", "append_time", "span_codes", "span_rows", "times_ms")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.times_ms = array("q")
        self.append_time = self.times_ms.append
        self.span_codes = array("q")
        self.span_rows = array("q")
        self._earliest_ms = NEVER_MS
        self._looked_at = 0
        """Of how many rows that is the earliest time: the rest are looked at when it is asked for."""

    def __len__(self) -> int:
        return len(self.times_ms)

    @property
    def earliest_ms(self) -> int:
        """`NEVER_MS` without rows."""
        count = len(self.times_ms)
        if self._looked_at < count:
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
        one follows the last position of this column.
        """
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
        if self._looked_at == len(self.times_ms):
            self._looked_at += len(deliver_at_ms)
            if earliest_ms < self._earliest_ms:
                self._earliest_ms = earliest_ms
        self.times_ms.fromlist(deliver_at_ms)

    def codes(self) -> Integers:
        firsts = np.frombuffer(self.span_codes, np.int64)
        starts = np.frombuffer(self.span_rows, np.int64)
        count = len(self.times_ms)
        if len(firsts) == 1:
            return np.arange(firsts[0], firsts[0] + count)
        if len(firsts) == count:
            return firsts.copy()
        lengths = np.diff(starts, append=count)
        return np.arange(count) + np.repeat(firsts - starts, lengths)

    def last_code(self) -> int:
        """Of the position that was added last; -1 without rows. O(1)."""
        if not self.span_codes:
            return -1
        return self.span_codes[-1] + len(self.times_ms) - 1 - self.span_rows[-1]

    def rows(self) -> Rows:
        """Copies of the columns, in the order of arrival."""
        return Rows(np.array(self.times_ms, np.int64), self.codes())

    def memory_bytes(self) -> int:
        columns = (self.times_ms, self.span_codes, self.span_rows)
        return sum(column.buffer_info()[1] * column.itemsize for column in columns)
