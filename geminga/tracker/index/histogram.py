"""How many positions of an index are due when, drawn up in slices of bounded work.

Widths are the one that was asked for, doubled as often as needed, so that classes nest and may be put
together by twos at any time. The width is chosen from the first and the last time of each segment; then
everything is counted once, and where single rows still lie in too many classes, what has been counted is
folded. Between two slices the index may change: what comes, leaves or is loaded meanwhile is counted where it
was or where it is.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from heapq import nlargest
from itertools import chain
from operator import itemgetter
from typing import Final, NamedTuple

import numpy as np

from geminga.errors import CorruptData
from geminga.tracker.format.rows import Integers, Rows
from geminga.tracker.format.stored_bucket import StoredBucket
from geminga.tracker.index.eyes import (
    COLUMNS_COST,
    SLICE_ROWS_MAX,
    buckets_of,
    columns_of,
    in_parts,
    live_rows,
    packs_of,
)
from geminga.tracker.index.sources import Bucket
from geminga.tracker.index.view import View

# One message in the far future had all others of its segment spread up to there.
SEGMENTS_READ_MAX: Final = 20
"""So many segments are decoded for a histogram, those over the most classes."""


class DueClass(NamedTuple):
    """How many positions are due from `start_ms` on, for the width of the classes."""

    start_ms: int
    positions: int
    is_estimated: bool = False
    """Of some it is only known that they are due in this class or in one beside it."""


class _Span(NamedTuple):
    """A segment over more than one class of the width that was asked for."""

    classes: int
    stored: StoredBucket | None
    bucket: Bucket
    number: int


class Histogram:
    """One drawing: `look`, read what `to_read` names, `count`, then `classes` and `width_ms` hold.

    Single rows are counted where they are; of a packed or stored segment only the first and the last time are
    known, so its rows are spread evenly between these, and what has been passed of them is taken from all in
    proportion: such classes are estimated. The few segments over the most classes are decoded: one message
    far in the future would have all others of its segment spread up to there.
    """

    def __init__(self, view: View, width_ms: int, classes_max: int) -> None:
        assert width_ms > 0
        self.width_ms = width_ms
        self.to_read: list[tuple[StoredBucket, int]] = []
        """Segments on the bookie that `count` wants, at most `SEGMENTS_READ_MAX`."""
        self._view = view
        self._classes_max = classes_max
        self._widest: list[_Span] = []
        self._exact: dict[int, int] = {}
        self._spread: dict[int, float] = {}
        self._estimated: set[int] = set()
        self._in_segments = 0

    def look(self) -> Generator[int, None, None]:
        """Find out which segments to decode. Yields after each slice how much it looked at."""
        index, looked = self._view.index, 0
        for stored, bucket in chain(((None, pack) for pack in packs_of(index)), list(index.buckets.items())):
            offset = bucket.next_segment
            for first_ms, last_ms, _ in columns_of(bucket):
                classes = last_ms // self.width_ms - first_ms // self.width_ms
                places = np.flatnonzero(classes)
                if len(places) > SEGMENTS_READ_MAX:
                    # Without sorting: a topic may have thousands of segments, of which twenty are wanted.
                    order = np.argpartition(classes[places], -SEGMENTS_READ_MAX)
                    places = places[order[-SEGMENTS_READ_MAX:]]
                found = [_Span(int(classes[at]), stored, bucket, offset + at) for at in places.tolist()]
                self._widest = nlargest(SEGMENTS_READ_MAX, self._widest + found, key=itemgetter(0))
                offset += len(classes)
                looked += len(classes) + COLUMNS_COST
                if looked >= SLICE_ROWS_MAX:
                    yield looked
                    looked = 0
        self.to_read = [
            (span.stored, span.number)
            for span in self._widest
            # What is in memory is decoded from there.
            if span.stored is not None and span.number not in span.bucket.loaded
        ]

    def count(self, read: Mapping[tuple[StoredBucket, int], Rows]) -> Generator[int, None, None]:
        """Count everything, `read` being those of `to_read` that could be read. Yields after each slice."""
        known: dict[tuple[int, int], Rows] = {}
        for span in self._widest:
            if (rows := _rows_of(span, read)) is not None:
                known[id(span.bucket), span.number] = rows
                yield rows.length
        buckets = buckets_of(self._view.index)
        # The width first, then one count: computed for each doubling of the width, 400,000 messages held the
        # loop for ten seconds.
        yield from self._widen(buckets, known)
        for part in in_parts(self._view.due.rows()):
            self._count_rows(part)
            yield part.length
        for looked, rows in live_rows(self._view, known.values()):
            self._count_rows(rows)
            yield looked
        for bucket in buckets:
            yield from self._count_segments(bucket, known)

    def _widen(self, buckets: list[Bucket], known: Mapping[tuple[int, int], Rows]) -> Iterator[int]:
        """Choose the width: no segment is spread over more classes than there may be."""
        widest_ms, looked = 0, 0
        for bucket in buckets:
            offset = bucket.next_segment
            for first_ms, last_ms, _ in columns_of(bucket):
                span_ms = last_ms - first_ms
                # Decoded ones are counted row by row, and need no width for their span.
                span_ms[_known_of(bucket, offset, len(span_ms), known)] = 0
                widest_ms = max(widest_ms, int(span_ms.max(initial=0)))
                offset += len(span_ms)
                looked += len(span_ms) + COLUMNS_COST
                if looked >= SLICE_ROWS_MAX:
                    yield looked
                    looked = 0
        # Doubled, so that classes nest: what was counted by the former width can be folded.
        while widest_ms // self.width_ms + 2 > self._classes_max:
            self.width_ms *= 2

    def _count_rows(self, rows: Rows) -> None:
        starts, counts = np.unique(rows.times_ms // self.width_ms, return_counts=True)
        # Folded before it is added: a single slice may have more classes than there may be.
        while len(starts) > self._classes_max:
            self._fold()
            halves = starts // 2
            firsts = np.flatnonzero(np.diff(halves, prepend=halves[0] - 1))
            starts, counts = halves[firsts], np.add.reduceat(counts, firsts)
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
            self._exact[start] = self._exact.get(start, 0) + count
        self._fit()

    def _count_segments(self, bucket: Bucket, known: Mapping[tuple[int, int], Rows]) -> Iterator[int]:
        offset = bucket.next_segment
        for first_ms, last_ms, counts in columns_of(bucket):
            counts[_known_of(bucket, offset, len(counts), known)] = 0
            offset += len(counts)
            wanted = np.flatnonzero(counts)
            self._in_segments += int(counts.sum())
            while len(wanted):
                spans = last_ms[wanted] // self.width_ms - first_ms[wanted] // self.width_ms + 1
                # By classes and not by segments: each class that a segment touches is a step of work.
                taken = max(int(np.searchsorted(np.cumsum(spans), SLICE_ROWS_MAX, "right")), 1)
                part, wanted = wanted[:taken], wanted[taken:]
                self._spread_out(first_ms[part], last_ms[part], counts[part], spans[:taken])
                yield int(spans[:taken].sum())

    def _spread_out(self, first_ms: Integers, last_ms: Integers, counts: Integers, spans: Integers) -> None:
        """Share the rows of segments among the classes that each lies in, `spans` of them."""
        width_ms = self.width_ms
        within = np.arange(int(spans.sum())) - np.repeat(np.cumsum(spans) - spans, spans)
        starts = np.repeat(first_ms // width_ms, spans) + within
        first, end = np.repeat(first_ms, spans), np.repeat(last_ms, spans) + 1
        common_ms = np.minimum(end, (starts + 1) * width_ms) - np.maximum(first, starts * width_ms)
        shares = np.repeat(counts, spans) * (common_ms / (end - first))
        classes, places = np.unique(starts, return_inverse=True)
        for start, share in zip(classes.tolist(), np.bincount(places, shares).tolist(), strict=True):
            self._spread[start] = self._spread.get(start, 0.0) + share
        # A segment within one class is exact there, whatever its rows.
        self._estimated.update(np.unique(starts[np.repeat(spans > 1, spans)]).tolist())
        self._fit()

    def _fit(self) -> None:
        while len(self._exact.keys() | self._spread.keys()) > self._classes_max:
            self._fold()

    def _fold(self) -> None:
        """Double the width of what has been counted."""
        self.width_ms *= 2
        exact, spread = self._exact, self._spread
        self._exact, self._spread = {}, {}
        for start, count in exact.items():
            self._exact[start // 2] = self._exact.get(start // 2, 0) + count
        for start, share in spread.items():
            self._spread[start // 2] = self._spread.get(start // 2, 0.0) + share
        self._estimated = {start // 2 for start in self._estimated}

    def classes(self) -> list[DueClass]:
        """Ascending classes that are not empty; the counts sum up to that of the view."""
        view = self._view
        # Of the view's own count, so that the classes add up to what a summary says.
        left = len(view) - sum(self._exact.values())
        spread, estimated = self._spread, self._estimated
        if left > 0 and not spread:
            # Due for long, and its time is forgotten.
            spread = {view.index.now_ms() // self.width_ms: 1.0}
        # The counts differ (rows passed, acknowledged, repeated or new), and it is not known in which
        # segments.
        if left != self._in_segments:
            estimated = estimated | spread.keys()
        counts = apportion(spread, max(left, 0))
        for start, count in self._exact.items():
            counts[start] = counts.get(start, 0) + count
        return [
            DueClass(start * self.width_ms, counts[start], start in estimated) for start in sorted(counts)
        ]


def apportion(weights: Mapping[int, float], total: int) -> dict[int, int]:
    """Whole numbers in proportion to the weights that sum up to the total."""
    whole = sum(weights.values())
    found: dict[int, int] = {}
    done, passed = 0, 0.0
    for start in sorted(weights):
        passed += weights[start]
        until = round(total * passed / whole)
        if until > done:
            found[start] = until - done
        done = until
    return found


def _known_of(bucket: Bucket, offset: int, segments: int, known: Iterable[tuple[int, int]]) -> list[int]:
    """Places, from `offset` on, of those among so many segments of the bucket that are known."""
    return [n - offset for key, n in known if key == id(bucket) and offset <= n < offset + segments]


def _rows_of(span: _Span, read: Mapping[tuple[StoredBucket, int], Rows]) -> Rows | None:
    """A segment decoded, from memory or as it was read; None if it cannot be, or is being taken from."""
    if span.number < span.bucket.next_segment:
        return None
    if span.number in span.bucket.loaded:
        with suppress(CorruptData):  # the dispatcher that is to be served from it finds that out
            return span.bucket.rows_of(span.number)
    return None if span.stored is None else read.get((span.stored, span.number))
