"""Finds files of an open RocksDB database that something else has removed or cut, and writes them again.

RocksDB does not notice. It goes on with what it has open, and its next opening refuses the directory, or cuts
its log. Which files it needs changes at any time, on its own threads, so a file counts as removed only if the
database needs it before and after it was not found. Blocking.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import Final, NamedTuple

from geminga.errors import StorageError
from geminga.storage.disk import File, RealDisk
from geminga.storage.removed_files import open_removed, write_again

CURRENT: Final = "CURRENT"
"""The file that names the manifest."""
HEAD_BYTES: Final = 7
"""The header of a log's or manifest's first record: checksum, length and type, of which none is all zeros."""
_MANIFEST: Final = "MANIFEST-"
_LOG: Final = ".log"
_TABLE: Final = ".sst"


class LiveFiles(NamedTuple):
    """What an open database needs at one moment."""

    tables: frozenset[str]
    """File names."""
    oldest_log: int
    """All write-ahead logs with a smaller number are obsolete. A log with this number need not exist."""


class DatabaseFiles:
    """The files of one open database. For one thread at a time."""

    def __init__(self, path: str, live: Callable[[], LiveFiles | None]) -> None:
        """`live` may be called on any thread; None means that the database is closed. The files that exist
        now are taken for complete.
        """
        self._path = path
        self._live = live
        self._disk = RealDisk()
        self._identity = self._disk.identity(path)
        self._logs: set[int] = set()
        """The numbers of the logs that were seen, without obsolete ones."""
        self._manifest = ""
        """The name of the last manifest that was seen."""
        self._inodes: dict[str, int] = {}
        """Of each table and log, as it was seen first. Their names are never given twice."""
        self._bytes: dict[str, int] = {}
        """The lengths of tables, logs and the manifest at the last look. RocksDB makes none of them shorter
        while it needs it.
        """
        self._still: frozenset[str] | None = None
        """The names of all that is needed while the database changes no file."""
        self._held: list[File] = []
        self.gone()

    @property
    def is_in_place(self) -> bool:
        """Whether the directory is the one of the start."""
        return self._disk.identity(self._path) == self._identity

    def stand_still(self) -> None:
        """The database changes no file until `move_on`; what exists now is taken for complete. Both may be
        called on another thread than `gone`. Raises StorageError.
        """
        needed = frozenset(name for name in self._listed() if _is_needed(name))
        # RocksDB opened for reading has its logs in memory and no descriptor of them.
        for name in needed:
            if not name.endswith(_TABLE):
                self._held.append(self._disk.open(os.path.join(self._path, name)))
        self._still = needed
        self._bytes = {}  # a failed write was cut off

    def move_on(self) -> None:
        self._still = None
        while self._held:
            self._held.pop().close()

    def gone(self) -> list[str]:
        """The paths of the files that the database needs and that do not exist or were cut, sorted; that of
        the directory if it was removed, moved or replaced.
        """
        if not self.is_in_place:
            return [self._path]
        still = self._still
        found = self._gone_while_moving() if still is None else still - self._listed()
        # If that has changed meanwhile, neither answer is right; the next look tells.
        return sorted(os.path.join(self._path, name) for name in found) if self._still is still else []

    def _gone_while_moving(self) -> Collection[str]:
        before = self._live()
        if before is None:
            return []
        names = self._listed()
        logs = {number for name in names if (number := _log_number(name)) >= before.oldest_log}
        missing_tables = before.tables - names
        missing_logs = {number for number in self._logs if number >= before.oldest_log} - logs
        self._logs = logs | missing_logs
        lost = self._missing_manifest()
        written = {self._manifest, *map(_log_name, logs)} - {""}
        cut = self._cut(before.tables & names, written)
        if missing_tables or missing_logs or cut or not logs:
            # RocksDB has deleted them itself in the meantime, unless it still needs them. Numbers are never
            # given twice, and a table or log that is obsolete stays so.
            after = self._live()
            if after is None:
                return []
            names |= self._listed()
            lost += [name for name in missing_tables & after.tables if name not in names]
            lost += [
                name
                for name in cut
                if name in after.tables or name == self._manifest or _log_number(name) >= after.oldest_log
            ]
            numbers = {number for number in missing_logs if number >= after.oldest_log}
            # The log that is being written is never obsolete. If none was listed while `oldest_log` stayed
            # the same, then it was made and removed since the last look.
            if not logs and not numbers and after.oldest_log == before.oldest_log:
                numbers = {after.oldest_log}
            lost += [name for name in map(_log_name, numbers) if name not in names]
        return lost

    def _cut(self, tables: Collection[str], written: Collection[str]) -> list[str]:
        """Those of these files that are shorter than at the last look, or that a write behind a cut has made
        as long again. `written` are those that the database appends to.
        """
        cut: list[str] = []
        known, self._bytes = self._bytes, {}
        for name in (*tables, *written):
            path = os.path.join(self._path, name)
            size = self._disk.size(path)
            if size is None:
                continue  # obsolete, or named as missing
            is_cut = size < known.get(name, 0)
            if not is_cut and size and name in written:
                # RocksDB writes at its own offset, so the file then begins with zeros; no record does.
                is_cut = not any(self._head(path))
            self._bytes[name] = max(size, known.get(name, 0))
            if is_cut:
                cut.append(name)
        return cut

    def _head(self, path: str) -> bytes:
        """The first bytes of a file; anything if it is gone."""
        try:
            file = self._disk.open(path)
        except StorageError:
            if self._disk.exists(path):
                raise
            return b"?"
        try:
            return file.pread(0, HEAD_BYTES)
        finally:
            file.close()

    def _listed(self) -> set[str]:
        """The names of the files in the directory, without tables and logs that were replaced."""
        found = self._disk.inodes(self._path)
        self._inodes = {
            name: self._inodes.get(name, inode)
            for name, inode in found.items()
            if name.endswith((_LOG, _TABLE))
        }
        return {name for name, inode in found.items() if self._inodes.get(name, inode) == inode}

    def write_again(self) -> list[str]:
        """Write those removed files again that the process still has open, durable on return. The database
        must have been flushed, and must not change any more. Returns the paths of files that are still gone.
        """
        for path in self.gone():
            if path == self._path:
                break  # what was written there would be hidden when the right directory comes back
            name = os.path.basename(path)
            if name == CURRENT:
                if self._manifest:
                    self._disk.replace_file(path, f"{self._manifest}\n".encode())
            elif (file := open_removed(path)) is not None:
                try:
                    write_again(self._disk, file, path)
                    self._inodes.pop(name, None)
                finally:
                    file.close()
        return self.gone()

    def _missing_manifest(self) -> list[str]:
        """The name of what is missing of `CURRENT` and the manifest."""
        while True:
            named = self._named_manifest()
            if not named or self._exists(named):
                break
            # RocksDB begins a new manifest and renames over `CURRENT` before it deletes the old one.
            if self._named_manifest() == named:
                return [named]
        if named:
            self._manifest = named
            return []
        missing = [CURRENT]
        if self._manifest and not self._exists(self._manifest):
            missing.append(self._manifest)
        return missing

    def _named_manifest(self) -> str:
        """The manifest's name in `CURRENT`; "" if that file does not exist."""
        try:
            return self._disk.read_file(os.path.join(self._path, CURRENT)).decode(errors="replace").strip()
        except StorageError:
            if self._exists(CURRENT):
                raise
            return ""

    def _exists(self, name: str) -> bool:
        return self._disk.exists(os.path.join(self._path, name))


def _log_number(name: str) -> int:
    """The number of a write-ahead log; -1 for any other file."""
    stem = name.removesuffix(_LOG)
    return int(stem) if stem != name and stem.isascii() and stem.isdigit() else -1


def _is_needed(name: str) -> bool:
    return name == CURRENT or name.startswith(_MANIFEST) or name.endswith((_LOG, _TABLE))


def _log_name(number: int) -> str:
    return f"{number:06d}{_LOG}"
