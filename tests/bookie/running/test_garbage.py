"""Space that comes back, on a real disk: ledgers that the metadata does not know, logs with little alive, and
nobody who waits for it.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import replace
from trio.testing import wait_all_tasks_blocked

from geminga.bookie.records.records import Run
from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.running.bookie import Bookie
from geminga.bookie.running.healing import Healing
from geminga.bookie.running.storage import LedgerStorage
from geminga.errors import CorruptData, StorageError
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import RocksKeyValue

SETTINGS = BookieSettings(
    journal_file_bytes=1 << 20,
    journal_allocate_bytes=1 << 18,
    write_cache_bytes=1 << 20,
    read_cache_bytes=8 * 1024,
    read_ahead_bytes=4 * 1024,
    entry_log_bytes=128 * 1024,
    row_entries_max=50,
    compaction_slice_bytes=16 * 1024,
    compaction_rate_bytes_per_s=0,
)
Bodies = dict[int, list[bytes]]


class Place:
    """A directory, and the ledgers that its metadata knows."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.known: set[int] = set()
        self.asked: list[list[int]] = []
        self.metadata_broken = False

    @asynccontextmanager
    async def running(self, settings: BookieSettings = SETTINGS) -> AsyncIterator[Bookie]:
        index = RocksKeyValue(str(self.path / "index"))
        try:
            bookie = await Bookie.open(
                RealDisk(), index, str(self.path / "bookie"), settings, existing_ledgers=self._existing
            )
            async with trio.open_nursery() as nursery:
                await nursery.start(bookie.run)
                yield bookie
                await bookie.close()
        finally:
            index.close()

    async def _existing(self, ledger_ids: Sequence[int]) -> set[int]:
        self.asked.append(list(ledger_ids))
        await trio.lowlevel.checkpoint()
        if self.metadata_broken:
            raise CorruptData("broken for the test")
        return self.known & set(ledger_ids)

    async def collect(self, bookie: Bookie) -> None:
        """Delete what its metadata does not know any more, and collect the garbage."""
        for ledger_id in sorted(bookie.inventory.ledgers() - self.known):
            await bookie.delete_ledger(ledger_id)
        await bookie.collect_garbage()

    async def fill(self, bookie: Bookie, ledger_ids: Sequence[int], *, rounds: int, size: int) -> Bodies:
        """An entry for each ledger in turn: as scattered as can be."""
        bodies: Bodies = {ledger_id: [] for ledger_id in ledger_ids}
        durable = dict.fromkeys(ledger_ids, -1)
        done = trio.Event()

        def on_durable(ledger_id: int, last: int) -> None:
            durable[ledger_id] = last
            if all(last == rounds - 1 for last in durable.values()):
                done.set()

        def fail(error: StorageError) -> None:
            raise AssertionError(error)

        self.known |= set(ledger_ids)
        writers = {
            ledger_id: bookie.create_ledger(
                ledger_id,
                on_durable=lambda last, ledger_id=ledger_id: on_durable(ledger_id, last),
                on_failed=fail,
                topic=f"topic-{ledger_id}",
            )
            for ledger_id in ledger_ids
        }
        for number, ledger_id in itertools.product(range(rounds), ledger_ids):
            body = f"{ledger_id}/{number}/".encode().ljust(size, b".")
            bodies[ledger_id].append(body)
            if not bookie.has_room():
                await bookie.wait_room()
            writers[ledger_id].append(body)
        await done.wait()
        await bookie.flush()
        return bodies

    def log_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self.path / "bookie" / "entry-logs").iterdir())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def read_all(bookie: Bookie, ledger_id: int) -> list[bytes]:
    last = bookie.last_entry_id(ledger_id)
    found: list[bytes] = []
    while len(found) <= last:
        found += await bookie.read(ledger_id, len(found), last, bytes_max=5000)
    return found


async def test_a_ledger_without_a_record_is_named_once_and_left(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    async with place.running() as bookie:
        bodies = await place.fill(bookie, [1, 2, 3], rounds=10, size=100)
        place.known -= {2}
        await bookie.collect_garbage()
        await bookie.collect_garbage()
        [told] = [record for record in caplog.records if record.levelname == "ERROR"]
        assert "1 ledgers have no metadata record, and are left as they are: [2]" in told.getMessage()
        assert await read_all(bookie, 2) == bodies[2]


async def test_unreadable_metadata_names_nothing(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    async with place.running() as bookie:
        await place.fill(bookie, [1], rounds=1, size=100)
        place.known.clear()
        place.metadata_broken = True
        await bookie.collect_garbage()
        assert [record.levelname for record in caplog.records] == ["WARNING"]
        assert bookie.inventory.ledgers() == {1}


async def test_a_ledger_that_is_created_meanwhile_is_not_asked_for(place: Place) -> None:
    async with place.running() as bookie:
        await place.fill(bookie, [1], rounds=1, size=100)
        asked = trio.Event()
        go_on = trio.Event()
        existing = bookie.directories[0].garbage._existing_ledgers
        assert existing is not None

        async def slow(ledger_ids: Sequence[int]) -> set[int]:
            # What it knows is from before the new ledger, as a scan of the metadata might be.
            known = await existing(ledger_ids)
            asked.set()
            await go_on.wait()
            return set(known)

        bookie.directories[0].garbage._existing_ledgers = slow
        async with trio.open_nursery() as nursery:
            nursery.start_soon(bookie.collect_garbage)
            await asked.wait()
            bodies = await place.fill(bookie, [2], rounds=3, size=100)
            go_on.set()
        assert place.asked == [[1]]
        assert await read_all(bookie, 2) == bodies[2]


async def test_scattered_production_does_not_keep_its_space(place: Place) -> None:
    """Every log has something of every ledger, and some ledgers live on: none of the logs ever dies."""
    ledgers = range(1, 201)
    async with place.running(replace(SETTINGS, write_cache_bytes=64 * 1024)) as bookie:
        bodies: Bodies = await place.fill(bookie, ledgers, rounds=15, size=500)
        before = place.log_bytes()
        logs = bookie.statistics().entry_logs
        assert logs >= 8
        place.known = set(range(10, 201, 10))
        assert all(place.known & row.keys() for row in bookie.directories[0].storage.index.usage.values())
        await place.collect(bookie)
        assert place.log_bytes() >= before
        await bookie.compact(0.2)
        assert bookie.statistics().logs_compacted >= logs - 1
        assert place.log_bytes() < before / 5
        for ledger_id in place.known:
            assert await read_all(bookie, ledger_id) == bodies[ledger_id]
    async with place.running() as bookie:
        assert bookie.recovery.clean
        assert bookie.inventory.ledgers() == place.known
        for ledger_id in place.known:
            assert await read_all(bookie, ledger_id) == bodies[ledger_id]


async def test_dead_logs_go_while_a_compaction_takes_for_ever(place: Place) -> None:
    slow = replace(SETTINGS, compaction_rate_bytes_per_s=1)
    async with place.running(slow) as bookie, trio.open_nursery() as nursery:
        await place.fill(bookie, range(1, 51), rounds=10, size=1000)
        await place.fill(bookie, [100], rounds=600, size=1000)
        place.known -= set(range(6, 51))
        await place.collect(bookie)
        nursery.start_soon(bookie.compact, 0.5)
        while not bookie.statistics().compacted_bytes:
            await trio.lowlevel.checkpoint()
        before = place.log_bytes()
        place.known.discard(100)
        with trio.fail_after(5):
            await place.collect(bookie)
        assert before - place.log_bytes() > 500_000
        assert bookie.statistics().logs_compacted == 0
        nursery.cancel_scope.cancel()


async def test_flushes_go_on_while_a_compaction_takes_for_ever(place: Place) -> None:
    slow = replace(SETTINGS, compaction_rate_bytes_per_s=1)
    async with place.running(slow) as bookie, trio.open_nursery() as nursery:
        await place.fill(bookie, range(1, 21), rounds=20, size=1000)
        place.known -= set(range(2, 21))
        await place.collect(bookie)
        nursery.start_soon(bookie.compact, 0.5)
        while not bookie.statistics().compacted_bytes:
            await trio.lowlevel.checkpoint()
        with trio.fail_after(5):
            bodies = await place.fill(bookie, [200], rounds=100, size=1000)
        assert await read_all(bookie, 200) == bodies[200]
        nursery.cancel_scope.cancel()


async def test_reads_stay_right_while_their_logs_are_compacted(place: Place) -> None:
    async with place.running() as bookie:
        bodies = await place.fill(bookie, range(1, 31), rounds=30, size=700)
        place.known = {3, 17, 29}
        await place.collect(bookie)
        compacted = trio.Event()
        reads = 0

        async def keep_reading(ledger_id: int) -> None:
            nonlocal reads
            while not compacted.is_set():
                assert await read_all(bookie, ledger_id) == bodies[ledger_id]
                reads += 1

        async with trio.open_nursery() as nursery:
            for ledger_id in place.known:
                nursery.start_soon(keep_reading, ledger_id)
            await bookie.compact(1.0)
            compacted.set()
        assert reads >= 3
        assert bookie.statistics().logs_compacted >= 2


async def test_a_log_with_a_damaged_record_stays(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    async with place.running() as bookie:
        bodies = await place.fill(bookie, [1, 2], rounds=20, size=300)
    (path,) = (place.path / "bookie" / "entry-logs").iterdir()
    data = bytearray(path.read_bytes())
    data[data.index(b"1/5/")] ^= 4
    path.write_bytes(data)
    place.known = {1}
    async with place.running(replace(SETTINGS, journal_free_files_max=0)) as bookie:
        await place.collect(bookie)
        for _ in range(2):
            await bookie.compact(1.0)
        assert caplog.text.count("entry log 1 is not compacted in full") == 1
        assert path.exists()
        assert await bookie.read(1, 0, 19, bytes_max=1 << 20) == bodies[1][:5]
        with pytest.raises(CorruptData):
            await bookie.read(1, 5, 19, bytes_max=1 << 20)


async def read_after_collecting_during_a_flush(world: Any) -> dict[int, list[bytes] | str]:
    """What two ledgers hold, or the error that reading them ends with.

    Garbage is collected when a flush has closed logs, and the index does not know yet what is in them.
    """
    world.settings = replace(world.settings, entry_log_bytes=1000)
    found: dict[int, list[bytes] | str] = {}
    async with world.running() as bookie:
        world.create(bookie, 1)
        world.create(bookie, 2)
        await world.add(bookie, 1, 2, size=1500)
        index_lock = bookie.directories[0].storage._index_lock
        async with trio.open_nursery() as nursery:
            await index_lock.acquire()
            nursery.start_soon(bookie.collect_garbage)
            await wait_all_tasks_blocked()
            nursery.start_soon(bookie.flush)
            await wait_all_tasks_blocked()
            index_lock.release()
        await bookie.flush()
        for ledger_id in (1, 2):
            try:
                found[ledger_id] = await bookie.read(ledger_id, 0, 0, bytes_max=1)
            except StorageError as error:
                found[ledger_id] = str(error)
    return found


@pytest.fixture
def no_healing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that was deleted would be put together again from the journal."""

    async def never(self: Healing, runs: Sequence[Run]) -> bool:
        return False

    monkeypatch.setattr(Healing, "heal", never)


@pytest.mark.usefixtures("no_healing")
async def test_a_log_that_was_just_closed_is_not_taken_for_dead(new_world: Callable[[], Any]) -> None:
    world = new_world()
    found = await read_after_collecting_during_a_flush(world)
    assert found == {ledger_id: world.ledgers[ledger_id].bodies for ledger_id in (1, 2)}


@pytest.mark.usefixtures("no_healing")
async def test_a_collection_that_does_not_wait_for_the_flush_is_found_out(
    new_world: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: it shows that the test above would fail."""

    async def collect_without_the_lock(self: LedgerStorage) -> None:
        async with self._index_lock:
            self._index.purge()
            self._delete_dead_logs()

    monkeypatch.setattr(LedgerStorage, "collect", collect_without_the_lock)
    found = await read_after_collecting_during_a_flush(new_world())
    assert found[1] == "data/entry-logs/00000000000000000001.log: cannot open: no such file"


async def test_a_row_longer_than_a_slice_is_moved_in_parts(place: Place) -> None:
    async with place.running() as bookie:
        bodies = await place.fill(bookie, [1, 2, 3], rounds=20, size=400)
    place.known = {1}
    async with place.running(replace(SETTINGS, compaction_slice_bytes=1000)) as bookie:
        await place.collect(bookie)
        await bookie.compact(0.5)
        assert bookie.statistics().logs_compacted == 1
        assert await read_all(bookie, 1) == bodies[1]
        usage = bookie.directories[0].storage.index.usage
        assert sum(row.entries for ledgers in usage.values() for row in ledgers.values()) == 20


async def test_the_topics_of_moved_ledgers_stay_known(place: Place) -> None:
    async with place.running() as bookie:
        await place.fill(bookie, [1, 2, 3], rounds=5, size=400)
    place.known = {2}
    async with place.running() as bookie:
        await place.collect(bookie)
        await bookie.compact(0.5)
    (path,) = (place.path / "bookie" / "entry-logs").iterdir()
    assert b"topic-2" in path.read_bytes()


async def test_garbage_is_collected_and_compacted_by_itself(place: Place) -> None:
    often = replace(
        SETTINGS, gc_wait_s=0.02, minor_compaction_interval_s=0.02, minor_compaction_threshold=0.5
    )
    async with place.running(often) as bookie:
        bodies = await place.fill(bookie, range(1, 11), rounds=20, size=1000)
        for ledger_id in (1, 2, 3, 5, 6, 7, 8, 9, 10):
            await bookie.delete_ledger(ledger_id)
        with trio.fail_after(5):
            while bookie.statistics().logs_compacted < 1:
                await trio.lowlevel.checkpoint()
        assert bookie.inventory.ledgers() == {4}
        assert await read_all(bookie, 4) == bodies[4]


async def test_what_was_reclaimed_is_counted_by_its_cause(place: Place) -> None:
    async with place.running() as bookie:
        await place.fill(bookie, [1], rounds=300, size=1000)
        await place.fill(bookie, range(11, 61), rounds=10, size=1000)
        await place.fill(bookie, [2], rounds=300, size=1000)
        before = place.log_bytes()
        place.known -= {1}
        await place.collect(bookie)
        deleted = bookie.statistics().space
        assert deleted.collections == 1
        assert deleted.reclaimed_by_compaction_bytes == 0
        assert deleted.reclaimed_by_deletion_bytes == before - place.log_bytes() > 128 * 1024
        place.known -= {ledger_id for ledger_id in range(11, 61) if ledger_id % 5}
        await place.collect(bookie)
        assert bookie.statistics().space.reclaimed_by_deletion_bytes >= deleted.reclaimed_by_deletion_bytes
        between = place.log_bytes(), bookie.statistics().space
        await bookie.compact(0.5)
        after = bookie.statistics()
        assert after.logs_compacted >= 2
        assert after.space.reclaimed_by_deletion_bytes == between[1].reclaimed_by_deletion_bytes
        # What was copied is in a log without a footer still; the rest is headers and footers.
        freed = between[0] - place.log_bytes()
        assert after.space.reclaimed_by_compaction_bytes == pytest.approx(freed, abs=8 * 1024)


async def test_runs_on_schedule_are_counted(place: Place) -> None:
    often = replace(
        SETTINGS, gc_wait_s=0.001, minor_compaction_interval_s=0.001, major_compaction_interval_s=0.01
    )
    async with place.running(often) as bookie:
        space = bookie.statistics().space
        with trio.fail_after(20):
            while not (space.collections > 2 and space.minor_compactions > 2 and space.major_compactions > 1):
                await trio.sleep(0.001)
                space = bookie.statistics().space
        assert space.collect_s > 0
