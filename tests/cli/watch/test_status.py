"""`geminga status` of a broker that runs, of a stopped directory, and of what is no data directory."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from geminga.cli.main import main
from geminga.cli.watch import places, status
from tests.e2e.broker_process import BrokerProcess


def test_a_broker_and_its_directory_running_and_stopped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data_dir = tmp_path / "data"
    with BrokerProcess(data_dir) as broker:
        monkeypatch.setenv("GEMINGA_URL", broker.endpoints.service_url)
        assert main(["produce", "t", "-m", "x", "-q"]) == 0
        capfd.readouterr()
        assert main(["status", "--json"]) == 0
        by_address = json.loads(capfd.readouterr().out)
        assert main(["status", "--json", "--data-dir", str(data_dir)]) == 0
        by_directory = json.loads(capfd.readouterr().out)
        for found in (by_address, by_directory):
            assert found["running"] is True
            assert found["service_url"] == broker.endpoints.service_url
            assert found["web_url"] == broker.endpoints.web_url
            assert found["data_directory"] == str(data_dir)
            assert found["topics"] == 1
            assert found["wrong"] == []
            assert found["clock"] == "real"
            assert found["bytes"]["journal"] > 0
        assert main(["status"]) == 0
        text = capfd.readouterr().out
        assert text.startswith("a broker runs (4.0.7-geminga-")
        assert text.endswith("nothing is wrong\n")
        assert "clock" not in text
    monkeypatch.delenv("GEMINGA_URL")
    assert main(["status", "--data-dir", str(data_dir)]) == 3
    text = capfd.readouterr().out
    assert text.startswith(f"no broker runs; start one: geminga standalone --data-dir {data_dir}\n")
    assert "journal" in text
    assert "nothing is wrong" not in text


def test_overdue_is_told_from_not_yet_due(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with BrokerProcess(tmp_path / "data", arguments=["--clock", "virtual"]) as broker:
        monkeypatch.setenv("GEMINGA_URL", broker.endpoints.web_url)
        assert main(["topics", "create-subscription", "t", "-s", "s"]) == 0
        monkeypatch.setenv("GEMINGA_URL", broker.endpoints.service_url)
        for delay in ("1h", "1h", "3h"):
            assert main(["produce", "t", "-m", "x", "--delay", delay, "-q"]) == 0
        # What comes behind them arrives when they have been read.
        assert main(["produce", "t", "-m", "now", "-q"]) == 0
        assert main(["consume", "t", "-s", "s", "--type", "shared", "-n", "1"]) == 0
        assert main(["clock", "advance", "2h"]) == 0
        capfd.readouterr()
        assert main(["status"]) == 0
        assert "3 entries, 3 of them delayed and 2 of these overdue\n" in capfd.readouterr().out


def test_a_virtual_clock_is_told_and_how_far_it_is_ahead(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with BrokerProcess(tmp_path / "data", arguments=["--clock", "virtual"]) as broker:
        monkeypatch.setenv("GEMINGA_URL", broker.endpoints.web_url)
        assert main(["status"]) == 0
        shown = r"^clock +virtual, shows \S+Z, not ahead of the machine's$"
        assert re.search(shown, capfd.readouterr().out, re.M)
        assert main(["clock", "to", "2099-12-24T18:00Z"]) == 0
        capfd.readouterr()
        assert main(["status"]) == 0
        shown = r"^clock +virtual, shows 2099-12-24T18:00:\S+Z, \d+d \d+h ahead of the machine's"
        assert re.search(shown, capfd.readouterr().out, re.M)
        assert main(["status", "--json"]) == 0
        found = json.loads(capfd.readouterr().out)
        assert found["clock"] == "virtual"
        assert found["clock_ms"] >= 4_101_818_400_000
        assert found["clock_ahead_ms"] > 0


def test_what_is_wrong_is_told_and_is_no_success(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert main(["status", "--data-dir", str(tmp_path)]) == 1
    assert "has files but is no data directory of Geminga" in capfd.readouterr().out
    for path in (tmp_path / "notes.txt", tmp_path / "notes.txt" / "data"):
        assert main(["status", "--data-dir", str(path)]) == 1
        first, data, _, wrong = capfd.readouterr().out.splitlines()
        assert (first, data) == ("no broker runs", f"data  {path} (not a directory)")
        advice = "is not a directory; name another data directory with --data-dir"
        assert wrong == f"wrong: {tmp_path / 'notes.txt'} {advice}"
    assert main(["status", "--url", "http://nowhere.invalid:1"]) == 1
    assert capfd.readouterr().out.startswith("whether a broker runs cannot be told\n")
    monkeypatch.setattr(places, "FULL", 0.0)
    assert main(["status", "--data-dir", str(tmp_path / "not" / "there")]) == 1
    assert "% full: " in capfd.readouterr().out


def test_an_address_where_nothing_listens_is_told_from_what_is_none(
    capfd: pytest.CaptureFixture[str],
) -> None:
    for url in ("http://127.0.0.1:1", "pulsar://127.0.0.1:1"):
        assert main(["status", "--url", url]) == 3
        expected = f"no broker runs; nothing listens at {url}; start one: geminga standalone\n"
        assert capfd.readouterr().out == expected
    with pytest.raises(SystemExit) as exit_:
        main(["status", "--url", "ftp://127.0.0.1:1"])
    assert exit_.value.code == 2
    assert "expected http://HOST:PORT or pulsar://HOST:PORT" in capfd.readouterr().err


def test_the_advice_begins_as_the_command_did_that_gives_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMINGA_COMMAND", "python3 run.py")
    url, data_dir = "http://127.0.0.1:1", str(tmp_path / "none")
    main(["status", "--url", url])
    main(["status", "--data-dir", data_dir])
    main(["produce", "t", "-m", "x", "--url", "pulsar://127.0.0.1:1"])
    main(["clock", "now", "--url", url])
    said = capfd.readouterr()
    assert f"start one: python3 run.py standalone --data-dir {data_dir}\n" in said.out
    assert (said.out + said.err).count("start one: python3 run.py standalone") == 4


def test_a_note_of_damage_beside_an_index_is_wrong(tmp_path: Path) -> None:
    os.makedirs(tmp_path / "metadata")
    assert not places.look(str(tmp_path)).index_damaged
    (tmp_path / f"index{places.DAMAGE_NOTE}").write_text("x")
    found = places.look(str(tmp_path))
    assert found.index_damaged
    assert found.is_data_directory
    assert not found.is_served


def test_a_narrow_terminal_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "terminal_width", lambda: 40)
    names = "a backlog without a consumer: orders (12,345), invoices (77), mail (3)"
    found = {"running": True, "wrong": [], "notes": [names], "service_url": "u" * 50, "web_url": "http://h"}
    lines = status.described(found)
    assert max(len(line) for line in lines if "uu" not in line) <= 40
    assert " ".join(
        line.strip() for line in lines if not line.startswith(("a ", "clients", "admin", "no"))
    ).endswith("invoices (77), mail (3)")
