"""Whose ledger is whose, from journals and entry logs alone: whatever came in between."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from geminga.bookie.offline.ledger_names import MANAGED_LEDGERS, LedgerName, _path_of, ledger_names
from geminga.bookie.records.segment_map import SegmentMap
from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.running.bookie import Bookie
from geminga.metadata import records
from geminga.names import TopicName
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import RocksKeyValue

NAMES = {
    1: LedgerName("data", "/t/one"),
    2: LedgerName("cursor", "/t/one"),
    3: LedgerName("", "/t/two"),
    4: LedgerName("bucket", "/t/" + "long" * 500),
}

USUAL = BookieSettings()
SMALL = replace(USUAL, write_cache_bytes=500)


@asynccontextmanager
async def running(directory: Path, *, close: bool, settings: BookieSettings = USUAL) -> AsyncIterator[Bookie]:
    index = RocksKeyValue(str(directory / "index"))
    bookie = await Bookie.open(RealDisk(), index, str(directory / "bookie"), settings)
    async with trio.open_nursery() as nursery:
        await nursery.start(bookie.run)
        yield bookie
        if close:
            await bookie.close()
        nursery.cancel_scope.cancel()
    index.close()


async def write(bookie: Bookie, names: dict[int, LedgerName], entries: int = 1) -> None:
    for ledger_id, name in names.items():
        durable: list[int] = []
        told = trio.Event()

        def on_durable(last: int, durable: list[int] = durable, told: trio.Event = told) -> None:
            durable.append(last)
            if last == entries - 1:
                told.set()

        writer = bookie.create_ledger(
            ledger_id,
            on_durable=on_durable,
            on_failed=lambda error: None,
            topic=name.topic,
            purpose=name.purpose,
        )
        for number in range(entries):
            writer.append(b"%d" % number)
        await told.wait()
        writer.close()


def named(directory: Path, *, journals: bool = True) -> dict[int, LedgerName]:
    bookie = directory / "bookie"
    return ledger_names(RealDisk(), [str(bookie / "journal")] * journals, [str(bookie / "entry-logs")])


def logs(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "bookie" / "entry-logs").iterdir())


async def test_a_journal_names_the_ledgers_that_begin_in_it(tmp_path: Path) -> None:
    async with running(tmp_path, close=False) as bookie:
        await write(bookie, NAMES)
    assert logs(tmp_path) == []
    assert named(tmp_path) == NAMES


async def test_closed_entry_logs_name_their_ledgers(tmp_path: Path) -> None:
    async with running(tmp_path, close=True) as bookie:
        await write(bookie, NAMES)
    assert named(tmp_path, journals=False) == NAMES


async def test_a_log_that_was_never_closed_names_its_ledgers(tmp_path: Path) -> None:
    flushed = {1: NAMES[1], 2: NAMES[2]}
    async with running(tmp_path, close=False) as bookie:
        await write(bookie, flushed)
        await bookie.flush()
        await write(bookie, {3: NAMES[3], 4: NAMES[4]}, entries=5)
    assert named(tmp_path, journals=False) == flushed
    async with running(tmp_path, close=False):
        pass  # a recovery writes the rest, and is killed as well
    assert len(logs(tmp_path)) == 2
    assert named(tmp_path, journals=False) == NAMES


async def test_compaction_carries_names_out_of_a_log_that_was_never_closed(tmp_path: Path) -> None:
    async with running(tmp_path, close=False) as bookie:
        await write(bookie, NAMES, entries=5)
        await bookie.flush()
    (first,) = logs(tmp_path)
    async with running(tmp_path, close=False) as bookie:
        await bookie.delete_ledger(4)
        await bookie.compact(0.9)
        await bookie.collect_garbage()
    assert first not in logs(tmp_path)
    left = {ledger_id: name for ledger_id, name in NAMES.items() if ledger_id != 4}
    assert named(tmp_path, journals=False) == left


async def test_entries_that_are_healed_take_their_names_along(tmp_path: Path) -> None:
    async with running(tmp_path, close=True) as bookie:
        await write(bookie, NAMES)
    (first,) = logs(tmp_path)
    async with running(tmp_path, close=False) as bookie:
        storage = bookie.directories[0].storage
        healed = SegmentMap()
        for ledger_id in NAMES:
            healed.add((await storage.load(ledger_id, 0, 0, 1000))[0])
        assert await storage.rewrite(healed) == len(NAMES)
    (tmp_path / "bookie" / "entry-logs" / first).unlink()
    assert named(tmp_path, journals=False) == NAMES


async def test_names_are_nothing_to_compact_a_log_for(tmp_path: Path) -> None:
    async with running(tmp_path, close=True) as bookie:
        await write(bookie, NAMES)
    before = logs(tmp_path)
    async with running(tmp_path, close=True) as bookie:
        await bookie.compact(1.0)
    assert logs(tmp_path) == before


async def test_names_take_no_entry_s_place(tmp_path: Path) -> None:
    async with running(tmp_path, close=False) as bookie:
        await write(bookie, NAMES, entries=3)
        await bookie.flush()
    for part in (tmp_path / "index").iterdir():
        part.unlink()
    async with running(tmp_path, close=True) as bookie:
        assert bookie.recovery.index_rebuilt
        assert bookie.inventory.ledgers() == set(NAMES)
        for ledger_id in NAMES:
            assert bookie.last_entry_id(ledger_id) == 2
            assert await bookie.read(ledger_id, 0, 2, bytes_max=1000) == [b"0", b"1", b"2"]


def test_there_is_nothing_to_name_without_files(tmp_path: Path) -> None:
    assert named(tmp_path) == {}


def test_names_of_topics_in_old_entry_logs_become_their_paths() -> None:
    assert MANAGED_LEDGERS == records.MANAGED_LEDGERS
    topic = "persistent://public/default/ä b"
    assert _path_of(topic) == records.managed_ledger_path(TopicName.parse(topic))
    assert _path_of("/managed-ledgers/a/b/persistent/c") == "/managed-ledgers/a/b/persistent/c"
    assert _path_of("://") == "://"


async def test_a_ledger_that_ends_during_a_flush_is_named_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache is full when the flush is over, so it is at once that of another, which needs the writer."""
    async with running(tmp_path, close=True, settings=SMALL) as bookie:
        await write(bookie, {1: NAMES[1]})
        (directory,) = bookie.directories
        flush = directory.storage.flush

        async def flush_and_fill(*arguments: Any) -> None:
            monkeypatch.undo()
            await flush(*arguments)
            await write(bookie, {3: NAMES[3]}, 100)

        monkeypatch.setattr(directory.storage, "flush", flush_and_fill)
        await bookie.flush()
        await bookie.flush()
    assert named(tmp_path, journals=False) == {1: NAMES[1], 3: NAMES[3]}
