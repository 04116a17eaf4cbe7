"""Kills processes below our own while a Spark session works: Python workers, executors."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

KILLS_MAX = 20
DAEMONS = ("pyspark.daemon pyspark.worker", "warm_daemon pyspark.worker")
PLANNER = "python_streaming_source_runner"


def below(root: int) -> dict[int, tuple[int, str]]:
    """Every process under `root`: its parent and its command line."""
    parents: dict[int, tuple[int, str]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                parent = int(Path("/proc", name, "stat").read_text().rpartition(")")[2].split()[1])
                command = (
                    Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
            except OSError:
                continue
            parents[int(name)] = (parent, command)
    found: dict[int, tuple[int, str]] = {}
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        for child, (parent, command) in parents.items():
            if parent == pid:
                found[child] = (parent, command)
                waiting.append(child)
    return found


def python_workers(root: int) -> list[int]:
    """Forked workers (children of Spark's Python daemon that run its command line themselves), and what plans
    a stream for the driver, whose death ends the query.
    """
    family = below(root)
    daemons = {pid for pid, (_, command) in family.items() if any(name in command for name in DAEMONS)}
    planning = [pid for pid, (_, command) in family.items() if PLANNER in command]
    return [pid for pid in daemons if family[pid][0] in daemons] + planning


def executors(root: int) -> list[int]:
    return [pid for pid, (_, command) in below(root).items() if "CoarseGrainedExecutorBackend" in command]


@contextmanager
def killing(
    spark: Any,
    victims: Callable[[int], list[int]],
    seconds: tuple[float, float],
    *,
    kills_max: int = KILLS_MAX,
) -> Iterator[list[int]]:
    """Kill one of them now and then while a stage runs, but only after another task has ended, so that a slow
    machine gets on too.
    """
    root = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
    stop, source = threading.Event(), random.Random()
    killed: list[int] = []
    status = spark.sparkContext.statusTracker()

    def progress() -> list[tuple[int, int]]:
        stages = [status.getStageInfo(stage) for stage in status.getActiveStageIds()]
        return [(stage.stageId, stage.numCompletedTasks) for stage in stages if stage is not None]

    def run() -> None:
        last: list[tuple[int, int]] = []
        while len(killed) < kills_max and not stop.wait(source.uniform(*seconds)):
            now = progress()
            if now and now != last and (found := victims(root)):
                pid = source.choice(found)
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
                killed.append(pid)
                last = now

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield killed
    finally:
        stop.set()
        thread.join()
