"""`geminga bookie` on a bookie with two journals and three ledger directories."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from geminga.cli.main import main
from geminga.config.config import Config
from tests.server.bookie_opening_rig import add_entries, opened

Call = Callable[..., tuple[int, str, str]]


async def _fill(root: Path, crash: bool) -> None:
    config = Config(
        journal_directories=(str(root / "j1"), str(root / "j2")),
        ledger_directories=tuple(str(root / name) for name in ("l1", "l2", "l3")),
    )
    async with opened(root / "data", config) as (bookie, store):
        await add_entries(bookie, store, list(range(1, 7)), 20)
        await bookie.delete_ledger(5)
        await bookie.fence(4)
        if crash:
            await add_entries(bookie, store, [7, 8], 3, flush=False)
            for name in ("data", "j1", "j2", "l1", "l2", "l3"):  # what a kill would leave
                shutil.copytree(root / name, root / "killed" / name)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    trio.run(_fill, tmp_path, False)
    return tmp_path / "data"


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Ledgers 7 and 8 are in the journals only."""
    trio.run(_fill, tmp_path, True)
    for path in list(tmp_path.iterdir()):
        if path.name != "killed":
            shutil.rmtree(path)
    for path in list((tmp_path / "killed").iterdir()):
        path.rename(tmp_path / path.name)
    return tmp_path / "data"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["bookie", *map(str, arguments)])
        out, err = capsys.readouterr()
        return code, out, err

    return run


def rows(result: tuple[int, str, str]) -> list[dict[str, Any]]:
    code, out, err = result
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


def test_ledgers_of_all_directories_are_listed(call: Call, killed: Path) -> None:
    listed = rows(call("ledgers", "--data-dir", killed, "--json"))
    assert {row["ledger"]: (row["entries"], row["journal_entries"]) for row in listed} == {
        **dict.fromkeys((1, 2, 3, 4, 6), (20, 0)),
        5: (20, 0),  # deleted, and its rows are still there
        7: (0, 3),
        8: (0, 3),
    }
    states = {row["ledger"]: row["state"] for row in listed}
    assert (states[4], states[5], states[6]) == ("open, fenced", "deleted", "open")


def test_entry_logs_and_journals_are_listed_by_directory(call: Call, data: Path) -> None:
    root = data.parent
    logs = rows(call("entry-logs", "--data-dir", data, "--json"))
    assert [(row["path"].split("/entry-logs/")[0], row["live_ledgers"]) for row in logs] == [
        (str(root / "l1"), [3, 6]),
        (str(root / "l2"), [1, 4]),
        (str(root / "l3"), [2]),
    ]
    journals = rows(call("journals", "--data-dir", data, "--json"))
    assert {row["path"].split("/journal/")[0] for row in journals} == {str(root / "j1"), str(root / "j2")}
    _, out, _ = call("journals", "--data-dir", data)
    assert out.count("mark: journal") == 2
    assert f"{root}/j2/journal:" in out


def test_an_entry_is_found_wherever_it_is(call: Call, killed: Path) -> None:
    (flushed,) = rows(call("entry", 4, 11, "--data-dir", killed, "--json"))
    assert bytes.fromhex(flushed["hex"]) == b"4-11"
    assert flushed["place"].startswith(f"{killed.parent}/l2/entry-logs/")
    (waiting,) = rows(call("entry", 7, 2, "--data-dir", killed, "--json"))
    assert bytes.fromhex(waiting["hex"]) == b"7-2"
    assert waiting["place"].startswith(f"{killed.parent}/j2/journal/")


def test_an_id_that_several_directories_have_is_not_guessed(call: Call, data: Path) -> None:
    code, _, err = call("dump-log", 1, "--data-dir", data)
    assert code == 1
    assert "entry log 1 is in several directories; name one by its path" in err
    assert all(f"{data.parent}/{name}/entry-logs/" in err for name in ("l1", "l2", "l3"))
    (path,) = (data.parent / "l3" / "entry-logs").iterdir()
    assert {row["ledger"] for row in rows(call("dump-log", path, "--json"))} == {2, 5}


def test_verify_looks_at_every_directory(call: Call, data: Path) -> None:
    code, out, _ = call("verify", "--data-dir", data)
    assert (code, "damage      none" in out) == (0, True)
    assert "entry logs  3, 120 records" in out
    assert "journals    2," in out
    (log,) = (data.parent / "l3" / "entry-logs").iterdir()
    content = bytearray(log.read_bytes())
    content[100] ^= 1
    log.write_bytes(content)
    code, out, _ = call("verify", "--data-dir", data)
    assert code == 1
    assert f"{log}: offset " in out
    assert "l1/entry-logs" not in out


def test_all_indexes_are_made_anew(call: Call, killed: Path) -> None:
    before = rows(call("ledgers", "--data-dir", killed, "--json"))
    shutil.rmtree(killed.parent / "l3" / "index")
    code, _, err = call("ledgers", "--data-dir", killed)
    assert (code, "l3/index: there is no index" in err) == (1, True)
    code, out, _ = call("rebuild-index", "--data-dir", killed)
    assert code == 0
    assert f"{killed.parent}/l2/index.old-1" in out
    after = rows(call("ledgers", "--data-dir", killed, "--json"))
    flushed = {row["ledger"]: row["entries"] + row["journal_entries"] for row in before}
    assert {row["ledger"]: row["entries"] for row in after} == {**flushed, 5: 20}
    assert call("verify", "--data-dir", killed)[0] == 0


def test_a_missing_directory_is_named(call: Call, data: Path) -> None:
    (data.parent / "j2").rename(data.parent / "away")
    code, _, err = call("verify", "--data-dir", data)
    assert code == 4
    assert f"{data.parent}/j2: there is no cookie" in err


def test_a_directory_in_use_is_not_looked_into(call: Call, data: Path) -> None:
    from geminga.storage.disk import RealDisk

    (path,) = (data.parent / "l3" / "entry-logs").iterdir()
    lock = RealDisk().lock(str(data.parent / "l3"))
    try:
        for arguments in (("dump-log", path), ("verify", "--data-dir", data)):
            code, _, err = call(*arguments)
            assert code == 4
            assert "stop the broker first" in err
    finally:
        lock.release()
