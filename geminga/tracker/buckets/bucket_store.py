"""Buckets as ledgers on the bookie: written once, read segment by segment, deleted; and their owner, whose
properties name them: a cursor, or with one index for all subscriptions the topic.

The order of a bucket's life is what makes a crash harmless: the ledger's metadata record, its entries, the
property that names it (`BucketOwner`); and backwards: the property, the ledger, its record. So a property
never names a ledger that was not wholly written, and a ledger that no property names holds nothing that the
backlog does not hold too; `managed_ledger/orphans.py` sweeps it at the next start.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, Protocol

import trio

from geminga.errors import CorruptData, GemingaError, LedgerNotFound, PeerError, ReadOnly, StorageError
from geminga.limits import KIB
from geminga.managed_ledger.cursor.bucket_properties import DELAYED_PREFIX
from geminga.managed_ledger.cursor.cursor import Cursor
from geminga.managed_ledger.cursor.cursor_ledger import Storage
from geminga.managed_ledger.managed_ledger import ManagedLedger
from geminga.tracker.format.bucket_format import Directory, decode_directory, directory_pieces
from geminga.tracker.format.stored_bucket import KEY_PREFIX, KeyRange, StoredBucket

log = logging.getLogger("geminga.tracker")

READ_BYTES_MAX: Final = 256 * KIB
# Five failed reads within a second once deleted a good bucket, whatever the error was.
LOST: Final = (CorruptData, LedgerNotFound)
"""What a read raises that no other read will do better: the bucket is gone or damaged. Any other StorageError
(a disk that hiccups, no descriptor or memory left) says nothing of the bucket, and costs none.
"""


class BucketWriter:
    """The entries of one new bucket; see `BucketStore.writing`."""

    def __init__(self, storage: Storage, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.bytes = 0
        self.is_named = False
        """Whether a property may name the ledger."""
        self._bookie = storage.bookie
        self._durable = -1
        # Kept: the failure is reported from the journal's side, while no call of this writer may be waiting.
        self._error: StorageError | None = None
        self._progress = trio.Event()
        self._writer = storage.bookie.create_ledger(
            ledger_id,
            on_durable=self._on_durable,
            on_failed=self._on_failed,
            topic=storage.path,
            purpose="bucket",
        )

    async def append(self, entries: Iterable[bytes]) -> None:
        """Add entries in order, as fast as the bookie takes them. ReadOnly, StorageError."""
        for entry in entries:
            # A merged bucket of millions of rows would otherwise fill the queue that publishes wait in.
            await self._bookie.wait_room()
            self._writer.append(entry)
            self.bytes += len(entry)

    async def finish(self) -> None:
        """All entries are durable on return, and there will be no more. StorageError."""
        self._writer.close()
        await self.sync()

    async def sync(self) -> None:
        """All entries so far are durable on return. StorageError."""
        last = self._writer.next_entry_id - 1
        # A loop, as the bookie reports group by group.
        while self._durable < last:
            if self._error is not None:
                raise self._error
            await self._progress.wait()

    def begin_naming(self) -> None:
        """A property that names the ledger is about to be written."""
        # Set before the write: whether a write that fails has reached the disk is not known, and from here on
        # the ledger may be the one that a start finds named.
        self.is_named = True

    def close(self) -> None:
        self._writer.close()

    def _on_durable(self, last_entry_id: int) -> None:
        self._durable = last_entry_id
        self._wake()

    def _on_failed(self, error: StorageError) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        self._progress.set()
        # A new one each time: a trio Event cannot be reset.
        self._progress = trio.Event()


class DirectoryEntries(NamedTuple):
    first: int
    """The id of the first one: the number of segments before it."""
    entries: list[bytes]


def opened(
    ledger_id: int, pieces: DirectoryEntries, covered: KeyRange | None
) -> tuple[StoredBucket, Directory]:
    """The bucket of this directory, which is named for what it covers (None: whole ledgers). About 0.02 ms
    for 1,000 rows. CorruptData.
    """
    first, entries = pieces
    directory = decode_directory(entries)
    # Entries were lost or added: a segment's number is its entry id, so none of them could be read by it.
    if directory.segments != first:
        raise CorruptData(
            f"ledger {ledger_id}: a directory of {directory.segments} segments at entry {first}"
        )
    size_bytes = int(directory.sizes_bytes.sum()) + sum(map(len, entries))
    bucket = StoredBucket(ledger_id, directory, size_bytes, covered)
    named = bucket.covered
    # The property names another bucket, as where metadata was edited or copied: refuse it, not trust it.
    if not named.first_code <= bucket.first_code <= bucket.last_code <= named.last_code:
        raise CorruptData(f"ledger {ledger_id} is another bucket than {bucket!r}")
    return bucket, directory


class BucketStore:
    """The bucket ledgers of one topic: Pulsar's BucketSnapshotStorage (BookkeeperBucketSnapshotStorage)."""

    def __init__(self, storage: Storage) -> None:
        # Deleted with the next deletion and not only at the next start: a broker may run for months.
        self.left_behind: list[int] = []
        """Ledgers that nothing names and that could not be deleted yet."""
        self._storage = storage

    @property
    def topic(self) -> str:
        return self._storage.topic

    async def begin(self) -> BucketWriter:
        """A new ledger, whose record is durable. StorageError."""
        # The record first: a ledger on the bookie that no record knows has the next start refused, as if
        # metadata were behind.
        return BucketWriter(self._storage, await self._storage.create_ledger_record("bucket"))

    async def abandon(self, writer: BucketWriter, error: BaseException) -> None:
        """It was not finished because of this error. The ledger is deleted, if not now then with the next
        deletion; unless a property may name it: one whose write failed may be on disk all the same, one that
        was refused is not.
        """
        writer.close()
        # A refusal (too many properties, a closed topic, a full disk) came before the write. Any other error
        # may come after it: deleting the ledger then would leave a name without one.
        if not writer.is_named or isinstance(error, (PeerError, ReadOnly)):
            try:
                await self.delete(writer.ledger_id)
            except GemingaError:
                self.left_behind.append(writer.ledger_id)

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[BucketWriter]:
        """`begin`; the body appends, finishes, and has a property name the ledger. Left by an error or a
        cancellation it is abandoned.
        """
        writer = await self.begin()
        try:
            yield writer
        # Also for a cancellation: each would leave a ledger until the next start.
        except BaseException as error:
            await self.abandon(writer, error)
            raise
        writer.close()

    async def delete(self, ledger_id: int) -> None:
        """Delete a bucket ledger that no property names any more: gone for good on return. Nothing happens
        if it is gone already, or is no ledger of this topic's index. StorageError. Cannot be cancelled
        half-way.
        """
        # A property is data: one that was damaged, or copied from another topic, must not delete a ledger of
        # messages.
        if self.is_ours(ledger_id):
            await self._storage.delete_ledger(ledger_id)

    def is_ours(self, ledger_id: int) -> bool:
        """Whether there is such a ledger, of this topic's index."""
        return ledger_id in self._storage.bucket_ledgers({KEY_PREFIX: ledger_id})

    async def read_all(self, ledger_id: int) -> list[bytes]:
        """All entries of a small ledger, as far as they can be read; logs those that cannot. StorageError."""
        entries: list[bytes] = []
        bookie = self._storage.bookie
        last = bookie.last_entry_id(ledger_id) if self.is_ours(ledger_id) else -1
        for entry_id in range(last + 1):
            try:
                entries += await bookie.read(ledger_id, entry_id, entry_id, bytes_max=1)
            # Each entry is a set of changes by itself, so those behind a damaged one still count.
            except (CorruptData, LedgerNotFound) as error:
                log.error("ledger %d of %s: %s", ledger_id, self._storage.topic, error)
        return entries

    async def read_each(self, ledger_id: int) -> list[bytes]:
        """All entries of a ledger by their ids; those that are damaged are empty. StorageError."""
        entries: list[bytes] = []
        bookie = self._storage.bookie
        last = bookie.last_entry_id(ledger_id) if self.is_ours(ledger_id) else -1
        while len(entries) <= last:
            try:
                entries += await bookie.read(ledger_id, len(entries), last, bytes_max=READ_BYTES_MAX)
            # One damaged entry fails the read of its neighbours too: from here on singly, and then together
            # again.
            except (CorruptData, LedgerNotFound):
                entries += await self._read_or_empty(ledger_id, len(entries))
        return entries

    async def _read_or_empty(self, ledger_id: int, entry_id: int) -> list[bytes]:
        try:
            return await self._storage.bookie.read(ledger_id, entry_id, entry_id, bytes_max=1)
        except (CorruptData, LedgerNotFound):
            return [b""]

    def watch(self, ledger_id: int, tell: Callable[[int], None]) -> None:
        """Have `tell` called when the bookie knows the ledger to be deleted, or damaged for good."""
        self._storage.bookie.watch_ledger(ledger_id, tell)

    def unwatch(self, ledger_id: int) -> None:
        self._storage.bookie.unwatch_ledger(ledger_id)

    async def peek(self, ledger_id: int, first: int, last: int, bytes_max: int) -> list[bytes]:
        """Entries as they are on the bookie, one at least, for a caller that reads them once: no cache keeps
        them. Errors as `read_segment`.
        """
        return await self._storage.bookie.peek(ledger_id, first, last, bytes_max=bytes_max)

    async def open(self, ledger_id: int, covered: KeyRange | None = None) -> tuple[StoredBucket, Directory]:
        """A bucket that was written before, and its directory with the members. `covered`: what its name
        speaks of, which it must have no message beyond.

        CorruptData: damaged or not written to its end. LedgerNotFound: there is no such ledger. StorageError.
        """
        return opened(ledger_id, await self.read_directory(ledger_id), covered)

    async def read_directory(self, ledger_id: int) -> DirectoryEntries:
        """The pieces of its directory. Errors as `open`."""
        if not self.is_ours(ledger_id):
            raise LedgerNotFound(f"ledger {ledger_id} is deleted or no bucket of {self._storage.topic}")
        last = self._storage.bookie.last_entry_id(ledger_id)
        # Its record was written and a crash came before the first entry.
        if last < 0:
            raise LedgerNotFound(f"ledger {ledger_id} has no entries")
        # From the end, as a directory says how many pieces it has: two reads for nearly all buckets, however
        # many segments they have. Past the caches, which thousands of directories at a start would empty of
        # messages.
        entries = await self.peek(ledger_id, last, last, 1)
        first = last - directory_pieces(entries[0]) + 1
        for entry_id in range(last - 1, max(first, 0) - 1, -1):
            entries[:0] = await self.peek(ledger_id, entry_id, entry_id, 1)
        return DirectoryEntries(first, entries)

    async def read_segment(self, bucket: StoredBucket, number: int) -> bytes:
        """One segment's entry. LedgerNotFound, CorruptData: the bucket is damaged. StorageError."""
        (entry,) = await self._storage.bookie.read(bucket.ledger_id, number, number, bytes_max=1)
        return entry

    async def read_segments(self, bucket: StoredBucket, first: int, bytes_max: int) -> list[bytes]:
        """As many segments from `first` on as have that many bytes, at least one. Errors as
        `read_segment`.
        """
        last = bucket.directory.segments - 1
        return await self._storage.bookie.read(bucket.ledger_id, first, last, bytes_max=bytes_max)


class BucketOwner(Protocol):
    """Properties of the delayed index: names to ledger ids."""

    @property
    def subscription(self) -> str | None:
        """Whose own index it is; None: the one that all share."""
        ...

    def properties(self) -> Mapping[str, int]:
        """Those that are durable now, and only the delayed index's."""
        ...

    async def swap(self, add: Mapping[str, int], remove: Mapping[str, int]) -> None:
        """Add some and remove those that still have the value given, all in one write; durable on return.

        ValueTooLarge: there are too many, nothing has changed. ServiceNotReady: the owner is closed.
        StorageError. Cancelling leaves all of it done, or nothing.
        """
        ...


class CursorOwner:
    """The index of one subscription."""

    def __init__(self, cursor: Cursor) -> None:
        assert cursor.durable
        self._cursor = cursor

    @property
    def subscription(self) -> str:
        return self._cursor.name

    def properties(self) -> Mapping[str, int]:
        properties = self._cursor.properties
        # A cursor has other properties too, such as a precision or the deduplication's numbers: taken for
        # buckets, they would be removed with them.
        return {key: value for key, value in properties.items() if key.startswith(DELAYED_PREFIX)}

    async def swap(self, add: Mapping[str, int], remove: Mapping[str, int]) -> None:
        await self._cursor.swap_properties(add, remove)


class TopicOwner:
    """The index that a topic's subscriptions share."""

    subscription = None

    def __init__(self, ledger: ManagedLedger) -> None:
        self._ledger = ledger

    def properties(self) -> Mapping[str, int]:
        properties = self._ledger.internal_properties
        return {
            # A topic's properties are text. One that is no number names no ledger; a start then finds its
            # bucket gone.
            key: int(value) if value.isdecimal() else -1
            for key, value in properties.items()
            if key.startswith(DELAYED_PREFIX)
        }

    async def swap(self, add: Mapping[str, int], remove: Mapping[str, int]) -> None:
        def as_text(properties: Mapping[str, int]) -> dict[str, str]:
            return {key: str(value) for key, value in properties.items()}

        await self._ledger.life.swap_properties(as_text(add), as_text(remove))
