"""Whose records they are: closed, deleted and fenced attachments never touch what a topic opened anew has."""

from __future__ import annotations

import threading
from contextlib import suppress

import pytest
import trio
import trio.testing

from geminga.errors import BadVersion, ServiceNotReady, StorageError
from geminga.managed_ledger.chain.state import State
from geminga.managed_ledger.cursor import attachment
from geminga.managed_ledger.managed_ledger import ManagedLedger, ManagedLedgerSettings
from geminga.managed_ledger.orphans import find_orphan_ledgers
from geminga.metadata import records, store
from geminga.metadata.node import ValueTooLarge
from geminga.position import EARLIEST
from geminga.storage.real_file import RealFile

PATH = "/managed-ledgers/public/default/persistent/orders"
CURSOR = f"{PATH}/s"
ROLL_AT_10 = ManagedLedgerSettings(ledger_entries_max=10, rollover_min_ms=0)
SOON = ManagedLedgerSettings(cursor_persist_interval_ms=1)
REFUSED = (ServiceNotReady, StorageError)


def bodies(count: int) -> list[bytes]:
    return [b"message %d" % i for i in range(count)]


def rows(r):
    """Every record of the topic, with its version."""
    paths = [PATH, *(f"{PATH}/{component}" for component in r.metadata.children(PATH))]
    return {path: r.metadata.get(path) for path in paths}


async def every_change(ledger: ManagedLedger, cursor) -> list[type[Exception] | None]:
    """What a late caller might still do with an attachment, and what each call raised."""
    raised: list[type[Exception] | None] = []
    for call in (
        lambda: cursor.reset(EARLIEST),
        lambda: cursor.swap_properties({"x": 1}, {}),
        lambda: cursor.persist(),
        lambda: ledger.delete_cursor("s"),
        lambda: ledger.open_cursor("other", initial="earliest"),
        lambda: ledger.life.set_properties({"x": "1"}),
        lambda: ledger.life.terminate(),
    ):
        try:
            await call()
        except REFUSED as error:
            raised.append(type(error))
        else:
            raised.append(None)
    return raised


async def test_closed_attachment_changes_nothing_of_the_one_opened_after_it(rooms, publish):
    async with rooms() as r:
        old = await r.open()
        stale = await old.open_cursor("s", initial="earliest")
        positions = await publish(old, bodies(5))
        await old.life.close()
        new = await r.open(SOON)
        before = rows(r)
        stale.acknowledge(positions)
        assert await every_change(old, stale) == [ServiceNotReady] * 7
        assert rows(r) == before
        assert await old.life.trim() == 0
        await old.life.close()
        cursor = new.cursors["s"]
        assert cursor.backlog_entries() == 5
        cursor.acknowledge(positions)  # and its own writes are not disturbed
        await cursor.persist()
        await cursor.swap_properties({"x": 2}, {})
        await new.life.close()
        assert (await r.open()).cursors["s"].backlog_entries() == 0


@pytest.mark.parametrize("steps", range(12))
async def test_calls_that_wait_while_it_is_closed_are_refused_not_made_afterwards(rooms, publish, steps):
    """Whatever was on its way is in the record when `close` returns, or never."""
    async with rooms() as r:
        old = await r.open()
        stale = await old.open_cursor("s", initial="earliest")
        await publish(old, bodies(5))

        async def late(call):
            with suppress(*REFUSED):
                await call()

        async with trio.open_nursery() as nursery:
            for call in (
                lambda: stale.swap_properties({"x": 1}, {}),
                lambda: stale.reset(EARLIEST),
                lambda: old.open_cursor("b", initial="latest"),
                lambda: old.delete_cursor("s"),
            ):
                nursery.start_soon(late, call)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            await old.life.close()
            before = rows(r)
        assert rows(r) == before
        new = await r.open()
        await new.open_cursor("b", initial="latest")
        await new.life.delete()
        assert rows(r) == {PATH: None}


@pytest.mark.parametrize("steps", range(12))
async def test_subscribing_while_the_topic_is_deleted_leaves_no_cursor(rooms, publish, steps):
    async with rooms() as r:
        ledger = await r.open()
        await ledger.open_cursor("s", initial="earliest")
        await publish(ledger, bodies(3))
        outcomes = []

        async def subscribe():
            for i in range(5):
                try:
                    await ledger.open_cursor(f"ghost {i}", initial="earliest")
                    outcomes.append("opened")
                except REFUSED:
                    outcomes.append("refused")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(subscribe)
            for _ in range(steps):
                await trio.lowlevel.checkpoint()
            await ledger.life.delete()
        assert rows(r) == {PATH: None}
        assert find_orphan_ledgers(r.metadata) == []
        assert len(outcomes) == 5
        assert outcomes[-1] == "refused"


async def test_deleting_takes_records_that_nobody_in_memory_knows(rooms, publish):
    async with rooms() as r:
        ledger = await r.open()
        ghost = records.CursorRecord(mark_delete=(1, -1))
        await r.metadata.put(f"{PATH}/ghost", records.encode(ghost))
        await r.metadata.put(f"{PATH}/damaged", b"?")
        await ledger.life.delete()
        assert rows(r) == {PATH: None}


@pytest.mark.parametrize("damage", ["changed", "gone", "too large"])
async def test_cursor_record_that_is_not_ours_fences_this_topic_alone(
    rooms, publish, damage, caplog, monkeypatch
):
    async with rooms() as r:
        ledger = await r.open(SOON)
        cursor = await ledger.open_cursor("s", initial="earliest")
        positions = await publish(ledger, bodies(3))
        if damage == "changed":
            await r.metadata.put(CURSOR, r.metadata.get(CURSOR).value)
        elif damage == "gone":
            await r.metadata.delete(CURSOR)
        else:
            monkeypatch.setattr(store, "VALUE_BYTES_MAX", 100)
        cursor.acknowledge(positions[:2])
        with trio.fail_after(10):
            await ledger.listener.fenced.wait()
        monkeypatch.undo()
        assert ledger.state is State.FENCED
        assert "persistent://public/default/orders is FENCED" in caplog.text
        with pytest.raises(ServiceNotReady, match="fenced"):
            ledger.append([b"late"], None)
        before = rows(r)
        assert await every_change(ledger, cursor) == [ServiceNotReady] * 7
        assert rows(r) == before
        await ledger.life.close()
        assert ledger.state is State.CLOSED
        again = await r.open()  # its messages are all there, and acknowledged ones at worst come again
        assert again.number_of_entries == 3
        if damage != "gone":
            assert again.cursors["s"].backlog_entries() == 3
        await publish(again, bodies(1))
        if damage != "gone":
            record = records.decode(records.CursorRecord, r.metadata.get(CURSOR).value, CURSOR)
            assert record.cursor_ledger_id == -1
        assert find_orphan_ledgers(r.metadata) == []


@pytest.mark.parametrize("damage", ["changed", "too large"])
async def test_chain_record_that_cannot_be_written_fences_and_fails_what_waits(
    rooms, publish, damage, monkeypatch
):
    async with rooms() as r:
        ledger = await r.open(ROLL_AT_10)
        if damage == "changed":
            await r.metadata.put(PATH, r.metadata.get(PATH).value)
        else:
            monkeypatch.setattr(store, "VALUE_BYTES_MAX", 100)
        for body in bodies(20):
            ledger.append([body], body)
        await ledger.listener.settled(20)
        with trio.fail_after(10):
            await ledger.listener.fenced.wait()
        assert len(ledger.listener.confirmed) == 10  # and ten had no ledger yet
        error = BadVersion if damage == "changed" else ValueTooLarge
        assert [type(e) for e in ledger.listener.errors] == [error]
        assert isinstance(ledger.error, error)
        monkeypatch.undo()
        await ledger.life.close()
        again = await r.open(ROLL_AT_10)
        assert again.number_of_entries == 10
        await publish(again, bodies(15))


async def test_trimming_that_fails_fences_and_ends_nothing_else(rooms, publish):
    async with rooms() as r:
        ledger = await r.open(ROLL_AT_10)
        await publish(ledger, bodies(15))
        await r.metadata.put(PATH, r.metadata.get(PATH).value)
        assert await ledger.life.trim() == 0
        assert ledger.state is State.FENCED
        await ledger.life.close()
        assert (await r.open()).number_of_entries == 15


async def test_fenced_with_entries_on_their_way_opens_again_with_a_fixed_end(
    rooms, publish, drain, monkeypatch
):
    """What the bookie has accepted still becomes durable: closing waits, so that opening sees all of it."""
    async with rooms() as r:
        ledger = await r.open()
        await publish(ledger, bodies(3))
        await r.metadata.put(PATH, r.metadata.get(PATH).value)
        may_sync, write_synced = threading.Event(), RealFile.write_synced

        def late(file, offset, parts):
            assert may_sync.wait(10)
            write_synced(file, offset, parts)

        monkeypatch.setattr(RealFile, "write_synced", late)
        for body in bodies(200):
            ledger.append([body], body)
        with pytest.raises(BadVersion):
            await ledger.life.set_properties({"x": "1"})
        assert len(ledger.listener.failed) == 200
        closed = trio.Event()

        async def close():
            await ledger.life.close()
            closed.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(close)
            await trio.testing.wait_all_tasks_blocked()
            assert not closed.is_set()
            may_sync.set()
        again = await r.open()
        assert again.number_of_entries == 203
        await publish(again, bodies(3))
        assert len(await drain(again, again.first_position())) == 206


@pytest.mark.parametrize("what", ["chain", "cursor"])
async def test_close_that_fails_half_way_is_closed_all_the_same(rooms, publish, what):
    async with rooms() as r:
        ledger = await r.open()
        cursor = await ledger.open_cursor("s", initial="earliest")
        other = await ledger.open_cursor("t", initial="earliest")
        positions = await publish(ledger, bodies(5))
        path = PATH if what == "chain" else CURSOR
        await r.metadata.put(path, r.metadata.get(path).value)
        cursor.acknowledge(positions[:2])
        other.acknowledge(positions[:1])
        with pytest.raises(BadVersion):
            await ledger.life.close()
        assert ledger.state is State.CLOSED
        await ledger.life.close()
        again = await r.open()
        assert again.number_of_entries == 5
        assert again.cursors["t"].backlog_entries() == 4
        assert again.cursors["s"].backlog_entries() == (3 if what == "chain" else 5)
        await again.life.close()


async def test_delete_that_fails_leaves_a_topic_that_can_be_opened_and_deleted(rooms, publish):
    async with rooms() as r:
        ledger = await r.open()
        await ledger.open_cursor("s", initial="earliest")
        await publish(ledger, bodies(5))
        await r.metadata.put(PATH, r.metadata.get(PATH).value)
        with pytest.raises(BadVersion):
            await ledger.life.delete()
        assert ledger.state is State.CLOSED
        again = await r.open()
        assert again.number_of_entries == 5
        assert list(again.cursors) == ["s"]
        await again.life.delete()
        assert rows(r) == {PATH: None}


async def test_cancelled_deletion_of_a_cursor_leaves_it_usable_or_gone(rooms, publish):
    left = set()
    for steps in range(8):
        async with rooms() as r:
            ledger = await r.open()
            cursor = await ledger.open_cursor("s", initial="earliest")
            positions = await publish(ledger, bodies(3))
            cursor.acknowledge(positions[:1])
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cursor.persist)  # it holds the lock that the deletion waits for
                await trio.lowlevel.checkpoint()
                async with trio.open_nursery() as deleting:
                    deleting.start_soon(ledger.delete_cursor, "s")
                    for _ in range(steps * 2):
                        await trio.sleep(0.0002)
                    deleting.cancel_scope.cancel()
            left.add("s" in ledger.cursors)
            assert (r.metadata.get(CURSOR) is not None) is ("s" in ledger.cursors)
            if "s" in ledger.cursors:
                await cursor.swap_properties({"x": 1}, {})
                cursor.acknowledge(positions)
                await cursor.persist()
                assert not cursor.is_dirty
                await ledger.delete_cursor("s")
    assert True in left


async def test_properties_leave_room_for_what_the_broker_adds(rooms, publish, monkeypatch):
    """A record that was let in can always be written again with our own numbers in it."""
    async with rooms() as r:
        ledger = await r.open(SOON)
        large = {"x": "y" * (store.VALUE_BYTES_MAX - attachment.HEADROOM_BYTES)}
        for call in (
            lambda: ledger.open_cursor("t", initial="earliest", subscription_properties=large),
            lambda: ledger.life.set_properties(large),
        ):
            with pytest.raises(ValueTooLarge):
                await call()
        fits = {"x": "y" * (store.VALUE_BYTES_MAX - attachment.HEADROOM_BYTES - 500)}
        cursor = await ledger.open_cursor("s", initial="earliest", subscription_properties=fits)
        assert ledger.state is State.OPEN
        positions = await publish(ledger, bodies(5))
        cursor.acknowledge(positions)
        await cursor.persist()
        assert dict(cursor.subscription_properties) == fits


async def test_longest_chain_gets_no_new_ledgers_until_it_is_trimmed(rooms, publish, caplog):
    settings = ManagedLedgerSettings(ledger_entries_max=10, rollover_min_ms=0, ledgers_max=3)
    async with rooms() as r:
        ledger = await r.open(settings)
        await publish(ledger, bodies(100))
        assert [len(ledger.ledgers), ledger.number_of_entries] == [3, 100]
        assert caplog.text.count("3 ledgers") == 1
        assert "persistent://public/default/orders" in caplog.text
        assert await ledger.life.trim() == 2
        await publish(ledger, bodies(64))
        assert (await publish(ledger, bodies(1)))[0].ledger_id == ledger.ledgers[-1].ledger_id
        assert len(ledger.ledgers) == 2


def test_longest_chain_fits_into_its_record():
    """With room for thousands of restarts, each of which may add one more."""
    largest = records.LedgerInfo(
        ledger_id=10**9, entries=10**7, size_bytes=2048 * 2**20, closed_ms=2_000_000_000_000
    )
    record = records.ManagedLedgerRecord(ledgers=[largest] * (ManagedLedgerSettings().ledgers_max + 2000))
    assert len(records.encode(record)) <= store.VALUE_BYTES_MAX - attachment.HEADROOM_BYTES


async def test_damaged_cursor_state_is_never_claimed_durable_after_a_failed_switch(rooms, publish):
    """The new cursor ledger is not written to while the record does not name it."""
    async with rooms() as r:
        ledger = await r.open(ManagedLedgerSettings(cursor_ledger_entries_max=1))
        cursor = await ledger.open_cursor("s", initial="earliest")
        positions = await publish(ledger, bodies(3))
        cursor.acknowledge(positions[:1])
        await cursor.persist()
        await r.metadata.put(CURSOR, r.metadata.get(CURSOR).value)
        cursor.acknowledge(positions[:2])
        with pytest.raises(BadVersion):
            await cursor.persist()
        assert cursor.is_dirty
        with pytest.raises(ServiceNotReady):
            await cursor.persist()
        await ledger.life.close()
        assert (await r.open()).cursors["s"].backlog_entries() == 2
