"""Entry logs under each other's names: no start serves them, and nothing deletes one for another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from geminga.bookie.entry_logs.log_ends import MisnamedLogs
from geminga.bookie.records.file_names import entry_log_path
from simulation.disk.sim_disk import SimDisk

World = Any
LOGS = "data/entry-logs"


async def filled(world: World) -> None:
    """Ledger 1 is in log 1, ledger 2 in log 2."""
    for ledger_id in (1, 2):
        async with world.running() as bookie:
            world.create(bookie, ledger_id)
            await world.add(bookie, ledger_id, count=7)


def swap(disk: SimDisk) -> None:
    one, two, between = entry_log_path(LOGS, 1), entry_log_path(LOGS, 2), f"{LOGS}/between"
    for old, new in ((one, between), (two, one), (between, two)):
        disk.rename(old, new)
    disk.sync_directory(LOGS)


def files(disk: SimDisk) -> dict[str, bytes]:
    folders = (LOGS, "data/journal")
    return {f"{folder}/{n}": disk.read_file(f"{folder}/{n}") for folder in folders for n in disk.list(folder)}


@pytest.mark.parametrize("index_lost", [False, True])
async def test_a_start_is_refused_until_they_are_renamed_back(
    new_world: Callable[..., World], index_lost: bool
) -> None:
    world = new_world()
    await filled(world)
    swap(world.disk)
    if index_lost:
        world.lose_index()
    before = files(world.disk)
    with pytest.raises(MisnamedLogs) as refusal:
        async with world.running():
            pass
    lines = str(refusal.value).splitlines()
    assert lines[0].startswith(f"{LOGS}: entry logs are there under each other's names. Rename them back")
    assert lines[1:] == [
        f"  {one:020}.log is entry log {other}: its name is {other:020}.log"
        for one, other in ((1, 2), (2, 1))
    ]
    assert files(world.disk) == before
    swap(world.disk)
    async with world.running() as bookie:
        assert bookie.recovery.entries_missing == 0
        assert [await world.read_back(bookie, ledger_id) for ledger_id in (1, 2)] == [6, 6]


async def test_a_copy_in_the_place_of_a_log_is_called_one(new_world: Callable[..., World]) -> None:
    world = new_world()
    await filled(world)
    world.disk.replace_file(entry_log_path(LOGS, 2), world.disk.read_file(entry_log_path(LOGS, 1)))
    with pytest.raises(MisnamedLogs, match=rf"{2:020}.log is a copy of {1:020}.log, which is there: move it"):
        async with world.running():
            pass
    world.disk.unlink(entry_log_path(LOGS, 2))
    async with world.running() as bookie:
        assert await world.read_back(bookie, 1) == 6


async def test_a_log_that_is_renamed_under_a_running_bookie_is_not_deleted(
    new_world: Callable[..., World], caplog: pytest.LogCaptureFixture
) -> None:
    """By compaction and by trimming: the ledger of the other one lives."""
    world = new_world()
    await filled(world)
    async with world.running() as bookie:
        swap(world.disk)
        await world.delete(bookie, 1)
        for _ in range(2):
            await bookie.collect_garbage()
        assert sorted(world.disk.list(LOGS))[:2] == [f"{each:020}.log" for each in (1, 2)]
    (told,) = [each.getMessage() for each in caplog.records if "is not deleted" in each.getMessage()]
    assert told.startswith(entry_log_path(LOGS, 1))
    swap(world.disk)
    async with world.running() as bookie:
        assert await world.read_back(bookie, 2) == 6
        await bookie.collect_garbage()
        assert f"{1:020}.log" not in world.disk.list(LOGS)
