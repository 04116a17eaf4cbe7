"""The bookie's directories from one start to the next, as the server opens them."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from geminga.bookie.running.directory_lists import DirectoryLists, ForeignLists
from geminga.broker.operator.health import losses_of
from geminga.config.config import Config
from geminga.config.file import Property
from geminga.config.loading import load
from geminga.errors import StorageError
from geminga.metadata.bookie_directories import recorded_directories
from geminga.metadata.records import InstanceRecord, decode
from geminga.server import bookie_opening
from geminga.server.metadata_check import aside_text
from geminga.storage.disk import RealDisk
from tests.server.bookie_opening_rig import add_entries, opened


class Places:
    def __init__(self, root: Path) -> None:
        self.data_dir = root / "data"
        self.journals = tuple(str(root / name) for name in ("j1", "j2"))
        self.ledgers = tuple(str(root / name) for name in ("l1", "l2", "l3"))

    def config(self, **changes: Any) -> Config:
        return Config(**{"journal_directories": self.journals, "ledger_directories": self.ledgers, **changes})

    async def begin(self, config: Config | None = None) -> None:
        async with opened(self.data_dir, config or self.config()) as (bookie, store):
            await add_entries(bookie, store, list(range(1, 7)), 20)

    async def check(self, config: Config | None = None) -> None:
        async with opened(self.data_dir, config or self.config()) as (bookie, _):
            assert bookie.recovery.clean
            for ledger_id in range(1, 7):
                found = await bookie.read(ledger_id, 0, 19, bytes_max=10_000)
                assert found == [b"%d-%d" % (ledger_id, entry) for entry in range(20)]


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


async def raised(places: Places, config: Config) -> str:
    """What a start is refused with."""
    with pytest.RaisesGroup(ForeignLists, flatten_subgroups=True) as refused:
        async with opened(places.data_dir, config):
            raise AssertionError("it started")
    return str(refused.value.exceptions[0])


async def test_the_same_lists_open_again(places: Places, tmp_path: Path) -> None:
    await places.begin()
    await places.check()
    assert not (places.data_dir / "bookie").exists()
    assert not (places.data_dir / "index").exists()
    assert (tmp_path / "l3" / "index" / "CURRENT").exists()
    assert len(list((tmp_path / "l2" / "entry-logs").iterdir())) == 1


async def test_the_lists_are_recorded_and_older_versions_kept_out(places: Places) -> None:
    async with opened(places.data_dir, places.config()) as (_, store):
        record = recorded_directories(store)
        assert record is not None
        assert (tuple(record.journals), tuple(record.ledgers)) == (places.journals, places.ledgers)
        stored = store.get(InstanceRecord.path)
        assert stored is not None
        assert decode(InstanceRecord, stored.value, "").format_version == 3


async def test_the_default_is_as_it_always_was(places: Places) -> None:
    await places.begin(Config())
    async with opened(places.data_dir, Config()) as (_, store):
        assert recorded_directories(store) is None
        stored = store.get(InstanceRecord.path)
        assert stored is not None
        assert decode(InstanceRecord, stored.value, "").format_version == 3
    names = {path.name for path in places.data_dir.iterdir()}
    assert names == {"bookie", "index", "lock", "metadata"}
    assert {path.name for path in (places.data_dir / "bookie").iterdir()} == {
        "cookie",
        "entry-logs",
        "journal",
        "lock",
    }
    await places.check(Config(journal_directories=(str(places.data_dir / "bookie"),)))


async def test_a_changed_list_is_refused(places: Places, tmp_path: Path) -> None:
    await places.begin()
    one, two = places.journals
    for key, changed in (
        ("journal_directories", (two, one)),
        ("journal_directories", (one,)),
        ("ledger_directories", (*places.ledgers, str(tmp_path / "l4"))),
        ("ledger_directories", ()),
    ):
        text = await raised(places, places.config(**{key: changed}))
        name = "journalDirectories" if key == "journal_directories" else "ledgerDirectories"
        assert re.match(rf"{name} has changed: since the first start it is \[", text)
    assert not (tmp_path / "l4").exists()
    await places.check()


async def test_directories_are_not_added_to_a_data_directory_that_is_in_use(places: Places) -> None:
    await places.begin(Config())
    text = await raised(places, places.config())
    assert "it is [bookie, in the data directory], now it is [" in text
    assert "leave journalDirectories out" in text
    await places.check(Config())


async def test_a_missing_directory_is_refused(places: Places, tmp_path: Path) -> None:
    await places.begin()
    (tmp_path / "l2").rename(tmp_path / "away")
    assert f"{tmp_path}/l2: there is no cookie" in await raised(places, places.config())
    (tmp_path / "away").rename(tmp_path / "l2")
    await places.check()


async def test_a_directory_of_another_instance_is_refused(places: Places, tmp_path: Path) -> None:
    await places.begin()
    other = Places(tmp_path)
    other.data_dir = tmp_path / "data2"
    assert "belongs to another instance" in await raised(other, other.config())
    shutil.rmtree(other.data_dir)
    await places.check()


async def test_a_first_start_that_was_refused_may_choose_again(places: Places, tmp_path: Path) -> None:
    (tmp_path / "l3").mkdir()
    (tmp_path / "l3" / "something").touch()
    assert "must be empty" in await raised(places, places.config())
    (tmp_path / "l3" / "something").unlink()
    await places.begin()
    await places.check()


def test_lists_are_read_from_keys_of_bookkeeper() -> None:
    given = [
        Property("journalDirectories", " /a , /b,", "--set"),
        Property("ledgerDirectories", "/c", "--set"),
    ]
    config = load(environment={}, flags=given).config
    assert (config.journal_directories, config.ledger_directories) == (("/a", "/b"), ("/c",))
    assert Config().journal_directories == ()


def test_the_old_key_for_a_journal_directory_is_taken() -> None:
    old, new = (
        Property(f"journalDirector{ending}", path, "--set") for ending, path in (("y", "/o"), ("ies", "/n"))
    )
    assert load(environment={}, flags=[old]).config.journal_directories == ("/o",)
    assert load(environment={"journalDirectory": "/o"}).config.journal_directories == ("/o",)
    for flags in ([old, new], [new, old]):
        assert load(environment={}, flags=flags).config.journal_directories == ("/n",)


async def test_a_first_start_that_ends_anywhere_is_begun_again(
    places: Places, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instance is recorded before its directories are claimed, and these before their lists are."""
    calls, failing = 0, 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == failing:
                raise StorageError("the power is gone")
            return real(*arguments)

        return call

    for method in ("make_directory", "replace_file", "lock"):
        monkeypatch.setattr(RealDisk, method, counted(getattr(RealDisk, method)))
    monkeypatch.setattr(bookie_opening, "record_directories", counted(bookie_opening.record_directories))
    started = False
    while not started:
        calls, failing = 0, failing + 1
        with contextlib.suppress(StorageError, ExceptionGroup):
            await places.begin()
            started = True
        assert started or calls >= failing
    assert failing > 15
    monkeypatch.undo()
    await places.check()


@pytest.mark.parametrize("emptied", [False, True])
@pytest.mark.parametrize("name", ["bookie", "index"])
async def test_a_default_directory_that_is_gone_is_refused(places: Places, name: str, emptied: bool) -> None:
    await places.begin(Config())
    away = places.data_dir / "away"
    (places.data_dir / name).rename(away)
    if emptied:  # a mount point whose disk is not mounted
        (places.data_dir / name).mkdir()
    text = await raised(places, Config())
    assert text.startswith(f"{places.data_dir}/{name}: the metadata knows ledgers, but ")
    assert "Put it back" in text
    if emptied:
        (places.data_dir / name).rmdir()
    assert sorted(path.name for path in places.data_dir.iterdir()) == sorted(
        {"lock", "metadata", "away", "bookie", "index"} - {name}
    ), "a refused start makes nothing"
    away.rename(places.data_dir / name)
    await places.check(Config())


async def test_the_commands_in_its_advice_can_be_pasted(places: Places) -> None:
    places.data_dir = places.data_dir / "my data"
    await places.begin(Config())
    (places.data_dir / "index").rename(places.data_dir / "away")
    command = f"'geminga bookie rebuild-index --data-dir '{places.data_dir}'' "
    assert command in await raised(places, Config())
    (places.data_dir / "away").rename(places.data_dir / "index")
    async with opened(places.data_dir, Config()) as (bookie, _):
        text = aside_text(RealDisk(), str(places.data_dir), DirectoryLists(), bookie, [1])
        assert f"'geminga bookie unrecorded restore --data-dir '{places.data_dir}'' " in text
        assert f"'geminga bookie unrecorded delete --all --data-dir '{places.data_dir}'' " in text
        await bookie.inventory.set_aside([1])
        [loss] = losses_of(bookie, str(places.data_dir), 0)
        assert f"'geminga bookie unrecorded list --data-dir '{places.data_dir}'' " in loss


async def test_the_default_directory_of_another_instance_is_refused(places: Places, tmp_path: Path) -> None:
    await places.begin(Config())
    other = Places(tmp_path)
    other.data_dir = tmp_path / "data2"
    await other.begin(Config())
    (places.data_dir / "bookie").rename(tmp_path / "away")
    shutil.copytree(other.data_dir / "bookie", places.data_dir / "bookie")
    assert "belongs to another instance" in await raised(places, Config())
    shutil.rmtree(places.data_dir / "bookie")
    (tmp_path / "away").rename(places.data_dir / "bookie")
    await places.check(Config())


async def test_a_default_directory_of_before_it_had_a_cookie_gets_one(places: Places) -> None:
    await places.begin(Config())
    cookie = places.data_dir / "bookie" / "cookie"
    written = cookie.read_bytes()
    cookie.unlink()
    await places.check(Config())
    assert cookie.read_bytes() == written


async def test_directories_that_are_gone_before_there_is_a_ledger_are_made(places: Places) -> None:
    async with opened(places.data_dir, Config()):
        pass
    shutil.rmtree(places.data_dir / "bookie")
    shutil.rmtree(places.data_dir / "index")
    await places.begin(Config())
    await places.check(Config())
