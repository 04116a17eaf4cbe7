"""Several journals and ledger directories: what goes where, what is shared and what is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from geminga.bookie.records.file_names import ENTRY_LOG_SUFFIX, JOURNAL_SUFFIX
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.ledger_mapping import needed_from
from geminga.bookie.records.records import RECORD_PREFIX_BYTES
from geminga.bookie.records.settings import BookieSettings, journal_share, ledger_directory_share
from geminga.bookie.running.bookie import Bookie
from geminga.errors import CorruptData, LedgerFenced, LedgerNotFound
from simulation.bookie.world import TINY, BookieWorld, Layout

TWO_AND_THREE = Layout(2, 3)


@pytest.fixture
def world() -> BookieWorld:
    return BookieWorld(0, replace(TINY, write_cache_bytes=120_000, read_cache_bytes=9000), TWO_AND_THREE)


def run(world: BookieWorld, script: Callable[[BookieWorld], Any]) -> None:
    assert world.run(script)


def files_of(world: BookieWorld, directory: str, suffix: str) -> list[str]:
    return [name for name in world.disk.list(directory) if name.endswith(suffix)]


def ledgers_in_logs(bookie: Bookie) -> list[set[int]]:
    return [directory.storage.index.ledgers() for directory in bookie.directories]


def test_a_ledger_has_one_journal_and_one_directory(world: BookieWorld) -> None:
    async def script(world: BookieWorld) -> None:
        async with world.running(close=False) as bookie:
            for ledger_id in range(6):
                world.create(bookie, ledger_id)
            before = [len(world.disk.log)]
            await world.add(bookie, 3)
            writes = [path for kind, path in world.disk.log[before[0] :] if kind == "write"]
            assert [path.split("/")[0] for path in writes] == ["journal-1"]
            await world.add(bookie, *range(6), count=3)
            await bookie.flush()
            assert ledgers_in_logs(bookie) == [{0, 3}, {1, 4}, {2, 5}]
        for directory in world.layout.ledger_directories():
            assert files_of(world, f"{directory}/entry-logs", ENTRY_LOG_SUFFIX)
        for directory in world.layout.journal_directories():
            assert files_of(world, f"{directory}/journal", JOURNAL_SUFFIX)

    run(world, script)


@pytest.mark.parametrize("close", [True, False])
def test_all_is_there_after_a_restart(world: BookieWorld, close: bool) -> None:
    async def script(world: BookieWorld) -> None:
        async with world.running(close=close) as bookie:
            for ledger_id in range(7):
                world.create(bookie, ledger_id)
            await world.add(bookie, *range(7), count=20)
            await world.fence(bookie, 4)
            await world.delete(bookie, 5)
        async with world.running() as bookie:
            assert bookie.recovery.clean is close
            assert bookie.recovery.journals_read >= (0 if close else 2)
            assert bookie.recovery.entries_replayed == (0 if close else 6 * 20)
            assert bookie.inventory.ledgers() == {0, 1, 2, 3, 4, 6}
            for ledger_id in bookie.inventory.ledgers():
                assert await world.read_back(bookie, ledger_id) == 19
            with pytest.raises(LedgerNotFound):
                await bookie.read(5, 0, 0, bytes_max=1)
            with pytest.raises(AssertionError, match="ledger 4 has entries already"):
                bookie.create_ledger(4, on_durable=lambda last: None, on_failed=lambda error: None)

    run(world, script)
    world.check()


def test_fences_and_deletions_are_kept_where_the_ledger_is(world: BookieWorld) -> None:
    async def script(world: BookieWorld) -> None:
        async with world.running(close=False) as bookie:
            writers = {}
            for ledger_id in (1, 2):
                writers[ledger_id] = world.create(bookie, ledger_id).writer
            await world.fence(bookie, 1)
            await world.delete(bookie, 2)
            states = [directory.storage.index.states for directory in bookie.directories]
            assert [set(of) for of in states] == [set(), {1}, {2}]
            for writer in writers.values():
                assert writer is not None
                with pytest.raises(LedgerFenced):
                    writer.append(b"x")

    run(world, script)


def test_a_full_cache_has_all_caches_flushed_and_journals_let_go(world: BookieWorld) -> None:
    """The ledger that writes is in one directory; the others' marks have to follow, or nothing is let go."""

    async def script(world: BookieWorld) -> None:
        async with world.running(close=False) as bookie:
            world.create(bookie, 0)
            world.create(bookie, 1)
            await world.add(bookie, 1)
            for _ in range(40):
                await world.add(bookie, 0, count=5, size=900)
            assert bookie.statistics().flushes >= 6
            assert ledgers_in_logs(bookie) == [{0}, {1}, set()]
            journals = files_of(world, "data/journal", JOURNAL_SUFFIX)
            written = bookie.statistics().journal_bytes
            assert written > 40 * world.settings.journal_file_bytes
            # Both halves of a cache, what is kept for reuse, and the one that is written.
            assert len(journals) * world.settings.journal_file_bytes < written / 3

    run(world, script)


def test_a_directory_without_traffic_lets_journals_go_in_time(world: BookieWorld) -> None:
    async def script(world: BookieWorld) -> None:
        async with world.running(close=False) as bookie:
            world.create(bookie, 0)
            await trio.sleep(world.settings.flush_interval_s + 1)  # the first flush has a reason of its own
            await world.add(bookie, 0, count=10, size=900)
            later = bookie.journals.positions[0]
            assert later.journal_id > 2
            await trio.sleep(2 * world.settings.flush_interval_s + 1)
            marks = needed_from(directory.storage.index.marks for directory in bookie.directories)
            assert marks[0].journal_id == later.journal_id
            kept = files_of(world, "data/journal", JOURNAL_SUFFIX)
            assert len(kept) <= 1 + world.settings.journal_free_files_max

    run(world, script)


def test_the_earliest_mark_says_what_is_needed() -> None:
    def at(*ids: int) -> tuple[JournalPosition, ...]:
        return tuple(JournalPosition(id_, 100) for id_ in ids)

    assert needed_from([at(3, 1), at(2, 5), at(4, 4)]) == at(2, 1)
    assert needed_from([at(7)]) == at(7)


def test_a_new_index_does_not_bring_back_what_another_directory_has_deleted(world: BookieWorld) -> None:
    """For one directory's sake the journals are read from the beginning. The others know better."""
    world.settings = replace(world.settings, journal_file_bytes=100_000)

    async def before(world: BookieWorld) -> None:
        async with world.running(close=False) as bookie:
            for ledger_id in (0, 1, 2):
                world.create(bookie, ledger_id)
            await world.add(bookie, 0, 1, 2, count=5)
            await world.delete(bookie, 1)
            await bookie.flush()
            await bookie.flush()
            assert 1 not in bookie.directories[1].storage.index.states  # the deletion itself is forgotten

    async def after(world: BookieWorld) -> None:
        async with world.running(close=False) as bookie:
            assert bookie.recovery.index_rebuilt.endswith("ledgers-2/entry-logs: it was lost")
            assert bookie.recovery.groups_read >= 1
            assert bookie.inventory.ledgers() == {0, 2}

    run(world, before)
    world.lose_index(number=2)
    run(world, after)


# ---- budgets


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_shares_add_up_to_the_budget(count: int) -> None:
    settings = BookieSettings()
    journal, ledgers = journal_share(settings, count), ledger_directory_share(settings, count)
    for share, name in (
        (journal, "queue_bytes_max"),
        (journal, "journal_group_bytes_max"),
        (ledgers, "write_cache_bytes"),
        (ledgers, "read_cache_bytes"),
    ):
        whole, part = getattr(settings, name), getattr(share, name)
        assert whole - count < part * count <= whole, name


def test_publishers_wait_as_soon_as_one_journal_has_its_share_of_what_may_wait(world: BookieWorld) -> None:
    record_bytes = 90 + RECORD_PREFIX_BYTES
    world.settings = replace(world.settings, queue_bytes_max=2 * 5 * record_bytes)

    async def script(world: BookieWorld) -> None:
        async with world.running(close=False) as bookie:
            writer = world.create(bookie, 1).writer
            assert writer is not None
            for number in range(5):
                assert bookie.has_room(), f"{number} of the journal's 5 entries wait"
                ledger = world.ledgers[1]
                ledger.bodies.append(ledger.body(90))
                writer.append(ledger.bodies[-1])
            assert bookie.queued_bytes == 5 * record_bytes
            assert not bookie.has_room(), "although nothing waits for the other journal"
            await bookie.wait_room()
            assert bookie.queued_bytes == 0

    run(world, script)


def test_one_directory_takes_no_more_than_its_share_of_the_caches(world: BookieWorld) -> None:
    async def script(world: BookieWorld) -> None:
        async with world.running(close=False) as bookie:
            world.create(bookie, 0)
            share = world.settings.write_cache_bytes // 3 // 2
            for _ in range(30):
                await world.add(bookie, 0, count=2, size=800)
                now = bookie.statistics()
                # A group is given whole.
                assert now.write_cache_bytes < share + world.settings.journal_group_bytes_max
                assert now.flushing_bytes < share + world.settings.journal_group_bytes_max
            assert bookie.statistics().flushes >= 5
            await world.read_back(bookie, 0)
            assert 0 < bookie.statistics().read_cache_bytes <= world.settings.read_cache_bytes // 3

    run(world, script)


# ---- damage


def test_damage_to_a_journal_is_told_to_the_directories_that_lose_by_it(world: BookieWorld) -> None:
    async def before(world: BookieWorld) -> None:
        async with world.running(close=False) as bookie:
            for ledger_id in (0, 1, 2):
                world.create(bookie, ledger_id)
            for _ in range(3):
                await world.add(bookie, 0)
                await world.add(bookie, 1)
                await world.add(bookie, 2)

    async def after(world: BookieWorld) -> None:
        async with world.running(close=False) as bookie:
            assert [damage.path.split("/")[0] for damage in bookie.recovery.damages] == ["data"]
            assert bookie.recovery.entries_lost == 1
            assert await bookie.read(0, 0, 0, bytes_max=1) == world.ledgers[0].bodies[:1]
            with pytest.raises(CorruptData, match="entry 1 of ledger 0 is lost: data/journal/"):
                await bookie.read(0, 1, 1, bytes_max=1)
            for ledger_id in (1, 2):
                assert await world.read_back(bookie, ledger_id) == 2

    run(world, before)
    path = f"data/journal/{1:020d}{JOURNAL_SUFFIX}"
    body = world.ledgers[0].bodies[1]
    content = world.disk.read_file(path)
    world.crash("drop")
    world.disk.flip_bit(path, content.index(body) + 3, 1)
    run(world, after)


def test_a_lost_journal_is_missed_although_another_directory_has_a_new_index(world: BookieWorld) -> None:
    """The new index knows of no mark, so nothing is missing by it."""

    async def before(world: BookieWorld) -> None:
        async with world.running(close=False) as bookie:
            for ledger_id in (0, 2):
                world.create(bookie, ledger_id)
            await world.add(bookie, 0, 2, count=2)
            await bookie.flush()
            await world.add(bookie, 0, 2, count=2)

    async def after(world: BookieWorld) -> None:
        async with world.running(close=False) as bookie:
            assert bookie.recovery.index_rebuilt
            assert [damage.path for damage in bookie.recovery.damages] == [path]

    run(world, before)
    world.crash("keep")
    (name,) = files_of(world, "data/journal", JOURNAL_SUFFIX)
    path = f"data/journal/{name}"
    world.disk.unlink(path)
    world.lose_index(number=2)
    run(world, after)
