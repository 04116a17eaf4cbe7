"""Changed due times on the bookie: a small ledger of changes, named by a property of its own.

Each entry is a set of changes, the first of a ledger all of them. A new ledger is begun at each start and
after many changes, in the order of a bucket's life: written, named, and then the old one is deleted. Losing
it costs the changes, not the messages: they are due again when they were sent to be.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Final

import trio

from geminga.errors import CorruptData, GemingaError, NotAllowed
from geminga.managed_ledger.cursor.bucket_properties import DELAYED_PREFIX
from geminga.tracker.buckets.bucket_store import BucketOwner, BucketStore, BucketWriter
from geminga.tracker.format.override_format import OVERRIDES_MAX, decode_overrides, encode_overrides

log = logging.getLogger("geminga.tracker")

KEY: Final = DELAYED_PREFIX + "overrides"
# Each start reads all entries one by one, and what was taken back or delivered is among them until then.
ENTRIES_MAX: Final = 1000
"""A ledger with so many entries is left for a new one."""


class _Batch:
    """Changed times that share an entry."""

    def __init__(self) -> None:
        self.times_ms: dict[int, int] = {}
        self.tasks = 0
        """Those that have not returned yet."""
        self.is_written = False
        self.failure: GemingaError | None = None


class OverrideStore:
    """`times_ms`: the changed due times by code, as they are on disk. Not for two tasks until `read` has
    returned.
    """

    def __init__(self, store: BucketStore, owner: BucketOwner) -> None:
        self.times_ms: dict[int, int] = {}
        self._store = store
        self._owner = owner
        self._writer: BucketWriter | None = None
        self._entries = 0
        self._writing = trio.Lock()
        self._gathered = _Batch()
        self._unwritten: set[_Batch] = set()
        """What tasks wait for: the batch that is being written, and `_gathered`."""

    async def read(self) -> Mapping[int, int]:
        """What an earlier process has left. What is damaged is logged and passed over. StorageError."""
        for entry in await self._store.read_all(self._owner.properties().get(KEY, -1)):
            try:
                self._apply(decode_overrides(entry))
            # The messages are due as they were sent to be: late or early, but not lost.
            except CorruptData as error:
                log.error("some changed due times are lost: %s", error)
        return self.times_ms

    async def write(self, changes: Mapping[int, int]) -> None:
        """Add changes (-1 takes one back); durable on return. What several tasks want while an entry is
        written shares the next one. NotAllowed: there would be too many. ServiceNotReady, StorageError:
        maybe. Cancelling leaves them written or not.
        """
        batch = self._gathered
        # The first entry of a ledger has all of them, and they are in memory. What is being written will be.
        unwritten = sum(len(each.times_ms) for each in self._unwritten)
        if len(self.times_ms) + unwritten + len(changes) > OVERRIDES_MAX:
            raise NotAllowed(f"at most {OVERRIDES_MAX} delayed messages can have their time changed")
        batch.times_ms.update(changes)
        batch.tasks += 1
        self._unwritten.add(batch)
        try:
            async with self._writing:
                await self._write(batch)
        finally:
            batch.tasks -= 1
            if not batch.tasks:
                self._unwritten.discard(batch)
                # All of its tasks were cancelled before its turn: the next change, maybe much later, does not
                # bring these along.
                if batch is self._gathered:
                    self._gathered = _Batch()

    async def _write(self, batch: _Batch) -> None:
        if batch.failure is not None:
            raise batch.failure
        if batch.is_written:
            return
        # Where the task that wrote it was cancelled, another of the batch writes it again; others join the
        # next one already.
        if batch is self._gathered:
            self._gathered = _Batch()
        try:
            if self._writer is None or self._entries >= ENTRIES_MAX:
                # Cancelled between naming and deleting, the old ledger would stay until the next start.
                with trio.CancelScope(shield=True):
                    await self._switch(batch.times_ms)
            else:
                await self._writer.append([encode_overrides(batch.times_ms)])
                await self._writer.sync()
                self._entries += 1
        except GemingaError as error:
            batch.failure = error
            self._unwritten.discard(batch)
            # What is in the ledger behind a failed write is not known: the next change begins a new one, with
            # all of them.
            self._leave()
            raise
        batch.is_written = True
        self._unwritten.discard(batch)
        self._apply(batch.times_ms)

    @property
    def wants_room(self) -> bool:
        """Whether to `forget` what is settled before the next change: there is no room, or the next ledger
        begins with all.
        """
        return len(self.times_ms) >= OVERRIDES_MAX or self._entries >= ENTRIES_MAX

    def forget(self, codes: Iterable[int]) -> None:
        """These are delivered or acknowledged. Nothing is written: the next ledger will not have them."""
        for code in codes:
            self.times_ms.pop(code, None)

    async def clear(self) -> None:
        """Forget all; no property names a ledger on return, and it is deleted. Errors as `write`."""
        async with self._writing:
            self._leave()
            self.times_ms.clear()
            ledger_id = self._owner.properties().get(KEY)
            if ledger_id is not None:
                with trio.CancelScope(shield=True):
                    await self._owner.swap({}, {KEY: ledger_id})
                    await self._store.delete(ledger_id)

    def _apply(self, changes: Mapping[int, int]) -> None:
        self.times_ms.update(changes)
        # Kept as -1 on disk: the entries are read in order, and an earlier one would set the time again.
        self.forget([code for code, time_ms in changes.items() if time_ms < 0])

    async def _switch(self, changes: Mapping[int, int]) -> None:
        self._leave()
        old_ledger_id = self._owner.properties().get(KEY, -1)
        kept = {c: time_ms for c, time_ms in (self.times_ms | dict(changes)).items() if time_ms >= 0}
        writer = await self._store.begin()
        try:
            await writer.append([encode_overrides(kept)])
            await writer.sync()
            # After the sync: a name for a ledger whose only entry is not durable would lose all changes in a
            # crash.
            writer.begin_naming()
            await self._owner.swap({KEY: writer.ledger_id}, {})
        except BaseException as error:
            await self._store.abandon(writer, error)
            raise
        self._writer, self._entries = writer, 1
        # Last, as the property named it until here.
        if old_ledger_id >= 0:
            await self._store.delete(old_ledger_id)

    def _leave(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def close(self) -> None:
        """Take no more changes. What was written stays."""
        self._leave()
