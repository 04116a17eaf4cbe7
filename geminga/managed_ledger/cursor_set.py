"""The cursors of one managed ledger: opening, writing down together, deleting."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import trio

from geminga.errors import Conflict, GemingaError, PeerError, ReadOnly, SubscriptionNotFound
from geminga.managed_ledger.chain.ledger_chain import LedgerChain
from geminga.managed_ledger.cursor.attachment import Attachment, check_room
from geminga.managed_ledger.cursor.cursor import Cursor
from geminga.managed_ledger.cursor.cursor_ledger import CursorLedger, Storage
from geminga.managed_ledger.opening import recover_cursor_ledgers
from geminga.metadata import records
from geminga.metadata.records import CursorRecord
from geminga.metadata.store import MUST_NOT_EXIST
from geminga.position import Position

RECOVERED_AT_ONCE = 25
"""Cursors, between two turns of the loop: a topic may have thousands."""
Initial = Literal["earliest", "latest"] | Position


class CursorSet:
    """All cursors by name, durable and not. `on_changed` is called when the first one has something to write.

    Records are changed only while `owner` is open, which is asked under the lock: `retire` takes the same
    lock, so nothing is written after it.
    """

    __slots__ = (
        "_chain",
        "_lock",
        "_on_changed",
        "_owner",
        "_storage",
        "by_name",
        "due",
    )

    def __init__(
        self, storage: Storage, chain: LedgerChain, owner: Attachment, on_changed: Callable[[], None]
    ) -> None:
        self.by_name: dict[str, Cursor] = {}
        self._storage = storage
        self._chain = chain
        self._owner = owner
        self._on_changed = on_changed
        self._lock: trio.Lock | None = None
        self.due = False
        """Whether a cursor has something to write, since `take_changed`."""

    @property
    def _changing(self) -> trio.Lock:
        """Made with its first use: most topics are idle."""
        if self._lock is None:
            self._lock = trio.Lock()
        return self._lock

    def _on_dirty(self) -> None:
        if not self.due:
            self.due = True
            self._on_changed()

    async def recover(self) -> None:
        """Open every durable cursor that has a record, as of its newest state on disk."""
        # Every cursor is read before the topic is served: one that were missing would let trimming take its
        # backlog.
        for name, ledger in recover_cursor_ledgers(self._storage):
            cursor = self._cursor(name, ledger.record.mark_delete, ledger)
            await cursor.recover()
            self.by_name[name] = cursor
            if len(self.by_name) % RECOVERED_AT_ONCE == 0:
                await trio.lowlevel.checkpoint()

    def _cursor(self, name: str, mark_delete: tuple[int, int], ledger: CursorLedger | None) -> Cursor:
        return Cursor(
            name, self._chain, mark_delete, ledger=ledger, owner=self._owner, on_dirty=self._on_dirty
        )

    async def open(
        self,
        name: str,
        mark_delete: Position,
        properties: Mapping[str, int],
        subscription_properties: Mapping[str, str],
    ) -> Cursor:
        """The durable cursor of that name, as it is; else a new one whose record is durable on return.

        Conflict, ServiceNotReady, ValueTooLarge, StorageError.
        """
        async with self._changing:
            self._owner.check_open()
            # Asked under the lock: two consumers of a new subscription come at once, and the second must get
            # the first one's cursor.
            existing = self.by_name.get(name)
            if existing is not None:
                if not existing.durable:
                    raise Conflict(f"{name} is a non-durable cursor of {self._storage.topic}")
                return existing
            path = records.cursor_path(self._storage.path, name)
            record = CursorRecord(
                mark_delete=(mark_delete.ledger_id, mark_delete.entry_id),
                properties=dict(properties),
                subscription_properties=dict(subscription_properties),
                created_ms=self._storage.clock.now_ms(),
            )
            value = records.encode(record)
            # Refused before the write: the record must keep room for what the broker adds to it later, its
            # buckets' names among them.
            check_room(path, value)
            # Shielded: a consumer that goes away in the middle would leave a record on disk that memory does
            # not know, and the next try would find the name taken.
            with trio.CancelScope(shield=True), self._fencing():
                version = await self._storage.metadata.put(path, value, MUST_NOT_EXIST)
            ledger = CursorLedger(self._storage, path, record, version)
            cursor = self.by_name[name] = self._cursor(name, mark_delete, ledger)
            return cursor

    def open_non_durable(self, name: str, mark_delete: Position) -> Cursor:
        """A cursor that is kept in memory only. Conflict if the name is taken."""
        if name in self.by_name:
            raise Conflict(f"cursor {name} exists already on {self._storage.topic}")
        cursor = self.by_name[name] = self._cursor(name, mark_delete, None)
        return cursor

    @contextmanager
    def _fencing(self) -> Iterator[None]:
        try:
            yield
        except (PeerError, ReadOnly):
            raise  # nothing has changed
        except GemingaError as error:
            self._owner.fence(error)
            raise

    async def delete(self, name: str) -> None:
        """Forget a cursor; its record is gone for good on return, then the ledgers that it named.
        SubscriptionNotFound, ServiceNotReady, StorageError.

        Cancelled: the cursor is as it was, or gone.
        """
        async with self._changing:
            cursor = self.by_name.get(name)
            if cursor is None:
                raise SubscriptionNotFound(f"Subscription not found: {name} on {self._storage.topic}")
            # The record first, then the ledgers that it named: a crash in between leaves orphans for the
            # sweep.
            ledger = await cursor.delete()
            del self.by_name[name]
        if ledger is not None:
            for ledger_id in self._storage.bucket_ledgers(ledger.record.properties):
                await self._storage.delete_ledger(ledger_id)
            if ledger.record.cursor_ledger_id >= 0:
                await self._storage.delete_ledger(ledger.record.cursor_ledger_id)

    async def retire(self) -> None:
        """Stop all cursors for good: on return nothing of them is being written, and nothing will be.

        To be called when the owner is not open any more. Cancelling leaves some of them stopped.
        """
        async with self._changing:
            for cursor in tuple(self.by_name.values()):
                await cursor.retire()

    def take_changed(self) -> list[Cursor]:
        """Those that have something to write; the next change of one calls `on_changed` again."""
        # Cleared before the writes: an acknowledgement that comes while they run is not in them and must ask
        # again.
        self.due = False
        if not self._owner.is_alive:
            return []
        return [cursor for cursor in self.by_name.values() if cursor.is_dirty]

    async def persist_all(self) -> None:
        """Write every cursor that has something to write; raises the first error once all were tried."""
        failures: list[GemingaError] = []

        async def persist_one(cursor: Cursor) -> None:
            try:
                await cursor.persist_if_open()
            except GemingaError as error:
                failures.append(error)

        dirty = [cursor for cursor in self.by_name.values() if cursor.is_dirty]
        if not dirty:
            return
        async with trio.open_nursery() as nursery:
            # In parallel, so that their records meet in one group of the metadata store and share a sync.
            for cursor in dirty:
                nursery.start_soon(persist_one, cursor)
        # Only after all were tried: one cursor's failure must not cost the others their acknowledgements.
        if failures:
            raise failures[0]

    async def persist_now(self) -> None:
        """As `persist_all`, and wait for the writes that are under way."""
        await self.persist_all()
        for cursor in tuple(self.by_name.values()):
            await cursor.written()

    def ledgers_dropped(self) -> None:
        """The chain has lost ledgers at its front."""
        for cursor in self.by_name.values():
            cursor.ledgers_dropped()

    def slowest_durable(self) -> Position | None:
        """The mark-delete position that holds back trimming; None without durable cursors."""
        return min((cursor.mark_delete for cursor in self.by_name.values() if cursor.durable), default=None)
