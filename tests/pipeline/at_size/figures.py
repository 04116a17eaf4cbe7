"""Figures of one step: seconds, CPU, the most memory that processes had; and the table of them."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.pipeline.rig import cpu_seconds

LOOK_SECONDS = 0.5


class Processes(NamedTuple):
    """Those that are measured; the broker's is 0 where it is not ours."""

    jvm: int
    broker: int


class Figures:
    """What was measured and what was wrong, printed as it comes."""

    def __init__(self) -> None:
        self.wrong = 0

    def row(self, what: str, *told: str) -> None:
        print(f"{what:58}  {'  '.join(told)}", flush=True)

    def check(self, what: str, found: object, expected: object) -> None:
        if found != expected:
            self.wrong += 1
            self.row(f"WRONG: {what}", f"{found!r}, expected {expected!r}")

    @contextmanager
    def measured(self, what: str, processes: Processes, more: list[str] | None = None) -> Iterator[None]:
        """A row when the block ends, with `more` behind the figures of all steps."""
        begun_s, cpu = time.perf_counter(), cpu_seconds(processes.jvm)
        broker_cpu = cpu_seconds(processes.broker) if processes.broker else 0.0
        with _peaks(processes) as peaks:
            yield
        told = [
            f"{time.perf_counter() - begun_s:7.1f} s",
            f"Spark {cpu_seconds(processes.jvm) - cpu:6.1f} CPU-s",
        ]
        if processes.broker:
            told.append(f"broker {cpu_seconds(processes.broker) - broker_cpu:6.1f} CPU-s")
        names = ("JVM", "largest Python", "broker")
        told.append(
            "MB at most: " + ", ".join(f"{name} {peaks[name]:.0f}" for name in names if name in peaks)
        )
        self.row(what, *told, *(more or []))


def children(root: int) -> list[int]:
    """All processes below one."""
    parents: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(name))
    found, waiting = [], [root]
    while waiting:
        waiting += (below := parents.get(waiting.pop(), []))
        found += below
    return found


def memory_mb(pid: int | str, name: str) -> float:
    """One of the lines about memory of /proc; 0: the process has ended."""
    try:
        lines = Path("/proc", str(pid), "status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(name)), 0.0)


@contextmanager
def _peaks(processes: Processes) -> Iterator[dict[str, float]]:
    """By name, what the largest process had at a look."""
    found: dict[str, float] = {}
    ended = threading.Event()

    def note(name: str, pids: Sequence[int]) -> None:
        found[name] = max([found.get(name, 0.0), *(memory_mb(pid, "VmRSS") for pid in pids)])

    def look() -> None:
        while True:
            note("JVM", [processes.jvm])
            note("largest Python", children(processes.jvm))
            if processes.broker:
                note("broker", [processes.broker])
            if ended.wait(LOOK_SECONDS):
                return

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        ended.set()
        thread.join()
