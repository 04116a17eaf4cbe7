"""What the caches keep alive, counted as buffers and not as entries: a journal group is one buffer, however
few of its entries are still wanted.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from geminga.bookie.records.journal_position import JournalPosition
from geminga.bookie.records.records import Segment, ends_of, pack_records
from geminga.bookie.records.segment_map import SegmentMap
from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.recovery.directory_replay import DirectoryReplay
from geminga.bookie.running.bookie import Bookie, LedgerFiles
from geminga.bookie.running.ledger_directory import IDLE_S, LOOK_S
from geminga.bookie.running.ledger_writer import LedgerWriter
from geminga.bookie.running.ledger_writers import LOOKED_AT_MAX, SHARE_LOOKED_AT, LedgerWriters
from geminga.bookie.running.read_cache import ReadCache
from geminga.bookie.running.write_caches import WriteCaches
from geminga.errors import StorageError
from simulation.disk.sim_disk import SimDisk
from simulation.disk.sim_key_value import SimKeyValue

KIB = 1 << 10


def group(*ledgers: tuple[int, int, list[bytes]]) -> list[Segment]:
    """Segments that share one buffer, as a journal group makes them."""
    parts: list[bytes] = []
    places = []
    position = 0
    for ledger_id, first, bodies in ledgers:
        pack_records(ledger_id, first, bodies, parts)
        ends = ends_of(bodies)
        places.append((ledger_id, first, position, ends))
        position += ends[-1]
    buffer = b"".join(parts)
    return [Segment(ledger_id, first, buffer, start, ends) for ledger_id, first, start, ends in places]


def held_bytes(*maps: SegmentMap | None) -> int:
    buffers = {
        id(segment.buffer): segment.buffer
        for each in maps
        if each is not None
        for _, segments in each.sorted_segments()
        for segment in segments
    }
    return sum(map(len, buffers.values()))


def caches_of(kib: int) -> WriteCaches:
    return WriteCaches(kib * KIB, [JournalPosition(1, 0)])


def test_a_cache_is_charged_with_what_deleted_ledgers_leave_behind() -> None:
    caches = caches_of(256)
    for number in range(20):
        caches.add(group((1, number, [b"tiny"]), (2 + number, 0, [bytes(10 * KIB)])))
        caches.discard(2 + number)
        held = held_bytes(caches.active)
        assert held >= 10 * KIB * (number + 1)
        assert held <= caches.active_bytes <= held + 700 * (number + 1)
        assert caches.is_full() == (number >= 11)
    caches.swap()
    assert caches.active_bytes == 0
    assert caches.flushing_bytes >= 200 * KIB
    caches.flushed()
    assert caches.flushing_bytes == 0


def test_nothing_is_charged_once_the_last_ledger_is_deleted() -> None:
    caches = caches_of(256)
    caches.add(group((1, 0, [bytes(10 * KIB)]), (2, 0, [bytes(10 * KIB)])))
    caches.discard(1)
    caches.discard(2)
    assert caches.active_bytes == 0


def test_entries_of_other_directories_are_not_kept_alive() -> None:
    caches = caches_of(256)
    for number in range(20):
        small, _ = group((1, number, [b"tiny"]), (2, number, [bytes(10 * KIB)]))
        caches.add_part([small])
    assert held_bytes(caches.active) < KIB
    found = caches.find(1, 7)
    assert found is not None
    assert found.bodies(7, 7) == [b"tiny"]


def test_most_of_a_buffer_is_not_copied() -> None:
    _, large = group((1, 0, [b"tiny"]), (2, 0, [bytes(10 * KIB)]))
    assert large.detached() is large
    caches = caches_of(256)
    caches.add_part([large])
    assert caches.active_bytes >= len(large.buffer)


def test_the_read_cache_keeps_no_large_buffer_for_a_few_entries() -> None:
    cache = ReadCache(100 * KIB)
    for number in range(40):
        first = 10 * number
        whole = group((1, first, [bytes(KIB)] * 10))[0]
        cache.add(whole.part(first, first))
        assert cache.find(1, first) is not None
    assert held_bytes(cache._map) <= cache.bytes < 60 * KIB


SMALL = replace(
    BookieSettings(),
    journal_file_bytes=256 * KIB,
    journal_allocate_bytes=64 * KIB,
    write_cache_bytes=128 * KIB,
    entry_log_bytes=1 << 20,
    flush_interval_s=1000.0,
    disk_free_bytes_min=500,
)


async def opened(disk: SimDisk, indexes: Iterable[SimKeyValue], settings: BookieSettings) -> Bookie:
    places = [LedgerFiles(f"l{number}", index) for number, index in enumerate(indexes)]
    return await Bookie.open_directories(disk, ["j"], places, settings, threaded=False)


async def publish_skewed(bookie: Bookie, turns: int, *, first: int = 0) -> None:
    """One ledger gets much, the other a little of each group; `first` tells calls apart."""
    durable: list[int] = []
    little = bookie.create_ledger(1 + first, on_durable=durable.append, on_failed=lambda error: None)
    much = bookie.create_ledger(2 + first, on_durable=lambda last: None, on_failed=lambda error: None)
    for turn in range(turns):
        await bookie.wait_room()
        little.append(b"%d" % turn)
        much.append(bytes(16 * KIB))
        while not durable or durable[-1] < turn:
            await trio.lowlevel.checkpoint()


async def test_two_directories_keep_to_their_share_when_one_gets_most() -> None:
    disk, indexes = SimDisk(), [SimKeyValue(), SimKeyValue()]
    bookie = await opened(disk, indexes, SMALL)
    most = 0
    async with trio.open_nursery() as nursery:
        await nursery.start(bookie.run)
        for first in range(0, 60, 4):
            await publish_skewed(bookie, 4, first=first)
            maps = [each for d in bookie.directories for each in (d.caches.active, d.caches.flushing)]
            most = max(most, held_bytes(*maps))
        nursery.cancel_scope.cancel()
    assert most <= SMALL.write_cache_bytes


async def test_a_replay_keeps_to_the_cache_when_one_directory_gets_most(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk, indexes = SimDisk(), [SimKeyValue(), SimKeyValue()]
    bookie = await opened(disk, indexes, replace(SMALL, write_cache_bytes=8 << 20))
    async with trio.open_nursery() as nursery:
        await nursery.start(bookie.run)
        await publish_skewed(bookie, 60)
        nursery.cancel_scope.cancel()
    disk.crash("keep")
    replays: list[DirectoryReplay] = []
    most = 0
    take = DirectoryReplay.take

    def watched(self: DirectoryReplay, segment: Segment) -> None:
        nonlocal most
        take(self, segment)
        if self not in replays:
            replays.append(self)
        most = max(most, held_bytes(*(replay._cache for replay in replays)))

    monkeypatch.setattr(DirectoryReplay, "take", watched)
    again = await opened(disk, [index.crash(None) for index in indexes], SMALL)
    assert len(replays) == 2
    assert again.recovery.entries_replayed == 120
    assert most <= SMALL.write_cache_bytes
    found = again.read_cached(1, 0, 59) or await again.read(1, 0, 59, bytes_max=KIB)
    assert found == [b"%d" % turn for turn in range(60)]
    await again.close()


def test_what_is_copied_is_what_was_written() -> None:
    for count in (1, 3, 50):
        segments = group((1, 5, [b"%d" % n for n in range(count)]), (2, 0, [bytes(10 * KIB)]))
        copy = segments[0].detached()
        assert copy.start == 0
        assert len(copy.buffer) == copy.record_bytes
        assert copy.bodies(5, 4 + count) == segments[0].bodies(5, 4 + count)
        assert bytes(copy.records()) == bytes(segments[0].records())


async def test_caches_that_nobody_uses_give_their_memory_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    settings = replace(SMALL, write_cache_bytes=16 << 20, flush_interval_s=86_400)
    bookie = await opened(SimDisk(), [SimKeyValue(), SimKeyValue()], settings)
    async with trio.open_nursery() as nursery:
        await nursery.start(bookie.run)
        await publish_skewed(bookie, 130)
        await trio.sleep(IDLE_S - 1)
        assert bookie.statistics().write_cache_bytes >= 2 << 20
        await trio.sleep(3 * LOOK_S)
        assert bookie.statistics().write_cache_bytes < 64 * KIB, (
            "only the directory with a few bytes keeps them"
        )
        flushes = [directory.flushes for directory in bookie.directories]
        assert sorted(flushes) == [0, 1]

        for _ in range(3):
            await trio.sleep(IDLE_S - 1)
            assert await bookie.read(2, 0, 0, bytes_max=1)
            assert bookie.statistics().read_cache_bytes > 0, "it was used in time"
        await trio.sleep(IDLE_S + 2 * LOOK_S)
        assert bookie.statistics().read_cache_bytes == 0
        reads = bookie.directories[1].reader.log_loads
        await trio.sleep(3600)
        assert [directory.flushes for directory in bookie.directories] == flushes
        assert bookie.directories[1].reader.log_loads == reads
        nursery.cancel_scope.cancel()


async def test_a_writer_that_is_closed_keeps_nothing_of_its_owner_alive() -> None:
    class Owner:
        def durable(self, _: int) -> None: ...
        def failed(self, _: StorageError) -> None: ...

    bookie = await opened(SimDisk(), [SimKeyValue(), SimKeyValue()], SMALL)
    async with trio.open_nursery() as nursery:
        await nursery.start(bookie.run)
        for ledger_id, entries in ((1, 0), (2, 3)):
            owner = Owner()
            gone = weakref.ref(owner)
            writer = bookie.create_ledger(ledger_id, on_durable=owner.durable, on_failed=owner.failed)
            del owner
            for _ in range(entries):
                writer.append(b"entry")
            assert gone() is not None
            writer.close()
            await writer.settle()
            # The bookie still has the writer, and no flush has come.
            assert gone() is None
        nursery.cancel_scope.cancel()


async def test_a_flush_looks_at_a_bounded_number_of_writers() -> None:
    """Where 10,000 cursors ended at once, the next flush held the loop for 28 ms."""
    bookie = await opened(SimDisk(), [SimKeyValue()], replace(SMALL, write_cache_bytes=8 << 20))
    async with trio.open_nursery() as nursery:
        await nursery.start(bookie.run)
        count = 2 * LOOKED_AT_MAX + 500
        for ledger_id in range(count):
            writer = bookie.create_ledger(ledger_id, on_durable=lambda _: None, on_failed=lambda _: None)
            writer.append(b"entry")
            await writer.settle()
            writer.close()
        left = []
        for _ in range(4):
            await bookie.flush()
            left.append(sum(bookie.directories[0].writers.get(n) is not None for n in range(count)))
        assert left == [LOOKED_AT_MAX + 500, 500, 0, 0]
        nursery.cancel_scope.cancel()


async def test_closed_writers_do_not_pile_up_however_many_a_flush_leaves() -> None:
    """Each flush looked at 1,000: of 1,200 ledgers that ended before each, 200 more stayed each time."""
    bookie = await opened(SimDisk(), [SimKeyValue()], SMALL)
    writers, ended = LedgerWriters(), LOOKED_AT_MAX * 6 // 5
    left = left_max = 0
    for flush in range(100):
        for ledger_id in range(flush * ended, (flush + 1) * ended):
            writer = LedgerWriter(
                ledger_id, bookie.journals.of(0), on_durable=lambda _: None, on_failed=lambda _: None
            )
            writers.add(writer, high_priority=False, read_only="")
            writer.close()
        left += ended - len(writers.discard_done(SegmentMap()))
        left_max = max(left, left_max)
    assert left_max <= SHARE_LOOKED_AT * ended
