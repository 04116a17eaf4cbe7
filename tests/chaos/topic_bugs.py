"""Bugs to plant in trimming, deleting, cursors, delayed buckets and the sweep: the wrong order, a step left
out. See `test_topic_bugs`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from geminga.managed_ledger import orphans
from geminga.managed_ledger.chain_record import ChainRecord
from geminga.managed_ledger.cursor.acknowledgments import Acknowledgments
from geminga.managed_ledger.cursor.cursor_ledger import CursorLedger, Storage
from geminga.managed_ledger.cursor_set import CursorSet
from geminga.tracker.buckets.bucket_store import BucketWriter
from geminga.tracker.buckets.buckets import Buckets
from simulation.disk.sim_key_value import SimKeyValue

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]


def trimmed_storage_first(patch: Patch) -> None:
    """The ledgers go before the record that names them."""
    save = ChainRecord.save

    async def early(self: Any, **changes: Any) -> None:
        for ledger_id in self._chain.ids[: changes.get("dropped", 0)]:
            await self._storage.delete_ledger(ledger_id)
        await save(self, **changes)

    patch.setattr(ChainRecord, "save", early)


def topic_deleted_storage_first(patch: Patch) -> None:
    delete = ChainRecord.delete

    async def early(self: Any) -> list[int]:
        for ledger_id in self._chain.ids:
            await self._storage.delete_ledger(ledger_id)
        return await delete(self)

    patch.setattr(ChainRecord, "delete", early)


def cursor_ledger_deleted_before_its_name(patch: Patch) -> None:
    """A subscription's ledger goes before its record."""
    delete = CursorLedger.delete_record

    async def early(self: Any) -> None:
        if self.record.cursor_ledger_id >= 0:
            await self._storage.delete_ledger(self.record.cursor_ledger_id)
        await delete(self)

    patch.setattr(CursorLedger, "delete_record", early)


def cursor_ledger_named_before_its_state(patch: Patch) -> None:
    append = CursorLedger._append

    async def late(self: Any, writer: Any, data: bytes) -> None:
        if self._ledger_id != self.record.cursor_ledger_id:
            await self.save(cursor_ledger_id=self._ledger_id)
        await append(self, writer, data)

    patch.setattr(CursorLedger, "_append", late)


def old_cursor_ledger_deleted_first(patch: Patch) -> None:
    """Left for a new one, and deleted before the record names that."""
    save = CursorLedger.save

    async def late(self: Any, **changes: Any) -> None:
        if changes.get("cursor_ledger_id") is not None and self.record.cursor_ledger_id >= 0:
            await self._storage.delete_ledger(self.record.cursor_ledger_id)
        await save(self, **changes)

    patch.setattr(CursorLedger, "save", late)


def bucket_property_removed_after_its_ledger(patch: Patch) -> None:
    unname = Buckets._unname

    async def late(self: Any) -> None:
        for _, ledger_id in self._doomed:
            await self.store.delete(ledger_id)
        await unname(self)

    patch.setattr(Buckets, "_unname", late)


def bucket_named_before_it_is_written(patch: Patch) -> None:
    append, finish, name = BucketWriter.append, BucketWriter.finish, Buckets.name
    kept: list[Any] = []

    async def keep(self: Any, entries: Any) -> None:
        kept.extend(entries)

    async def not_yet(self: Any) -> None:
        pass

    async def early(self: Any, writer: Any, *rest: Any) -> None:
        await name(self, writer, *rest)
        await append(writer, kept)
        kept.clear()
        await finish(writer)

    patch.setattr(BucketWriter, "append", keep)
    patch.setattr(BucketWriter, "finish", not_yet)
    patch.setattr(Buckets, "name", early)


def merged_sources_deleted_before_the_swap(patch: Patch) -> None:
    name = Buckets.name

    async def early(self: Any, writer: Any, bucket: Any, instead_of: Any, generation: int, tell: Any) -> None:
        for old in instead_of:
            await self.store.delete(old.ledger_id)
        await name(self, writer, bucket, instead_of, generation, tell)

    patch.setattr(Buckets, "name", early)


def ledger_without_a_record(patch: Patch) -> None:
    """A topic's new ledger gets its own record only after the topic's."""
    save = ChainRecord.save

    async def alone(self: Any, *, new_ledger_id: int | None = None, **changes: Any) -> None:
        transact = self._storage.metadata.transact
        if new_ledger_id is None:
            await save(self, **changes)
            return

        async def last_only(puts: Any, deletes: Any = (), **_: Any) -> Any:
            versions = await transact(puts[-1:], deletes)
            await transact(puts[:-1])
            return versions

        patched = pytest.MonkeyPatch()
        patched.setattr(self._storage.metadata, "transact", last_only)
        try:
            await save(self, new_ledger_id=new_ledger_id, **changes)
        finally:
            patched.undo()

    patch.setattr(ChainRecord, "save", alone)


def metadata_not_synced(patch: Patch) -> None:
    real = SimKeyValue.write
    patch.setattr(
        SimKeyValue, "write", lambda self, puts, deletes=(), *, sync: real(self, puts, deletes, sync=False)
    )


def fastest_cursor_decides(patch: Patch) -> None:
    patch.setattr(
        CursorSet,
        "slowest_durable",
        lambda self: max((c.mark_delete for c in self.by_name.values() if c.durable), default=None),
    )


def retention_forgotten(patch: Patch) -> None:
    from geminga.managed_ledger import lifecycle

    patch.setattr(lifecycle, "ledgers_to_drop", lambda settings, older, total_bytes, now_ms: len(older))


def buckets_forgotten_with_the_subscription(patch: Patch) -> None:
    """Neither the deletion nor the sweep knows the delayed index's ledgers."""
    patch.setattr(Storage, "bucket_ledgers", lambda self, properties: [])
    patch.setattr(orphans, "SWEPT_PURPOSES", frozenset({"data", "cursor"}))


def ledger_record_never_deleted(patch: Patch) -> None:
    async def half(self: Storage, ledger_id: int) -> None:
        await self.bookie.delete_ledger(ledger_id)

    patch.setattr(Storage, "delete_ledger", half)
    patch.setattr(orphans, "find_orphan_ledgers", lambda metadata, look_at=None: [])


def bookie_keeps_deleted_ledgers(patch: Patch) -> None:
    async def half(self: Storage, ledger_id: int) -> None:
        from geminga.metadata import records

        await self.metadata.delete(records.ledger_path(ledger_id))

    patch.setattr(Storage, "delete_ledger", half)


def sweep_forgets_cursors(patch: Patch) -> None:
    """What only a cursor names is taken for an orphan."""
    real = orphans.named_by_topic

    def without(metadata: Any, path: str, look_at: Any = None) -> set[int]:
        class NoChildren:
            get = metadata.get

            def children(self, path: str) -> list[str]:
                return []

        return real(NoChildren(), path)  # type: ignore[arg-type]

    patch.setattr(orphans, "named_by_topic", without)


def restored_cursor_not_cut(patch: Patch) -> None:
    """A state that was written before a trim stands in a ledger that is gone."""

    def clear(self: Any, mark_delete: tuple[int, int]) -> None:
        self._acked.clear()
        self._acked_entries = 0
        self._batches.clear()
        self._md_ledger, self._md_entry = mark_delete

    patch.setattr(Acknowledgments, "clear", clear)


def topic_record_deleted_alone(patch: Patch) -> None:
    """The cursors' records go after the topic's, in writes of their own."""
    real = ChainRecord.delete

    async def apart(self: Any) -> list[int]:
        metadata = self._storage.metadata
        transact = metadata.transact

        async def one_by_one(puts: Any, deletes: Any = ()) -> Any:
            for delete in reversed(deletes):
                await transact([], [delete])
            return []

        patched = pytest.MonkeyPatch()
        patched.setattr(metadata, "transact", one_by_one)
        try:
            return await real(self)
        finally:
            patched.undo()

    patch.setattr(ChainRecord, "delete", apart)


def garbage_not_collected_by_the_bookie(patch: Patch) -> None:
    """Deleted ledgers' logs stay."""
    from geminga.bookie.running.storage import LedgerStorage

    patch.setattr(LedgerStorage, "_delete_dead_logs", lambda self: 0)


BUGS: tuple[tuple[Plant, str], ...] = (
    (trimmed_storage_first, "trimming"),
    (topic_deleted_storage_first, "deleting"),
    (topic_record_deleted_alone, "deleting"),
    (cursor_ledger_deleted_before_its_name, "unsubscribing"),
    (cursor_ledger_named_before_its_state, "unsubscribing"),
    (old_cursor_ledger_deleted_first, "unsubscribing"),
    (bucket_property_removed_after_its_ledger, "delaying"),
    (bucket_named_before_it_is_written, "dropping_delayed"),
    (merged_sources_deleted_before_the_swap, "sharing"),
    (ledger_without_a_record, "trimming"),
    (metadata_not_synced, "trimming"),
    (fastest_cursor_decides, "trimming"),
    (retention_forgotten, "retaining"),
    (buckets_forgotten_with_the_subscription, "dropping_delayed"),
    (ledger_record_never_deleted, "trimming"),
    (bookie_keeps_deleted_ledgers, "trimming"),
    (sweep_forgets_cursors, "expiring"),
    (restored_cursor_not_cut, "expiring"),
    (garbage_not_collected_by_the_bookie, "deleting"),
)
"""Each with a script in which it shows."""
