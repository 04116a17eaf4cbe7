"""The names on the simulated disk: what is there now, what is durable, and what is between, per directory."""

from __future__ import annotations

import random
from collections.abc import Iterator

from simulation.disk.sim_inode import CrashMode, Inode

Change = dict[str, Inode | None]
"""What names mean after an operation; None: nothing."""


class SimNames:
    """Full paths of files, and the inodes behind them."""

    def __init__(self) -> None:
        self.current: dict[str, Inode] = {}
        self._durable: dict[str, Inode] = {}
        self._pending: list[tuple[str, Change]] = []

    def change(self, names: Change) -> None:
        """One operation in one directory: whole, or not there after a crash."""
        _set(self.current, names)
        self._pending.append((parent(next(iter(names))), names))

    def sync(self, directory: str) -> None:
        for where, names in self._pending:
            if where == directory:
                _set(self._durable, names)
        self._pending = [(where, names) for where, names in self._pending if where != directory]

    def crash(self, mode: CrashMode, chance: random.Random) -> None:
        if mode == "keep":
            self._durable = dict(self.current)
        elif mode == "torn":
            keep = chance.choice((0.1, 0.5, 0.9))
            for _, names in self._pending:
                if chance.random() < keep:
                    _set(self._durable, names)
        self._pending = []
        self.current = dict(self._durable)

    def unsynced(self) -> set[str]:
        return {name for _, changed in self._pending for name in changed}

    def inodes(self) -> Iterator[Inode]:
        """Each once, whatever its names."""
        return iter({id(inode): inode for inode in self.current.values()}.values())


def parent(path: str) -> str:
    return path.rsplit("/", 1)[0] if "/" in path else ""


def _set(target: dict[str, Inode], names: Change) -> None:
    for name, inode in names.items():
        if inode is None:
            target.pop(name, None)
        else:
            target[name] = inode
