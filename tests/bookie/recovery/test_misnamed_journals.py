"""Journals under other names than their own: no start takes them for unused ones, and the steps of the text
bring all back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from geminga.bookie.journal.inventory import MisnamedJournals

World = Any
JOURNALS = "data/journal"
ENTRIES = 40


async def crashed(new_world: Callable[..., World]) -> tuple[World, list[str]]:
    """What a crash leaves of many small journals, and the names of those that hold the last entries."""
    world = new_world()
    world.settings = replace(world.settings, journal_file_bytes=2048, write_cache_bytes=1 << 16)
    async with world.running(close=False) as bookie:
        world.create(bookie, 1)
        for number in range(ENTRIES):
            await world.add(bookie, 1, count=1)
            if number == ENTRIES // 4:
                await bookie.flush()
        mark = min(index.marks[0] for index in indexes_of(bookie))
    world.crash("keep")
    names = [name for name in world.disk.list(JOURNALS) if int(name[:20]) >= mark.journal_id]
    assert len(names) >= 3
    return world, names


def indexes_of(bookie: Any) -> list[Any]:
    return [directory.storage.index for directory in bookie.directories]


def rename(world: World, pairs: list[tuple[str, str]]) -> None:
    for old, new in pairs:
        world.disk.rename(f"{JOURNALS}/{old}", f"{JOURNALS}/{new}")
    world.disk.sync_directory(JOURNALS)


def plus(name: str, number: int) -> str:
    return f"{int(name[:20]) + number:020}.journal"


async def refused_steps(world: World) -> list[str]:
    for _ in range(2):
        with pytest.raises(MisnamedJournals) as refusal:
            async with world.running():
                pass
    return [line.strip() for line in str(refusal.value).splitlines()[1:]]


async def check_all_is_served(world: World) -> None:
    async with world.running() as bookie:
        assert bookie.recovery.entries_missing == 0
        assert bookie.last_entry_id(1) == ENTRIES - 1


@pytest.mark.parametrize("how", ["exchanged", "renamed", "one up", "one up behind a kept one", "turned"])
async def test_a_start_is_refused_until_its_steps_are_followed(
    new_world: Callable[..., World], how: str
) -> None:
    world, names = await crashed(new_world)
    *_, third, second, last = names
    pairs = {
        "exchanged": [(last, "x"), (second, last), ("x", second)],
        "renamed": [(last, plus(last, 3))],
        "one up": [(name, plus(name, 1)) for name in reversed(names)],
        "one up behind a kept one": [(name, plus(name, 1)) for name in reversed(names)],
        "turned": [(last, "x"), (second, last), (third, second), ("x", third)],
    }[how]
    rename(world, pairs)
    if "kept" in how:
        world.disk.create(f"{JOURNALS}/{plus(names[0], -1)}").close()
        world.disk.sync_directory(JOURNALS)
    steps = await refused_steps(world)
    moves = [tuple(step.split()[1:]) for step in steps]
    assert all(step.startswith("mv ") for step in steps), steps
    there = set(world.disk.list(JOURNALS))
    for old, new in moves:
        assert new not in there, "no step overwrites a file"
        there = there - {old} | {new}
        rename(world, [(old, new)])
    await check_all_is_served(world)


async def test_without_an_index_a_journal_under_a_smaller_number_is_refused(
    new_world: Callable[..., World],
) -> None:
    world, [*_, second, last] = await crashed(new_world)
    world.lose_index()
    rename(world, [(last, "x"), (second, last), ("x", second)])
    assert await refused_steps(world)
