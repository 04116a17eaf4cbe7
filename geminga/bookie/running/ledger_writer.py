"""Adds entries to a ledger: one writer for each ledger, as long as the ledger is writable."""

from __future__ import annotations

from collections.abc import Callable

import trio

from geminga.bookie.journal.journal import Journal
from geminga.bookie.records.ledger_name import LedgerName
from geminga.errors import LedgerFenced, StorageError
from geminga.storage.disk_errors import DiskFull


def _nothing(_: object) -> None:
    pass


class LedgerWriter:
    """Adds entries to a ledger that this process created. Made by `Bookie.create_ledger`."""

    __slots__ = (
        "_durable",
        "_enqueue",
        "_on_durable",
        "_on_failed",
        "_paused",
        "_refusal",
        "_settled",
        "ledger_id",
        "name",
        "next_entry_id",
    )

    def __init__(
        self,
        ledger_id: int,
        journal: Journal,
        *,
        on_durable: Callable[[int], None],
        on_failed: Callable[[StorageError], None],
        name: LedgerName | None = None,
    ) -> None:
        self.ledger_id = ledger_id
        self.name = name
        self.next_entry_id = 0
        self._durable = -1
        self._on_durable = on_durable
        self._on_failed = on_failed
        # Bound once: the path of every run pays for one call, without a look-up of the method.
        self._enqueue = journal.append
        self._refusal: StorageError | None = None
        self._paused = False
        self._settled: trio.Event | None = None

    def append(self, body: bytes) -> int:
        """Accept one entry and return its id: `append_run` with one body."""
        return self.append_run([body])

    def append_run(self, bodies: list[bytes]) -> int:
        """Accept entries, at least one, and return the id of the first; the others follow it. They are
        durable, and can be read, once `on_durable` was called with the last id or a higher one. Never waits:
        check `Bookie.has_room` first. The list is the journal's from now on.

        Raises LedgerFenced after close, fence or delete, ReadOnly while the disk is full, StorageError after
        the disk has failed.
        """
        if self._refusal is not None:
            # A new exception each time: a raised one collects a traceback for every publisher that meets it.
            raise type(self._refusal)(str(self._refusal))
        first = self.next_entry_id
        self.next_entry_id = first + len(bodies)
        self._enqueue(self, first, bodies)
        return first

    def close(self) -> None:
        """Refuse further entries. Accepted entries become durable and are reported as usual."""
        self.refuse(LedgerFenced(f"ledger {self.ledger_id} is closed"))

    # ---- for the bookie

    def refuse(self, error: StorageError) -> None:
        """Every further `append` raises `error`. The first reason stays."""
        # A pause is passing and gives way to any reason that is final. The other way round `resume` would
        # open a deleted ledger.
        if self._refusal is None or self._paused:
            self._refusal = error
            self._paused = False
        self._let_owner_go()

    def pause(self, error: StorageError) -> None:
        """Every further `append` raises `error`, until `resume`."""
        if self._refusal is None:
            self._refusal = error
            self._paused = True

    def resume(self) -> None:
        if self._paused:
            self._refusal = None
            self._paused = False

    def is_done(self) -> bool:
        """Whether the writer is closed and no entry is pending."""
        return self._refusal is not None and not self._paused and self._durable >= self.next_entry_id - 1

    async def settle(self) -> None:
        """Return once no entry is pending: all are durable or failed."""
        while self._durable < self.next_entry_id - 1:
            if self._settled is None:
                self._settled = trio.Event()
            await self._settled.wait()

    def durable(self, last_entry_id: int) -> None:
        # The number first: `settle` and the owner's callback look at it.
        self._durable = last_entry_id
        self._wake_settlers()
        self._on_durable(last_entry_id)
        if self._refusal is not None:
            self._let_owner_go()

    def _let_owner_go(self) -> None:
        # The bookie has the writer until the next flush, and without one for good: the whole of a topic that
        # was unloaded stayed in memory until its next load.
        if self.is_done():
            self._on_durable = self._on_failed = _nothing

    def failed(self, error: StorageError) -> None:
        """No pending entry will become durable. Notifies the owner if entries were pending."""
        self._refusal = error
        self._paused = False
        if self._durable < self.next_entry_id - 1:
            # Nothing pending is left: `settle` returns, and a deletion of the ledger does not wait for a dead
            # disk.
            self.next_entry_id = self._durable + 1
            self._wake_settlers()
            self._on_failed(error)

    def refused(self, error: DiskFull) -> None:
        """The journal had no space for the pending entries, and no file has them: their ids are free again.
        Notifies the owner if entries were pending; the next `append` may succeed.
        """
        if self._durable < self.next_entry_id - 1:
            self.next_entry_id = self._durable + 1
            self._wake_settlers()
            self._on_failed(error)

    def _wake_settlers(self) -> None:
        if self._settled is not None and self._durable >= self.next_entry_id - 1:
            self._settled.set()
            self._settled = None
