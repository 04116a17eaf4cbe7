"""A full disk refuses entries for a while; the topic lives on."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from geminga.errors import ReadOnly, ServerError
from geminga.managed_ledger.chain.state import State
from geminga.managed_ledger.managed_ledger import ManagedLedgerSettings
from geminga.names import TopicName
from geminga.storage.disk_errors import DiskFull


async def test_a_topic_takes_entries_again_when_there_is_space(rooms: Any) -> None:
    async with rooms() as r:
        ledger = await r.open()
        cursor = await ledger.open_cursor("sub", initial="earliest")
        ledger.append([b"before"], None)
        while ledger.last_confirmed.entry_id < 0:
            await r.bookie.flush()
        r.bookie._space.is_full(r.bookie.directories[0].path, "for the test")
        with pytest.raises(ReadOnly) as refused:
            ledger.append([b"refused"], None)
        assert refused.value.server_error is ServerError.PERSISTENCE
        cursor.acknowledge([ledger.last_confirmed])
        await cursor.persist()
        await r.bookie._space.check()
        ledger.append([b"after"], None)
        while ledger.last_confirmed.entry_id < 1:
            await r.bookie.flush()
        entries = await ledger.read(ledger.first_position(), 10, 1000)
        assert [entry.body for entry in entries] == [b"before", b"after"]


class Full:
    """Makes the metadata's writes fail for lack of space."""

    def __init__(self, rooms: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self._values = rooms.metadata._key_value
        self._monkeypatch = monkeypatch
        self._write = self._values.write

    def begin(self) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise DiskFull("metadata: disk full, cannot write: no space")

        self._monkeypatch.setattr(self._values, "write", refuse)

    def end(self) -> None:
        self._monkeypatch.setattr(self._values, "write", self._write)


@pytest.fixture(autouse=True)
def _retries_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("geminga.managed_ledger.lifecycle.FULL_RETRY_S", 0.01)


SMALL = ManagedLedgerSettings(ledger_entries_max=3, rollover_min_ms=0, cursor_ledger_entries_max=2)


async def test_rollovers_wait_and_readers_go_on(
    rooms: Any, publish: Any, drain: Any, monkeypatch: pytest.MonkeyPatch, clock: Any
) -> None:
    """The ledger's, and the cursor's: what is acknowledged meanwhile is written when there is space."""
    async with rooms() as r:
        ledger = await r.open(SMALL)
        cursor = await ledger.open_cursor("sub", initial="earliest")
        positions = await publish(ledger, [b"1", b"2"])
        full = Full(r, monkeypatch)
        full.begin()
        ledger.append([b"3"], b"3")
        with trio.fail_after(10):
            while ledger._appender.full is None:
                await trio.lowlevel.checkpoint()
        assert ledger.state is State.CREATING
        with pytest.raises(ReadOnly, match="disk full"):
            ledger.append([b"refused"], b"refused")
        with pytest.raises(DiskFull):
            await ledger.life.set_properties({"a": "b"})
        with pytest.raises(DiskFull):
            await ledger.open_cursor("another", initial="earliest")
        assert await ledger.life.trim() == 0
        assert [body for _, body in await drain(ledger, ledger.first_position())] == [b"1", b"2", b"3"]
        cursor.acknowledge([positions[0]])
        with pytest.raises(ReadOnly):
            await cursor.persist()
        assert cursor.is_dirty
        assert cursor.mark_delete == positions[0]
        assert not ledger.fenced
        full.end()
        with trio.fail_after(10):
            while ledger.state is not State.OPEN:
                await trio.lowlevel.checkpoint()
        await cursor.persist()
        await publish(ledger, [b"4"])
        assert ledger.listener.failed == []
    async with rooms() as r:
        ledger = await r.open(SMALL)
        assert [body for _, body in await drain(ledger, ledger.first_position())] == [b"1", b"2", b"3", b"4"]
        assert ledger.cursors["sub"].mark_delete == positions[0]
        assert list(ledger.cursors) == ["sub"]
        assert ledger.properties == {}


async def test_a_full_cursor_ledger_is_written_on(
    rooms: Any, publish: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rooms(crash=True) as r:
        ledger = await r.open(ManagedLedgerSettings(cursor_ledger_entries_max=2))
        cursor = await ledger.open_cursor("sub", initial="earliest")
        positions = await publish(ledger, [b"%d" % number for number in range(6)])
        for number, position in enumerate(positions):
            if number == 2:
                Full(r, monkeypatch).begin()
            cursor.acknowledge([position])
            await cursor.persist()
        monkeypatch.undo()
    async with rooms() as r:
        ledger = await r.open()
        assert ledger.cursors["sub"].mark_delete == positions[-1]


async def test_a_topic_loads_on_a_full_disk(
    rooms: Any, publish: Any, drain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be read, and takes entries once there is space; a new one cannot be made."""
    async with rooms() as r:
        ledger = await r.open()
        await publish(ledger, [b"1"])
    async with rooms() as r:
        full = Full(r, monkeypatch)
        full.begin()
        with pytest.raises(DiskFull):
            await r.open(topic=TopicName.parse("persistent://public/default/new"))
        ledger = await r.open()
        assert [body for _, body in await drain(ledger, ledger.first_position())] == [b"1"]
        with pytest.raises(ReadOnly):
            ledger.append([b"refused"], b"refused")
        full.end()
        with trio.fail_after(10):
            while ledger.state is not State.OPEN:
                await trio.lowlevel.checkpoint()
        await publish(ledger, [b"2"])
        assert [body for _, body in await drain(ledger, ledger.first_position())] == [b"1", b"2"]


async def test_what_the_journal_refuses_fails_alone(
    rooms: Any, publish: Any, drain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rooms() as r:
        ledger = await r.open()
        cursor = await ledger.open_cursor("sub", initial="earliest")
        await publish(ledger, [b"1"])
        files = r.bookie.journals.only.files

        def refuse(*_: object) -> None:
            raise DiskFull("journal: disk full, cannot reserve space: no space")

        with monkeypatch.context() as full:
            full.setattr(files, "write", refuse)
            for number in range(3):
                ledger.append([b"refused %d" % number], number)
            await ledger.listener.settled(4)
        assert ledger.listener.failed == [0, 1, 2]
        assert not ledger.fenced
        assert r.bookie.read_only
        await r.bookie._space.check()
        await publish(ledger, [b"2"])
        cursor.acknowledge([ledger.last_confirmed])
        await cursor.persist()
        assert [body for _, body in await drain(ledger, ledger.first_position())] == [b"1", b"2"]
    async with rooms() as r:
        ledger = await r.open()
        assert [body for _, body in await drain(ledger, ledger.first_position())] == [b"1", b"2"]


async def test_a_topic_closes_in_order_on_a_full_disk(
    rooms: Any, publish: Any, drain: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with rooms() as r:
        ledger = await r.open()
        cursor = await ledger.open_cursor("sub", initial="earliest")
        positions = await publish(ledger, [b"1", b"2"])
        Full(r, monkeypatch).begin()
        cursor.acknowledge([positions[0]])
        await ledger.life.close()
        assert ledger.state is State.CLOSED
        assert not ledger.fenced
        assert "the last acknowledgements of sub could not be written" in caplog.text
        monkeypatch.undo()
    async with rooms() as r:
        ledger = await r.open()
        assert [body for _, body in await drain(ledger, ledger.first_position())] == [b"1", b"2"]
        assert ledger.cursors["sub"].mark_delete < positions[0]
