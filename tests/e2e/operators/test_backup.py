"""`geminga backup` of a broker under load, and a broker on the copy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.broker_process import BrokerProcess
from tests.e2e.operators.backup_loop import Load, backup, serve


@pytest.mark.parametrize("lists", [False, True])
def test_a_copy_serves_all_that_had_a_receipt(tmp_path: Path, lists: bool) -> None:
    settings = {}
    if lists:
        settings = {
            "journalDirectories": f"{tmp_path}/j1,{tmp_path}/j2",
            "ledgerDirectories": f"{tmp_path}/j1,{tmp_path}/l2",
        }
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        load = Load(broker.endpoints.service_url)
        load.start()
        assert load.enough.wait(60)
        copies = []
        for number in range(3):
            before = len(load.receipted)
            made = backup(broker, tmp_path / f"copy-{number}")
            assert made.returncode == 0, made.stderr
            files = [file for file in (tmp_path / f"copy-{number}").rglob("*") if file.is_file()]
            size_mib = sum(file.stat().st_size for file in files) / (1 << 20)
            assert f"copy-{number}: {len(files)} files, {size_mib:.1f} MiB" in made.stdout
            copies.append((before, made.stdout.partition("with: ")[2].split()))
        load.ended.set()
        load.join(60)
    for number, (before, command) in enumerate(copies):
        log = tmp_path / f"copy-{number}.log"
        found = serve(tmp_path / f"copy-{number}", command, log)
        assert set(load.receipted[:before]) <= set(found)
        assert len(found) == len(set(found))
        assert " ERROR " not in log.read_text()


def test_where_a_copy_may_not_be(tmp_path: Path) -> None:
    (tmp_path / "used").mkdir()
    (tmp_path / "used" / "file").touch()
    (tmp_path / "left.unfinished").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")
    settings = {"ledgerDirectories": f"{tmp_path}/ledgers"}
    with BrokerProcess(tmp_path / "data", settings=settings) as broker:
        for directory, reason in (
            (tmp_path / "used", "is there and not an empty directory"),
            (tmp_path / "data" / "copy", "is inside the data directory"),
            (tmp_path / "link" / "copy", "is inside the data directory"),
            (tmp_path / "ledgers" / "copy", f"name one outside of {tmp_path}/ledgers"),
            (tmp_path / "no" / "copy", f"{tmp_path}/no is not a directory"),
            (tmp_path / "left", "is what a backup left"),
        ):
            made = backup(broker, directory)
            assert made.returncode == 1
            assert reason in made.stderr
    assert sorted(os.listdir(tmp_path / "used")) == ["file"]
