"""A data directory, served or stopped: which process holds it, what takes how much room."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from geminga.cli.arguments.access import REFUSALS
from geminga.cli.client.addresses import sibling_ports

LOCK = "lock"
DAMAGE_NOTE = ".damage"
"""Ends the name of the file that a broker writes beside an index that it found damaged."""
FULL = 0.9
"""A file system this full is something wrong."""
PARTS = ("journal", "entry-logs", "index", "metadata")
"""Where bytes lie, by the names of the directories that they lie in; the rest is `other`."""
FILES_MAX = 200_000
"""Looked at; a directory with more is told with what was found until then."""


class Place(NamedTuple):
    path: str
    exists: bool
    is_data_directory: bool
    is_served: bool | None
    """Whether a process holds its lock; None: this user may not look."""
    pid: int | None
    """Which, if the system says."""
    bytes_by_part: dict[str, int]
    files: int
    file_system_bytes: int
    """Without what the file system keeps for itself: a writer never gets that."""
    free_bytes: int
    index_damaged: bool
    refusal: OSError | None = None
    """Why the system keeps this user out of it, or of the first directory in it that it does."""

    @property
    def share_full(self) -> float:
        return 1 - self.free_bytes / self.file_system_bytes if self.file_system_bytes else 0.0


def look(path: str) -> Place:
    """What is there now."""
    path = os.path.abspath(path)
    refusals: list[OSError] = []
    if not _is_directory(path, refusals):
        above = path
        while not os.path.isdir(above):
            above = os.path.dirname(above)
        usage = shutil.disk_usage(above)
        served, size_bytes = None if refusals else False, usage.used + usage.free
        return Place(
            path, False, False, served, None, {}, 0, size_bytes, usage.free, False, next(iter(refusals), None)
        )
    usage = shutil.disk_usage(path)
    lock = os.path.join(path, LOCK)
    is_ours = any(_is_directory(os.path.join(path, name), refusals) for name in ("metadata", "bookie"))
    is_served = _is_locked(lock, refusals) if is_ours or refusals else False
    sizes = dict.fromkeys((*PARTS, "other"), 0)
    files = 0
    damaged = False
    for directory, name, size in _files(path, refusals):
        files += 1
        part = next((part for part in reversed(directory.split(os.sep)) if part in PARTS), "other")
        sizes[part] += size
        damaged = damaged or name.endswith(DAMAGE_NOTE)
        if files >= FILES_MAX:
            break
    pid = _holder(lock) if is_served else None
    return Place(
        path,
        True,
        is_ours,
        is_served,
        pid,
        sizes,
        files,
        usage.used + usage.free,
        usage.free,
        damaged,
        next(iter(refusals), None),
    )


def _is_directory(path: str, refusals: list[OSError]) -> bool:
    try:
        return stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        _note(error, refusals)
        return False


def _note(error: OSError, refusals: list[OSError]) -> None:
    """Keep the first one that is about rights."""
    if error.errno in REFUSALS and not refusals:
        refusals.append(error)


def _files(path: str, refusals: list[OSError]) -> Iterator[tuple[str, str, int]]:
    """Directory (below `path`), name and size on disk of each file. What vanishes meanwhile is left out."""
    for directory, _, names in os.walk(path, onerror=lambda error: _note(error, refusals)):
        below = os.path.relpath(directory, path)
        for name in names:
            try:
                found = os.lstat(os.path.join(directory, name))
            except OSError as error:
                _note(error, refusals)
                continue
            yield below, name, found.st_blocks * 512


def _is_locked(lock: str, refusals: list[OSError]) -> bool | None:
    try:
        descriptor = os.open(lock, os.O_RDONLY)
    except OSError as error:
        _note(error, refusals)
        return None if error.errno in REFUSALS else False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _holder(lock: str) -> int | None:
    """The process that has the lock's file open."""
    wanted = os.path.realpath(lock)
    for process in Path("/proc").glob("[0-9]*"):
        if any(target == wanted for target in _opened(process)):
            return int(process.name)
    return None


def _opened(process: Path) -> Iterator[str]:
    try:
        links = list((process / "fd").iterdir())
    except OSError:
        return  # another user's process, or one that has just ended
    for link in links:
        try:
            yield os.readlink(link)
        except OSError:
            continue


def data_directory_of(pid: int) -> str | None:
    """Where a broker's process has its data; None if the system does not say."""
    for target in _opened(Path(f"/proc/{pid}")):
        directory, name = os.path.split(target)
        if name == LOCK and os.path.isdir(os.path.join(directory, "metadata")):
            return directory
    return None


def ports_of(pid: int) -> list[int]:
    """The TCP ports that a process listens on."""
    return sorted(sibling_ports(pid=pid))


def uptime_s(pid: int) -> float | None:
    try:
        started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        since_boot = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return since_boot - started / os.sysconf("SC_CLK_TCK")
