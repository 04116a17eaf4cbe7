"""Writes buckets into a topic's storage and names them in its records. The caller opens the stores."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable
from typing import Final

from geminga.managed_ledger.cursor.cursor import Cursor
from geminga.managed_ledger.managed_ledger import ManagedLedger
from geminga.pipeline.buckets.backlog import Backlog
from geminga.pipeline.buckets.buckets import Encoded
from geminga.tracker.buckets.bucket_store import BucketOwner, BucketStore
from geminga.tracker.format.stored_bucket import KeyRange, bucket_key, range_of_key

NAMED_AT_ONCE: Final = 100


def named_buckets(owner: BucketOwner) -> dict[int, KeyRange]:
    """What the names of buckets speak of, by their ledgers."""
    found = {}
    for key, ledger_id in owner.properties().items():
        covered = range_of_key(key)
        if covered is not None:
            found[ledger_id] = covered
    return found


def backlog_of(topic: ManagedLedger, cursor: Cursor, owner: BucketOwner, due_after_ms: int) -> Backlog:
    """What a subscription has still to get."""
    state = cursor.state()
    return Backlog(
        frozenset(info.ledger_id for info in topic.ledgers),
        cursor.mark_delete,
        {ledger_id: ids.serialize() for ledger_id, ids in state.acknowledged.items()},
        named_buckets(owner),
        due_after_ms,
    )


async def load(
    topic: ManagedLedger, owner: BucketOwner, buckets: Iterable[Encoded], old: Collection[int]
) -> int:
    """Write buckets, and have properties name them instead of those that overlap with them and are in one of
    the ledgers `old`; how many there were.

    Durable on return; each hundred is named by one write. A crash or an error leaves those that were named,
    and ledgers that no property names, which the next start deletes. StorageError, ValueTooLarge.
    """
    store, buckets_named = BucketStore(topic.storage), 0
    async for named in _written(store, buckets):
        replaced = _replaced(owner, [covered for _, covered in named], old)
        await owner.swap({bucket_key(covered): ledger_id for ledger_id, covered in named}, replaced)
        buckets_named += len(named)
        for ledger_id in replaced.values():
            await store.delete(ledger_id)
    return buckets_named


async def _written(
    store: BucketStore, buckets: Iterable[Encoded]
) -> AsyncIterator[list[tuple[int, KeyRange]]]:
    """Groups of buckets whose entries are durable: ledgers, and what their names are to speak of."""
    named: list[tuple[int, KeyRange]] = []
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
        named.append((writer.ledger_id, bucket.covered))
        if len(named) >= NAMED_AT_ONCE:
            yield named
            named = []
    if named:
        yield named


def _replaced(owner: BucketOwner, new: Collection[KeyRange], old: Collection[int]) -> dict[str, int]:
    """Properties that name one of the ledgers `old` and speak of positions of these ranges."""
    return {
        key: ledger_id
        for key, ledger_id in owner.properties().items()
        if ledger_id in old and (covered := range_of_key(key)) is not None and _overlaps(covered, new)
    }


def _overlaps(covered: KeyRange, new: Collection[KeyRange]) -> bool:
    return any(one.first_code <= covered.last_code and covered.first_code <= one.last_code for one in new)


async def unname(topic: ManagedLedger, owner: BucketOwner, buckets: Collection[int]) -> None:
    """Have no property name these buckets any more, by the ledgers that hold them, and delete them; those
    that are gone already are left out.
    """
    named = {key: id_ for key, id_ in owner.properties().items() if id_ in buckets}
    if named:
        await owner.swap({}, named)
    store = BucketStore(topic.storage)
    for ledger_id in named.values():
        await store.delete(ledger_id)
