"""The metadata tree: versioned values under slash-separated paths, committed in groups, durable when
acknowledged.

A node needs no parent: `/a/b` may exist without `/a`, and deleting `/a` leaves `/a/b`. Reads return durable
state and never wait for the writer. docs/formats/metadata.md describes the format on disk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from itertools import islice
from typing import Final

import trio
from msgspec import Struct

from geminga.errors import BadVersion, GemingaError, KeyMissing
from geminga.metadata.group_commit import GroupCommit, Request, Write
from geminga.metadata.keys import children_range, everything, key_of
from geminga.metadata.node import (
    ANY_VERSION,
    MUST_NOT_EXIST,
    VALUE_BYTES_MAX,
    Delete,
    Put,
    Stored,
    ValueTooLarge,
    decode_row,
)
from geminga.metadata.space_reserve import SpaceReserve
from geminga.metadata.watch import Change, ChangeKind, Watchers
from geminga.storage.disk_errors import DiskFull
from geminga.storage.key_value import KeyValue

__all__ = [
    "ANY_VERSION",
    "MUST_NOT_EXIST",
    "Change",
    "ChangeKind",
    "Delete",
    "MetadataStore",
    "Put",
    "StoreStatistics",
    "Stored",
    "ValueTooLarge",
]


CHILDREN_AT_ONCE: Final = 200
"""About half a millisecond of work."""


class StoreStatistics(Struct, frozen=True):
    """Counts since the store was opened. `groups` is the number of synced batches; `queued` requests wait
    for one.
    """

    requests: int
    groups: int
    largest_group: int
    conflicts: int
    queued: int
    queued_bytes: int
    watchers: int


class _ConflictError(Exception):
    """An error, and the unfinished request (if any) that must be durable before the caller gets it."""

    def __init__(self, error: GemingaError, queued: Request | None) -> None:
        self.error = error
        self.queued = queued


class MetadataStore:
    """Versioned puts and deletes on a `KeyValue`. Belongs to one trio loop; writes end only while `run` runs.

    While `reserve` refuses, only deletions and urgent writes are accepted.

    `threaded=False` commits on the loop itself, for tests that must be deterministic.
    """

    def __init__(
        self, key_value: KeyValue, reserve: SpaceReserve | None = None, *, threaded: bool = True
    ) -> None:
        self._key_value = key_value
        self._reserve = reserve
        self._writer = GroupCommit(key_value, self._publish, threaded=threaded)
        self._watchers = Watchers()
        self._conflicts = 0

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Commit queued writes, until cancelled.

        On a full disk, waiters get DiskFull, and this continues. Any other failed write raises StorageError
        here and in every waiter. Cancelling lets the current group
        finish. Writes that are still queued, and every later one, are refused with StorageError.
        """
        try:
            await self._writer.run(task_status)
        finally:
            self._watchers.close()

    def call_on_synced(self, call: Callable[[], None]) -> None:
        """Call this after each synced batch from now on, on the writer's thread and before the writers of the
        batch go on. It must not fail, and its time is added to each write.
        """
        self._writer.call_on_synced(call)

    # --- reading: what is durable, without waiting ---

    def get(self, path: str) -> Stored | None:
        """The node's durable state. CorruptData if it cannot be read."""
        return self._get(key_of(path))

    def children(self, path: str) -> list[str]:
        """Names of the durable direct children of `path` ("/" is the root), sorted. Reads one row for each
        child, however many nodes are below.

        Raises CorruptData, and never returns an incomplete list.
        """
        return list(self.each_child(path))

    def each_child(self, path: str) -> Iterator[str]:
        """As `children`, one after the other, read `CHILDREN_AT_ONCE` at a time. Sees changes behind the
        last child that was read.
        """
        start, end = children_range(path)
        skip = len(start)
        while start < end:
            with closing(self._key_value.scan(start, end)) as rows:  # type: ignore[type-var]
                keys = {key for key, _ in islice(rows, CHILDREN_AT_ONCE)}
            # In pieces, since RocksDB's iterator must not stay open while callers do other things: it pins
            # tables.
            after = max(keys) + b"\0" if len(keys) == CHILDREN_AT_ONCE else end
            # A batch can be read before it is synced. Readers get the durable state instead, or a crash could
            # take back what they have acted upon.
            for key, stored in self._writer.durable.items():
                if start <= key < after:
                    (keys.discard if stored is None else keys.add)(key)
            for key in sorted(keys):
                yield key[skip:].decode()
            start = after

    def is_empty(self) -> bool:
        """Whether the store has no durable node."""
        start, end = everything()
        for key, _ in self._key_value.scan(start, end):
            # A row may be of a batch that is not synced yet, or be deleted by one: `durable` has the last
            # synced state of such keys.
            if self._writer.durable.get(key, True) is not None:
                return False
        return all(stored is None for stored in self._writer.durable.values())

    @contextmanager
    def watch(self, *prefixes: str) -> Iterator[trio.MemoryReceiveChannel[Change]]:
        """A channel of the durable changes of the nodes `prefixes` and below, in order, while the context is
        open.

        Bounded: a watcher that falls behind gets one RESYNC instead of the missed changes, and must read
        again. The channel ends when the store stops.
        """
        with self._watchers.watch(*prefixes) as receive:
            yield receive

    def statistics(self) -> StoreStatistics:
        writer = self._writer
        return StoreStatistics(
            requests=writer.requests,
            groups=writer.groups,
            largest_group=writer.largest_group,
            conflicts=self._conflicts,
            queued=writer.queued,
            queued_bytes=writer.queued_bytes,
            watchers=len(self._watchers),
        )

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """While the context is open, nothing on disk changes; writes wait for its end."""
        async with self._writer.paused():
            yield

    # --- writing: durable on return ---

    async def put(
        self,
        path: str,
        value: bytes,
        expected_version: int | None = ANY_VERSION,
        *,
        is_urgent: bool = False,
    ) -> int:
        """Write the node and return its new version; durable on return.

        Raises BadVersion unless the node has `expected_version` (MUST_NOT_EXIST: is absent; ANY_VERSION:
        always written). The earlier write is durable by then, so a second read sees it. Raises
        ValueTooLarge, StorageError; after DiskFull nothing was written. If cancelled while it waits for room,
        nothing happens; if cancelled later, the node is written all the same.
        """
        return (await self.transact([Put(path, value, expected_version)], is_urgent=is_urgent))[0]

    async def delete(self, path: str, expected_version: int | None = ANY_VERSION) -> None:
        """Remove the node; durable on return. Raises KeyMissing, BadVersion, and as `put`. Its children
        remain.
        """
        await self.transact([], [Delete(path, expected_version)])

    async def transact(
        self, puts: Sequence[Put], deletes: Sequence[Delete] = (), *, is_urgent: bool = False
    ) -> list[int]:
        """Write all or nothing with one sync; returns the new versions of the puts. Each path at most once.
        Urgent is what frees space, and what acknowledgements need.

        Errors and cancelling as for `put` and `delete`.
        """
        size_bytes = 0
        for put in puts:
            # Refused before it is queued: a failed batch would fail the requests of others in its group.
            if len(put.value) > VALUE_BYTES_MAX:
                raise ValueTooLarge(f"{put.path[:200]}: {len(put.value)} bytes, at most {VALUE_BYTES_MAX}")
            size_bytes += len(put.value)
        if puts and not is_urgent and self._reserve is not None and (why := self._reserve.refusal()):
            raise DiskFull(why)
        # Waits before versions are checked: afterwards they might be outdated.
        await self._writer.wait_room(size_bytes)
        try:
            writes = self._plan(puts, deletes)
        except _ConflictError as conflict:
            self._conflicts += 1
            # The conflicting write may not be durable yet. An error told now would name a version that a
            # crash takes back.
            if conflict.queued is not None:
                await conflict.queued.wait()
            raise conflict.error from None
        # Queued without an await after the versions were checked: nothing can come in between.
        await self._writer.enqueue(writes).wait()
        return [write.after.version for write in writes if write.after is not None]

    def _plan(self, puts: Sequence[Put], deletes: Sequence[Delete]) -> list[Write]:
        """The writes, with versions checked against the newest state, including unfinished requests."""
        writes = []
        for path, value, expected in puts:
            key = key_of(path)
            # Against unfinished requests too: they will be committed before this one.
            queued, current = self._writer.newest(key) or (None, self._get(key))
            version = MUST_NOT_EXIST if current is None else current.version
            if expected is not None and expected != version:
                raise _ConflictError(_bad_version(path, expected, version), queued)
            # Versions of a path begin at zero again after a delete, as in ZooKeeper: MUST_NOT_EXIST is the
            # version before the first.
            writes.append(Write(path, key, current, Stored(bytes(value), version + 1)))
        for path, expected in deletes:
            key = key_of(path)
            queued, current = self._writer.newest(key) or (None, self._get(key))
            if current is None:
                raise _ConflictError(KeyMissing(f"{path}: there is no such node"), queued)
            if expected is not None and expected != current.version:
                raise _ConflictError(_bad_version(path, expected, current.version), queued)
            writes.append(Write(path, key, current, None))
        assert len({write.key for write in writes}) == len(writes), "one path twice in a transaction"
        return writes

    def _get(self, key: bytes) -> Stored | None:
        durable = self._writer.durable
        if key in durable:
            return durable[key]
        # RocksDB's block cache is enough here; a map of all nodes would hold every topic's record in memory.
        row = self._key_value.get(key)
        return None if row is None else decode_row(key, row)

    def _publish(self, writes: list[Write]) -> None:
        for path, _, before, after in writes:
            if after is None:
                assert before is not None
                change = Change(path, ChangeKind.DELETED, before.version)
            else:
                kind = ChangeKind.CREATED if before is None else ChangeKind.MODIFIED
                change = Change(path, kind, after.version)
            self._watchers.publish(change)


def _bad_version(path: str, expected: int, version: int) -> BadVersion:
    def shown(number: int) -> str:
        return "absent" if number == MUST_NOT_EXIST else f"version {number}"

    return BadVersion(f"{path}: expected {shown(expected)}, found {shown(version)}")
