"""The database of a bookie's index: one that RocksDB finds damaged is put aside and rebuilt.

All that an index says can be found again in entry logs and journal, so damage to it is no reason to refuse a
start. An empty database takes the damaged one's place, with the reason for it and, if it can still be read,
which ledgers are fenced or deleted: no log knows that. `Bookie.open` does the rest, as after any loss of the
index. The damaged one stays beside it, `.damaged`; the one before that goes.

Damage met by a read while the bookie runs is noted in a file beside the database, `.damage`, and ends the
process: an index that answers in part would hide entries, and the next start rebuilds it.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import trio

from geminga.bookie.index.index_format import REBUILD_KEY, STATE_KEYS
from geminga.errors import CorruptData, StorageError
from geminga.storage.descriptor_wait import OutOfDescriptors
from geminga.storage.disk import Disk
from geminga.storage.key_value import RocksKeyValue
from geminga.storage.rocksdb import BlockCache, destroy

# Names beside the database, not inside it: its directory is renamed and destroyed as a whole.
ASIDE, REBUILT, NOTE = ".damaged", ".new", ".damage"
"""Beside the database: the last one found damaged; one that is being made; why the next start makes one."""
T = TypeVar("T")
log = logging.getLogger("geminga.bookie")


class IndexDatabase:
    """A `KeyValue` for a `LedgerIndex`, at `path`, which is created if absent. Opening one that is damaged
    replaces it; StorageError for any other reason not to open.

    Methods on any thread, writing ones on one at a time; `run` and the event loop's part are for the loop.
    """

    def __init__(self, disk: Disk, path: str, *, block_cache: BlockCache | None = None) -> None:
        self.path = path
        self.damage = ""
        """What was found damaged since it was opened; "" if nothing was."""
        self._disk = disk
        self._cache = block_cache
        self._lock = threading.Lock()
        self._found = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._values = self._open()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Until damage is found: StorageError, which says that a new start mends it."""
        self._token = trio.lowlevel.current_trio_token()
        task_status.started()
        if not self.damage:
            await self._found.wait()
        # Ended by its own task: the read that met the damage runs on a thread and belongs to one consumer.
        raise StorageError(f"{self.damage}; start again: the index is then rebuilt from the entry logs")

    def replace(self) -> None:
        """Put an empty database in the place of this one, in which damage was found. Blocking. No other
        thread may use it meanwhile; all scans are over.
        """
        assert self.damage
        states = _readable_states(self._values)
        self._values = self._rebuilt(self.damage, states)
        self.damage = ""

    # ---- as a `KeyValue`

    def get(self, key: bytes) -> bytes | None:
        with self._noting():
            return self._values.get(key)

    def write(
        self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes] = (), *, sync: bool
    ) -> None:
        with self._noting():  # RocksDB merges tables in the background, and writes fail for it
            self._values.write(puts, deletes, sync=sync)

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._noting():
            yield from self._values.scan(start, end)

    def last_before(self, end: bytes, start: bytes) -> tuple[bytes, bytes] | None:
        with self._noting():
            return self._values.last_before(end, start)

    def flush(self) -> None:
        self._values.flush()

    def checkpoint(self, path: str) -> None:
        """As `RocksKeyValue.checkpoint`."""
        with self._noting():
            self._values.checkpoint(path)

    def memory_bytes(self) -> int:
        return self._values.memory_bytes()

    def close(self) -> None:
        """As `KeyValue.close`. Damage found by that is for the next start: all that was synced is durable or
        can be rebuilt.
        """
        try:
            self._values.close()
        except CorruptData as error:
            if not self.damage:
                log.error("%s; the next start rebuilds the index from the entry logs", error)
            self._note(error)

    # ---- damage

    @contextlib.contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except CorruptData as error:
            self._note(error)
            raise

    def _note(self, error: CorruptData) -> None:
        """Durable, so that the next start knows: it may not read that block before a consumer asks for it."""
        with self._lock:
            # The first is enough: the whole index is rebuilt, whatever else is damaged.
            if self.damage:
                return
            self.damage = str(error)
            try:
                self._disk.replace_file(self.path + NOTE, self.damage.encode())
            except StorageError as failure:
                log.error("the damaged index could not be marked as such: %s", failure)
        if self._token is not None:
            # By the token: the read runs on a worker thread, and an event belongs to the loop.
            self._token.run_sync_soon(self._found.set)

    def _open(self) -> RocksKeyValue:
        disk, rebuilt, note = self._disk, self.path + REBUILT, self.path + NOTE
        if disk.exists(rebuilt):
            # The old database is renamed away only once the new one is complete: which of the two names exist
            # says how far a crash let the replacement come.
            if disk.exists(self.path):
                destroy(rebuilt)  # a crash left it unfinished
            else:
                self._rename(rebuilt, self.path)
        disk.make_directory(self.path)
        disk.close_to_others(self.path)
        noted = ""
        if disk.exists(note):
            noted = disk.read_file(note).decode(errors="replace").strip() or f"{note} asks for a new index"
        try:
            values = self._opened()
        except CorruptData as error:
            log.warning("fences and unfinished deletions are forgotten with an index that cannot be opened")
            return self._rebuilt(noted or str(error), [])
        if not noted:
            return values
        if _begun(values):
            self._forget_note()  # a crash came between replacing it and this
            return values
        return self._rebuilt(noted, _readable_states(values))

    def _opened(self) -> RocksKeyValue:
        return RocksKeyValue(self.path, block_cache=self._cache, descriptors=self._disk.descriptors)

    def _rebuilt(self, damage: str, states: list[tuple[bytes, bytes]]) -> RocksKeyValue:
        """Put an empty database in its place, but for these states. After a crash at any point the next
        `_open` goes on.
        """
        aside, rebuilt = self.path + ASIDE, self.path + REBUILT
        log.error("%s; the index is rebuilt from the entry logs, the damaged one is in %s", damage, aside)
        self._disk.make_directory(rebuilt)
        values = RocksKeyValue(rebuilt, block_cache=self._cache, descriptors=self._disk.descriptors)
        try:
            # The states come with the reason in one write: an index that is begun and lacks its fences would
            # never get them.
            values.write([(REBUILD_KEY, damage.encode()), *states], sync=True)
        finally:
            values.close()
        # One copy is kept for people to look into; each may be as large as the index.
        if self._disk.exists(aside):
            destroy(aside)
        self._rename(self.path, aside)
        self._rename(rebuilt, self.path)
        # After the renames: with the note gone first, a crash would open the damaged database as a sound one.
        self._forget_note()
        return self._opened()

    def _rename(self, old: str, new: str) -> None:
        self._disk.rename(old, new)
        self._sync_parent()

    def _forget_note(self) -> None:
        if self._disk.exists(self.path + NOTE):
            self._disk.unlink(self.path + NOTE)
            self._sync_parent()

    def _sync_parent(self) -> None:
        self._disk.sync_directory(self.path.rpartition("/")[0] or ".")


def _begun(values: RocksKeyValue) -> bool:
    """Whether this is a database that was put in a damaged one's place and not filled yet."""
    try:
        return values.get(REBUILD_KEY) is not None
    except CorruptData:
        return False


def _readable_states(values: RocksKeyValue) -> list[tuple[bytes, bytes]]:
    """What a damaged database knows of fences and deletions. Closes it."""
    try:
        return list(values.scan(*STATE_KEYS))
    except OutOfDescriptors:
        # Fences and deletions are in no entry log: dropping them for a passing lack of descriptors would
        # bring back deleted ledgers.
        raise  # another try can read them
    except StorageError as error:
        log.warning("fences and unfinished deletions are forgotten with the damaged index: %s", error)
        return []
    finally:
        with contextlib.suppress(CorruptData):  # it is why we are here
            values.close()


async def opened_with(
    disk: Disk, databases: Sequence[IndexDatabase], open_bookie: Callable[[], Awaitable[T]]
) -> T:
    """`open_bookie()`; once more, with the damaged ones among its `databases` replaced, if it found any so.
    StorageError as from `open_bookie`.
    """
    try:
        return await open_bookie()
    except CorruptData:
        damaged = [database for database in databases if database.damage]
        if not damaged:
            raise
    # Once only: a second damaged index right after a rebuild means a disk that returns wrong bytes.
    for database in damaged:
        await disk.run(database.replace)
    return await open_bookie()
