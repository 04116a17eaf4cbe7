"""A journal that waits for its groups to fill: fewer syncs, and no entry waits longer than it was told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.running.bookie import Bookie
from geminga.errors import StorageError
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import RocksKeyValue

LONG_S = 1000.0
"""Nothing in a test waits for this to pass."""


@asynccontextmanager
async def running(path: Path, settings: BookieSettings) -> AsyncIterator[Bookie]:
    index = RocksKeyValue(str(path / "index"))
    try:
        bookie = await Bookie.open(RealDisk(), index, str(path / "bookie"), settings)
        async with trio.open_nursery() as nursery:
            await nursery.start(bookie.run)
            yield bookie
            await bookie.close()
            nursery.cancel_scope.cancel()
    finally:
        index.close()


class Owner:
    def __init__(self, bookie: Bookie) -> None:
        self.durable = -1
        self._progress = trio.Event()
        self.writer = bookie.create_ledger(
            1, on_durable=self._on_durable, on_failed=self._on_failed, topic="t"
        )

    async def until_durable(self, entry_id: int) -> None:
        while self.durable < entry_id:
            await self._progress.wait()

    def _on_durable(self, last_entry_id: int) -> None:
        self.durable = last_entry_id
        self._progress.set()
        self._progress = trio.Event()

    def _on_failed(self, error: StorageError) -> None:
        raise AssertionError(error)


async def idle(bookie: Bookie) -> None:
    """Until the journal's thread sleeps."""
    while not bookie.journals.of(1).idle:  # noqa: ASYNC110 - a thread says so, without an event
        await trio.sleep(0.001)


async def test_entries_of_one_wait_are_one_group(tmp_path: Path) -> None:
    async with running(tmp_path, BookieSettings(journal_group_wait_s=LONG_S)) as bookie:
        await idle(bookie)
        owner = Owner(bookie)
        for number in range(20):
            owner.writer.append(b"%d" % number)
            await trio.sleep(0.001)
        assert owner.durable == -1
        bookie.journals.of(1).stop()
        await owner.until_durable(19)
        assert bookie.statistics().journal_groups == 1


async def test_a_full_group_does_not_wait(tmp_path: Path) -> None:
    settings = BookieSettings(journal_group_wait_s=LONG_S, journal_group_entries_max=8)
    async with running(tmp_path, settings) as bookie:
        await idle(bookie)
        owner = Owner(bookie)
        for _ in range(8):
            owner.writer.append(b"x")
        await owner.until_durable(7)
    settings = BookieSettings(journal_group_wait_s=LONG_S, journal_group_bytes_max=1000)
    async with running(tmp_path / "bytes", settings) as bookie:
        await idle(bookie)
        owner = Owner(bookie)
        owner.writer.append(bytes(2000))
        await owner.until_durable(0)


async def test_a_group_that_fills_while_it_waits_is_written_at_once(tmp_path: Path) -> None:
    settings = BookieSettings(journal_group_wait_s=LONG_S, journal_group_entries_max=8)
    async with running(tmp_path, settings) as bookie:
        await idle(bookie)
        owner = Owner(bookie)
        for number in range(8):
            await trio.sleep(0.003)  # the thread is awake and waits
            assert owner.durable == -1
            owner.writer.append(b"%d" % number)
        with trio.fail_after(20):
            await owner.until_durable(7)


async def test_the_wait_ends(tmp_path: Path) -> None:
    async with running(tmp_path, BookieSettings(journal_group_wait_s=0.05)) as bookie:
        await idle(bookie)
        owner = Owner(bookie)
        for number in range(4):
            started = trio.current_time()
            owner.writer.append(b"x")
            with trio.fail_after(20):
                await owner.until_durable(number)
            assert trio.current_time() - started > 0.04 or number == 0  # the thread may have begun before
            await idle(bookie)
