"""The CPU of a process and all below it: Spark's driver is one, and its JVM and Python workers are others."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(root: int) -> float:
    """Of a process and all below it, those that ended included."""
    parents: dict[int, list[int]] = {}
    times: dict[int, float] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            fields = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(fields[1]), []).append(int(name))
        times[int(name)] = sum(map(int, fields[11:15])) / TICKS
    total, waiting = 0.0, [root]
    while waiting:
        pid = waiting.pop()
        total += times.get(pid, 0.0)
        waiting += parents.get(pid, [])
    return total


@contextmanager
def measured(root: int) -> Iterator[dict[str, float]]:
    """Fills in `cpu` and `wall` in seconds when the block ends."""
    found: dict[str, float] = {}
    cpu, wall = cpu_seconds(root), time.perf_counter()
    yield found
    found["wall"] = time.perf_counter() - wall
    found["cpu"] = cpu_seconds(root) - cpu
