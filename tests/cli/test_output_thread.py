"""A stream that a thread writes: what arrives if it is slow, gone or full, and what is counted."""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from geminga.cli.output_thread import OutputThread
from geminga.clock import RealClock

SECONDS_MAX = 20.0


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """The end to read, the end to write."""
    reader, writer = os.pipe()
    yield reader, writer
    for descriptor in (reader, writer):
        with contextlib.suppress(OSError):
            os.close(descriptor)


def soon() -> float:
    return RealClock().monotonic_s() + SECONDS_MAX


def read_all(reader: int, into: list[bytes]) -> threading.Thread:
    def read() -> None:
        while data := os.read(reader, 1 << 16):
            into.append(data)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def fill(writer: int) -> None:
    """The thread that writes there next hangs until somebody reads."""
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"." * 100)
    os.set_blocking(writer, True)


def test_lines_come_whole_and_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "out"
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY)
    stream = OutputThread(descriptor)
    threads = [
        threading.Thread(target=lambda i=i: [stream.write(f"{i}/{n}\n") for n in range(200)])
        for i in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stream.write("no end")
    stream.finish(soon())
    os.close(descriptor)
    *lines, last = path.read_text().splitlines()
    assert last == "no end"
    assert sorted(lines) == sorted(f"{i}/{n}" for i in range(3) for n in range(200))
    for i in range(3):
        assert [line for line in lines if line.startswith(f"{i}/")] == [f"{i}/{n}" for n in range(200)]
    assert stream.dropped_lines == 0


def test_an_unread_pipe_holds_up_nothing_and_keeps_the_newest_lines(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    fill(writer)
    stream = OutputThread(writer, bytes_max=100_000)
    for n in range(5000):
        print(f"line {n:04}", file=stream)
    assert stream.dropped_lines > 1000
    stream.finish(RealClock().monotonic_s())  # returns, though nothing can be written

    said: list[bytes] = []
    thread = read_all(reader, said)
    stream.finish(soon())
    os.close(writer)
    thread.join(SECONDS_MAX)
    number = missing = 0
    for line in b"".join(said).decode().lstrip(".").splitlines():
        if notice := re.fullmatch(r"geminga: (\d+) lines are missing here: they could not be written", line):
            number += int(notice[1])
            missing += int(notice[1])
        else:
            assert line == f"line {number:04}", "each gap is told where it is, with its size"
            number += 1
    assert (number, missing) == (5000, stream.dropped_lines)
    assert line == "line 4999"


def test_what_comes_after_the_end_is_counted(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "out", os.O_CREAT | os.O_WRONLY)
    stream = OutputThread(descriptor)
    print("before", file=stream)
    stream.finish(soon())
    print("after", file=stream)
    os.close(descriptor)
    assert (tmp_path / "out").read_text() == "before\n"
    assert stream.dropped_lines == 1


@pytest.mark.parametrize("why", ["full", "gone"])
def test_what_the_system_refuses_is_dropped_and_counted(why: str, pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    if why == "full":
        if not os.path.exists("/dev/full"):
            pytest.skip("needs /dev/full")
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, writer)
        os.close(full)
    else:
        os.close(reader)
    stream = OutputThread(writer)
    for n in range(10):
        print(f"line {n}", file=stream)
    stream.finish(soon())
    assert stream.dropped_lines == 10


def test_a_disk_with_space_again_gets_the_count_and_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk takes half a line and is full; then it has space."""
    real, refusals = os.write, iter([5, None])
    refused = threading.Event()

    def write(descriptor: int, data: memoryview) -> int:
        room = next(refusals, -1)
        if room is None:
            refused.set()
            raise OSError(28, "No space left on device")
        return real(descriptor, data if room < 0 else data[:room])

    monkeypatch.setattr(os, "write", write)
    descriptor = os.open(tmp_path / "out", os.O_CREAT | os.O_WRONLY)
    stream = OutputThread(descriptor)
    print("line one", file=stream)
    assert refused.wait(SECONDS_MAX)
    print("line two", file=stream)
    stream.finish(soon())
    os.close(descriptor)
    assert (tmp_path / "out").read_text().splitlines() == [
        "line ",
        "geminga: 1 lines are missing here: they could not be written",
        "line two",
    ]


def test_a_notice_that_cannot_be_written_is_told_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three writes find a full disk, the second and third of them with the count of those before."""
    real, refused = os.write, threading.Semaphore(0)
    refusals = iter(range(3))

    def write(descriptor: int, data: memoryview) -> int:
        if next(refusals, None) is not None:
            refused.release()
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    descriptor = os.open(tmp_path / "out", os.O_CREAT | os.O_WRONLY)
    stream = OutputThread(descriptor)
    for number in range(3):
        print(f"line {number}", file=stream)
        assert refused.acquire(timeout=SECONDS_MAX)
    print("line 3", file=stream)
    stream.finish(soon())
    os.close(descriptor)
    assert (tmp_path / "out").read_text().splitlines() == [
        "geminga: 3 lines are missing here: they could not be written",
        "line 3",
    ]


def test_a_stream_that_does_not_block_is_waited_for(pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    fill(writer)
    os.set_blocking(writer, False)
    stream = OutputThread(writer)
    print("late", file=stream)
    said: list[bytes] = []
    thread = read_all(reader, said)
    stream.finish(soon())
    os.close(writer)
    thread.join(SECONDS_MAX)
    assert b"".join(said).endswith(b".late\n")
    assert stream.dropped_lines == 0


def test_a_name_that_is_not_utf_8_is_escaped(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "out", os.O_CREAT | os.O_WRONLY)
    stream = OutputThread(descriptor)
    print(os.fsdecode(b"\xff"), file=stream)
    stream.finish(soon())
    os.close(descriptor)
    assert (tmp_path / "out").read_bytes() == b"\\udcff\n"
