"""Values that several requests want at the same time, each made by one of them for all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable
from typing import Final, Generic, TypeVar

import trio

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

FRESH_S: Final = 1.0
"""A value serves for this long..."""
FRESH_FOR_MAKING: Final = 4
"""...and for this many times the time that it took to make, so that a large broker spends a fifth of its time
at most, however many look.
"""
KEPT_MAX: Final = 16


class Shared(Generic[K, V]):
    """One value for each key, made when a request asks. There is no task: nothing is made while none asks."""

    def __init__(self, make: Callable[[K], Awaitable[V]]) -> None:
        self._make = make
        self._making = trio.Lock()
        """Fair. A request that is cancelled while it makes a value leaves that to the next one."""
        self._kept: dict[K, tuple[float, V]] = {}
        """Until when each serves, the oldest first."""

    async def get(self, key: K) -> V:
        """The value, fresh. What `make` raises is raised to its own request; the next one makes again."""
        async with self._making:
            until_s, value = self._kept.get(key, (0.0, None))
            if value is not None and trio.current_time() < until_s:
                return value
            began_s = trio.current_time()
            made = await self._make(key)
            ended_s = trio.current_time()
            self._kept.pop(key, None)
            while len(self._kept) >= KEPT_MAX:
                del self._kept[next(iter(self._kept))]
            self._kept[key] = ended_s + max(FRESH_S, FRESH_FOR_MAKING * (ended_s - began_s)), made
            return made
