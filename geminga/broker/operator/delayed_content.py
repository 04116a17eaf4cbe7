"""The content of one bucket on the bookie, decoded for users: its directory, and its rows by due time."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import trio

from geminga.broker.operator.delayed_looks import Looked, segments_of
from geminga.broker.operator.delayed_statistics import BucketContent, BucketRow, BucketRows, LedgerMembers
from geminga.errors import GemingaError, PeerError, StorageError
from geminga.position import Position

if TYPE_CHECKING:
    from geminga.tracker.format.stored_bucket import StoredBucket


class NoSuchBucket(PeerError):
    """No bucket of the index has that ledger or exactly that range."""

    http_status = 404


class Unreadable(PeerError):
    """The bucket is damaged, and the index has not noticed that yet."""

    http_status = 409


def _unreadable(what: str, stored: StoredBucket, error: GemingaError) -> Unreadable:
    return Unreadable(
        f"{what} of the bucket in ledger {stored.ledger_id} cannot be read: {error}. The broker notices when "
        "it loads that, or when it is told to look at all buckets (geminga delayed verify)"
    )


def find_bucket(looked: Looked, name: str) -> StoredBucket | None:
    """Find a bucket by its ledger (`45`), its range (`10-11`, as in the list of buckets) or its property."""
    from geminga.tracker.format.stored_bucket import KEY_PREFIX

    buckets = looked.buckets_to_be
    if buckets is None:
        return None
    wanted = name.removeprefix(KEY_PREFIX).removeprefix("bucket_").replace("..", "_").replace("-", "_")
    for stored in buckets.stored:
        if wanted in (str(stored.ledger_id), stored.key.removeprefix(KEY_PREFIX)):
            return stored
    return None


async def content_of(looked: Looked, stored: StoredBucket) -> BucketContent:
    """The directory, read now. Raises `Unreadable`."""
    buckets, view = looked.buckets_to_be, looked.view
    assert buckets is not None
    try:
        _, directory = await buckets.store.open(stored.ledger_id)
    except StorageError as error:
        raise _unreadable("the directory", stored, error) from None
    from geminga.tracker.index.composition import range_text

    ledgers = []
    for ledger_id, entry_ids in directory.members.items():
        first, last = entry_ids.min(), entry_ids.max()
        tracked = None if view is None else view.tracked(ledger_id, first, last)
        ledgers.append(
            LedgerMembers(
                ledger_id=ledger_id,
                messages=len(entry_ids),
                waiting=0 if tracked is None else tracked.intersection_cardinality(entry_ids),
                first_entry=first,
                last_entry=last,
            )
        )
        await trio.lowlevel.checkpoint()
    bucket = next((bucket for known, bucket in buckets.index.buckets.items() if known is stored), None)
    return BucketContent(
        topic=str(looked.topic.name),
        partition=looked.partition,
        property=stored.key,
        ledger_id=stored.ledger_id,
        range=range_text(*stored.covered),
        messages=directory.rows,
        bytes=stored.bytes,
        segments=[] if bucket is None else list(segments_of(bucket)),
        ledgers=ledgers,
    )


async def rows_of(looked: Looked, stored: StoredBucket, start: int, count_max: int) -> BucketRows:
    """Rows from this number on, by due time, read now. Raises `Unreadable`."""
    buckets, delayed = looked.buckets_to_be, looked.subscription.delayed
    assert buckets is not None
    counts = stored.directory.counts.tolist()
    found: list[BucketRow] = []
    for number, end in enumerate(accumulate(counts)):
        first = start + len(found) - (end - counts[number])
        if first >= counts[number]:
            continue
        if len(found) >= count_max:
            break
        try:
            entry = await buckets.store.read_segment(stored, number)
            rows = stored.directory.decode_segment(number, entry)
        except StorageError as error:
            raise _unreadable(f"segment {number}", stored, error) from None
        part = rows.part(first, min(first + count_max - len(found), rows.length))
        for due_ms, code in zip(part.times_ms.tolist(), part.codes.tolist(), strict=True):
            position = Position(code >> 32, code & 0xFFFFFFFF)
            found.append(
                BucketRow(
                    ledger_id=position.ledger_id,
                    entry_id=position.entry_id,
                    due_ms=due_ms,
                    segment=number,
                    waits=delayed.holds(position),
                )
            )
        await trio.lowlevel.checkpoint()
    following = start + len(found)
    return BucketRows(messages=found, next=following if found and following < sum(counts) else None)
