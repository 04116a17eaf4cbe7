"""`geminga bookie` on a bookie with two journals and three ledger directories."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from geminga.bookie.index.database import ForeignIndex, IndexDatabase
from geminga.bookie.index.index_format import OWNER_KEY, decode_owner, encode_owner
from geminga.bookie.records.owner import Owner
from geminga.bookie.running.directory_lists import DirectoryLists
from geminga.cli.bookie import unrecorded
from geminga.cli.main import main
from geminga.config.config import Config
from geminga.server.metadata_check import check_metadata
from geminga.storage.disk import RealDisk
from geminga.storage.disk_errors import DiskFull
from geminga.storage.key_value import RocksKeyValue
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


def start_refusal(data: Path) -> str:
    with pytest.raises(ForeignIndex) as refused:
        check_metadata(RealDisk(), str(data), DirectoryLists(), cluster="standalone")
    return str(refused.value)


def swap(first: Path, second: Path) -> None:
    first.rename(first.parent / "third")
    second.rename(first)
    (first.parent / "third").rename(second)


def owner_of_index(path: Path, change: Owner | None = None) -> Owner | None:
    """As it was. `change` replaces it; one at position 0 removes it, as in an index of an earlier version."""
    values = RocksKeyValue(str(path))
    stored = values.get(OWNER_KEY)
    if change is not None and change.position:
        values.write([(OWNER_KEY, encode_owner(change))], sync=True)
    elif change is not None:
        values.write([], [OWNER_KEY], sync=True)
    values.close()
    return decode_owner(stored) if stored is not None else None


def every_byte(*directories: Path) -> dict[Path, bytes]:
    files = (path for directory in directories for path in directory.rglob("*"))
    return {path: path.read_bytes() for path in files if path.is_file() and path.name != "lock"}


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
    (path,) = (data.parent / "l3" / "entry-logs").iterdir()
    lock = RealDisk().lock(str(data.parent / "l3"))
    try:
        for arguments in (("dump-log", path), ("verify", "--data-dir", data)):
            code, _, err = call(*arguments)
            assert code == 4
            assert "stop the broker first" in err
    finally:
        lock.release()


@pytest.mark.parametrize("is_older", [False, True])
def test_indexes_under_each_others_names_are_refused(call: Call, data: Path, is_older: bool) -> None:
    first, second = (data.parent / name / "index" for name in ("l1", "l2"))
    if is_older:
        for path in (first, second):
            owner_of_index(path, Owner("", 0))
    before = rows(call("ledgers", "--data-dir", data, "--json"))
    swap(first, second)
    there = every_byte(data, first, second)
    text = start_refusal(data)
    assert f"{first}: this is the index of another directory" in text
    assert f"it is that of {second}. If indexes" in text
    assert "rename them back" in text
    code, out, _ = call("verify", "--data-dir", data)
    assert code == 1
    assert f"{second}: this is the index of another directory" in out
    assert f"it is that of {first}." in out
    for command in (["unrecorded", "restore"], ["release"], ["ledgers"]):
        code, _, err = call(*command, "--data-dir", data)
        assert code != 0
        assert "rename them back" in err
    assert every_byte(data, first, second) == there
    swap(first, second)
    assert rows(call("ledgers", "--data-dir", data, "--json")) == before


def test_an_index_of_another_broker_is_refused_and_nothing_is_taken_from_it(call: Call, data: Path) -> None:
    path = data.parent / "l2" / "index"  # of ledger 5, which it calls deleted
    mine = owner_of_index(path, Owner("another-id", 2))
    assert "it is that of another data directory" in start_refusal(data)
    assert call("verify", "--data-dir", data)[0] == 1
    code, out, _ = call("rebuild-index", "--data-dir", data)
    assert code == 0, out
    assert "the old index is that of another directory: nothing was taken from it" in out
    assert owner_of_index(path) == mine
    assert mine is not None
    assert mine.position == 2


def test_an_index_gets_its_owner_when_it_is_opened_or_replaced(data: Path) -> None:
    path = data.parent / "l3" / "index"
    mine = owner_of_index(path, Owner("", 0))
    IndexDatabase(RealDisk(), str(path), owner=mine).close()
    assert owner_of_index(path) == mine
    (data.parent / "l3" / "index.damage").write_bytes(b"")
    IndexDatabase(RealDisk(), str(path), owner=mine).close()
    assert owner_of_index(path) == mine
    with pytest.raises(
        ForeignIndex, match=r"it says instance=.* ledgers=3; this .* instance=other ledgers=1"
    ):
        IndexDatabase(RealDisk(), str(path), owner=Owner("other", 1))


def test_a_part_of_the_old_metadata_never_has_the_name_of_all(
    call: Call, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_file = RealDisk.replace_file

    def full_at_the_manifest(self: RealDisk, path: str, content: bytes) -> None:
        if "metadata.old" in path and "MANIFEST" in path:
            raise DiskFull(f"{path}: no space left on device")
        replace_file(self, path, content)

    monkeypatch.setattr(RealDisk, "replace_file", full_at_the_manifest)
    code, _, err = call("unrecorded", "restore", "--data-dir", data)
    assert code == 1
    assert "no space left" in err.splitlines()[-1]
    assert not list(data.glob("metadata.old*"))
    monkeypatch.undo()
    (data / "metadata.old-1.unfinished").mkdir()  # of a command that was killed
    code, out, _ = call("unrecorded", "restore", "--data-dir", data)
    assert code == 0
    assert f"the metadata as it was is kept in {data}/metadata.old-1;" in out
    assert "CURRENT" in {path.name for path in (data / "metadata.old-1").iterdir()}
    assert not (data / "metadata.old-1.unfinished").exists()


def test_a_failure_of_both_tasks_is_one_line(call: Call, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object, **__: object) -> None:
        async with trio.open_nursery():
            raise DiskFull("metadata: no space left on device")

    monkeypatch.setattr(unrecorded, "_change", fails)
    code, _, err = call("unrecorded", "restore", "--data-dir", data)
    assert (code, err) == (1, "geminga bookie: metadata: no space left on device\n")
