"""Several buckets as one, in one pass and with little memory: the rows still wanted, in order of due time.

Pure: the caller reads the segments and writes the result. A source is held a few segments at a time,
the result one segment at a time; what stays is the directory's table, and the members as bit maps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from geminga.errors import CorruptData
from geminga.tracker.format.bucket_format import (
    Directory,
    DirectoryBuilder,
    EncodedBucket,
    cut_segments,
    members_of,
)
from geminga.tracker.format.rows import (
    EMPTY,
    ENTRY_BITS,
    ENTRY_MASK,
    Integers,
    Rows,
    concatenate,
    merge,
    rows_up_to,
)


class _Source:
    """What has been read of one bucket and not been passed on yet."""

    __slots__ = ("directory", "next_segment", "rows")

    def __init__(self, directory: Directory) -> None:
        self.directory = directory
        self.next_segment = 0
        self.rows = EMPTY

    @property
    def has_more(self) -> bool:
        return self.next_segment < self.directory.segments


class DamagedSource(CorruptData):
    """A segment of this source cannot be read."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(text)
        self.number = number


class Merger:
    """`live` are the members that are still wanted, by ledger: rows of others are dropped."""

    def __init__(
        self,
        directories: Sequence[Directory],
        live: Mapping[int, BitMap],
        span_max_ms: int,
        indexes_max: int,
    ) -> None:
        self._sources = [_Source(directory) for directory in directories]
        self._live = live
        self._bits: dict[int, NDArray[np.uint8]] = {}
        self._span_max_ms = span_max_ms
        self._indexes_max = indexes_max
        self._pending = EMPTY
        self._members: dict[int, BitMap] = {}
        self._builder = DirectoryBuilder(
            min(directory.start_ledger for directory in directories),
            max(directory.end_ledger for directory in directories),
        )

    @property
    def rows(self) -> int:
        """How many rows have come out so far."""
        return self._builder.rows

    def wanted(self) -> list[tuple[int, int]]:
        """What `step` needs next: (source, segment from which on it is read). Empty: call `finish`."""
        return [
            (number, source.next_segment)
            for number, source in enumerate(self._sources)
            if source.has_more and not source.rows.length
        ]

    def step(self, read: Mapping[int, Sequence[bytes]]) -> list[bytes]:
        """Take in segments of each source that was wanted; returns the new bucket's next segments, maybe
        none. DamagedSource.
        """
        for number, entries in read.items():
            source = self._sources[number]
            parts = [source.rows]
            for entry in entries:
                try:
                    rows = source.directory.decode_segment(source.next_segment, entry)
                except CorruptData as error:
                    raise DamagedSource(number, str(error)) from error
                source.next_segment += 1
                # Dropped on the way in, or delivered rows would be rewritten with each merge for as long as
                # any neighbour waits.
                parts.append(rows.where(self._is_live(rows.codes)))
            source.rows = concatenate(parts)
        # As long as one source has nothing at hand, its next row may come before all others.
        if self.wanted():
            return []
        return self._encode(self._take_certain(), last=False)

    def finish(self) -> EncodedBucket:
        """The rest of the segments, and the directory; both empty if no row was wanted any more."""
        assert not self.wanted()
        segments = self._encode(EMPTY, last=True)
        return EncodedBucket(segments, self._builder.finish(self._members) if self.rows else [])

    def _take_certain(self) -> Rows:
        """All rows before which nothing can come any more: up to the first source that may go on."""
        ends = [
            (int(source.rows.times_ms[-1]), int(source.rows.codes[-1]))
            for source in self._sources
            if source.has_more
        ]
        parts = []
        for source in self._sources:
            count = rows_up_to(source.rows, *min(ends)) if ends else source.rows.length
            parts.append(source.rows.part(0, count))
            source.rows = source.rows.part(count, source.rows.length)
        # A row that two sources have is written twice here; the membership counts it once, and one of the two
        # is dead.
        return merge(parts)

    def _encode(self, rows: Rows, *, last: bool) -> list[bytes]:
        """Cut and encode; without `last` a segment that may still grow waits."""
        self._pending = concatenate([self._pending, rows])
        pending, entries, done = self._pending, [], 0
        for start, end in cut_segments(pending.times_ms, self._span_max_ms, self._indexes_max):
            # A segment that is cut here would be short; with each step of the merge there would be one more.
            if end == pending.length and not last:
                break
            segment = pending.part(start, end)
            entries.append(self._builder.add(segment))
            for ledger_id, entry_ids in members_of(segment.codes).items():
                self._members[ledger_id] = self._members.get(ledger_id, BitMap()) | entry_ids
            done = end
        self._pending = pending.part(done, pending.length)
        return entries

    def _is_live(self, codes: Integers) -> NDArray[np.bool_]:
        ledgers = codes >> ENTRY_BITS
        chosen = np.zeros(len(codes), np.bool_)
        for ledger_id in np.unique(ledgers).tolist():
            of_ledger = np.flatnonzero(ledgers == ledger_id)
            bits = self._bits_of(ledger_id)
            entry_ids = codes[of_ledger] & ENTRY_MASK
            within = entry_ids < 8 * len(bits)
            entry_ids = np.where(within, entry_ids, 0)
            if len(bits):
                chosen[of_ledger] = within & ((bits[entry_ids >> 3] >> (entry_ids & 7)) & 1).astype(np.bool_)
        return chosen

    def _bits_of(self, ledger_id: int) -> NDArray[np.uint8]:
        """The ledger's live entries, a bit for each entry."""
        bits = self._bits.get(ledger_id)
        if bits is None:
            live = self._live.get(ledger_id)
            if live:
                flags = np.zeros(live.max() + 1, np.uint8)
                flags[np.frombuffer(live.to_array(), np.uint32)] = 1
                # Bits instead of asking the bitmap: for a column of codes that is a call for each row.
                bits = np.packbits(flags, bitorder="little")
            else:
                bits = np.zeros(0, np.uint8)
            self._bits[ledger_id] = bits
        return bits
