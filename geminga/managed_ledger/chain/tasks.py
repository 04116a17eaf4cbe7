"""Runs the tasks of one topic in the nursery of all topics, and only while there is work. A nursery for each
topic would need a sleeping task, which takes 6 KiB.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio


class StartsTasks(Protocol):
    """A nursery, or a `TaskGroup`."""

    def start_soon(self, work: Callable[..., Awaitable[Any]], /, *args: Any) -> None: ...


class TaskGroup:
    """Tasks that run in another object's nursery and are cancelled together. An exception in one of them
    ends the nursery.
    """

    __slots__ = ("_is_cancelled", "_nursery", "_scopes")

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._scopes: set[trio.CancelScope] | None = None
        """The scopes of running tasks; created with the first one."""
        self._is_cancelled = False

    def start_soon(self, work: Callable[..., Awaitable[Any]], /, *args: Any) -> None:
        """As a nursery's; after `cancel` it does nothing."""
        if not self._is_cancelled:
            self._nursery.start_soon(self._run, work, args, name=work)

    async def _run(self, work: Callable[..., Awaitable[Any]], args: tuple[Any, ...]) -> None:
        if self._scopes is None:
            self._scopes = set()
        with trio.CancelScope() as scope:
            if self._is_cancelled:
                scope.cancel()
            self._scopes.add(scope)
            try:
                await work(*args)
            finally:
                self._scopes.discard(scope)

    def cancel(self) -> None:
        """End all tasks for good, without waiting for that. Call this before the nursery ends."""
        self._is_cancelled = True
        for scope in self._scopes or ():
            scope.cancel()
