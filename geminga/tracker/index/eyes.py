"""Looking into an index of delayed positions: what waits, until when, and where its due time is kept.

Everything here reads what is in memory and changes nothing. Due times may be in segments on the bookie that
are not loaded: of these the caller is told which to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from heapq import nlargest
from itertools import chain
from operator import itemgetter
from types import MappingProxyType
from typing import Final, NamedTuple

import numpy as np

from geminga.errors import CorruptData
from geminga.tracker.format.rows import Rows, code_of
from geminga.tracker.format.stored_bucket import StoredBucket
from geminga.tracker.index.due_rows import codes_of, keep_only, members_of
from geminga.tracker.index.index import DelayedIndex
from geminga.tracker.index.sources import Bucket
from geminga.tracker.index.view import View

CLASSES_MAX: Final = 10_000
"""Over which one segment is spread; what is due later than the last one begins counts in the last one."""
SEGMENTS_READ_MAX: Final = 20
"""So many segments are decoded for a histogram, those over the most classes: some ten milliseconds."""


NOTHING_READ: Final[Mapping[tuple[StoredBucket, int], Rows]] = MappingProxyType({})


class DueClass(NamedTuple):
    """How many positions are due from `start_ms` on, for the width of the classes."""

    start_ms: int
    positions: int
    is_estimated: bool = False
    """Of some it is only known that they are due in this class or in one beside it."""


def histogram(
    view: View, width_ms: int, read: Mapping[tuple[StoredBucket, int], Rows] = NOTHING_READ
) -> list[DueClass]:
    """Ascending classes that are not empty; the counts sum up to that of the view. `read`: the rows of
    segments that `segments_to_read` named.

    Single rows are counted where they are; of a packed or stored segment only the first and the last time are
    known, so its rows are spread evenly between these, and what has been passed of them is taken from all in
    proportion: such classes are estimated. The few segments over the most classes are decoded, if they are
    in memory: one message far in the future would have all others of its segment spread up to there.
    """
    assert width_ms > 0
    index = view.index
    known = _decoded(index, width_ms, read)
    exact: dict[int, int] = {}
    for rows in chain(view.unread_rows(), _live_rows(view, known.values())):
        starts, counts = np.unique(rows.times_ms // width_ms, return_counts=True)
        for start, count in zip(starts.tolist(), counts.tolist(), strict=True):
            exact[start] = exact.get(start, 0) + count
    spread: dict[int, float] = {}
    estimated: set[int] = set()
    in_segments = 0
    for bucket in _buckets(index):
        for number in range(bucket.next_segment, bucket.segments):
            if (id(bucket), number) in known:
                continue
            min_ms, max_ms = int(bucket.min_ms[number]), int(bucket.max_ms[number])
            count = int(bucket.counts[number])
            in_segments += count
            classes = _spread(spread, min_ms, max_ms, count, width_ms)
            if len(classes) > 1:
                estimated.update(classes)
    left = len(view) - sum(exact.values())
    if left > 0 and not spread:
        spread[index.now_ms() // width_ms] = 1.0  # due for long, and its time is forgotten
    if left != in_segments:
        estimated.update(spread)
    counts_by_class = _apportion(spread, max(left, 0))
    for start, count in exact.items():
        counts_by_class[start] = counts_by_class.get(start, 0) + count
    return [
        DueClass(start * width_ms, counts_by_class[start], start in estimated)
        for start in sorted(counts_by_class)
    ]


def segments_to_read(view: View, width_ms: int) -> list[tuple[StoredBucket, int]]:
    """Which segments on the bookie to read and decode for a histogram: see there."""
    return [
        (stored, number)
        for stored, bucket, number in _widest(view.index, width_ms)
        if stored is not None and number not in bucket.loaded
    ]


def _decoded(
    index: DelayedIndex, width_ms: int, read: Mapping[tuple[StoredBucket, int], Rows]
) -> dict[tuple[int, int], Rows]:
    """By bucket (its `id`) and segment, of which nothing has been taken yet."""
    known: dict[tuple[int, int], Rows] = {}
    for _, bucket, number in _widest(index, width_ms):
        if number in bucket.loaded:
            with suppress(CorruptData):  # whoever is to be served from it finds that out
                known[id(bucket), number] = bucket.rows_of(number)
    for stored, bucket in index.buckets.items():
        for number in range(bucket.next_segment, bucket.segments):
            if (stored, number) in read:
                known[id(bucket), number] = read[stored, number]
    return known


def _widest(index: DelayedIndex, width_ms: int) -> list[tuple[StoredBucket | None, Bucket, int]]:
    """Segments over more than one class, those over the most."""
    found = []
    for stored, bucket in chain(((None, pack) for pack in _packs(index)), index.buckets.items()):
        first = np.asarray(bucket.min_ms, np.int64)[bucket.next_segment :] // width_ms
        classes = np.asarray(bucket.max_ms, np.int64)[bucket.next_segment :] // width_ms - first
        found += [
            (int(classes[at]), stored, bucket, bucket.next_segment + at)
            for at in np.flatnonzero(classes).tolist()
        ]
    return [entry[1:] for entry in nlargest(SEGMENTS_READ_MAX, found, key=itemgetter(0))]


def next_due_ms(view: View) -> int | None:
    """The time of the earliest that waits, None if nothing does; of a packed or stored segment the time of
    its first row, wanted or not. A tracker may name an earlier one, of what was given another time.
    """
    if not len(view):
        return None
    times_ms = [int(rows.times_ms.min()) for rows in chain(view.unread_rows(), _live_rows(view))]
    if view.due.behind.count:
        times_ms.append(view.index.now_ms())
    times_ms += [
        int(bucket.min_ms[bucket.next_segment])
        for bucket in _buckets(view.index)
        if bucket.next_segment < bucket.segments
    ]
    return min(times_ms, default=None)


def due_count(view: View) -> int:
    """How many of those that wait in a view are due by now and not taken. Exact as far as single rows go; of
    a packed or stored segment of which a part is due, or passed, it is the likely share.
    """
    limit_ms = view.index.now_ms() + view.index.rules.due_slack_ms
    exact, exact_due = view.due.count, view.due.count
    for rows in _live_rows(view):
        exact += rows.length
        exact_due += int(np.count_nonzero(rows.times_ms <= limit_ms))
    in_segments, due = 0, 0.0
    for bucket in _buckets(view.index):
        min_ms, max_ms, counts = (
            np.asarray(column, np.int64)[bucket.next_segment :]
            for column in (bucket.min_ms, bucket.max_ms, bucket.counts)
        )
        in_segments += int(counts.sum())
        due += float((counts * ((limit_ms + 1 - min_ms) / (max_ms + 1 - min_ms)).clip(0, 1)).sum())
    left = max(len(view) - exact, 0)
    return exact_due + (round(left * due / in_segments) if in_segments else 0)


def _spread(classes: dict[int, float], min_ms: int, max_ms: int, count: int, width_ms: int) -> range:
    """Returns the classes over which they were spread."""
    first, last = min_ms // width_ms, max_ms // width_ms
    last = min(last, first + CLASSES_MAX - 1)
    for start in range(first, last + 1):
        from_ms, to_ms = max(min_ms, start * width_ms), (start + 1) * width_ms
        if start == last or to_ms > max_ms:
            to_ms = max_ms + 1
        share = count * (to_ms - from_ms) / (max_ms + 1 - min_ms)
        classes[start] = classes.get(start, 0.0) + share
    return range(first, last + 1)


def _apportion(weights: dict[int, float], total: int) -> dict[int, int]:
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


def _live_rows(view: View, more: Iterable[Rows] = ()) -> Iterable[Rows]:
    """Single rows of the index, and `more` of it, whose positions wait and are not passed."""
    index = view.index
    parts = [index.feed.shared, index.feed.mutable]
    rows = [part.unsorted_rows() for part in parts if len(part.column)]
    rows += [run.rest() for part in parts for run in part.runs if run.has_more() and not run.is_stale]
    rows += [
        source.rest() for frozen in index.buckets.frozen() for source in frozen.runs() if source.has_more()
    ]
    rows += [run for bucket in _buckets(index) for run in bucket.rows_brought_out()]
    rows += more
    seen: set[int] = set()
    for part in rows:
        wanted = _wanted(view, part)
        if index.overrides and wanted.length:
            wanted = _with_their_times(wanted, index.overrides, seen)
        if wanted.length:
            yield wanted


def _wanted(view: View, rows: Rows) -> Rows:
    live = {}
    for ledger_id, entry_ids in members_of(rows.codes).items():
        tracked = view.index.members.bitmaps.get(ledger_id)
        if tracked is None:
            continue
        wanted = entry_ids & tracked
        if (passed := view.passed.bitmaps.get(ledger_id)) is not None:
            wanted -= passed
        if wanted:
            live[ledger_id] = wanted
    return keep_only(rows, codes_of(live))


def _with_their_times(rows: Rows, overrides: dict[int, int], seen: set[int]) -> Rows:
    wanted = np.ones(rows.length, bool)
    for row, code in enumerate(rows.codes.tolist()):
        if (time_ms := overrides.get(code)) is not None:
            wanted[row] = time_ms == rows.times_ms.item(row) and code not in seen
            if wanted[row]:
                seen.add(code)
    return rows.where(wanted)


def _packs(index: DelayedIndex) -> list[Bucket]:
    packs = [bucket for part in (index.feed.shared, index.feed.mutable) for bucket in part.packs]
    packs += [pack for frozen in index.buckets.frozen() for pack in frozen.packs()]
    return [bucket for bucket in packs if not bucket.is_stale]


def _buckets(index: DelayedIndex) -> list[Bucket]:
    return _packs(index) + [bucket for _, bucket in index.buckets.items()]


# -- positions -----------------------------------------------------------------------------------------


def page(view: View, start: tuple[int, int], count_max: int) -> list[tuple[int, int]]:
    """At most so many tracked positions at or after `start`, in the order of the topic."""
    found: list[tuple[int, int]] = []
    for ledger_id in view.ledgers():
        if ledger_id < start[0] or len(found) >= count_max:
            continue
        first = max(start[1], 0) if ledger_id == start[0] else 0
        entry_ids = view.tracked(ledger_id, first, view.last_entry(ledger_id))
        if entry_ids is not None:
            found += [(ledger_id, entry_id) for entry_id in entry_ids[: count_max - len(found)]]
    return found


def due_times_ms(view: View, positions: Sequence[tuple[int, int]]) -> dict[tuple[int, int], int]:
    """The due times, as the index keeps them, of those tracked positions whose times are in memory."""
    index = view.index
    left = {code_of(*position): position for position in positions if view.contains(position)}
    found: dict[tuple[int, int], int] = {}
    for code in [code for code in left if code in index.overrides]:
        found[left.pop(code)] = index.overrides[code]
    ledgers = {position[0] for position in left.values()}
    packed = (
        rows
        for bucket in _buckets(index)
        if any(bucket.start_ledger <= ledger_id <= bucket.end_ledger for ledger_id in ledgers)
        for rows in bucket.rows_in_memory()
    )
    for rows in chain(view.unread_rows(), _live_rows(view), packed):
        if not left:
            break
        for code, time_ms in _times_in(rows, left).items():
            found[left.pop(code)] = time_ms
    return found


def _times_in(rows: Rows, codes: Iterable[int]) -> dict[int, int]:
    """Of those codes that are in these rows, the (first) time."""
    wanted = np.fromiter(codes, np.int64)
    found: dict[int, int] = {}
    for row in np.flatnonzero(np.isin(rows.codes, wanted)).tolist():
        found.setdefault(rows.codes.item(row), rows.times_ms.item(row))
    return found
