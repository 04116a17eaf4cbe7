"""Whose ledger is whose, from journals and entry logs alone."""

from __future__ import annotations

from pathlib import Path

import trio

from geminga.bookie.offline.ledger_names import MANAGED_LEDGERS, LedgerName, _path_of, ledger_names
from geminga.bookie.records.settings import BookieSettings
from geminga.bookie.running.bookie import Bookie
from geminga.metadata import records
from geminga.names import TopicName
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import RocksKeyValue


async def _write(directory: Path, names: dict[int, LedgerName], *, close: bool) -> None:
    index = RocksKeyValue(str(directory / "index"))
    bookie = await Bookie.open(RealDisk(), index, str(directory / "bookie"), BookieSettings())
    async with trio.open_nursery() as nursery:
        await nursery.start(bookie.run)
        for ledger_id, name in names.items():
            durable = trio.Event()
            writer = bookie.create_ledger(
                ledger_id,
                on_durable=lambda last, durable=durable: durable.set(),  # type: ignore[misc]
                on_failed=lambda error: None,
                topic=name.topic,
                purpose=name.purpose,
            )
            writer.append(b"first")
            await durable.wait()
        if close:
            await bookie.close()
        nursery.cancel_scope.cancel()
    index.close()


def named(directory: Path) -> dict[int, LedgerName]:
    bookie = directory / "bookie"
    return ledger_names(RealDisk(), [str(bookie / "journal")], [str(bookie / "entry-logs")])


async def test_closed_entry_logs_name_their_ledgers(tmp_path: Path) -> None:
    await _write(tmp_path, {1: LedgerName("", "/t/one"), 2: LedgerName("", "/t/two")}, close=True)
    assert named(tmp_path) == {1: LedgerName("", "/t/one"), 2: LedgerName("", "/t/two")}


def test_there_is_nothing_to_name_without_files(tmp_path: Path) -> None:
    assert named(tmp_path) == {}


async def test_a_journal_names_the_ledgers_that_begin_in_it(tmp_path: Path) -> None:
    names = {1: LedgerName("data", "/t/one"), 2: LedgerName("cursor", "/t/one"), 3: LedgerName("", "/t/two")}
    await _write(tmp_path, names, close=False)
    assert list((tmp_path / "bookie" / "entry-logs").iterdir()) == []
    assert named(tmp_path) == names


def test_names_of_topics_in_old_entry_logs_become_their_paths() -> None:
    assert MANAGED_LEDGERS == records.MANAGED_LEDGERS
    topic = "persistent://public/default/ä b"
    assert _path_of(topic) == records.managed_ledger_path(TopicName.parse(topic))
    assert _path_of("/managed-ledgers/a/b/persistent/c") == "/managed-ledgers/a/b/persistent/c"
    assert _path_of("://") == "://"
