"""The writer of the metadata tree: all requests that are queued during one sync go into the next batch,
which is synced once.

It handles rows and requests, not versions: `store.py` decides what may be written.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import NamedTuple

import trio

from geminga.errors import StorageError
from geminga.limits import KIB, MIB
from geminga.metadata.node import VALUE_BYTES_MAX, Stored, encode_row
from geminga.storage.disk_errors import DiskFull
from geminga.storage.key_value import KeyValue

# A batch is built in memory and is one record of RocksDB's log: a larger one would also hold up its waiters.
GROUP_BYTES_MAX = 4 * MIB
"""The limit of one synced batch; a single larger transaction is a batch of its own."""
QUEUE_BYTES_MAX = 16 * MIB
"""Above this, counted with `REQUEST_OVERHEAD_BYTES`, puts wait before they are queued."""
# Deletions have no value: counted without it, any number of them could wait.
REQUEST_OVERHEAD_BYTES = KIB

assert VALUE_BYTES_MAX < GROUP_BYTES_MAX < QUEUE_BYTES_MAX


class Write(NamedTuple):
    """One node's change: `before` is the replaced value, `after` is None for a delete."""

    path: str
    key: bytes
    before: Stored | None
    after: Stored | None


class Request:
    """The changes of one call, applied as a whole. `wait` returns once they are durable."""

    __slots__ = ("_done", "_error", "size_bytes", "writes")

    def __init__(self, writes: list[Write]) -> None:
        self.writes = writes
        self.size_bytes = REQUEST_OVERHEAD_BYTES + sum(
            len(write.key) + (len(write.after.value) if write.after else 0) for write in writes
        )
        self._done = trio.Event()
        self._error: StorageError | None = None

    async def wait(self) -> None:
        """Raises DiskFull if there was no space, and nothing was written. Raises StorageError if the write
        failed; whether it is on disk is then unknown.
        """
        await self._done.wait()
        if self._error is not None:
            kind = DiskFull if isinstance(self._error, DiskFull) else StorageError
            raise kind(str(self._error)) from self._error

    def finish(self, error: StorageError | None) -> None:
        self._error = error
        self._done.set()


class GroupCommit:
    """A bounded queue of requests and the loop that commits them. Belongs to one trio loop.

    `on_durable` is called on the loop for each request, in order, once its batch is synced and before its
    waiter wakes.
    """

    def __init__(
        self, key_value: KeyValue, on_durable: Callable[[list[Write]], None], *, threaded: bool
    ) -> None:
        self._key_value = key_value
        self._on_durable = on_durable
        self._threaded = threaded
        self._on_synced: Callable[[], None] = lambda: None
        # Its own: with trio's shared limiter a crowd of reads could keep every metadata write waiting.
        self._limiter = trio.CapacityLimiter(1)
        self._queue: deque[Request] = deque()
        self._committing: list[Request] = []
        self._bytes = 0
        self._wake = trio.Event()
        self._room = trio.lowlevel.ParkingLot()
        self._turn = trio.Lock()
        """Held while a group is committed, and by `paused`."""
        self._started = False
        self._stopped: StorageError | None = None
        # The newest state of each node that is queued or being committed, and the request that brings it.
        self._newest: dict[bytes, tuple[Request, Stored | None]] = {}
        # The durable state of each node of the group being committed: a batch is readable before it is
        # synced.
        self.durable: dict[bytes, Stored | None] = {}
        self.requests = 0
        self.groups = 0
        self.largest_group = 0

    def call_on_synced(self, call: Callable[[], None]) -> None:
        """See `MetadataStore.call_on_synced`."""
        self._on_synced = call

    def newest(self, key: bytes) -> tuple[Request, Stored | None] | None:
        """The state that the last unfinished request for `key` will write, and that request."""
        return self._newest.get(key)

    @property
    def queued(self) -> int:
        return len(self._queue)

    @property
    def queued_bytes(self) -> int:
        """Bytes of all unfinished requests, overhead included."""
        return self._bytes

    async def wait_room(self, size_bytes: int) -> None:
        """Return when a request of that size fits into the queue. Raises StorageError if the writer has
        stopped.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        self._check_accepting()
        # An empty queue takes any request, or one larger than the bound would wait for ever.
        while self._bytes and self._bytes + size_bytes + REQUEST_OVERHEAD_BYTES > QUEUE_BYTES_MAX:
            await self._room.park()
            self._check_accepting()

    def enqueue(self, writes: list[Write]) -> Request:
        """Queue a request. It is committed even if the caller is cancelled."""
        self._check_accepting()
        request = Request(writes)
        for write in writes:
            self._newest[write.key] = request, write.after
        self._queue.append(request)
        self._bytes += request.size_bytes
        self.requests += 1
        self._wake.set()
        return request

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Commit until cancelled; see `MetadataStore.run`."""
        assert not self._started, "a store runs once"
        self._started = True
        reason = StorageError("the metadata store has stopped")
        try:
            task_status.started()
            while True:
                await self._wake.wait()
                self._wake = trio.Event()
                while self._queue:
                    async with self._turn:
                        self._take_group()
                        try:
                            if self._threaded:
                                # Not cancellable: a group given up half-way would be durable or not, with no
                                # one left to say which.
                                await trio.to_thread.run_sync(self._commit, limiter=self._limiter)
                            else:
                                await trio.lowlevel.checkpoint()
                                self._commit()
                        except DiskFull as full:
                            self._refuse_all(full)
                        else:
                            self._complete_group()
        except StorageError as error:
            reason = error
            raise
        finally:
            self._stop(reason)

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """While the context is open, no group is being committed, and none is begun. Requests queue up."""
        async with self._turn:
            yield

    def _take_group(self) -> None:
        size_bytes = 0
        group = self._committing
        while self._queue and (not group or size_bytes + self._queue[0].size_bytes <= GROUP_BYTES_MAX):
            request = self._queue.popleft()
            size_bytes += request.size_bytes
            group.append(request)
            for write in request.writes:
                # The first one of a group wins: two requests for a node may be in it, and readers see the
                # state before both.
                self.durable.setdefault(write.key, write.before)

    def _commit(self) -> None:
        """On the writer's thread: one batch, one sync. The loop does not touch the group meanwhile."""
        # The last write of a node wins, so a counter that is written often costs one row for each sync.
        rows = {write.key: write.after for request in self._committing for write in request.writes}
        puts = [(key, encode_row(after)) for key, after in rows.items() if after is not None]
        self._key_value.write(puts, [key for key, after in rows.items() if after is None], sync=True)
        self._on_synced()

    def _complete_group(self) -> None:
        self.durable.clear()
        self.groups += 1
        self.largest_group = max(self.largest_group, len(self._committing))
        for request in self._committing:
            self._bytes -= request.size_bytes
            for write in request.writes:
                # A later request for the same node may be queued; its state stays the newest.
                if self._newest[write.key][0] is request:
                    del self._newest[write.key]
            self._on_durable(request.writes)
            request.finish(None)
        self._committing.clear()
        self._room.unpark_all()

    def _refuse_all(self, full: DiskFull) -> None:
        """Nothing of the group was written. Queued requests fail with it: their versions may follow from it,
        and the disk has no space for them either.
        """
        requests = (*self._committing, *self._queue)
        self.durable.clear()
        self._newest.clear()
        self._bytes = 0
        self._fail(requests, full)

    def _stop(self, reason: StorageError) -> None:
        self._stopped = reason
        self._fail((*self._committing, *self._queue), reason)

    def _fail(self, requests: Sequence[Request], reason: StorageError) -> None:
        self._committing.clear()
        self._queue.clear()
        for request in requests:
            request.finish(reason)
        self._room.unpark_all()

    def _check_accepting(self) -> None:
        if self._stopped is not None:
            raise StorageError(str(self._stopped)) from self._stopped
