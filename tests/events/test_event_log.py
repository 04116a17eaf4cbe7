"""The ring of events: numbers, order, bounds, and what the files keep over restarts and damage."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from geminga.clock import RealClock
from geminga.errors import StorageError
from geminga.events.event import Event, Filter, InvalidFilter
from geminga.events.event_files import NEWER, NUMBERS, NUMBERS_STEP, OLDER, EventFiles
from geminga.events.event_log import (
    EVENTS_BYTES_MAX,
    EVENTS_MAX,
    JOINED_MAX,
    STREAMS_MAX,
    EventLog,
    Missed,
    TooManyStreams,
)
from geminga.events.kinds import KINDS
from geminga.storage.disk import File, RealDisk, T

ALL = Filter()


class FullDisk(RealDisk):
    """A disk that takes nothing while `is_full`."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = True
        self.refused = trio.Event()

    def create(self, path: str) -> File:
        if self.is_full:
            raise StorageError(f"create {path}: no space left")
        return super().create(path)

    async def run(self, function: Callable[..., T], *args: object) -> T:
        try:
            return await super().run(function, *args)
        finally:
            if function.__name__ == "append":
                self.refused.set()


class InlineDisk(RealDisk):
    """Without threads, during which trio's mock clock would jump."""

    async def run(self, function: Callable[..., T], *args: object) -> T:
        return function(*args)


@asynccontextmanager
async def running(directory: Path, disk: RealDisk | None = None) -> AsyncIterator[EventLog]:
    log = EventLog(disk or RealDisk(), str(directory / "events"), RealClock())
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        yield log
        await log.close()


def numbers(events: list[Event]) -> list[int]:
    return [event.sequence for event in events]


async def test_events_are_numbered_and_chosen(tmp_path: Path) -> None:
    async with running(tmp_path) as log:
        log.record("started")
        log.record("caught-up", topic="persistent://a/b/t1", subscription="s", counts={"messages": 3})
        log.record("bucket-deleted", topic="persistent://a/b/t2", bucket=7)
        found = await log.recent(-1, 10, ALL)
        assert [(e.sequence, e.kind, e.topic, e.bucket, dict(e.counts)) for e in found] == [
            (1, "started", "", -1, {}),
            (2, "caught-up", "persistent://a/b/t1", -1, {"messages": 3}),
            (3, "bucket-deleted", "persistent://a/b/t2", 7, {}),
        ]
        assert numbers(await log.recent(1, 1, ALL)) == [2]
        assert numbers(await log.recent(-1, 1, ALL)) == [3]
        assert numbers(await log.recent(-1, 9, Filter(frozenset({"started", "bucket-deleted"})))) == [1, 3]
        assert numbers(await log.recent(0, 9, Filter(topic="persistent://a/b/t*"))) == [2, 3]
        assert numbers(await log.recent(0, 9, Filter(topic="persistent://a/b/t1"))) == [2]
        assert numbers(await log.recent(0, 9, Filter(subscription="s"))) == [2]


async def test_numbers_and_events_survive_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path) as log:
        for _ in range(3):
            log.record("started")
    async with running(tmp_path) as log:
        log.record("stopped")
        assert numbers(await log.recent(0, 10, ALL)) == [1, 2, 3, 4]
        assert numbers(await log.recent(-1, 2, ALL)) == [3, 4]
        assert numbers(await log.recent(1, 2, ALL)) == [2, 3]


@pytest.mark.parametrize("written", [0, 2])
async def test_numbers_go_on_behind_a_million_after_a_crash(tmp_path: Path, written: int) -> None:
    """Whether the last events were written or not, and over several crashes."""
    for crash in range(3):
        log = EventLog(RealDisk(), str(tmp_path / "events"), RealClock())
        async with trio.open_nursery() as nursery:
            await nursery.start(log.run)
            for _ in range(written):
                log.record("started")
            while log._unwritten:
                await trio.lowlevel.checkpoint()
            for _ in range(5):
                log.record("stopped")
            last = log.last_sequence
            nursery.cancel_scope.cancel()
        assert last == crash * NUMBERS_STEP + written + 5
    async with running(tmp_path) as log:
        log.record("started")
    async with running(tmp_path) as log:
        log.record("started")
        assert numbers(await log.recent(3 * NUMBERS_STEP - 1, 9, ALL)) == [
            3 * NUMBERS_STEP + 1,
            3 * NUMBERS_STEP + 2,
        ]


@pytest.mark.parametrize("content", [None, b"", b"soon\n", b"-1"])
async def test_without_a_reserved_number_the_files_may_lack_some(
    tmp_path: Path, content: bytes | None
) -> None:
    async with running(tmp_path) as log:
        log.record("started")
    file = tmp_path / "events" / NUMBERS
    assert int(file.read_bytes()) == 1
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    assert EventLog(RealDisk(), str(tmp_path / "events"), RealClock()).last_sequence == NUMBERS_STEP


async def test_numbers_are_reserved_once_the_disk_has_room(tmp_path: Path) -> None:
    disk = FullDisk()
    log = EventLog(disk, str(tmp_path / "events"), RealClock())
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        log.record("started")
        disk.is_full = False
        while not (tmp_path / "events" / NUMBERS).exists():
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert EventLog(RealDisk(), str(tmp_path / "events"), RealClock()).last_sequence == NUMBERS_STEP


async def test_a_follower_misses_no_numbers_that_were_never_used(tmp_path: Path) -> None:
    log = EventLog(RealDisk(), str(tmp_path / "events"), RealClock())
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        log.record("started")
        nursery.cancel_scope.cancel()
    async with running(tmp_path) as log:
        log.record("started")
        log.record("stopped")
        async with aclosing(log.follow(1, Filter(frozenset({"stopped"})), 5.0)) as parts:
            found = await anext(parts)
        assert isinstance(found, list)
        assert numbers(found) == [NUMBERS_STEP + 2]


def test_no_file_is_made_before_the_first_event(tmp_path: Path) -> None:
    EventLog(RealDisk(), str(tmp_path / "events"), RealClock())
    assert list(tmp_path.iterdir()) == []


async def test_a_torn_line_costs_itself_only(tmp_path: Path) -> None:
    async with running(tmp_path) as log:
        log.record("started")
        log.record("stopped")
    newer = tmp_path / "events" / NEWER
    newer.write_bytes(newer.read_bytes()[:-9])
    async with running(tmp_path) as log:
        log.record("started")
    async with running(tmp_path) as log:
        assert [(e.sequence, e.kind) for e in await log.recent(0, 10, ALL)] == [
            (1, "started"),
            (3, "started"),  # the number of the torn one was given out
        ]


@pytest.mark.parametrize(
    "content", [b"\x00" * 5000, b"{}\n[]\n\xff\xfe\n", b'{"sequence":"x"}\n' * 99, b"\n\n"]
)
async def test_foreign_files_are_skipped(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "events").mkdir()
    (tmp_path / "events" / NEWER).write_bytes(content)
    (tmp_path / "events" / OLDER).write_bytes(content)
    async with running(tmp_path) as log:
        log.record("started")
    async with running(tmp_path) as log:
        assert [e.kind for e in await log.recent(0, 10, ALL)] == ["started"]


async def test_a_directory_in_the_files_place_is_no_refused_start(tmp_path: Path) -> None:
    (tmp_path / "events" / NEWER).mkdir(parents=True)
    async with running(tmp_path) as log:
        log.record("started")
        await trio.testing.wait_all_tasks_blocked()
        assert [e.kind for e in await log.recent(-1, 10, ALL)] == ["started"]
    assert log.lost == 1


async def test_a_full_disk_costs_only_what_is_not_in_memory(tmp_path: Path) -> None:
    disk = FullDisk()
    async with running(tmp_path, disk) as log:
        log.record("disk-read-only", text="full")
        await disk.refused.wait()
        disk.is_full = False
        log.record("disk-writable")
        assert numbers(await log.recent(0, 10, ALL)) == [1, 2]
    async with running(tmp_path) as log:
        assert numbers(await log.recent(0, 10, ALL)) == [2]


def test_files_are_bounded(tmp_path: Path) -> None:
    files = EventFiles(RealDisk(), str(tmp_path), file_bytes_max=2000)
    for number in range(1, 200):
        files.append([Event(sequence=number, time_ms=1, wall_ms=1, kind="started", text="x" * 50)])
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert sum(sizes) < 2 * 2200
    found = numbers(files.read(0, 1000, 1000, ALL))
    assert found == list(range(found[0], 200))
    assert len(found) >= 20


async def test_memory_is_bounded(tmp_path: Path) -> None:
    log = EventLog(RealDisk(), str(tmp_path / "none"), RealClock())
    for number in range(3 * EVENTS_MAX):
        log.record("started", topic="t" * 3000, text="\U0001f600" * 5000)
        assert log.last_sequence == number + 1
    kept = await log.recent(3 * EVENTS_MAX - 10, 10_000, ALL)
    assert numbers(kept) == list(range(3 * EVENTS_MAX - 9, 3 * EVENTS_MAX + 1))
    kept = await log.recent(-1, 10_000, ALL)
    assert sum(len(e.topic) + 4 * len(e.text) for e in kept) <= EVENTS_BYTES_MAX


async def test_what_repeats_is_joined(tmp_path: Path, autojump_clock: trio.testing.MockClock) -> None:
    log = EventLog(InlineDisk(), str(tmp_path / "events"), TrioClock())
    async with trio.open_nursery() as nursery:
        await nursery.start(log.run)
        for number in range(1, 1001):
            log.record("fault-hit", text="f1 wire/cut", counts={"hits": number})
        log.record("fault-hit", text="f2 wire/cut", counts={"hits": 1})
        await trio.sleep(3)
        log.record("fault-hit", text="f1 wire/cut", counts={"hits": 2000})
        found = await log.recent(0, 10, ALL)
        assert [(e.text[:2], dict(e.counts)["hits"], e.times) for e in found] == [
            ("f1", 1, 1),
            ("f2", 1, 1),
            ("f1", 1000, 999),
            ("f1", 2000, 1),
        ]
        for number in range(3 * JOINED_MAX):
            log.record("fault-hit", text=f"g{number}", counts={"hits": 1})
        # One more of each: those that found no room are recorded singly, the others wait.
        before = log.last_sequence
        for number in range(3 * JOINED_MAX):
            log.record("fault-hit", text=f"g{number}", counts={"hits": 2})
        assert 2 * JOINED_MAX <= log.last_sequence - before < 3 * JOINED_MAX
        await log.close()


class TrioClock(RealClock):
    """I/O time by trio's clock."""

    def monotonic_s(self) -> float:
        return trio.current_time()


async def test_threads_record_in_one_order(tmp_path: Path) -> None:
    async with running(tmp_path) as log:

        def record_some() -> None:
            for _ in range(500):
                log.record("started")

        threads = [threading.Thread(target=record_some) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            await trio.to_thread.run_sync(thread.join)
        assert numbers(await log.recent(0, 4000, ALL)) == list(range(1, 2001))
    async with running(tmp_path) as log:
        assert numbers(await log.recent(0, 4000, ALL)) == list(range(1, 2001))


async def test_a_follower_gets_all_and_is_told_what_it_missed(tmp_path: Path) -> None:
    log = EventLog(RealDisk(), str(tmp_path / "events"), RealClock())
    log.record("started")
    async with aclosing(log.follow(0, ALL, 5.0)) as parts:
        first = await anext(parts)
        assert isinstance(first, list)
        assert numbers(first) == [1]
        for _ in range(EVENTS_MAX + 10):
            log.record("stopped")
        assert await anext(parts) == Missed(10 + EVENTS_MAX - len(log._recent))
        rest = await anext(parts)
        assert isinstance(rest, list)
        missed = 10 + EVENTS_MAX - len(log._recent)
        assert numbers(rest) == list(range(missed + 2, EVENTS_MAX + 12)), "the first after the gap included"


async def test_a_follower_waits_for_what_it_wants(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    async with running(tmp_path) as log:
        wanted = Filter(frozenset({"stopped"}))
        async with aclosing(log.follow(0, wanted, 5.0)) as parts:
            log.record("started")
            assert await anext(parts) == []
            assert trio.current_time() >= 5
            log.record("stopped")
            found = await anext(parts)
            assert isinstance(found, list)
            assert numbers(found) == [2]


async def test_followers_are_bounded(tmp_path: Path) -> None:
    log = EventLog(RealDisk(), str(tmp_path / "events"), RealClock())
    log.record("started")
    open_ones = [log.follow(0, ALL, 5.0) for _ in range(STREAMS_MAX)]
    for one in open_ones:
        await anext(one)
    with pytest.raises(TooManyStreams):
        await anext(log.follow(0, ALL, 5.0))
    await open_ones.pop().aclose()
    again = log.follow(0, ALL, 5.0)
    assert await anext(again)
    for one in [*open_ones, again]:
        await one.aclose()


@pytest.mark.parametrize("refused", [lambda: Filter(frozenset({"bucket-eaten"})).check()])
def test_a_kind_that_does_not_exist_is_refused(refused: Callable[[], None]) -> None:
    with pytest.raises(InvalidFilter, match="bucket-eaten.*bucket-sealed"):
        refused()


def test_the_page_lists_every_kind() -> None:
    page = (Path(__file__).parents[2] / "docs" / "events.md").read_text()
    rows = {}
    for line in page.splitlines():
        if line.startswith("| `"):
            kind, counts, text = (cell.strip() for cell in line.strip("|").split("|"))
            rows[kind.strip("`")] = (text, tuple(one.strip("`") for one in counts.split()))
    assert rows == {name: (kind.text, kind.counts) for name, kind in KINDS.items()}


def test_a_data_directory_that_was_moved_away_is_not_made_again(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    files = EventFiles(RealDisk(), str(tmp_path / "data" / "events"))
    assert files.reserve(10)
    (tmp_path / "data").rename(tmp_path / "away")
    files.append([Event(sequence=1, time_ms=1, wall_ms=1, kind="disk-read-only")])
    assert (files.reserve(20), files.lost) == (False, 1)
    assert not (tmp_path / "data").exists()
