"""Entry logs and journals of another broker, or of another directory: no start and no command takes them for
its own, and moving them out is enough.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from geminga.bookie.entry_logs.entry_log_format import decode_header, encode_header
from geminga.bookie.journal.headers import owner_of
from geminga.bookie.journal.journal_format import FILE_HEADERS_BYTES_MAX
from geminga.bookie.records.owner import Owner
from geminga.bookie.running.directory_lists import DirectoryLists
from geminga.bookie.running.foreign_files import FILES_NAMED_MAX, ForeignFiles, foreign_files, instance_in
from geminga.cli.main import main
from geminga.config.config import Config
from geminga.server.metadata_check import MetadataBehind, check_metadata
from geminga.storage.disk import RealDisk
from tests.server.bookie_opening_rig import add_entries, opened

Call = Callable[..., tuple[int, str, str]]
LOGS, JOURNALS = "bookie/entry-logs", "bookie/journal"
DISK = RealDisk()


async def _fill(data: Path, ledgers: list[int], config: Config) -> None:
    async with opened(data, config) as (bookie, store):
        await add_entries(bookie, store, ledgers, 20)


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    trio.run(_fill, tmp_path / "mine", [1, 2], Config())
    return tmp_path / "mine"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    trio.run(_fill, tmp_path / "other", [1, 2, 3], Config())
    return tmp_path / "other"


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["bookie", *map(str, arguments)])
        return code, *capsys.readouterr()

    return run


def start(data: Path) -> None:
    """The check with which each start begins."""
    check_metadata(DISK, str(data), DirectoryLists(), cluster="standalone")


def refusal(data: Path) -> str:
    with pytest.raises(ForeignFiles) as refused:
        start(data)
    return str(refused.value)


def instance(data: Path) -> str:
    return instance_in(DISK, str(data), DirectoryLists())


def every_byte(data: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in data.rglob("*") if path.is_file() and path.name != "lock"}


def file_of(data: Path, folder: str) -> Path:
    [path] = (data / folder).iterdir()
    return path


def lose_metadata(data: Path) -> None:
    shutil.rmtree(data / "metadata")
    (data / "bookie" / "cookie").unlink()


@pytest.mark.parametrize("folder", [LOGS, JOURNALS])
@pytest.mark.parametrize("is_in_place_of_mine", [True, False])
def test_a_file_of_another_broker_is_refused_until_it_is_moved_out(
    call: Call, mine: Path, other: Path, folder: str, is_in_place_of_mine: bool
) -> None:
    before = call("ledgers", "--data-dir", mine)
    own = file_of(mine, folder)
    foreign = own if is_in_place_of_mine else own.with_name(f"{7:020}{own.suffix}")
    whole = own.read_bytes()
    shutil.copy(file_of(other, folder), foreign)
    there = every_byte(mine)
    text = refusal(mine)
    kind = "ledgers" if folder == LOGS else "journal"
    assert text.startswith(f"{mine}: entry logs or journals are there that belong elsewhere")
    assert "Move these files out" in text
    said = (
        f"it says instance={instance(other)} {kind}=1, this directory is instance={instance(mine)} {kind}=1: "
        "it is of another data directory"
    )
    assert text.splitlines()[1:] == [f"  {foreign}: {said}"]
    code, out, _ = call("verify", "--data-dir", mine)
    assert code == 1
    assert f"{foreign}: offset 0: {said}" in out
    for command in (["rebuild-index"], ["unrecorded", "restore"]):
        code, _, err = call(*command, "--data-dir", mine)
        assert code != 0
        assert said in err
    assert every_byte(mine) == there
    foreign.unlink()
    if is_in_place_of_mine:
        own.write_bytes(whole)
    start(mine)
    assert call("ledgers", "--data-dir", mine) == before
    assert call("verify", "--data-dir", mine)[0] == 0


def test_a_file_of_another_ledger_directory_says_where_it_belongs(tmp_path: Path) -> None:
    lists = DirectoryLists((str(tmp_path / "j1"), str(tmp_path / "j2")), (str(tmp_path / "l1"), "l2"))
    config = Config(
        journal_directories=lists.journals, ledger_directories=(lists.ledgers[0], str(tmp_path / "data/l2"))
    )
    data = tmp_path / "data"
    trio.run(_fill, data, [1, 2], config)
    instance_id = instance_in(DISK, str(data), lists)
    assert foreign_files(DISK, str(data), lists, instance_id) == []
    log = file_of(data, "l2/entry-logs")
    moved = tmp_path / "l1" / "entry-logs" / f"{7:020}.log"
    log.rename(moved)
    journal = shutil.copy(file_of(tmp_path, "j2/journal"), tmp_path / "j1" / "journal" / f"{7:020}.journal")
    text = refusal(data)
    assert f"{moved}: it says instance={instance_id} ledgers=2, " in text
    assert f"it is of {log.parent}: move it there" in text
    assert f"it is of {tmp_path}/j2/journal: move it there" in text
    shutil.copy(moved, log.parent / moved.name)
    assert f"it is of {log.parent}, which has a {moved.name} of its own: exchange the two" in refusal(data)
    (log.parent / moved.name).unlink()
    moved.rename(log)
    journal.unlink()
    start(data)


def test_files_that_do_not_say_are_ones_own(mine: Path) -> None:
    """Of an earlier version, or with a damaged header."""
    log, journal = file_of(mine, LOGS), file_of(mine, JOURNALS)
    header = decode_header(log.read_bytes())
    assert header is not None
    assert header.owner == Owner(instance(mine), 1)
    for old in (encode_header(header.log_id), b"\0\1" + encode_header(header.log_id, Owner("x", 1))[2:]):
        log.write_bytes(old + log.read_bytes()[len(old) :])
        start(mine)
    file = DISK.open(str(journal))
    assert owner_of(file) == Owner(instance(mine), 1)
    file.pwrite(60, bytes(8))
    assert owner_of(file) == Owner(instance(mine), 1), "by the copy"
    file.pwrite(512 + 60, bytes(8))
    assert owner_of(file) is None
    start(mine)
    file.pwrite(0, bytes(FILE_HEADERS_BYTES_MAX))
    file.close()
    start(mine)


def test_the_instance_comes_back_from_the_files_alone(call: Call, mine: Path) -> None:
    instance_id = instance(mine)
    lose_metadata(mine)
    with pytest.raises(MetadataBehind, match=f"of instance {instance_id}"):
        start(mine)
    shutil.rmtree(mine / "index")
    assert call("unrecorded", "restore", "--data-dir", mine)[0] == 0
    start(mine)
    (mine / "bookie" / "cookie").unlink(missing_ok=True)
    assert instance(mine) == instance_id
    assert call("verify", "--data-dir", mine)[0] == 0


def test_files_agree_if_nothing_else_says_the_instance(mine: Path, other: Path) -> None:
    lose_metadata(mine)
    foreign = mine / LOGS / f"{9:020}.log"
    shutil.copy(file_of(other, LOGS), foreign)
    assert f"  {foreign}: it says instance={instance(other)} " in refusal(mine)


def test_a_refusal_of_many_files_has_an_end(mine: Path, other: Path) -> None:
    for number in range(FILES_NAMED_MAX + 1):
        shutil.copy(file_of(other, LOGS), mine / LOGS / f"{number + 7:020}.log")
    assert refusal(mine).splitlines()[FILES_NAMED_MAX + 1 :] == ["  ... and 1 more"]
