"""What a crash of the simulated disk does, case by case, and that it is a function of the seed."""

from __future__ import annotations

import pytest

from geminga.chaos.sim_disk import SECTOR_BYTES, PowerCut, SimDisk
from geminga.errors import StorageError


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
    for seed in range(100):
        disk = disk_with_file(seed, b"o" * 2 * SECTOR_BYTES)
        disk.open("d/a").pwrite(0, b"n" * 2 * SECTOR_BYTES)
        disk.crash("torn")
        content = disk.read_file("d/a")
        assert len(content) == 2 * SECTOR_BYTES
        assert set(content) <= {ord("o"), ord("n")}
        found.add((content[0], content[-1]))
    assert len(found) == 4


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
        if kind == "sync":
            raise StorageError(f"{path}: injected")

    disk.inject = fail
    file.append(b"x")
    with pytest.raises(StorageError, match="d/a: injected"):
        file.sync()
    disk.inject = None
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
