"""Wake-ups between one thread and the event loop, with as few system calls as the system allows.

Where `edges.py` works, the thread rings and falls asleep in one system call, and the loop takes notice
without any. Elsewhere, and for a loop that does not follow its turns, trio's `run_sync_soon` takes five, and
a turn of the loop.
"""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Self

import trio

from geminga.bookie.journal.edges import edges_of_loop


class Bell:
    """Leave the context only after the thread has ended, because other files may get the descriptors then."""

    def __init__(self, answer: Callable[[], None]) -> None:
        """Call on the loop. The loop calls `answer` after each ring, unless its turns are followed."""
        self._token = trio.lowlevel.current_trio_token()
        self._answer = answer
        self._edges = edges_of_loop()
        # A queue and not a condition: a wake-up before the thread sleeps is kept, so none is lost. Only for
        # waits without an end: up to Python 3.12 at least, `get` with a time waits for ever if that has
        # passed when it looks again.
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_followed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._edges is not None:
            self._edges.close()

    def follow(self, follows: bool) -> None:
        """While `follows` is true, the loop looks for the thread's work at the beginning of each turn, and a
        ring only ends its sleep. Call on the loop, and look once after the end of this time, because nothing
        else answers a ring of it that no turn has seen.
        """
        self._is_followed = follows and self._edges is not None

    def ring(self) -> None:
        """Call on any thread. Several rings may share one answer."""
        if self._is_followed and self._edges is not None:
            self._edges.ring()
        else:
            self._token.run_sync_soon(self._answer, idempotent=True)

    def sleep(self, *, rings: bool) -> None:
        """Call on the thread: ring, and return after a `wake`. Each wake-up ends one sleep, which may begin
        after it. If `rings` is false, a followed loop may be woken all the same.
        """
        if self._edges is None:
            if rings:
                self.ring()
            self._wakes.get()
            return
        if rings and not self._is_followed:
            self.ring()
        # The way of the wake-ups does not depend on `follow`: the thread may be asleep when it is called.
        self._edges.sleep()

    def wake(self) -> None:
        """Call on the loop."""
        if self._edges is not None:
            self._edges.wake()
        else:
            self._wakes.put(None)
