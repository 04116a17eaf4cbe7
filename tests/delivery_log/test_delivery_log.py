"""The delivery log under trouble: too many events, a disk that fails, old files that go."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
import trio

from geminga.clock import TrioClock
from geminga.delivery_log import delivery_log
from geminga.delivery_log import notes as delivery_log_notes
from geminga.delivery_log.delivery_log import DeliveryLog
from geminga.delivery_log.log_format import Kind, file_name, segments
from geminga.delivery_log.notes import ACKED, CLOSED, DUPLICATE, MISSED, OPENED, RELEASED
from geminga.storage.disk import File, RealDisk
from geminga.storage.disk_errors import DiskFull
from geminga.storage.real_file import RealFile


class Strict:
    """Of a subscription that is given nothing early."""

    overrides: ClassVar[dict[int, int]] = {}

    def early_max_ms(self) -> int:
        return 0


class FullDisk(RealDisk):
    """Takes nothing while `is_full`."""

    is_full = False

    def create(self, path: str) -> File:
        if self.is_full:
            raise DiskFull(f"{path}: no space left")
        return super().create(path)


def kinds(directory: str, number: int) -> list[int]:
    data = RealDisk().read_file(f"{directory}/{file_name(number)}")
    return [kind for segment in segments(data) for kind in segment.columns["kind"].tolist()]


def missed(directory: str, number: int) -> int:
    data = RealDisk().read_file(f"{directory}/{file_name(number)}")
    found = 0
    for segment in segments(data):
        found += int(segment.columns["batch_size"][segment.columns["kind"] == MISSED].sum())
    return found


def made(tmp_path: Path, disk: RealDisk, **sizes: int) -> DeliveryLog:
    given = {"file_bytes_max": 1 << 20, "total_bytes_max": 0, **sizes}
    return DeliveryLog(f"{tmp_path}/log", disk, TrioClock(), **given)


async def test_what_is_too_much_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr(delivery_log, "PENDING_EVENTS_MAX", 100)
    log = made(tmp_path, RealDisk())
    await nursery.start(lambda task_status: log.run(task_status=task_status))
    for number in range(130):
        log.duplicate("t", "p", number, 1)
    await log.close()
    found = kinds(f"{tmp_path}/log", 1)
    assert (
        found.count(DUPLICATE) + missed(f"{tmp_path}/log", 1) + found.count(OPENED) + found.count(CLOSED)
        == 132
    )
    assert missed(f"{tmp_path}/log", 1) >= 30


async def test_a_disk_that_fails_stops_nobody(
    tmp_path: Path, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FullDisk()
    log = made(tmp_path, disk, file_bytes_max=1)
    await nursery.start(lambda task_status: log.run(task_status=task_status))
    disk.is_full = True
    log.duplicate("t", "p", 0, 1)
    await log._write()
    log.duplicate("t", "p", 1, 1)
    await log._write()
    assert caplog.text.count("cannot be written") == 1
    disk.is_full = False
    log.duplicate("t", "p", 2, 1)
    await log._write()
    await log.close()
    numbers = [int(name.split("-")[1].split(".")[0]) for name in RealDisk().list(f"{tmp_path}/log")]
    found = [kind for number in numbers for kind in kinds(f"{tmp_path}/log", number)]
    assert (
        sum(missed(f"{tmp_path}/log", number) for number in numbers) + len(found) - found.count(MISSED) == 5
    )
    assert found[-1] == CLOSED


async def test_tries_on_a_full_disk_leave_no_files_and_no_descriptors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    log = made(tmp_path, RealDisk(), file_bytes_max=1)
    await nursery.start(lambda task_status: log.run(task_status=task_status))
    await log._write()
    tried: list[RealFile] = []

    def no_room(file: RealFile, data: bytes) -> int:
        tried.append(file)
        raise DiskFull(f"{file.path}: no space left")

    with monkeypatch.context() as full:
        full.setattr(RealFile, "append", no_room)
        for number in range(5):
            log.duplicate("t", "p", number, 1)
            await log._write()
    assert len(tried) >= 5
    assert all(file._descriptor < 0 for file in tried)
    assert RealDisk().list(f"{tmp_path}/log") == [file_name(1)]
    await log.close()
    assert missed(f"{tmp_path}/log", 2) == 5


async def test_the_oldest_files_go(tmp_path: Path, nursery: trio.Nursery) -> None:
    log = made(tmp_path, RealDisk(), file_bytes_max=1000, total_bytes_max=3000)
    await nursery.start(lambda task_status: log.run(task_status=task_status))
    for number in range(60):
        log.duplicate("t", f"p{number}", number, 1)
        await log._write()
    await log.close()
    names = RealDisk().list(f"{tmp_path}/log")
    assert 2 <= len(names) <= 4
    assert kinds(f"{tmp_path}/log", int(names[-1].split("-")[1].split(".")[0]))[-1] == CLOSED


def test_the_kinds_are_the_formats() -> None:
    assert {kind.name: kind.value for kind in Kind} == {
        kind.name: getattr(delivery_log_notes, kind.name) for kind in Kind
    }


async def test_what_no_column_takes_is_brought_into_its_bounds(tmp_path: Path, nursery: trio.Nursery) -> None:
    log = made(tmp_path, RealDisk())
    await nursery.start(lambda task_status: log.run(task_status=task_status))
    notes = log.subscription("t", "s", Strict())
    for positions in ([(2**64 - 1, 2**64 - 1)], [(0, 2**63 - 1), (0, 0)], [(3, 4)]):
        notes.acked("c", positions)
    notes.released("é" * 100_000)
    log.duplicate("t", "p", 2**64 - 1, 1)
    await log.close()
    data = RealDisk().read_file(f"{tmp_path}/log/{file_name(1)}")
    found = list(segments(data))
    acked = [
        tuple(segment.columns[name][place] for name in ("ledger_id", "entry_id"))
        for segment in found
        for place in range(segment.head.events)
        if segment.columns["kind"][place] == ACKED
    ]
    far = delivery_log.NUMBER_MAX
    assert acked == [(far, far), (0, far), (0, 0), (3, 4)]
    assert kinds(f"{tmp_path}/log", 1)[-3:] == [RELEASED, DUPLICATE, CLOSED]
