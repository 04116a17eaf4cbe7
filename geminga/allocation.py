"""Memory of a broker: how the C library allocates it, and how Python looks for garbage in it."""

from __future__ import annotations

import ctypes
import gc
import sys
from collections.abc import Mapping
from typing import Final

_ARENA_MAX: Final = -8
"""glibc's M_ARENA_MAX."""


def share_one_arena() -> None:
    """Let all threads allocate memory from one arena. Call this before there is a second thread.

    glibc gives each thread an arena of its own, and other threads cannot use memory that was freed in it.
    With the disk's and the index's workers, 25 MB more stayed resident while 2,000,000 delayed messages were
    read again. CPU time was equal, because the interpreter's lock separates nearly all threads anyway. Does
    nothing without glibc.
    """
    if sys.platform == "linux":
        try:
            ctypes.CDLL(None).mallopt(_ARENA_MAX, 1)
        except (AttributeError, OSError):
            return


def return_free_memory() -> None:
    """Return free pages to the system, in about a millisecond. Does nothing without glibc.

    Importing modules leaves free pages between used ones: about 0.7 MB of an idle broker after its start,
    and as much after the admin API's first request.
    """
    if sys.platform == "linux":
        try:
            ctypes.CDLL(None).malloc_trim(0)
        except (AttributeError, OSError):
            return


class Collections:
    """Collections of garbage that do not walk again over what has survived one.

    A broker with 10,000 loaded topics has more than a million objects. Python walks over all of them
    whenever a quarter as many have come, which took up to a second and fell to whichever load came then.
    Here what has survived is set aside, and a collection walks over what has come since. A whole one follows
    when that is half as much as all that was there at the last whole one, so garbage is at most that much.
    Each object that comes costs the same then, however many there are.
    """

    OLDEST: Final = 2

    def __init__(self) -> None:
        self.whole = 0
        """Whole collections, since the start."""
        self._at_whole = self._since = 0
        self._is_whole = False

    def begin(self) -> None:
        """Collect now, and from now on as described. May be repeated, when most of what was there is gone."""
        self.close()
        gc.unfreeze()
        gc.collect()
        self._set_aside(is_whole=True)
        gc.callbacks.append(self._on_collection)

    def close(self) -> None:
        """Leave collections to Python."""
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)

    def _on_collection(self, phase: str, info: Mapping[str, int]) -> None:
        if info["generation"] != self.OLDEST:
            return
        if phase == "start":
            self._is_whole = self._since > self._at_whole // 2
            if self._is_whole:
                gc.unfreeze()
        else:
            self._set_aside(is_whole=self._is_whole)

    def _set_aside(self, *, is_whole: bool) -> None:
        survivors = len(gc.get_objects(generation=self.OLDEST))
        if is_whole:
            self.whole += 1
            self._at_whole, self._since = survivors, 0
        else:
            self._since += survivors
        gc.freeze()
