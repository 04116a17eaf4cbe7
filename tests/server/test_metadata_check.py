"""A directory that another broker claims while a start looks at it is that broker's, and not lost."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from geminga.bookie.running.directory_cookies import claim_directories
from geminga.bookie.running.directory_lists import DirectoryLists
from geminga.server import metadata_check
from geminga.server.metadata_check import MetadataBehind, check_metadata
from geminga.storage.disk import Disk, RealDisk
from geminga.storage.disk_errors import DirectoryInUse


def test_a_neighbour_that_wins_the_race_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lists = DirectoryLists((str(tmp_path / "shared"),), (str(tmp_path / "shared"),))
    data, disk, look = str(tmp_path / "mine"), RealDisk(), metadata_check.refuse_living_neighbours
    os.makedirs(os.path.join(data, "metadata"))
    with contextlib.ExitStack() as neighbour:
        looks: list[str] = []

        def claimed_after_the_first_look(disk: Disk, data_dir: str, lists: DirectoryLists) -> None:
            look(disk, data_dir, lists)
            if not looks:
                claim_directories(disk, str(tmp_path / "other"), lists, "another-id", neighbour, first=True)
            looks.append(data_dir)

        monkeypatch.setattr(metadata_check, "refuse_living_neighbours", claimed_after_the_first_look)
        with pytest.raises(DirectoryInUse, match=rf"shared: already in use by process {os.getpid()}"):
            check_metadata(disk, data, lists, cluster="standalone")
    monkeypatch.undo()
    with pytest.raises(MetadataBehind, match="instance another-id"):
        check_metadata(disk, data, lists, cluster="standalone")  # it has ended: now it may be a lost one
