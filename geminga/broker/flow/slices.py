"""Long scans in slices of bounded work; all other tasks of the loop run in between."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from heapq import merge
from itertools import islice
from typing import Final, TypeVar

import trio

from geminga.errors import GemingaError

T = TypeVar("T")

SLICE_S: Final = 0.001
PAUSE_S: Final = 0.002
"""About twice as long as a slice."""
NAMES_MAX: Final = 200
"""The number of names between two checkpoints, about a millisecond."""
ROWS_MAX: Final = 25
"""Rows that take some hundredths of a millisecond each, between two checkpoints."""
AT_ONCE: Final = 8
"""Items that `for_each` works on: each may take a part of the same turn of the loop."""


class Pace:
    """The turns that one long look leaves to everything else.

    A checkpoint alone has the other tasks run, and keeps the interpreter's lock nearly all the time: the
    threads that write the journal would wait for it, and each publisher with them. So the loop sleeps
    whenever `slice_s` have passed; a look that is shorter does not wait.
    """

    def __init__(self, slice_s: float = SLICE_S, pause_s: float = PAUSE_S) -> None:
        self._slice_s = slice_s
        self._pause_s = pause_s
        self._since_s = trio.current_time()
        self._rows = 0

    async def row(self) -> None:
        """One short row was looked at: a turn after every `ROWS_MAX` of them."""
        self._rows += 1
        if self._rows % ROWS_MAX == 0:
            await self.turn()

    async def turn(self) -> None:
        if trio.current_time() - self._since_s < self._slice_s:
            await trio.lowlevel.checkpoint()
            return
        await trio.sleep(self._pause_s)
        self._since_s = trio.current_time()


async def in_slices(look: Generator[object, None, T]) -> T:
    """What `look` returns, with a turn for all others wherever it yields. Cancelling abandons it there."""
    pace = Pace()
    while True:
        try:
            next(look)
        except StopIteration as end:
            found: T = end.value
            return found
        await pace.turn()


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Work on `AT_ONCE` items at a time, which meet in groups of the stores' syncs. Raises the first
    `GemingaError`, once those under way have ended; no further ones are begun then.
    """
    rest, failure = iter(items), []

    async def one_after_the_other() -> None:
        pace = Pace()
        for item in rest:
            try:
                await work(item)
            except GemingaError as error:
                failure.append(error)
            await pace.turn()
            if failure:
                return

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(one_after_the_other)
    if failure:
        raise failure[0]


async def sorted_names(names: Iterable[str]) -> list[str]:
    """All of them once, sorted: they are taken, sorted and put together `NAMES_MAX` at a time."""
    runs, rest, pace = [], iter(names), Pace()
    while run := list(islice(rest, NAMES_MAX)):
        runs.append(sorted(run))
        await pace.turn()
    if len(runs) == 1:
        return list(dict.fromkeys(runs[0]))
    found: dict[str, None] = {}
    ordered = merge(*runs)
    while part := list(islice(ordered, NAMES_MAX)):
        found.update(dict.fromkeys(part))
        await pace.turn()
    return list(found)


async def matching(names: Sequence[str], matches: Callable[[str], bool]) -> list[str]:
    """The names that match, in their order."""
    return await selected(names, lambda some: filter(matches, some))


async def selected(names: Sequence[str], select: Callable[[Sequence[str]], Iterable[str]]) -> list[str]:
    """What `select` returns of all names; it gets `ROWS_MAX` of them between two checkpoints."""
    found: list[str] = []
    pace = Pace()
    for start in range(0, len(names), ROWS_MAX):
        found.extend(select(names[start : start + ROWS_MAX]))
        await pace.turn()
    return found
