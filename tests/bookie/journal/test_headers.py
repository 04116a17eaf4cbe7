"""A journal with a damaged header: read by the other copy, or by what its groups say; else named and kept."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from geminga.bookie.journal import headers as journal_headers
from geminga.bookie.journal import inventory as journal_inventory
from geminga.bookie.journal import journal_format
from geminga.bookie.journal.files import JournalFiles
from geminga.bookie.journal.headers import HeaderState, find_header
from geminga.bookie.journal.journal_format import (
    FILE_HEADER,
    FILE_HEADER_BYTES,
    FileHeader,
    encode_file_header,
    encode_group,
)
from geminga.bookie.journal.scan import JournalScan
from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.running.bookie import Bookie
from geminga.errors import CorruptData
from simulation.disk.sim_disk import SimDisk

World = Any
NewWorld = Callable[..., World]
Batches = list[tuple[int, int, list[bytes]]]
COPIES = (0, FILE_HEADER_BYTES)
ONE: Batches = [(7, 0, [b"a" * 100, b"b" * 100]), (8, 5, [b"c" * 10])]
TWO: Batches = [(7, 2, [b"d" * 900])]
THREE: Batches = [(8, 6, [b"e", b"", b"f" * 3000]), (7, 3, [b"g"])]


# ---- one file


def journal(disk: SimDisk, groups: list[Batches], *, alignment: int = 512, journal_id: int = 1) -> str:
    """A journal of these groups on the disk; its path."""
    disk.make_directory("d")
    settings = BookieSettings(journal_allocate_bytes=1 << 14, journal_alignment_bytes=alignment)
    files = JournalFiles(disk, "d", settings, journal_id=journal_id, previous=JournalPosition(9, 9), free=[])
    for batches in groups:
        files.write(batches)
    return f"d/{journal_id:020d}.journal"


def damage_headers(disk: SimDisk, path: str, seed: int = 0) -> None:
    """A bit of each copy."""
    chance = random.Random(seed)
    for start in COPIES:
        disk.flip_bit(path, start + chance.randrange(FILE_HEADER.size), chance.randrange(8))


def contents(disk: SimDisk, path: str, header: FileHeader) -> tuple[Batches, JournalScan]:
    scan = JournalScan(disk.open(path), header, synced_end=None)
    segments = [segment for group in scan.groups(0) for segment in group.segments]
    return [(s.ledger_id, s.first, s.bodies(s.first, s.last)) for s in segments], scan


@pytest.mark.parametrize("groups", [[ONE], [TWO, ONE], [ONE, TWO, THREE, ONE]])
@pytest.mark.parametrize(
    ("alignment", "likely"),
    [(512, 512), (512, 4096), (1024, 4096), (4096, 4096), (4096, 12288), (12288, 12288)],
)
def test_groups_alone_say_how_to_read_them(groups: list[Batches], alignment: int, likely: int) -> None:
    for seed in range(20):
        disk = SimDisk()
        path = journal(disk, groups, alignment=alignment)
        before = find_header(disk.open(path), 1)
        assert before.state is HeaderState.WHOLE
        assert before.header is not None
        damage_headers(disk, path, seed)
        after = find_header(disk.open(path), 1, alignment=likely)
        assert after.state is HeaderState.REBUILT
        assert after.header is not None
        assert after.header.first_group == before.header.first_group
        read, scan = contents(disk, path, after.header)
        assert read == [batch for group in groups for batch in group]
        assert scan.damages == []
        # The salt has the same effect: other salts than this one still fail.
        wrong = after.header._replace(salt=after.header.salt ^ 1 << seed)
        assert contents(disk, path, wrong)[0] == []


def test_a_file_of_version_1_is_read_and_needs_no_second_copy() -> None:
    disk = SimDisk()
    disk.make_directory("d")
    header = FileHeader(1, 0x1122334455667788, 512, 0, 0, version=1)
    group, _ = encode_group(header, 512, 512, ONE)
    file = disk.create("d/1")
    file.append(encode_file_header(header) + group)
    file.sync()
    assert find_header(file, 1) == (header, HeaderState.WHOLE)
    assert contents(disk, "d/1", header)[0] == ONE
    disk.flip_bit("d/1", 20, 3)
    found = find_header(file, 1)
    assert found.state is HeaderState.REBUILT
    assert found.header is not None
    assert found.header.first_group == 512
    assert contents(disk, "d/1", found.header)[0] == ONE


def test_the_alignment_is_not_taken_from_what_only_looks_like_a_group() -> None:
    disk = SimDisk()
    path = journal(disk, [ONE, TWO], alignment=4096)
    forged, _ = encode_group(FileHeader(1, 0, 512, 0, 0), 13 * 512, 13 * 512, ONE)
    disk.open(path).pwrite(13 * 512, forged)
    damage_headers(disk, path)
    found = find_header(disk.open(path), 1)
    assert found.header is not None
    assert found.header.alignment == 4096


def test_payloads_of_an_old_journal_are_not_taken_for_the_new_one() -> None:
    """Somebody published what looks like a group of the journal to come. Then the power went while the file
    was made ready for that one.
    """
    old = FileHeader(1, 0x1122334455667788, 512, 0, 0)
    new = FileHeader(2, 0, 512, 0, 0)
    stolen, _ = encode_group(new, 2048, 2048, [(99, 0, [b"never published"])])
    body = bytes(2048 - 1024 - 40 - 20 - 24) + stolen
    group, _ = encode_group(old, 1024, 1024, [(7, 0, [body])])
    assert group.find(stolen) == 1024, "at the offset that it names"
    torn = bytearray(encode_file_header(FileHeader(2, 5, 512, 0, 0)))
    for headers, state in (
        (encode_file_header(old), HeaderState.UNUSED),
        (bytes(torn[:30]) + encode_file_header(old)[30:], HeaderState.UNUSED),
        (bytes(1024), HeaderState.UNREADABLE),
    ):
        disk = SimDisk()
        disk.make_directory("d")
        disk.create("d/2").append(headers + group)
        assert find_header(disk.open("d/2"), 2) == (None, state)
        # As the old one it is right, if it was renamed in vain.
        assert find_header(disk.open("d/2"), 1).state is not HeaderState.UNUSED


def test_a_file_that_was_only_made_ready_holds_nothing() -> None:
    whole = encode_file_header(FileHeader(3, 5, 512, 2, 4096))
    for content in (b"", bytes(4096), whole[:30].ljust(4096, b"\0"), b"\0" * 512 + whole[512:540]):
        disk = SimDisk()
        disk.make_directory("d")
        disk.create("d/3").append(content)
        assert find_header(disk.open("d/3"), 3) == (None, HeaderState.UNUSED)
    for content in (whole, whole[:30].ljust(512, b"\0") + whole[512:], whole[:600]):
        disk = SimDisk()
        disk.make_directory("d")
        disk.create("d/3").append(content)
        header, state = find_header(disk.open("d/3"), 3)
        assert header is not None
        assert state is HeaderState.WHOLE, "torn before there was a group is not damaged"


# ---- a whole bookie


def left_by_a_crash(new_world: NewWorld, *, groups: int = 20) -> tuple[World, list[str]]:
    """Entries of ledger 1 in as many groups, none flushed, power off; and the journals, oldest first."""
    world = new_world()
    world.settings = replace(world.settings, write_cache_bytes=1 << 20)

    async def fill() -> None:
        async with world.running(close=False) as bookie:
            world.create(bookie, 1)
            for _ in range(groups):
                await world.add(bookie, 1, count=2)

    trio.run(fill)
    world.crash("drop")
    paths = [f"data/journal/{name}" for name in world.disk.list("data/journal")]
    held = [path for path in paths if b"1:" in world.disk.read_file(path)]
    return world, held


def look(world: World) -> tuple[Any, dict[int, str]]:
    """A start: its report, and what the errors say of entries of ledger 1 that cannot be read. All others are
    right.
    """

    async def start() -> tuple[Any, dict[int, str]]:
        async with world.running() as bookie:
            return bookie.recovery, await unreadable(bookie)

    async def unreadable(bookie: Bookie) -> dict[int, str]:
        bodies, errors = world.ledgers[1].bodies, {}
        for entry_id, body in enumerate(bodies[: bookie.last_entry_id(1) + 1]):
            try:
                assert await bookie.read(1, entry_id, entry_id, bytes_max=1) == [body]
            except CorruptData as error:
                errors[entry_id] = str(error)
        return errors | dict.fromkeys(range(bookie.last_entry_id(1) + 1, len(bodies)), "gone")

    found: tuple[Any, dict[int, str]] = trio.run(start)
    return found


def wipe(world: World, path: str) -> None:
    file = world.disk.open(path)
    file.pwrite(0, bytes(file.size()))
    file.sync()


@pytest.mark.parametrize("which", ["newest", "older"])
def test_any_damage_to_one_copy_of_a_header_takes_nothing(new_world: NewWorld, which: str) -> None:
    for at in range(FILE_HEADER.size):
        world, journals = left_by_a_crash(new_world, groups=12)
        assert len(journals) > 1
        path = journals[-1] if which == "newest" else journals[0]
        world.disk.flip_bit(path, at, at % 8)
        report, errors = look(world)
        assert (errors, report.damages) == ({}, ())
        assert report.headers_restored == (path,)
        assert look(world)[1] == {}


@pytest.mark.parametrize("which", [0, 1, -1])
def test_damage_to_both_copies_takes_nothing_while_the_groups_are_whole(
    new_world: NewWorld, which: int
) -> None:
    for seed in range(25):
        world, journals = left_by_a_crash(new_world)
        damage_headers(world.disk, journals[which], seed)
        report, errors = look(world)
        assert (errors, report.damages, report.headers_restored) == ({}, (), (journals[which],))
        report, errors = look(world)
        assert errors == {}
        assert report.headers_restored == ()
        assert not world.disk.exists(journals[which]), "all of it is elsewhere: it may be written over"


def test_what_is_damaged_besides_both_headers_is_named_and_the_file_kept(new_world: NewWorld) -> None:
    world, journals = left_by_a_crash(new_world)
    path = journals[0]
    damage_headers(world.disk, path)
    at = world.disk.read_file(path).find(b"1:3:")
    world.disk.flip_bit(path, at, 1)
    kept = world.disk.read_file(path)
    for start in range(3):
        report, errors = look(world)
        assert errors.keys() == {3}
        assert errors[3].startswith(f"entry 3 of ledger 1 is lost: {path}: ")
        assert [damage.path for damage in report.damages] == ([path] if start == 0 else [])
        assert world.disk.read_file(path) == kept


@pytest.mark.parametrize("at", [0, 40, 100])
def test_a_journal_before_one_whose_header_is_gone_was_synced_to_its_end(
    new_world: NewWorld, at: int
) -> None:
    """The last group of the older one: only the next one's header says that it was promised."""
    world, journals = left_by_a_crash(new_world)
    last = [offset for _, offset in journal_headers.stated_groups(world.disk.open(journals[0]))][-1]
    world.disk.flip_bit(journals[0], last + at, 1)
    damage_headers(world.disk, journals[1])
    report, errors = look(world)
    (damage,) = report.damages
    assert (damage.path, damage.offset) == (journals[0], last)
    assert report.headers_restored == (journals[1],)
    assert errors
    assert "gone" not in errors.values()


@pytest.mark.parametrize("which", [0, 1])
def test_a_group_that_is_gone_with_both_headers_leaves_no_silent_hole(
    new_world: NewWorld, which: int
) -> None:
    """The groups that are left would allow a coarser alignment, with which it would not be looked for."""
    world, (path,) = left_by_a_crash(new_world, groups=3)
    offsets = [offset for _, offset in journal_headers.stated_groups(world.disk.open(path))]
    assert offsets == [1024, 1536, 2048]
    damage_headers(world.disk, path)
    file = world.disk.open(path)
    file.pwrite(offsets[which], bytes(512))
    file.sync()
    report, errors = look(world)
    (damage,) = report.damages
    assert damage[:3] == (path, offsets[which], 512)
    assert errors.keys() == {2 * which, 2 * which + 1}


def test_a_journal_of_which_nothing_can_be_read_is_named_and_kept(new_world: NewWorld) -> None:
    world, journals = left_by_a_crash(new_world, groups=1)
    (path,) = journals
    damage_headers(world.disk, path)
    for body in (b"1:0:", b"1:1:"):
        world.disk.flip_bit(path, world.disk.read_file(path).find(body), 0)
    kept = world.disk.read_file(path)
    for start in range(3):
        report, errors = look(world)
        assert errors == {0: "gone", 1: "gone"}
        expected = [(path, 0, len(kept))] if start == 0 else []
        assert [damage[:3] for damage in report.damages] == expected
        assert world.disk.read_file(path) == kept


@pytest.mark.parametrize(("which", "how"), [(0, "wiped"), (1, "wiped"), (1, "missing")])
def test_a_journal_that_is_gone_is_missed(new_world: NewWorld, which: int, how: str) -> None:
    world, journals = left_by_a_crash(new_world)
    path = journals[which]
    if how == "wiped":
        wipe(world, path)
    else:
        world.disk.unlink(path)
        world.disk.sync_directory("data/journal")
    report, errors = look(world)
    (damage,) = report.damages
    assert (damage.path, damage.offset) == (path, 0)
    assert damage.length >= 4096
    assert errors, "entries of it are not served as something else"


def test_the_journal_of_the_mark_is_missed_too(new_world: NewWorld) -> None:
    world = new_world()

    async def fill() -> None:
        async with world.running(close=False) as bookie:
            world.create(bookie, 1)
            await world.add(bookie, 1, count=2)
            await bookie.flush()
            await world.add(bookie, 1, count=2)

    trio.run(fill)
    world.crash("drop")
    path = f"data/journal/{world.disk.list('data/journal')[-1]}"
    wipe(world, path)
    report, errors = look(world)
    assert [damage.path for damage in report.damages] == [path]
    assert errors == {2: "gone", 3: "gone"}


@pytest.mark.parametrize("how", ["wiped", "missing"])
def test_the_first_journal_of_a_run_is_missed_though_nothing_was_flushed(
    new_world: NewWorld, how: str
) -> None:
    world, (path,) = left_by_a_crash(new_world, groups=1)
    if how == "wiped":
        wipe(world, path)
    else:
        world.disk.unlink(path)
        world.disk.sync_directory("data/journal")
    report, errors = look(world)
    assert [damage.path for damage in report.damages] == [path]
    assert errors == {0: "gone", 1: "gone"}


def no_second_copy(patch: pytest.MonkeyPatch) -> None:
    real = journal_format.decode_file_header
    patch.setattr(
        journal_headers,
        "decode_file_header",
        lambda data: real(data) if len(data) > FILE_HEADER_BYTES else None,
    )


def no_rebuilding(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journal_headers, "_rebuild", lambda *_: None)


def nothing_missed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(journal_inventory.JournalInventory, "damages", lambda self, mark: [])


@pytest.mark.parametrize("plant", [no_second_copy, no_rebuilding, nothing_missed])
def test_a_planted_bug_is_caught(
    monkeypatch: pytest.MonkeyPatch, new_world: NewWorld, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, ValueError)):
        all_of_them(new_world)


def all_of_them(new_world: NewWorld) -> None:
    test_any_damage_to_one_copy_of_a_header_takes_nothing(new_world, "older")
    test_damage_to_both_copies_takes_nothing_while_the_groups_are_whole(new_world, 0)
    test_a_journal_that_is_gone_is_missed(new_world, 1, "wiped")
