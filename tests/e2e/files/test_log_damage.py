"""Rows of the table of `tests/e2e/files/log_damage.py` that stand for the others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.admin_http import Admin
from tests.e2e.broker_process import BrokerProcess
from tests.e2e.files.log_damage import MESSAGES, SETTINGS, damaged_log, fill, metric, outcome, read
from tests.e2e.files.test_old_metadata_refused import contents, refused

pytestmark = pytest.mark.skipif("GEMINGA_TEST_URL" in os.environ, reason="looks into Geminga's files")


def test_a_log_that_is_cut_in_half_is_served_in_full_from_the_journals(tmp_path: Path) -> None:
    places = fill(tmp_path / "data", keep_journals=True)
    damaged_log(tmp_path / "data", "cut in half")
    served, named, healed, _ = outcome(tmp_path / "data", places)
    assert (served, named) == (MESSAGES, 0)
    assert healed > MESSAGES // 8, "the log holds half of them, and what a flush took along with them"


@pytest.fixture(scope="module")
def without_journals(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[int, int]]]:
    data = tmp_path_factory.mktemp("filled") / "data"
    return data, fill(data, keep_journals=False)


@pytest.fixture
def places(tmp_path: Path, without_journals: tuple[Path, list[tuple[int, int]]]) -> list[tuple[int, int]]:
    """`tmp_path / "data"` has a directory without journals."""
    shutil.copytree(without_journals[0], tmp_path / "data")
    return without_journals[1]


def test_a_flipped_bit_that_no_journal_heals_is_named_by_topic(
    tmp_path: Path, places: list[tuple[int, int]]
) -> None:
    damaged_log(tmp_path / "data", "bit flipped in the middle")
    served, named, healed, log = outcome(tmp_path / "data", places)
    assert (served, named, healed) == (MESSAGES - 1, 1, 0)
    assert "(persistent://public/default/orders) cannot be read" in log
    assert "`geminga topics skip` takes a subscription past the entries" in log


def test_logs_with_swapped_names_are_refused_and_serve_all_once_renamed_back(
    tmp_path: Path, places: list[tuple[int, int]]
) -> None:
    data = tmp_path / "data"
    logs = data / "bookie" / "entry-logs"
    one, two = (path for path in sorted(logs.iterdir()) if path.stat().st_size > 1 << 20)

    def swap() -> None:
        for old, new in ((one, logs / "between"), (two, one), (logs / "between", two)):
            old.rename(new)

    swap()
    before = contents(data)
    text = refused(data)
    assert f"{logs}: entry logs are there under each other's names. Rename them back" in text
    assert f"  {one.name} is entry log {int(two.stem)}: its name is {two.name}" in text
    for command in ("rebuild-index", "unrecorded restore"):
        run = _bookie(command, data)
        assert (run.returncode, f"its name is {two.name}" in run.stderr) == (1, True), run
    assert contents(data) == before
    verified = _bookie("verify", data)
    assert verified.returncode == 1
    assert f"{one}: offset 0: the header is not that of entry log {int(one.stem)}, but of" in verified.stdout
    swap()
    with BrokerProcess(data, settings=SETTINGS) as broker:
        assert read(broker, places, set()) == MESSAGES


@pytest.mark.usefixtures("places")
def test_zeros_for_the_end_of_a_log_are_named_by_every_start(tmp_path: Path) -> None:
    """Before anybody reads. The commands in the advice can be pasted."""
    data = (tmp_path / "data").rename(tmp_path / "my data")
    damaged_log(data, "zeros from half")
    with BrokerProcess(data, settings=SETTINGS, log_path=tmp_path / "log") as broker:
        for _ in range(2):
            lost = metric(broker, "geminga_bookie_confirmed_entries_missing")
            assert lost > MESSAGES // 8
            assert metric(broker, "geminga_bookie_recovery_entries_missing") >= lost
            losses = " ".join(Admin(broker.endpoints.web_url).well("/geminga/health").json()["losses"])
            assert f"entries that topics have confirmed and no file has: {lost:.0f}" in losses
            assert "cut short: 1" in losses
            for command in ("verify", "release"):
                assert f"'geminga bookie {command} --data-dir '{data}'' on the stopped broker" in losses
            broker.kill()
            broker.start()


def _bookie(command: str, data: Path) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, "-m", "geminga", "bookie", *command.split(), "--data-dir", str(data)]
    return subprocess.run(arguments, capture_output=True, text=True, check=False)
