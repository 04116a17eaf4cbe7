"""Bugs to plant in compaction: see `planted_bugs`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from geminga.bookie.entry_logs import missing_logs
from geminga.bookie.index.ledger_index import LedgerIndex
from geminga.bookie.running.storage import LedgerStorage
from simulation.disk.sim_disk import SimFile
from simulation.disk.sim_key_value import SimKeyValue

Patch = pytest.MonkeyPatch


def compaction_loses_a_row(patch: Patch) -> None:
    real = LedgerIndex.move
    patch.setattr(
        LedgerIndex,
        "move",
        lambda self, taken, rest, new, **others: real(self, taken, rest, new[:-1], **others),
    )


def rest_of_a_row_forgotten(patch: Patch) -> None:
    real = LedgerIndex.move
    patch.setattr(
        LedgerIndex, "move", lambda self, taken, rest, new, **others: real(self, taken, [], new, **others)
    )


def moved_although_deleted(patch: Patch) -> None:
    patch.setattr(LedgerIndex, "lives_in", lambda self, ledger_id, log_id: True)


def copies_not_synced(patch: Patch) -> None:
    move_slice, sync = LedgerStorage.move_slice, SimFile.sync
    moving = 0

    async def count(self: LedgerStorage, slices: Any) -> int | None:
        nonlocal moving
        moving += 1
        try:
            return await move_slice(self, slices)
        finally:
            moving -= 1

    def skip(file: SimFile) -> None:
        if not (moving and file.path.endswith(".log")):
            sync(file)

    patch.setattr(LedgerStorage, "move_slice", count)
    patch.setattr(SimFile, "sync", skip)


def log_deleted_before_its_entries_moved(patch: Patch) -> None:
    real = LedgerStorage.move_slice

    async def move_slice(self: LedgerStorage, slices: Any) -> int | None:
        usage = self._index.usage.pop(slices.log_id, None)
        self._delete_dead_logs()
        if usage is not None:
            self._index.usage[slices.log_id] = usage
        return await real(self, slices)

    patch.setattr(LedgerStorage, "move_slice", move_slice)


def rows_not_synced(patch: Patch) -> None:
    """Harmless alone, and so no bug of the list. A crash may bring back rows that name the compacted log: if
    that is still there, they are true; if not, a start looks for what they sought, finds the copies, which
    were synced before the rows were written, and corrects the rows. A repair for old copies of the index thus
    covers this too.
    """
    real, write = LedgerIndex.move, SimKeyValue.write

    def move(self: LedgerIndex, taken: Any, rest: Any, new: Any, **others: Any) -> None:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(
                SimKeyValue,
                "write",
                lambda self, puts, deletes=(), *, sync: write(self, puts, deletes, sync=False),
            )
            real(self, taken, rest, new, **others)

    patch.setattr(LedgerIndex, "move", move)


def rows_neither_synced_nor_looked_for(patch: Patch) -> None:
    rows_not_synced(patch)
    patch.setattr(missing_logs, "_pieces", lambda row, copies: [])


COMPACTION_BUGS: tuple[Callable[[Patch], None], ...] = (
    compaction_loses_a_row,
    rest_of_a_row_forgotten,
    moved_although_deleted,
    copies_not_synced,
    log_deleted_before_its_entries_moved,
    rows_neither_synced_nor_looked_for,
)
