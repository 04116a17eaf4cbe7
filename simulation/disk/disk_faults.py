"""What goes wrong on a simulated disk while the power is on. The model is told in `sim_disk`."""

from __future__ import annotations

import random
from collections.abc import Callable

from geminga.errors import StorageError
from geminga.storage.disk_errors import DiskFull

FAILING_KINDS = ("write", "sync", "sync_directory", "create", "rename", "unlink", "read", "allocate")
"""Kinds of operation that `fail` can be told of; truncations and those of other stores have names too."""


class _Plan:
    __slots__ = ("kind", "short", "skip", "sticky")

    def __init__(self, kind: str, skip: int, sticky: bool, short: bool) -> None:
        self.kind = kind
        self.skip = skip
        self.sticky = sticky
        self.short = short


class DiskFaults:
    """Plans, and the log of what they did."""

    def __init__(self, seed: int) -> None:
        self.log: list[str] = []
        """Every fault injected, in words, in order."""
        self.sync_s: Callable[[], float] | None = None
        """Virtual seconds that each sync takes; whoever waits in `Disk.run` waits so long on trio's clock."""
        self._chance = random.Random(f"faults {seed}")
        self._plans: list[_Plan] = []

    @property
    def active(self) -> bool:
        """Whether anything may fail, or has failed, by plan."""
        return bool(self._plans or self.log)

    def fail(self, kind: str, *, skip: int = 0, sticky: bool = False, short: bool = False) -> None:
        """After `skip` operations of the kind one fails with EIO, and with `sticky` all that follow. A
        `short` write leaves a part of its bytes behind.
        """
        self._plans.append(_Plan(kind, skip, sticky, short))

    def clear(self) -> None:
        """No more faults from here on; the log stays."""
        self._plans.clear()

    def before(self, kind: str, path: str) -> None:
        """Raise what is planned for this operation; a short write is left to `admit`."""
        for plan in self._plans:
            if plan.kind == kind and not plan.short and self._is_due(plan):
                raise self.note(f"{path}: injected: cannot {kind}: Input/output error")

    def admit(self, path: str, length: int) -> int:
        """How many bytes of a write get through; all, unless a short one is planned."""
        for plan in self._plans:
            if plan.kind == "write" and plan.short and self._is_due(plan):
                return self._chance.randrange(length) if length else 0
        return length

    def note(self, text: str, kind: type[StorageError] = StorageError) -> StorageError:
        """Into the log; returns the error to raise."""
        self.log.append(text)
        return kind(text)

    def full(self, path: str) -> StorageError:
        return self.note(f"{path}: injected: cannot write: No space left on device", DiskFull)

    def _is_due(self, plan: _Plan) -> bool:
        if plan.skip:
            plan.skip -= 1
            return False
        if not plan.sticky:
            self._plans.remove(plan)
        return True
