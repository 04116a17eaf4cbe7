"""Looking into an index of delayed positions: what waits, until when, and where its due time is kept.

Everything here reads what is in memory and changes nothing. What may look at many rows is a generator: it
yields after each slice how many it looked at, so that the caller may let others run, and returns what it
found. Between two slices the index may change; the answer is then that of no single moment.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

import numpy as np

from geminga.tracker.format.rows import Integers, Rows, code_of
from geminga.tracker.format.stored_bucket import StoredBucket
from geminga.tracker.index.due_rows import codes_of, keep_only, members_of
from geminga.tracker.index.index import DelayedIndex
from geminga.tracker.index.sources import Bucket
from geminga.tracker.index.view import View

# A histogram of 400,000 messages once held the loop for ten seconds.
SLICE_ROWS_MAX: Final = 10_000
"""Rows or segments between two yields: about a millisecond."""
# A bucket by itself cost more to look at than was counted at first, as 200 buckets showed.
COLUMNS_COST: Final = 200
"""What looking at a bucket costs by itself, in segments."""


class Due(NamedTuple):
    """What is due of a view by now, and when its earliest is."""

    positions: int
    next_ms: int | None
    """None: nothing waits."""


def due_now(view: View) -> Generator[int, None, Due]:
    """How many of those that wait in a view are due by now and not taken, as `overdue`, and the time of the
    earliest: of a packed or stored segment that of its first row, wanted or not. A tracker may name an
    earlier time, of what was given another.
    """
    if not len(view):
        return Due(0, None)
    times_ms = [view.index.now_ms()] if view.due.behind.count else []
    times_ms += [int(rows.times_ms.min()) for rows in view.due.rows()]
    for looked, rows in live_rows(view):
        yield looked
        if rows.length:
            times_ms.append(int(rows.times_ms.min()))
    for bucket in buckets_of(view.index):
        if bucket.next_segment < bucket.segments:
            times_ms.append(int(bucket.min_ms[bucket.next_segment]))
    positions = yield from _overdue(view)
    return Due(positions, min(times_ms, default=None))


def overdue(view: View) -> int:
    """How many of those that wait in a view are due by now and not taken. Without slices, for statistics of
    many topics: as long as nothing is due but what was brought out, it looks at the first time of each part.

    Exact as far as single rows go, while at most `SLICE_ROWS_MAX` of them have to be looked at; of more, an
    even sample is. Packed and stored segments are not decoded for a number: see `_of_bucket`.
    """
    look = _overdue(view)
    while True:
        try:
            next(look)
        except StopIteration as end:
            found: int = end.value
            return found


def _overdue(view: View) -> Generator[int, None, int]:
    if not len(view):
        return 0
    limit_ms = view.reader.limit_ms()
    positions = view.due.count_by(limit_ms)
    left = len(view) - view.due.count
    index = view.index
    # Segments that are to be loaded are not in the queue.
    stored = [
        (key, one) for key, one in index.buckets.items() if one.has_more() and one.head_ms() <= limit_ms
    ]
    if left <= 0 or (not stored and index.earliest_ms() > limit_ms):
        return positions
    packs = [pack for pack in packs_of(index) if pack.has_more() and pack.head_ms() <= limit_ms]
    single = _single_rows(index) + [rows for pack in packs for rows in pack.rows_brought_out()]
    single = [rows.where(rows.times_ms <= limit_ms) for rows in single]
    at_hand = [rows for _, bucket in stored for rows in bucket.rows_brought_out()]
    step = -(-sum(rows.length for rows in single + at_hand) // SLICE_ROWS_MAX) or 1
    seen: set[int] = set()
    due = float(sum(_live(view, rows, step, seen).length * step for rows in single))
    yield SLICE_ROWS_MAX
    if packs:
        due += min(left / max(_rows_of(index), 1), 1) * sum(_due_in(pack, limit_ms)[1] for pack in packs)
    looked = 0
    for key, bucket in stored:
        due += _of_bucket(view, key, bucket, limit_ms, step, seen)
        looked += bucket.segments + COLUMNS_COST
        if looked >= SLICE_ROWS_MAX:
            yield looked
            looked = 0
    return positions + min(round(due), left)


def _of_bucket(
    view: View, stored: StoredBucket, bucket: Bucket, limit_ms: int, step: int, seen: set[int]
) -> float:
    """What of a bucket on the bookie is due and wanted: rows at hand, and of its segments the likely number.

    Membership says exactly how many of all rows are wanted, so how many are dead. Of the due ones those are
    taken to be the same share as of the due rows at hand; without such rows as many as can be, since what was
    delivered before a start was due.
    """
    span = stored.first_code, stored.last_code
    wanted = view.index.members.count_between(*span) - view.reader.passed.count_between(*span)
    found = rows_due = 0
    for rows in bucket.rows_brought_out():
        live = _live(view, rows, step, seen)
        wanted -= live.length * step
        found += _due_by(live, limit_ms) * step
        rows_due += _due_by(rows, limit_ms)
    rows_left, due = _due_in(bucket, limit_ms)
    wanted = max(wanted, 0)
    least, most = max(wanted - (rows_left - due), 0), min(wanted, due)
    likely = due * found / rows_due if rows_due else least
    return found + min(max(likely, least), most)


def _due_in(bucket: Bucket, limit_ms: int) -> tuple[int, float]:
    """Rows in segments that were not brought out, and how many of them are due, dead ones included."""
    rows, due = 0, 0.0
    for first_ms, last_ms, counts in columns_of(bucket):
        rows += int(counts.sum())
        due += _share_due(first_ms, last_ms, counts, limit_ms)
    return rows, due


def _rows_of(index: DelayedIndex) -> int:
    """All of them, dead ones included."""
    in_buckets = sum(one.rows_at_hand + sum(one.counts[one.next_segment :]) for one in buckets_of(index))
    return sum(rows.length for rows in _single_rows(index)) + in_buckets


def _live(view: View, rows: Rows, step: int, seen: set[int]) -> Rows:
    """Of every `step`-th row those that are wanted."""
    wanted = _wanted(view, Rows(rows.times_ms[::step], rows.codes[::step]))
    overrides = view.index.overrides
    return _with_their_times(wanted, overrides, seen) if overrides and wanted.length else wanted


def _share_due(first_ms: Integers, last_ms: Integers, counts: Integers, limit_ms: int) -> float:
    """Of rows between a first and a last time, as if they were evenly spread."""
    return float((counts * ((limit_ms + 1 - first_ms) / (last_ms + 1 - first_ms)).clip(0, 1)).sum())


def _due_by(rows: Rows, limit_ms: int) -> int:
    return int(np.count_nonzero(rows.times_ms <= limit_ms))


def live_rows(view: View, more: Iterable[Rows] = ()) -> Iterator[tuple[int, Rows]]:
    """Single rows of the index, and `more` of it, whose positions wait and are not passed: parts of them, and
    how many rows were looked at for each.
    """
    index = view.index
    rows = _single_rows(index)
    rows += [run for bucket in buckets_of(index) for run in bucket.rows_brought_out()]
    rows += more
    seen: set[int] = set()
    for part in in_parts(rows):
        wanted = _wanted(view, part)
        if index.overrides and wanted.length:
            # Counted once: a message that was postponed twice has three rows and was once counted as due by
            # the first.
            wanted = _with_their_times(wanted, index.overrides, seen)
        yield part.length, wanted


def _single_rows(index: DelayedIndex) -> list[Rows]:
    """Of the index's growing parts, and of what is cut off them to be written, dead ones included."""
    parts = [index.feed.shared, *index.feed.tails]
    rows = [part.unsorted_rows() for part in parts if len(part.column)]
    # Lists taken at once: between two slices the index may change under an iterator.
    rows += [run.rest() for part in parts for run in part.runs if run.has_more() and not run.is_stale]
    return rows + [run.rest() for frozen in index.buckets.frozen() for run in frozen.runs() if run.has_more()]


def in_parts(many: Iterable[Rows]) -> Iterator[Rows]:
    """The same rows, at most `SLICE_ROWS_MAX` at once."""
    for rows in many:
        for start in range(0, rows.length, SLICE_ROWS_MAX):
            yield rows.part(start, start + SLICE_ROWS_MAX)


def columns_of(bucket: Bucket) -> Iterator[tuple[Integers, Integers, Integers]]:
    """First time, last time and rows of the segments that have not been brought out: copies, in parts."""
    columns = (bucket.min_ms, bucket.max_ms, bucket.counts)
    for start in range(bucket.next_segment, bucket.segments, SLICE_ROWS_MAX):
        first_ms, last_ms, counts = (
            np.array(column[start : start + SLICE_ROWS_MAX], np.int64) for column in columns
        )
        yield first_ms, last_ms, counts


def _wanted(view: View, rows: Rows) -> Rows:
    live = {}
    for ledger_id, entry_ids in members_of(rows.codes).items():
        tracked = view.index.members.bitmaps.get(ledger_id)
        if tracked is None:
            continue
        wanted = entry_ids & tracked
        if (passed := view.reader.passed.bitmaps.get(ledger_id)) is not None:
            # Of a shared index only what waits for this view.
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


def packs_of(index: DelayedIndex) -> list[Bucket]:
    packs = [bucket for part in (index.feed.shared, *index.feed.tails) for bucket in part.packs]
    packs += [pack for frozen in index.buckets.frozen() for pack in frozen.packs()]
    return [bucket for bucket in packs if not bucket.is_stale]


def buckets_of(index: DelayedIndex) -> list[Bucket]:
    return packs_of(index) + [bucket for _, bucket in index.buckets.items()]


# -- positions -----------------------------------------------------------------------------------------


def page(view: View, start: tuple[int, int], count_max: int) -> Generator[int, None, list[tuple[int, int]]]:
    """At most so many tracked positions at or after `start`, in the order of the topic."""
    found: list[tuple[int, int]] = []
    for ledger_id in view.reader.ledgers():
        if ledger_id < start[0] or len(found) >= count_max:
            continue
        first = max(start[1], 0) if ledger_id == start[0] else 0
        entry_ids = view.tracked(ledger_id, first, view.reader.last_entry(ledger_id))
        if entry_ids is not None:
            found += [(ledger_id, entry_id) for entry_id in entry_ids[: count_max - len(found)]]
        yield SLICE_ROWS_MAX
    return found


def due_times_ms(
    view: View, positions: Sequence[tuple[int, int]]
) -> Generator[int, None, dict[tuple[int, int], int]]:
    """The due times, as the index keeps them, of those tracked positions whose times are in memory."""
    index = view.index
    left = {code_of(*position): position for position in positions if view.contains(position)}
    found: dict[tuple[int, int], int] = {}
    # First, as the rows of these have former times.
    for code in [code for code in left if code in index.overrides]:
        found[left.pop(code)] = index.overrides[code]
    ledgers = {position[0] for position in left.values()}
    packed = (
        rows
        for bucket in buckets_of(index)
        # Decoding is the costly part, and most buckets have none of the positions.
        if any(bucket.start_ledger <= ledger_id <= bucket.end_ledger for ledger_id in ledgers)
        for rows in bucket.rows_in_memory()
    )
    unread = ((rows.length, rows) for rows in in_parts(view.due.rows()))
    for looked, rows in chain(unread, live_rows(view), ((rows.length, rows) for rows in packed)):
        if not left:
            break
        for code, time_ms in _times_in(rows, left).items():
            found[left.pop(code)] = time_ms
        yield looked
    return found


def _times_in(rows: Rows, codes: Iterable[int]) -> dict[int, int]:
    """Of those codes that are in these rows, the (first) time."""
    wanted = np.fromiter(codes, np.int64)
    found: dict[int, int] = {}
    for row in np.flatnonzero(np.isin(rows.codes, wanted)).tolist():
        found.setdefault(rows.codes.item(row), rows.times_ms.item(row))
    return found
