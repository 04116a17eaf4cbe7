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
    """How many of those that wait in a view are due by now and not taken, and the time of the earliest.

    Both are exact as far as single rows go; of a packed or stored segment of which a part is due, or passed,
    the likely share counts, and the earliest time is that of its first row, wanted or not. A tracker may name
    an earlier time, of what was given another.
    """
    if not len(view):
        return Due(0, None)
    now_ms = view.index.now_ms()
    limit_ms = view.reader.limit_ms()
    times_ms = [now_ms] if view.due.behind.count else []
    times_ms += [int(rows.times_ms.min()) for rows in view.due.rows()]
    exact = view.due.count
    # Due rows too are compared with the clock: another view may have been given them early.
    exact_due = view.due.behind.count + sum(_due_by(rows, limit_ms) for rows in view.due.rows())
    for looked, rows in live_rows(view):
        yield looked
        if rows.length:
            exact += rows.length
            exact_due += _due_by(rows, limit_ms)
            times_ms.append(int(rows.times_ms.min()))
    in_segments, due, looked = 0, 0.0, 0
    for bucket in buckets_of(view.index):
        if bucket.next_segment < bucket.segments:
            times_ms.append(int(bucket.min_ms[bucket.next_segment]))
        for first_ms, last_ms, counts in columns_of(bucket):
            in_segments += int(counts.sum())
            due += _share_due(first_ms, last_ms, counts, limit_ms)
            looked += len(counts) + COLUMNS_COST
            if looked >= SLICE_ROWS_MAX:
                yield looked
                looked = 0
    # What single rows do not explain is in segments; decoding those for a number is what this avoids.
    left = max(len(view) - exact, 0)
    positions = exact_due + (round(left * due / in_segments) if in_segments else 0)
    return Due(positions, min(times_ms, default=None))


def overdue(view: View) -> int:
    """About how many of those that wait in a view are due by now and not taken. Without slices, for
    statistics of many topics: as long as nothing is due but what was brought out, it looks at the first time
    of each part; else at the times of rows in memory, and of segments.

    Exact if all rows of the index are wanted by the view, and but for a segment of which a part is due.
    """
    if not len(view):
        return 0
    limit_ms = view.reader.limit_ms()
    positions = view.due.count_by(limit_ms)
    left = len(view) - view.due.count
    index = view.index
    stored = [bucket for _, bucket in index.buckets.items() if bucket.has_more()]
    # Segments that are to be loaded are not in the queue.
    if left <= 0 or (
        index.earliest_ms() > limit_ms and all(bucket.head_ms() > limit_ms for bucket in stored)
    ):
        return positions
    parts = [index.feed.shared, *index.feed.tails]
    columns = [part.column for part in parts if len(part.column)]
    runs = [run for part in parts for run in part.runs if run.has_more() and not run.is_stale]
    runs += [run for frozen in index.buckets.frozen() for run in frozen.runs() if run.has_more()]
    buckets = [*packs_of(index), *stored]
    rows, due = sum(map(len, columns)), float(sum(column.count_by(limit_ms) for column in columns))
    single = [run.rest() for run in runs] + [one for bucket in buckets for one in bucket.rows_brought_out()]
    rows += sum(one.length for one in single)
    due += sum(_due_by(one, limit_ms) for one in single)
    for bucket in buckets:
        for first_ms, last_ms, counts in columns_of(bucket):
            rows += int(counts.sum())
            due += _share_due(first_ms, last_ms, counts, limit_ms)
    # Rows may be dead, or passed by this view: the same share of all rows is.
    return positions + (round(left * min(due / rows, 1)) if rows else 0)


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
    parts = [index.feed.shared, *index.feed.tails]
    rows = [part.unsorted_rows() for part in parts if len(part.column)]
    # Lists taken at once: between two slices the index may change under an iterator.
    rows += [run.rest() for part in parts for run in part.runs if run.has_more() and not run.is_stale]
    rows += [
        source.rest() for frozen in index.buckets.frozen() for source in frozen.runs() if source.has_more()
    ]
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
