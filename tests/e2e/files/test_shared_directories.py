"""Two data directories that share a bookie's directory: one broker runs, the other one is told who has it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.broker_process import BrokerProcess, run_client
from tests.e2e.files.test_old_metadata_refused import contents, refused

pytestmark = pytest.mark.skipif("GEMINGA_TEST_URL" in os.environ, reason="looks into Geminga's files")
TOPIC = "persistent://public/default/shared"


def publish(broker: BrokerProcess, count: int) -> None:
    run_client(broker, "produce", TOPIC, "--stdin", text="".join(f"message {n}\n" for n in range(count)))


def stored(broker: BrokerProcess, count: int) -> int:
    flags = ("-s", "s", "--from", "earliest", "-n", str(count), "--timeout", "9s")
    return len(run_client(broker, "consume", TOPIC, *flags).splitlines())


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that runs, on a data directory that was copied when it was stopped."""
    root = tmp_path_factory.mktemp("original")
    with BrokerProcess(root / "data") as broker:
        publish(broker, 5)
    shutil.copytree(root / "data", root / "copy")
    with broker:
        yield broker


def test_a_copy_whose_bookie_is_a_link_to_a_living_one_is_refused(
    original: BrokerProcess, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    shutil.copytree(original.data_dir.with_name("copy"), data)
    shutil.rmtree(data / "bookie")
    (data / "bookie").symlink_to(original.data_dir / "bookie")
    before = contents(data)
    text = refused(data)
    assert f"{data}/bookie: already in use by process {original.pid}" in text
    assert "nothing is lost" in text
    assert "unrecorded" not in text
    assert contents(data) == before
    publish(original, 5)
    assert original.is_running()


def test_a_copy_is_not_held_by_the_lock_that_was_copied_with_it(
    original: BrokerProcess, tmp_path: Path
) -> None:
    assert (original.data_dir.with_name("copy") / "bookie" / "lock").exists()
    shutil.copytree(original.data_dir.with_name("copy"), tmp_path / "data")
    with BrokerProcess(tmp_path / "data") as copy:
        assert stored(copy, 5) == 5


def test_a_directory_of_a_living_neighbour_is_not_taken_for_a_lost_one(
    original: BrokerProcess, tmp_path: Path
) -> None:
    text = refused(tmp_path / "data", "--set", f"ledgerDirectories={original.data_dir / 'bookie'}")
    assert f"{original.data_dir}/bookie: already in use by process {original.pid}" in text
    assert "unrecorded" not in text
    assert "the metadata is behind" not in text


@pytest.mark.parametrize("folder", ["journal", "entry-logs"])
def test_a_copy_of_which_only_a_folder_is_a_link_to_a_living_one_is_refused(
    original: BrokerProcess, tmp_path: Path, folder: str
) -> None:
    data = tmp_path / "data"
    shutil.copytree(original.data_dir.with_name("copy"), data)
    shutil.rmtree(data / "bookie" / folder)
    (data / "bookie" / folder).symlink_to(original.data_dir / "bookie" / folder)
    before = contents(data)
    text = refused(data)
    assert f"{data}/bookie/{folder}: already in use by another process" in text
    assert "unrecorded" not in text
    assert contents(data) == before
    publish(original, 5)
    assert original.is_running()
