"""The directory of an export: what is not whole has another name or none, and the manifest comes last."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from types import TracebackType

from geminga.pipeline.errors import Option, PipelineError
from geminga.pipeline.export.manifest import MANIFEST, Manifest, NoExport, Run, decode, encode
from geminga.pipeline.files.files import Files, NotThere
from geminga.pipeline.files.locations import FILE, join, parse
from geminga.storage.disk import DirectoryLock, RealDisk

_RESUME = Option("resume", "True")
_LOCK = "_lock"
_PART = ".part"
_LEFT = ("run=", "_part-")
"""How names begin of what a run that was killed may leave."""


def load(files: Files, directory: str) -> Manifest:
    """Of an export that is there. Raises `NoExport`, `StorageError`."""
    url = join(directory, MANIFEST)
    try:
        return decode(files.read(url), url)
    except NotThere:
        if not files.exists(directory):
            raise NoExport(f"{directory} is not there") from None
        raise NoExport(
            f"{directory} holds no export: there is no {MANIFEST}, which an export writes last. If an export "
            "was stopped there, take the directory away and export again, or continue it (",
            _RESUME,
            ")",
        ) from None


def exported_files(directory: str, settings: dict[str, str] | None = None) -> list[str]:
    """The URLs of all files that belong to an export, for whatever reads Parquet; in an object store there
    may be others below it, of runs that were killed. Raises `NoExport`, `StorageError`.
    """
    manifest = load(Files(settings or {}), directory)
    return [join(directory, file.path) for file in manifest.files]


class Output:
    """One run's output, as a context: kept by `commit`, else nothing of it counts.

    Where directories can be renamed, a new export has another name until it is whole, and so has each run.
    In an object store files have their last names at once, and only the manifest tells which of them belong
    to it.
    """

    def __init__(self, files: Files, directory: str, *, resume: bool) -> None:
        """`resume`: add a run to an existing export; files that a killed run left unfinished are replaced.
        Raises `PipelineError`, `StorageError`.
        """
        self._files = files
        self._final = str(parse(directory)).rstrip("/")
        self._renames = files.can_rename(self._final)
        self._mark: _Mark | None = None
        self._is_new = not (resume and files.exists(join(self._final, MANIFEST)))
        self._root = self._final + _PART if self._is_new and self._renames else self._final
        if not self._is_new:
            self.manifest = load(files, self._final)
        else:
            self.manifest = Manifest(uuid.uuid4().hex[:12])
            self._check_free(resume)
        number = max((run.number for run in self.manifest.runs), default=0) + 1
        self.run = Run(number, 0, ())
        name = f"_part-{number:06d}" if self._renames else self.run.directory
        self.staged = join(self._root, name)
        """Where to write."""

    def _check_free(self, resume: bool) -> None:
        for url in dict.fromkeys((self._final, self._root)):
            found = [one.name for one in self._files.list(url)]
            is_left = all(name in (_LOCK, MANIFEST) or name.startswith(_LEFT) for name in found)
            if not self._files.exists(url) or (not self._renames and not found):
                continue
            if not (resume and url == self._root and is_left):
                raise PipelineError(
                    f"{url} exists already; name a new directory, take it away if an export was killed "
                    "there, or continue the export (",
                    _RESUME,
                    ")",
                )

    def __enter__(self) -> Output:
        self._mark = _Mark(self._files, self._root)
        known = {run.directory for run in self.manifest.runs}
        for one in self._files.list(self._root):
            if one.name not in known and one.name.startswith(_LEFT):
                self._files.delete_tree(join(self._root, one.name))  # left by one that was killed
            elif self._is_new and one.name == MANIFEST:
                self._files.delete(join(self._root, one.name))  # killed before the directory got its name
        return self

    def commit(self, manifest: Manifest) -> None:
        """Only the files of the manifest's last run stay; then their directory gets its name, then the
        manifest names them. All of it is durable on return. Raises `PipelineError` if another export has
        begun in this directory, `StorageError`.
        """
        assert self._mark is not None
        self._mark.check()
        run = manifest.runs[-1]
        if run.files:
            self._keep_only(run)
            if self._renames:
                self._files.rename(self.staged, join(self._root, run.directory))
                self._files.sync_directory(self._root)
        else:
            self._files.delete_tree(self.staged)
            manifest = replace(manifest, runs=manifest.runs[:-1])
        self._mark.check()
        self._files.write(join(self._root, MANIFEST), encode(manifest))
        self.manifest = manifest
        if self._is_new and self._renames:
            self._files.rename(self._root, self._final)
            self._files.sync_directory(os.path.dirname(self._final))

    def _keep_only(self, run: Run) -> None:
        """What an attempt left that failed or was not needed goes, and what is to stay is looked for."""
        wanted = {file.path.removeprefix(f"{run.directory}/"): file.size_bytes for file in run.files}
        directories = [self.staged]
        for one in self._files.list(self.staged, recursive=True):
            if one.is_directory:
                directories.append(join(self.staged, one.name))
            elif wanted.get(one.name) == one.size_bytes:
                del wanted[one.name]
            elif one.name not in wanted:
                self._files.delete(join(self.staged, one.name))
        if wanted:
            raise PipelineError(
                f"{join(self.staged, next(iter(wanted)))} is not as it was written ({len(wanted)} files): "
                "another export may run in this directory; let one run alone, and continue (",
                _RESUME,
                ")",
            )
        for directory in directories:
            self._files.sync_directory(directory)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._mark is not None
        if kind is not None and self._mark.is_ours():
            self._files.delete_tree(self._root if self._is_new else self.staged)
        self._mark.release()


class _Mark:
    """That an export runs in a directory. On this machine it is a lock; elsewhere a file, of which the last
    one to write it is the one that may go on.
    """

    def __init__(self, files: Files, root: str) -> None:
        """Raises `StorageError` where the lock is held."""
        self._files = files
        self._url = join(root, _LOCK)
        self._own = uuid.uuid4().hex.encode()
        self._lock: DirectoryLock | None = None
        if parse(root).scheme == FILE:
            disk = RealDisk(for_owner=False)
            disk.make_directory(self._url)
            self._lock = disk.lock(self._url)
        else:
            files.write(self._url, self._own)

    def is_ours(self) -> bool:
        if self._lock is not None:
            return True
        try:
            return self._files.read(self._url) == self._own
        except NotThere:
            return False

    def check(self) -> None:
        """Raises `PipelineError` if another has begun."""
        if not self.is_ours():
            raise PipelineError(
                f"{self._url} is another's: a second export has begun in this directory and goes on; let it "
                "end, then continue (",
                _RESUME,
                ")",
            )

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
        elif self.is_ours():
            self._files.delete(self._url)
