"""Several journals and ledger directories on a real disk: slow, failed and full ones."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import trio

from geminga.bookie.running.bookie import Bookie, LedgerFiles
from geminga.bookie.running.ledger_writer import LedgerWriter
from geminga.errors import ReadOnly, StorageError
from geminga.limits import MIB
from geminga.storage.disk import RealDisk
from geminga.storage.key_value import RocksKeyValue

SECONDS_MAX = 20.0


class SmallDisk(RealDisk):
    """Free space below one directory is whatever a test says."""

    def __init__(self, small: str) -> None:
        super().__init__()
        self.small = small
        self.free = 1 << 40

    def free_bytes(self, path: str) -> int:
        return self.free if path.startswith(self.small) else 1 << 40


class RealBookie:
    """Two journals and two ledger directories below `path`, running."""

    def __init__(self, path: Path, disk: RealDisk) -> None:
        self.path = path
        self.disk = disk

    async def __aenter__(self) -> Bookie:
        places = []
        self._indexes = []
        for name in ("l1", "l2"):
            index = self.path / name / "index"
            index.mkdir(parents=True, exist_ok=True)
            self._indexes.append(RocksKeyValue(str(index)))
            places.append(LedgerFiles(str(self.path / name), self._indexes[-1]))
        journals = [str(self.path / "j1"), str(self.path / "j2")]
        self.bookie = await Bookie.open_directories(self.disk, journals, places)
        self._manager = trio.open_nursery()
        nursery = await self._manager.__aenter__()
        await nursery.start(self.bookie.run)
        return self.bookie

    async def __aexit__(self, *error: Any) -> None:
        if error[0] is None:
            await self.bookie.close()
        await self._manager.__aexit__(*error)
        for index in self._indexes:
            index.close()


class Receipts:
    """A ledger's owner."""

    def __init__(self, bookie: Bookie, ledger_id: int) -> None:
        self.durable = -1
        self.failure: StorageError | None = None
        self._bookie = bookie
        self.writer: LedgerWriter = bookie.create_ledger(
            ledger_id, on_durable=self._on_durable, on_failed=self._on_failed
        )
        self._changed = trio.Event()

    def _on_durable(self, last: int) -> None:
        self.durable = last
        self._changed.set()

    def _on_failed(self, error: StorageError) -> None:
        self.failure = error
        self._changed.set()

    async def wait(self, last: int) -> None:
        while self.durable < last and self.failure is None:
            self._changed = trio.Event()
            await self._changed.wait()


def test_there_is_no_room_while_one_journal_has_its_share_of_the_queue(tmp_path: Path) -> None:
    async def script() -> None:
        async with RealBookie(tmp_path, RealDisk()) as bookie:
            writer = bookie.create_ledger(0, on_durable=lambda last: None, on_failed=lambda error: None)
            for number in range(4):
                assert bookie.has_room()
                writer.append(bytes(MIB))  # nothing is written before the loop goes on
                assert bookie.has_room() == (number < 3)
            await bookie.wait_room()

    trio.run(script)


async def test_a_slow_journal_does_not_hold_the_receipts_of_another(tmp_path: Path) -> None:
    let_go = threading.Event()
    with trio.fail_after(SECONDS_MAX):
        async with RealBookie(tmp_path, RealDisk()) as bookie:
            quick, slow = Receipts(bookie, 2), Receipts(bookie, 3)
            files = bookie.journals.of(3).files
            write = files.write

            def write_late(*group: Any) -> Any:
                assert let_go.wait(SECONDS_MAX)
                return write(*group)

            files.write = write_late  # type: ignore[method-assign]
            slow.writer.append(b"waits")
            for number in range(50):
                quick.writer.append(b"%d" % number)
                await quick.wait(number)
            assert (quick.durable, slow.durable) == (49, -1)
            assert bookie.read_cached(3, 0, 0) == []
            let_go.set()
            await slow.wait(0)
            assert bookie.read_cached(3, 0, 0) == [b"waits"]


async def test_a_failed_journal_ends_all_of_it(tmp_path: Path) -> None:
    """Whose entries are where is fixed: a bookie that went on without one of its disks would refuse some."""

    async def live() -> None:
        async with RealBookie(tmp_path, RealDisk()) as bookie:
            one, other = Receipts(bookie, 2), Receipts(bookie, 3)

            def fail(*_: object) -> Any:
                raise StorageError("disk on fire")

            bookie.journals.of(3).files.write = fail  # type: ignore[method-assign]
            other.writer.append(b"x")
            await other.wait(0)
            assert str(other.failure) == "disk on fire"
            with pytest.raises(StorageError, match="disk on fire"):
                one.writer.append(b"y")
            await trio.sleep_forever()

    with trio.fail_after(SECONDS_MAX), pytest.raises(BaseExceptionGroup) as caught:
        await live()
    assert caught.group_contains(StorageError, match="disk on fire", depth=1)


@pytest.mark.parametrize("small", ["l2", "j1"])
async def test_one_full_disk_makes_the_bookie_read_only(tmp_path: Path, small: str) -> None:
    disk = SmallDisk(str(tmp_path / small))
    with trio.fail_after(SECONDS_MAX):
        async with RealBookie(tmp_path, disk) as bookie:
            receipts = Receipts(bookie, 2)  # in l1, and through j1
            disk.free = 1 * MIB
            await bookie._space.check()
            assert "1 MiB are free" in bookie.read_only
            with pytest.raises(ReadOnly):
                receipts.writer.append(b"x")
            disk.free = 1 << 40
            await bookie._space.check()
            assert bookie.read_only == ""
            receipts.writer.append(b"x")
            await receipts.wait(0)
