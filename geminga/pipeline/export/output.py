"""The directory of an export: what is not whole has another name, and the manifest comes last."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from dataclasses import replace
from types import TracebackType

from geminga.pipeline.errors import PipelineError
from geminga.pipeline.export.manifest import MANIFEST, Manifest, NoExport, Run, decode, encode
from geminga.storage.disk import DirectoryLock, RealDisk

_LOCK = "_lock"
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/+")
_PATTERN = re.compile(r"[*?\[\]{}]")


def local_path(given: str) -> str:
    """An absolute path; file: URLs are allowed. Raises `PipelineError` for other file systems, and for names
    in which Spark would see a pattern.
    """
    url = _URL.match(given)
    if url is not None and url[1].lower() != "file":
        raise PipelineError(
            f"{given}: exports are on file systems that are mounted on every machine, not on {url[1]}:; name "
            "a directory, and copy it elsewhere afterwards"
        )
    path = os.path.abspath(given if url is None else "/" + given[url.end() :])
    if _PATTERN.search(path):
        raise PipelineError(f"{path}: Spark takes names with any of * ? [ ] {{ }} for patterns; name another")
    return path


def load(directory: str) -> Manifest:
    """Of an export that is there. Raises `NoExport`."""
    disk, path = RealDisk(), os.path.join(directory, MANIFEST)
    if not disk.exists(directory):
        raise NoExport(f"{directory} is not there")
    if not disk.exists(path):
        raise NoExport(
            f"{directory} holds no export: there is no {MANIFEST}, which an export writes last. If an export "
            "was stopped there, take the directory away and export again"
        )
    return decode(disk.read_file(path), path)


class Output:
    """One run's output, as a context: kept by `commit`, else nothing of it stays."""

    def __init__(self, directory: str, *, resume: bool) -> None:
        """`resume`: add a run to what is there, if it is there. Raises `PipelineError`, `StorageError`."""
        self._disk = RealDisk(for_owner=False)
        self._final = directory
        self._lock: DirectoryLock | None = None
        self._is_new = not (resume and self._disk.exists(directory))
        if self._is_new:
            self._root = directory + ".part"
            self.manifest = Manifest(uuid.uuid4().hex[:12])
            for path in (self._final, self._root):
                if self._disk.exists(path):
                    raise PipelineError(
                        f"{path} exists already; name a new directory, take it away if an export was killed "
                        "there, or continue an export that is whole (--continue, resume=True)"
                    )
        else:
            self._root = directory
            self.manifest = load(directory)
        number = max((run.number for run in self.manifest.runs), default=0) + 1
        self.run = Run(number, 0, ())
        self.staged = os.path.join(self._root, f"_part-{number:06d}")
        """Where to write."""

    def __enter__(self) -> Output:
        lock = os.path.join(self._root, _LOCK)
        self._disk.make_directory(lock)
        self._lock = self._disk.lock(lock)
        known = {run.directory for run in self.manifest.runs} | {_LOCK, MANIFEST}
        for name in self._disk.list(self._root):
            if name not in known and name.startswith(("run=", "_part-")):
                shutil.rmtree(os.path.join(self._root, name))  # left by one that was killed
        return self

    def paths(self) -> list[str]:
        """The Parquet files that were written, below `staged`."""
        found = []
        for directory, _, names in os.walk(self.staged):
            below = os.path.relpath(directory, self.staged)
            found += [os.path.normpath(os.path.join(below, name)) for name in names]
        return sorted(path.replace(os.sep, "/") for path in found if path.endswith(".parquet"))

    def commit(self, manifest: Manifest) -> None:
        """Files, then their directory's name, then the manifest that names them; all of it synced. The files
        themselves were synced before. Raises `StorageError`.
        """
        run = manifest.runs[-1]
        if run.files:
            for directory, _, _ in os.walk(self.staged):
                self._disk.sync_directory(directory)
            self._disk.rename(self.staged, os.path.join(self._root, run.directory))
            self._disk.sync_directory(self._root)
        else:
            shutil.rmtree(self.staged, ignore_errors=True)
            manifest = replace(manifest, runs=manifest.runs[:-1])
        self._disk.replace_file(os.path.join(self._root, MANIFEST), encode(manifest))
        self.manifest = manifest
        if self._is_new:
            self._disk.rename(self._root, self._final)
            self._disk.sync_directory(os.path.dirname(self._final))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            self._lock.release()
        if kind is not None:
            shutil.rmtree(self._root if self._is_new else self.staged, ignore_errors=True)
