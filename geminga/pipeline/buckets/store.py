"""Buckets into a topic's storage, and what its records say of them; for whoever has the stores open."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from typing import Final

from geminga.managed_ledger.cursor.cursor import Cursor
from geminga.managed_ledger.managed_ledger import ManagedLedger
from geminga.pipeline.buckets.backlog import Backlog
from geminga.pipeline.buckets.buckets import Encoded, Range
from geminga.tracker.buckets.bucket_owner import BucketOwner
from geminga.tracker.buckets.bucket_store import BucketStore
from geminga.tracker.format.stored_bucket import KeyRange, bucket_key, range_of_key, whole_ledgers

NAMED_AT_ONCE: Final = 100


def named_buckets(owner: BucketOwner) -> dict[int, Range]:
    """The ranges that have a bucket, by its ledger."""
    found = {}
    for key, ledger_id in owner.properties().items():
        covered = range_of_key(key)
        if covered is not None:
            found[ledger_id] = Range(*covered.ledgers)
    return found


def backlog_of(topic: ManagedLedger, cursor: Cursor, owner: BucketOwner, due_after_ms: int) -> Backlog:
    """What a subscription has still to get."""
    state = cursor.state()
    return Backlog(
        frozenset(info.ledger_id for info in topic.ledgers),
        state.mark_delete,
        {ledger_id: ids.serialize() for ledger_id, ids in state.acknowledged.items()},
        named_buckets(owner),
        due_after_ms,
    )


async def load(topic: ManagedLedger, owner: BucketOwner, buckets: Iterable[Encoded]) -> int:
    """Write buckets, and have properties name them instead of those of the same ledgers; how many there were.

    Durable on return; each hundred is named by one write. A crash or an error leaves those that were named,
    and ledgers that no property names, which the next start deletes. StorageError, ValueTooLarge.
    """
    store, buckets_named = BucketStore(topic.storage), 0
    async for named in _written(store, buckets):
        old = _replaced(owner, [range_of_key(key) for key in named])
        await owner.swap(named, old)
        buckets_named += len(named)
        for ledger_id in old.values():
            await store.delete(ledger_id)
    return buckets_named


async def _written(store: BucketStore, buckets: Iterable[Encoded]) -> AsyncIterator[dict[str, int]]:
    """Properties for groups of buckets whose entries are durable."""
    named: dict[str, int] = {}
    for bucket in buckets:
        if not bucket.entries:
            continue
        writer = await store.begin()
        try:
            await writer.append(bucket.entries)
            await writer.finish()
        except BaseException as error:
            await store.abandon(writer, error)
            raise
        named[bucket_key(whole_ledgers(*bucket.range))] = writer.ledger_id
        if len(named) >= NAMED_AT_ONCE:
            yield named
            named = {}
    if named:
        yield named


def _replaced(owner: BucketOwner, ranges: Iterable[KeyRange | None]) -> dict[str, int]:
    """Properties of buckets that have a ledger in common with one of these ranges."""
    new = sorted(one.ledgers for one in ranges if one is not None)
    return dict(_overlapping(owner.properties(), new))


def _overlapping(properties: Mapping[str, int], new: list[tuple[int, int]]) -> Iterator[tuple[str, int]]:
    for key, ledger_id in properties.items():
        covered = range_of_key(key)
        if covered is not None and any(
            first <= covered.ledgers[1] and covered.ledgers[0] <= last for first, last in new
        ):
            yield key, ledger_id


async def unname(topic: ManagedLedger, owner: BucketOwner, buckets: Mapping[int, Range]) -> None:
    """Have no property name these buckets any more, by the ledgers that hold them, and delete them; those
    that are gone already are left out.
    """
    named = {key: id_ for key, id_ in owner.properties().items() if id_ in buckets}
    if named:
        await owner.swap({}, named)
    store = BucketStore(topic.storage)
    for ledger_id in named.values():
        await store.delete(ledger_id)
