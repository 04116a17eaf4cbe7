"""A managed ledger on a real bookie and real metadata: order, rollover, restart, trimming, the end."""

from __future__ import annotations

import pytest
import trio

from geminga.errors import (
    Conflict,
    CorruptData,
    ServiceNotReady,
    StorageError,
    SubscriptionNotFound,
    TopicNotFound,
    TopicTerminated,
)
from geminga.managed_ledger.chain.ledger_reads import reached
from geminga.managed_ledger.chain.state import State
from geminga.managed_ledger.cursor.statistics import RangesAsked, ranges_text
from geminga.managed_ledger.managed_ledger import ManagedLedgerSettings
from geminga.managed_ledger.orphans import (
    find_orphan_ledgers,
    sweep_orphan_ledgers,
)
from geminga.metadata import records
from geminga.metadata.store import ChangeKind
from geminga.names import TopicName
from geminga.position import EARLIEST, LATEST, Position
from tests.generators import finished

PATH = "/managed-ledgers/public/default/persistent/orders"
ROLL_AT_10 = ManagedLedgerSettings(ledger_entries_max=10, rollover_min_ms=0)


def bodies(count: int, first: int = 0) -> list[bytes]:
    return [b"message %d" % i for i in range(first, first + count)]


async def test_entries_are_confirmed_in_order_and_read_back(rooms, publish, drain):
    async with rooms() as r:
        ledger = await r.open()
        assert ledger.last_confirmed.entry_id == -1
        positions = await publish(ledger, bodies(100))
        newest = positions[0].ledger_id
        assert positions == [Position(newest, i) for i in range(100)]
        assert ledger.last_confirmed == Position(newest, 99)
        assert ledger.first_position() == Position(newest, 0)
        assert [body for _, body in await drain(ledger, EARLIEST)] == bodies(100)
        assert ledger.number_of_entries == 100
        assert ledger.total_size_bytes == sum(map(len, bodies(100)))


async def test_nothing_is_readable_before_it_is_durable(rooms, publish):
    async with rooms() as r:
        ledger = await r.open()
        await ledger.open_cursor("s", initial="earliest")
        (first,) = await publish(ledger, [b"one"])
        ledger.append([b"two"], None)
        assert [e.body for e in ledger.read_cached(first, 10, 1000)] == [b"one"]
        assert ledger.read_cached(first.next(), 10, 1000) == []
        assert ledger.last_confirmed == first
        await ledger.listener.settled(2)
        assert [e.body for e in ledger.read_cached(first, 10, 1000)] == [b"one", b"two"]


async def test_absent_topic_is_not_made_unless_asked(rooms):
    async with rooms() as r:
        with pytest.raises(TopicNotFound):
            await r.open(create=False)
        assert r.metadata.children("/ledgers") == []


async def test_full_ledger_gives_way_to_the_next_and_order_holds(rooms, publish, drain):
    async with rooms() as r:
        ledger = await r.open(ROLL_AT_10)
        positions = await publish(ledger, bodies(35))
        assert [p.entry_id for p in positions] == [*range(10), *range(10), *range(10), *range(5)]
        assert positions == sorted(positions)
        assert [body for _, body in await drain(ledger, EARLIEST)] == bodies(35)
        infos = ledger.ledgers
        assert [(i.entries, i.closed_ms > 0) for i in infos] == [(10, True)] * 3 + [(0, False)]
        assert infos[0].size_bytes == sum(map(len, bodies(10)))


async def test_full_ledger_waits_for_its_minimum_age(rooms, publish, clock):
    async with rooms() as r:
        ledger = await r.open(ManagedLedgerSettings(ledger_entries_max=10))
        await publish(ledger, bodies(12))
        assert len(ledger.ledgers) == 1
        clock.ms += 10 * 60_000
        await publish(ledger, bodies(1))
        assert len(ledger.ledgers) == 1  # exactly the minimum is not more than it
        clock.ms += 1
        await publish(ledger, bodies(1))
        await publish(ledger, bodies(1))
        assert len(ledger.ledgers) == 2


async def test_restart_closes_the_open_ledger_and_begins_a_new_one(rooms, publish, drain):
    async with rooms(crash=True) as r:
        ledger = await r.open()
        first = await publish(ledger, bodies(7))
    async with rooms() as r:
        ledger = await r.open(create=False)
        old, new = (info.ledger_id for info in ledger.ledgers)
        assert ledger.ledgers[0].entries == 7
        assert ledger.ledgers[0].size_bytes == sum(map(len, bodies(7)))
        assert old == first[0].ledger_id < new
        assert ledger.last_confirmed == Position(new, -1)
        assert ledger.last_position() == first[-1]
        assert ledger.next_position(first[-1]) == Position(new, 0)
        second = await publish(ledger, bodies(3, 7))
        assert second[0] == Position(new, 0)
        assert [body for _, body in await drain(ledger, EARLIEST)] == bodies(10)
        assert ledger.previous_position(second[0]) == first[-1]
        assert ledger.count_between(first[5], second[1]) == 3


async def test_a_kill_changes_no_size_where_large_entries_follow_small_ones(rooms, publish):
    """Some in an entry log and some in the journal alone, as nearly always."""
    sizes = [100] * 3000 + [20_000] * 30
    async with rooms(crash=True) as r:
        ledger = await r.open()
        await publish(ledger, [bytes(size) for size in sizes])
        await r.bookie.flush()
        await publish(ledger, [bytes(50_000)] * 10)
    async with rooms() as r:
        ledger = await r.open(create=False)
        assert ledger.ledgers[0].entries == 3040
        assert ledger.ledgers[0].size_bytes == sum(sizes) + 500_000


async def test_restarts_without_entries_leave_no_ledgers_behind(rooms):
    for life in range(3):
        async with rooms(crash=True) as r:
            with r.metadata.watch("/ledgers") as changes:
                ledger = await r.open()
                newest = ledger.last_confirmed.ledger_id
                assert [i.ledger_id for i in ledger.ledgers] == [newest]
                kinds = {(await changes.receive()).kind for _ in range(2 if life else 1)}
            assert (ChangeKind.DELETED in kinds) == (life > 0)
            assert r.metadata.children("/ledgers") == [f"{newest:020d}"]


async def test_close_writes_the_size_and_refuses_what_comes_later(rooms, publish):
    async with rooms() as r:
        ledger = await r.open()
        await publish(ledger, bodies(5))
        ledger.append([b"last"], b"last")
        await ledger.life.close()
        assert list(ledger.listener.confirmed.values())[-1] == b"last"
        assert ledger.state is State.CLOSED
        with pytest.raises(ServiceNotReady):
            ledger.append([b"late"], None)
        stored = r.metadata.get(PATH)
        record = records.decode(records.ManagedLedgerRecord, stored.value, "")
        assert [(i.entries, i.size_bytes) for i in record.ledgers] == [(6, sum(map(len, bodies(5))) + 4)]


async def test_terminated_topic_takes_nothing_more_even_after_a_restart(rooms, publish, drain):
    async with rooms(crash=True) as r:
        ledger = await r.open()
        positions = await publish(ledger, bodies(4))
        ledger.append([b"in flight"], b"in flight")
        assert await ledger.life.terminate() == positions[-1].next()
        with pytest.raises(TopicTerminated):
            ledger.append([b"late"], None)
        assert await ledger.life.terminate() == positions[-1].next()
    async with rooms() as r:
        ledger = await r.open()
        assert ledger.terminated
        assert ledger.state is State.TERMINATED
        assert ledger.last_confirmed == positions[-1].next()
        with pytest.raises(TopicTerminated):
            ledger.append([b"late"], None)
        assert [body for _, body in await drain(ledger, EARLIEST)] == [*bodies(4), b"in flight"]
        await ledger.life.close()


async def test_deleted_topic_leaves_nothing(rooms, publish):
    async with rooms() as r:
        ledger = await r.open(ROLL_AT_10)
        positions = await publish(ledger, bodies(25))
        cursor = await ledger.open_cursor("s", initial="earliest")
        cursor.acknowledge(positions[3:5])
        await cursor.persist()
        await ledger.life.delete()
        assert r.metadata.children("/ledgers") == []
        assert r.metadata.children("/managed-ledgers/public/default/persistent/orders") == []
        assert r.bookie.last_entry_id(positions[0].ledger_id) == -1
        with pytest.raises(TopicNotFound):
            await r.open(create=False)


async def test_trim_drops_what_every_durable_cursor_has_passed(rooms, publish, drain):
    async with rooms() as r:
        ledger = await r.open(ROLL_AT_10)
        positions = await publish(ledger, bodies(35))
        fast = await ledger.open_cursor("fast", initial="earliest")
        slow = await ledger.open_cursor("slow", initial="earliest")
        reader = ledger.open_non_durable_cursor("reader", EARLIEST)
        fast.acknowledge_cumulative(positions[29])
        slow.acknowledge(positions[:19])
        assert await ledger.life.trim() == 1
        assert ledger.first_position() == positions[10]
        slow.acknowledge(positions[19:20])
        assert (fast.backlog_entries(), slow.backlog_entries(), reader.backlog_entries()) == (5, 15, 25)
        assert await ledger.life.trim() == 1
        assert ledger.number_of_entries == 15
        # The mark-delete position of the slow one was in a ledger that is gone.
        assert slow.mark_delete == Position(positions[20].ledger_id, -1)
        assert (fast.backlog_entries(), slow.backlog_entries(), reader.backlog_entries()) == (5, 15, 15)
        assert [p for p, _ in await drain(ledger, positions[3])] == positions[20:]
        assert r.bookie.last_entry_id(positions[0].ledger_id) == -1
        assert slow.acknowledged_up_to == positions[19]
        # Two of the topic, and one of each cursor: their states are on disk before a ledger goes.
        assert len(r.metadata.children("/ledgers")) == 4
        assert await ledger.read_positions(positions[5:25]) == await ledger.read_positions(positions[20:25])


async def test_a_trim_and_a_kill_leave_where_cursors_stood(rooms, publish):
    """Their states of 250 ms ago would say that the end of a deleted ledger was not acknowledged."""
    async with rooms(crash=True) as r:
        ledger = await r.open(ROLL_AT_10)
        positions = await publish(ledger, bodies(15))
        cursor = await ledger.open_cursor("s", initial="earliest")
        cursor.acknowledge(positions[:4])
        await ledger.persist_cursors()
        cursor.acknowledge_cumulative(positions[9])
        assert await ledger.life.trim() == 1
    async with rooms() as r:
        cursor = (await r.open(ROLL_AT_10)).cursors["s"]
        assert cursor.acknowledged_up_to == positions[9]
        assert cursor.mark_delete == Position(positions[10].ledger_id, -1)


@pytest.mark.parametrize("bytes_max", [1, 10, 11, 200, 10_000])
async def test_scattered_entries_are_read_within_a_bound_of_bytes(rooms, publish, bytes_max):
    async with rooms() as r:
        ledger = await r.open(ROLL_AT_10)
        positions = await publish(ledger, [b"%010d" % n for n in range(35)])
        gone = Position(positions[0].ledger_id, 500)
        asked = sorted([*positions[::3], gone])
        left, came = asked, []
        while left:
            entries = await ledger.read_positions(left, bytes_max)
            assert sum(len(entry.body) for entry in entries[:-1]) < bytes_max
            came += [entry.position for entry in entries]
            left = left[reached(left, entries, bytes_max) :]
        assert came == positions[::3]


@pytest.mark.parametrize("bytes_max", [1, 35, 200, 10_000])
async def test_scattered_entries_come_in_order_from_wherever_they_are(rooms, publish, bytes_max):
    """From logs, the read cache, the write caches and the tail cache; near to each other and far apart."""
    async with rooms() as r:
        first = await publish(
            await r.open(ManagedLedgerSettings(ledger_entries_max=200, rollover_min_ms=0)), bodies(500)
        )
    async with rooms() as r:
        ledger = await r.open(ROLL_AT_10)
        positions = first + await publish(ledger, bodies(25))
        await ledger.read(positions[250], 3, 1 << 20)
        asked = [p for n, p in enumerate(positions) if n % 37 == 0 or n % 50 < 2 or 300 < n < 340 or n > 505]
        left, came = asked, []
        while left:
            entries = await ledger.read_positions(left, bytes_max)
            assert sum(len(entry.body) for entry in entries[:-1]) < bytes_max
            came += entries
            left = left[reached(left, entries, bytes_max) :]
        assert [entry.position for entry in came] == asked
        of = dict(zip(positions, bodies(500) + bodies(25), strict=True))
        assert [entry.body for entry in came] == [of[position] for position in asked]


@pytest.mark.parametrize("step", [2, 8])
async def test_a_damaged_entry_between_scattered_ones_is_in_nobodys_way(rooms, publish, tmp_path, step):
    """Whether their run is short or so long that it is read as one in order."""
    async with rooms() as r:
        positions = await publish(await r.open(), bodies(40))
    (log,) = (tmp_path / "bookie" / "entry-logs").iterdir()
    content = log.read_bytes()
    assert content.count(b"message 5") == 1
    log.write_bytes(content.replace(b"message 5", b"message s"))
    for journal in (tmp_path / "bookie" / "journal").iterdir():  # it would be healed from there
        journal.write_bytes(journal.read_bytes().replace(b"message 5", b"message s"))
    async with rooms() as r:
        ledger = await r.open()
        asked = positions[4::step][:4]
        assert positions[5] not in asked
        assert [entry.position for entry in await ledger.read_positions(asked)] == asked
        with pytest.raises(CorruptData, match="entry 5 of"):
            await ledger.read_positions(positions[4:7])


async def test_what_is_in_memory_behind_one_in_a_log_is_not_fetched_beyond_the_bytes(rooms, publish):
    async with rooms() as r:
        positions = await publish(await r.open(), [b"%05000d" % n for n in range(1000)])
    async with rooms() as r:
        ledger = await r.open()
        near_the_end = positions[900::9]
        for position in near_the_end:
            await ledger.read(position, 1, 1)
        before = r.bookie.statistics().reads_from_memory
        (entry,) = await ledger.read_positions([positions[300], *near_the_end], 1)
        assert entry.position == positions[300]
        assert r.bookie.statistics().reads_from_memory - before <= 1


async def test_nothing_is_read_ahead_of_scattered_entries(rooms, publish):
    """Though they are in the read cache, and near the end of what was loaded there."""
    async with rooms() as r:
        positions = await publish(await r.open(), [b"%05000d" % n for n in range(1000)])
    async with rooms() as r:
        ledger = await r.open()
        await ledger.read(positions[0], 20, 1 << 20)
        cached = [p for p in positions if r.bookie.read_cached(*p, p.entry_id, goes_on=False)]
        assert 10 < len(cached) < 900
        before = r.bookie.statistics().found.log_loads
        for position in cached[::-5]:
            assert len(await ledger.read_positions([position])) == 1
            await trio.testing.wait_all_tasks_blocked(0.01)
        assert r.bookie.statistics().found.log_loads == before


async def test_what_is_wanted_soon_is_asked_for_where_scattered_entries_come_from_disk(
    rooms, publish, monkeypatch
):
    # A disk that is slow with what is asked for is not asked for more: see `LOAD_AHEAD_MS_MAX`.
    monkeypatch.setattr("geminga.bookie.running.storage._monotonic_s", lambda: 0.0)
    async with rooms() as r:
        positions = await publish(await r.open(), [b"%05000d" % n for n in range(1000)])
    async with rooms() as r:
        ledger = await r.open()
        asked = []

        def soon():
            asked.append(1)
            return positions[600:640:20]

        # A long run, and what is in memory by then.
        for _ in range(2):
            assert len(await ledger.read_positions(positions[:40], read_along=soon)) == 40
        assert not asked
        found = await ledger.read_positions([positions[900], positions[950]], read_along=soon)
        assert [entry.position for entry in found] == [positions[900], positions[950]]
        assert len(asked) == 1
        before = r.bookie.statistics().reads_from_log
        assert len(await ledger.read_positions(positions[600:640:20], read_along=soon)) == 2
        assert r.bookie.statistics().reads_from_log == before
        assert len(asked) == 1


async def test_scattered_entries_of_which_none_is_there(rooms, publish):
    async with rooms() as r:
        ledger = await r.open(ROLL_AT_10)
        (position,) = await publish(ledger, [b"x"])
        gone = [Position(position.ledger_id, n) for n in (500, 501)]
        assert await ledger.read_positions(gone, 10) == []
        assert reached(gone, [], 10) == 2


async def test_trim_without_cursors_leaves_the_newest_ledger_only(rooms, publish):
    async with rooms() as r:
        ledger = await r.open(ROLL_AT_10)
        await publish(ledger, bodies(25))
        assert await ledger.life.trim() == 2
        assert [i.closed_ms for i in ledger.ledgers] == [0]
        assert await ledger.life.trim() == 0


async def test_an_orderly_stop_between_deletions_leaves_ledgers_for_the_next_start(
    rooms, publish, monkeypatch
):
    async with rooms() as r:
        ledger = await r.open(ROLL_AT_10)
        await publish(ledger, bodies(35))
        with trio.CancelScope() as stop, monkeypatch.context() as patch:
            delete = type(ledger.storage).delete_ledger

            async def delete_and_stop(storage, ledger_id):
                await delete(storage, ledger_id)
                stop.cancel()

            patch.setattr(type(ledger.storage), "delete_ledger", delete_and_stop)
            await ledger.life.trim()
        assert stop.cancelled_caught
        assert [info.closed_ms for info in ledger.ledgers] == [0]
    async with rooms() as r:
        left = find_orphan_ledgers(r.metadata)
        assert len(left) == 2
        assert await sweep_orphan_ledgers(r.bookie, r.metadata) == left


async def test_retention_holds_consumed_ledgers_back(rooms, publish, clock):
    async with rooms() as r:
        ledger = await r.open(ROLL_AT_10)
        await publish(ledger, bodies(25))
        ledger.apply(ManagedLedgerSettings(retention_time_ms=1000, retention_size_bytes=-1))
        assert await ledger.life.trim() == 0
        clock.ms += 1001
        assert await ledger.life.trim() == 2


async def test_find_first_is_a_binary_search_over_all_ledgers(rooms, publish):
    async with rooms() as r:
        ledger = await r.open(ROLL_AT_10)
        positions = await publish(ledger, [b"%d" % (i // 2) for i in range(35)])
        for wanted in (-1, 0, 1, 5, 9, 10, 16, 17):
            asked = []

            def at_least(entry, wanted=wanted, asked=asked):
                asked.append(entry.position)
                return int(entry.body) >= wanted

            assert await ledger.reads.find_first(at_least) == positions[max(0, 2 * wanted)]
            assert len(asked) <= 7
        assert await ledger.reads.find_first(lambda entry: False) is None
        await ledger.life.trim()
        assert await ledger.reads.find_first(lambda entry: True) == positions[30]


async def test_failed_disk_fences_and_fails_what_is_pending(rooms, publish, monkeypatch):
    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012
        async with rooms(crash=True) as r:
            ledger = await r.open()
            await publish(ledger, bodies(3))
            for call in ("_sync", "_write_synced"):
                monkeypatch.setattr(f"geminga.storage.real_file.{call}", _fails)
            for body in bodies(5, 3):
                ledger.append([body], body)
            await ledger.listener.settled(8)
            assert ledger.listener.failed == bodies(5, 3)
            assert isinstance(ledger.listener.errors[0], StorageError)
            assert ledger.state is State.FENCED
            with pytest.raises(StorageError):
                ledger.append([b"late"], None)
            await ledger.life.close()  # does not wait for what cannot come
            await trio.sleep(5)
    assert raised.group_contains(StorageError, depth=None)


def _fails(*arguments):
    raise OSError(5, "Input/output error")


async def test_properties_are_replaced_and_survive(rooms):
    async with rooms(crash=True) as r:
        ledger = await r.open()
        await ledger.life.set_properties({"a": "1", "b": "2"})
        await ledger.life.set_properties({"a": "3"})
    async with rooms() as r:
        assert (await r.open()).properties == {"a": "3"}


async def test_internal_properties_are_swapped_in_one_write_and_not_shown(rooms):
    key, other = "#pulsar.internal.delayed.bucket_1_2", "#pulsar.internal.delayed.bucket_3_4"
    async with rooms(crash=True) as r:
        ledger = await r.open()
        await ledger.life.set_properties({"a": "1"})
        await ledger.life.swap_properties({key: "70", other: "71"}, {})
        await ledger.life.set_properties({"b": "2", key: "99"})
        await ledger.life.swap_properties({}, {key: "69", other: "71"})
        cursor = await ledger.open_cursor("s", initial="earliest")
        await cursor.swap_properties({key: 5, other: 6}, {})
        version = r.metadata.get(f"{PATH}/s").version
        await cursor.swap_properties({other: 7}, {key: 5, other: 6})
        await cursor.swap_properties({}, {key: 5, other: 6})
        assert r.metadata.get(f"{PATH}/s").version == version + 1
    async with rooms() as r:
        ledger = await r.open()
        assert ledger.properties == {"b": "2"}
        assert ledger.internal_properties == {key: "70"}, "removed only with the value that it had"
        assert ledger.cursors["s"].properties == {other: 7}


async def test_bucket_ledgers_go_with_whatever_names_them(rooms):
    """Pulsar's testUnsubscribe and testDelete: no snapshot outlives its subscription or topic, even with no
    tracker; another's ledger is not touched whatever the property says."""
    async with rooms() as r:
        ledger = await r.open()
        ids = [await ledger.storage.create_ledger_record("bucket") for _ in range(3)]
        other = await r.open(topic=TopicName.parse("persistent://public/default/other"))
        theirs = await other.storage.create_ledger_record("bucket")
        cursor = await ledger.open_cursor("s", initial="earliest")
        last = await ledger.open_cursor("t", initial="earliest")
        await cursor.swap_properties({"#pulsar.internal.delayed.bucket_1_1": ids[0], "mine": ids[1]}, {})
        await last.swap_properties({"#pulsar.internal.delayed.bucket_1_1": ids[1]}, {})
        data = ledger.ledgers[0].ledger_id
        await ledger.life.swap_properties(
            {
                f"#pulsar.internal.delayed.bucket_{i}_9": str(id_)
                for i, id_ in enumerate((ids[2], theirs, data))
            },
            {},
        )

        def left() -> set[int]:
            return {records.ledger_id_of(name) for name in r.metadata.children(records.LEDGERS)}

        await ledger.delete_cursor("s")
        assert left() >= {ids[1], ids[2], theirs, data}
        assert ids[0] not in left()
        await ledger.life.delete()
        assert left() == {theirs, *(info.ledger_id for info in other.ledgers)}


async def test_ledgers_that_nobody_names_are_swept_at_a_start(rooms, publish, caplog):
    async with rooms(crash=True) as r:
        ledger = await r.open()
        positions = await publish(ledger, bodies(3))
        record = records.LedgerRecord(
            topic=PATH,
            purpose="cursor",
            created_ms=1,
        )
        lost = await r.ledger_ids.next()
        await r.metadata.put(records.ledger_path(lost), records.encode(record))
        bucket, named, ours = [await ledger.storage.create_ledger_record("bucket") for _ in range(3)]
        schema = records.LedgerRecord(topic=record.topic, purpose="schema", created_ms=1)
        await r.metadata.put(records.ledger_path(await r.ledger_ids.next()), records.encode(schema))
        cursor = await ledger.open_cursor("s", initial="earliest")
        await cursor.swap_properties({"#pulsar.internal.delayed.bucket_1_1": named}, {})
        await ledger.life.swap_properties({"#pulsar.internal.delayed.bucket_1_1": str(ours)}, {})
    async with rooms() as r:
        assert find_orphan_ledgers(r.metadata) == [lost, bucket]
        with caplog.at_level("INFO", "geminga.managed_ledger"):
            assert await sweep_orphan_ledgers(r.bookie, r.metadata) == [lost, bucket]
        told = "deleted ledgers that no topic names, left by a stop or a crash (2): "
        assert caplog.messages[-1] == f"{told}[{lost}, {bucket}]"
        assert find_orphan_ledgers(r.metadata) == []
        ledger = await r.open()
        assert ledger.last_position() == positions[-1]


async def test_cursor_names_are_taken_once(rooms):
    async with rooms() as r:
        ledger = await r.open()
        durable = await ledger.open_cursor("a/b c", initial="latest")
        assert await ledger.open_cursor("a/b c", initial="earliest") is durable
        with pytest.raises(Conflict):
            ledger.open_non_durable_cursor("a/b c", LATEST)
        ledger.open_non_durable_cursor("reader", LATEST)
        with pytest.raises(Conflict):
            await ledger.open_cursor("reader", initial="latest")
        await ledger.delete_cursor("reader")
        await ledger.delete_cursor("a/b c")
        with pytest.raises(SubscriptionNotFound):
            await ledger.delete_cursor("a/b c")


async def test_internal_stats_list_the_open_ledger_without_counts(rooms, publish):
    async with rooms() as r:
        ledger = await r.open(ROLL_AT_10)
        positions = await publish(ledger, bodies(14))
        cursor = await ledger.open_cursor("s", initial="earliest")
        cursor.acknowledge([positions[2], positions[3], positions[12]])
        stats = finished(ledger.internal_stats())
        assert stats.state == "LedgerOpened"
        assert [(i.entries, i.size_bytes) for i in stats.ledgers] == [(10, sum(map(len, bodies(10)))), (0, 0)]
        assert (stats.current_ledger_entries, stats.entries_added, stats.number_of_entries) == (4, 14, 14)
        old, new = positions[0].ledger_id, positions[-1].ledger_id
        holes = stats.cursors["s"]
        assert finished(ranges_text(holes.acknowledged_ranges)) == f"[({old}:1..{old}:3],({new}:1..{new}:2]]"
        assert (holes.ranges_count, holes.ranges_left_out) == (2, 0)
        assert holes.backlog_entries == 11
        assert stats.pending_adds == 0


async def test_internal_stats_list_some_ranges_and_then_the_next_ones(rooms, publish):
    async with rooms() as r:
        ledger = await r.open(ROLL_AT_10)
        positions = await publish(ledger, bodies(30))
        for name in ("a", "b"):
            (await ledger.open_cursor(name, initial="earliest")).acknowledge(positions[1::2])

        def listed(asked):
            cursors = finished(ledger.internal_stats(asked)).cursors
            return [
                ([Position(id_, last) for id_, _, last in c.acknowledged_ranges], c.ranges_left_out)
                for c in (cursors["a"], cursors["b"])
            ]

        holes = positions[1::2]
        assert listed(RangesAsked(20)) == [(holes, 0), (holes[:5], 10)], "of all cursors together"
        assert listed(RangesAsked(7, of="b")) == [([], 15), (holes[:7], 8)]
        assert listed(RangesAsked(7, of="b", after=holes[6])) == [([], 8), (holes[7:14], 1)]
        assert listed(RangesAsked(7, of="b", after=holes[13]))[1] == (holes[14:], 0)
        stats = ledger.internal_stats(RangesAsked(20))
        next(stats)
        ledger.cursors["a"].acknowledge(positions[:20:2])
        assert len(finished(stats).cursors["a"].acknowledged_ranges) == 15, "as of the first step"
        # A step for the copies, one for each of 3 ledgers whose ranges are counted, and one for each whose
        # ranges are listed, also behind the last range that is taken: 20 ledgers took 8 ms.
        few, all_left_out = (sum(1 for _ in ledger.cursors["b"].statistics(EARLIEST, n)) for n in (1, 0))
        assert (few, all_left_out) == (8, 7)


async def test_entries_that_wait_for_a_ledger_are_counted_until_it_is_there(rooms, publish):
    async with rooms() as r:
        room = r.tail_cache.append_room
        ledger = await r.open(ROLL_AT_10)
        big = [bytes(1 << 20)] * 20
        for body in big:
            ledger.append([body], body)
        assert room.waiting_bytes == 10 << 20  # the second ten have no ledger yet
        freed = trio.Event()
        room.call_when_freed(freed.set)
        with trio.fail_after(10):
            await freed.wait()
        await ledger.listener.settled(20)
        assert room.waiting_bytes == 0
        for body in big:
            ledger.append([body], body)
        await ledger.life.close()
        assert room.waiting_bytes == 0
        assert len(ledger.listener.confirmed) + len(ledger.listener.failed) == 40
        assert all(isinstance(error, ServiceNotReady) for error in ledger.listener.errors)
