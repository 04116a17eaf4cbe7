"""A swap of two states, with a crash at every operation on the disk, and in the start that follows too."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from geminga.errors import StorageError
from geminga.server.snapshots import swap
from geminga.server.snapshots.swap import PARTS, Intent
from geminga.storage.disk import RealDisk

INTENT = Intent(what="restore", source="/snapshots/monday")
OPERATIONS = ("rename", "replace_file", "unlink", "make_directory", "sync_directory", "remove_tree")
OPERATIONS_MAX = 100


class Crash(Exception):
    pass


class CrashingDisk(RealDisk):
    """Ends the work before its operation number `crash_at`; every later one as well."""

    def __init__(self, crash_at: int) -> None:
        super().__init__()
        self._left = crash_at

    def __getattribute__(self, name: str) -> Any:
        if name in OPERATIONS:
            self._left -= 1
            if self._left < 0:
                raise Crash(name)
        return super().__getattribute__(name)


def make_state(directory: Path, name: str) -> None:
    for part in PARTS:
        (directory / part).mkdir(parents=True)
        (directory / part / "file").write_text(name)


def state_of(data_dir: Path) -> set[str]:
    return {
        (data_dir / part / "file").read_text() if (data_dir / part).exists() else "none" for part in PARTS
    }


def prepared(data_dir: Path, *, is_reset: bool) -> None:
    make_state(data_dir, "old")
    swap.prepare(RealDisk(), str(data_dir))
    if not is_reset:
        make_state(Path(swap.incoming(str(data_dir))), "new")


def swapped(disk: RealDisk, data_dir: Path, *, is_reset: bool) -> list[str]:
    """Swap as a broker does; the points that were passed."""
    points: list[str] = []
    swap.begin(disk, str(data_dir), INTENT, points.append)
    if is_reset:
        make_state(data_dir, "new")  # what the opening makes
    swap.commit(disk, str(data_dir))
    points.append("committed")
    swap.delete_old(disk, str(data_dir))
    return points


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_crash_anywhere_leaves_one_state_whole(tmp_path: Path, is_reset: bool) -> None:
    found = set()
    for crash_at in range(OPERATIONS_MAX):
        data_dir = tmp_path / f"data-{crash_at}"
        prepared(data_dir, is_reset=is_reset)
        try:
            swapped(CrashingDisk(crash_at), data_dir, is_reset=is_reset)
        except Crash:
            pass
        else:
            break
        is_intended = (data_dir / "swap" / "intent.json").exists()
        for again_at in range(OPERATIONS_MAX):
            copy = tmp_path / f"data-{crash_at}-{again_at}"
            shutil.copytree(data_dir, copy)
            try:
                swap.settle(CrashingDisk(again_at), str(copy))
                is_done = True
            except Crash:
                is_done = False
                swap.settle(RealDisk(), str(copy))
            state = state_of(copy)
            assert len(state) == 1
            # The record decides, whatever had been moved when the crash came.
            assert state == {"old"} or not is_intended
            assert not (copy / "swap").exists()
            found |= state
            if is_done:
                break
        else:
            raise AssertionError("a start never came to its end")
    else:
        raise AssertionError("a swap never came to its end")
    assert found == {"old", "new"}
    assert state_of(data_dir) == {"new"}
    assert not (data_dir / "swap" / "outgoing").exists()


def test_the_state_before_is_deleted_beside_a_later_restore(tmp_path: Path) -> None:
    prepared(tmp_path, is_reset=False)
    swap.begin(RealDisk(), str(tmp_path), INTENT, lambda name: None)
    swap.commit(RealDisk(), str(tmp_path))
    swap.prepare(RealDisk(), str(tmp_path))
    swap.delete_old(RealDisk(), str(tmp_path))
    assert Path(swap.incoming(str(tmp_path))).is_dir()


def test_what_is_committed_stays(tmp_path: Path) -> None:
    prepared(tmp_path, is_reset=False)
    swap.begin(RealDisk(), str(tmp_path), INTENT, lambda name: None)
    swap.commit(RealDisk(), str(tmp_path))
    assert swap.settle(RealDisk(), str(tmp_path)) is None
    assert state_of(tmp_path) == {"new"}


def test_a_start_says_what_it_undoes(tmp_path: Path) -> None:
    prepared(tmp_path, is_reset=False)
    swap.begin(RealDisk(), str(tmp_path), INTENT, lambda name: None)
    assert state_of(tmp_path) == {"new"}
    undone = swap.settle(RealDisk(), str(tmp_path))
    assert str(undone) == "restore of /snapshots/monday"
    assert state_of(tmp_path) == {"old"}


def test_what_a_rebuild_of_the_index_left_goes_with_its_state(tmp_path: Path) -> None:
    prepared(tmp_path, is_reset=False)
    (tmp_path / "index.damage").write_text("old")
    swap.begin(RealDisk(), str(tmp_path), INTENT, lambda name: None)
    assert not (tmp_path / "index.damage").exists(), "or the new index would be rebuilt"
    swap.settle(RealDisk(), str(tmp_path))
    assert (tmp_path / "index.damage").read_text() == "old"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"format_version":2,"what":"restore","source":""}', "newer version"),
        ("{", "cannot be read"),
    ],
)
def test_a_record_of_a_newer_version_stops_the_start(tmp_path: Path, content: str, reason: str) -> None:
    prepared(tmp_path, is_reset=False)
    (tmp_path / "swap" / "intent.json").write_text(content)
    with pytest.raises(StorageError, match=reason):
        swap.settle(RealDisk(), str(tmp_path))
    assert state_of(tmp_path) == {"old"}
