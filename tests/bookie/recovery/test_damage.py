"""Damage at rest: found, named, never served, and never taken for the torn end of a crash."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from geminga.bookie.entry_logs import reader as entry_logs
from geminga.bookie.journal.files import JournalFiles
from geminga.bookie.journal.headers import find_header
from geminga.bookie.journal.journal_format import FILE_HEADERS_BYTES_MAX, GROUP_HEADER, GROUP_MAGIC
from geminga.bookie.journal.scan import JournalScan, ScannedGroup
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.ledger_name import LedgerName
from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.running.bookie import Bookie
from geminga.errors import CorruptData
from simulation.bookie.world import TINY
from simulation.disk.sim_disk import SimDisk

World = Any
JOURNAL = "d/00000000000000000001.journal"
SETTINGS = BookieSettings(
    journal_file_bytes=1 << 16, journal_allocate_bytes=1 << 14, journal_alignment_bytes=512
)


def written(groups: list[list[tuple[int, int, list[bytes]]]], *, garbage: bytes = b"") -> SimDisk:
    """A disk with one journal of these groups, over a file that held `garbage`."""
    disk = SimDisk()
    disk.make_directory("d")
    if garbage:
        disk.create("d/old").append(garbage)
    files = JournalFiles(
        disk,
        "d",
        SETTINGS,
        journal_id=1,
        previous=JournalPosition(0, 0),
        free=["d/old"] if garbage else [],
    )
    for batches in groups:
        files.write(batches)
    return disk


def scan(disk: SimDisk, synced_end: int | None = None) -> tuple[list[ScannedGroup], JournalScan]:
    file = disk.open(JOURNAL)
    header = find_header(file, 1).header
    assert header is not None
    found = JournalScan(file, header, synced_end=synced_end)
    return list(found.groups(0)), found


def contents(groups: list[ScannedGroup]) -> list[tuple[int, int, list[bytes]]]:
    return [(s.ledger_id, s.first, s.bodies(s.first, s.last)) for g in groups for s in g.segments]


ONE = [(7, 0, [b"a" * 100, b"b" * 100]), (8, 5, [b"c" * 10])]
TWO = [(7, 2, [b"d" * 300])]
THREE = [(8, 6, [b"e", b"", b"f" * 900]), (7, 3, [b"g"])]


def test_groups_come_back_as_written() -> None:
    groups, found = scan(written([ONE, TWO, THREE]))
    assert contents(groups) == [*ONE, *TWO, *THREE]
    assert (found.damages, found.torn_bytes) == ([], 0)


def test_an_old_journal_underneath_is_not_read() -> None:
    old = written([TWO, THREE, ONE, ONE, ONE]).read_file(JOURNAL)
    groups, found = scan(written([ONE], garbage=old))
    assert contents(groups) == ONE
    assert (found.damages, found.torn_bytes) == ([], 0)


def test_a_payload_that_looks_like_a_group_is_not_taken_for_one() -> None:
    disk = written([ONE])
    end = scan(disk)[0][-1].end
    forged = written([ONE, TWO]).read_file(JOURNAL)[end : end + 512]
    # In the body of an entry of a torn group, at the very offset where it claims to be.
    body = bytes(512 - GROUP_HEADER.size - 20 - 24) + forged[:512]
    disk = written([[(9, 0, [body])]])
    file = disk.open(JOURNAL)
    file.pwrite(FILE_HEADERS_BYTES_MAX, b"\0")
    groups, found = scan(disk)
    assert groups == []
    assert found.damages == []


def test_any_damage_with_a_group_behind_it_is_damage() -> None:
    clean = written([ONE, TWO, THREE])
    ends = [group.end for group in scan(clean)[0]]
    for seed in range(400):
        disk = written([ONE, TWO, THREE])
        chance = random.Random(seed)
        offset, bit = chance.randrange(FILE_HEADERS_BYTES_MAX, ends[1]), chance.randrange(8)
        disk.flip_bit(JOURNAL, offset, bit)
        groups, found = scan(disk)
        read = contents(groups)
        bodies = {(ledger, first + i): b for ledger, first, bodies in read for i, b in enumerate(bodies)}
        wanted = {
            (ledger, first + i): b
            for group in (ONE, TWO, THREE)
            for ledger, first, group_bodies in group
            for i, b in enumerate(group_bodies)
        }
        assert bodies.items() <= wanted.items(), "wrong bytes were read as right"
        assert contents(groups)[-2:] == THREE, "what follows the damage is read"
        lost = wanted.keys() - bodies.keys()
        if lost:
            (damage,) = found.damages
            assert damage.offset <= offset < damage.offset + damage.length
            named = {(run.ledger_id, run.first + i) for run in damage.lost for i in range(run.entries)}
            assert named in (lost, set()), "named entries are those that are lost"
        else:
            assert found.damages == [], "padding"


def test_any_damage_in_the_last_group_is_a_torn_end() -> None:
    start, end = (group.end for group in scan(written([ONE, TWO, THREE]))[0][1:])
    for seed in range(200):
        disk = written([ONE, TWO, THREE])
        chance = random.Random(seed)
        disk.flip_bit(JOURNAL, chance.randrange(start, end), chance.randrange(8))
        groups, found = scan(disk)
        assert found.damages == []
        assert contents(groups)[:3] == [*ONE, *TWO]
        for ledger, first, bodies in contents(groups)[3:]:
            whole = {ledger_id: (f, b) for ledger_id, f, b in THREE}[ledger]
            assert first == whole[0]
            assert bodies == whole[1][: len(bodies)], "a beginning of the run, or nothing"


def test_a_last_group_that_another_journal_vouches_for_is_damage() -> None:
    disk = written([ONE, TWO])
    ends = [group.end for group in scan(disk)[0]]
    disk.flip_bit(JOURNAL, ends[0] + 3, 0)
    groups, found = scan(disk, synced_end=ends[1])
    assert contents(groups) == ONE
    (damage,) = found.damages
    assert (damage.offset, damage.length) == (ends[0], ends[1] - ends[0])
    assert re.fullmatch(r"d/0+1\.journal: \d+ bytes at offset \d+ are damaged", str(damage))


def test_every_cut_of_a_journal_reads_as_a_beginning() -> None:
    whole = written([ONE, TWO, THREE])
    wanted = [*ONE, *TWO, *THREE]
    end = scan(whole)[0][-1].end
    for length in range(FILE_HEADERS_BYTES_MAX, end, 37):
        disk = written([ONE, TWO, THREE])
        disk.open(JOURNAL).truncate(length)
        groups, found = scan(disk)
        assert found.damages == []
        complete = [group.segments for group in groups]
        read = contents(groups)
        for got, expected in zip(read, wanted, strict=False):
            assert got[:2] == expected[:2]
            assert got[2] == expected[2][: len(got[2])]
        assert len(complete) <= 3


def test_a_file_that_ends_inside_its_last_group_gives_what_is_left_of_it() -> None:
    whole = written([ONE, TWO])
    first_end, end = (group.end for group in scan(whole)[0])
    group = [(7, 2, [b"x" * 100, b"y" * 100, b"z" * 100]), (8, 6, [b"w"])]
    disk = written([ONE, group])
    # Head, one run each, two records of ledger 7 and a part of the third.
    head = GROUP_HEADER.size + 2 * 20
    disk.open(JOURNAL).truncate(first_end + head + 2 * (100 + 24) + 50)
    groups, found = scan(disk)
    assert contents(groups) == [*ONE, (7, 2, [b"x" * 100, b"y" * 100])]
    assert found.damages == []
    assert found.torn_bytes == end - first_end
    # The next journal says that it was synced: then what is gone is named.
    groups, found = scan(disk, synced_end=end)
    assert contents(groups) == [*ONE, (7, 2, [b"x" * 100, b"y" * 100])]
    (damage,) = found.damages
    assert [(run.ledger_id, run.first, run.entries) for run in damage.lost] == [(7, 4, 1), (8, 6, 1)]


NAME = LedgerName("data", "/managed-ledgers/t/n/persistent/orders")
BEGIN = (9, 0, [b"first", b"second"])


def with_name(*, followed: bool) -> tuple[SimDisk, int]:
    """A journal with a ledger's beginning, and where the name stands in it."""
    disk = SimDisk()
    disk.make_directory("d")
    files = JournalFiles(disk, "d", SETTINGS, journal_id=1, previous=JournalPosition(0, 0), free=[])
    files.write([BEGIN], [(9, NAME)])
    if followed:
        files.write(TWO)
    return disk, disk.read_file(JOURNAL).index(NAME.topic.encode())


@pytest.mark.parametrize("followed", [False, True])
def test_a_damaged_name_costs_no_entry(followed: bool) -> None:
    disk, at = with_name(followed=followed)
    groups, found = scan(disk)
    wanted = [BEGIN, *TWO] if followed else [BEGIN]
    assert (contents(groups), groups[0].names, found.damages) == (wanted, {9: NAME}, [])
    disk.flip_bit(JOURNAL, at, 0)
    groups, found = scan(disk)
    assert (contents(groups), groups[0].names) == (wanted, {})
    assert [damage.lost for damage in found.damages] == ([()] if followed else [])
    assert (found.torn_bytes > 0) == (not followed)


def test_a_length_that_no_file_has_is_not_believed() -> None:
    end = scan(written([ONE]))[0][-1].end
    for records_bytes, runs in ((2**32 - 1, 1), (24, 2**32 - 1)):
        disk = written([ONE])
        head = GROUP_HEADER.pack(GROUP_MAGIC, 1, end, end, records_bytes, runs, 0)
        disk.open(JOURNAL).pwrite(end, head)
        groups, found = scan(disk)
        assert contents(groups) == ONE
        assert found.damages == []


# ---- a whole bookie


def damaged_world(new_world: Callable[..., World]) -> World:
    """Twenty entries of one ledger in as many groups, a second ledger behind them, nothing flushed; power
    off.
    """
    world = new_world(settings=replace(TINY, write_cache_bytes=100_000))

    async def fill() -> None:
        async with world.running(close=False) as bookie:
            world.create(bookie, 1)
            for _ in range(20):
                await world.add(bookie, 1)
            world.create(bookie, 2)
            await world.add(bookie, 2, count=2)

    trio.run(fill)
    world.crash("drop")
    return world


def find(world: World, text: bytes) -> tuple[str, int]:
    """The journal that holds an entry, and where."""
    for name in world.disk.list("data/journal"):
        at = world.disk.read_file(f"data/journal/{name}").find(text)
        if at >= 0:
            return f"data/journal/{name}", at
    raise AssertionError(text)


def test_a_bookie_starts_with_a_damaged_journal_and_names_what_is_lost(
    new_world: Callable[..., World],
) -> None:
    world = damaged_world(new_world)
    path, offset = find(world, b"1:11:")
    world.disk.flip_bit(path, offset + 30, 2)

    async def look() -> None:
        for start in range(2):
            async with world.running() as bookie:
                if start == 0:
                    (damage,) = bookie.recovery.damages
                    assert damage.path == path
                    assert damage.offset <= offset < damage.offset + damage.length
                    assert bookie.recovery.entries_lost == 1
                assert bookie.last_entry_id(1) == 19
                assert await bookie.read(1, 5, 19, bytes_max=10_000) != []
                await expect(bookie, 1, world.ledgers[1].bodies, lost={11: f"{path}: "})
                await expect(bookie, 2, world.ledgers[2].bodies, lost={})

    trio.run(look)


def test_the_last_entries_of_a_ledger_are_not_forgotten_when_damaged(new_world: Callable[..., World]) -> None:
    world = damaged_world(new_world)
    path, offset = find(world, b"1:19:")
    world.disk.flip_bit(path, offset, 0)

    async def look() -> None:
        async with world.running() as bookie:
            assert bookie.last_entry_id(1) == 19
            await expect(bookie, 1, world.ledgers[1].bodies, lost={19: path})

    trio.run(look)


async def expect(bookie: Bookie, ledger_id: int, bodies: list[bytes], lost: dict[int, str]) -> None:
    for entry_id, body in enumerate(bodies):
        found = await read_one(bookie, ledger_id, entry_id)
        if entry_id in lost:
            assert isinstance(found, str)
            assert found.startswith(f"entry {entry_id} of ledger {ledger_id} is lost: {lost[entry_id]}")
        else:
            assert found == body


async def read_one(bookie: Bookie, ledger_id: int, entry_id: int) -> bytes | str:
    """The entry, or what the error says."""
    try:
        (body,) = await bookie.read(ledger_id, entry_id, entry_id, bytes_max=1)
    except CorruptData as error:
        return str(error)
    return body


def flip_somewhere(new_world: Callable[..., World], seed: int) -> None:
    """One bit of one file, a clean stop before or not: never a wrong byte, never an entry gone without a
    word.
    """
    chance = random.Random(seed)
    world = new_world(seed)

    async def fill() -> None:
        async with world.running(close=chance.random() < 0.5) as bookie:
            for ledger_id in (1, 2):
                world.create(bookie, ledger_id)
            for _ in range(4):
                await world.add(bookie, 1, 2, count=2, size=chance.choice((10, 100, 700)))

    trio.run(fill)
    world.crash("keep")
    paths = [
        f"data/{room}/{name}"
        for room in ("journal", "entry-logs")
        for name in world.disk.list(f"data/{room}")
    ]
    path = chance.choice(paths)
    content = world.disk.read_file(path)
    world.disk.flip_bit(path, chance.randrange(len(content)), chance.randrange(8))

    async def look() -> None:
        async with world.running() as bookie:
            for ledger_id in (1, 2):
                bodies = world.ledgers[ledger_id].bodies
                last = bookie.last_entry_id(ledger_id)
                # The last group of a journal cannot be told from a torn one.
                assert last >= len(bodies) - 9
                for entry_id in range(last + 1):
                    found = await read_one(bookie, ledger_id, entry_id)
                    if isinstance(found, bytes):
                        assert found == bodies[entry_id]
                    else:
                        assert path in found or "damage" in found

    trio.run(look)


def flip_many(new_world: Callable[..., World]) -> None:
    for seed in range(150):
        flip_somewhere(new_world, seed)


def test_a_flipped_bit_is_harmless_or_named(new_world: Callable[..., World]) -> None:
    flip_many(new_world)


def test_the_flips_notice_when_checksums_are_not_looked_at(
    monkeypatch: pytest.MonkeyPatch, new_world: Callable[..., World]
) -> None:
    # A bad record that the journal's scan let through would still be refused by the read: only this one
    # matters.
    monkeypatch.setattr(entry_logs, "damaged_record", lambda segment: None)
    with pytest.raises(BaseExceptionGroup) as caught:
        flip_many(new_world)
    assert caught.value.split(AssertionError)[0] is not None
