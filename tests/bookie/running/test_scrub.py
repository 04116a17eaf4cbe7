"""Flipped bits in closed entry logs: found by the scrub and by reads, healed from a journal, or named."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from geminga.bookie.entry_logs.entry_log_format import HEADER_BYTES, TRAILER_BYTES
from geminga.bookie.index.ledger_index import LedgerIndex
from geminga.bookie.records.entry_ranges import EntryRanges
from geminga.bookie.records.records import Run
from geminga.bookie.running.bookie import Bookie
from geminga.bookie.running.scrub import QUEUED_BYTES_MAX, REST_S, START_S
from geminga.errors import CorruptData

World = Any
LOGS = "data/entry-logs"
COUNT = 42


async def filled(world: World, *, journals_kept: bool) -> None:
    """Two ledgers in several closed logs, all of it in the one journal there is, or in none."""
    kept = world.settings
    world.settings = replace(kept, journal_file_bytes=100_000, journal_free_files_max=50)
    async with world.running() as bookie:
        for ledger_id in (1, 2):
            world.create(bookie, ledger_id)
        for _ in range(6):
            await world.add(bookie, 1, 2, count=7)
            await bookie.flush()
    if not journals_kept:
        world.settings = replace(world.settings, journal_free_files_max=0)
        async with world.running():
            pass


def places(world: World, ledger_id: int) -> dict[int, tuple[str, int, int]]:
    """By entry: log, offset of its record, and length."""
    index = LedgerIndex(world._indexes[0])
    index.load()
    found = {}
    for row in index.rows(ledger_id):
        begin = 0
        for entry_id, end in enumerate(row.ends, row.first):
            found[entry_id] = f"{LOGS}/{row.log_id:020}.log", row.offset + begin, end - begin
            begin = end
    return found


def damage(world: World, ledger_id: int, *entry_ids: int) -> None:
    where = places(world, ledger_id)
    for entry_id in entry_ids:
        path, offset, length = where[entry_id]
        world.disk.flip_bit(path, offset + length - 1, 3)


async def passed(bookie: Bookie, count: int = 1) -> None:
    """The scrub has been through all logs."""
    passes = bookie.statistics().scrub_passes
    for _ in range(2 * count + 2):
        await trio.sleep(REST_S / 2)
    assert bookie.statistics().scrub_passes >= passes + count


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "damaged" in each.getMessage()]


@pytest.fixture(autouse=True)
def told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="geminga.bookie")


async def test_the_scrub_heals_what_a_journal_still_has(
    new_world: Callable[..., World],
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = new_world()
    await filled(world, journals_kept=True)
    damage(world, 1, 3, 4, 20)
    damage(world, 2, 0)
    async with world.running() as bookie:
        await passed(bookie)
        counts = bookie.statistics()
        assert (counts.damaged_entries_found, counts.damaged_entries_healed) == (4, 4)
        assert counts.scrubbed_bytes >= 2 * COUNT * 90
        for ledger_id in (1, 2):
            assert await world.read_back(bookie, ledger_id) == COUNT - 1
        assert bookie.statistics().read_failures == 0
        await passed(bookie)
        assert bookie.statistics().damaged_entries_found == 4
    told = " ".join(warnings(caplog))
    assert "healed from the journal" in told
    assert "entries 3 to 4 of ledger 1" in told
    assert "skip" not in told
    async with world.running() as bookie:
        assert bookie.recovery.clean, bookie.recovery
        for ledger_id in (1, 2):
            assert await world.read_back(bookie, ledger_id) == COUNT - 1


async def test_what_no_journal_has_is_named_once_with_what_to_do(
    new_world: Callable[..., World],
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = new_world()
    await filled(world, journals_kept=False)
    damage(world, 1, 3, 4, 20)
    async with world.running() as bookie:
        await passed(bookie, 3)
        counts = bookie.statistics()
        assert (counts.damaged_entries_found, counts.damaged_entries_healed) == (3, 0)
        for entry_id in range(COUNT):
            if entry_id in (3, 4, 20):
                with pytest.raises(CorruptData, match="is not entry"):
                    await bookie.read(1, entry_id, entry_id, bytes_max=1)
            else:
                bodies = await bookie.read(1, entry_id, entry_id, bytes_max=1)
                assert bodies == world.ledgers[1].bodies[entry_id : entry_id + 1]
        assert bookie.statistics().damaged_entries_found == 3
    told = warnings(caplog)
    for named in ("entries 3 to 4 of ledger 1", "entry 20 of ledger 1", "geminga topics skip"):
        assert named in " ".join(told)
    assert sum(text.count("3 to 4") for text in told) == 1


@pytest.mark.parametrize("in_runs", [False, True])
async def test_a_read_heals_what_it_finds(new_world: Callable[..., World], in_runs: bool) -> None:
    world = new_world()
    await filled(world, journals_kept=True)
    damage(world, 1, 3, 4)
    async with world.running() as bookie:
        if in_runs:
            bodies = (await bookie.read_runs([Run(1, 3, 3)], bytes_max=1))[Run(1, 3, 3)]
        else:
            bodies = await bookie.read(1, 3, 3, bytes_max=1)
        assert bodies == world.ledgers[1].bodies[3:4]
        assert await world.read_back(bookie, 1) == COUNT - 1
        assert bookie.statistics().damaged_entries_healed == 2
        assert bookie.statistics().read_failures == 0
    assert places(world, 1)[3][0] != places(world, 1)[2][0]


async def test_a_log_that_goes_while_the_bookie_runs_is_healed(
    new_world: Callable[..., World], autojump_clock: trio.testing.MockClock
) -> None:
    world = new_world()
    await filled(world, journals_kept=True)
    path = places(world, 1)[10][0]
    async with world.running() as bookie:
        world.disk.unlink(path)
        await passed(bookie)
        assert bookie.statistics().damaged_entries_healed > 5
        for ledger_id in (1, 2):
            assert await world.read_back(bookie, ledger_id) == COUNT - 1


@pytest.mark.parametrize(("offset", "what"), [(8, "header"), (-1, "trailer"), (-TRAILER_BYTES - 1, "footer")])
async def test_damage_to_header_footer_and_trailer_is_named_by_start_and_scrub(
    new_world: Callable[..., World],
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
    offset: int,
    what: str,
) -> None:
    world = new_world()
    await filled(world, journals_kept=False)
    path = places(world, 1)[10][0]

    def flip() -> None:
        world.disk.flip_bit(path, offset if offset >= 0 else len(world.disk.read_file(path)) + offset, 1)

    async with world.running() as bookie:
        flip()
        await passed(bookie, 2)
        (text,) = warnings(caplog)
        assert f"{path}: the {what} at offset" in text
        assert bookie.statistics().damaged_entries_found == 0
        assert await world.read_back(bookie, 1) == COUNT - 1
    async with world.running() as bookie:
        (remark,) = bookie.recovery.logs_damaged
        assert f"{path}: the {what} at offset" in remark
        assert bookie.recovery.entries_missing == 0
        assert await world.read_back(bookie, 1) == COUNT - 1
    assert HEADER_BYTES > 8


async def test_the_scrub_keeps_its_rate_and_stands_still_under_load(
    new_world: Callable[..., World], autojump_clock: trio.testing.MockClock
) -> None:
    world = new_world()
    await filled(world, journals_kept=True)
    weight = 2 * COUNT * 512
    world.settings = replace(world.settings, scrub_rate_bytes_per_s=weight // 100)
    async with world.running() as bookie:
        (directory,) = bookie.directories
        await trio.sleep(START_S + 98)
        assert bookie.statistics().scrub_passes == 0
        await trio.sleep(4)
        assert bookie.statistics().scrub_passes == 1
        checked = bookie.statistics().scrubbed_bytes
        directory._queued_bytes = lambda: QUEUED_BYTES_MAX
        await trio.sleep(10 * REST_S)
        assert bookie.statistics().scrubbed_bytes == checked
        directory._queued_bytes = lambda: QUEUED_BYTES_MAX - 1
        await trio.sleep(102)
        assert bookie.statistics().scrubbed_bytes == 2 * checked


async def test_a_rate_of_zero_is_no_scrub(
    new_world: Callable[..., World], autojump_clock: trio.testing.MockClock
) -> None:
    world = new_world()
    await filled(world, journals_kept=True)
    world.settings = replace(world.settings, scrub_rate_bytes_per_s=0)
    async with world.running() as bookie:
        await trio.sleep(10 * REST_S)
        assert bookie.statistics().scrubbed_bytes == 0


def test_a_crash_while_healing_leaves_it_to_the_next_time(new_world: Callable[..., World]) -> None:
    async def fill(world: World) -> None:
        await filled(world, journals_kept=True)

    async def heal(world: World) -> None:
        async with world.running(close=False) as bookie:
            for ledger_id in (1, 2):
                assert await world.read_back(bookie, ledger_id) == COUNT - 1

    for at in itertools.count(step=2):
        world = new_world(at)
        assert world.run(fill)
        damage(world, 1, 3, 4, 20)
        world.disk.crash_at = world.disk.operations + at
        whole = world.run(heal)
        world.crash("torn")
        world.forget_writers()
        assert world.run(heal)
        if whole:
            break
    assert at > 5


def test_ranges_of_entries_are_joined_and_told_apart() -> None:
    ranges = EntryRanges()
    assert ranges.add(5, 9) == [(5, 9)]
    assert ranges.add(3, 12) == [(3, 4), (10, 12)]
    assert ranges.add(4, 11) == []
    assert ranges.missing(0, 20) == [(0, 2), (13, 20)]
