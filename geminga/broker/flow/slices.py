"""Long looks in slices of bounded work, between which all other tasks of the loop have their turn."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from heapq import merge
from itertools import islice
from typing import Final, TypeVar

import trio

T = TypeVar("T")

PAUSE_S: Final = 0.002
"""About twice as long as a slice."""
NAMES_MAX: Final = 500
"""Of a list, between two checkpoints: about a millisecond."""


async def in_slices(look: Generator[object, None, T]) -> T:
    """What `look` returns, with a checkpoint wherever it yields. Cancelling abandons it there."""
    while True:
        try:
            next(look)
        except StopIteration as end:
            found: T = end.value
            return found
        await trio.lowlevel.checkpoint()


async def in_paced_slices(look: Generator[object, None, T]) -> T:
    """As `in_slices`, for looks of many milliseconds: the loop sleeps between two slices.

    A checkpoint alone has the other tasks run, and keeps the interpreter's lock nearly all the time: the
    threads that write the journal would wait for it, and each publisher with them.
    """
    while True:
        try:
            next(look)
        except StopIteration as end:
            found: T = end.value
            return found
        await trio.sleep(PAUSE_S)


async def sorted_names(names: Iterable[str]) -> list[str]:
    """All of them once, sorted: they are taken, sorted and put together `NAMES_MAX` at a time."""
    runs, rest = [], iter(names)
    while run := list(islice(rest, NAMES_MAX)):
        runs.append(sorted(run))
        await trio.lowlevel.checkpoint()
    if len(runs) == 1:
        return list(dict.fromkeys(runs[0]))
    found: dict[str, None] = {}
    ordered = merge(*runs)
    while part := list(islice(ordered, NAMES_MAX)):
        found.update(dict.fromkeys(part))
        await trio.lowlevel.checkpoint()
    return list(found)


async def matching(names: Sequence[str], matches: Callable[[str], bool]) -> list[str]:
    """Those that match, in their order; `NAMES_MAX` are looked at between two checkpoints."""
    found: list[str] = []
    for start in range(0, len(names), NAMES_MAX):
        found.extend(filter(matches, names[start : start + NAMES_MAX]))
        await trio.lowlevel.checkpoint()
    return found
