"""The store of a topic's buckets, with faults in its operations."""

from __future__ import annotations

from geminga.chaos.rules.deciding import Facts
from geminga.chaos.rules.faults import Door
from geminga.errors import StorageError
from geminga.managed_ledger.cursor.cursor_ledger import Storage
from geminga.tracker.buckets.bucket_store import BucketStore, BucketWriter, DirectoryEntries
from geminga.tracker.format.stored_bucket import StoredBucket


class FaultyBucketStore(BucketStore):
    """Fails as a bookie does that cannot read or write: nothing is changed, and trying again helps."""

    def __init__(self, storage: Storage, door: Door) -> None:
        super().__init__(storage)
        self._door = door

    async def begin(self) -> BucketWriter:
        self._check("create")
        return await super().begin()

    async def delete(self, ledger_id: int) -> None:
        self._check("delete", ledger_id)
        await super().delete(ledger_id)

    async def read_directory(self, ledger_id: int) -> DirectoryEntries:
        self._check("load", ledger_id)
        return await super().read_directory(ledger_id)

    async def read_segment(self, bucket: StoredBucket, number: int) -> bytes:
        self._check("load", bucket.ledger_id)
        return await super().read_segment(bucket, number)

    async def read_segments(self, bucket: StoredBucket, first: int, bytes_max: int) -> list[bytes]:
        self._check("merge", bucket.ledger_id)
        return await super().read_segments(bucket, first, bytes_max)

    def _check(self, operation: str, ledger_id: int = -1) -> None:
        if not self._door.armed:
            return
        facts = Facts(operation=operation, ledger_id=ledger_id, topic=self.topic)
        if self._door.hit(facts):
            raise StorageError(f"bucket of {self.topic}: cannot {operation} (injected)")
