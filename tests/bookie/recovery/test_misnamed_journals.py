"""Journals under other names than their own: no start takes them for unused ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from geminga.bookie.journal.inventory import MisnamedJournals

World = Any
JOURNALS = "data/journal"


def rename(world: World, *pairs: tuple[str, str]) -> None:
    for old, new in pairs:
        world.disk.rename(f"{JOURNALS}/{old}", f"{JOURNALS}/{new}")
    world.disk.sync_directory(JOURNALS)


@pytest.mark.parametrize("how", ["exchanged", "renamed"])
async def test_a_start_is_refused_until_they_are_renamed_back(
    new_world: Callable[..., World], how: str
) -> None:
    world = new_world()
    world.settings = replace(world.settings, journal_file_bytes=2048)
    async with world.running(close=False) as bookie:
        world.create(bookie, 1)
        for _ in range(40):
            await world.add(bookie, 1, count=1)
    last, one = sorted(world.disk.list(JOURNALS))[-1:-3:-1]
    world.crash("keep")
    away = f"{int(last[:20]) + 3:020}.journal"
    pairs = [(last, away)] if how == "renamed" else [(last, "between"), (one, last), ("between", one)]
    back = [(new, old) for old, new in reversed(pairs)]
    rename(world, *pairs)
    for _ in range(2):
        with pytest.raises(MisnamedJournals, match=f"its name is {last}"):
            async with world.running():
                pass
    rename(world, *back)
    async with world.running() as bookie:
        assert bookie.recovery.entries_missing == 0
        assert bookie.last_entry_id(1) == 39


async def test_without_an_index_a_journal_under_a_smaller_number_is_refused(
    new_world: Callable[..., World],
) -> None:
    world = new_world()
    world.settings = replace(world.settings, journal_file_bytes=2048)
    async with world.running(close=False) as bookie:
        world.create(bookie, 1)
        for _ in range(40):
            await world.add(bookie, 1, count=1)
    last, one = sorted(world.disk.list(JOURNALS))[-1:-3:-1]
    world.crash("keep")
    world.lose_index()
    rename(world, (last, "between"), (one, last), ("between", one))
    with pytest.raises(MisnamedJournals, match=f"its name is {last}"):
        async with world.running():
            pass
