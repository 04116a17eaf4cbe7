"""A data directory that may not be read or written: what each command says of it, and what helps."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bound_by_modes import run_bound, run_on_read_only
from tests.e2e.broker_process import BrokerProcess

START = ("standalone", "--port", "0", "--web-port", "0", "--data-dir")


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("closed") / "data"
    with BrokerProcess(path):
        pass
    return path


@pytest.fixture
def closed(request: pytest.FixtureRequest, data_dir: Path) -> Iterator[Path]:
    path: Path = data_dir / request.param
    path.chmod(0)
    yield path
    path.chmod(0o700)


@pytest.mark.parametrize("closed", ["bookie", "."], indirect=True)
def test_what_may_not_be_read_is_not_told_as_lost(closed: Path, data_dir: Path) -> None:
    owner = f"{closed} belongs to user {os.geteuid()}, group {os.getegid()} (mode 0); "
    for arguments, code in (((*START,), 4), (("bookie", "verify", "--data-dir"), 4)):
        result = run_bound(*arguments, data_dir)
        assert (result.returncode, "Permission denied" in result.stderr) == (code, True)
        assert owner in result.stderr
        assert f"Run 'chmod -R u+rwX {data_dir}" in result.stderr
        assert "rebuild-index" not in result.stderr
    told = run_bound("status", "--data-dir", data_dir)
    assert (told.returncode, f"cannot be read: Permission denied. {owner}" in told.stdout) == (1, True)
    if closed == data_dir:
        assert told.stdout.startswith("whether a broker runs cannot be told\n")


def test_an_own_directory_that_is_read_only_needs_its_mode_changed(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    result = run_bound(*START, tmp_path)
    tmp_path.chmod(0o700)
    assert result.returncode == 4
    assert result.stderr.splitlines()[-1] == f"Run 'chmod -R u+rwX {tmp_path}'."


def test_verify_changes_nothing_on_a_read_only_file_system(data_dir: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in data_dir.rglob("*")}
    verified = run_on_read_only(data_dir, "bookie", "verify", "--data-dir", data_dir)
    assert (verified.returncode, verified.stderr) == (0, "")
    assert verified.stdout.endswith("damage      none\n")
    assert {path: path.stat().st_mtime_ns for path in data_dir.rglob("*")} == before
    with BrokerProcess(data_dir) as broker:
        beside = run_on_read_only(data_dir, "bookie", "verify", "--data-dir", data_dir)
        assert f"already in use by process {broker.pid}" in beside.stderr
        assert beside.returncode == 4
