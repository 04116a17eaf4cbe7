"""Adopt buckets that were built elsewhere into an index that is in use. Plain and synchronous.

A position that is tracked already stays tracked once: of two rows for it, the second one met is dead. A
position that a subscription has acknowledged, been given, or has due is not tracked for it again. A bucket
that is replaced goes after the new ones have come; what only it had is forgotten, and its ledgers are read
again.

A range is the first and the last position, both included, as codes. Of the ranges of one call no two overlap.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence

from pyroaring import BitMap

from geminga.tracker.format.rows import position_of
from geminga.tracker.format.stored_bucket import StoredBucket
from geminga.tracker.index.index import DelayedIndex
from geminga.tracker.index.part import NO_CODE
from geminga.tracker.index.reader import Reader

Members = Mapping[int, BitMap]
"""Entry ids by ledger."""
GivenOut = Callable[[Reader, int], BitMap]
"""Which entries of a ledger are with a consumer of that reader, or to be sent again."""


def reserve(index: DelayedIndex, ranges: Sequence[tuple[int, int]]) -> None:
    """Buckets of these ranges are about to come: what is fed of them stays in memory until `unreserve`. A run
    of entries that crosses a border meanwhile may be sealed: that costs rows that are there twice.
    """
    index.buckets.reserve(ranges)
    # The present part was chosen before the borders were there.
    index.feed.turn_away()


def unreserve(index: DelayedIndex, ranges: Sequence[tuple[int, int]]) -> None:
    index.buckets.unreserve(ranges)
    index.feed.turn_away()


def replaced_by(index: DelayedIndex, ranges: Iterable[tuple[int, int]]) -> list[StoredBucket]:
    """The buckets that overlap with one of these ranges."""
    new = sorted(ranges)
    return [
        stored for stored, _ in index.buckets.items() if _overlaps(new, stored.first_code, stored.last_code)
    ]


def _overlaps(ranges: Sequence[tuple[int, int]], first_code: int, last_code: int) -> bool:
    """Whether some of the ranges, which ascend, has one of these positions."""
    place = bisect_right(ranges, (last_code, NO_CODE)) - 1
    return place >= 0 and ranges[place][1] >= first_code


def cut_off(index: DelayedIndex, ranges: Iterable[tuple[int, int]]) -> bool:
    """Have what the index is about to seal of these ranges, which are reserved, sealed now; False: ask again
    when that is done.
    """
    new = sorted(ranges)
    for tail in list(index.feed.tails):
        # Left growing it would be sealed over the new buckets' range later.
        if tail.first_code < NO_CODE and _overlaps(new, tail.first_code, tail.last_code):
            index.feed.freeze(tail)
    return not any(_overlaps(new, one.first_code, one.last_code) for one in index.buckets.frozen())


def left_over(index: DelayedIndex, bucket: StoredBucket, kept: Members) -> dict[int, BitMap]:
    """What is tracked of what a bucket spans and not among these."""
    # Members and not the bucket's rows: what was delivered need not be in the new bucket.
    live = index.members.between(bucket.first_code, bucket.last_code)
    found = {ledger_id: ids - kept.get(ledger_id, BitMap()) for ledger_id, ids in live.items()}
    return {ledger_id: ids for ledger_id, ids in found.items() if ids}


def add_bucket(index: DelayedIndex, bucket: StoredBucket, members: Members, given_out: GivenOut) -> int:
    """Track the bucket's positions that a subscription wants; the number that were not tracked before. Its
    range is served by the bucket from now on; others that do so too are yet to be replaced.
    """
    # What is tracked stays by the row that it has: a position that counted twice would never be done.
    new = _not_tracked(index, members)
    for ledger_id, entry_ids in list(new.items()):
        unwanted = [(reader, _no_need(reader, ledger_id, entry_ids, given_out)) for reader in index.readers]
        if unwanted:
            # Tracked if one view wants it; the others pass it below.
            for_nobody = BitMap.intersection(*(ids for _, ids in unwanted))
            new[ledger_id] = entry_ids = entry_ids - for_nobody
        if index.settings.is_shared:
            for reader, ids in unwanted:
                reader.passed.add_all({ledger_id: ids & entry_ids})
    added = index.members.add_all(new)
    # After the members: a bucket without members is taken for one that was used up.
    index.buckets.add(bucket)
    for code in [code for code in index.overrides if (code & 0xFFFFFFFF) in new.get(code >> 32, ())]:
        # The new bucket has the time that the message was sent with; an operator's change stays.
        index.feed.reschedule(*position_of(code), index.overrides[code])
    index.wake()
    return added


def _not_tracked(index: DelayedIndex, members: Members) -> dict[int, BitMap]:
    tracked = index.members.bitmaps
    new = {
        ledger_id: ids - tracked[ledger_id] if ledger_id in tracked else BitMap(ids)
        for ledger_id, ids in members.items()
    }
    return {ledger_id: ids for ledger_id, ids in new.items() if ids}


def _no_need(reader: Reader, ledger_id: int, entry_ids: BitMap, given_out: GivenOut) -> BitMap:
    found = reader.acknowledged_of(ledger_id, entry_ids) | given_out(reader, ledger_id)
    # Due and unread: it left the membership when it fell due, and tracked again it would be delivered twice.
    if reader.due.count:
        found |= reader.due.of_ledger(ledger_id)
    return found & entry_ids


def replace_bucket(index: DelayedIndex, bucket: StoredBucket, kept: Members) -> int:
    """It serves no more; `kept` is what new buckets have of its ledgers. How many are to be read again."""
    lost = left_over(index, bucket, kept)
    index.buckets.drop(bucket)
    for ledger_id, entry_ids in lost.items():
        index.members.take(ledger_id, entry_ids)
        for reader in index.readers:
            passed = reader.passed.bitmaps.get(ledger_id)
            if passed is not None and (common := passed & entry_ids):
                # Only what is a member may be passed: the length of a view is the difference.
                reader.passed.take(ledger_id, common)
    if lost:
        index.feed.expect_repeats()
        for reader in index.readers:
            # One range for all: reads leave out what the new buckets have.
            reader.read_again(min(lost), max(lost))
    index.wake()
    return sum(map(len, lost.values()))


def union(members: Sequence[Members]) -> dict[int, BitMap]:
    found: dict[int, BitMap] = {}
    for some in members:
        for ledger_id, entry_ids in some.items():
            found[ledger_id] = found[ledger_id] | entry_ids if ledger_id in found else entry_ids
    return found
