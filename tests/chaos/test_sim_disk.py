"""What a crash of the simulated disk does, case by case, and that it is a function of the seed."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from geminga.errors import StorageError
from geminga.storage.disk_errors import DiskFull
from simulation.campaign.breaking import lives
from simulation.disk.sim_disk import SECTOR_BYTES, PowerCut, SimDisk


def disk_with_file(seed: int = 0, content: bytes = b"") -> SimDisk:
    """A directory `d` with a durable file `d/a`."""
    disk = SimDisk(seed)
    disk.make_directory("d")
    file = disk.create("d/a")
    file.append(content)
    file.sync()
    disk.sync_directory("d")
    file.close()
    return disk


def test_what_was_not_synced_is_lost_or_kept_by_mode() -> None:
    for mode, expected in (("drop", b"old"), ("keep", b"old and new")):
        disk = disk_with_file(content=b"old")
        disk.open("d/a").append(b" and new")
        assert disk.read_file("d/a") == b"old and new", "readers see it at once"
        assert disk.unsynced() == ["d/a"]
        disk.crash(mode)
        assert disk.read_file("d/a") == expected
        assert disk.unsynced() == []


def test_what_was_synced_survives_every_mode() -> None:
    for mode in ("drop", "keep", "torn"):
        for seed in range(20):
            disk = disk_with_file(seed)
            file = disk.open("d/a")
            file.append(b"x" * 5000)
            file.sync()
            file.append(b"y" * 5000)
            disk.crash(mode)
            assert disk.read_file("d/a")[:5000] == b"x" * 5000


def test_a_write_with_its_sync_stays_and_each_other_range_goes_by_itself() -> None:
    size = 2 * SECTOR_BYTES
    found = set()
    for seed in range(200):
        disk = disk_with_file(seed, b"o" * 6 * size)
        file = disk.open("d/a")
        file.pwrite(0, b"1" * size)
        file.pwrite(4 * size, b"2" * size)
        file.write_synced(2 * size, [b"s" * (size - 1), b"s"])
        file.pwrite(5 * size, b"3" * size)
        assert disk.unsynced() == ["d/a"]
        disk.crash("torn")
        content = disk.read_file("d/a")
        assert content[2 * size : 3 * size] == b"s" * size
        assert set(content[size : 2 * size] + content[3 * size : 4 * size]) == {ord("o")}
        found.add(
            tuple(content[at * size : (at + 1) * size] == bytes([ord(new)]) * size for at, new in RANGES)
        )
    assert found == {(a, b, c) for a in (True, False) for b in (True, False) for c in (True, False)}
    for mode, rest in (("drop", b"o"), ("keep", b"1")):
        disk = disk_with_file(content=b"o" * 10)
        file = disk.open("d/a")
        file.pwrite(0, b"1" * 10)
        file.write_synced(20, [b"s"])
        disk.crash(mode)
        assert disk.read_file("d/a") == rest * 10 + bytes(10) + b"s"
        assert disk.unsynced() == []


RANGES = ((0, "1"), (4, "2"), (5, "3"))


def test_a_write_with_its_sync_wins_over_earlier_ones_that_were_not_synced() -> None:
    for mode, lengths in (("drop", {2000}), ("keep", {1500}), ("torn", range(1500, 3001))):
        for seed in range(50):
            disk = disk_with_file(seed, b"o" * 2000)
            file = disk.open("d/a")
            file.pwrite(0, b"n" * 3000)
            file.truncate(100)
            file.write_synced(500, [b"s" * 1000])
            disk.crash(mode)
            assert disk.read_file("d/a")[500:1500] == b"s" * 1000
            assert disk.open("d/a").size() in lengths


def test_a_write_with_its_sync_alone_leaves_nothing_to_lose() -> None:
    disk = disk_with_file(content=b"old")
    disk.open("d/a").write_synced(1, [b"new"])
    assert disk.unsynced() == []
    disk.flip_bit("d/a", 1, 0)
    disk.crash("drop")
    assert disk.read_file("d/a") == b"ooew"


def test_the_power_may_go_between_a_write_and_its_sync() -> None:
    found = set()
    for seed in range(40):
        disk = disk_with_file(seed)
        disk.crash_at = disk.operations + 1
        with pytest.raises(PowerCut):
            disk.open("d/a").write_synced(0, [b"x" * 2000])
        disk.crash("torn")
        found.add(disk.read_file("d/a") == b"x" * 2000)
    assert found == {True, False}
    assert [kind for kind, _ in disk.log[-1:]] == ["write"]


@pytest.mark.parametrize("kind", ["write", "sync"])
def test_a_write_with_its_sync_that_fails_is_not_made_good_by_the_next_sync(kind: str) -> None:
    lost = 0
    for seed in range(40):
        disk = disk_with_file(seed)
        file = disk.open("d/a")
        disk.faults.fail(kind)
        with pytest.raises(StorageError, match=f"d/a: injected: cannot {kind}"):
            file.write_synced(0, [b"x" * 1000, b"x" * 1000])
        assert disk.read_file("d/a") == (b"x" * 2000 if kind == "sync" else b"")
        file.sync()
        disk.crash("keep")
        lost += disk.read_file("d/a") != b"x" * 2000
    assert lost > 20


def test_a_torn_write_is_cut_at_sectors_lost_in_the_middle_and_out_of_order() -> None:
    outcomes = set()
    for seed in range(300):
        disk = disk_with_file(seed)
        disk.open("d/a").append(b"x" * (4 * SECTOR_BYTES))
        disk.crash("torn")
        content = disk.read_file("d/a").ljust(4 * SECTOR_BYTES, b"\0")
        assert set(content) <= {0, ord("x")}
        sectors = [content[i : i + SECTOR_BYTES] for i in range(0, len(content), SECTOR_BYTES)]
        outcomes.add(tuple("x" if s == b"x" * 512 else "-" if s == bytes(512) else "/" for s in sectors))
    assert ("x", "x", "x", "x") in outcomes
    assert ("-", "-", "-", "-") in outcomes
    assert any(o[0] == "-" and o[3] == "x" for o in outcomes), "a later sector without an earlier one"
    assert any("/" in o for o in outcomes), "a sector torn in the middle"
    assert len(outcomes) > 15


def test_an_overwrite_leaves_old_bytes_where_it_was_lost() -> None:
    found = set()
    for seed in range(200):
        disk = disk_with_file(seed, b"o" * 2 * SECTOR_BYTES)
        disk.open("d/a").pwrite(0, b"n" * 2 * SECTOR_BYTES)
        disk.crash("torn")
        content = disk.read_file("d/a")
        assert len(content) == 2 * SECTOR_BYTES
        assert set(content) <= {ord("o"), ord("n"), 0}
        found.add((chr(content[0]), chr(content[-1])))
    assert found >= {("o", "o"), ("o", "n"), ("n", "o"), ("n", "n"), ("\0", "n")}


def test_a_length_may_survive_without_the_bytes() -> None:
    lengths = set()
    for seed in range(50):
        disk = disk_with_file(seed, b"abc")
        disk.open("d/a").allocate(2000)
        disk.crash("torn")
        lengths.add(len(disk.read_file("d/a")))
    assert lengths == {3, 2000}


def test_names_are_lost_until_their_directory_is_synced() -> None:
    disk = disk_with_file(content=b"a")
    file = disk.create("d/b")
    file.append(b"b")
    file.sync()
    disk.rename("d/a", "d/c")
    disk.crash("drop")
    assert disk.list("d") == ["a"]
    disk.unlink("d/a")
    disk.crash("drop")
    assert disk.read_file("d/a") == b"a"
    disk.unlink("d/a")
    disk.sync_directory("d")
    disk.crash("drop")
    assert disk.list("d") == []


def test_names_survive_one_by_one() -> None:
    found = set()
    for seed in range(60):
        disk = disk_with_file(seed)
        disk.create("d/b")
        disk.rename("d/a", "d/c")
        disk.crash("torn")
        found.add(tuple(disk.list("d")))
    assert found == {("a",), ("a", "b"), ("c",), ("b", "c")}


def test_replace_file_is_all_or_nothing_at_every_step() -> None:
    new = b"new" * 500
    for at in range(20):
        for mode in ("drop", "keep", "torn"):
            disk = disk_with_file(at, b"old")
            disk.crash_at = disk.operations + at
            try:
                disk.replace_file("d/a", new)
                durable = True
            except PowerCut:
                durable = False
            disk.crash(mode)
            assert disk.read_file("d/a") in ((new,) if durable else (b"old", new))
    assert durable


def test_the_power_stays_off_until_the_crash_and_old_handles_are_dead() -> None:
    disk = disk_with_file(content=b"x")
    file = disk.open("d/a")
    lock = disk.lock("d")
    disk.crash_at = disk.operations + 1
    file.append(b"y")
    for _ in range(2):
        with pytest.raises(PowerCut):
            file.sync()
    with pytest.raises(PowerCut):
        disk.open("d/a")
    disk.crash("drop")
    with pytest.raises(PowerCut, match="before the crash"):
        file.append(b"z")
    assert disk.read_file("d/a") == b"x"
    disk.lock("d").release()
    lock.release()


def test_an_injected_failure_leaves_the_operation_undone() -> None:
    disk = disk_with_file()
    file = disk.open("d/a")

    def fail(kind: str, path: str) -> None:
        if kind == "write":
            raise StorageError(f"{path}: injected")

    disk.inject = fail
    with pytest.raises(StorageError, match="d/a: injected"):
        file.append(b"x")
    disk.inject = None
    file.sync()
    disk.crash("drop")
    assert disk.read_file("d/a") == b""


def test_a_flipped_bit_is_there_after_a_crash_too() -> None:
    disk = disk_with_file(content=b"abc")
    disk.flip_bit("d/a", 1, 0)
    assert disk.read_file("d/a") == b"acc"
    disk.crash("drop")
    assert disk.read_file("d/a") == b"acc"


def test_the_same_seed_crashes_the_same_way() -> None:
    def content(seed: int) -> bytes:
        disk = disk_with_file(seed)
        disk.open("d/a").append(bytes(range(256)) * 40)
        disk.crash("torn")
        return disk.read_file("d/a")

    assert [content(seed) for seed in range(10)] == [content(seed) for seed in range(10)]
    assert len({content(seed) for seed in range(10)}) > 5


def test_bytes_that_a_write_does_not_name_stay() -> None:
    for seed in range(100):
        disk = disk_with_file(seed, b"o" * 1000)
        disk.open("d/a").append(b"n" * 1000)
        disk.crash("torn")
        assert disk.read_file("d/a")[:1000] == b"o" * 1000


def test_a_failed_sync_is_not_made_good_by_the_next_one() -> None:
    lost = 0
    for seed in range(40):
        disk = disk_with_file(seed)
        file = disk.open("d/a")
        file.append(b"x" * 2000)
        disk.faults.fail("sync")
        with pytest.raises(StorageError, match="d/a: injected: cannot sync"):
            file.sync()
        assert disk.read_file("d/a") == b"x" * 2000
        file.sync()
        disk.crash("keep")
        lost += disk.read_file("d/a") != b"x" * 2000
    assert lost > 20


def test_a_full_disk_takes_what_fits_and_has_room_after_a_deletion() -> None:
    disk = disk_with_file(content=b"a" * 600)
    disk.space_bytes = 1000
    assert disk.free_bytes("d") == 400
    file = disk.create("d/b")
    with pytest.raises(DiskFull, match="d/b"):
        file.append(b"b" * 500)
    assert file.size() == 400
    assert disk.free_bytes("d") == 0
    file.pwrite(0, b"c" * 400)
    with pytest.raises(DiskFull):
        file.allocate(500)
    disk.unlink("d/a")
    file.allocate(500)
    file.append(b"d" * 500)
    assert disk.free_bytes("d") == 0
    assert len(disk.faults.log) == 2


def test_faults_come_once_or_for_good_and_are_told() -> None:
    disk = disk_with_file(content=b"abc")
    file = disk.open("d/a")
    disk.faults.fail("write", skip=1, short=True)
    disk.faults.fail("read", sticky=True)
    file.append(b"first")
    with pytest.raises(StorageError, match="short write, . of 6 bytes"):
        file.append(b"second")
    assert 8 <= file.size() < 14
    for _ in range(2):
        with pytest.raises(StorageError, match="cannot read"):
            file.pread(0, 1)
    disk.faults.clear()
    assert file.pread(0, 3) == b"abc"
    file.append(b"third")
    assert "short write" in disk.story()
    assert disk.story().endswith(f"{disk.operations - 1:5} write d/a")


def test_a_slow_sync_takes_virtual_time() -> None:
    async def wait() -> float:
        disk = disk_with_file()
        disk.faults.sync_s = lambda: 3.5
        file = disk.open("d/a")
        await disk.run(file.append, b"x")
        assert trio.current_time() == start
        await disk.run(file.sync)
        await disk.run(file.sync)
        return trio.current_time() - start

    clock = MockClock(autojump_threshold=0)
    start = clock.current_time()
    assert trio.run(wait, clock=clock) == 7.0


def test_swapped_sectors() -> None:
    disk = disk_with_file(content=b"".join(bytes([n]) * SECTOR_BYTES for n in range(4)))
    disk.swap_sectors("d/a", 1, 3)
    assert disk.read_file("d/a")[::SECTOR_BYTES] == bytes([0, 3, 2, 1])


def test_a_life_that_waits_for_ever_ends_although_it_is_shielded() -> None:
    disk = disk_with_file()

    async def wait_for_space() -> None:
        with trio.CancelScope(shield=True):
            while disk.exists("d/a"):
                await trio.sleep(1)
                await disk.run(disk.exists, "d/a")

    with pytest.raises(trio.TooSlowError):
        lives(disk, 0, wait_for_space, lambda error: True, 50.0)
    assert disk.is_off
