"""Which lists of directories are the same as ever, and which directories may be used."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

from geminga.bookie.index.index_format import mark_key
from geminga.bookie.running.directory_cookies import claim_directories, index_directory
from geminga.bookie.running.directory_lists import (
    DirectoryLists,
    ForeignLists,
    Role,
    check_lists,
    encode_cookie,
    lists_from,
    role_of,
)
from geminga.errors import StorageError
from geminga.storage.disk import RealDisk
from geminga.storage.disk_errors import DirectoryInUse

LISTS = DirectoryLists(("/a", "/b"), ("/b", "/c", "/d"))


def test_nothing_configured_is_one_of_each_inside_the_data_directory() -> None:
    assert lists_from("/data", [], []) == DirectoryLists(("bookie",), ("bookie",))
    assert lists_from("/data", ["/data/bookie"], ["/data/bookie/"]) == DirectoryLists()
    assert lists_from("/data", ["/j"], []) == DirectoryLists(("/j",), ("bookie",))


def test_what_lies_inside_the_data_directory_moves_with_it() -> None:
    assert lists_from("/data", ["/data/x/j", "/database/j"], []).journals == ("x/j", "/database/j")


def test_a_directory_named_twice_is_refused() -> None:
    with pytest.raises(ForeignLists, match=r"ledgerDirectories names a directory twice: \[/a, /b, /a\]"):
        lists_from("/data", [], ["/a", "/b", "/c/../a"])


def test_a_directory_has_a_place_in_each_list() -> None:
    assert [role_of(path, LISTS) for path in LISTS.all()] == [(1, 0), (2, 1), (0, 2), (0, 3)]


@pytest.mark.parametrize(
    "wanted",
    [
        LISTS._replace(journals=("/b", "/a")),
        LISTS._replace(journals=("/a",)),
        LISTS._replace(ledgers=("/b", "/c", "/d", "/e")),
        LISTS._replace(ledgers=("/c", "/b", "/d")),
        DirectoryLists(),
    ],
    ids=["order of journals", "journal removed", "ledgers added", "order of ledgers", "left out"],
)
def test_another_list_is_refused_with_both_and_what_to_do(wanted: DirectoryLists) -> None:
    with pytest.raises(ForeignLists) as refused:
        check_lists(LISTS, wanted)
    text = str(refused.value)
    key, before, now = (
        ("journalDirectories", LISTS.journals, wanted.journals)
        if wanted.journals != LISTS.journals
        else ("ledgerDirectories", LISTS.ledgers, wanted.ledgers)
    )
    assert f"{key} has changed" in text
    assert f"[{', '.join(before)}]" in text
    assert f"set {key}={','.join(before)}" in text
    assert (f"[{', '.join(now)}]" if now != ("bookie",) else "[bookie, in the data directory]") in text


def test_the_default_is_told_by_leaving_the_key_out() -> None:
    with pytest.raises(ForeignLists, match="leave journalDirectories out"):
        check_lists(DirectoryLists(), LISTS)


def test_the_same_lists_are_fine() -> None:
    check_lists(LISTS, lists_from("/data", ["/a/", "/x/../b"], ["/b", "/c", "/d"]))


# ---- on disk


class Claims:
    """A data directory, and directories beside it, claimed and let go again."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lists = DirectoryLists((str(root / "j1"),), (str(root / "l1"), str(root / "l2")))

    def __call__(
        self, *, first: bool = False, instance: str = "one", lists: DirectoryLists | None = None
    ) -> None:
        with contextlib.ExitStack() as held:
            disk, data_dir = RealDisk(), str(self.root / "data")
            claim_directories(disk, data_dir, lists or self.lists, instance, held, first=first)


@pytest.fixture
def claim(tmp_path: Path) -> Claims:
    (tmp_path / "data").mkdir()
    return Claims(tmp_path)


def test_a_first_start_makes_directories_and_cookies(claim: Claims, tmp_path: Path) -> None:
    claim(first=True)
    assert (tmp_path / "l2" / "cookie").read_text().splitlines()[1:] == [
        "instance=one",
        "journal=0",
        "ledgers=2",
    ]
    claim()
    claim(first=True)  # it was cut short before the lists were recorded


def test_an_existing_empty_directory_is_taken(claim: Claims, tmp_path: Path) -> None:
    (tmp_path / "l1" / "lost+found").mkdir(parents=True)
    claim(first=True)
    claim()


def test_a_new_directory_with_something_in_it_is_refused(claim: Claims, tmp_path: Path) -> None:
    (tmp_path / "l2").mkdir()
    (tmp_path / "l2" / "photo.jpg").touch()
    with pytest.raises(ForeignLists, match=r"l2: a new bookie directory must be empty.*'photo.jpg'"):
        claim(first=True)
    assert not (tmp_path / "l2" / "cookie").exists()


def test_a_directory_that_is_not_mounted_is_refused(claim: Claims, tmp_path: Path) -> None:
    claim(first=True)
    (tmp_path / "l1").rename(tmp_path / "elsewhere")
    with pytest.raises(ForeignLists, match="l1: there is no cookie of this bookie: the disk is not mounted"):
        claim()
    (tmp_path / "l1").mkdir()
    with pytest.raises(ForeignLists, match="l1: there is no cookie"):
        claim()
    assert list((tmp_path / "l1").iterdir()) == []


def test_disks_that_changed_places_are_refused(claim: Claims, tmp_path: Path) -> None:
    claim(first=True)
    (tmp_path / "l1").rename(tmp_path / "x")
    (tmp_path / "l2").rename(tmp_path / "l1")
    (tmp_path / "x").rename(tmp_path / "l2")
    with pytest.raises(ForeignLists, match="two disks may have changed places"):
        claim()


@pytest.mark.parametrize("first", [True, False])
def test_a_directory_of_another_instance_is_refused(claim: Claims, first: bool) -> None:
    claim(first=True)
    with pytest.raises(ForeignLists, match=r"j1: the directory belongs to another instance.*instance=one"):
        claim(first=first, instance="two")


def test_a_directory_in_use_is_refused(claim: Claims, tmp_path: Path) -> None:
    claim(first=True)
    lock = RealDisk().lock(str(tmp_path / "l2"))
    with pytest.raises(DirectoryInUse):
        claim()
    lock.release()
    claim()  # what had been locked before that was let go


def test_the_default_directory_needs_neither_cookie_nor_lock(claim: Claims, tmp_path: Path) -> None:
    for first in (True, False):
        claim(first=first, lists=DirectoryLists())
    assert list((tmp_path / "data").iterdir()) == []


def test_a_cookie_that_cannot_be_written_ends_the_first_start(claim: Claims, tmp_path: Path) -> None:
    (tmp_path / "l1").mkdir()
    (tmp_path / "l1" / "cookie.tmp").mkdir()
    with pytest.raises(StorageError):
        claim(first=True)


def test_indexes_lie_with_their_logs_but_for_the_default_one() -> None:
    assert index_directory("/data", "bookie") == "/data/index"
    assert index_directory("/data", "/l1") == "/l1/index"
    assert index_directory("/data", "more") == "/data/more/index"


def test_the_page_about_directories() -> None:
    text = (Path(__file__).parents[3] / "docs" / "formats" / "directories.md").read_text()

    def examples(page: str) -> list[bytes]:
        assert page
        blocks = re.findall(r"(?:^    (?:[0-9a-f]{2} ?)+\n)+", text, re.MULTILINE)
        return [bytes.fromhex(block) for block in blocks]

    cookie, key = examples("directories.md")
    assert cookie == encode_cookie("f00d", Role(2, 0))
    assert key == mark_key(1)
    assert mark_key(0) == b"m"


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize(
    "content", [b"", b"\x1b[31m\x00" * 100_000, b"geminga bookie directory, format 1\ninst"]
)
def test_a_damaged_cookie_is_called_so(claim: Claims, tmp_path: Path, first: bool, content: bytes) -> None:
    claim(first=True)
    (tmp_path / "l1" / "cookie").write_bytes(content)
    with pytest.raises(ForeignLists, match="l1: the directory's cookie is damaged") as refused:
        claim(first=first)
    text = str(refused.value)
    assert text.isprintable()
    assert len(text) < 1500
