"""Handles an open that fails for lack of file descriptors or kernel memory: no disk has failed, nothing was
begun, and a retry helps.

All code that opens files shares one `DescriptorWait`. At a start, such an open is refused at once, with a
clear error. Between `begin` and `stop` the caller waits and retries until the open succeeds, except on the
event loop.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import threading
from collections.abc import Callable

import trio

from geminga.errors import ServerError, StorageError

log = logging.getLogger("geminga.storage")

# Only these. EIO, EROFS or EACCES at an open say something about the disk, and waiting for them would hide
# it.
SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Errors of an open after which nothing was begun, the disk is sound, and a retry helps."""
# Descriptors come back when connections close, mostly within milliseconds; half a second bounds the load of a
# longer shortage.
_RETRY_S_MIN, _RETRY_S_MAX = 0.01, 0.5


class OutOfDescriptors(StorageError):
    """A file cannot be opened now, for lack of descriptors or kernel memory. Nothing was begun."""

    server_error = ServerError.SERVICE_NOT_READY


class DescriptorWait:
    """Decides whether an open that fails now may be retried. Any thread."""

    def __init__(self) -> None:
        self._make_room: Callable[[], None] | None = None
        self._stopped = threading.Event()

    def begin(self, make_room: Callable[[], None]) -> None:
        """Allow retries. `make_room` is called before each retry, on any thread; it may close spare files or
        connections.
        """
        self._make_room = make_room

    def stop(self) -> None:
        """Calls that wait now, or would wait later, raise OutOfDescriptors."""
        self._stopped.set()

    def is_allowed(self) -> bool:
        """Whether the current thread may wait; never on the event loop."""
        # Waiting on the loop would stop the very connections whose closing gives descriptors back.
        is_on_loop = trio.lowlevel.in_trio_run()
        return self._make_room is not None and not is_on_loop and not self._stopped.is_set()

    def pause(self, seconds: float) -> None:
        """Make room, and wait at most this long."""
        assert self._make_room is not None
        # Outside any lock: it closes idle connections, on whichever thread meets the shortage.
        self._make_room()
        self._stopped.wait(seconds)


class Attempts:
    """Retries one piece of work until the files that it opens can be opened. Blocking."""

    __slots__ = ("_doing", "_path", "_retry_s", "_wait")

    def __init__(self, wait: DescriptorWait, path: str, doing: str) -> None:
        self._wait = wait
        self._path = path
        self._doing = doing
        self._retry_s = _RETRY_S_MIN

    def failed(self, reason: str) -> None:
        """Return when it is time for the next attempt. Raises OutOfDescriptors if there is none."""
        if not self._wait.is_allowed():
            raise OutOfDescriptors(f"{self._path}: cannot {self._doing} now: {reason}; try again")
        # Once for each piece of work: a shortage of minutes would otherwise write thousands of lines.
        if self._retry_s == _RETRY_S_MIN:
            log.warning("%s: cannot %s now, waiting until it can: %s", self._path, self._doing, reason)
        self._wait.pause(self._retry_s)
        self._retry_s = min(2 * self._retry_s, _RETRY_S_MAX)

    def succeeded(self) -> None:
        if self._retry_s > _RETRY_S_MIN:
            log.warning("%s: going on", self._path)


def can_open(files: int) -> bool:
    """Whether this process could open this many more files now."""
    with contextlib.ExitStack() as opened:
        # By really opening them: the limit is shared with other threads, and a count from /proc would be
        # stale.
        for _ in range(files):
            try:
                descriptor = os.open(os.devnull, os.O_RDONLY)
            except OSError as error:
                if error.errno in SHORTAGES:
                    return False
                raise
            opened.callback(os.close, descriptor)
    return True
