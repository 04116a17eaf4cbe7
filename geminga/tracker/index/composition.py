"""What an index consists of, and how many of the positions that wait for one of its views are in each part.

A position is counted in one part, so that the counts sum up to that of the view. Of rows in memory it is
known whose they are. A bucket on the bookie has those positions of its range that no rows in memory have;
where ranges overlap, the rows that each bucket has left say how many.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Final, Literal

import numpy as np
from pyroaring import BitMap

from geminga.errors import CorruptData
from geminga.tracker.format.rows import ENTRY_BITS, ENTRY_MASK, Rows
from geminga.tracker.format.stored_bucket import StoredBucket
from geminga.tracker.index.due_rows import members_of
from geminga.tracker.index.eyes import COLUMNS_COST, SLICE_ROWS_MAX, in_parts
from geminga.tracker.index.histogram import apportion
from geminga.tracker.index.index import DelayedIndex
from geminga.tracker.index.part import Part
from geminga.tracker.index.sources import Bucket, Run
from geminga.tracker.index.view import View

State = Literal["due", "growing", "frozen", "sealed", "loading", "memory"]
# Thousands of ledgers with a message each would otherwise be one slice.
LEDGER_COST: Final = 20
"""What looking at a ledger costs by itself, in rows."""


@dataclass(slots=True, eq=False)
class IndexPart:
    """`sealed` and `loading` are on the bookie: of the latter a segment is wanted that is not in memory."""

    state: State
    first_code: int = -1
    last_code: int = -1
    """The range of positions that it covers, both included; -1: any."""
    stored: StoredBucket | None = None
    bucket: Bucket | None = None
    """Of what is on the bookie."""
    positions: int = 0
    """That wait for the view."""
    is_estimated: bool = False
    """Whether some of them may be in another part whose range overlaps this one's."""
    rows_on_disk: int = 0
    rows_in_memory: int = 0
    """That have not been taken; some may be of positions that the view has passed."""
    first_ms: int | None = None
    last_ms: int | None = None
    """Between these its rows are due; None: it has none, or they are not known."""

    @property
    def rows(self) -> int:
        return self.rows_on_disk + self.rows_in_memory

    @property
    def range_text(self) -> str:
        """For people: of a bucket as its property has it, `10-11` or `10:5-11:7`."""
        if self.stored is not None:
            return range_text(*self.stored.covered)
        return range_text(self.first_code, self.last_code) if self.first_code >= 0 else ""

    def spans(self, times_ms: Iterable[int]) -> None:
        for time_ms in times_ms:
            self.first_ms = time_ms if self.first_ms is None else min(self.first_ms, time_ms)
            self.last_ms = time_ms if self.last_ms is None else max(self.last_ms, time_ms)


@dataclass(slots=True, eq=False)
class _Claim:
    """The positions that rows in memory have."""

    part: IndexPart
    members: dict[int, BitMap] = field(default_factory=dict)

    def add(self, rows: Rows) -> None:
        for ledger_id, entry_ids in members_of(rows.codes).items():
            before = self.members.get(ledger_id)
            self.members[ledger_id] = entry_ids if before is None else before | entry_ids


def range_text(first_code: int, last_code: int) -> str:
    """For people: `10-11` if whole ledgers are covered, else the first and the last position, `10:5-11:7`."""
    first, last = first_code >> ENTRY_BITS, last_code >> ENTRY_BITS
    if not first_code & ENTRY_MASK and last_code & ENTRY_MASK == ENTRY_MASK:
        return f"{first}-{last}"
    return f"{first}:{first_code & ENTRY_MASK}-{last}:{last_code & ENTRY_MASK}"


# -- the parts -------------------------------------------------------------------------------------------


def parts_of(view: View) -> Generator[int, None, list[IndexPart]]:
    """All parts of the index that a view looks at: what is due first, then by their first position. Yields
    after each slice how much it looked at; what changes meanwhile is counted where it was or where it is.
    """
    index = view.index
    due = IndexPart("due", positions=view.due.count, rows_in_memory=view.due.count)
    for rows in in_parts(view.due.rows()):
        due.spans([int(rows.times_ms.min()), int(rows.times_ms.max())])
        yield rows.length
    memory = IndexPart("memory")
    claims = []
    # All kinds of parts, so that they add up to the messages that wait: a list of buckets only left out
    # growing and frozen parts, and changed due times.
    buckets = yield from sealed_parts(index)
    for frozen in index.buckets.frozen():
        claims.append(claim := _Claim(IndexPart("frozen", frozen.first_code, frozen.last_code)))
        yield from _look_at_rows(claim, frozen.runs(), frozen.packs())
    for tail in index.feed.tails:
        if tail.rows():
            claims.append(claim := _Claim(IndexPart("growing", tail.first_code, tail.last_code)))
            yield from _look_at_fed(claim, tail)
    if buckets or claims:
        # Before what is beside it: a position with another time than it was fed with has two rows.
        claims.insert(0, claim := _Claim(memory))
        yield from _look_at_fed(claim, index.feed.shared)
    else:
        yield from _look_at(memory, index.feed.shared.runs, index.feed.shared.packs)
        # Nothing else to share with: all that waits is here, and need not be looked at row by row.
        memory.spans(_times_of_column(index.feed.shared))
    nowhere = yield from _share_out(view, claims, buckets)
    # Never left out, or the rows would not add up: what is in no range has its row in memory.
    memory.positions += nowhere
    found = [*(claim.part for claim in claims if claim.part is not memory), *buckets]
    found.sort(key=lambda part: (part.first_code, part.last_code))
    if due.positions:
        found.insert(0, due)
    # After it was counted in slices rows may have come; a part has no fewer rows than messages.
    if memory.positions:
        memory.rows_in_memory = max(memory.rows_in_memory, memory.positions)
        found.append(memory)
    return found


def sealed_parts(index: DelayedIndex) -> Generator[int, None, list[IndexPart]]:
    """Those on the bookie, by first position, without how many positions of a view are in each."""
    # As the loader sees it, so that "loading" means that a read is due or under way.
    wanted = {stored for stored, _ in index.wanted(index.now_ms())}
    found, looked = [], 0
    for stored, bucket in index.buckets.items():
        state: State = "loading" if stored in wanted else "sealed"
        part = IndexPart(state, stored.first_code, stored.last_code, stored, bucket)
        loaded = sum(int(bucket.counts[number]) for number in bucket.loaded)
        left = sum(map(int, bucket.counts[bucket.next_segment :]))
        part.rows_on_disk, part.rows_in_memory = left - loaded, bucket.rows_at_hand + loaded
        if bucket.next_segment < bucket.segments:
            part.spans([int(bucket.min_ms[bucket.next_segment]), _latest_ms(bucket)])
        for rows in bucket.rows_brought_out():
            if rows.length:
                part.spans([rows.times_ms.item(0), rows.times_ms.item(-1)])
        found.append(part)
        looked += bucket.segments + COLUMNS_COST
        if looked >= SLICE_ROWS_MAX:
            yield looked
            looked = 0
    return found


def _latest_ms(bucket: Bucket) -> int:
    return int(np.max(np.asarray(bucket.max_ms[bucket.next_segment :])))


def _look_at(part: IndexPart, runs: Iterable[Run], packs: Iterable[Bucket]) -> Iterator[int]:
    """How many rows it has, and when they are due."""
    for run in runs:
        if run.has_more() and not run.is_stale:
            part.rows_in_memory += len(run)
            for rows in in_parts([run.rest()]):
                part.spans([int(rows.times_ms.min()), int(rows.times_ms.max())])
                yield rows.length
    for pack in packs:
        if pack.has_more() and not pack.is_stale:
            part.rows_in_memory += pack.rows_at_hand + sum(map(int, pack.counts[pack.next_segment :]))
            part.spans([pack.head_ms()])
            if pack.next_segment < pack.segments:
                part.spans([_latest_ms(pack)])
            yield pack.segments + COLUMNS_COST


def _times_of_column(fed: Part) -> list[int]:
    times_ms = fed.unsorted_rows().times_ms if len(fed.column) else ()
    return [int(np.min(times_ms)), int(np.max(times_ms))] if len(times_ms) else []


def _look_at_fed(claim: _Claim, fed: Part) -> Iterator[int]:
    """The same of what is being fed, and whose rows these are."""
    column = [fed.unsorted_rows()] if len(fed.column) else []
    claim.part.rows_in_memory += len(fed.column)
    claim.part.spans(_times_of_column(fed))
    for rows in in_parts(column):
        claim.add(rows)
        yield rows.length
    yield from _look_at_rows(claim, fed.runs, fed.packs)


def _look_at_rows(claim: _Claim, runs: Sequence[Run], packs: Sequence[Bucket]) -> Iterator[int]:
    yield from _look_at(claim.part, runs, packs)
    for rows in in_parts(run.rest() for run in runs if run.has_more() and not run.is_stale):
        claim.add(rows)
        yield rows.length
    for pack in packs:
        for rows in in_parts(_decoded(pack)):
            claim.add(rows)
            yield rows.length


def _decoded(pack: Bucket) -> Iterator[Rows]:
    if not pack.is_stale:
        try:
            yield from pack.rows_in_memory()
        except (CorruptData, RuntimeError):  # taken from between two slices: its rows are on their way
            return


# -- which part has which position -----------------------------------------------------------------------


def _share_out(view: View, claims: list[_Claim], buckets: list[IndexPart]) -> Generator[int, None, int]:
    """Count each position that waits in one of the parts; returns how many are in none."""
    ranges = _Ranges(buckets)
    nowhere, looked = 0, 0
    # A copy, as ledgers come and go between two slices.
    for ledger_id in list(view.index.members.ledgers):
        tracked = view.index.members.bitmaps.get(ledger_id)
        if not tracked:
            continue
        passed = view.reader.passed.bitmaps.get(ledger_id)
        left = BitMap(tracked) if passed is None else tracked - passed
        for claim in claims:
            if left and (claimed := claim.members.get(ledger_id)) is not None:
                claim.part.positions += left.intersection_cardinality(claimed)
                # Counted in one part: a position with rows in two is in the first of them.
                left -= claimed
        if left:
            nowhere += ranges.count(ledger_id, left)
        # Bitmaps are compared container by container, which costs a fraction of looking at rows.
        looked += LEDGER_COST + len(tracked) // 100
        if looked >= SLICE_ROWS_MAX:
            yield looked
            looked = 0
    ranges.share_overlaps()
    return nowhere


class _Ranges:
    """Buckets by the positions that they cover."""

    def __init__(self, buckets: list[IndexPart]) -> None:
        # One pass over all borders: comparing each bucket with each ledger would be millions of steps where
        # there are thousands of both.
        edges = sorted({code for one in buckets for code in (one.first_code, one.last_code + 1)})
        opening: dict[int, list[IndexPart]] = {}
        for one in buckets:
            opening.setdefault(one.first_code, []).append(one)
        self._spans: list[tuple[int, int, tuple[IndexPart, ...]]] = []
        """First code, end and buckets, ascending: no two overlap."""
        self._at = 0
        self._shared: dict[tuple[IndexPart, ...], int] = {}
        present: list[IndexPart] = []
        for first, end in pairwise(edges):
            present = [one for one in present if one.last_code >= first] + opening.get(first, [])
            if present:
                self._spans.append((first, end, tuple(present)))

    def count(self, ledger_id: int, entry_ids: BitMap) -> int:
        """Entries of the next ledger, in their order; returns how many no bucket covers."""
        first_code = ledger_id << ENTRY_BITS
        spans, outside = self._spans, len(entry_ids)
        # Ledgers come in their order, so what lies before is never looked at again.
        while self._at < len(spans) and spans[self._at][1] <= first_code:
            self._at += 1
        for first, end, buckets in islice(spans, self._at, None):
            if first > first_code | ENTRY_MASK:
                break
            inside = entry_ids.range_cardinality(
                max(first - first_code, 0), min(end - first_code, ENTRY_MASK + 1)
            )
            outside -= inside
            if len(buckets) == 1:
                buckets[0].positions += inside
            elif inside:
                self._shared[buckets] = self._shared.get(buckets, 0) + inside
        return outside

    def share_overlaps(self) -> None:
        """Positions that several buckets cover are in those that have more rows than positions so far."""
        for buckets, count in self._shared.items():
            # Which of several buckets has a row only its segments say; reading them all for a list is not
            # worth it.
            room = {n: float(one.rows - one.positions) for n, one in enumerate(buckets)}
            weights = {n: rows for n, rows in room.items() if rows > 0} or {0: 1.0}
            for n, share in apportion(weights, count).items():
                buckets[n].positions += share
                buckets[n].is_estimated |= len(weights) > 1
