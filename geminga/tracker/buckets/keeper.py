"""Keeps the buckets of one delayed index on the bookie: seals, loads, merges and deletes them.

Tasks that wait for each other only where properties change: a merge of millions of rows holds up neither
the next seal nor a segment that is due. The index serves all along: frozen rows from memory until they are
sealed, merged buckets until the new one is named.

What is read and does not match its checksum costs the bucket, and the bucket only: its ledgers are read again
from the backlog. What cannot be written or deleted is tried again, at growing intervals.
"""

from __future__ import annotations

import trio

from geminga.clock import Clock
from geminga.tracker.buckets.bucket_index import BucketIndex
from geminga.tracker.buckets.bucket_operations import BucketOperations
from geminga.tracker.buckets.bucket_owner import BucketOwner
from geminga.tracker.buckets.bucket_set import BucketSet
from geminga.tracker.buckets.bucket_settings import BucketSettings
from geminga.tracker.buckets.bucket_store import BucketStore
from geminga.tracker.buckets.loading import Loader
from geminga.tracker.buckets.merge_task import MergeTask
from geminga.tracker.buckets.retrying import OffLoop, in_thread
from geminga.tracker.buckets.sealing import IsWhole, Sealer
from geminga.tracker.buckets.verify import Inspector
from geminga.tracker.format.bucket_format import Directory
from geminga.tracker.format.stored_bucket import KeyRange, StoredBucket
from geminga.tracker.index.frozen import Frozen


def _never_whole(first_code: int, last_code: int) -> bool:
    return False


class Keeper:
    """Tell it `freeze` what is to be sealed, and `poke` it when the index may want or have released
    something, or when message time was moved.
    """

    def __init__(
        self,
        index: BucketIndex,
        store: BucketStore,
        owner: BucketOwner,
        clock: Clock,
        settings: BucketSettings,
        *,
        off_loop: OffLoop = in_thread,
        is_whole: IsWhole = _never_whole,
    ) -> None:
        self.operations = BucketOperations(clock)
        self.buckets = BucketSet(index, store, owner, self.operations)
        self._sealer = Sealer(self.buckets, settings, off_loop, is_whole)
        self._loader = Loader(self.buckets, clock)
        self._merges = MergeTask(self.buckets, settings, off_loop)
        self.inspector = Inspector(self.buckets, off_loop)

    def freeze(self, frozen: Frozen) -> None:
        """Seal these rows; they are durable once the index hears `sealed`."""
        self._sealer.add(frozen)

    def covered(self, directory: Directory) -> KeyRange:
        """What the name of a bucket with this directory speaks of."""
        return self._sealer.covered(directory)

    def poke(self) -> None:
        self.buckets.load_signal.set()
        self.buckets.look_for_released()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled, at any moment: each index is then in a named bucket or in the backlog, and what
        nothing names is swept at the next start.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._sealer.run)
            nursery.start_soon(self._loader.run)
            nursery.start_soon(self._merges.run)
            nursery.start_soon(self.buckets.run_deletions)
            nursery.start_soon(self.inspector.run)
            task_status.started()

    async def clear(self) -> None:
        """Forget all buckets and whatever is frozen, after the index has been cleared. No property names one
        on return; their ledgers are deleted soon after.

        ServiceNotReady, StorageError: it is tried again, but a crash before that may bring some back.
        """
        self._sealer.clear()
        await self.buckets.clear()

    # -- what it is -------------------------------------------------------------------------------------

    @property
    def stored(self) -> list[StoredBucket]:
        """The buckets on the bookie, in the order of their first messages."""
        return self.buckets.stored

    @property
    def stored_bytes(self) -> int:
        return sum(bucket.bytes for bucket in self.buckets.serving.values())

    @property
    def waiting(self) -> int:
        """How many are frozen and not sealed yet."""
        return len(self._sealer)
