"""Puts one state of a data directory in the place of another, so that a crash leaves one of them, whole.

A state is the directories `metadata`, `index` and `bookie`, and what a rebuild of the index has beside them.
The new one is prepared in `swap/incoming`. The file `swap/intent.json` exists from before the first directory
is moved until the new state has opened. With it, a start takes the old state back out of `swap/outgoing`;
without it, what is in the data directory is valid, and the rest of `swap` is waste. All calls block; a disk
that fails leaves what a crash would.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, Literal

import msgspec

from geminga.bookie.index.database import ASIDE, NOTE, REBUILT
from geminga.errors import StorageError
from geminga.storage.disk import RealDisk

SWAP: Final = "swap"
"""The name inside a data directory."""
_INTENT, _INCOMING, _OUTGOING = "intent.json", "incoming", "outgoing"
PARTS: Final = ("metadata", "index", "bookie")
"""The directories of a data directory that are its state."""
INTENT_VERSION: Final = 1
MOVED: Final = (*PARTS, *(f"index{suffix}" for suffix in (ASIDE, REBUILT, NOTE)))
"""The names that a state may have in a data directory."""

What = Literal["restore", "reset"]


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `intent.json`."""

    format_version: int = INTENT_VERSION
    what: What
    source: str
    """The snapshot; "" for a reset."""

    def __str__(self) -> str:
        return f"restore of {self.source}" if self.what == "restore" else "reset"


def incoming(data_dir: str) -> str:
    """Where the new state is prepared."""
    return os.path.join(data_dir, SWAP, _INCOMING)


def prepare(disk: RealDisk, data_dir: str) -> None:
    """Make an empty directory for the new state."""
    _clear(disk, data_dir)
    disk.make_directory(incoming(data_dir))


def discard(disk: RealDisk, data_dir: str) -> None:
    """Delete a state that was prepared, and is not wanted any longer."""
    _clear(disk, data_dir)


def begin(disk: RealDisk, data_dir: str, intent: Intent, passed: Callable[[str], None]) -> None:
    """Move the old state out and the prepared one in. Nothing of the data directory may be open. `passed`
    gets the names of points.
    """
    swap = os.path.join(data_dir, SWAP)
    outgoing, prepared = os.path.join(swap, _OUTGOING), incoming(data_dir)
    if not disk.exists(prepared):
        raise StorageError(f"{prepared}: was removed by another program; start again, with the state before")
    disk.make_directory(outgoing)
    disk.replace_file(os.path.join(swap, _INTENT), msgspec.json.encode(intent))
    passed("restore-intended")
    for name in MOVED:
        if _move(disk, data_dir, outgoing, name):
            passed("restore-moving")
    _sync(disk, data_dir, outgoing)
    passed("restore-moved-out")
    for name in MOVED:
        _move(disk, prepared, data_dir, name)
    _sync(disk, data_dir, prepared)
    passed("restore-moved-in")


def commit(disk: RealDisk, data_dir: str) -> None:
    """The new state has opened, and counts from the return on, also after a crash."""
    swap = os.path.join(data_dir, SWAP)
    disk.unlink(os.path.join(swap, _INTENT))
    disk.sync_directory(swap)


def delete_old(disk: RealDisk, data_dir: str) -> None:
    """Delete the state before, after a commit. What has been prepared since stays."""
    outgoing = os.path.join(data_dir, SWAP, _OUTGOING)
    if disk.exists(outgoing):
        disk.remove_tree(outgoing)


def undo(disk: RealDisk, data_dir: str) -> None:
    """Put the old state back and delete the new one. May be repeated after a crash."""
    swap = os.path.join(data_dir, SWAP)
    outgoing = os.path.join(swap, _OUTGOING)
    for name in MOVED:
        # What is not in `outgoing` was not moved out, or is back already.
        if disk.exists(os.path.join(outgoing, name)):
            _move(disk, data_dir, incoming(data_dir), name)
            _move(disk, outgoing, data_dir, name)
    _sync(disk, data_dir, outgoing)
    commit(disk, data_dir)
    _clear(disk, data_dir)


def is_interrupted(disk: RealDisk, data_dir: str) -> bool:
    """Whether a swap has begun that is not committed: the data directory may have no state now."""
    return disk.exists(os.path.join(data_dir, SWAP, _INTENT))


def settle(disk: RealDisk, data_dir: str) -> Intent | None:
    """Before a start opens anything: undo a swap that was interrupted, and return it. Raises StorageError for
    one that a newer version has begun.
    """
    path = os.path.join(data_dir, SWAP, _INTENT)
    if not is_interrupted(disk, data_dir):
        _clear(disk, data_dir)
        return None
    try:
        intent = msgspec.json.decode(disk.read_file(path), type=Intent)
    except msgspec.MsgspecError as error:
        raise StorageError(
            f"{path}: cannot be read: {error}; start the version that has written it"
        ) from None
    if intent.format_version > INTENT_VERSION:
        raise StorageError(f"{path}: was written by a newer version of this program; start that one")
    undo(disk, data_dir)
    return intent


def _move(disk: RealDisk, source: str, target: str, name: str) -> bool:
    """Whether there was something to move."""
    old, new = os.path.join(source, name), os.path.join(target, name)
    if not disk.exists(old):
        return False
    disk.rename(old, new)
    return True


def _sync(disk: RealDisk, *directories: str) -> None:
    for directory in directories:
        disk.sync_directory(directory)


def _clear(disk: RealDisk, data_dir: str) -> None:
    swap = os.path.join(data_dir, SWAP)
    if disk.exists(swap):
        disk.remove_tree(swap)
