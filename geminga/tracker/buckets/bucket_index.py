"""What the keeper of the buckets asks of an index, and what it tells it. All of it is plain and synchronous.

Which positions are tracked is the index's business alone; a bucket is only where the due times of some of
them are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from pyroaring import BitMap

from geminga.tracker.format.stored_bucket import StoredBucket
from geminga.tracker.index.frozen import Frozen


class BucketIndex(Protocol):
    def wanted(self, now_ms: int) -> Sequence[tuple[StoredBucket, int]]:
        """Segments (bucket, number) to be loaded now, the most urgent first."""
        ...

    def next_wanted_ms(self) -> int | None:
        """When `wanted` will have more than now; None if that is not a question of time."""
        ...

    def segment_loaded(self, bucket: StoredBucket, number: int, entry: bytes) -> None:
        """A wanted segment, as it was read. CorruptData: it is not what it should be, nothing has changed."""
        ...

    def bucket_lost(self, bucket: StoredBucket) -> tuple[int, int]:
        """Forget what only this bucket has, and have its ledgers read again; returns the first and the
        last.
        """
        ...

    def sealed(self, frozen: Frozen, bucket: StoredBucket) -> None:
        """The frozen rows are on disk now: the bucket serves instead of them."""
        ...

    def sealed_none(self, frozen: Frozen) -> None:
        """None of the frozen rows is live any more, or none is left in there, and none was written."""
        ...

    def swap(self, old: Sequence[StoredBucket], new: StoredBucket) -> None:
        """All live rows of some neighbours are in a new bucket now; none of its segments is loaded."""
        ...

    def recovered(self, bucket: StoredBucket, members: Mapping[int, BitMap]) -> None:
        """A bucket that was found at a start, and what of it is still wanted: entry ids by ledger."""
        ...

    def released(self) -> Sequence[StoredBucket]:
        """Buckets that nobody wants any more; each is returned once."""
        ...

    def live(self, first_code: int, last_code: int) -> Mapping[int, BitMap]:
        """Copies of the entry ids that are tracked between these positions, both included, by ledger."""
        ...

    def live_count(self, first_code: int, last_code: int) -> int:
        """How many that are."""
        ...
