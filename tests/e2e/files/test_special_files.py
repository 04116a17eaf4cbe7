"""A FIFO in the place of a file of the data directory: a start says so at once, where it waited for ever, and
starts once the file is back.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.e2e.broker_process import BrokerProcess, run_client
from tests.e2e.files.test_old_metadata_refused import TOPIC, contents, refused

pytestmark = [
    pytest.mark.skipif("GEMINGA_TEST_URL" in os.environ, reason="looks into Geminga's files"),
    pytest.mark.skipif(sys.platform == "win32", reason="a system without FIFOs"),
]


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with BrokerProcess(tmp_path_factory.mktemp("stopped") / "data") as broker:
        run_client(broker, "produce", TOPIC, "-m", "here")
    return broker.data_dir


@pytest.mark.parametrize(
    "pattern",
    [
        "index/CURRENT",
        "index/LOG",
        "metadata/OPTIONS-*",
        "metadata/rocksdict-config.json",
        "bookie/cookie",
        "bookie/entry-logs/*",
        "bookie/journal/*",
    ],
)
def test_a_start_does_not_wait_at_a_fifo(stopped: Path, tmp_path: Path, pattern: str) -> None:
    data = tmp_path / "data"
    shutil.copytree(stopped, data)
    path = sorted(data.glob(pattern))[0]
    whole = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    before = contents(data)
    assert f"geminga standalone: {path}: this is a FIFO (named pipe), not a file. Move it away" in refused(
        data
    )
    assert contents(data) == before
    path.unlink()
    path.write_bytes(whole)
    if pattern.endswith("CURRENT"):
        with BrokerProcess(data) as broker:
            assert "here" in run_client(broker, "consume", TOPIC, "-s", "s", "--from", "earliest", "-n", "1")


def test_a_broker_starts_beside_an_event_file_that_is_none_and_says_so(stopped: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(stopped, data)
    path = data / "events" / "numbers"
    path.unlink()
    os.mkfifo(path)
    with BrokerProcess(data) as broker:
        pass
    assert (
        f"the last number of an event cannot be read: {path}: this is a FIFO" in broker.log_path.read_text()
    )
