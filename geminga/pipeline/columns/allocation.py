"""How the C library deals with the memory of large arrays."""

from __future__ import annotations

import ctypes
from typing import Final

from geminga.limits import MIB

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
ARRAY_BYTES_MAX: Final = 32 * MIB
KEPT_BYTES_MAX: Final = 256 * MIB


def keep_freed_memory() -> None:
    """Let the process keep what freed arrays leave, up to `KEPT_BYTES_MAX`, for those that come next.

    Otherwise glibc takes every large array anew from the kernel, which has to clear it first: half of the
    time of work that makes one array of another. Without glibc nothing happens.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    mallopt(_MMAP_THRESHOLD, ARRAY_BYTES_MAX)
    mallopt(_TRIM_THRESHOLD, KEPT_BYTES_MAX)
    mallopt(_TOP_PAD, ARRAY_BYTES_MAX)
