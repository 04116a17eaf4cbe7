"""A `KeyValue` in memory that forgets at a crash what was not synced, and whose syncs can be made to fail.

What it promises is RocksDB's promise and no more: batches are whole, they are in order, and a crash keeps all
that was synced and then some prefix of the rest.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator

from geminga.errors import CorruptData, StorageError
from geminga.storage.disk_errors import DiskFull

Batch = tuple[tuple[tuple[bytes, bytes], ...], tuple[bytes, ...]]


class SimulatedCrash(BaseException):
    """The power went out in the middle of a call. Not an `Exception`: no code below a test survives it."""


class SimKeyValue:
    """Deterministic for a seed. `crash()` gives what a restart would find; the crashed one refuses all use.

    Set `before_write`, `before_sync` or `before_read` to a function to be called first thing at that step: it
    may raise `SimulatedCrash` (then call `crash()`), DiskFull (then the batch is taken back), or another
    StorageError (then that step fails as on a broken disk, and after a write or sync that failed all others
    are refused), or just count. Damage done with
    `damage(key)` is met by `get` and by scans as CorruptData.
    """

    def __init__(self, seed: int = 0, durable: dict[bytes, bytes] | None = None) -> None:
        self._random = random.Random(seed)
        self._rows = dict(durable or {})
        self._sorted: list[bytes] | None = None
        self._durable = dict(self._rows)
        self._unsynced: list[Batch] = []
        self._damaged: set[bytes] = set()
        self._failed: StorageError | None = None
        self._closed = False
        self.before_write: Callable[[], None] = _nothing
        self.before_sync: Callable[[], None] = _nothing
        self.before_read: Callable[[], None] = _nothing
        self.writes = 0
        self.syncs = 0

    def get(self, key: bytes) -> bytes | None:
        self._check_open()
        self.before_read()
        if key in self._damaged:
            raise CorruptData(f"simulated damage at key {key!r}")
        return self._rows.get(key)

    def write(
        self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = (), *, sync: bool
    ) -> None:
        self._check_writable()
        batch: Batch = (tuple(puts), tuple(deletes))
        before = dict(self._rows), len(self._unsynced)
        try:
            self._write(batch, sync=sync)
        except DiskFull:
            self._rows, self._sorted = before[0], None
            del self._unsynced[before[1] :]
            raise

    def _write(self, batch: Batch, *, sync: bool) -> None:
        self._step(self.before_write)
        if batch[0] or batch[1]:
            self._unsynced.append(batch)
            _apply(self._rows, batch)
            self._sorted = None
            self._damaged.difference_update(key for key, _ in batch[0])
            self._damaged.difference_update(batch[1])
            self.writes += 1
        if sync:
            self._sync()

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        self._check_open()
        self.before_read()
        order, damaged = self._order(), set(self._damaged)
        keys = order[bisect_left(order, start) : bisect_left(order, end)]
        for key, value in [(key, self._rows[key]) for key in keys]:
            self._check_open()
            if key in damaged:
                raise CorruptData(f"simulated damage at key {key!r}")
            yield key, value

    def last_before(self, end: bytes, start: bytes) -> tuple[bytes, bytes] | None:
        self._check_open()
        self.before_read()
        order = self._order()
        index = bisect_left(order, end) - 1
        if index < 0 or order[index] < start:
            return None
        key = order[index]
        if key in self._damaged:
            raise CorruptData(f"simulated damage at key {key!r}")
        return key, self._rows[key]

    def flush(self) -> None:
        self._check_writable()
        self._sync()

    def memory_bytes(self) -> int:
        return sum(len(key) + len(value) for key, value in self._rows.items())

    def close(self) -> None:
        if not self._closed and self._failed is None:
            self._sync()
        self._closed = True

    # --- faults ---

    def damage(self, key: bytes) -> None:
        """From now on the row cannot be read, until it is written again."""
        assert key in self._rows
        self._damaged.add(key)

    def crash(self, keep: int | None = None) -> SimKeyValue:
        """What a restart finds: all synced batches and `keep` of the unsynced ones (None: drawn by seed)."""
        self._closed = True
        count = self._random.randint(0, len(self._unsynced)) if keep is None else keep
        rows = dict(self._durable)
        for batch in self._unsynced[:count]:
            _apply(rows, batch)
        return SimKeyValue(self._random.getrandbits(32), rows)

    def durable(self) -> dict[bytes, bytes]:
        """A copy of all that was synced."""
        return dict(self._durable)

    @property
    def unsynced(self) -> int:
        """How many batches a crash may forget."""
        return len(self._unsynced)

    def _order(self) -> list[bytes]:
        if self._sorted is None:
            self._sorted = sorted(self._rows)
        return self._sorted

    def _sync(self) -> None:
        self._step(self.before_sync)
        for batch in self._unsynced:
            _apply(self._durable, batch)
        self._unsynced.clear()
        self.syncs += 1

    def _step(self, before: Callable[[], None]) -> None:
        try:
            before()
        except DiskFull:
            raise
        except StorageError as error:
            self._failed = error
            raise

    def _check_open(self) -> None:
        if self._closed:
            raise StorageError("simulated key-value store: closed")

    def _check_writable(self) -> None:
        self._check_open()
        if self._failed is not None:
            raise StorageError(f"simulated key-value store: refused after an earlier failure: {self._failed}")


def _apply(rows: dict[bytes, bytes], batch: Batch) -> None:
    puts, deletes = batch
    rows.update(puts)
    for key in deletes:
        rows.pop(key, None)


def _nothing() -> None:
    pass
