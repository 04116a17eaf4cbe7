"""One seed, one order: trio shuffles tasks that could run, here by seed and on a clock that nobody waits for.

Trio has no public switch for this. `tests/chaos/test_deterministic.py` sees it if the private one breaks.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio
from trio.testing import MockClock


def run_deterministically(seed: int, work: Callable[..., Awaitable[Any]], *args: object) -> Any:
    """`trio.run(work, *args)` with the same order of tasks for the same seed, and virtual time."""
    scheduler: Any = trio._core._run
    before = scheduler._ALLOW_DETERMINISTIC_SCHEDULING
    scheduler._ALLOW_DETERMINISTIC_SCHEDULING = True
    scheduler._r.seed(seed)
    try:
        return trio.run(work, *args, clock=MockClock(autojump_threshold=0))
    finally:
        scheduler._ALLOW_DETERMINISTIC_SCHEDULING = before
