"""A start on a full disk changes nothing; with enough space it begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from geminga.bookie.running.bookie import Bookie
from geminga.bookie.running.directory_lists import DirectoryLists
from geminga.server.start_space import check_space
from geminga.storage.disk import RealDisk
from geminga.storage.disk_errors import DiskFull
from geminga.storage.key_value import RocksKeyValue

MIB = 1 << 20
LISTS = DirectoryLists()


class Small(RealDisk):
    """With so much space."""

    def __init__(self, bytes_free: int, inodes: int | None) -> None:
        super().__init__()
        self.bytes_free = bytes_free
        self.inodes = inodes

    def free_bytes(self, path: str) -> int:
        return self.bytes_free

    def free_inodes(self, path: str) -> int | None:
        return self.inodes


async def make_data(path: Path) -> None:
    """After an orderly stop: one journal, most of it reserved, and nothing in it that is not flushed."""
    RocksKeyValue(str(path / "metadata")).close()
    index = RocksKeyValue(str(path / "index"))
    bookie = await Bookie.open(RealDisk(), index, str(path / "bookie"))
    await bookie._close_files()
    index.close()


def hashes(path: Path) -> dict[str, bytes]:
    return {str(each): each.read_bytes() if each.is_file() else b"" for each in sorted(path.rglob("*"))}


@pytest.mark.parametrize(
    ("bytes_free", "inodes"), [(0, 10_000), (2 * MIB, 10_000), (1 << 30, 10), (1 << 30, 0)]
)
async def test_a_start_without_space_changes_nothing(tmp_path: Path, bytes_free: int, inodes: int) -> None:
    await make_data(tmp_path)
    before = hashes(tmp_path)
    with pytest.raises(DiskFull, match=f"{tmp_path}: disk full: .* are free, a start needs .*; nothing was"):
        check_space(Small(bytes_free, inodes), str(tmp_path), LISTS)
    assert hashes(tmp_path) == before


async def test_a_start_with_space_begins(tmp_path: Path) -> None:
    """The bytes of the whole journal, or those behind the index's mark; inodes only if there is a limit."""
    await make_data(tmp_path)
    before = hashes(tmp_path)
    for small in (Small(1 << 30, 10_000), Small(1 << 30, None), Small(12 * MIB, 100)):
        check_space(small, str(tmp_path), LISTS)
    assert hashes(tmp_path) == before


def test_a_new_directory_needs_space_too(tmp_path: Path) -> None:
    new = tmp_path / "above" / "new"
    with pytest.raises(DiskFull, match=f"{tmp_path}: disk full"):
        check_space(Small(MIB, None), str(new), LISTS)
    check_space(Small(8 * MIB, None), str(new), LISTS)
    assert list(tmp_path.iterdir()) == []


def test_the_advice_suffices(tmp_path: Path) -> None:
    """As many bytes as the message asks for."""
    with pytest.raises(DiskFull) as refused:
        check_space(Small(0, None), str(tmp_path), LISTS)
    needed_kib = int(str(refused.value).partition("a start needs ")[2].partition(" KiB")[0])
    check_space(Small(needed_kib << 10, None), str(tmp_path), LISTS)
