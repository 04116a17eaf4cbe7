"""The database of a bookie's index. If RocksDB finds damage in it, it is renamed and rebuilt.

Entry logs and journals have all that an index has, so damage to the index is no reason to refuse a start. An
empty database takes the name of the damaged one. It stores the reason and, if they can still be read, the
ledgers that are fenced or deleted, because no log has these states. `Bookie.open` then fills it, as after
any loss of the index. The damaged database is kept with the suffix `.damaged`; an earlier one of that name
is deleted.

If a read finds damage while the bookie runs, the reason is written to a file with the suffix `.damage`, and
the process ends: an index that answers in part would hide entries. The next start rebuilds the index.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import trio

from geminga.bookie.index.index_format import (
    OWNER_KEY,
    REBUILD_KEY,
    STATE_KEYS,
    decode_owner,
    encode_owner,
)
from geminga.bookie.records.owner import Owner
from geminga.errors import CorruptData, StorageError
from geminga.storage.descriptor_wait import OutOfDescriptors
from geminga.storage.disk import Disk
from geminga.storage.key_value import RocksKeyValue
from geminga.storage.rocksdb import BlockCache, destroy

# Names beside the database, not inside it: its directory is renamed and destroyed as a whole.
ASIDE, REBUILT, NOTE = ".damaged", ".new", ".damage"
"""Suffixes of files beside the database: the last damaged database, a new one under construction, and the
reason for which the next start rebuilds.
"""
T = TypeVar("T")
log = logging.getLogger("geminga.bookie")


class ForeignIndex(StorageError):
    """The index is not that of its directory: it was renamed or copied there."""


class IndexDatabase:
    """A `KeyValue` for a `LedgerIndex`, at `path`, which is created if absent. Opening a damaged database
    replaces it. Raises StorageError if the database cannot be opened for another reason.

    `owner` is written to a database that has none. Raises ForeignIndex if the database has another one.

    Methods may be called on any thread, writing methods on one thread at a time. `run` belongs to the event
    loop.
    """

    def __init__(
        self,
        disk: Disk,
        path: str,
        *,
        block_cache: BlockCache | None = None,
        owner: Owner | None = None,
    ) -> None:
        self.path = path
        self._owner = owner
        self.damage = ""
        """The damage that was found since the database was opened; "" if none was."""
        self._disk = disk
        self._cache = block_cache
        self._lock = threading.Lock()
        self._found = trio.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._values = self._open()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Wait until damage is found. Then raises StorageError, whose text promises that a new start repairs
        it.
        """
        self._token = trio.lowlevel.current_trio_token()
        task_status.started()
        if not self.damage:
            await self._found.wait()
        # Ended by its own task: the read that met the damage runs on a thread and belongs to one consumer.
        raise StorageError(f"{self.damage}; start again: the index is then rebuilt from the entry logs")

    def replace(self) -> None:
        """Replace this database, in which damage was found, with an empty one. Blocking. No other thread may
        use the database meanwhile, and all scans must be over.
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

    def gone_files(self) -> list[str]:
        """As `RocksKeyValue.gone_files`."""
        return self._values.gone_files()

    def write_files_again(self) -> list[str]:
        """As `RocksKeyValue.write_files_again`. If files are still gone then, the next start rebuilds the
        index from the entry logs.
        """
        gone = self._values.write_files_again()
        if gone and gone != [self.path]:
            self._note(CorruptData(f"{gone[0]}: damaged, the file was removed while the broker ran"))
        return gone

    def close(self) -> None:
        """As `KeyValue.close`. Ignores damage that closing finds: all synced data is durable or can be
        rebuilt by the next start.
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
        """Write the reason durably for the next start, which may not read that block before a consumer needs
        it.
        """
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
        try:
            self._own(values)
        except CorruptData as error:
            noted = noted or str(error)
        if not noted:
            return values
        if _begun(values):
            self._forget_note()  # a crash came between replacing it and this
            return values
        return self._rebuilt(noted, _readable_states(values))

    def _own(self, values: RocksKeyValue) -> None:
        """Write the owner to a database that has none. Closes the database if it raises ForeignIndex."""
        if self._owner is None:
            return
        stored = values.get(OWNER_KEY)
        if stored is None:
            values.write([(OWNER_KEY, encode_owner(self._owner))], sync=True)
        elif decode_owner(stored) != self._owner:
            values.close()
            raise ForeignIndex(f"{self.path}: {foreign_text(decode_owner(stored), self._owner)}")

    def _opened(self) -> RocksKeyValue:
        return RocksKeyValue(self.path, block_cache=self._cache, descriptors=self._disk.descriptors)

    def _rebuilt(self, damage: str, states: list[tuple[bytes, bytes]]) -> RocksKeyValue:
        """Replace the database with an empty one that has only these states. After a crash at any point, the
        next `_open` continues.
        """
        aside, rebuilt = self.path + ASIDE, self.path + REBUILT
        log.error("%s; the index is rebuilt from the entry logs, the damaged one is in %s", damage, aside)
        self._disk.make_directory(rebuilt)
        values = RocksKeyValue(rebuilt, block_cache=self._cache, descriptors=self._disk.descriptors)
        try:
            # The states come with the reason in one write: an index that is begun and lacks its fences would
            # never get them.
            owner = [(OWNER_KEY, encode_owner(self._owner))] if self._owner is not None else []
            values.write([(REBUILD_KEY, damage.encode()), *owner, *states], sync=True)
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


def foreign_text(found: Owner, expected: Owner) -> str:
    """What is wrong with the index of `found` in the directory of `expected`."""
    said, wanted = (f"instance={of.instance_id} ledgers={of.position}" for of in (found, expected))
    return f"this is the index of another directory (it says {said}; this directory is {wanted})"


def _begun(values: RocksKeyValue) -> bool:
    """Whether this database replaced a damaged one and was not filled yet."""
    try:
        return values.get(REBUILD_KEY) is not None
    except CorruptData:
        return False


def _readable_states(values: RocksKeyValue) -> list[tuple[bytes, bytes]]:
    """The fences and deletions in a damaged database. Closes it."""
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
    """The result of `open_bookie()`. If that finds damaged `databases`, they are replaced and `open_bookie`
    is called once more. Raises StorageError as `open_bookie` does.
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
