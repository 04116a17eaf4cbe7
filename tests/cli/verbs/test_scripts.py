"""Twelve public set-up scripts for Pulsar do here what they did with a real one (`play_scripts.py`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from geminga.cli.main import main
from tests.cli.verbs.play_scripts import RECORDED, SCRIPTS, Ended, play_all
from tests.e2e.broker_process import BrokerProcess


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    place = tmp_path_factory.mktemp("scripts")
    with BrokerProcess(place / "data") as process:
        return play_all(place, process.endpoints.web_url, process.endpoints.service_url)


@pytest.mark.parametrize("name", [script.name for script in SCRIPTS])
def test_a_set_up_script_runs_through(ended: dict[str, Ended], name: str) -> None:
    code, printed = json.loads(RECORDED.read_text())[name]
    assert ended[name] == (code, printed)
    assert code == 0


def test_shims_do_not_replace_another_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    real = tmp_path / "pulsar-admin"
    real.write_text("#!/bin/sh\necho the real one\n")
    assert main(["shims", str(tmp_path)]) == 1
    assert "another program's" in capsys.readouterr().err
    assert real.read_text().endswith("the real one\n")
    assert [path.name for path in tmp_path.iterdir()] == ["pulsar-admin"]
    assert main(["shims", str(tmp_path / "bin")]) == main(["shims", str(tmp_path / "bin")]) == 0
    names = {path.name for path in (tmp_path / "bin").iterdir()}
    assert names == {"pulsar", "pulsar-admin", "pulsar-client", "pulsar-perf"}
