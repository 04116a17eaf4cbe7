"""What one ledger's owner gave to a bookie, and what it was told."""

from __future__ import annotations

import trio

from geminga.bookie.running.ledger_writer import LedgerWriter
from geminga.errors import StorageError
from geminga.storage.disk_errors import DiskFull


class Broken(AssertionError):
    """A promise was broken."""


def promise(kept: bool, what: str) -> None:
    if not kept:
        raise Broken(what)


class SimLedger:
    """What one ledger was given, and what was said about it."""

    def __init__(self, ledger_id: int) -> None:
        self.ledger_id = ledger_id
        self.bodies: list[bytes] = []
        self.durable = -1
        self.failure: StorageError | None = None
        self.deleting = self.deleted = False
        self.fenced_at: int | None = None
        self.writer: LedgerWriter | None = None
        self.progress = trio.Event()

    def on_durable(self, last_entry_id: int) -> None:
        promise(self.durable < last_entry_id < len(self.bodies), f"ledger {self.ledger_id}: reported wrong")
        promise(self._is_alive(), f"ledger {self.ledger_id}: durable after a failure")
        self.durable = last_entry_id
        self._wake()

    def on_failed(self, error: StorageError) -> None:
        promise(self._is_alive(), f"ledger {self.ledger_id}: two failures")
        self.failure = error
        if isinstance(error, DiskFull):
            # What was pending is in no file, and the next entry gets its id.
            del self.bodies[self.durable + 1 :]
        self._wake()

    def _is_alive(self) -> bool:
        return self.failure is None or isinstance(self.failure, DiskFull)

    def body(self, size: int) -> bytes:
        """Different for each entry."""
        body = f"{self.ledger_id}:{len(self.bodies)}:".encode()
        return (body * (size // len(body) + 1))[:size]

    def is_pending(self) -> bool:
        return self.durable < len(self.bodies) - 1 and self.failure is None

    def is_open(self) -> bool:
        return not self.deleting and self.fenced_at is None and self.failure is None

    def _wake(self) -> None:
        self.progress.set()
        self.progress = trio.Event()
