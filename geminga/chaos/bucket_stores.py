"""Makes stores of buckets that can fail, without an import of what the delayed index needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from geminga.chaos.rules.faults import Door
    from geminga.managed_ledger.cursor.cursor_ledger import Storage
    from geminga.tracker.buckets.bucket_store import BucketStore


def faulty_bucket_stores(door: Door) -> Callable[[Storage], BucketStore]:
    """What makes the store of each topic's buckets."""

    def new_store(storage: Storage) -> BucketStore:
        # With the first delayed message, and not at the start of the broker: it imports numpy.
        from geminga.chaos.faulty_buckets import FaultyBucketStore

        return FaultyBucketStore(storage, door)

    return new_store
