"""Directories that are taken away under a running broker, as `rm -r` and a lost mount do."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.e2e.broker_process import BrokerProcess


@pytest.mark.parametrize(
    ("removed", "named"),
    [
        ("metadata", "metadata"),
        ("index", "index"),
        ("bookie", "bookie/journal"),
        ("bookie/entry-logs", "bookie/entry-logs"),
    ],
)
def test_a_removed_directory_ends_the_broker(tmp_path: Path, removed: str, named: str) -> None:
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    shutil.rmtree(tmp_path / "data" / removed)
    assert broker.wait() == 1
    log = broker.log_tail()
    assert f"{tmp_path}/data/{named}: the directory was removed, replaced or unmounted" in log
    assert "Put it back and start again" in log
    assert "Traceback" not in log


def test_a_directory_that_was_replaced_ends_the_broker(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path / "data")
    broker.start()
    (tmp_path / "data" / "index").rename(tmp_path / "away")
    (tmp_path / "data" / "index").mkdir()
    assert broker.wait() == 1
    assert "index: the directory was removed, replaced or unmounted" in broker.log_tail()
