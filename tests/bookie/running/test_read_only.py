"""A full disk: entries are refused, nothing accepted is lost, reading and freeing go on, and it ends by
itself.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.running.bookie import Bookie, LedgerFiles
from geminga.bookie.running.disk_space import FREE_INODES_MIN, inode_refusal, refusal
from geminga.errors import ReadOnly, StorageError
from geminga.storage.disk import RealDisk
from geminga.storage.disk_errors import DiskFull
from geminga.storage.key_value import RocksKeyValue
from simulation.disk.sim_disk import SimDisk
from simulation.disk.sim_key_value import SimKeyValue

NewWorld = Callable[[], Any]
GIB = 1 << 30
MIB = 1 << 20


def test_the_high_and_the_low_water_mark() -> None:
    settings = BookieSettings()

    def refused(used: float, *, read_only: bool) -> bool:
        return bool(refusal(int(40 * GIB * (1 - used)), 40 * GIB, settings, read_only=read_only))

    assert [refused(used, read_only=False) for used in (0.5, 0.91, 0.94, 0.96)] == [False, False, False, True]
    assert [refused(used, read_only=True) for used in (0.5, 0.89, 0.91, 0.96)] == [False, False, True, True]


def test_a_large_disk_has_enough_free_however_full_it_is() -> None:
    settings = BookieSettings()
    assert not refusal(5 * GIB, 1000 * GIB, settings, read_only=False)
    assert refusal(3 * GIB, 1000 * GIB, settings, read_only=False) == (
        "it is 99.7% full, more than 95.0%; entries are taken again with 4096 MiB free"
    )
    assert refusal(3 * GIB, 32 * GIB, settings, read_only=True) == (
        "it is 90.6% full; entries are taken again with 3277 MiB free"
    )
    assert not refusal(4 * GIB, 1000 * GIB, settings, read_only=True)
    assert not refusal(3 * GIB, 29 * GIB, settings, read_only=True)


def test_a_little_must_be_free_whatever_the_share() -> None:
    settings = BookieSettings(disk_usage_threshold=1.0, disk_usage_lwm_threshold=1.0)
    assert refusal(127 * MIB, GIB, settings, read_only=False) == (
        "127 MiB are free, less than 128 MiB; entries are taken again with 192 MiB"
    )
    assert not refusal(129 * MIB, GIB, settings, read_only=False)
    assert refusal(129 * MIB, GIB, settings, read_only=True) == (
        "129 MiB are free; entries are taken again with 192 MiB"
    )
    assert not refusal(193 * MIB, GIB, settings, read_only=True)


@pytest.mark.parametrize("total_mib", [100, 500, 1000, 10_000, 30_000, 1_000_000])
@pytest.mark.parametrize("usage", [0.9, 0.999])
def test_entries_are_taken_again_with_the_free_space_that_is_named(total_mib: int, usage: float) -> None:
    """A full disk of 1 TB named 192 MiB. With these it was 99.98% full, and asked for 4096 MiB then."""
    settings, total = BookieSettings(), total_mib * MIB
    text = refusal(round(total * (1 - usage)), total, settings, read_only=True)
    if text:
        again = int(text.partition("again with ")[2].split()[0])
        assert not refusal(again * MIB, total, settings, read_only=True)
        assert refusal((again - 1) * MIB, total, settings, read_only=True)


async def fill_and_check(bookie: Bookie, world: Any, free: int) -> None:
    world.disk.free = free
    await bookie._space.relieve(bookie.collect_garbage)


def test_entries_are_refused_and_everything_else_goes_on(new_world: NewWorld) -> None:
    world = new_world()
    assert world.run(full_for_a_while)
    world.crash("drop")
    world.check()


async def full_for_a_while(world: Any) -> None:
    async with world.running() as bookie:
        world.create(bookie, 1)
        world.create(bookie, 2)
        await world.add(bookie, 1, 2, count=3)
        await bookie.flush()
        await fill_and_check(bookie, world, 1 * MIB)
        assert bookie.statistics().read_only
        assert "100.0% full" in bookie.read_only
        for ledger in world.ledgers.values():
            with pytest.raises(ReadOnly, match="read-only"):
                ledger.writer.append(b"refused")
        with pytest.raises(ReadOnly):
            world.create(bookie, 3).writer.append(b"refused")
        assert bookie.has_room()
        assert await bookie.read(1, 0, 2, bytes_max=1000) == world.ledgers[1].bodies
        await world.delete(bookie, 2)
        await bookie.collect_garbage()
        await bookie.compact(1.0)
        assert bookie.inventory.ledgers() == {1}
        await fill_and_check(bookie, world, 1 << 40)
        assert not bookie.read_only
        await world.add(bookie, 1, 3, count=2)
        assert world.ledgers[1].durable == 4


async def test_what_helps_to_free_space_may_be_written(new_world: NewWorld) -> None:
    world = new_world()
    async with world.running() as bookie:
        await fill_and_check(bookie, world, 1 * MIB)
        durable: list[int] = []
        writer = bookie.create_ledger(
            5, on_durable=durable.append, on_failed=lambda error: None, high_priority=True
        )
        writer.append(b"acknowledgments")
        await bookie.flush()
        while not durable:
            await trio.lowlevel.checkpoint()
        assert durable == [0]


async def test_a_closed_ledger_stays_closed(new_world: NewWorld) -> None:
    world = new_world()
    async with world.running() as bookie:
        world.create(bookie, 1)
        await world.add(bookie, 1)
        await fill_and_check(bookie, world, 1 * MIB)
        world.ledgers[1].writer.close()
        await fill_and_check(bookie, world, 1 << 40)
        with pytest.raises(StorageError, match="closed"):
            world.ledgers[1].writer.append(b"late")


@pytest.mark.parametrize("kind", ["create", "write", "sync"])
def test_a_flush_without_space_waits_for_space(new_world: NewWorld, kind: str) -> None:
    world = new_world()
    full = False

    def inject(operation: str, path: str) -> None:
        if full and operation == kind and path.endswith(".log"):
            raise DiskFull(f"{path}: cannot {kind}: no space")

    async def script(world: Any) -> None:
        nonlocal full
        async with world.running(close=False) as bookie:
            world.create(bookie, 1)
            await world.add(bookie, 1, count=2)
            if kind != "create":
                await bookie.flush()
            await world.add(bookie, 1, count=2)
            full = True
            for _ in range(2):
                with pytest.raises(ReadOnly):
                    await bookie.flush()
            with pytest.raises(ReadOnly):
                world.ledgers[1].writer.append(b"refused")
            found = bookie.read_cached(1, 0, 3) or await bookie.read(1, 0, 3, bytes_max=1 << 20)
            assert found == world.ledgers[1].bodies[: len(found)]
            full = False
            await bookie._space.relieve(bookie.collect_garbage)
            await world.add(bookie, 1)
            await bookie.flush()
            assert bookie.statistics().flushing_bytes == 0
            found = []
            while len(found) < 5:
                found += await bookie.read(1, len(found), 4, bytes_max=1 << 20)
            assert found == world.ledgers[1].bodies

    world.disk.inject = inject
    assert world.run(script)
    world.crash("drop")
    world.check()


@pytest.mark.parametrize("name", ["bursts", "compactions"])
def test_no_space_at_any_operation_on_an_entry_log(new_world: NewWorld, scripts: Any, name: str) -> None:
    """For one operation, or from then on; then a crash."""
    refused = 0
    for at, lasting in itertools.product(range(0, 60, 2), (1, 1000)):
        world = new_world()
        calls = 0

        def inject(kind: str, path: str, at: int = at, lasting: int = lasting) -> None:
            nonlocal calls, refused
            if path.endswith(".log") and kind in ("create", "write", "sync"):
                calls += 1
                if at <= calls - 1 < at + lasting:
                    refused += 1
                    raise DiskFull(f"{path}: cannot {kind}: no space")

        world.disk.inject = inject
        world.run(scripts[name])
        for ledger in world.ledgers.values():
            assert ledger.failure is None or "closed" in str(ledger.failure)
        world.disk.inject = None
        world.crash("torn")
        world.check()
    assert refused > 25


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_journal_without_space_promises_nothing(new_world: NewWorld, kind: str) -> None:
    world = new_world()
    full = False

    def inject(operation: str, path: str) -> None:
        if full and operation == kind and path.endswith(".journal"):
            raise DiskFull(f"{path}: cannot {kind}: no space")

    async def script(world: Any) -> None:
        nonlocal full
        async with world.running(close=False) as bookie:
            world.create(bookie, 1)
            await world.add(bookie, 1)
            full = True
            await world.add(bookie, 1)

    world.disk.inject = inject
    assert not world.run(script)
    assert world.ledgers[1].durable == 0
    assert world.ledgers[1].failure is not None
    world.disk.inject = None
    world.crash("drop")
    world.check()


def test_a_journal_takes_less_space_in_advance_on_a_full_disk(new_world: NewWorld) -> None:
    world = new_world()
    refused = 0
    asked: set[tuple[int, str]] = set()

    def inject(operation: str, path: str) -> None:
        nonlocal refused
        if operation == "allocate":
            # Every first try is too much.
            place = world.disk.operations, path
            if place not in asked:
                asked.add(place)
                refused += 1
                raise DiskFull(f"{path}: cannot reserve space: no space")

    async def script(world: Any) -> None:
        async with world.running(close=False) as bookie:
            world.create(bookie, 1)
            await world.add(bookie, 1, count=40, size=300)

    world.disk.inject = inject
    assert world.run(script)
    assert refused > 5
    assert world.ledgers[1].durable == 39
    world.disk.inject = None
    world.crash("torn")
    world.check()


async def test_it_becomes_read_only_and_writable_by_itself(tmp_path: Path) -> None:
    class Small(RealDisk):
        free = GIB

        def free_bytes(self, path: str) -> int:
            return self.free

        def total_bytes(self, path: str) -> int:
            return 2 * GIB

    disk = Small()
    index = RocksKeyValue(str(tmp_path / "index"))
    settings = replace(BookieSettings(), disk_check_interval_s=0.01)
    bookie = await Bookie.open(disk, index, str(tmp_path / "bookie"), settings)
    async with trio.open_nursery() as nursery:
        await nursery.start(bookie.run)
        for _ in range(3):
            disk.free = 100 * MIB
            with trio.fail_after(5):
                while not bookie.read_only:
                    await trio.lowlevel.checkpoint()
            disk.free = 1 * GIB
            with trio.fail_after(5):
                while bookie.read_only:
                    await trio.lowlevel.checkpoint()
        await bookie.close()
    index.close()


NARROW = replace(
    BookieSettings(),
    journal_file_bytes=256 << 10,
    journal_allocate_bytes=64 << 10,
    journal_group_bytes_max=64 << 10,
    queue_bytes_max=128 << 10,
    write_cache_bytes=256 << 10,
    entry_log_bytes=1 << 20,
    disk_usage_threshold=1.0,
    disk_usage_lwm_threshold=1.0,
    disk_free_bytes_min=1 * MIB,
    disk_check_interval_s=1e6,
)


async def fill_at_once(bookie: Bookie) -> int:
    """As fast as the bookie takes it, until it refuses; the last durable entry of ledger 1."""
    durable = [-1]
    writer = bookie.create_ledger(1, on_durable=durable.append, on_failed=lambda error: None)
    while not bookie.read_only:
        if not bookie.has_room():
            await bookie.wait_room()
        with contextlib.suppress(ReadOnly):
            writer.append(b"%d " % writer.next_entry_id * 800)
        await trio.lowlevel.checkpoint()
    await writer.settle()
    return durable[-1]


async def test_a_fast_writer_does_not_reach_the_reserve_between_two_looks() -> None:
    disk, index = SimDisk(), SimKeyValue()
    disk.space_bytes = 6 * MIB
    bookie = await Bookie.open(disk, index, "data", NARROW, threaded=False)
    assert not bookie.read_only
    async with trio.open_nursery() as nursery:
        await nursery.start(bookie.run)
        last = await fill_at_once(bookie)
        assert last > 1000
        assert disk.free_bytes("data") > NARROW.disk_free_bytes_min // 2
        nursery.cancel_scope.cancel()
    disk.crash("keep")
    again = await Bookie.open(disk, index.crash(None), "data", NARROW, threaded=False)
    assert "entries are taken again with" in again.read_only
    found: list[bytes] = []
    while len(found) <= last:
        found += await again.read(1, len(found), last, bytes_max=MIB)
    assert found[:: last // 10] == [b"%d " % n * 800 for n in range(0, last + 1, last // 10)]
    async with trio.open_nursery() as nursery:
        await nursery.start(again.run)
        late = again.create_ledger(2, on_durable=lambda last: None, on_failed=lambda error: None)
        with pytest.raises(ReadOnly):
            late.append(b"refused")
        await again.delete_ledger(1)
        await again.collect_garbage()
        await again._space.check()
        assert not again.read_only
        late.append(b"taken")
        await again.close()


async def test_a_flush_leaves_the_last_bytes_to_the_index() -> None:
    disk, index = SimDisk(), SimKeyValue()
    bookie = await Bookie.open(disk, index, "data", NARROW, threaded=False)
    async with trio.open_nursery() as nursery:
        await nursery.start(bookie.run)
        writer = bookie.create_ledger(1, on_durable=lambda last: None, on_failed=lambda error: None)
        writer.append(bytes(60_000))
        await writer.settle()
        disk.free = NARROW.disk_free_bytes_min // 4 + 60_000
        with pytest.raises(ReadOnly, match="a flush needs"):
            await bookie.flush()
        assert not [name for name in disk.list("data/entry-logs") if name.endswith(".log")]
        assert "a flush needs" in bookie.read_only
        disk.free += 1000
        await bookie.flush()
        assert await bookie.read(1, 0, 0, bytes_max=MIB) == [bytes(60_000)]
        nursery.cancel_scope.cancel()


async def test_the_disk_of_the_metadata_counts_too() -> None:
    class TwoDisks(SimDisk):
        metadata_free = 1 << 40

        def free_bytes(self, path: str) -> int:
            return self.metadata_free if path == "elsewhere" else super().free_bytes(path)

    disk = TwoDisks()
    place = LedgerFiles("data", SimKeyValue())
    bookie = await Bookie.open_directories(
        disk, ["data"], [place], NARROW, threaded=False, watched=["elsewhere"]
    )
    assert not bookie.read_only
    disk.metadata_free = 100
    await bookie._space.check()
    assert "0 MiB are free" in bookie.read_only
    disk.metadata_free = 1 << 40
    await bookie._space.check()
    assert not bookie.read_only


def test_few_inodes_make_it_read_only() -> None:
    assert inode_refusal(FREE_INODES_MIN - 1, read_only=False) == (
        "127 inodes are free, fewer than 128; entries are taken again with 192"
    )
    assert not inode_refusal(FREE_INODES_MIN, read_only=False)
    assert inode_refusal(FREE_INODES_MIN, read_only=True) == (
        "128 inodes are free; entries are taken again with 192"
    )
    assert not inode_refusal(None, read_only=False), "btrfs has no limit"


async def test_it_looks_at_inodes_as_at_bytes(new_world: NewWorld) -> None:
    world = new_world()
    async with world.running() as bookie:
        world.disk.inodes = FREE_INODES_MIN - 1
        await bookie._space.relieve(bookie.collect_garbage)
        assert "127 inodes are free" in bookie.read_only
        world.disk.inodes = 2 * FREE_INODES_MIN
        await bookie._space.relieve(bookie.collect_garbage)
        assert not bookie.read_only


class Owner:
    """Of a ledger: what it was told."""

    def __init__(self, bookie: Bookie, ledger_id: int) -> None:
        self.durable = -1
        self.errors: list[StorageError] = []
        self.writer = bookie.create_ledger(
            ledger_id, on_durable=self.on_durable, on_failed=self.errors.append
        )

    def on_durable(self, last: int) -> None:
        self.durable = last


@pytest.mark.parametrize("kind", ["create", "allocate"])
def test_a_journal_that_can_reserve_nothing_refuses(new_world: NewWorld, kind: str) -> None:
    """No entry of the group, nor any behind it, is written; the ledgers continue with the same ids."""
    world = new_world()
    full: set[str] = set()

    def inject(operation: str, path: str) -> None:
        if operation in full and path.endswith(".journal"):
            raise DiskFull(f"{path}: disk full, cannot {operation}: no space")

    async def script(world: Any) -> None:
        async with world.running(close=False) as bookie:
            owners = [Owner(bookie, ledger_id) for ledger_id in (1, 2)]
            for turn in range(12):
                # Without bytes nothing can be reserved; without inodes the file becomes longer.
                full.update({kind} if turn % 3 == 1 else ())
                world.disk.free = 0 if "allocate" in full else 1 << 40
                durable = [owner.durable for owner in owners]
                for number in range(6):
                    owners[number % 2].writer.append(b"%d/%d/%d " % (turn, number % 2, number) * 60)
                await settle(owners)
                if "allocate" in full and any(owner.errors for owner in owners):
                    assert bookie.read_only
                    assert all(isinstance(error, DiskFull) for owner in owners for error in owner.errors)
                    with pytest.raises(ReadOnly):
                        owners[0].writer.append(b"refused at once")
                else:
                    assert [owner.durable for owner in owners] == [each + 3 for each in durable]
                refused.extend(error for owner in owners for error in owner.errors)
                for owner in owners:
                    owner.errors.clear()
                full.clear()
                world.disk.free = 1 << 40
                await bookie._space.check()
                assert not bookie.read_only
            for number, owner in enumerate(owners):
                bodies = []
                while len(bodies) <= owner.durable:
                    bodies += bookie.read_cached(number + 1, len(bodies), owner.durable) or await bookie.read(
                        number + 1, len(bodies), owner.durable, bytes_max=1 << 20
                    )
                assert len(set(bodies)) == len(bodies) == owner.durable + 1
                kept[number + 1] = bodies

    async def reread(world: Any) -> None:
        async with world.running() as bookie:
            for ledger_id, bodies in kept.items():
                assert bookie.last_entry_id(ledger_id) == len(bodies) - 1
                found: list[bytes] = []
                while len(found) < len(bodies):
                    found += await bookie.read(ledger_id, len(found), len(bodies) - 1, bytes_max=1 << 20)
                assert found == bodies

    refused: list[StorageError] = []
    kept: dict[int, list[bytes]] = {}
    world.disk.inject = inject
    assert world.run(script)
    assert bool(refused) == (kind == "allocate")
    world.crash("torn")
    assert world.run(reread)


async def settle(owners: list[Owner]) -> None:
    for owner in owners:
        await owner.writer.settle()
