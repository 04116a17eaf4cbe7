"""A damaged index is made anew from what stands beside it, and says the same as before: for each file of its
database, lost, cut short or with a flipped bit, and each moment at which that may be noticed.
"""

from __future__ import annotations

import functools
import random
import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from geminga.bookie.index import database as index_database
from geminga.bookie.index.database import IndexDatabase, opened_with
from geminga.bookie.index.index_format import FENCED, Usage
from geminga.bookie.index.ledger_index import LedgerIndex
from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.recovery.recovery import RecoveryReport
from geminga.bookie.running.bookie import Bookie
from geminga.errors import CorruptData, StorageError
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import RocksKeyValue

DELETED = {2, 3, 4, 5}
SETTINGS = BookieSettings(
    journal_file_bytes=64 * 1024,
    journal_allocate_bytes=64 * 1024,
    write_cache_bytes=1 << 20,
    entry_log_bytes=16 * 1024,
    row_entries_max=2,
    compaction_rate_bytes_per_s=0,
)


class Map(NamedTuple):
    """All that an index says."""

    places: dict[tuple[int, int], tuple[int, int, int]]
    """By ledger and entry: log, offset, length. Rows may be cut differently."""
    usage: dict[int, dict[int, Usage]]
    fenced: set[int]

    @property
    def lengths(self) -> dict[tuple[int, int], int]:
        return {entry: length for entry, (_, _, length) in self.places.items()}


def whole_map(values: IndexDatabase) -> Map:
    index = LedgerIndex(values)
    index.load()
    places = {}
    for ledger_id in index.ledgers():
        for row in index.rows(ledger_id):
            begin = 0
            for entry_id, end in enumerate(row.ends, row.first):
                assert (ledger_id, entry_id) not in places
                places[ledger_id, entry_id] = row.log_id, row.offset + begin, end - begin
                begin = end
    fenced = {ledger_id for ledger_id, state in index.states.items() if state.kind == FENCED}
    return Map(places, {log: ledgers for log, ledgers in index.usage.items() if ledgers}, fenced)


@asynccontextmanager
async def running(path: Path, *, close: bool = True) -> AsyncIterator[tuple[Bookie, IndexDatabase]]:
    disk = RealDisk()
    values = IndexDatabase(disk, f"{path}/index")
    try:
        bookie = await opened_with(
            disk, [values], lambda: Bookie.open(disk, values, f"{path}/bookie", SETTINGS)
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(bookie.run)
            yield bookie, values
            if close:
                await bookie.close()
            nursery.cancel_scope.cancel()
    finally:
        values.close()


async def fill(bookie: Bookie, ledger_ids: Sequence[int], *, rounds: int, size: int) -> None:
    durable = dict.fromkeys(ledger_ids, -1)
    done = trio.Event()

    def on_durable(ledger_id: int, last: int) -> None:
        durable[ledger_id] = last
        if all(last == rounds - 1 for last in durable.values()):
            done.set()

    def on_failed(error: StorageError) -> None:
        raise AssertionError(error)

    writers = [
        bookie.create_ledger(
            ledger_id,
            on_durable=lambda last, ledger_id=ledger_id: on_durable(ledger_id, last),
            on_failed=on_failed,
        )
        for ledger_id in ledger_ids
    ]
    for number in range(rounds):
        for ledger_id, writer in zip(ledger_ids, writers, strict=True):
            writer.append(f"{ledger_id}/{number}/".encode().ljust(size + number % 3, b"."))
    await done.wait()


class Golden(NamedTuple):
    path: Path
    expected: Map


async def _make(directory: Path) -> dict[str, Golden]:
    live = directory / "live"
    (live / "index").mkdir(parents=True)
    for start in range(3):
        async with running(live) as (bookie, _):
            first = 1 + 10 * start
            await fill(bookie, range(first, first + 6), rounds=80, size=20)
            await bookie.flush()
            await bookie.fence(first)
            if start == 1:
                for ledger_id in DELETED:
                    await bookie.delete_ledger(ledger_id)
                await bookie.flush()
                await bookie.compact(0.9)
    shutil.copytree(live, directory / "closed")
    async with running(live, close=False) as (bookie, _):
        await fill(bookie, [41, 42], rounds=20, size=150)
        await bookie.flush()
        await fill(bookie, [43, 44], rounds=9, size=100)
        await bookie.fence(43)
        shutil.copytree(live, directory / "killed")
    found = {}
    for name in ("closed", "killed"):
        shutil.copytree(directory / name, directory / "read")
        async with running(directory / "read", close=False) as (bookie, values):
            assert not bookie.recovery.index_rebuilt
            found[name] = Golden(directory / name, whole_map(values))
        shutil.rmtree(directory / "read")
    assert found["closed"].expected.fenced == {1, 11, 21}
    assert len(found["closed"].expected.usage) >= 3
    assert len(found["killed"].expected.places) == len(found["closed"].expected.places) + 58
    return found


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Golden]:
    made: dict[str, Golden] = trio.run(_make, tmp_path_factory.mktemp("golden"))
    return made


class Start(NamedTuple):
    report: RecoveryReport
    map: Map
    starts: int
    """2 if the first one met the damage only when it was read."""


async def read_all(bookie: Bookie, ledger_id: int) -> None:
    last = bookie.last_entry_id(ledger_id)
    bodies: list[bytes] = []
    while len(bodies) <= last:
        bodies += await bookie.read(ledger_id, len(bodies), last, bytes_max=1 << 20)
    for number, body in enumerate(bodies):
        assert body.startswith(f"{ledger_id}/{number}/".encode())


async def drop_unrecorded(bookie: Bookie) -> None:
    """As a broker does at its start, whose metadata has no record of deleted ledgers: old journals may bring
    them back.
    """
    back = bookie.inventory.ledgers() & DELETED
    for ledger_id in back:
        await bookie.delete_ledger(ledger_id)
    if back:
        await bookie.flush()


async def start(path: Path) -> Start:
    """As a broker whose topics are all read."""
    async with running(path, close=False) as (bookie, values):
        try:
            await drop_unrecorded(bookie)
            found = whole_map(values)
            for ledger_id, entry_id in found.places:
                if not entry_id:
                    await read_all(bookie, ledger_id)
            return Start(bookie.recovery, found, 1)
        except CorruptData:
            with pytest.raises(StorageError, match="start again: the index is then rebuilt"):
                await values.run()
    assert (path / "index.damage").exists()
    async with running(path, close=False) as (bookie, values):
        assert bookie.recovery.index_rebuilt
        await drop_unrecorded(bookie)
        return Start(bookie.recovery, whole_map(values), 2)


def check(golden: Golden, path: Path, damage: Callable[[Path], None], *, older: bool = False) -> Start:
    """With `older` the damage may take the index back in time, like a torn log. What is newer comes from the
    journal then, and may find another place.
    """
    shutil.copytree(golden.path, path)
    damage(path / "index")
    found = trio.run(start, path)
    if older and not found.report.index_rebuilt:
        assert found.map.lengths == golden.expected.lengths
    else:
        assert found.map.places == golden.expected.places
        assert found.map.usage == golden.expected.usage
    assert found.report.logs_missing == ()
    assert found.report.damages == ()
    left = {name for name in ("index.damage", "index.new") if (path / name).exists()}
    assert left == set()
    assert (path / "index.damaged").exists() == ("damaged" in found.report.index_rebuilt)
    # Once more: nothing is left to do, and the map stays.
    again = trio.run(start, path)
    assert not again.report.index_rebuilt
    assert again.map == found.map
    shutil.rmtree(path)
    return found


def check_all(
    golden: Golden, place: Path, damages: Sequence[Callable[[Path], None]], *, older: bool = False
) -> list[Start]:
    """`check` of each, side by side: RocksDB sleeps for a second when it closes a database with an error."""
    with ThreadPoolExecutor(max(1, len(damages))) as pool:
        return list(
            pool.map(
                lambda number: check(golden, place / str(number), damages[number], older=older),
                range(len(damages)),
            )
        )


def flips(golden: Golden, pattern: str, count: int) -> list[tuple[str, int]]:
    places = []
    for file in sorted((golden.path / "index").glob(pattern)):
        size = file.stat().st_size
        chance = random.Random(f"{pattern} {size}")
        places += [(file.name, chance.randrange(size)) for _ in range(count) if size]
    return places


@pytest.mark.parametrize("kind", ["closed", "killed"])
@pytest.mark.parametrize(
    ("pattern", "count"), [("*.sst", 2), ("*.log", 8), ("MANIFEST-*", 6), ("CURRENT", 2)]
)
def test_a_flipped_bit(
    golden: dict[str, Golden], tmp_path: Path, kind: str, pattern: str, count: int
) -> None:
    places = flips(golden[kind], pattern, count)

    def flip(index: Path, name: str, offset: int) -> None:
        content = bytearray((index / name).read_bytes())
        content[offset] ^= 1 << offset % 8
        (index / name).write_bytes(content)

    damages = [functools.partial(flip, name=name, offset=offset) for name, offset in places]
    rebuilt = sum(bool(found.report.index_rebuilt) for found in check_all(golden[kind], tmp_path, damages))
    assert rebuilt >= len(places) // 2, "most of the damage was not even noticed"


@pytest.mark.parametrize("kind", ["closed", "killed"])
@pytest.mark.parametrize("pattern", ["*.sst", "*.log", "MANIFEST-*", "CURRENT", "*"])
def test_a_lost_or_cut_file(golden: dict[str, Golden], tmp_path: Path, kind: str, pattern: str) -> None:
    names = sorted(file.name for file in (golden[kind].path / "index").glob(pattern) if file.name != "LOCK")
    choices = [names]
    if pattern != "*" and len(names) > 1:
        choices.append(names[:1])

    def cut(index: Path, chosen: Sequence[str], left: float | None) -> None:
        for name in chosen:
            file = index / name
            if left is None:
                file.unlink()
            else:
                content = file.read_bytes()
                file.write_bytes(content[: int(len(content) * left)])

    damages = [
        functools.partial(cut, chosen=chosen, left=left) for chosen in choices for left in (None, 0, 0.5)
    ]
    check_all(golden[kind], tmp_path, damages, older=pattern == "*.log")


def test_a_database_that_is_gone(golden: dict[str, Golden], tmp_path: Path) -> None:
    found = check(golden["killed"], tmp_path / "data", shutil.rmtree)
    assert found.report.index_rebuilt == "it was lost"


def damaged_rows(index: Path) -> None:
    """All blocks of rows, so that it opens and cannot be read."""
    for file in index.glob("*.sst"):
        content = bytearray(file.read_bytes())
        content[100] ^= 4
        file.write_bytes(content)


def test_damage_that_is_met_later_ends_the_process_and_is_mended_by_the_next(
    golden: dict[str, Golden], tmp_path: Path
) -> None:
    found = check(golden["closed"], tmp_path / "data", damaged_rows)
    assert found.starts == 2
    assert "damaged, cannot" in found.report.index_rebuilt
    assert found.map.fenced == golden["closed"].expected.fenced


async def test_run_tells_of_damage_while_it_waits(golden: dict[str, Golden], tmp_path: Path) -> None:
    shutil.copytree(golden["closed"].path, tmp_path / "data")
    damaged_rows(tmp_path / "data" / "index")
    ended: list[StorageError] = []

    async def watch(values: IndexDatabase, task_status: trio.TaskStatus[None]) -> None:
        try:
            await values.run(task_status)
        except StorageError as error:
            ended.append(error)

    async with running(tmp_path / "data", close=False) as (bookie, values), trio.open_nursery() as nursery:
        await nursery.start(lambda task_status: watch(values, task_status))
        assert not ended
        with pytest.raises(CorruptData):
            await bookie.read(11, 0, 0, bytes_max=1)
    assert "start again: the index is then rebuilt" in str(ended[0])


def test_one_damaged_copy_is_kept(golden: dict[str, Golden], tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(golden["closed"].path, path)
    for number in range(2):
        (path / "index" / "CURRENT").write_text(f"damaged {number}\n")
        assert trio.run(start, path).map.places == golden["closed"].expected.places
        assert (path / "index.damaged" / "CURRENT").read_text() == f"damaged {number}\n"
    assert {name.name for name in path.iterdir()} == {"bookie", "index", "index.damaged"}


def test_an_empty_note_asks_for_a_new_index(golden: dict[str, Golden], tmp_path: Path) -> None:
    path = tmp_path / "data"
    shutil.copytree(golden["killed"].path, path)
    (path / "index.damage").touch()
    found = trio.run(start, path)
    assert found.report.index_rebuilt == f"{path}/index.damage asks for a new index"
    assert found.map == golden["killed"].expected


class Crash(BaseException):
    pass


class CrashingDisk(RealDisk):
    """Stops before its n-th change of a name."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Crash

    def rename(self, old: str, new: str) -> None:
        self._step()
        super().rename(old, new)

    def unlink(self, path: str) -> None:
        self._step()
        super().unlink(path)

    def make_directory(self, path: str) -> None:
        self._step()
        super().make_directory(path)

    def sync_directory(self, path: str) -> None:
        self._step()
        super().sync_directory(path)


@pytest.mark.parametrize("noted", [False, True])
def test_a_crash_at_any_step_of_the_replacement(
    golden: dict[str, Golden], tmp_path: Path, noted: bool
) -> None:
    at, ended = 0, False
    while not ended:
        path = tmp_path / str(at)
        shutil.copytree(golden["closed"].path, path)
        if noted:
            (path / "index.damage").write_text("noted by the test")
        else:
            (path / "index" / "CURRENT").write_text("damaged\n")
        try:
            IndexDatabase(CrashingDisk(at), f"{path}/index").close()
            ended = True
        except Crash:
            pass
        found = trio.run(start, path)
        assert found.map.places == golden["closed"].expected.places
        assert ("noted by the test" if noted else "CURRENT") in found.report.index_rebuilt
        if noted:
            assert found.map.fenced == golden["closed"].expected.fenced
        assert len(list((path / "index.damaged").glob("*.sst"))) > 1, "the damaged one is not kept"
        assert not (path / "index.damage").exists()
        at += 1
    assert at > 6


def test_a_database_in_use_is_not_taken_for_a_damaged_one(golden: dict[str, Golden], tmp_path: Path) -> None:
    shutil.copytree(golden["closed"].path, tmp_path / "data")
    path = f"{tmp_path}/data/index"
    holder = RocksKeyValue(path)
    with pytest.raises(StorageError, match="in use"):
        IndexDatabase(RealDisk(), path)
    holder.close()
    assert not Path(path + ".damaged").exists()


def test_a_note_that_is_not_read_is_caught(
    golden: dict[str, Golden], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: damage met by a read is not remembered."""
    monkeypatch.setattr(index_database.IndexDatabase, "_note", lambda self, error: None)
    shutil.copytree(golden["closed"].path, tmp_path / "data")
    damaged_rows(tmp_path / "data" / "index")

    async def bounded() -> None:
        with trio.fail_after(0.2):
            await start(tmp_path / "data")

    with pytest.raises(trio.TooSlowError):
        trio.run(bounded)
