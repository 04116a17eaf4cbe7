"""Where the tasks of one topic run: beside those of all topics, and there are none unless something is to be
done. A nursery for each topic would need a task that sleeps, which is 6 KiB.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import trio


class StartsTasks(Protocol):
    """A nursery, or a `TaskGroup`."""

    def start_soon(self, work: Callable[..., Awaitable[Any]], /, *args: Any) -> None: ...


class TaskGroup:
    """Tasks that run in another object's nursery and are cancelled together. What breaks one of them breaks
    the nursery.
    """

    __slots__ = ("_is_cancelled", "_nursery", "_scopes")

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._scopes: set[trio.CancelScope] | None = None
        """Of those that run; made with the first one."""
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
        """End all of them, for good; does not wait for that. To be called before the nursery ends."""
        self._is_cancelled = True
        for scope in self._scopes or ():
            scope.cancel()
