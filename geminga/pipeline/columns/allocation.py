"""How a process deals with the memory of large arrays, and of what it has imported."""

from __future__ import annotations

import ctypes
import functools
import gc
import os
from typing import Final

from geminga.limits import MIB

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
ARRAY_BYTES_MAX: Final = 32 * MIB
KEPT_BYTES_MAX: Final = 256 * MIB
REUSED_WORKER: Final = "SPARK_REUSE_WORKER"
"""Spark sets it in processes that run one task after the other."""


def keep_freed_memory() -> None:
    """Let the process keep what freed arrays leave, up to `KEPT_BYTES_MAX`, for those that come next.

    Otherwise glibc maps every large array from the kernel, which clears it first; that took half of the time
    of code that makes one array from another. Without glibc this does nothing.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_MMAP_THRESHOLD, ARRAY_BYTES_MAX)
    mallopt(_TRIM_THRESHOLD, KEPT_BYTES_MAX)
    mallopt(_TOP_PAD, ARRAY_BYTES_MAX)


@functools.cache
def freeze_imports(after: str) -> None:
    """In a worker that Spark reuses, have the collector leave out what is there now, which is mostly modules;
    once for each `after`, such as "import" and "task".

    Spark's daemon collects after each task, and so after each split and each step of planning. Looking
    through all that numpy, pandas and pyarrow have made takes 50 ms of a core, as much as reading 300,000
    messages. Objects are still freed by their reference counts. The first task imports more: pyarrow imports
    pandas for its first array of Python's values, which takes 0.4 s, so that no module of ours makes one when
    it is imported; a process that only plans does without.
    """
    if os.environ.get(REUSED_WORKER):
        gc.freeze()
